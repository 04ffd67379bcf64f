"""The positions of the ops of a microbatch, cut at boundaries of stages, or without any where it costs least."""

from __future__ import annotations

from meshbridge.pipelines.automatic import AutomaticFlow
from meshbridge.pipelines.flow import Flow, Positions
from meshbridge.pipelines.marked import MarkedFlow
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.sites import Chunks


def flow_of(program: LoopProgram, chunks: Chunks, begins: tuple[int, ...] | None = None) -> Flow:
    """What finds the positions of values: by boundaries of stages if there are any. `begins` are the points at which chunks
    begin."""
    return (MarkedFlow if program.loop.names else AutomaticFlow)(program, chunks, begins)


def positions_of(
    program: LoopProgram, chunks: Chunks, begins: tuple[int, ...] | None = None, *, split_weights: bool = False
) -> Positions:
    """The positions of values of the loop's body that have one; `begins` as for `flow_of`.

    With `split_weights`, what a backward pass computes for its own chunk alone, such as gradients of weights, has a position
    after all others. Raises OpError for a stage that needs a value of a later one.
    """
    found = flow_of(program, chunks, begins).positions()
    return _with_weights_apart(program, chunks, found) if split_weights else found


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
