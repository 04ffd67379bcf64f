"""Rewrites a loop of microbatches so that all stages run at the same time, each on another microbatch, in one SPMD program.

    for m in microbatches:            x[m] = embed(tokens[m])                 for m in microbatches
        x = embed(tokens[m])          on each stage s, for t in ticks:        manual along "stages"
        x = scan(layer, x, w)             y = scan(layer, x[t] if s == 0 else received, w of s)
        total += head(x)                  out[t - s], received = y, y of stage s - 1
                                      total += head(out[m] of the last stage) for m in microbatches

A tick takes one microbatch through the layers of each stage: stage `s` has microbatch `t - s` in tick `t`, if there is one. Where
there is none, a stage computes numbers that nothing reads. The phases of `phases` follow each other, as in GPipe, so that what a
later phase reads is kept for all microbatches.
"""

from __future__ import annotations

from meshbridge.ir.builder import element_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.pipelines.phase_writer import PhaseWriter, SkewedProgram, begin_loop, end_loop
from meshbridge.pipelines.phases import Phases
from meshbridge.pipelines.tick_phase import TickPhase, Ticks


def skew(phases: Phases, mesh: Mesh) -> tuple[Ticks, ...]:
    """Replaces the loop of microbatches by its phases, in place, on a mesh whose first axis has the stages; returns the loops of
    ticks in order."""
    program, loop = SkewedProgram(phases, mesh), phases.loop
    for view in phases.body.operations:
        for result in view.operation.results:
            if phases.kind(result) == "fixed":
                program.fixed(result)
    ticks = []
    for phase in range(phases.count):
        if phase % 2:
            ticks.append(TickPhase(program, phase).write())
        else:
            _one_by_one(program, phase)
    for number, result in enumerate(loop.results):
        result.replace_all_uses_with(_final(program, number))
    loop.erase()
    return tuple(ticks)


def _final(program: SkewedProgram, number: int) -> ir.Value:
    """A carried value after all phases."""
    counted = program.phases.counted
    if number != counted.counter:
        return program.entering(number)
    end = counted.values.start + counted.values.step * counted.trip_count
    return program.at.splat(program.phases.loop.results[number].type, end)


def _one_by_one(program: SkewedProgram, phase: int) -> None:
    """A loop over microbatches for a phase between two scans."""
    phases, at = program.phases, program.at
    carried, kept = phases.carried_in[phase], phases.kept.get(phase, [])
    if not carried and not kept:
        return
    empty = [at.splat(tensor([program.microbatches, *shape_of(value)], element_of(value)), 0) for value in kept]
    loop, inside = begin_loop(at, [at.scalar(0), *map(program.entering, carried), *empty], program.microbatches)
    microbatch, *arguments = loop.regions[1].blocks[0].arguments
    totals, rooms = arguments[: len(carried)], arguments[len(carried) :]
    writer = PhaseWriter(program, inside, microbatch, lambda value, dim: value)
    writer.whole.update(zip((phases.body.arguments[number] for number in carried), totals, strict=True))
    for op in phases.in_phase[phase]:
        writer.compute(op)
    returned = [writer.carry_on(number, before, phase) for number, before in zip(carried, totals, strict=True)]
    for value, room in zip(kept, rooms, strict=True):
        new = writer.get(value)
        returned.append(inside.dynamic_update(room, inside.reshape(new, [1, *shape_of(new)]), 0, microbatch))
    end_loop(loop, inside, returned)
    results = list(loop.results)[1:]
    program.final.update(zip(carried, results, strict=False))
    program.kept.update(zip(kept, results[len(carried) :], strict=True))
