"""Where every element of a tensor is, as factors: what symbolic execution works on.

A factor of radix r and stride t along a tensor dimension adds `t * value` to the index along it. The value is a digit of the
index into the local buffer, or, where the factor is sharded, a digit of the device number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from meshbridge.ir.digits import Digit, Digits, axis_digits
from meshbridge.ir.sharding import Mesh, Sharding, local_shape
from meshbridge.resharding.steps import Shape


class PlanError(AssertionError):
    """A plan does not produce its target: a bug of the planner, to be reported with the plan."""


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """`stride * value` along the tensor dimension `dim`, with `value` below `radix`."""

    dim: int
    stride: int
    radix: int

    def split(self, outer: int) -> tuple[Factor, Factor]:
        """The factor as one of radix `outer` and one inside it."""
        if self.radix % outer:
            raise PlanError(f"a factor of {self.radix} is divided into pieces of {outer}")
        inner = self.radix // outer
        return Factor(self.dim, self.stride * inner, outer), Factor(self.dim, self.stride, inner)


def split_digit(digit: Digit, outer: int) -> tuple[Digit, Digit]:
    """The digit as one of radix `outer` and one inside it."""
    if digit.radix % outer:
        raise PlanError(f"{digit} is divided into pieces of {outer}")
    inner = digit.radix // outer
    return Digit(digit.axis, outer, digit.stride * inner), Digit(digit.axis, inner, digit.stride)


@dataclass
class Factors:
    """The factors of one tensor: per dimension of the local buffer from outer to inner, and those that are sharded (`spread`)."""

    dims: list[list[Factor]]
    spread: list[tuple[Factor, Digit]] = field(default_factory=list)

    @staticmethod
    def of(shape: Shape, mesh: Mesh, sharding: Sharding) -> Factors:
        """The (padded) blocks of a sharding without halos or offsets."""
        local = local_shape(shape, mesh, sharding.split_axes)
        factors = Factors([[Factor(dim, 1, size)] for dim, size in enumerate(local)])
        for dim, axes in enumerate(sharding.split_axes):
            stride = local[dim]
            for digit in reversed(axis_digits(mesh, axes)):
                if digit.radix > 1:
                    factors.spread.append((Factor(dim, stride, digit.radix), digit))
                    stride *= digit.radix
        return factors

    @property
    def shape(self) -> Shape:
        """The shape of the local buffer."""
        return tuple(prod(factor.radix for factor in factors) for factors in self.dims)

    def canonical(self) -> tuple[tuple[tuple[Factor, ...], ...], tuple[tuple[Factor, Digit], ...]]:
        """The same for all factors that mean the same: adjacent ones that continue each other become one."""
        return tuple(tuple(merged_factors(factors)) for factors in self.dims), tuple(_merged_spread(self.spread))

    def reshape(self, shape: Shape) -> None:
        """Sees the buffer in another shape."""
        remaining = merged_factors(factor for factors in self.dims for factor in factors)[::-1]
        self.dims = []
        for size in shape:
            dim_factors: list[Factor] = []
            while size > 1:
                factor = remaining.pop()
                if factor.radix > size or size % factor.radix:
                    factor, inner = factor.split(size)
                    remaining.append(inner)
                dim_factors.append(factor)
                size //= factor.radix
            self.dims.append(dim_factors)
        if remaining:
            raise PlanError(f"a reshape to {list(shape)} loses {remaining}")

    def scatter(self, dim: int, digits: Digits) -> list[tuple[Factor, Digit]]:
        """Removes the outer factors of `dim`, one for each of `digits`, and returns them with the digits that shard them."""
        remaining, scattered = merged_factors(self.dims[dim])[::-1], []
        for digit in digits:
            while digit.radix > 1:
                if not remaining:
                    raise PlanError(f"dimension {dim} is too small to be sharded along {digits}")
                factor = remaining.pop()
                if factor.radix > digit.radix:
                    factor, inner = factor.split(digit.radix)
                    remaining.append(inner)
                outer, digit = split_digit(digit, factor.radix)
                scattered.append((factor, outer))
        self.dims[dim] = remaining[::-1]
        return scattered

    def release(self, digits: Digits) -> list[Factor]:
        """Removes and returns the factors that are sharded along `digits`, in that order. Each digit must shard some."""
        released = []
        for digit in digits:
            inside = [(f, d) for f, d in self._cut_at(digit) if _contains(digit, d)]
            if prod(d.radix for _, d in inside) != digit.radix:
                raise PlanError(f"nothing is sharded along {digit}, over which a step gathers")
            self.spread = [entry for entry in self.spread if entry not in inside]
            released += [factor for factor, _ in sorted(inside, key=lambda entry: -entry[1].stride)]
        return released

    def _cut_at(self, digit: Digit) -> list[tuple[Factor, Digit]]:
        """`spread`, with every entry split where `digit` begins and ends."""
        for bound in (digit.stride, digit.stride * digit.radix):
            entries: list[tuple[Factor, Digit]] = []
            for factor, spread_digit in self.spread:
                if spread_digit.axis == digit.axis and spread_digit.stride < bound < spread_digit.stride * spread_digit.radix:
                    outer = spread_digit.stride * spread_digit.radix // bound
                    entries += zip(factor.split(outer), split_digit(spread_digit, outer), strict=True)
                else:
                    entries.append((factor, spread_digit))
            self.spread = entries
        return self.spread

    def _renumber(self, sources: Digits, targets: Digits) -> None:
        """Relabels where the digits of the two lists have different radices. Digits that shard nothing come last."""
        used = [digit for digit in sources if any(overlap(digit, spread_digit) for _, spread_digit in self._cut_at(digit))]
        block = Factors([self.release(tuple(used))])
        count, target_digits = prod(digit.radix for digit in used), list[Digit]()
        while prod(digit.radix for digit in target_digits) < count:
            target_digits.append(targets[len(target_digits)])
        if tuple(used) != sources[: len(used)] or prod(digit.radix for digit in target_digits) != count:
            raise PlanError(f"numbers along {sources} and {targets} do not correspond")
        self.spread += block.scatter(0, tuple(target_digits))

    def relabel(self, sources: Digits, targets: Digits) -> None:
        """Shards along `targets` what was sharded along `sources`: numbers along both lists, outer to inner, correspond."""
        if any(source.radix != target.radix for source, target in zip(sources, targets, strict=True)):
            self._renumber(sources, targets)
            return
        relabelled: list[tuple[Factor, Digit]] = []
        for source, target in zip(sources, targets, strict=True):
            inside = [(f, d) for f, d in self._cut_at(source) if _contains(source, d)]
            self.spread = [entry for entry in self.spread if entry not in inside]
            target_digits = [Digit(target.axis, d.radix, d.stride // source.stride * target.stride) for _, d in inside]
            relabelled += zip((factor for factor, _ in inside), target_digits, strict=True)
        self.spread += relabelled


def _contains(digit: Digit, part: Digit) -> bool:
    return part.axis == digit.axis and digit.stride <= part.stride and part.stride * part.radix <= digit.stride * digit.radix


def overlap(a: Digit, b: Digit) -> bool:
    """Whether the digits share a factor of an axis."""
    return a.axis == b.axis and a.stride < b.stride * b.radix and b.stride < a.stride * a.radix


def merged_factors(factors: Iterable[Factor]) -> list[Factor]:
    """Merges adjacent factors that continue each other."""
    result: list[Factor] = []
    for factor in factors:
        if factor.radix == 1:
            continue
        if result and result[-1].dim == factor.dim and result[-1].stride == factor.stride * factor.radix:
            factor = Factor(factor.dim, factor.stride, factor.radix * result.pop().radix)
        result.append(factor)
    return result


def _merged_spread(spread: Sequence[tuple[Factor, Digit]]) -> list[tuple[Factor, Digit]]:
    merged: list[tuple[Factor, Digit]] = []
    for factor, digit in sorted(spread, key=lambda entry: (entry[0].dim, -entry[0].stride)):
        if digit.radix == 1:
            continue
        if merged:
            outer, above = merged[-1]
            continues = (outer.dim, outer.stride) == (factor.dim, factor.stride * factor.radix)
            if continues and (above.axis, above.stride) == (digit.axis, digit.stride * digit.radix):
                merged.pop()
                factor = Factor(factor.dim, factor.stride, factor.radix * outer.radix)
                digit = Digit(digit.axis, digit.radix * above.radix, digit.stride)
        merged.append((factor, digit))
    return merged


def without_digits(digits: Iterable[Digit], removed: Digits) -> list[Digit]:
    """Removes the parts of digits in `removed`, each of which must be there."""
    remaining = list(digits)
    for digit in removed:
        around = next((candidate for candidate in remaining if _contains(candidate, digit)), None)
        if around is None:
            raise PlanError(f"a step reduces over {digit}, over which nothing is partial")
        remaining.remove(around)
        above = Digit(around.axis, around.stride * around.radix // (digit.stride * digit.radix), digit.stride * digit.radix)
        below = Digit(around.axis, digit.stride // around.stride, around.stride)
        remaining += [part for part in (above, below) if part.radix > 1]
    return remaining


def merged_digits(digits: Iterable[Digit]) -> list[Digit]:
    """Merges digits that continue each other, and sorts them."""
    ordered = sorted(digits, key=lambda digit: (digit.axis, -digit.stride))
    for above, below in pairwise(list(ordered)):
        if (above.axis, above.stride) == (below.axis, below.stride * below.radix):
            at = ordered.index(below)
            ordered[at - 1 : at + 1] = [Digit(below.axis, ordered[at - 1].radix * below.radix, below.stride)]
    return ordered
