"""Positions by the boundaries of stages that are marked.

The boundary of chunk `k` has the position `Fk`, and passed backward `B(k-1)`; if more stages are marked than there are chunks,
several form a chunk, by default equally many. An op has the last position of what it reads; one that depends on no boundary, nor
on a product that passes one, has none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import BARRIER, OpError, ir
from meshbridge.ir.uses import defining_op
from meshbridge.pipelines.flow import Flow, is_costly, last_position
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.marker import Marker, marker_of


@dataclass(frozen=True, eq=False)
class MarkedFlow(Flow):
    """Cuts a program at the boundaries of its stages. A point is the number of a stage that is marked."""

    @property
    def points(self) -> tuple[int, ...]:
        return tuple(range(1, self._marked))

    @property
    def even(self) -> tuple[int, ...]:
        return tuple(range(0, self._marked, self._marked // self.chunks.count)[1:])

    def position(self, op: ir.Operation, known: Mapping[ir.Value, int], carries: bool) -> int | None:
        position = last_position(known, self.program.reads.of(op))
        marker = marker_of(op)
        if marker is None:
            return self._first_products.get(op.results[0]) if position is None else position
        boundary = self._boundary(op, marker)
        if position is not None and position > boundary:
            if marker.direction == "forward" and self._is_replayed(op, marker, known, boundary, position):
                return position
            raise self._late(op, marker, position, carries)
        return boundary

    def _is_replayed(self, op: ir.Operation, marker: Marker, known: Mapping[ir.Value, int], boundary: int, position: int) -> bool:
        """Whether `jax.checkpoint` computes a boundary again for its own chunk's backward pass: one within the chunk, or the one
        at its begin from what passes that forward."""
        if position != self.chunks.backward(boundary):
            return False
        crosses = self._stage(marker.name) in self._begins
        return not crosses or all(known.get(value, boundary) <= boundary for value in map(_before_barriers, op.operands))

    def _boundary(self, op: ir.Operation, marker: Marker) -> int:
        if marker.name not in self.program.loop.names:
            raise OpError(op, f"passes the boundary of stage {marker.name!r} backward, which nothing passes forward")
        stage = self._stage(marker.name)
        if marker.direction == "forward":
            return self._chunk_of(stage)
        chunk = self._chunk_of(max(stage - 1, 0))
        # No boundary is between the forward and the backward pass of the last chunk, so that they are one.
        return self.chunks.backward(chunk) if chunk < self.chunks.count - 1 else chunk

    @cached_property
    def _marked(self) -> int:
        return self.program.loop.marked(self.chunks.count)

    def _stage(self, name: str) -> int:
        names = self.program.loop.names
        return names.index(name) + self._marked - len(names)

    @property
    def _begins(self) -> tuple[int, ...]:
        return self.even if self.begins is None else self.begins

    def _chunk_of(self, stage: int) -> int:
        return bisect_right(self._begins, stage)

    @cached_property
    def _first_products(self) -> dict[ir.Value, int]:
        """The chunks of costly ops from which a value that passes a boundary forward is computed, by first result: unless they
        depend on another boundary, they belong to the first chunk that reads their result, and so does what depends on them."""
        program, found = self.program, dict[ir.Value, int]()
        passing: set[ir.Value] = set()
        readers: dict[ir.Value, int] = {}
        for op in reversed(program.inside):
            marker, key = marker_of(op), op.results[0]
            chunk = self._after_boundary.get(key, min((readers[each] for each in op.results if each in readers), default=None))
            is_forward = marker is not None and marker.direction == "forward"
            if is_forward or passing.intersection(op.results):
                passing.update(program.reads.of(op))
                if is_costly(op) and chunk is not None:
                    found[key] = chunk
            if chunk is not None:
                last = max(chunk - 1, 0) if is_forward else chunk
                readers |= {value: min(last, readers.get(value, last)) for value in program.reads.of(op)}
        return found

    @cached_property
    def _after_boundary(self) -> dict[ir.Value, int]:
        """The positions of the values that depend on a boundary, by these alone."""
        known: dict[ir.Value, int] = {}
        for op in self.program.inside:
            marker = marker_of(op)
            position = last_position(known, self.program.reads.of(op)) if marker is None else self._boundary(op, marker)
            if position is not None:
                known |= dict.fromkeys(op.results, position)
        return known

    def _late(self, op: ir.Operation, marker: Marker, position: int, carries: bool) -> OpError:
        """The diagnostic for a boundary that needs a value of a later position; `carries` tells whether of the microbatch
        before."""
        site = self.chunks.site(position)
        needs = f"needs, at the boundary of stage {marker.name!r}, a value of the {site.kind} pass of chunk {site.number}"
        counted = f"of {self.chunks.count}, counted from 0"
        if carries:
            hint = "add up gradients in the loop, and update parameters after it"
            return OpError(op, f"{needs} {counted}, for the microbatch before: no two could be computed at a time", hint)
        if site.kind == "backward" and marker.direction == "forward":
            hint = "call jax.checkpoint within a stage, not around several; its function may begin with the boundary"
            return OpError(op, f"{needs} {counted}", hint)
        return OpError(op, f"{needs} {counted}, which comes later", "let all values pass the stages in one order")


def _before_barriers(value: ir.Value) -> ir.Value:
    """The value that annotations and barriers, but boundaries of stages, return as `value`."""
    while (op := defining_op(value)) is not None and op.name in (SHARD, BARRIER) and marker_of(op) is None:
        value = op.operands[ir.OpResult(value).result_number]
    return value
