"""What a property test draws: shapes, dtypes, shardings, attributes. A family is a function of a `Drawer` that gives one case."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st

from tests.operations.cases import ALL, Case, Operand
from tests.operations.differential import Spec
from tests.operations.exclusions import FINITE

T = TypeVar("T")
MESHES = ((2, 4), (8,), (2, 2, 2), (2, 3))
SIZES = (4, 8, 1, 2, 3, 6, 10, 5, 7, 12, 16)
"""Of dimensions: what divides among the devices, and what leaves padding, single rows, or devices with nothing."""


@dataclasses.dataclass(frozen=True)
class Drawer:
    """Draws what one case on a mesh of `rank` axes needs."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    rank: int
    specials: bool = False
    """Whether operands may hold NaN and infinities."""

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return self.draw(st.integers(low, high))

    def shape(self, low: int = 1, high: int = 3, most: int = 2048) -> tuple[int, ...]:
        """A shape of rank `low` to `high` with at most `most` elements."""
        shape: list[int] = []
        for _ in range(self.integer(low, high)):
            fitting = [size for size in SIZES if size * math.prod(shape) <= most]
            shape.append(self.pick(fitting))
        return tuple(shape)

    def dims(self, rank: int, low: int = 0, high: int | None = None) -> tuple[int, ...]:
        """Some of `rank` dimensions, ascending."""
        chosen = st.sets(st.integers(0, rank - 1), min_size=low, max_size=rank if high is None else high) if rank else st.just(())
        return tuple(sorted(self.draw(chosen)))

    def order(self, items: Sequence[T]) -> tuple[T, ...]:
        return tuple(self.draw(st.permutations(list(items))))

    def spec(self, rank: int) -> Spec | None:
        """Any axes on any dimensions in any order, even or not; None leaves the sharding to propagation."""
        if self.integer(0, 7) == 7:
            return None
        entries: list[list[str]] = [[] for _ in range(rank)]
        for axis in self.order("abc"[: self.rank]):
            home = self.integer(-1, rank - 1)
            if home >= 0:
                entries[home].append(axis)
        return Spec(*[tuple(entry) or None for entry in entries])

    def operand(self, shape: Sequence[int], dtype: str, values: str | int = "normal") -> Operand:
        special = self.specials and isinstance(values, str) and self.integer(0, 3) == 3
        return Operand(tuple(shape), dtype, self.spec(len(shape)), values, special)

    def case(
        self,
        what: str,
        function: Callable[..., Any],
        operands: Sequence[Operand],
        result_ranks: Sequence[int] = (),
        tolerance: float | None = None,
    ) -> Case:
        """The case with a drawn sharding for the results of these ranks, in order."""
        return Case(what, function, tuple(operands), tuple(self.spec(rank) for rank in result_ranks), tolerance)


Family = Callable[[Drawer], Case]
FAMILIES: dict[str, Family] = {}


def family(fn: Family) -> Family:
    """Enters a family under its function's name."""
    if FAMILIES.setdefault(fn.__name__, fn) is not fn:
        raise ValueError(f"two families are named {fn.__name__}")
    return fn


@st.composite
def batches(
    draw: Callable[[st.SearchStrategy[Any]], Any], make: Family, largest: int, meshes: Sequence[tuple[int, ...]] = MESHES
) -> tuple[tuple[int, ...], list[Case]]:
    """One of `meshes`, and one to `largest` cases of one family on it."""
    mesh = draw(st.sampled_from(meshes))
    specials = make.__name__ not in FINITE
    case = st.composite(lambda inner: make(Drawer(inner, len(mesh), specials)))()
    return mesh, draw(st.lists(case, min_size=1, max_size=largest))


__all__ = ["ALL", "FAMILIES", "MESHES", "Drawer", "Family", "batches", "family"]
