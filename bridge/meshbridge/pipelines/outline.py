"""A lower bound of a pipeline's step, before the pipeline is built: its products at the peak rate of the devices.

It holds wherever stages begin, without transfers, collectives, other ops, and what is before and after the loop. With `n` stages,
`m` microbatches, and the products of a microbatch in `t[k]` seconds of stage `k`:

    step ≥ m t[k] + t[0] + … + t[k-1]

since the first microbatch passes the stages before `k` before it begins, and the last one passes them after it, backward. The
least of the largest of these, for any `t`, has `t[k] = (1 - 1/m) t[k-1]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshbridge.analysis.executions import executed
from meshbridge.cost.flops import amount, products
from meshbridge.cost.seconds import op_time
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import ancestor_in, ir
from meshbridge.machines.machine import Machine
from meshbridge.pipelines.candidates import Candidate
from meshbridge.pipelines.loop import MicrobatchLoop


def product_seconds(module: ir.Module, machine: Machine) -> float:
    """The seconds on one device of all products of a program that is not partitioned, at the peak rate."""
    flops = products(executed(module, find_mesh(module), weigh=amount))
    return sum(op_time(count, kind, 0.0, machine) for kind, count in flops.items()) / machine.efficiency


@dataclass(eq=False)
class Outline:
    """The products of a microbatch."""

    loop: MicrobatchLoop
    machine: Machine

    @cached_property
    def seconds(self) -> float:
        """The seconds of the products of a microbatch on one device."""
        module = self.loop.module
        inside = ((op, times) for op, times in executed(module, find_mesh(module), weigh=amount) if self._is_inside(op))
        flops = products(inside)
        total = sum(op_time(count, kind, 0.0, self.machine) for kind, count in flops.items())
        return total / self.machine.efficiency / self.loop.microbatches

    def _is_inside(self, op: ir.Operation) -> bool:
        return ancestor_in(self.loop.body, op) is not None

    def bound(self, candidate: Candidate, devices: int) -> float:
        """The least seconds of a candidate's step, whose stages have so many devices."""
        stages, microbatches = candidate.stages, candidate.microbatches
        even = microbatches / stages
        # Gradients of weights may be the last tasks of a stage, and a group that has several chunks waits less.
        in_turn = candidate.chunks == stages and not candidate.ordered().splits_weights
        share = 1 / (1 - (1 - 1 / microbatches) ** stages) if in_turn else even
        return max(share, even) * self.seconds / devices
