"""Manual computations: regions in which every device works on its own shards."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from meshbridge.ir.mlir import MeshError, ir, sdy, source_location
from meshbridge.verification.field import Array
from meshbridge.verification.layout import DeviceMesh, Dims, cut, dims_of_sharding, join, mesh_named
from meshbridge.verification.machine import Evaluator, Grid, evaluates, shape_of


@dataclass(eq=False)
class ReplicaConflict(MeshError):
    """Devices that should hold copies of one shard hold different ones: result `index` of `op` on `devices`."""

    op: ir.Operation
    index: int
    devices: Array

    def __post_init__(self) -> None:
        self.text = (
            f"{source_location(self.op)}: error: '{self.op.name}' op leaves different copies of result {self.index} "
            f"on devices {', '.join(map(str, self.devices[:8]))}"
        )

    def __str__(self) -> str:
        return self.text


def _shardings(op: ir.Operation, name: str) -> list[sdy.TensorShardingAttr]:
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    return [sdy.TensorShardingAttr(sharding) for sharding in shardings]


_NAMES = re.compile(r'"((?:[^"\\]|\\.)*)"')


def mesh_of_computation(machine: Evaluator, op: ir.Operation) -> DeviceMesh | None:
    """The mesh of a manual computation; None for another op, and for one that names no mesh."""
    if op.name != "sdy.manual_computation":
        return None
    shardings = [*_shardings(op, "in_shardings"), *_shardings(op, "out_shardings")]
    return mesh_named(shardings[0].mesh_or_ref, machine.meshes) if shardings else None


def sharding_of_result(machine: Evaluator, op: ir.Operation, number: int) -> tuple[Dims, DeviceMesh] | None:
    """The sharding of a result of a manual computation; None for another op, and for one that names no mesh."""
    mesh = mesh_of_computation(machine, op)
    if mesh is None:
        return None
    manual = set(_NAMES.findall(str(op.attributes["manual_axes"])))
    return dims_of_sharding(mesh, _shardings(op, "out_shardings")[number], manual), mesh


@evaluates("sdy.manual_computation")
def manual_computation(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Runs the region on every device of the mesh, on shards of the operands; along free axes, devices repeat the computation."""
    into, out = _shardings(op, "in_shardings"), _shardings(op, "out_shardings")
    mesh = mesh_of_computation(machine, op)
    if mesh is None:
        return machine.run(op, 0, operands)
    outer = machine.grid
    if outer.count not in (1, mesh.size):
        raise MeshError(f"{source_location(op)}: error: a mesh of {mesh.size} devices inside of one of {outer.count}")
    manual = set(_NAMES.findall(str(op.attributes["manual_axes"])))
    shards = [cut(x, dims_of_sharding(mesh, sharding, manual), mesh) for x, sharding in zip(operands, into, strict=True)]
    machine.grid = outer if outer.count > 1 else Grid(partitions=mesh.size)
    try:
        results = machine.run(op, 0, shards)
    finally:
        machine.grid = outer
    wholes = []
    for number, (value, sharding) in enumerate(zip(results, out, strict=True)):
        dims, shape = dims_of_sharding(mesh, sharding, manual), shape_of(op.results[number])
        if machine.joined is not None and outer.count == 1:
            machine.joined[op.results[number]] = mesh.everywhere(value)
        wholes.append(_inside(value, dims, mesh, shape) if outer.count > 1 else _outside(op, number, value, dims, mesh, shape))
    return wholes


def _outside(op: ir.Operation, number: int, value: Array, dims: Dims, mesh: DeviceMesh, shape: tuple[int, ...]) -> Array:
    whole, wrong = join(value, dims, mesh, shape)
    if wrong is not None:
        raise ReplicaConflict(op, number, wrong)
    return whole


def _inside(value: Array, dims: Dims, mesh: DeviceMesh, shape: tuple[int, ...]) -> Array:
    """Joins the value for every device from the devices that differ from it only in the digits of `dims`."""
    digits = [digit for dim in dims for digit in dim]
    if not digits:
        return value
    result = np.zeros((mesh.size, *shape), value.dtype)
    for group in mesh.groups(digits):
        result[group] = join(value, dims, mesh, shape, group)[0]
    return result
