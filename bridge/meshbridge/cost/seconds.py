"""Closed formulas for the seconds that a collective takes on the links of a machine, and an op on one device. See
docs/machines.md.

A collective takes its latency, which is the time to start and of its hops, and keeps each kind of link busy for as long as its
bytes take. Groups use all their links at once: the busiest one counts. All groups of a mesh communicate at the same time, and
share common links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil, log2, prod

from meshbridge.ir.sharding import Axes
from meshbridge.machines.layout import Part, Placement
from meshbridge.machines.machine import Link, Machine


@dataclass(frozen=True)
class Time:
    """The time of a collective: seconds of latency, and the seconds that its bytes keep each resource busy: an axis of the torus,
    or a link by its name."""

    latency: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds from start to end, if it has all links to itself."""
        return self.latency + max(self.busy.values(), default=0.0)


def op_time(flops: float, dtype: str, memory_bytes: float, machine: Machine) -> float:
    """The roofline of an op: seconds of its FLOPs, for products with operands of that MLIR element type, or of its bytes of HBM.
    An op without products counts no FLOPs: its arithmetic takes no longer than its bytes.

    Raises MeshError if the machine's file has no rate for the type.
    """
    return max(flops / machine.peak(dtype) if flops else 0.0, memory_bytes / machine.memory_bandwidth)


def collective_time(kind: str, operand_bytes: float, axes: Axes, placement: Placement) -> Time:
    """The time of a collective of the mesh dialect or of StableHLO, by its name without prefix; for permutes see `cost.permutes`.

    `operand_bytes` are the bytes of one device's operand: a shard of a gather, the whole of a reduction. Groups are along `axes`.
    """
    busy: dict[str, float] = {}
    levels = [
        _Level(link, tuple(own), kind) for link, own in groupby(placement.across(axes), key=lambda part: part.dimension.link)
    ]
    group, outer = prod(level.devices for level in levels), 1
    for level in levels:
        for name, seconds in _SHARED[kind](operand_bytes, outer, level, group):
            busy[name] = busy.get(name, 0.0) + seconds
        outer *= level.devices
    hops = (2 if kind == "all_reduce" else 1) * sum(level.latency(direct=kind == "all_to_all") for level in levels)
    return Time(max((level.link.launch_of(kind) for level in levels), default=0.0) + hops, busy)


@dataclass(frozen=True)
class _Level:
    """The parts of a group that are on one kind of link."""

    link: Link
    parts: tuple[Part, ...]
    kind: str
    "Of the collective."

    @property
    def devices(self) -> int:
        return prod(part.size for part in self.parts)

    def rates(self) -> dict[str, float]:
        """The maximum bytes per second that a device receives, by dimension. Groups share links with groups whose devices are
        between theirs."""
        rates: dict[str, float] = {}
        for part in self.parts:
            ports = 2 if part.ring else 1
            rate = ports * self.link.rate_of(self.kind) / (part.stride if part.dimension.torus else 1)
            rates[part.dimension.name] = min(rate, rates.get(part.dimension.name, rate))
        return rates

    def latency(self, *, direct: bool) -> float:
        """Seconds of the hops to the furthest device: around both halves of a ring, along a line, or through the switch: once if
        each device sends to each (`direct`), otherwise along a tree."""
        hops = 0
        for part in self.parts:
            if part.dimension.torus:
                hops += part.stride * (part.size // 2 if part.ring else part.size - 1)
            else:
                hops += 1 if direct else ceil(log2(part.size))
        return hops * self.link.latency


Shared = Callable[[float, int, _Level, int], Iterable[tuple[str, float]]]
"""Seconds by dimension from: bytes of an operand, devices of the group at outer levels, the level, devices of the group."""


def _gather(operand: float, outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """A device receives the data of the other devices of its level, including what they gathered at outer levels."""
    rates = level.rates()
    seconds = operand * outer * (level.devices - 1) / sum(rates.values())
    return dict.fromkeys(rates, seconds).items()


def _scatter(operand: float, outer: int, level: _Level, group: int) -> Iterable[tuple[str, float]]:
    """The reverse of a gather."""
    return _gather(operand / group, outer, level, group)


def _reduce(operand: float, outer: int, level: _Level, group: int) -> Iterable[tuple[str, float]]:
    """A scatter and a gather, or sums computed by a switch."""
    return ((name, seconds * 2 / level.link.reduction) for name, seconds in _scatter(operand, outer, level, group))


def _broadcast(operand: float, _outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """Pieces follow one another on each port."""
    rates = level.rates()
    return dict.fromkeys(rates, operand / sum(rates.values())).items()


def _exchange(operand: float, outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """Each device sends to each directly, except through outer levels. Along a ring of n the busiest link carries n^2/8 of the
    pieces that a device sends to one other, along a line n^2/4."""
    operand /= outer
    for part in level.parts:
        if part.dimension.torus:
            share = (part.size**2 // 4) / (2 if part.ring else 1) / part.size * part.stride
        else:
            share = (part.size - 1) / part.size
        yield part.dimension.name, operand * share / level.link.rate_of(level.kind)


_SHARED: dict[str, Shared] = {
    "all_gather": _gather,
    "gather": _gather,
    "reduce_scatter": _scatter,
    "scatter": _scatter,
    "all_reduce": _reduce,
    "reduce": _scatter,
    "all_to_all": _exchange,
    "broadcast": _broadcast,
    "collective_broadcast": _broadcast,
}
"""By kind. A rooted collective takes as long as the one that starts, or ends, with the same on every device."""
