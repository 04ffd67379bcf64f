"""What it saves to divide a product and a collective beside it into pieces, so that one hides the other.

All times are seconds, of the predicted step before the division (`cost.step`). What is saved is counted from the least time that
differs from that (`MARGIN`).
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
from meshbridge.cost.step import MARGIN, OpRun, collective_times, runs
from meshbridge.ir.builder import op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, ir
from meshbridge.ir.uses import defining_name, is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import Machine
from meshbridge.ops.traits import Trait, has, ops_with

SUMMED = 0.6
"""The share of the time in which a sum of partial products is read and written that the next product does not hide.

Measured on eight divided products of 140 to 190 GFLOP on 8 v5e, by the cycles of XLA:TPU: 0.2 to 1.0, this in the mean."""

_ARRANGED = (ops_with(Trait.ALIASING) | {"stablehlo.transpose"}) - {BARRIER}
"""Cost nothing where layouts can do what they do."""

_LAID_OUT = ops_with(Trait.GROUPED) | {BARRIER, "stablehlo.while"}
"""Give results whose layout nobody chooses for their readers, as arguments of blocks have it."""


class _Loads(NamedTuple):
    """What a device computes and sends in a block, in the order of the predicted step."""

    starts: Sequence[float]
    left: Sequence[tuple[float, float]]
    "By the number of what starts, seconds of computing and of sending from there on."

    @staticmethod
    def of(started: Iterable[tuple[float, tuple[float, float]]]) -> _Loads:
        """Of when each operation starts, and its seconds of both."""
        order = sorted(started)
        left = [*accumulate((load for _, load in reversed(order)), lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0.0, 0.0))]
        return _Loads([start for start, _ in order], left[::-1])

    def since(self, began: float) -> tuple[float, float]:
        """What starts no earlier."""
        return self.left[bisect_left(self.starts, began)]


@dataclass(frozen=True)
class OverlapCosts:
    """The times of a program's operations on a machine."""

    machine: Machine
    runs: Mapping[ir.Operation, OpRun]
    times: Mapping[ir.Operation, Time]
    _fusions: dict[ir.Block, Fusion] = field(default_factory=dict)
    "What the compiler fuses in a block whose products compute their operands on the way."
    _known_loads: dict[ir.Block, _Loads] = field(default_factory=dict)

    @staticmethod
    def of(module: ir.Module, target: CompileTarget) -> OverlapCosts:
        """As if all links were alike where the `target` has no topology. Raises MeshError where no step can be predicted."""
        times = collective_times(module, target)
        return OverlapCosts(target.device, runs(module, target, times), times)

    @property
    def kernel_launch(self) -> float:
        """That a kernel takes beside its work."""
        return self.machine.kernel_launch

    def know(self, operations: Iterable[ir.Operation]) -> bool:
        """Whether the step runs all `operations`: functions that nothing calls are no part of it."""
        return all(op in self.runs for op in operations)

    def start(self, op: ir.Operation) -> float:
        """When `op` starts in its block."""
        return self.runs[op].start

    def seconds(self, op: ir.Operation) -> float:
        """That `op` takes."""
        return self.runs[op].seconds

    def memory(self, value: ir.Value) -> float:
        """That it takes to read or write `value`."""
        return self._moving(tensor_bytes(value))

    def adding(self, total: ir.Value, times: int) -> float:
        """That it takes to add so many partial products to a sum like `total`, beside the products."""
        return times * SUMMED * 2.0 * self.memory(total)

    def joining(self, whole: ir.Value) -> float:
        """That it takes to put `whole` together from its parts, or to take it apart."""
        return 2.0 * self.memory(whole)

    def making(self, value: ir.Value) -> float:
        """That it takes to write `value` to memory, of which pieces of a product read their parts, where the whole product
        computes it on the way, as XLA:TPU's do with elementwise operations. Another product writes it beside its work, if it is
        computed of what that one gives."""
        while defining_name(value) in _ARRANGED:
            value = op_of(value).operands[0]
        if not has(defining_name(value), Trait.ELEMENTWISE):
            return 0.0
        op = op_of(value)
        fusion = self._fusion(op.block)
        if value not in fusion.sources:
            return 0.0
        read = fusion.read(op)
        beside = any(has(defining_name(buffer), Trait.CONTRACTION) for buffer in read)
        return self.memory(value) if beside else self.kernel_launch + self._moving(sum(read.values()) + tensor_bytes(value))

    def copying(self, value: ir.Value) -> float:
        """That it takes to copy `value` to another layout before parts along its last dimension are read whose place the device
        computes: XLA:TPU does not read them where they are. What computes `value` for them writes it so."""
        if not is_argument(value) and defining_name(value) not in _LAID_OUT:
            return 0.0
        return self.kernel_launch + 2.0 * self.memory(value)

    def _fusion(self, block: ir.Block) -> Fusion:
        if block not in self._fusions:
            operations = [view.operation for view in block.operations]
            self._fusions[block] = Fusion(
                operations, repeats=self.machine.duplicates_expensive_ops, slices=self.machine.fuses_slices, operands=True
            )
        return self._fusions[block]

    def _moving(self, size: float) -> float:
        return op_time(0.0, "", size, self.machine) / self.machine.efficiency

    def follows(self, op: ir.Operation, first: ir.Operation) -> bool:
        """Whether `op`, which reads what `first` reads, starts no later than `first` ends: it waits for nothing else."""
        return self.start(op) <= self._end(first) * (1 + 1e-9)

    def moved_in_pieces(self, collective: ir.Operation, first: ir.Operation, computing: float, pieces: int) -> float:
        """What is saved where pieces of a collective hide behind products that take `computing` together, the `first` of which
        waits for it now; less than nothing where the launches of more collectives are all that changes."""
        if issued_kind(collective) not in self.machine.async_collectives:
            return 0.0
        time = self.times[collective]
        waited = min(self.runs[first].waited, time.seconds)
        busy = time.seconds - time.latency
        sooner = busy * (pieces - 1) / pieces  # than all of it, the first piece is there
        later = (pieces - 1) * time.latency
        after = max(max(waited - sooner, 0.0) + computing, waited + later + computing / pieces)
        return (waited + computing) / MARGIN - after

    def scattered_in_steps(self, scatter: ir.Operation, computing: float, step: float, count: int) -> float:
        """What is saved where a reduce-scatter of products that take `computing`, or that half of an all-reduce, becomes `count`
        steps: each computes a block, which takes `step`, while the sum of another one travels, half of it each way."""
        kind = issued_kind(scatter)
        if kind in self.machine.async_collectives or "collective_permute" not in self.machine.async_collectives:
            return 0.0
        time, part = self.times[scatter], 0.5 if kind == "all_reduce" else 1.0
        travel = 2 * time.latency + part * sum(time.busy.values()) / (count - 1)
        return (part * time.seconds + computing) / MARGIN - (step + (count - 1) * max(step, travel))

    def scattered_beside(self, scatter: ir.Operation, count: int, ways: int, behind: Iterable[ir.Operation]) -> float:
        """What is saved where the sums of `count` blocks travel, in so many ways, instead of a reduce-scatter, while the device
        computes what need not wait for them, as that does which is `behind`, and hides no other collective."""
        if issued_kind(scatter) in self.machine.async_collectives or "collective_permute" not in self.machine.async_collectives:
            return 0.0
        time, reduced = self.times[scatter], self._kernels(scatter.operands)
        began = max((self._end(op) for op in self._kernels(value for op in reduced for value in op.operands)), default=0.0)
        travel = (count - 1) * ways * time.latency + sum(time.busy.values())
        computing, sending = self._loads(scatter.block).since(began)
        for op in {scatter, *reduced, *behind}:
            if self._is_load(op) and op.block == scatter.block and self.start(op) >= began:
                computing, sending = computing - self._load(op)[0], sending - self._load(op)[1]
        return time.seconds / MARGIN - max(travel - max(computing - sending, 0.0), 0.0)

    def _loads(self, block: ir.Block) -> _Loads:
        if block not in self._known_loads:
            operations = (view.operation for view in block.operations)
            self._known_loads[block] = _Loads.of((self.start(op), self._load(op)) for op in operations if self._is_load(op))
        return self._known_loads[block]

    def _is_load(self, op: ir.Operation) -> bool:
        return op in self.runs and op.name not in REGION_OPS

    def _load(self, op: ir.Operation) -> tuple[float, float]:
        """For how long the device computes for `op`, and for how long it sends."""
        return (0.0, self.seconds(op)) if op in self.times else (self.seconds(op), 0.0)

    def _end(self, op: ir.Operation) -> float:
        return self.start(op) + self.seconds(op)

    def _kernels(self, values: Iterable[ir.Value]) -> set[ir.Operation]:
        """What the step runs last for `values`, in their blocks: what others compute on the way is none."""
        found: set[ir.Operation] = set()
        seen: set[ir.Value] = set()
        left = list(values)
        while left:
            value = left.pop()
            if value in seen or is_argument(value):
                continue
            seen.add(value)
            op = op_of(value)
            if op in self.runs:
                found.add(op)
            else:
                left += op.operands
        return found
