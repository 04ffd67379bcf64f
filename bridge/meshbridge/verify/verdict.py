"""Whether two programs are equal: both are evaluated on the same random inputs, over several fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshbridge.mlir import ir
from meshbridge.verify.field import PRIMES, Array, Field, word
from meshbridge.verify.manual import Disagreement
from meshbridge.verify.program import Program, check_alike, draw, open_program

RUNS = 2
"""How many fields and random inputs both programs are evaluated on."""

MEMORY = 8.0
"""Gigabytes (10^9 bytes) of values that may live at once."""


@dataclass(frozen=True)
class Difference:
    """A result that differs: how many of its elements, the first of them, and why where devices contradict each other."""

    result: int
    elements: int
    of: int
    first: tuple[int, ...]
    contradiction: str = ""


@dataclass(frozen=True)
class Verdict:
    """`differences` of the first run that has any; none where the programs are equal. `primes` of the runs that were made."""

    differences: tuple[Difference, ...]
    primes: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def fields(seed: int, runs: int = RUNS) -> list[Field]:
    """The fields of the runs; their keys come from `seed`."""
    return [Field(PRIMES[run % len(PRIMES)], word(seed, f"run {run}")) for run in range(runs)]


def inputs_for(field: Field, program: Program) -> list[Array]:
    """Random global inputs."""
    return [draw(field, f"argument {index}", port.shape, port.element) for index, port in enumerate(program.inputs)]


def verify(source: ir.Module, partitioned: ir.Module, *, seed: int = 0, runs: int = RUNS, memory: float = MEMORY) -> Verdict:
    """Evaluates both programs, each on as many devices as it says, and compares all results element by element.

    `memory` is in gigabytes. Raises MeshError for a program that has no exact evaluation, and for programs that take or give
    other tensors than each other.
    """
    left, right = open_program(source), open_program(partitioned)
    check_alike(left, right)
    limit, primes = int(memory * 10**9), []
    for field in fields(seed, runs):
        primes.append(field.prime)
        inputs = inputs_for(field, left)
        expected = left.evaluate(field, inputs, memory=limit)
        try:
            found = right.evaluate(field, inputs, memory=limit)
        except Disagreement as error:
            return Verdict((Difference(error.index, 0, 0, (), str(error)),), tuple(primes))
        if differences := compare(expected, found):
            return Verdict(differences, tuple(primes))
    return Verdict((), tuple(primes))


def compare(expected: Sequence[Array], found: Sequence[Array]) -> tuple[Difference, ...]:
    """The results that are not equal."""
    differences = []
    for index, (left, right) in enumerate(zip(expected, found, strict=True)):
        wrong = np.argwhere(left != right)
        if len(wrong):
            differences.append(Difference(index, len(wrong), left.size, tuple(int(each) for each in wrong[0])))
    return tuple(differences)
