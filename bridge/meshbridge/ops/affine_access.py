"""Affine accesses: which elements of a split dimension each device reads if windows extend beyond its shard.

An op with windows computes element r of its result from the `extent` positions of its operand from `stride*r - low` on, where
element q of the operand is at position `dilation*q`: a convolution, pooling, a strided slice, a pad, one operand of a
concatenation, a reversal (stride -1). Result and operand are split along the same mesh axes, each in shards of ceil(size /
devices) elements, so device i reads one interval of operand elements, a `DeviceWindow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshbridge.ir.per_device import PerDevice


@dataclass(frozen=True)
class DeviceWindow:
    """Device i of a group reads `length` elements from `scale * ((step*i + base) // divisor) + shift` on.

    Elements outside the dimension do not exist.
    """

    length: int
    step: int
    base: int
    divisor: int = 1
    scale: int = 1
    shift: int = 0
    lead: int | None = 0
    "Positions before the first element in the device's interval; None if devices differ, see `leads`."

    def starts(self, devices: PerDevice) -> PerDevice:
        """The first element of each of the devices, given by their numbers in the group."""
        return (devices * self.step + self.base) // self.divisor * self.scale + self.shift

    def leads(self, devices: PerDevice) -> PerDevice:
        """The position, below the dilation, of each device's begin in the gap after its first element."""
        return (devices * self.step + self.base) % self.divisor

    def is_halo(self, shard: int) -> bool:
        """True if every device reads its shard of `shard` elements and the same number of elements of its neighbours."""
        return self.divisor == 1 and self.step * self.scale == shard


@dataclass(frozen=True)
class AffineAccess:
    """The elements of an operand's dimension of size `source` that a dimension of a result of `size` reads."""

    size: int
    source: int
    stride: int = 1
    low: int = 0
    extent: int = 1
    dilation: int = 1

    @property
    def is_identity(self) -> bool:
        """True if result and operand are equal along the dimension."""
        return self == AffineAccess(self.source, self.source)

    @property
    def reads_padding(self) -> bool:
        """True if the windows read padding: before, after or between the operand's elements."""
        begin, end = self._places
        return self.size > 0 and (self.dilation > 1 or begin < 0 or end >= self.source)

    @property
    def _places(self) -> tuple[int, int]:
        """The first and the last position that is read."""
        begin, end = sorted((-self.low, self.stride * (self.size - 1) - self.low))
        return begin, end + self.extent - 1

    def after(self, inner: AffineAccess) -> AffineAccess | None:
        """The access of the result to the operand of `inner`, whose result is the operand of this access; None if that is not one
        access.

        The composition may read elements that `inner` does not: see `reads_dropped`.
        """
        if self.dilation == 1:
            low, dilation = inner.stride * self.low + inner.low, inner.dilation
        elif inner.stride == 1:
            low, dilation = self.low + self.dilation * inner.low, self.dilation * inner.dilation
        else:
            return None
        return AffineAccess(self.size, inner.source, self.stride * inner.stride, low, self.extent, dilation)

    def reads_dropped(self, inner: AffineAccess) -> bool:
        """True if `self.after(inner)` reads elements that `inner` drops, where the result has padding."""
        first_element, last_element = (place // self.dilation for place in self._places)
        for begin, end in ((first_element, -1), (inner.size, last_element)):
            places = sorted(inner.stride * element - inner.low for element in (begin, end))
            if begin <= end and places[1] >= 0 and places[0] <= inner.dilation * (inner.source - 1):
                return True
        return False

    def span(self, count: int) -> int:
        """Positions that one of `count` devices reads."""
        return (-(-self.size // count) - 1) * abs(self.stride) + self.extent

    @lru_cache(maxsize=4096)  # noqa: B019  (frozen values, few)
    def window(self, count: int) -> DeviceWindow:
        """The elements that each of `count` devices reads.

        If the first position of every shard has the same remainder by the dilation, the window begins with the first element
        read; if not, with the last one at or before the first position.
        """
        shard = -(-self.size // count)
        step, base, span = shard * self.stride, min(0, (shard - 1) * self.stride) - self.low, self.span(count)
        if step % self.dilation:
            return DeviceWindow((span + self.dilation - 2) // self.dilation + 1, step, base, self.dilation, lead=None)
        first_element = -(-base // self.dilation)
        lead = first_element * self.dilation - base
        return DeviceWindow(max(span - lead - 1, -1) // self.dilation + 1, step // self.dilation, first_element, lead=lead)


@dataclass(frozen=True)
class CoveredAccess:
    """The elements under the windows of an `access`: window r covers `extent` elements from `stride*r - low` on.

    Scattering back from windows (the gradient of pooling) reads the windows themselves again.
    """

    access: AffineAccess
    source: int
    stride: int
    low: int
    extent: int

    def window(self, count: int) -> DeviceWindow:
        """The elements that each of `count` devices reads."""
        windows = self.access.window(count)
        length = max(0, windows.length - 1) * self.stride + self.extent
        return DeviceWindow(length, windows.step, windows.base, windows.divisor, self.stride, -self.low, windows.lead)


@dataclass(frozen=True)
class ShardSummaries:
    """Every other device's summary of its shard, `length` elements: its sum for a scan, its largest elements for a top-k."""

    length: int = 1
