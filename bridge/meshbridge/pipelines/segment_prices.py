"""What the segments of a step cost: the parts between all points at which a stage may begin, each predicted once.

A stage consists of consecutive segments. It takes the sum of their seconds and bytes, which is an estimate: the ops of two
segments in one program may be fused, or overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import pairwise

from meshbridge.pipeline import Options
from meshbridge.pipelines.fragment_reports import FragmentReports, ReportedFragment
from meshbridge.pipelines.fragments import Fragment, Source
from meshbridge.pipelines.stacks import Division


@dataclass(frozen=True)
class Price:
    """What a segment costs a device. Seconds in the loop, and bytes of activations, are those of one microbatch."""

    forward: float = 0.0
    "Seconds. The last segment goes forward and backward in one task."
    backward: float = 0.0
    weight: float = 0.0
    outside: float = 0.0
    "Seconds before and after the loop."
    entering: float = 0.0
    "Bytes that come from the segment before."
    fixed: float = 0.0
    "Bytes of parameters, sums of gradients and an optimizer's state."
    activations: float = 0.0
    "Bytes that the backward pass needs of the forward pass."
    temporaries: float = 0.0
    "Bytes."

    def plus(self, other: Price, times: float = 1.0) -> Price:
        """This and so many of another one, as one segment. Nothing costs less than nothing."""
        added = {each.name: max(getattr(self, each.name) + times * getattr(other, each.name), 0.0) for each in fields(Price)}
        return replace(Price(**added), entering=self.entering, temporaries=self.temporaries)


def prices_of(fragments: Sequence[Fragment], segments: int, options: Options, reports: FragmentReports) -> list[Price]:
    """The prices of segments, each of which is one chunk on a group of its own. Raises MeshError as `FragmentReports.of`."""
    own: dict[int, list[tuple[Fragment, ReportedFragment]]] = defaultdict(list)
    for fragment in fragments:
        own[fragment.group].append((fragment, reports.of(fragment, options)))
    return [_price(segment, own[segment]) for segment in range(segments)]


def _price(segment: int, fragments: Sequence[tuple[Fragment, ReportedFragment]]) -> Price:
    seconds: dict[str, float] = defaultdict(float)
    fixed: dict[Source, float] = {}
    activations: dict[Source, float] = {}
    entering = temporaries = after = 0.0
    for fragment, (report, inputs, _) in fragments:
        site = fragment.site
        seconds[site.kind] += report.seconds or 0.0
        meanwhile = report.memory.results - report.memory.donated + report.memory.temporaries
        temporaries, after = (max(temporaries, meanwhile), after) if site.per_microbatch else (temporaries, max(after, meanwhile))
        for source, size in zip(fragment.inputs, inputs, strict=True):
            computed = source.site
            if source.kind != "value" or computed is None or not computed.per_microbatch:
                fixed[source] = size
            elif computed.kind == "forward" and site.kind != "forward":
                activations[source] = size
            elif computed.kind == "forward" and computed.number < segment:
                entering += size
    return Price(
        seconds["forward"],
        seconds["backward"],
        seconds["weight"],
        seconds["pre"] + seconds["post"],
        entering,
        sum(fixed.values()),
        sum(activations.values()),
        max(temporaries, after),
    )


def prices_of_layers(prices: Sequence[Price], division: Division, scans: Sequence[int], *, merged: bool) -> list[Price]:
    """The prices of single layers, by those of segments of so many layers. `scans` numbers the scan of each layer. A segment
    within a scan has layers alone; the one that begins a scan also has what is before, and the one that ends it what is after.
    `merged` tells whether backward passes have gradients of weights in them."""
    inners = inner_segments(division, scans)
    of_scan = {scans[division.bounds[number]]: number for number in inners}
    found: list[Price] = []
    for segment, price in enumerate(prices):
        start, end = division.bounds[segment : segment + 2]
        inner = of_scan.get(scans[start])
        if inner is None or end - start == 1 or segment in inners:
            found += [_share(price, end - start)] * (end - start)
            continue
        layer = _share(prices[inner], division.layers_of(inner))
        others = [layer] * (end - start - 1)
        is_last = segment == len(prices) - 1
        rest = _without(price, layer, len(others), is_first=not segment, is_last=is_last, merged=merged)
        found += [*others, rest] if start and scans[start - 1] == scans[start] else [rest, *others]
    return found


def _share(price: Price, count: int) -> Price:
    """One of so many equal layers of a segment."""
    shared = Price().plus(price, 1 / count)
    return replace(shared, entering=price.entering, temporaries=price.temporaries)


def _without(price: Price, layer: Price, count: int, *, is_first: bool, is_last: bool, merged: bool) -> Price:
    """A segment without so many of its layers. Nothing waits for the backward pass of the first one, so that all of it is apart
    if gradients of weights are; the last one goes forward and backward in one task."""
    own = layer
    if is_first and not merged:
        own = replace(layer, backward=0.0, weight=layer.backward + layer.weight)
    if is_last:
        own = replace(layer, forward=layer.forward + layer.backward, backward=0.0)
    rest = price.plus(own, -count)
    if is_last and merged:  # activations are temporaries of its only task
        rest = replace(rest, temporaries=max(rest.temporaries - count * layer.activations, 0.0))
    return rest


def inner_segments(division: Division, scans: Sequence[int]) -> list[int]:
    """The segments that neither begin nor end a scan."""
    ends = [-1, *scans, -1]
    return [
        segment
        for segment, (start, end) in enumerate(pairwise(division.bounds))
        if ends[start] == scans[start] == scans[end - 1] == ends[end + 1]
    ]


def division_to_price(even: Division, scans: Sequence[int]) -> Division:
    """Segments by which `prices_of_layers` tells the price of each layer: `even` if it can, else the first and the last layer of
    each scan, and what is between."""
    inner = {scans[even.bounds[segment]] for segment in inner_segments(even, scans)}
    within = all(scans[start] == scans[end - 1] for start, end in pairwise(even.bounds))
    if within and inner == set(scans):
        return even
    firsts = [number for number in range(1, len(scans)) if scans[number] != scans[number - 1]]
    bounds = {0, *firsts, len(scans)}
    return Division(tuple(sorted(bounds.union(*({start + 1, end - 1} for start, end in pairwise(sorted(bounds)))))))


def joined(prices: Sequence[Price], points: Sequence[int]) -> list[Price]:
    """The prices of segments that begin at those of single layers."""
    return [reduce(_then, prices[start:end]) for start, end in pairwise((0, *points, len(prices)))]


def _then(first: Price, second: Price) -> Price:
    return replace(first.plus(second), temporaries=max(first.temporaries, second.temporaries))
