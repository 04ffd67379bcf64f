"""The field with infinities and NaN: where programs of floating-point numbers have them, exactly.

An element is finite, infinite or NaN. NaN is the NaN of float64. An infinite element is a ω, stored as the float64 a 2^400: ω is
a number beyond all others, and `a` an element other than 0. Sums and products are those of the leading terms, which float64
computes: a ω + b is a ω, and x (a ω) is (x a) ω. So the laws of a ring hold for infinite elements too:

    1 / 0 = ω        x / 0 = x ω        0 / 0 = NaN        0 ω = NaN        a ω - a ω = NaN        x / ω = 0

The sign of a ω is that of `a` in the order. A sum of infinite elements is NaN where they cancel, and infinite where they do not:
IEEE's sum of both signs is NaN. Complex numbers are finite or NaN as soon as they are computed with.

Functions that are hashes have the values at 0 and at infinities that `VALUES` says: zeros and infinities stand where they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import reduce as fold

import numpy as np

from meshbridge.verify.field import Array, Field

OMEGA = 2.0**400
"""The infinite element of positive sign that constants and divisions by 0 give."""

LIMIT = 2.0**200
"""Finite elements, and their sums and products before they are reduced, stay below it; infinite ones above."""

SQUARED = 2.0**600
"""Products of two infinite elements are above it, infinite elements below."""

INFINITE_POSITION = 2**21
"""What is added to the magnitude of an infinite element's position in the order: those of finite elements stay below it."""

LARGEST_INTEGER = 2**31 - 1
"""The integer that a positive infinity is converted to."""

_NAN_WORD, _INFINITE_WORD = 2.0**41, 2.0**40
"""What hashes read for NaN, and add to `a` for a ω."""


@dataclass(frozen=True)
class Values:
    """What a function is at 0, at -ω and at ω; None for a hash. `keeps` infinities as they are."""

    zero: float | None = None
    negative: float | None = np.nan
    positive: float | None = np.nan
    keeps: bool = False


_ROUNDING = Values(0.0, keeps=True)
_ODD = Values(0.0, -1.0, 1.0)
_GROWING = Values(0.0, -OMEGA, OMEGA)
_BOUNDED = Values(0.0)

VALUES: dict[str, Values] = {
    "exponential": Values(1.0, 0.0, OMEGA),
    "log": Values(-OMEGA, np.nan, OMEGA),
    "sqrt": Values(0.0, np.nan, OMEGA),
    "tanh": _ODD,
    "erf": _ODD,
    "erfc": Values(1.0, 2.0, 0.0),
    "sine": _BOUNDED,
    "cosine": Values(1.0),
    "cosh": Values(1.0, OMEGA, OMEGA),
    "atan": Values(0.0, None, None),
    "lgamma": Values(OMEGA, OMEGA, OMEGA),
    "bessel_i1e": Values(0.0, 0.0, 0.0),
    **dict.fromkeys(("floor", "ceil", "round_nearest_afz", "round_nearest_even"), _ROUNDING),
    **dict.fromkeys(("cbrt", "sinh", "asinh"), _GROWING),
    **dict.fromkeys(("asin", "atanh", "erf_inv"), _BOUNDED),
}
"""By the names of hashes. A function that is not here is a hash at 0, and NaN at infinities."""


def values_of(name: str) -> Values:
    """What the hash of this name is at 0 and at infinities."""
    if name.startswith(("convert to", "reduce precision")):  # f8E4M3FN and the like have no infinity
        return _BOUNDED if "FN" in name else _ROUNDING
    return VALUES.get(name, Values())


def is_special(numbers: Array) -> Array:
    """Which elements are infinite or NaN; complex ones if a part is."""
    if numbers.dtype.kind == "c":
        return is_special(numbers.real) | is_special(numbers.imag)
    finite = np.asarray(numbers < LIMIT)  # no temporary of floats
    finite &= numbers > -LIMIT
    return ~finite


def has_special(numbers: Array) -> bool:
    """Whether an element is infinite or NaN."""
    if numbers.dtype.kind not in "fc" or not numbers.size:
        return False
    if numbers.dtype.kind == "c":
        return has_special(numbers.real) or has_special(numbers.imag)
    owner = numbers.base
    while owner is not None and not isinstance(owner, np.ndarray):
        owner = owner.base
    if owner is not None and owner.dtype == numbers.dtype and 0 < owner.size < numbers.size:
        numbers = owner  # a broadcast and a view of windows repeat elements
    return not (numbers.max() < LIMIT and numbers.min() > -LIMIT)


def differs(left: Array, right: Array) -> Array:
    """Where two values are not equal. Infinities are equal to each other, whatever their sign, and NaN to itself; complex numbers
    that are not finite are."""
    wrong = np.asarray(left != right)
    if left.dtype.kind not in "fc" or not wrong.any():
        return wrong
    a, b = left[wrong], right[wrong]
    alike = is_special(a) & is_special(b)
    if left.dtype.kind == "f":
        alike &= np.isnan(a) == np.isnan(b)
    wrong[wrong] = ~alike
    return wrong


@dataclass(frozen=True)
class ExtendedField(Field):
    """The field of `prime` elements, with infinite elements and NaN."""

    @cached_property
    def infinity(self) -> float:
        """The infinite element of positive sign."""
        return OMEGA

    @cached_property
    def not_a_number(self) -> float:
        """NaN."""
        return float("nan")

    @cached_property
    def _finite(self) -> Field:
        """The same field without infinite elements."""
        return Field(self.prime, self.key, self.natural)

    def reduce(self, numbers: Array) -> Array:
        """The elements that sums and products are: infinite where the numbers are."""
        if numbers.dtype.kind == "c":
            found = super().reduce(numbers)
            special = is_special(found)
            return np.where(special, complex(np.nan, np.nan), found) if special.any() else found
        found = super().reduce(numbers)
        if not has_special(numbers):
            return found
        special = is_special(numbers)
        leading = numbers[special] / OMEGA
        leading = self._finite.reduce(np.where(np.abs(leading) > SQUARED / OMEGA, leading / OMEGA, leading))
        found[special] = np.where(leading == 0, np.nan, leading * OMEGA)
        return found

    def add(self, left: Array, right: Array) -> Array:
        return self._sum_of(left, right, left + right)

    def subtract(self, left: Array, right: Array) -> Array:
        return self._sum_of(left, right, left - right)

    def _sum_of(self, left: Array, right: Array, total: Array) -> Array:
        found = self.reduce(total)
        if not (has_special(left) or has_special(right)):
            return found
        special = is_special(left) | is_special(right)
        if found.dtype.kind == "f":
            special = special & ~is_special(found)  # what has cancelled
        return np.where(special, np.nan, found)

    def multiply(self, left: Array, right: Array) -> Array:
        found = self.reduce(left * right)
        for one, other in ((left, right), (right, left)):
            if has_special(one):
                special = is_special(one) if found.dtype.kind == "c" else is_special(one) & (other == 0)
                found = np.where(special, np.nan, found)
        return found

    def inverse(self, numbers: Array) -> Array:
        """1 / x: ω for 0, 0 for an infinite element."""
        if numbers.dtype.kind != "c":
            return super().inverse(numbers)
        special = (numbers == 0) | is_special(numbers)
        return np.where(special, np.nan, self._finite.inverse(np.where(special, 1, numbers)))

    def _inverse(self, numbers: Array) -> Array:
        if not has_special(numbers):
            return np.where(numbers == 0, OMEGA, super()._inverse(numbers))
        found = super()._inverse(np.where(is_special(numbers), 0.0, numbers))
        return np.where(np.isnan(numbers), np.nan, np.where(numbers == 0, OMEGA, found))

    def sum(self, numbers: Array, axes: tuple[int, ...]) -> Array:
        found = super().sum(numbers, axes)
        if not has_special(numbers):
            return found
        if found.dtype.kind == "c":
            return np.where(is_special(numbers).any(axis=axes), np.nan, found)
        finite = (numbers.max(axis=axes) < LIMIT) & (numbers.min(axis=axes) > -LIMIT)
        return np.where(finite | is_special(found), found, np.nan)

    def matmul(self, left: Array, right: Array) -> Array:
        if not (has_special(left) or has_special(right)):
            return super().matmul(left, right)
        special = is_special(left), is_special(right)
        found = self._finite.matmul(np.where(special[0], 0, left), np.where(special[1], 0, right))
        rows: Array = np.asarray(special[0].any(axis=-1))[..., None]
        columns: Array = np.asarray(special[1].any(axis=-2))[..., None, :]
        if found.dtype.kind == "c":
            return np.where(rows | columns, np.nan, found)
        kept = np.flatnonzero(rows.any(axis=tuple(range(rows.ndim - 2))))
        if len(kept):
            part = self._leading(left[..., kept, :], right)
            found[..., kept, :] = np.where(rows[..., kept, :], part, found[..., kept, :])
        kept = np.flatnonzero(columns.any(axis=tuple(range(columns.ndim - 2))))
        if len(kept):
            part = self._leading(left, right[..., kept])
            found[..., kept] = np.where(columns[..., kept], part, found[..., kept])
        return found

    def _leading(self, left: Array, right: Array) -> Array:
        """What the infinite elements contribute to a matrix product where it has any: a multiple of ω, or NaN."""
        bad = np.asarray(np.isnan(left).any(axis=-1))[..., None] | np.asarray(np.isnan(right).any(axis=-2))[..., None, :]
        infinite = [is_special(x) & ~np.isnan(x) for x in (left, right)]
        factors = [
            np.where(np.isnan(x), 0.0, np.where(mask, x / OMEGA, x)) for x, mask in zip((left, right), infinite, strict=True)
        ]
        total: Array = np.zeros(1)
        lost: Array = np.zeros(1)
        if infinite[0].any():
            total = self._finite.matmul(np.where(infinite[0], factors[0], 0.0), factors[1])
            lost = np.matmul(infinite[0].astype(np.float32), (factors[1] == 0).astype(np.float32))
        if infinite[1].any():
            finite = np.where(infinite[0], 0.0, factors[0])
            total = self._finite.reduce(total + self._finite.matmul(finite, np.where(infinite[1], factors[1], 0.0)))
            lost = lost + np.matmul((factors[0] == 0).astype(np.float32), infinite[1].astype(np.float32))
        return np.where(bad | (total == 0) | (lost > 0), np.nan, total * OMEGA)

    def at_place(self, places: Array) -> Array:
        special = is_special(places)
        if not special.any():
            return super().at_place(places)
        leading = np.where(np.isnan(places), 0.0, np.where(special, places / OMEGA, places))
        found = super().at_place(leading)
        return np.where(np.isnan(places), np.nan, np.where(special, found * OMEGA, found))

    def total_order(self, numbers: Array) -> Array:
        """The position of each element, that of NaN after all others."""
        places = self.order(numbers)
        return np.where(np.isnan(places), np.inf, places)

    def maximum(self, left: Array, right: Array) -> Array:
        return np.where(np.isnan(left) | np.isnan(right), np.nan, super().maximum(left, right))

    def minimum(self, left: Array, right: Array) -> Array:
        return np.where(np.isnan(left) | np.isnan(right), np.nan, super().minimum(left, right))

    def is_finite(self, numbers: Array) -> Array:
        return ~is_special(numbers)

    def to_integers(self, numbers: Array) -> Array:
        """As XLA does: 0 for NaN, the largest ones for infinities."""
        special = is_special(numbers)
        whole = np.where(special, 0.0, numbers).astype(np.int64)
        if not special.any():
            return whole
        return np.where(special & ~np.isnan(numbers), np.where(self.order(numbers) > 0, LARGEST_INTEGER, -LARGEST_INTEGER), whole)

    def positions(self, numbers: Array, largest: int) -> Array:
        places = self.order(numbers)
        special = is_special(places)
        whole = np.where(special, 0.0, places).astype(np.int64)
        if not special.any():
            return whole
        leading = np.where(special & ~np.isnan(places), places / OMEGA, 0.0).astype(np.int64)
        infinite = np.sign(leading) * (INFINITE_POSITION + np.abs(leading))
        return np.where(np.isnan(places), largest, np.where(special, infinite, whole))

    def at_positions(self, positions: Array, largest: int) -> Array:
        magnitude = np.abs(positions)
        infinite = (magnitude > INFINITE_POSITION) & (magnitude < 2 * INFINITE_POSITION)
        leading = np.sign(positions) * np.where(infinite, magnitude - INFINITE_POSITION, magnitude)
        found = self._finite.at_place(leading)
        return np.where(magnitude == largest, np.nan, np.where(infinite, found * OMEGA, found))

    def as_finite(self, numbers: Array) -> Array:
        if not has_special(numbers):
            return numbers
        if numbers.dtype.kind == "c":
            return np.where(is_special(numbers), self._finite.not_a_number, numbers)
        finite = np.where(is_special(numbers), self._finite.infinity, numbers)
        return np.where(np.isnan(numbers), self._finite.not_a_number, finite)

    def hash_words(self, name: str, *operands: Array) -> Array:
        return super().hash_words(name, *(_for_hash(each) for each in operands))

    def hash(self, name: str, *operands: Array) -> Array:
        found = super().hash(name, *operands)
        if operands[0].dtype.kind != "f":
            return found
        if name == "power":
            return self._power(operands[0], operands[1], found)
        if len(operands) > 1:
            return np.where(_any_special(operands), np.nan, found)
        return self._with_values(name, operands[0], found)

    def hash_complex(self, name: str, *operands: Array) -> Array:
        found = super().hash_complex(name, *operands)
        if operands[0].dtype.kind != "c":
            return found
        return np.where(_any_special(operands), np.nan, found)

    def _with_values(self, name: str, x: Array, found: Array) -> Array:
        said = values_of(name)
        if said.zero is not None:
            found = np.where(x == 0, said.zero, found)
        if name == "log":
            found = np.where(x == 1, 0.0, found)
        if not has_special(x):
            return found
        nan, infinite = np.isnan(x), is_special(x)
        if said.keeps:
            found = np.where(infinite, x, found)
        elif said.negative is None or said.positive is None:
            found = np.where(infinite, super().hash(name, self.sign(x)), found)
        else:
            found = np.where(infinite, np.where(self.order(x) > 0, said.positive, said.negative), found)
        return np.where(nan, np.nan, found)

    def _power(self, base: Array, exponent: Array, found: Array) -> Array:
        """0 and infinities to a power are 0 or infinite, by the sign of the exponent."""
        grows = self.order(exponent) > 0
        found = np.where(base == 0, np.where(grows, 0.0, OMEGA), found)
        found = np.where(is_special(base), np.where(grows, OMEGA, 0.0), found)
        return np.where(np.isnan(base) | is_special(exponent), np.nan, found)


def extended(field: Field) -> ExtendedField:
    """The field with infinite elements."""
    return ExtendedField(field.prime, field.key, field.natural)


def _any_special(operands: Sequence[Array]) -> Array:
    """Where one of the operands of an elementwise function is infinite or NaN."""
    return fold(np.logical_or, map(is_special, operands))


def _for_hash(x: Array) -> Array:
    """Elements as numbers of which each stands for one element."""
    if not has_special(x):
        return x
    if x.dtype.kind == "c":
        return _for_hash(x.real) + 1j * _for_hash(x.imag)
    finite = np.where(is_special(x), x / OMEGA + _INFINITE_WORD, x)
    return np.where(np.isnan(x), _NAN_WORD, finite)
