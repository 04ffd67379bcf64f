"""Communication of a partitioned program (stages 3 and 4), collective by collective, in the ring model.

Wire bytes per device: all-gather (n-1)/n of its output, all-reduce 2(n-1)/n, reduce-scatter and all-to-all (n-1)/n of the input,
a permute what it moves. Bodies of loops count as often as they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshbridge.dialect.ops import GATHERED, CollectiveOpView, MeshOp
from meshbridge.mlir import ir, source_location
from meshbridge.propagation.graph import REGION_OPS, trip_count
from meshbridge.sharding import Axes, Mesh


@dataclass(frozen=True)
class Collective:
    """One collective of the program. Sizes in bytes per device and execution; `executions` counts the trips of its loops."""

    kind: str
    axes: Axes
    group_size: int
    wire_bytes: float
    executions: int
    location: str

    @property
    def total_bytes(self) -> float:
        return self.wire_bytes * self.executions


@dataclass(frozen=True)
class Report:
    """A program's collectives in program order, and the ops that run replicated on gathered operands."""

    collectives: tuple[Collective, ...]
    gathered: tuple[tuple[str, str], ...]
    "Name and source location of each."

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device puts on the wire in one run."""
        return sum(collective.total_bytes for collective in self.collectives)


_RING: dict[str, Callable[[int, float, float], float]] = {
    "all_gather": lambda n, size, result: (n - 1) / n * result,
    "gather": lambda n, size, result: (n - 1) / n * result,
    "all_reduce": lambda n, size, result: 2 * (n - 1) / n * result,
    "reduce": lambda n, size, result: 2 * (n - 1) / n * result,
    "reduce_scatter": lambda n, size, result: (n - 1) / n * size,
    "all_to_all": lambda n, size, result: (n - 1) / n * size,
    "scatter": lambda n, size, result: (n - 1) / n * size,
    "broadcast": lambda n, size, result: (n - 1) / n * size,
    "permute": lambda n, size, result: size,
    "shift": lambda n, size, result: size,
    "send": lambda n, size, result: size,
    "all_slice": lambda n, size, result: 0.0,
    "collective_permute": lambda n, size, result: size,
}
"""Wire bytes of one device from group size, input bytes and result bytes."""


def communication(module: ir.Module) -> Report:
    """The report of a module of mesh collectives, and of StableHLO's, which reshardings over factors of axes and manual
    computations bring along."""
    declared = [MeshOp(view.operation) for view in module.body.operations if view.operation.name == MeshOp.OPERATION_NAME]
    meshes = {op.sym_name: op.value for op in declared}
    collectives: list[Collective] = []
    gathered: list[tuple[str, str]] = []
    for view in module.body.operations:
        if view.operation.name == "func.func":
            for region in view.operation.regions:
                for block in region.blocks:
                    for op, executions in _executions(block, 1):
                        if GATHERED in op.attributes:
                            gathered.append((op.name, source_location(op)))
                        dialect, _, kind = op.name.partition(".")
                        if kind in _RING and (dialect == "mesh" or _names_devices(op)) and kind != "all_slice":
                            collectives.append(_collective(op, kind, meshes, executions))
    return Report(tuple(collectives), tuple(gathered))


def _executions(block: ir.Block, times: int) -> Iterator[tuple[ir.Operation, int]]:
    """Ops outside of reducers' bodies, each with how often it runs; a loop whose trip count is unknown counts once."""
    for view in block.operations:
        op = view.operation
        yield op, times
        if op.name in REGION_OPS:
            inner = times * (trip_count(op) or 1) if op.name == "stablehlo.while" else times
            for region in op.regions:
                yield from _executions(region.blocks[0], inner)


def _collective(op: ir.Operation, kind: str, meshes: dict[str, Mesh], executions: int) -> Collective:
    if op.name == "stablehlo.collective_permute":
        pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])).tolist()
        devices = max(mesh.size for mesh in meshes.values())
        moved = sum(source != target for source, target in pairs) / devices
        return Collective(kind, (), devices, moved * _bytes(op.operands[0]), executions, source_location(op))
    axes: Axes = ()
    if op.name.startswith("mesh."):
        collective = CollectiveOpView(op)
        axes = collective.mesh_axes
        count = meshes[collective.mesh].group_size(axes)
    else:
        groups: Any = op.attributes["replica_groups"]
        count = int(ir.RankedTensorType(groups.type).shape[1])
    wire = _RING[kind](count, _bytes(op.operands[0]), _bytes(op.results[0]))
    return Collective(kind, axes, count, wire, executions, source_location(op))


def _names_devices(op: ir.Operation) -> bool:
    """Whether this is a StableHLO collective: others of its names (gather, scatter, broadcast) are local."""
    return "replica_groups" in op.attributes or "source_target_pairs" in op.attributes


def _bytes(value: ir.Value) -> float:
    tensor = ir.RankedTensorType(value.type)
    return prod(tensor.shape) * element_bits(str(tensor.element_type)) / 8


def element_bits(dtype: str) -> int:
    """Bits of one element of an MLIR element type; complex counts both parts, i1 a whole byte as XLA stores it."""
    if dtype.startswith("complex<"):
        return 2 * element_bits(dtype[8:-1])
    digits = "".join(char if char.isdigit() else " " for char in dtype).split()
    return max(int(digits[0]), 8) if digits and int(digits[0]) == 1 else int(digits[0]) if digits else 64
