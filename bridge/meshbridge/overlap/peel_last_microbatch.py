"""`peel-last-microbatch`: what a loop adds up is reduced beside the computation of its last trip, instead of behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from meshbridge.cost.memory import memory
from meshbridge.cost.objective import device
from meshbridge.cost.seconds import Time
from meshbridge.cost.step import collective_times, step_seconds
from meshbridge.cost.ways import EQUAL
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import BARRIER, MeshError, find, ir, main_function
from meshbridge.ir.passes import Pass, register
from meshbridge.machines.machine import Machine, OptionSet
from meshbridge.machines.target import Target, has_topology, of_machine
from meshbridge.overlap.accumulated_sums import Sum, reduced_sums
from meshbridge.overlap.peeled_loops import peel, peelable
from meshbridge.overlap.stacked_sums import stacked_sums
from meshbridge.read.formats import copy_module, replace_content


@register
@dataclass(frozen=True)
class PeelLastMicrobatch(Pass):
    """Takes the last trip out of a loop that adds up gradients, so that each is reduced once its last term is added.

    Input:   %0:3 = stablehlo.while(%i = 0, %a = zeros, %b = zeros) {     // while %i < 4
               (%g of the last layer, then %h of the first, of microbatch %i)
               %1 = stablehlo.add %a, %g
               %2 = stablehlo.add %b, %h
               stablehlo.return %i + 1, %1, %2
             }
             %3 = mesh.all_reduce %0#1 on @m mesh_axes = [0]
             %4 = mesh.all_reduce %0#2 on @m mesh_axes = [0]
    Output:  %0:3 = stablehlo.while(%i = 0, %a = zeros, %b = zeros) {     // while %i < 3
               (the same)
             }
             %5:2 = stablehlo.optimization_barrier %0#1, %0#2
             (%g of microbatch 3)
             %1 = stablehlo.add %5#0, %g
             %3 = mesh.all_reduce %1 on @m mesh_axes = [0]                // while %h is computed
             (%h of microbatch 3)
             %2 = stablehlo.add %5#1, %h
             %4 = mesh.all_reduce %2 on @m mesh_axes = [0]

    The barrier also holds the batches and parameters that the loop carries: the last microbatch begins when the loop ends.
    Where an inner loop computes the gradients of one layer in each of its trips, as a stack, the last trip's inner loop adds each
    of them to its row of the sum, and reduces that row (`stacked_sums`). As many bytes as before, in as many more collectives as
    stacks have rows; sums are added up in the order in which they were. Loops whose text does not say how often they run stay.
    """

    name: ClassVar[str] = "peel-last-microbatch"
    machine: str = ""
    "The device whose predicted step is to become shorter, perhaps with a topology; without one all that can be is peeled."
    layout: str = ""
    "Where the axes of the mesh are on it, as in data=dcn,model=ici."
    compiler_options: OptionSet = "default"
    "Under which of XLA's options the step will be compiled there."
    memory: float = 0.0
    "Bytes of memory that a program may need by this; 0 for all that the machine has."
    room: float = 2.0
    """How many times its temporaries a peeled program must have room for.

    Measured, by XLA:GPU for 8 H100: those of a GPT of 4 unrolled layers become 1.9 times as many, those of 8 layers under scan
    stay as they are, as the estimate says of both."""

    def run(self, module: ir.Module) -> bool:
        with module.context, ir.Location.unknown(module.context):
            found = [number for number, loop in enumerate(_loops(module)) if _accumulates(loop)]
            if not found:
                return False
            if not self.machine:
                for number in reversed(found):
                    _peel(_loops(module)[number])
                return True
            return self._peel_what_pays(module, found)

    def _peel_what_pays(self, module: ir.Module, numbers: Sequence[int]) -> bool:
        """Peels those loops, the last ones first, of which it makes the step shorter: with rows reduced in inner loops or, where
        that is no better, behind these. Raises MeshError for a machine that is not known."""
        machine, target = self._where
        changed = False
        try:
            seconds = step_seconds(module, machine, target)
        except MeshError:  # nothing says what pays; the report says what its prediction stumbles over
            return False
        for number in reversed(numbers):
            peeled = [copy for copy in self._peeled(module, number, machine, target) if self._fits(copy, machine)]
            after, best = min(
                ((step_seconds(copy, machine, target), order) for order, copy in enumerate(peeled)), default=(seconds, 0)
            )
            if after * EQUAL < seconds:
                replace_content(module, peeled[best])
                seconds, changed = after, True
        return changed

    def _peeled(self, module: ir.Module, number: int, machine: Machine, target: Target | None) -> list[ir.Module]:
        """The module with the last trip of that loop behind it, in each way."""
        whole, by_row = copy_module(module), copy_module(module)
        loop, times = _loops(by_row)[number], collective_times(by_row, machine, target)
        worth = frozenset(each.number for each in reduced_sums(loop) if _is_worth_rows(each, loop, times))
        _peel(_loops(whole)[number], frozenset())
        return [by_row, whole] if _peel(loop, worth) else [whole]

    def _fits(self, module: ir.Module, machine: Machine) -> bool:
        """Whether there is room for a peeled program."""
        needed = memory(main_function(module))
        return needed.peak + (self.room - 1) * needed.temporaries <= (self.memory or machine.memory_bytes)

    @property
    def _where(self) -> tuple[Machine, Target | None]:
        """The machine, and its devices if it has a topology. Raises MeshError for one that is not known."""
        target = of_machine(self.machine, self.layout, self.compiler_options) if has_topology(self.machine) else None
        return device(self.machine, self.compiler_options), target


def _is_worth_rows(reduced: Sum, loop: ir.Operation, times: Mapping[ir.Operation, Time]) -> bool:
    """Whether the bytes of a stack take longer than the launches of the collectives of all rows."""
    shape, spent = shape_of(loop.results[reduced.number]), [times[op] for op in reduced.collectives]
    launches = shape[0] * sum(time.latency for time in spent) if shape else inf
    return sum(time.seconds - time.latency for time in spent) > launches


def _loops(module: ir.Module) -> list[ir.Operation]:
    """Outer ones first: a loop that is peeled leaves the numbers of those before it as they are."""
    return find(module.operation, ["stablehlo.while"])


def _accumulates(loop: ir.Operation) -> bool:
    """Whether something is reduced behind `loop` that it adds up, in so many trips that the last one can be peeled."""
    return peelable(loop) is not None and any(True for _ in reduced_sums(loop))


def _peel(loop: ir.Operation, by_row: Set[int] | None = None) -> bool:
    """Peels the last trip of `loop`, and has sums reduced row by row, of those of these numbers or all; whether any can be."""
    counted = peelable(loop)
    assert counted is not None
    body = loop.regions[1].blocks[0].operations
    places = {result: place for place, view in enumerate(body) for result in view.operation.results}
    found = [(each, places[each.addition.results[0]]) for each in reduced_sums(loop) if by_row is None or each.number in by_row]
    last = peel(loop, counted)
    held = _held(loop)
    sums = [(held[each.number], replace(each, addition=last[place])) for each, place in found]
    stacked = list(stacked_sums(sums))
    for each in stacked:
        each.rewrite()
    return bool(stacked)


def _held(loop: ir.Operation) -> list[ir.Value]:
    """The results of `loop`, for whose end its last trip waits: what is computed of the batch and the parameters alone would else
    take memory while the loop runs. Counters do not wait: XLA:GPU evaluates what is computed of them, and fails at a barrier."""
    waiting = [result for result in loop.results if list(result.uses) and shape_of(result)]
    barrier = Builder.after(loop).op(BARRIER, [value.type for value in waiting], waiting)
    for value, held in zip(waiting, barrier.results, strict=True):
        value.replace_all_uses_except(held, barrier)
    found = dict(zip(waiting, barrier.results, strict=True))
    return [found.get(result, result) for result in loop.results]
