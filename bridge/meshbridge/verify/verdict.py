"""Whether two programs are equal: both are evaluated on the same random inputs, over several fields."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verify.causes import Case, explain_any
from meshbridge.verify.extended import differs, extended
from meshbridge.verify.field import PRIMES, Array, Field, word
from meshbridge.verify.inputs import SMALL, draw, draw_by_lines, draw_small, draw_zeros, with_infinities
from meshbridge.verify.machine import Observer, is_complex, is_float
from meshbridge.verify.manual import ReplicaConflict
from meshbridge.verify.program import Port, VerifiedProgram, compares_over_devices, matched, open_program
from meshbridge.verify.trace import Capture, Parting, Tracer, describe

RUNS = 2
"""How many fields and random inputs both programs are evaluated on."""

OTHER_PADDING = "otherwise "
"""Names further random elements beyond the end of uneven shards."""

RANDOM = "random"
SMALL_NUMBERS = "small numbers"
ALL = "masks all true"
LINES = "infinities and NaN, masks by rows"
NONE = "infinities and NaN, masks all false"
"""How the inputs of a run are drawn."""

MEMORY = 8.0
"""Gigabytes (10^9 bytes) of values that may live at once."""


@dataclass(frozen=True)
class Difference:
    """A result that differs: how many of its elements, the first of them, how devices contradict each other where they do, and a
    plausible cause where one is known."""

    result: int
    elements: int
    of: int
    first: tuple[int, ...]
    contradiction: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Verdict:
    """`differences` of the first run that has any; none where the programs are equal. `primes` and `kinds` of the runs that were
    made.

    `parting` is the first value that differs, if the programs' source locations tell."""

    differences: tuple[Difference, ...]
    primes: tuple[int, ...]
    parting: Parting | None = None
    kinds: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences


@dataclass(frozen=True)
class FieldRun:
    """A field, and how inputs are drawn. With `below`, integers are in the upper half below that."""

    field: Field
    kind: str = RANDOM
    below: int = 0

    def inputs(self, program: VerifiedProgram) -> list[Array]:
        """Random global inputs."""
        names = [f"argument {index}" for index in range(len(program.inputs))]
        given = [self._draw(name, port) for name, port in zip(names, program.inputs, strict=True)]
        if self.kind == NONE and not any(map(_is_mask, program.inputs)):
            floats = [index for index, value in enumerate(given) if value.dtype.kind == "f" and value.size]
            for index in floats[word(self.field.key, "infinities") % len(floats) :][:1] if floats else []:
                given[index] = with_infinities(self.field, names[index], given[index])
        return given

    def _draw(self, name: str, port: Port) -> Array:
        is_number = is_float(port.element) or is_complex(port.element)
        if self.kind == SMALL_NUMBERS and is_float(port.element):
            return draw_small(self.field, name, port.shape)
        if self.kind == LINES and not self._is_integer(port):
            return draw_by_lines(self.field, name, port.shape, port.element)
        if self.kind == NONE and not is_number:
            return draw_zeros(port.shape, port.element)
        if self.kind == ALL and _is_mask(port):
            return np.ones(port.shape, np.bool_)
        return draw(self.field, name, port.shape, port.element, self.below)

    @staticmethod
    def _is_integer(port: Port) -> bool:
        return isinstance(port.element, ir.IntegerType) and not _is_mask(port)


def _is_mask(port: Port) -> bool:
    return isinstance(port.element, ir.IntegerType) and port.element.width == 1


def runs_of(program: VerifiedProgram, seed: int, runs: int = RUNS) -> list[FieldRun]:
    """The runs that verify `program`; their keys come from `seed`.

    The first orders small literals naturally, the second the other way round, so that each is positive once; masks are all true
    in the second. Two further ones have infinities and NaN: in one, some rows of masks and of numbers are false and zero, in the
    other, masks are all false. The first of these is the only one where one run is asked for. Values of which a maximum over
    devices is taken are hardly ever all negative. A program that takes one has a further run, on small positive numbers in the
    opposite order: they, their sums and their products all come before 0. Where an argument may be a position, such as that of
    the next token in a cache, it is drawn once more for each size that it may be below.
    """
    orders = (1, -1, *(0 for _ in range(runs)))
    kinds = (RANDOM, ALL, *(RANDOM for _ in range(runs)))
    found = [
        FieldRun(Field(PRIMES[run % len(PRIMES)], word(seed, f"run {run}"), orders[run]), kinds[run])
        for run in range(runs)
        if runs > 1
    ]
    if compares_over_devices(program.module):
        found.append(FieldRun(Field(PRIMES[runs % len(PRIMES)], word(seed, "run on small numbers"), -1), SMALL_NUMBERS))
    for size in _positions(program.inputs):
        found.append(FieldRun(Field(PRIMES[0], word(seed, f"run on positions below {size}"), 1), RANDOM, below=size))
    for run, kind in enumerate((LINES, NONE)[:runs]):
        field = Field(PRIMES[(runs + 1 + run) % len(PRIMES)], word(seed, f"run with {kind}"), 1)
        found.append(FieldRun(extended(field), kind))
    return found


FEW = 16
"""Elements of an integer argument that are too few to reach every shard of what they are positions in."""

MOST_POSITIONS = 4
"""Sizes below which such arguments are drawn once more, each in a run of its own."""


def _positions(inputs: Sequence[Port]) -> list[int]:
    """The sizes below which integer arguments of few elements are to be drawn: they may be positions in any dimension."""
    integers = [port for port in inputs if isinstance(port.element, ir.IntegerType) and port.element.width > 1]
    if not any(prod(port.shape) <= FEW for port in integers):
        return []
    sizes = {size for port in inputs for size in port.shape if size > SMALL}
    return sorted(sizes, reverse=True)[:MOST_POSITIONS]


def verify(source: ir.Module, partitioned: ir.Module, *, seed: int = 0, runs: int = RUNS, memory: float = MEMORY) -> Verdict:
    """Evaluates both programs, each on as many devices as it says, and compares all results element by element.

    `memory` is in gigabytes. Raises MeshError for a program that has no exact evaluation, and for programs that take or give
    other tensors than each other.
    """
    left = open_program(source)
    right = matched(left, open_program(partitioned))
    limit, primes, kinds = int(memory * 10**9), [], []
    for run in runs_of(right, seed, runs):
        field = run.field
        primes.append(field.prime)
        kinds.append(run.kind)
        inputs = run.inputs(left)
        expected = left.evaluate(field, inputs, memory=limit)
        try:
            found = right.evaluate(field, inputs, memory=limit)
        except ReplicaConflict as error:
            numbers = right.results_of(error.op, error.index) or [error.index]
            differences = tuple(Difference(number, 0, 0, (), str(error)) for number in numbers[:1])
        else:
            differences = compare(expected, found)
        if differences:
            differences = with_causes(right, differences, field, inputs, expected, limit)
            return Verdict(differences, tuple(primes), find_parting(left, right, field, inputs, limit), tuple(kinds))
    return Verdict((), tuple(primes), kinds=tuple(kinds))


def with_causes(
    program: VerifiedProgram,
    differences: Sequence[Difference],
    field: Field,
    inputs: Sequence[Array],
    expected: Sequence[Array],
    memory: int,
) -> tuple[Difference, ...]:
    """The differences with what may have caused them, as the shards of the program's results tell."""
    held = program.shards(field, inputs, memory=memory)
    others = program.shards(field, inputs, memory=memory, padding=OTHER_PADDING) if program.has_padding else [None] * len(held)

    def cause(number: int) -> str:
        mine, other = held[number], others[number]
        if mine is None or mine.value.dtype != expected[number].dtype:
            return ""
        again = None if other is None else field.as_finite(other.value)
        value, local = field.as_finite(expected[number]), field.as_finite(mine.value)
        return explain_any([Case(field, mine.mesh, mine.dims, value, local, again)])

    return tuple(replace(each, cause=cause(each.result)) for each in differences)


def find_parting(
    left: VerifiedProgram, right: VerifiedProgram, field: Field, inputs: Sequence[Array], memory: int
) -> Parting | None:
    """The first value of the source of which the devices hold no shards; None where no op of both says so."""
    mesh = right.mesh or right.manual_mesh()
    if mesh is None:
        return None
    tracer = Tracer(field, mesh)
    _run(right, field, inputs, memory, tracer.record())
    left.evaluate(field, inputs, memory=memory, observe=tracer.compare())
    if tracer.found is None:
        return None
    source, partitioned, again = (Capture(op) for op in (tracer.found[0], tracer.found[3][0].op, tracer.found[3][0].op))
    left.evaluate(field, inputs, memory=memory, observe=source)
    _run(right, field, inputs, memory, partitioned)
    if right.has_padding:
        _run(right, field, inputs, memory, again, padding=OTHER_PADDING)
    return describe(tracer, source, partitioned, again)


def _run(
    program: VerifiedProgram, field: Field, inputs: Sequence[Array], memory: int, observe: Observer, padding: str = ""
) -> None:
    """Evaluates a program for what an observer sees, up to where its devices contradict each other."""
    with suppress(ReplicaConflict):
        program.evaluate(field, inputs, memory=memory, observe=observe, padding=padding)


def compare(expected: Sequence[Array], found: Sequence[Array]) -> tuple[Difference, ...]:
    """The results that are not equal."""
    differences = []
    for index, (left, right) in enumerate(zip(expected, found, strict=True)):
        wrong = np.argwhere(differs(left, right))
        if len(wrong):
            differences.append(Difference(index, len(wrong), left.size, tuple(int(each) for each in wrong[0])))
    return tuple(differences)
