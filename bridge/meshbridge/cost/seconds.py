"""Seconds that a collective takes on the links of a machine, and an op on one device, in closed form. docs/machines.md has the
formulas.

A collective takes the time in which it starts and that of its hops, the latency, and beside it keeps each kind of link busy for
as long as its bytes take. Groups work on all their links at once: the link that is busy longest counts. All groups of a mesh
communicate at the same time, and share the links that they are on together.
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
    """What a collective takes: seconds before and between its bytes, and of its bytes by what is busy with them: an axis of the
    torus, or a link by its name."""

    latency: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From its start to its end, if it has all links to itself."""
        return self.latency + max(self.busy.values(), default=0.0)


def op_time(flops: float, dtype: str, memory_bytes: float, machine: Machine) -> float:
    """The roofline of an op: seconds of its FLOPs, of products whose operands have that MLIR element type, or of its bytes of
    HBM. An op without products has no FLOPs: its arithmetic takes no longer than its bytes.

    Raises MeshError where the machine's file has no rate for the type.
    """
    return max(flops / machine.peak(dtype) if flops else 0.0, memory_bytes / machine.memory_bandwidth)


def collective_time(kind: str, operand_bytes: float, axes: Axes, placement: Placement) -> Time:
    """The time of a collective of the mesh dialect or of StableHLO, by its name without prefix; permutes are of `cost.permutes`.

    `operand_bytes` are those of one device's operand: a shard of a gather, all of a reduction. Groups are along `axes`.
    """
    busy: dict[str, float] = {}
    levels = [_Level(link, tuple(own)) for link, own in groupby(placement.across(axes), key=lambda part: part.dimension.link)]
    group, outer = prod(level.devices for level in levels), 1
    for level in levels:
        for name, seconds in _SHARED[kind](operand_bytes, outer, level, group):
            busy[name] = busy.get(name, 0.0) + seconds
        outer *= level.devices
    hops = (2 if kind == "all_reduce" else 1) * sum(level.latency(direct=kind == "all_to_all") for level in levels)
    return Time(max((level.link.launch for level in levels), default=0.0) + hops, busy)


@dataclass(frozen=True)
class _Level:
    """What a group is on of one kind of link."""

    link: Link
    parts: tuple[Part, ...]

    @property
    def devices(self) -> int:
        return prod(part.size for part in self.parts)

    def rates(self) -> dict[str, float]:
        """Bytes per second that a device receives at the most, by dimension. Groups share links with groups whose devices are
        between theirs."""
        found: dict[str, float] = {}
        for part in self.parts:
            ports = 2 if part.ring else 1
            rate = ports * self.link.rate / (part.stride if part.dimension.torus else 1)
            found[part.dimension.name] = min(rate, found.get(part.dimension.name, rate))
        return found

    def latency(self, *, direct: bool) -> float:
        """Seconds of the hops to the furthest device: around both halves of a ring, along a line, or through the switch: once if
        each device sends to each (`direct`), else along a tree."""
        hops = 0
        for part in self.parts:
            if part.dimension.torus:
                hops += part.stride * (part.size // 2 if part.ring else part.size - 1)
            else:
                hops += 1 if direct else ceil(log2(part.size))
        return hops * self.link.latency


Shared = Callable[[float, int, _Level, int], Iterable[tuple[str, float]]]
"""Seconds by dimension from: bytes of an operand, devices of the group at the levels outside, the level, devices of the group."""


def _gather(operand: float, outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """A device receives what the other devices of its level have by then: what they gathered at the levels outside."""
    rates = level.rates()
    seconds = operand * outer * (level.devices - 1) / sum(rates.values())
    return dict.fromkeys(rates, seconds).items()


def _scatter(operand: float, outer: int, level: _Level, group: int) -> Iterable[tuple[str, float]]:
    """A gather the other way round."""
    return _gather(operand / group, outer, level, group)


def _reduce(operand: float, outer: int, level: _Level, group: int) -> Iterable[tuple[str, float]]:
    """A scatter and a gather, or sums that a switch makes."""
    return ((name, seconds * 2 / level.link.reduction) for name, seconds in _scatter(operand, outer, level, group))


def _broadcast(operand: float, _outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """Pieces follow one another on each port."""
    rates = level.rates()
    return dict.fromkeys(rates, operand / sum(rates.values())).items()


def _exchange(operand: float, outer: int, level: _Level, _: int) -> Iterable[tuple[str, float]]:
    """Each device sends to each, directly; what leaves through a level outside is not sent here. Along a ring of n the busiest
    link carries n^2/8 of the pieces that a device sends to one other, along a line n^2/4."""
    operand /= outer
    for part in level.parts:
        if part.dimension.torus:
            share = (part.size**2 // 4) / (2 if part.ring else 1) / part.size * part.stride
        else:
            share = (part.size - 1) / part.size
        yield part.dimension.name, operand * share / level.link.rate


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
"""By kind. A rooted collective takes as long as the one that leaves the same at every device, or starts with it."""
