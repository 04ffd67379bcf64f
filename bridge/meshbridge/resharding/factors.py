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
        found = Factors([[Factor(dim, 1, size)] for dim, size in enumerate(local)])
        for dim, axes in enumerate(sharding.split_axes):
            stride = local[dim]
            for digit in reversed(axis_digits(mesh, axes)):
                if digit.radix > 1:
                    found.spread.append((Factor(dim, stride, digit.radix), digit))
                    stride *= digit.radix
        return found

    @property
    def shape(self) -> Shape:
        """The shape of the local buffer."""
        return tuple(prod(factor.radix for factor in factors) for factors in self.dims)

    def canonical(self) -> tuple[tuple[tuple[Factor, ...], ...], tuple[tuple[Factor, Digit], ...]]:
        """The same for all factors that mean the same: adjacent ones that continue each other become one."""
        return tuple(tuple(merged(factors)) for factors in self.dims), tuple(_merged_spread(self.spread))

    def reshape(self, shape: Shape) -> None:
        """Sees the buffer in another shape."""
        waiting = merged(factor for factors in self.dims for factor in factors)[::-1]
        self.dims = []
        for size in shape:
            taken: list[Factor] = []
            while size > 1:
                factor = waiting.pop()
                if factor.radix > size or size % factor.radix:
                    factor, rest = factor.split(size)
                    waiting.append(rest)
                taken.append(factor)
                size //= factor.radix
            self.dims.append(taken)
        if waiting:
            raise PlanError(f"a reshape to {list(shape)} loses {waiting}")

    def scatter(self, dim: int, digits: Digits) -> list[tuple[Factor, Digit]]:
        """Takes the outer factors of `dim` away, one for each of `digits`, and returns what is to be sharded along them."""
        waiting, taken = merged(self.dims[dim])[::-1], []
        for digit in digits:
            while digit.radix > 1:
                if not waiting:
                    raise PlanError(f"dimension {dim} is too small to be sharded along {digits}")
                factor = waiting.pop()
                if factor.radix > digit.radix:
                    factor, rest = factor.split(digit.radix)
                    waiting.append(rest)
                outer, digit = split_digit(digit, factor.radix)
                taken.append((factor, outer))
        self.dims[dim] = waiting[::-1]
        return taken

    def release(self, digits: Digits) -> list[Factor]:
        """Takes the factors that are sharded along `digits`, in that order; each digit must shard some."""
        found = []
        for digit in digits:
            inside = [(f, d) for f, d in self._cut_at(digit) if _contains(digit, d)]
            if prod(d.radix for _, d in inside) != digit.radix:
                raise PlanError(f"nothing is sharded along {digit}, over which a step gathers")
            self.spread = [each for each in self.spread if each not in inside]
            found += [factor for factor, _ in sorted(inside, key=lambda each: -each[1].stride)]
        return found

    def _cut_at(self, digit: Digit) -> list[tuple[Factor, Digit]]:
        """`spread`, with every entry divided where `digit` begins and ends."""
        for bound in (digit.stride, digit.stride * digit.radix):
            cut: list[tuple[Factor, Digit]] = []
            for factor, each in self.spread:
                if each.axis == digit.axis and each.stride < bound < each.stride * each.radix:
                    outer = each.stride * each.radix // bound
                    cut += zip(factor.split(outer), split_digit(each, outer), strict=True)
                else:
                    cut.append((factor, each))
            self.spread = cut
        return self.spread

    def _renumber(self, sources: Digits, targets: Digits) -> None:
        """The same where the digits of the two lists have different radices; those that shard nothing come last."""
        used = [digit for digit in sources if any(overlap(digit, each) for _, each in self._cut_at(digit))]
        block = Factors([self.release(tuple(used))])
        count, taken = prod(digit.radix for digit in used), list[Digit]()
        while prod(digit.radix for digit in taken) < count:
            taken.append(targets[len(taken)])
        if tuple(used) != sources[: len(used)] or prod(digit.radix for digit in taken) != count:
            raise PlanError(f"numbers along {sources} and {targets} do not correspond")
        self.spread += block.scatter(0, tuple(taken))

    def relabel(self, sources: Digits, targets: Digits) -> None:
        """What was sharded along `sources` is sharded along `targets`: numbers along both lists, outer to inner, correspond."""
        if any(source.radix != target.radix for source, target in zip(sources, targets, strict=True)):
            self._renumber(sources, targets)
            return
        moved: list[tuple[Factor, Digit]] = []
        for source, target in zip(sources, targets, strict=True):
            inside = [(f, d) for f, d in self._cut_at(source) if _contains(source, d)]
            self.spread = [each for each in self.spread if each not in inside]
            shift = [Digit(target.axis, d.radix, d.stride // source.stride * target.stride) for _, d in inside]
            moved += zip((factor for factor, _ in inside), shift, strict=True)
        self.spread += moved


def _contains(digit: Digit, part: Digit) -> bool:
    return part.axis == digit.axis and digit.stride <= part.stride and part.stride * part.radix <= digit.stride * digit.radix


def overlap(a: Digit, b: Digit) -> bool:
    """Whether the digits have a factor of an axis in common."""
    return a.axis == b.axis and a.stride < b.stride * b.radix and b.stride < a.stride * a.radix


def merged(factors: Iterable[Factor]) -> list[Factor]:
    """The same factors, those that continue each other as one."""
    found: list[Factor] = []
    for factor in factors:
        if factor.radix == 1:
            continue
        if found and found[-1].dim == factor.dim and found[-1].stride == factor.stride * factor.radix:
            factor = Factor(factor.dim, factor.stride, factor.radix * found.pop().radix)
        found.append(factor)
    return found


def _merged_spread(spread: Sequence[tuple[Factor, Digit]]) -> list[tuple[Factor, Digit]]:
    merged: list[tuple[Factor, Digit]] = []
    for factor, digit in sorted(spread, key=lambda each: (each[0].dim, -each[0].stride)):
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


def without(digits: Iterable[Digit], removed: Digits) -> list[Digit]:
    """`digits` less the parts of them in `removed`, each of which must be there."""
    left = list(digits)
    for digit in removed:
        whole = next((each for each in left if _contains(each, digit)), None)
        if whole is None:
            raise PlanError(f"a step reduces over {digit}, over which nothing is partial")
        left.remove(whole)
        above = Digit(whole.axis, whole.stride * whole.radix // (digit.stride * digit.radix), digit.stride * digit.radix)
        below = Digit(whole.axis, digit.stride // whole.stride, whole.stride)
        left += [each for each in (above, below) if each.radix > 1]
    return left


def joined(digits: Iterable[Digit]) -> list[Digit]:
    """The same digits with those that continue each other as one, in a fixed order."""
    ordered = sorted(digits, key=lambda digit: (digit.axis, -digit.stride))
    for above, below in pairwise(list(ordered)):
        if (above.axis, above.stride) == (below.axis, below.stride * below.radix):
            at = ordered.index(below)
            ordered[at - 1 : at + 1] = [Digit(below.axis, ordered[at - 1].radix * below.radix, below.stride)]
    return ordered
