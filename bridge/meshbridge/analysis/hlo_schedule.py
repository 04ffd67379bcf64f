"""The overlap of communication and computation in a scheduled module: which instructions compute, and when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from math import prod

from meshbridge.analysis.hlo import INLINE_CALLS, Computation, HloError, HloModule, Instruction
from meshbridge.analysis.ring import WIRE_BYTES

_MOVING = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "bitcast-convert", "copy", "copy-start", "copy-done",
    "slice-start", "slice-done", "reshape", "transpose", "broadcast", "iota", "after-all", "add-dependency", "opt-barrier",
    "optimization-barrier", "partition-id", "replica-id", "send", "send-done", "recv", "recv-done", "infeed", "outfeed",
    "async-update", "async-done", "call-done",
}) | {kind + suffix for kind in WIRE_BYTES for suffix in ("", "-start", "-done")}  # fmt: skip
"""Opcodes that compute nothing: they name, move or send values."""

_FOLDING = frozenset({"dot", "reduce", "reduce-window", "convolution"})
"""Opcodes that compute on arrays even if the result has one element."""

_CONTAINERS = INLINE_CALLS | {"call", "while", "conditional"}

MARKS = frozenset({
    "AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast",
    "GatherScatterIndicesBitpacked", "PrepareAsyncCallDone", "PrepareAsyncCallStart", "annotate_device_placement",
})  # fmt: skip
"""Targets of custom calls that compute nothing. All others are kernels."""

_PASSING = frozenset({"async-update", "get-tuple-element", "tuple", "bitcast", "optimization-barrier", "opt-barrier"})
"""Opcodes that pass on the state of an asynchronous instruction."""


class HloSchedule:
    """The order in which one device executes its instructions."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._positions: dict[str, dict[str, int]] = {}
        self._computing: dict[str, list[int]] = {}
        self._computes_any = cache(lambda name: any(map(self.computes, self._instructions(name))))

    def computes(self, op: Instruction) -> bool:
        """Whether it computes on arrays; a loop or a fusion does if an instruction inside does."""
        if op.opcode in _CONTAINERS:
            return any(self._computes_any(callee.name) for callee in self.module.called(op))
        if op.opcode == "custom-call":
            return op.attribute("custom_call_target") not in MARKS
        return op.opcode not in _MOVING and (op.opcode in _FOLDING or any(prod(array.shape) > 1 for array in op.arrays))

    def overlaps(self, start: tuple[Computation, Instruction], done: tuple[Computation, Instruction]) -> bool:
        """Whether an instruction computes between `start` and `done`. A `done` that is not after `start` in the same computation
        belongs to the next iteration of a loop."""
        begin, end = (self._position(*site) for site in (start, done))
        if start[0].name == done[0].name and begin < end:
            return self._computes_between(start[0], begin, end)
        return self._computes_between(start[0], begin, len(start[0].instructions)) or self._computes_between(done[0], -1, end)

    def done(self, computation: Computation, start: Instruction) -> Instruction:
        """The instruction that waits for `start`. Raises HloError if there is none in the computation."""
        waiting = list(computation.users[start.name])
        while waiting:
            user = waiting.pop()
            if user.opcode.endswith("-done"):
                return user
            if user.opcode in _PASSING:
                waiting += computation.users[user.name]
        raise HloError(f"{start.opcode} %{start.name}: nothing in %{computation.name} waits for it")

    def _instructions(self, name: str) -> Iterable[Instruction]:
        return self.module.computations[name].instructions.values()

    def _position(self, computation: Computation, op: Instruction) -> int:
        if computation.name not in self._positions:
            self._positions[computation.name] = {name: at for at, name in enumerate(computation.instructions)}
        return self._positions[computation.name][op.name]

    def _computes_between(self, computation: Computation, begin: int, end: int) -> bool:
        positions = self._computed(computation)
        following = bisect_right(positions, begin)
        return following < len(positions) and positions[following] < end

    def _computed(self, computation: Computation) -> list[int]:
        """Positions of the instructions that compute, ascending."""
        if computation.name not in self._computing:
            positions = [at for at, op in enumerate(computation.instructions.values()) if self.computes(op)]
            self._computing[computation.name] = positions
        return self._computing[computation.name]
