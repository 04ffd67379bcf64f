"""Arguments and results of a step that its program has in parts: stacks of layers, each stage of which has its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Part(NamedTuple):
    """One of `parts` equal parts, along the first dimension, of an argument or result of the step: that at `position`."""

    number: int
    position: int = 0
    parts: int = 1

    def bounds(self, size: int) -> tuple[int, int]:
        """The start and the end of the part of a dimension of that size."""
        each = size // self.parts
        return self.position * each, (self.position + 1) * each


@dataclass(frozen=True)
class Stacks:
    """By number, the arguments and results of a program as parts of those of the step."""

    arguments: tuple[Part, ...]
    results: tuple[Part, ...]

    @classmethod
    def none(cls, arguments: int, results: int) -> Stacks:
        """Those of a program whose arguments and results are the step's."""
        return cls(tuple(map(Part, range(arguments))), tuple(map(Part, range(results))))

    def result_numbers(self) -> list[list[int]]:
        """By result of the step, the results of the program that are its parts, in order."""
        numbers: dict[int, list[int]] = {}
        for own, part in enumerate(self.results):
            numbers.setdefault(part.number, []).append(own)
        return [numbers[number] for number in sorted(numbers)]


def numbered(counts: Iterable[int]) -> tuple[Part, ...]:
    """The parts of values that are in so many parts each, one for a whole one."""
    return tuple(Part(number, index, count) for number, count in enumerate(counts) for index in range(count))
