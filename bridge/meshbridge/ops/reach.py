"""Which elements of a split dimension each device reads when windows reach over the edges of its shard.

An op with windows computes element r of its result from the places `stride*r - low` up to `extent` further of its operand, whose
element q stands at place `dilation*q`: a convolution, pooling, a strided slice, a pad, one operand of a concatenation, a reversal
(stride -1). Result and operand are split along the same mesh axes, each in shards of its own ceiling division, so the device of
number i reads one run of operand elements, a `Window`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshbridge.ir.per_device import PerDevice


@dataclass(frozen=True)
class Window:
    """Device i of a group reads `length` elements from `scale * ((step*i + base) // divisor) + shift` on.

    Elements before the dimension's first or behind its last are nobody's.
    """

    length: int
    step: int
    base: int
    divisor: int = 1
    scale: int = 1
    shift: int = 0
    lead: int | None = 0
    "Places before the first element's in what the device reads; None where devices differ, see `leads`."

    def starts(self, devices: PerDevice) -> PerDevice:
        """The first element of each of the devices, which are members of a group by their numbers."""
        return (devices * self.step + self.base) // self.divisor * self.scale + self.shift

    def leads(self, devices: PerDevice) -> PerDevice:
        """How far into the gap behind its first element each device begins, in places: 0 up to the dilation."""
        return (devices * self.step + self.base) % self.divisor

    def is_halo(self, shard: int) -> bool:
        """Whether every device reads its own shard of `shard` elements and equally much of its neighbours."""
        return self.divisor == 1 and self.step * self.scale == shard


@dataclass(frozen=True)
class Reach:
    """What one dimension of a result of `size` elements reads of an operand's dimension of `source` elements."""

    size: int
    source: int
    stride: int = 1
    low: int = 0
    extent: int = 1
    dilation: int = 1

    @property
    def is_identity(self) -> bool:
        """Whether result and operand are the same along the dimension."""
        return self == Reach(self.source, self.source)

    @property
    def fills(self) -> bool:
        """Whether some elements of the result are none of the operand's: they come before, behind or between these."""
        first, last = self._places
        return self.size > 0 and (self.dilation > 1 or first < 0 or last >= self.source)

    @property
    def _places(self) -> tuple[int, int]:
        """The first and the last place that is read."""
        first, last = sorted((-self.low, self.stride * (self.size - 1) - self.low))
        return first, last + self.extent - 1

    def after(self, inner: Reach) -> Reach | None:
        """What the result reads of the operand of `inner`, whose result is the operand here; None where no one reach says it.

        Elements that `inner` does not read are read where they are within reach: see `brings_back`.
        """
        if self.dilation == 1:
            low, dilation = inner.stride * self.low + inner.low, inner.dilation
        elif inner.stride == 1:
            low, dilation = self.low + self.dilation * inner.low, self.dilation * inner.dilation
        else:
            return None
        return Reach(self.size, inner.source, self.stride * inner.stride, low, self.extent, dilation)

    def brings_back(self, inner: Reach) -> bool:
        """Whether `self.after(inner)` reads elements that `inner` has cut off, where the result is filled."""
        first, last = (place // self.dilation for place in self._places)
        for begin, end in ((first, -1), (inner.size, last)):
            places = sorted(inner.stride * element - inner.low for element in (begin, end))
            if begin <= end and places[1] >= 0 and places[0] <= inner.dilation * (inner.source - 1):
                return True
        return False

    def span(self, count: int) -> int:
        """Places that one of `count` devices reads."""
        return (-(-self.size // count) - 1) * abs(self.stride) + self.extent

    @lru_cache(maxsize=4096)  # noqa: B019  (frozen values, few)
    def window(self, count: int) -> Window:
        """The elements that each of `count` devices reads.

        Where a shard's first place is a multiple of the dilation on every device, or on none by the same distance, the window
        begins with the first element that is read; otherwise with the last one at or before the first place.
        """
        shard = -(-self.size // count)
        step, base, span = shard * self.stride, min(0, (shard - 1) * self.stride) - self.low, self.span(count)
        if step % self.dilation:
            return Window((span + self.dilation - 2) // self.dilation + 1, step, base, self.dilation, lead=None)
        first = -(-base // self.dilation)
        lead = first * self.dilation - base
        return Window(max(span - lead - 1, -1) // self.dilation + 1, step // self.dilation, first, lead=lead)


@dataclass(frozen=True)
class Covered:
    """The elements that the windows at the places of a `reach` cover: window r is `extent` elements from `stride*r - low` on.

    What is scattered back from windows (the gradient of pooling) reads the windows themselves again.
    """

    reach: Reach
    source: int
    stride: int
    low: int
    extent: int

    def window(self, count: int) -> Window:
        """The elements that each of `count` devices reads."""
        windows = self.reach.window(count)
        length = max(0, windows.length - 1) * self.stride + self.extent
        return Window(length, windows.step, windows.base, windows.divisor, self.stride, -self.low, windows.lead)


@dataclass(frozen=True)
class Shares:
    """`length` elements of every other device, a summary of its shard: its sum for a scan, its largest for a top-k."""

    length: int = 1
