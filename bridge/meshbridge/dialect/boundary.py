"""Reads how the shards of an argument or result of a partitioned function make up a global tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_PARTIAL, BOUNDARY_SPLIT
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Split


@dataclass(frozen=True)
class Boundary:
    """A global shape, the mesh axes that split its dimensions, and those along which it is unreduced.

    The size of a shard is rounded up in each split dimension; the last shards are padded.
    """

    shape: tuple[int, ...]
    split: Split
    partial: Axes = ()


def read_boundary(entry: Mapping[str, ir.Attribute], shard: ir.RankedTensorType) -> Boundary:
    """The boundary of a tensor whose shard has type `shard` and whose attributes are `entry`; replicated without attributes."""
    none: Split = ((),) * shard.rank
    if BOUNDARY_GLOBAL not in entry:
        return Boundary(tuple(shard.shape), none)
    shape = tuple(ir.RankedTensorType(ir.TypeAttr(entry[BOUNDARY_GLOBAL]).value).shape)
    partial = attributes.integers(entry[BOUNDARY_PARTIAL]) if BOUNDARY_PARTIAL in entry else ()
    return Boundary(shape, (attributes.axis_array(entry[BOUNDARY_SPLIT]) + none)[: shard.rank], partial)
