"""Trip counts of loops with an integer counter of a few bits, which wraps around.

i from 10 by -1 while i < 5                    never: 10 is not below 5
i from 0 by -1 while i < 5, of 8 bits          129 times: 0, -1, … -128, and then 127
i from 0 by 2 while i != 5                     forever
"""

from __future__ import annotations

from dataclasses import dataclass

MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}
"""The direction of a comparison after its operands are exchanged."""


@dataclass(frozen=True)
class Counter:
    """An integer between `low` and `high`, the bounds of its type, that goes from `start` by `step` while the comparison
    `direction` of it with `limit` holds."""

    direction: str
    start: int
    step: int
    limit: int
    low: int
    high: int

    @property
    def trip_count(self) -> int | None:
        """The number of iterations before the test fails; None if it never fails."""
        if self.direction == "EQ":
            return 0 if self.start != self.limit else None if self.wrapped(self.step) == 0 else 1
        low, high = max(self.low, self._ends[0]), min(self.high, self._ends[1])
        if low > high:
            return None
        if low <= self.start <= high:
            return 0
        values = self.high - self.low + 1
        return _first_multiple(self.step % values, values, (low - self.start) % values, (high - self.start) % values)

    @property
    def _ends(self) -> tuple[int, int]:
        """The bounds of the numbers for which the test fails."""
        return {
            "LT": (self.limit, self.high),
            "LE": (self.limit + 1, self.high),
            "GT": (self.low, self.limit),
            "GE": (self.low, self.limit - 1),
            "NE": (self.limit, self.limit),
        }[self.direction]

    def wrapped(self, number: int) -> int:
        """`number` wrapped around to the counter's type."""
        return (number - self.low) % (self.high - self.low + 1) + self.low


def _first_multiple(step: int, modulus: int, low: int, high: int) -> int | None:
    """The least n for which n * step modulo `modulus` is between `low` and `high`; None if there is none.

    `step` is less than `modulus`, and 0 <= low <= high < modulus. As in Euclid's algorithm, both shrink from call to call: if no
    multiple of the step is in the range before it wraps, the question is how often it wraps.
    """
    if low == 0:
        return 0
    if step == 0:
        return None
    count = -(-low // step)
    if count * step <= high:
        return count
    wraps = _first_multiple(modulus % step, step, -high % step, -low % step)
    return None if wraps is None else -(-(low + modulus * wraps) // step)
