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

from meshbridge.verification.field import Array, Field

OMEGA = 2.0**400
"""The infinite element of positive sign: the value of infinite constants and of divisions by 0."""

LIMIT = 2.0**200
"""Finite elements, and their sums and products before they are reduced, stay below it; infinite ones above."""

SQUARED = 2.0**600
"""Products of two infinite elements are above it, infinite elements are below."""

INFINITE_POSITION = 2**21
"""Added to the magnitude of an infinite element's position in the order; the positions of finite elements stay below it."""

LARGEST_INTEGER = 2**31 - 1
"""The integer that a positive infinity is converted to."""

_NAN_WORD, _INFINITE_WORD = 2.0**41, 2.0**40
"""The inputs of hashes for NaN, and the addend to `a` for a ω."""


@dataclass(frozen=True)
class Values:
    """The values of a function at 0, at -ω and at ω; None for a hash. `keeps`: infinities are unchanged."""

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
"""By the names of hashes. A function that is not listed is a hash at 0, and NaN at infinities."""


def values_of(name: str) -> Values:
    """The values of the hash of this name at 0 and at infinities."""
    if name.startswith(("convert to", "reduce precision")):  # f8E4M3FN and the like have no infinity
        return _BOUNDED if "FN" in name else _ROUNDING
    return VALUES.get(name, Values())


def is_special(numbers: Array) -> Array:
    """Which elements are infinite or NaN; a complex element is if a part is."""
    if numbers.dtype.kind == "c":
        return is_special(numbers.real) | is_special(numbers.imag)
    finite = np.asarray(numbers < LIMIT)  # no temporary of floats
    finite &= numbers > -LIMIT
    return ~finite


def has_special(numbers: Array) -> bool:
    """Whether any element is infinite or NaN."""
    if numbers.dtype.kind not in "fc" or not numbers.size:
        return False
    if numbers.dtype.kind == "c":
        return has_special(numbers.real) or has_special(numbers.imag)
    owner = numbers.base
    while owner is not None and not isinstance(owner, np.ndarray):
        owner = owner.base
    if owner is not None and owner.dtype == numbers.dtype and 0 < owner.size < numbers.size:
        numbers = owner  # broadcasts and views of windows repeat elements
    return not (numbers.max() < LIMIT and numbers.min() > -LIMIT)


def differs(left: Array, right: Array) -> Array:
    """Where two values differ. Infinities equal each other, whatever their sign, and NaN equals itself; so do complex numbers
    that are not finite."""
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
        """The field without infinite elements."""
        return Field(self.prime, self.key, self.natural)

    def reduce(self, numbers: Array) -> Array:
        """The elements of sums and products: infinite where the numbers are."""
        if numbers.dtype.kind == "c":
            reduced = super().reduce(numbers)
            special = is_special(reduced)
            return np.where(special, complex(np.nan, np.nan), reduced) if special.any() else reduced
        reduced = super().reduce(numbers)
        if not has_special(numbers):
            return reduced
        special = is_special(numbers)
        leading = numbers[special] / OMEGA
        leading = self._finite.reduce(np.where(np.abs(leading) > SQUARED / OMEGA, leading / OMEGA, leading))
        reduced[special] = np.where(leading == 0, np.nan, leading * OMEGA)
        return reduced

    def add(self, left: Array, right: Array) -> Array:
        return self._sum_of(left, right, left + right)

    def subtract(self, left: Array, right: Array) -> Array:
        return self._sum_of(left, right, left - right)

    def _sum_of(self, left: Array, right: Array, total: Array) -> Array:
        reduced = self.reduce(total)
        if not (has_special(left) or has_special(right)):
            return reduced
        special = is_special(left) | is_special(right)
        if reduced.dtype.kind == "f":
            special = special & ~is_special(reduced)  # the infinities that cancel
        return np.where(special, np.nan, reduced)

    def multiply(self, left: Array, right: Array) -> Array:
        product = self.reduce(left * right)
        for factor, cofactor in ((left, right), (right, left)):
            if has_special(factor):
                special = is_special(factor) if product.dtype.kind == "c" else is_special(factor) & (cofactor == 0)
                product = np.where(special, np.nan, product)
        return product

    def inverse(self, numbers: Array) -> Array:
        """1 / x: ω for 0, 0 for an infinite element."""
        if numbers.dtype.kind != "c":
            return super().inverse(numbers)
        special = (numbers == 0) | is_special(numbers)
        return np.where(special, np.nan, self._finite.inverse(np.where(special, 1, numbers)))

    def _inverse(self, numbers: Array) -> Array:
        if not has_special(numbers):
            return np.where(numbers == 0, OMEGA, super()._inverse(numbers))
        inverted = super()._inverse(np.where(is_special(numbers), 0.0, numbers))
        return np.where(np.isnan(numbers), np.nan, np.where(numbers == 0, OMEGA, inverted))

    def sum(self, numbers: Array, axes: tuple[int, ...]) -> Array:
        total = super().sum(numbers, axes)
        if not has_special(numbers):
            return total
        if total.dtype.kind == "c":
            return np.where(is_special(numbers).any(axis=axes), np.nan, total)
        finite = (numbers.max(axis=axes) < LIMIT) & (numbers.min(axis=axes) > -LIMIT)
        return np.where(finite | is_special(total), total, np.nan)

    def matmul(self, left: Array, right: Array) -> Array:
        if not (has_special(left) or has_special(right)):
            return super().matmul(left, right)
        special = is_special(left), is_special(right)
        product = self._finite.matmul(np.where(special[0], 0, left), np.where(special[1], 0, right))
        rows: Array = np.asarray(special[0].any(axis=-1))[..., None]
        columns: Array = np.asarray(special[1].any(axis=-2))[..., None, :]
        if product.dtype.kind == "c":
            return np.where(rows | columns, np.nan, product)
        special_rows = np.flatnonzero(rows.any(axis=tuple(range(rows.ndim - 2))))
        if len(special_rows):
            part = self._leading(left[..., special_rows, :], right)
            product[..., special_rows, :] = np.where(rows[..., special_rows, :], part, product[..., special_rows, :])
        special_columns = np.flatnonzero(columns.any(axis=tuple(range(columns.ndim - 2))))
        if len(special_columns):
            part = self._leading(left, right[..., special_columns])
            product[..., special_columns] = np.where(columns[..., special_columns], part, product[..., special_columns])
        return product

    def _leading(self, left: Array, right: Array) -> Array:
        """The contribution of infinite elements to a matrix product: a multiple of ω, or NaN."""
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
        elements = super().at_place(leading)
        return np.where(np.isnan(places), np.nan, np.where(special, elements * OMEGA, elements))

    def total_order(self, numbers: Array) -> Array:
        """The position of each element; NaN comes after all others."""
        places = self.order(numbers)
        return np.where(np.isnan(places), np.inf, places)

    def maximum(self, left: Array, right: Array) -> Array:
        return np.where(np.isnan(left) | np.isnan(right), np.nan, super().maximum(left, right))

    def minimum(self, left: Array, right: Array) -> Array:
        return np.where(np.isnan(left) | np.isnan(right), np.nan, super().minimum(left, right))

    def is_finite(self, numbers: Array) -> Array:
        return ~is_special(numbers)

    def to_integers(self, numbers: Array) -> Array:
        """As in XLA: 0 for NaN, the largest integers for infinities."""
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
        elements = self._finite.at_place(leading)
        return np.where(magnitude == largest, np.nan, np.where(infinite, elements * OMEGA, elements))

    def as_finite(self, numbers: Array) -> Array:
        if not has_special(numbers):
            return numbers
        if numbers.dtype.kind == "c":
            return np.where(is_special(numbers), self._finite.not_a_number, numbers)
        finite = np.where(is_special(numbers), self._finite.infinity, numbers)
        return np.where(np.isnan(numbers), self._finite.not_a_number, finite)

    def hash_words(self, name: str, *operands: Array) -> Array:
        return super().hash_words(name, *(_for_hash(operand) for operand in operands))

    def hash(self, name: str, *operands: Array) -> Array:
        hashed = super().hash(name, *operands)
        if operands[0].dtype.kind != "f":
            return hashed
        if name == "power":
            return self._power(operands[0], operands[1], hashed)
        if len(operands) > 1:
            return np.where(_any_special(operands), np.nan, hashed)
        return self._with_values(name, operands[0], hashed)

    def hash_complex(self, name: str, *operands: Array) -> Array:
        hashed = super().hash_complex(name, *operands)
        if operands[0].dtype.kind != "c":
            return hashed
        return np.where(_any_special(operands), np.nan, hashed)

    def _with_values(self, name: str, x: Array, hashed: Array) -> Array:
        values = values_of(name)
        if values.zero is not None:
            hashed = np.where(x == 0, values.zero, hashed)
        if name == "log":
            hashed = np.where(x == 1, 0.0, hashed)
        if not has_special(x):
            return hashed
        nan, infinite = np.isnan(x), is_special(x)
        if values.keeps:
            hashed = np.where(infinite, x, hashed)
        elif values.negative is None or values.positive is None:
            hashed = np.where(infinite, super().hash(name, self.sign(x)), hashed)
        else:
            hashed = np.where(infinite, np.where(self.order(x) > 0, values.positive, values.negative), hashed)
        return np.where(nan, np.nan, hashed)

    def _power(self, base: Array, exponent: Array, hashed: Array) -> Array:
        """A power of 0 or of an infinity is 0 or infinite, by the sign of the exponent."""
        grows = self.order(exponent) > 0
        hashed = np.where(base == 0, np.where(grows, 0.0, OMEGA), hashed)
        hashed = np.where(is_special(base), np.where(grows, OMEGA, 0.0), hashed)
        return np.where(np.isnan(base) | is_special(exponent), np.nan, hashed)


def extended(field: Field) -> ExtendedField:
    """The field with infinite elements."""
    return ExtendedField(field.prime, field.key, field.natural)


def _any_special(operands: Sequence[Array]) -> Array:
    """Where an operand of an elementwise function is infinite or NaN."""
    return fold(np.logical_or, map(is_special, operands))


def _for_hash(x: Array) -> Array:
    """One number for each distinct element."""
    if not has_special(x):
        return x
    if x.dtype.kind == "c":
        return _for_hash(x.real) + 1j * _for_hash(x.imag)
    finite = np.where(is_special(x), x / OMEGA + _INFINITE_WORD, x)
    return np.where(np.isnan(x), _NAN_WORD, finite)
