"""Positions without boundaries: cuts the forward pass of an unrolled program into chunks of equal work, where few bytes cross.

The forward ops are cut in program order. The locations that JAX writes tell forward from backward ops. A backward op belongs to
the chunk whose forward pass alone has the parameter, or the intermediate value, that it reads; no op is before what it reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshbridge.analysis.executions import executed
from meshbridge.analysis.origins import Phases
from meshbridge.cost.flops import amount
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import OpError, ancestor_in, ir
from meshbridge.pipelines.flow import Flow, is_costly, last_position
from meshbridge.pipelines.loop import MARK, SCAN
from meshbridge.pipelines.reads import bytes_of

SLACK = 1.1
"""How much more work the largest chunk may have than in the most even cut, so that fewer bytes cross. Nothing was measured."""

UNEVEN = 1.5
"""The work of the largest chunk, as a multiple of the mean, from which a cut is refused: one op has most of it."""

POINTS = 8
"""The most points for each chunk: every one takes the prediction of a segment of the program. Nothing was measured."""


@dataclass(frozen=True, eq=False)
class AutomaticFlow(Flow):
    """Cuts a program where it costs least. A point is the number of a forward op."""

    @cached_property
    def points(self) -> tuple[int, ...]:
        """The points across which no more bytes pass than across those of the most even cut, one between two costly ops, and at
        most POINTS for each chunk."""
        crossing, work = self._crossing_bytes(), np.cumsum(self._work)
        costly = np.cumsum([is_costly(op) for op in self._forward])
        even = set(self.even)
        limit = max((crossing[point - 1] for point in even), default=0.0)
        found: dict[int, int] = {}
        for point in range(1, len(self._forward)):
            if crossing[point - 1] <= limit and 0 < costly[point - 1] < costly[-1]:
                found[costly[point - 1]] = point  # the last one: layers end with cheap ops
        wanted = np.linspace(0.0, work[-1], POINTS * self.chunks.count + 1)
        thinned = {int(np.searchsorted(wanted, work[point - 1])): point for point in found.values()}
        return tuple(sorted(even.union(thinned.values())))

    def position(self, op: ir.Operation, known: Mapping[ir.Value, int], carries: bool) -> int | None:
        """The position of an op."""
        read = self.program.reads.of(op)
        position = last_position(known, read)
        chunk = self._chunks.get(op.results[0])
        if chunk is not None:
            if position is not None and position > chunk:
                lacks = "carries values through all layers, so that it is no loop of microbatches"
                raise OpError(self.program.loop.op, lacks, f"{MARK}\n  hint: {SCAN}")
            return chunk
        if self.phases[op.results[0]] == "forward":
            return position
        hints = [self._backward(home) for value in read if (home := self._homes.get(self.program.entering(value))) is not None]
        return max((*hints, *([] if position is None else [position])), default=None)

    def _backward(self, chunk: int) -> int:
        # Between the forward and the backward pass of the last chunk nothing crosses, so that they are one.
        return self.chunks.backward(chunk) if chunk < self.chunks.count - 1 else chunk

    @cached_property
    def phases(self) -> dict[ir.Value, str]:
        """The phases of ops, by first result."""
        phases = Phases.read(self.program.loop.module)
        return {op.results[0]: phases.of(op.location) for op in self.program.inside}

    @cached_property
    def _forward(self) -> list[ir.Operation]:
        """The forward ops on floating-point numbers that are costly, or depend on one that is, in program order. Keys and tokens
        are computed where they are read.

        Raises OpError if no gradient is computed in the loop."""
        program = self.program
        if "backward" not in self.phases.values():
            lacks = "has no boundaries of stages, and computes no gradient in its body"
            raise OpError(program.loop.op, lacks, f"{MARK}\n  hint: {SCAN}")
        dependent: set[ir.Value] = set()
        for op in program.inside:
            is_forward = self.phases[op.results[0]] == "forward" and any(map(_is_floating, op.results))
            if is_forward and (is_costly(op) or not dependent.isdisjoint(program.reads.of(op))):
                dependent.update(op.results)
        return [op for op in program.inside if op.results[0] in dependent]

    @cached_property
    def _chunks(self) -> dict[ir.Value, int]:
        """The chunks of the forward ops, by first result. Raises OpError as `even` does, unless chunks are given."""
        ends = self.even if self.begins is None else self.begins
        chunks = np.searchsorted(ends, np.arange(len(self._forward)), side="right")
        return {op.results[0]: int(chunk) for op, chunk in zip(self._forward, chunks, strict=True)}

    @cached_property
    def _work(self) -> list[float]:
        """The FLOPs of the forward ops."""
        return _work(self.program.loop.body, self.program.loop.module, self._forward)

    @cached_property
    def even(self) -> tuple[int, ...]:
        """Where each chunk but the first begins, by FLOPs. Raises OpError if one op has most of the work."""
        work = self._work
        ends = cheapest_cut(work, self._crossing_bytes(), self.chunks.count)
        loads = [float(part.sum()) for part in np.split(np.array(work), ends)]
        if max(loads) > UNEVEN * sum(work) / self.chunks.count:
            largest = max(zip(work, range(len(work)), strict=True))[1]
            hint = f"{MARK}, in layers that are unrolled, or scanned with jax.lax.scan\n  hint: choose fewer stages, or '1f1b'"
            raise OpError(self._forward[largest], f"has too much of the work for {self.chunks.count} equal stages", hint)
        return tuple(ends)

    def _crossing_bytes(self) -> list[float]:
        """After each forward op, the bytes of what later forward ops read."""
        index: dict[ir.Value, int] = {result: number for number, op in enumerate(self._forward) for result in op.results}
        last: dict[ir.Value, int] = {}
        for number, op in enumerate(self._forward):
            last |= dict.fromkeys((value for value in self.program.reads.of(op) if value in index), number)
        changes = np.zeros(len(self._forward) + 1)
        for read, number in last.items():
            changes[index[read]] += bytes_of(read)
            changes[number] -= bytes_of(read)
        return [float(size) for size in np.cumsum(changes)[:-1]]

    @cached_property
    def _homes(self) -> dict[ir.Value, int]:
        """The chunks of values that the forward pass of one chunk alone has."""
        readers: dict[ir.Value, set[int]] = defaultdict(set)
        for op in self._forward:
            chunk = self._chunks[op.results[0]]
            for result in op.results:
                readers[result].add(chunk)
            for value in self.program.reads.of(op):
                readers[self.program.entering(value)].add(chunk)
        return {value: next(iter(chunks)) for value, chunks in readers.items() if len(chunks) == 1}


def _is_floating(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(element_of(value), ir.FloatType)


def cheapest_cut(work: Sequence[float], crossing: Sequence[float], chunks: int) -> list[int]:
    """The numbers of ops at which each chunk but the first begins. The largest chunk has at most SLACK times the work of the
    largest chunk of the most even cut; among such cuts, the fewest bytes pass between the chunks of this one. `crossing` are the
    bytes that pass after each op.
    """
    done = np.concatenate(([0.0], np.cumsum(work)))
    limit = SLACK * _most_even(done, chunks)
    count = len(work)
    best = np.where(done <= limit, 0.0, np.inf)
    choices = []
    for _ in range(chunks - 1):
        passing = best + np.concatenate(([np.inf], crossing))
        following, choice = np.full(count + 1, np.inf), np.zeros(count + 1, int)
        for end in range(1, count + 1):
            first = int(np.searchsorted(done, done[end] - limit))
            if first < end:
                choice[end] = end - 1 - int(np.argmin(passing[first:end][::-1]))  # the last one: layers end with cheap ops
                following[end] = passing[choice[end]]
        best = following
        choices.append(choice)
    ends, end = [], count
    for choice in reversed(choices):
        end = int(choice[end])
        ends.append(end)
    return ends[::-1]


def _most_even(done: np.ndarray, chunks: int) -> float:
    """The work of the largest chunk of the most even cut. `done` is the work up to each op."""
    low, high = done[-1] / chunks, done[-1]
    for _ in range(40):
        middle = (low + high) / 2
        position = 0
        for _ in range(chunks):
            position = int(np.searchsorted(done, done[position] + middle, side="right")) - 1
        low, high = (low, middle) if position == len(done) - 1 else (middle, high)
    return float(high)


def _work(body: ir.Block, module: ir.Module, ops: Sequence[ir.Operation]) -> list[float]:
    """The work of each of `ops` in the body of a loop, with that of the ops in its regions."""
    totals: dict[ir.Value, float] = defaultdict(float)
    wanted: set[ir.Value] = {op.results[0] for op in ops}
    for op, times in executed(module, weigh=amount):
        outer = ancestor_in(body, op)
        if outer is not None and len(outer.results) and outer.results[0] in wanted:
            totals[outer.results[0]] += amount([(op, times)])
    return [totals[op.results[0]] for op in ops]
