"""The positions of the ops of a microbatch, by data flow.

Positions are ordered `F0 < F1 < … < B1 < B0`: chunks forward, then backward. The boundary of chunk `k` has the position `Fk`, and
passed backward `B(k-1)`; if more stages are marked than there are chunks, as many form each chunk. An op has the last position of
what it reads; one that depends on no boundary, nor on a product that passes one, has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import OpError, ir
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.sites import Chunks

Positions = dict[ir.Value, int]


def positions_of(program: LoopProgram, chunks: Chunks, *, split_weights: bool = False) -> Positions:
    """The positions of values of the loop's body that have one.

    With `split_weights`, what a backward pass computes for its own chunk alone, such as gradients of weights, has a position
    after all others. Raises OpError for a stage that needs a value of a later one.
    """
    found = _Flow(program, chunks).positions()
    return _with_weights_apart(program, chunks, found) if split_weights else found


def is_costly(op: ir.Operation) -> bool:
    """Whether an op costs more than to send its result."""
    return has(op.name, Trait.CONTRACTION) or has(op.name, Trait.CONTROL_FLOW) or not has(op.name, Trait.PURE)


@dataclass(frozen=True, eq=False)
class _Flow:
    program: LoopProgram
    chunks: Chunks

    def positions(self) -> Positions:
        """Repeats until each carried value has the position of the op that computes it for the next microbatch."""
        program = self.program
        known: Positions = {}
        changed = True
        while changed:
            carries = not known.keys().isdisjoint(program.carried)
            for op in program.inside:
                if (position := self._position(op, known, carries)) is not None:
                    known |= dict.fromkeys(op.results, position)
            changed = False
            for argument, number in program.carried.items():
                position = _last(known, program.next_leaves(number))
                if position is not None and position != known.get(argument):
                    known[argument] = position
                    changed = True
        return known

    def _position(self, op: ir.Operation, known: Mapping[ir.Value, int], carries: bool) -> int | None:
        position = _last(known, self.program.reads.of(op))
        marker = marker_of(op)
        if marker is None:
            return 0 if position is None and op.results[0] in self._first_products else position
        boundary = self._boundary(op, marker)
        if position is not None and position > boundary:
            raise self._late(op, marker, position, carries)
        return boundary

    def _boundary(self, op: ir.Operation, marker: Marker) -> int:
        names = self.program.loop.names
        if marker.name not in names:
            raise OpError(op, f"passes the boundary of stage {marker.name!r} backward, which nothing passes forward")
        marked = self.program.loop.marked(self.chunks.count)
        stage = names.index(marker.name) + marked - len(names)
        together = marked // self.chunks.count
        if marker.direction == "forward":
            return stage // together
        chunk = max(stage - 1, 0) // together
        # No boundary is between the forward and the backward pass of the last chunk, so that they are one.
        return self.chunks.backward(chunk) if chunk < self.chunks.count - 1 else chunk

    @cached_property
    def _first_products(self) -> set[ir.Value]:
        """The results of costly ops from which a value that passes a boundary forward is computed: unless they depend on another
        boundary, they belong to the first chunk, and so does what depends on them."""
        program = self.program
        needed: set[ir.Value] = set()
        for op in reversed(program.inside):
            marker = marker_of(op)
            if (marker is not None and marker.direction == "forward") or needed.intersection(op.results):
                needed.update(program.reads.of(op))
        return {op.results[0] for op in program.inside if is_costly(op)} & needed

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
            hint = "call jax.checkpoint within a stage, not around several, and jax.grad around all of them"
            return OpError(op, f"{needs} {counted}", hint)
        return OpError(op, f"{needs} {counted}, which comes later", "let all values pass the stages in one order")


def _last(known: Mapping[ir.Value, int], values: Iterable[ir.Value]) -> int | None:
    return max((known[value] for value in values if value in known), default=None)


def _with_weights_apart(program: LoopProgram, chunks: Chunks, known: Positions) -> Positions:
    """The same, with what a backward pass computes for its own chunk alone apart. The last chunk's begins where its forward pass
    ends, at the same position."""
    reads = program.reads
    needed = {leaf for op in program.inside for leaf in reads.of(op) if leaf in known and known.get(op.results[0]) != known[leaf]}
    while True:
        for op in reversed(program.inside):
            if needed.intersection(op.results):
                needed.update((*op.results, *reads.of(op)))
        # A carried value that is read in the part that others wait for is computed there, too.
        kept = {leaf for value, number in program.carried.items() if value in needed for leaf in program.next_leaves(number)}
        if kept <= needed:
            break
        needed |= kept
    split = range(chunks.count - 1, 2 * chunks.count)
    return {
        value: chunks.weight(chunks.site(position).number) if position in split and value not in needed else position
        for value, position in known.items()
    }
