"""What it saves to divide a product and a collective beside it into pieces, so that one hides the other.

All times are seconds, of the predicted step before the division (`cost.step`). What is saved is counted from the least time that
differs from that (`EQUAL`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshbridge.cost.collective_ops import issued_kind
from meshbridge.cost.seconds import Time, op_time
from meshbridge.cost.step import Run, collective_times, runs
from meshbridge.cost.ways import EQUAL
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import Machine
from meshbridge.machines.target import Target

SUMMED = 0.6
"""The share of the time in which a sum of partial products is read and written that the next product does not hide.

Measured on eight divided products of 140 to 190 GFLOP on 8 v5e, by the cycles of XLA:TPU: 0.2 to 1.0, this in the mean."""


@dataclass(frozen=True)
class Prices:
    """The times of a program's operations on a machine."""

    machine: Machine
    runs: Mapping[ir.Operation, Run]
    times: Mapping[ir.Operation, Time]

    @staticmethod
    def of(module: ir.Module, machine: Machine, target: Target | None) -> Prices:
        """As if all links were alike where there is no `target`. Raises MeshError where no step can be predicted."""
        times = collective_times(module, machine, target)
        return Prices(machine, runs(module, machine, times), times)

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
        return op_time(0.0, "", tensor_bytes(value), self.machine) / self.machine.efficiency

    def adding(self, total: ir.Value, times: int) -> float:
        """That it takes to add so many partial products to a sum like `total`, beside the products."""
        return times * SUMMED * 2.0 * self.memory(total)

    def joining(self, whole: ir.Value) -> float:
        """That it takes to put `whole` together from its parts, or to take it apart."""
        return 2.0 * self.memory(whole)

    def follows(self, op: ir.Operation, first: ir.Operation) -> bool:
        """Whether `op`, which reads what `first` reads, starts no later than `first` ends: it waits for nothing else."""
        return self.start(op) <= (self.start(first) + self.seconds(first)) * (1 + 1e-9)

    def moved_in_pieces(self, collective: ir.Operation, first: ir.Operation, computing: float, pieces: int) -> float:
        """What is saved where pieces of a collective hide behind products that take `computing` together, the `first` of which
        waits for it now; less than nothing where the launches of more collectives are all that changes."""
        if issued_kind(collective) not in self.machine.asynchronous:
            return 0.0
        time = self.times[collective]
        waited = min(self.runs[first].waited, time.seconds)
        busy = time.seconds - time.latency
        sooner = busy * (pieces - 1) / pieces  # than all of it, the first piece is there
        later = (pieces - 1) * time.latency
        after = max(max(waited - sooner, 0.0) + computing, waited + later + computing / pieces)
        return (waited + computing) / EQUAL - after

    def scattered_in_steps(self, scatter: ir.Operation, computing: float, step: float, count: int) -> float:
        """What is saved where a reduce-scatter of products that take `computing` becomes `count` steps: each computes a block,
        which takes `step`, while the sum of another one travels, half of it each way."""
        if issued_kind(scatter) in self.machine.asynchronous or "collective_permute" not in self.machine.asynchronous:
            return 0.0
        time = self.times[scatter]
        travel = 2 * time.latency + sum(time.busy.values()) / (count - 1)
        return (time.seconds + computing) / EQUAL - (step + (count - 1) * max(step, travel))
