"""The number of executions of each instruction of an optimised module, with the most expensive branches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter

from meshbridge.analysis.hlo import Computation, HloError, HloModule, Instruction
from meshbridge.analysis.hlo_trip_count import trip_count

Execution = tuple[Computation, Instruction, int]
"""An instruction, its computation, and its number of executions."""

Cost = Callable[[Computation, Instruction], float]
"""The cost of one execution of an instruction, without the computations that it calls."""


class Executions:
    """The executed computations of a module, callees first."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.unknown_loops: list[str] = []
        "Loops without a known trip count: their bodies are counted once."
        self._calls: dict[str, list[tuple[Instruction, list[Computation], int]]] = {}
        self._order = self._callees_first()

    def of(self, cost: Cost) -> Iterator[Execution]:
        """Every executed instruction. Of branches, the first of the highest cost is executed."""
        total: dict[str, float] = {}
        calls: dict[str, list[tuple[str, int]]] = {}
        for computation in self._order:
            runs = calls[computation.name] = []
            for instruction, called, times in self._calls[computation.name]:
                if instruction.opcode == "conditional":
                    called = [max(called, key=lambda callee: total[callee.name])]
                runs.extend((callee.name, times) for callee in called)
            own = sum(cost(computation, instruction) for instruction in computation.instructions.values())
            total[computation.name] = own + sum(total[name] * times for name, times in runs)
        executions = Counter({self.module.entry: 1})
        for computation in reversed(self._order):
            number = executions[computation.name]
            for name, times in calls[computation.name]:
                executions[name] += number * times
            if number:
                yield from ((computation, instruction, number) for instruction in computation.instructions.values())

    def _callees_first(self) -> list[Computation]:
        """Raises HloError if computations call each other recursively."""
        reached, waiting = {self.module.entry}, [self.module.entry]
        while waiting:
            computation = self.module.computations[waiting.pop()]
            calls = self._calls[computation.name] = list(self._called(computation))
            callees = {callee.name for _, called, _ in calls for callee in called} - reached
            reached |= callees
            waiting += sorted(callees)
        graph = {name: [callee.name for _, called, _ in calls for callee in called] for name, calls in self._calls.items()}
        try:
            return [self.module.computations[name] for name in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            raise HloError(f"computations call each other: {error.args[1]}") from error

    def _called(self, computation: Computation) -> Iterator[tuple[Instruction, list[Computation], int]]:
        for instruction in computation.instructions.values():
            if instruction.called:
                yield instruction, self.module.called(instruction), self._trip_count(computation, instruction)

    def _trip_count(self, computation: Computation, instruction: Instruction) -> int:
        if instruction.opcode != "while":
            return 1
        count = trip_count(self.module, computation, instruction)
        if count is None:
            self.unknown_loops.append(instruction.name)
            return 1
        return count
