"""The gain of dividing a product and a collective into chunks that overlap.

All times are seconds of the predicted step before the division (`cost.step`). A gain counts from the first significant difference
(`MARGIN`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from meshbridge.cost.collective_ops import issued_kind
from meshbridge.cost.fusion import Fusion
from meshbridge.cost.seconds import Time, op_time
from meshbridge.cost.step import MARGIN, OpRun, schedule
from meshbridge.ir.block_index import BlockIndex
from meshbridge.ir.builder import op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, ir
from meshbridge.ir.passes import Analyses
from meshbridge.ir.uses import defining_name, is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import Machine
from meshbridge.ops.traits import Trait, has, ops_with

SUMMED = 0.6
"""The share of the time to read and write a sum of partial products that the next product does not hide.

Measured on eight divided products of 140 to 190 GFLOP on 8 v5e, by the cycles of XLA:TPU: 0.2 to 1.0, this is the mean."""

_ARRANGED = (ops_with(Trait.ALIASING) | {"stablehlo.transpose"}) - {BARRIER}
"""Ops that are free if a layout can replace them."""

_LAID_OUT = ops_with(Trait.GROUPED) | {BARRIER, "stablehlo.while"}
"""Ops whose results have a fixed layout, as arguments of blocks have."""


class _Loads(NamedTuple):
    """The computation and communication of a block, in the order of the predicted step."""

    starts: Sequence[float]
    remaining: Sequence[tuple[float, float]]
    "By the number of an operation's start, the seconds of computation and communication from there on."

    @staticmethod
    def of(started: Iterable[tuple[float, tuple[float, float]]]) -> _Loads:
        """Collects start times, each with the seconds of computation and communication."""
        order = sorted(started)
        remaining = [
            *accumulate((load for _, load in reversed(order)), lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0.0, 0.0))
        ]
        return _Loads([start for start, _ in order], remaining[::-1])

    def since(self, began: float) -> tuple[float, float]:
        """Seconds of the operations that do not start before `began`."""
        return self.remaining[bisect_left(self.starts, began)]


@dataclass(frozen=True)
class OverlapCosts:
    """The times of a program's operations on a machine."""

    machine: Machine
    runs: Mapping[ir.Operation, OpRun]
    times: Mapping[ir.Operation, Time]
    analyses: Analyses
    _fusions: dict[ir.Block, Fusion] = field(default_factory=dict)
    "By block, the fusion if products compute their operands."
    _block_loads: dict[ir.Block, _Loads] = field(default_factory=dict)

    @staticmethod
    def of(module: ir.Module, target: CompileTarget, analyses: Analyses | None = None) -> OverlapCosts:
        """The costs of a module, of which these are analyses; without a topology, all links count as equal. Raises MeshError if
        no step can be predicted."""
        step = schedule(module, target, analyses=analyses)
        return OverlapCosts(target.device, step.runs, step.times, {} if analyses is None else analyses)

    @property
    def kernel_launch(self) -> float:
        """Seconds per kernel in addition to its work."""
        return self.machine.kernel_launch

    def covers(self, operations: Iterable[ir.Operation]) -> bool:
        """True if the step runs all `operations`; it does not run functions without calls."""
        return all(op in self.runs for op in operations)

    def start(self, op: ir.Operation) -> float:
        """The start of `op` in its block."""
        return self.runs[op].start

    def seconds(self, op: ir.Operation) -> float:
        """The seconds that `op` takes."""
        return self.runs[op].seconds

    def memory_seconds(self, value: ir.Value) -> float:
        """Seconds to read or write `value`."""
        return self._traffic_seconds(tensor_bytes(value))

    def addition_seconds(self, total: ir.Value, times: int) -> float:
        """Seconds to add `times` partial products to a sum like `total`, in addition to the products."""
        return times * SUMMED * 2.0 * self.memory_seconds(total)

    def concatenation_seconds(self, whole: ir.Value) -> float:
        """Seconds to concatenate the parts of `whole`, or to slice it."""
        return 2.0 * self.memory_seconds(whole)

    def materialization_seconds(self, value: ir.Value) -> float:
        """Seconds to write `value` to memory for the chunks of a product, if the undivided product fuses its computation, as
        XLA:TPU does with elementwise operations. If it is computed from the result of another product, that product writes it."""
        while defining_name(value) in _ARRANGED:
            value = op_of(value).operands[0]
        if not has(defining_name(value), Trait.ELEMENTWISE):
            return 0.0
        fusion = self._fusion(op_of(value).block)
        values = fusion.index.values
        number = values[value]
        block_op = fusion.index.maker(number)
        if block_op is None or number not in fusion.sources:
            return 0.0
        read = fusion.read(block_op)
        beside = any(has(defining_name(values.all[buffer]), Trait.CONTRACTION) for buffer in read)
        return (
            self.memory_seconds(value)
            if beside
            else self.kernel_launch + self._traffic_seconds(sum(read.values()) + tensor_bytes(value))
        )

    def relayout_seconds(self, value: ir.Value) -> float:
        """Seconds to copy `value` to another layout, so that chunks along its last dimension can be read at computed offsets,
        which XLA:TPU cannot do in place. A fused producer writes that layout itself."""
        if not is_argument(value) and defining_name(value) not in _LAID_OUT:
            return 0.0
        return self.kernel_launch + 2.0 * self.memory_seconds(value)

    def _fusion(self, block: ir.Block) -> Fusion:
        if block not in self._fusions:
            self._fusions[block] = Fusion(
                BlockIndex.of(block, self.analyses),
                repeats=self.machine.duplicates_expensive_ops,
                slices=self.machine.fuses_slices,
                row_elements=self.machine.row_elements,
                operands=True,
            )
        return self._fusions[block]

    def _traffic_seconds(self, size: float) -> float:
        return op_time(0.0, "", size, self.machine) / self.machine.efficiency

    def follows(self, op: ir.Operation, other_op: ir.Operation) -> bool:
        """True if `op`, which reads an operand of `first`, starts when `first` ends: it waits for nothing else."""
        return self.start(op) <= self._end(other_op) * (1 + 1e-9)

    def gain_of_chunked_collective(
        self, collective: ir.Operation, first_product: ir.Operation, computing: float, pieces: int
    ) -> float:
        """The gain if chunks of a collective overlap with products that take `computing` seconds together, `first_product` of
        which waits for it now; negative if only launches are added."""
        if issued_kind(collective) not in self.machine.async_collectives:
            return 0.0
        time = self.times[collective]
        waited = min(self.runs[first_product].waited, time.seconds)
        busy = time.seconds - time.latency
        sooner = busy * (pieces - 1) / pieces  # the first chunk arrives this much before the whole
        later = (pieces - 1) * time.latency
        after = max(max(waited - sooner, 0.0) + computing, waited + later + computing / pieces)
        return (waited + computing) / MARGIN - after

    def gain_of_stepwise_reduction(self, scatter: ir.Operation, computing: float, step: float, count: int) -> float:
        """The gain if a reduce-scatter (or that half of an all-reduce) of products that take `computing` seconds becomes `count`
        steps: each computes a block in `step` seconds, while the sum of another block travels, half of it each way."""
        kind = issued_kind(scatter)
        if kind in self.machine.async_collectives or "collective_permute" not in self.machine.async_collectives:
            return 0.0
        time, part = self.times[scatter], 0.5 if kind == "all_reduce" else 1.0
        travel = 2 * time.latency + part * sum(time.busy.values()) / (count - 1)
        return (part * time.seconds + computing) / MARGIN - (step + (count - 1) * max(step, travel))

    def gain_of_overlapped_reduction(
        self, scatter: ir.Operation, count: int, directions: int, dependent: Iterable[ir.Operation]
    ) -> float:
        """The gain if sums of `count` blocks travel in `directions` directions instead of in a reduce-scatter, while the
        device computes independent operations (not those in `dependent`) and no other collective overlaps with these."""
        if issued_kind(scatter) in self.machine.async_collectives or "collective_permute" not in self.machine.async_collectives:
            return 0.0
        time, reduced = self.times[scatter], self._kernels(scatter.operands)
        began = max((self._end(op) for op in self._kernels(value for op in reduced for value in op.operands)), default=0.0)
        travel = (count - 1) * directions * time.latency + sum(time.busy.values())
        computing, sending = self._loads(scatter.block).since(began)
        for op in {scatter, *reduced, *dependent}:
            if self._is_load(op) and op.block == scatter.block and self.start(op) >= began:
                computing, sending = computing - self._load(op)[0], sending - self._load(op)[1]
        return time.seconds / MARGIN - max(travel - max(computing - sending, 0.0), 0.0)

    def _loads(self, block: ir.Block) -> _Loads:
        if block not in self._block_loads:
            operations = (view.operation for view in block.operations)
            self._block_loads[block] = _Loads.of((self.start(op), self._load(op)) for op in operations if self._is_load(op))
        return self._block_loads[block]

    def _is_load(self, op: ir.Operation) -> bool:
        return op in self.runs and op.name not in REGION_OPS

    def _load(self, op: ir.Operation) -> tuple[float, float]:
        """The seconds of computation and of communication of `op`."""
        return (0.0, self.seconds(op)) if op in self.times else (self.seconds(op), 0.0)

    def _end(self, op: ir.Operation) -> float:
        return self.start(op) + self.seconds(op)

    def _kernels(self, values: Iterable[ir.Value]) -> set[ir.Operation]:
        """The last kernels and collectives that compute `values`, in their blocks; fused operations are looked through."""
        kernels: set[ir.Operation] = set()
        visited: set[ir.Value] = set()
        worklist = list(values)
        while worklist:
            value = worklist.pop()
            if value in visited or is_argument(value):
                continue
            visited.add(value)
            op = op_of(value)
            if op in self.runs:
                kernels.add(op)
            else:
                worklist += op.operands
        return kernels
