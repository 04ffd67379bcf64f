"""Arguments and results of a step that its program has in parts: stacks of layers, each stage of which has its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, count, pairwise
from typing import NamedTuple

STACK_AXIS = "stages"
"""The axis of the groups of devices, in the sharding of a stack of layers."""


def stack_axis(names: Collection[str]) -> str:
    """The name of that axis beside axes of these names."""
    return next(name for name in chain((STACK_AXIS,), map(f"{STACK_AXIS}_{{}}".format, count())) if name not in names)


@dataclass(frozen=True)
class Division:
    """Where a stack is divided into parts along its first dimension. `bounds` are 0, the first layer of each further part, and
    the number of layers. The first dimension of a value may be a multiple of the number of layers, or a divisor."""

    bounds: tuple[int, ...]

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.bounds) - 1

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.bounds[-1]

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Division:
        """Into parts of so many layers each."""
        return cls((0, *accumulate(sizes)))

    @classmethod
    def even(cls, layers: int, parts: int, unit: int = 1) -> Division:
        """Into parts of equally many units of layers, or of one more, which those in the middle have, as the first stage also has
        the embedding, and the last one the head."""
        order = sorted(range(parts), key=lambda part: (part == parts - 1, part == 0, part))
        units = layers // unit
        more = set(order[: units % parts])
        return cls.of(unit * (units // parts + (part in more)) for part in range(parts))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The layers of each part."""
        return tuple(end - start for start, end in pairwise(self.bounds))

    def turned(self) -> Division:
        """The same with the last part first."""
        return Division.of(reversed(self.sizes))

    def part_with(self, layer: int) -> int:
        """The part that has a layer."""
        return bisect_right(self.bounds, layer) - 1

    def layers_of(self, position: int) -> int:
        """The number of layers of a part."""
        return self.bounds[position + 1] - self.bounds[position]

    def divides(self, size: int) -> bool:
        """Whether each part of a first dimension of that size begins at a row."""
        return all(size * bound % self.layers == 0 for bound in self.bounds)

    def rows(self, position: int, size: int) -> tuple[int, int]:
        """The start and the end of a part of a first dimension of that size."""
        start, end = self.bounds[position : position + 2]
        return start * size // self.layers, end * size // self.layers


WHOLE = Division((0, 1))
"""One part."""


class Part(NamedTuple):
    """One of the parts, along the first dimension, of an argument or result of the step: that at `position`."""

    number: int
    position: int = 0
    division: Division = WHOLE

    @property
    def parts(self) -> int:
        """The number of parts of the argument or result."""
        return self.division.parts

    def bounds(self, size: int) -> tuple[int, int]:
        """The start and the end of the part of a dimension of that size."""
        return self.division.rows(self.position, size)

    def whole_size(self, size: int) -> int:
        """The size of the dimension of which the part has that size."""
        return size * self.division.layers // self.division.layers_of(self.position)


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


def numbered(divisions: Iterable[Division]) -> tuple[Part, ...]:
    """The parts of values that are divided so."""
    return tuple(Part(number, index, division) for number, division in enumerate(divisions) for index in range(division.parts))
