"""Whether two programs are equal: both are evaluated on the same random inputs, over several fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.text import Tabular, public
from meshbridge.verification import verdict_text
from meshbridge.verification.causes import Case, explain_any
from meshbridge.verification.extended import differs, extended
from meshbridge.verification.field import PRIMES, Array, Field, word
from meshbridge.verification.inputs import SMALL, draw, draw_by_lines, draw_small, draw_zeros, with_infinities
from meshbridge.verification.machine import Observer, is_complex, is_float
from meshbridge.verification.manual import ReplicaConflict
from meshbridge.verification.program import Port, VerifiedProgram, compares_over_devices, matched, open_program
from meshbridge.verification.progress import OnProgress, VerifyProgress
from meshbridge.verification.trace import Capture, Parting, Tracer, describe

RUNS = 2
"""The number of fields and random inputs on which both programs are evaluated."""

OTHER_PADDING = "otherwise "
"""Names other random elements beyond the end of uneven shards."""

RANDOM = "random"
SMALL_NUMBERS = "small numbers"
POSITIONS = "large positions"
ALL = "masks all true"
LINES = "infinities and NaN, masks by rows"
NONE = "infinities and NaN, masks all false"
"""How the inputs of a run are drawn."""

MEMORY = 8.0
"""Gigabytes (10^9 bytes) of live values."""


@dataclass(frozen=True)
class ResultDifference:
    """A result that differs: the number of differing elements, the first of them, any contradiction between devices, and a
    plausible cause if known."""

    result: int
    elements: int
    of: int
    first: tuple[int, ...]
    contradiction: str = ""
    cause: str = ""


@public
@dataclass(frozen=True, repr=False)
class Verdict(Tabular):
    """`differences` of the first run that has any; empty if the programs are equal. `primes` and `kinds` of the runs.

    `parting` is the first value that differs, if the programs' source locations tell. `masked`: some arguments are masks."""

    differences: tuple[ResultDifference, ...]
    primes: tuple[int, ...]
    parting: Parting | None = None
    kinds: tuple[str, ...] = ()
    masked: bool = False

    @property
    def equal(self) -> bool:
        """Whether no result differs."""
        return not self.differences

    @property
    def uniform_primes(self) -> tuple[int, ...]:
        """The primes of the runs in which each number is any element of the field with equal probability, and each mask true or
        false."""
        uniform = (RANDOM,) if self.masked else (RANDOM, ALL)
        return tuple(prime for prime, kind in zip(self.primes, self.kinds, strict=True) if kind in uniform)

    @property
    def chance(self) -> float:
        """The highest probability that a result which differs by a polynomial of degree 1 agrees in all runs; for degree d, it is
        `d ** len(uniform_primes)` times that (Schwartz and Zippel: d / p in each run of uniformly random numbers)."""
        return 1 / prod(self.uniform_primes)

    @property
    def headline(self) -> str:
        """Whether the programs are equal, or which results differ."""
        return verdict_text.headline(self)

    def table(self) -> str:
        """The verdict in words: how sure it is, or what differs, where first, and plausible causes."""
        return verdict_text.text(self)

    def to_json(self) -> str:
        """The verdict as JSON, as `meshbridge verify --json` prints it."""
        return json.dumps(self.record(), indent=2)

    def record(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return {"equal": self.equal, **asdict(self), "uniform_primes": self.uniform_primes, "chance": self.chance}


@dataclass(frozen=True)
class FieldRun:
    """A field, and how inputs are drawn. With `below`, integers are in the upper half of the range below it."""

    field: Field
    kind: str = RANDOM
    below: int = 0

    def inputs(self, program: VerifiedProgram) -> list[Array]:
        """Random global inputs."""
        names = [f"argument {index}" for index in range(len(program.inputs))]
        inputs = [self._draw(name, port) for name, port in zip(names, program.inputs, strict=True)]
        if self.kind == NONE and not any(map(_is_mask, program.inputs)):
            floats = [index for index, value in enumerate(inputs) if value.dtype.kind == "f" and value.size]
            for index in floats[word(self.field.key, "infinities") % len(floats) :][:1] if floats else []:
                inputs[index] = with_infinities(self.field, names[index], inputs[index])
        return inputs

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

    The first run orders small literals naturally, the second in the opposite order, so that each is positive once; masks are all
    true in the second. Two further runs have infinities and NaN: in one, some rows of masks and of numbers are false and zero, in
    the other, masks are all false. With one run requested, only the first of these is made. Values of which devices take a
    maximum are hardly ever all negative, so a program with such a maximum has a further run on small positive numbers in the
    opposite order: they, their sums and their products all come before 0. An argument that may be a position, such as the next
    token's in a cache, is drawn once more for each size that may bound it.
    """
    orders = (1, -1, *(0 for _ in range(runs)))
    kinds = (RANDOM, ALL, *(RANDOM for _ in range(runs)))
    planned = [
        FieldRun(Field(PRIMES[run % len(PRIMES)], word(seed, f"run {run}"), orders[run]), kinds[run])
        for run in range(runs)
        if runs > 1
    ]
    if compares_over_devices(program.module):
        planned.append(FieldRun(Field(PRIMES[runs % len(PRIMES)], word(seed, "run on small numbers"), -1), SMALL_NUMBERS))
    for size in _positions(program.inputs):
        planned.append(FieldRun(Field(PRIMES[0], word(seed, f"run on positions below {size}"), 1), POSITIONS, below=size))
    for run, kind in enumerate((LINES, NONE)[:runs]):
        field = Field(PRIMES[(runs + 1 + run) % len(PRIMES)], word(seed, f"run with {kind}"), 1)
        planned.append(FieldRun(extended(field), kind))
    return planned


FEW = 16
"""The most elements of an integer argument that are too few to reach every shard of the dimension that they index."""

MOST_POSITIONS = 4
"""The most sizes below which such arguments are drawn again, each in its own run."""


def _positions(inputs: Sequence[Port]) -> list[int]:
    """The sizes below which integer arguments of few elements are drawn: they may be positions in any dimension."""
    integers = [port for port in inputs if isinstance(port.element, ir.IntegerType) and port.element.width > 1]
    if not any(prod(port.shape) <= FEW for port in integers):
        return []
    sizes = {size for port in inputs for size in port.shape if size > SMALL}
    return sorted(sizes, reverse=True)[:MOST_POSITIONS]


def verify(
    source: ir.Module,
    partitioned: ir.Module,
    *,
    seed: int = 0,
    runs: int = RUNS,
    memory: float = MEMORY,
    on_progress: OnProgress | None = None,
) -> Verdict:
    """Evaluates both programs, each on its own devices, and compares all results element by element.

    `memory` is in gigabytes. `on_progress` is called now and then with the share that is done and what is being done.
    Raises MeshError for a program that has no exact evaluation, and for programs with different arguments or results.
    """
    source_program = open_program(source)
    partitioned_program = matched(source_program, open_program(partitioned))
    limit, primes, kinds = int(memory * 10**9), [], []
    masked = any(map(_is_mask, source_program.inputs))
    planned = runs_of(partitioned_program, seed, runs)
    progress = VerifyProgress(len(planned), on_progress)
    for run in planned:
        field = run.field
        primes.append(field.prime)
        kinds.append(run.kind)
        inputs = run.inputs(source_program)
        expected = source_program.evaluate(field, inputs, memory=limit, observe=progress.observing("the source"))
        try:
            observe = progress.observing("the partitioned program")
            results = partitioned_program.evaluate(field, inputs, memory=limit, observe=observe)
        except ReplicaConflict as error:
            numbers = partitioned_program.results_of(error.op, error.index) or [error.index]
            differences = tuple(ResultDifference(number, 0, 0, (), str(error)) for number in numbers[:1])
        else:
            differences = compare(expected, results)
        if differences:
            differences = with_causes(partitioned_program, differences, field, inputs, expected, limit)
            parting = find_parting(source_program, partitioned_program, field, inputs, limit)
            return Verdict(differences, tuple(primes), parting, tuple(kinds), masked)
    return Verdict((), tuple(primes), kinds=tuple(kinds), masked=masked)


def with_causes(
    program: VerifiedProgram,
    differences: Sequence[ResultDifference],
    field: Field,
    inputs: Sequence[Array],
    expected: Sequence[Array],
    memory: int,
) -> tuple[ResultDifference, ...]:
    """The differences with a plausible cause each, from the shards of the program's results."""
    shards = program.shards(field, inputs, memory=memory)
    repadded_shards = (
        program.shards(field, inputs, memory=memory, padding=OTHER_PADDING) if program.has_padding else [None] * len(shards)
    )

    def cause(number: int) -> str:
        own, repadded = shards[number], repadded_shards[number]
        if own is None or own.value.dtype != expected[number].dtype:
            return ""
        again = None if repadded is None else field.as_finite(repadded.value)
        value, local = field.as_finite(expected[number]), field.as_finite(own.value)
        return explain_any([Case(field, own.mesh, own.dims, value, local, again)])

    return tuple(replace(difference, cause=cause(difference.result)) for difference in differences)


def find_parting(
    left: VerifiedProgram, right: VerifiedProgram, field: Field, inputs: Sequence[Array], memory: int
) -> Parting | None:
    """The first value of the source of which the devices hold no shards; None if no op of both programs tells."""
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
    """Evaluates a program for an observer, up to a conflict between devices."""
    with suppress(ReplicaConflict):
        program.evaluate(field, inputs, memory=memory, observe=observe, padding=padding)


def compare(expected: Sequence[Array], found: Sequence[Array]) -> tuple[ResultDifference, ...]:
    """The results that differ."""
    differences = []
    for index, (wanted, actual) in enumerate(zip(expected, found, strict=True)):
        wrong = np.argwhere(differs(wanted, actual))
        if len(wrong):
            differences.append(ResultDifference(index, len(wrong), wanted.size, tuple(int(position) for position in wrong[0])))
    return tuple(differences)
