"""What the attributes of an argument or result of a partitioned function say: how its shards make up a global tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_PARTIAL, BOUNDARY_SPLIT
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Split


@dataclass(frozen=True)
class Boundary:
    """A global shape, the mesh axes along which its dimensions are split, and those along which devices hold terms of a sum.

    A shard is the ceiling of each split dimension's share; the last ones are padded where shares are uneven.
    """

    shape: tuple[int, ...]
    split: Split
    partial: Axes = ()


def read_boundary(entry: Mapping[str, ir.Attribute], shard: ir.RankedTensorType) -> Boundary:
    """The boundary of a tensor of that type, of whose attributes `entry` holds; without any it is replicated."""
    none: Split = ((),) * shard.rank
    if BOUNDARY_GLOBAL not in entry:
        return Boundary(tuple(shard.shape), none)
    shape = tuple(ir.RankedTensorType(ir.TypeAttr(entry[BOUNDARY_GLOBAL]).value).shape)
    partial = attributes.integers(entry[BOUNDARY_PARTIAL]) if BOUNDARY_PARTIAL in entry else ()
    return Boundary(shape, (attributes.axis_array(entry[BOUNDARY_SPLIT]) + none)[: shard.rank], partial)
