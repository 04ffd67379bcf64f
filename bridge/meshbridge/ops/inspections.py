"""Calls that ask how a value is sharded (`jax.debug.inspect_array_sharding`): partitioning writes the answer on the call.

    stablehlo.custom_call @meshbridge.inspect_sharding(%0) {backend_config = "0", has_side_effect = true,
                                                           meshbridge.tiles = array<i64: 2, 1, 4>,
                                                           meshbridge.tile_devices = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>}

`take_answers` removes the calls and returns their answers to whoever calls the user's functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshbridge.dialect import attributes
from meshbridge.ir import mlir
from meshbridge.ir.mlir import call_target, ir
from meshbridge.ops.spmd import SpmdProgram
from meshbridge.ops.unsupported import INSPECTION

_TILES, _DEVICES = "meshbridge.tiles", "meshbridge.tile_devices"


class Answer(NamedTuple):
    """The sharding of one value."""

    question: int
    "The number of the question, which the call names."
    tiles: tuple[int, ...]
    "Into how many shards each dimension is split, then how many devices hold each shard; empty where each device computes on its"
    " own, as in `jax.shard_map`."
    devices: tuple[int, ...]
    "The logical devices that hold the shards, in row-major order of `tiles`."


def answer(op: ir.Operation, at: SpmdProgram) -> None:
    """Writes the sharding of the call's operand on the call."""
    sharding, mesh = at.shards[op.operands[0]].sharding, at.mesh
    split = sharding.padded(len(at.global_shape(op.operands[0]))).split_axes
    replicated = tuple(axis for axis in range(mesh.rank) if not any(axis in axes for axes in split))
    tiles = [] if set(at.manual) == {*range(mesh.rank)} else [mesh.group_size(axes) for axes in (*split, replicated)]
    order = [axis for axes in (*split, replicated) for axis in axes]
    devices = np.array(mesh.ordered_devices()).reshape(mesh.shape).transpose(order).ravel()
    op.attributes[_TILES] = attributes.integers_attr(tiles)
    op.attributes[_DEVICES] = attributes.integers_attr(devices.tolist() if tiles else [])


def take_answers(module: ir.Module) -> Iterator[Answer]:
    """Removes the calls from a partitioned module and returns their answers in program order."""
    calls = [op for op in mlir.walk_all(module) if op.name == mlir.CUSTOM_CALL and call_target(op) == INSPECTION]
    for op in calls:
        number = int(ir.StringAttr(op.attributes["backend_config"]).value)
        tiles, devices = (attributes.integers(op.attributes[name]) for name in (_TILES, _DEVICES))
        op.erase()
        yield Answer(number, tiles, devices)
