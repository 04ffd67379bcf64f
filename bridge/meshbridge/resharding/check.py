"""Symbolic execution of plans: every plan is checked before anybody lowers it.

What digits describe is executed on factors, whatever the number of devices; an exchange of tiles is checked on the boxes of the
devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from typing import Any

from meshbridge.resharding import steps as s
from meshbridge.resharding.boxes import buffer_shape, layout
from meshbridge.resharding.factors import Factor, Factors, PlanError, joined, without
from meshbridge.resharding.plan import Plan
from meshbridge.resharding.steps import Digit, Step, axis_digits
from meshbridge.resharding.tiles import Tile, TileExchange
from meshbridge.sharding import Sharding

__all__ = ["PlanError", "check"]


def check(plan: Plan) -> None:
    """Raises PlanError if the steps of `plan` do not turn every source shard into the target shard of the same device."""
    state = _State(plan, plan.source, None, list(axis_digits(plan.mesh, plan.source.partial_axes)))
    try:
        for step in plan.steps:
            EXECUTE[type(step)](step, state)
            if state.shape != step.shape:
                raise PlanError(f"{step.text(plan.mesh)} leaves {list(state.shape)}")
        state.settle(plan.target)
        wanted = joined(axis_digits(plan.mesh, plan.target.partial_axes))
        if joined(state.partial) != wanted:
            raise PlanError(f"the result is partial over {joined(state.partial)}, not {wanted}")
    except PlanError as error:
        raise PlanError(f"{error}\nin the plan {plan}") from None


@dataclass
class _State:
    """Where the elements stand: in the shards of a sharding, or in a place that only factors describe."""

    plan: Plan
    held: Sharding | None
    moved: Factors | None
    partial: list[Digit]

    @property
    def factors(self) -> Factors:
        """The factors, to be changed."""
        if self.moved is None:
            held = self.held
            if held is None or held.halo_sizes or held.offsets:
                raise PlanError("a step on digits meets halos or offsets")
            self.moved, self.held = Factors.of(self.plan.shape, self.plan.mesh, held), None
        return self.moved

    @property
    def shape(self) -> s.Shape:
        """The shape of the local buffer."""
        return self.moved.shape if self.moved else buffer_shape(self.plan.shape, self.plan.mesh, self.held or self.plan.source)

    def settle(self, sharding: Sharding) -> None:
        """Checks that the elements stand as `sharding` says."""
        shape, mesh = self.plan.shape, self.plan.mesh
        if self.moved is None and self.held is not None:
            if layout(shape, mesh, self.held) != layout(shape, mesh, sharding):
                raise PlanError(f"the elements stand as {self.held} says, not {sharding}")
        elif sharding.halo_sizes or sharding.offsets or self.factors.canonical() != Factors.of(shape, mesh, sharding).canonical():
            raise PlanError(f"the elements do not stand as {sharding} says: {self.factors.canonical()}")
        self.held, self.moved = sharding, None

    def idle(self, digits: s.Digits) -> None:
        """Checks that nothing is partial over any of `digits`: terms of different sums must not change places."""
        if any(_overlap(digit, other) for digit in digits for other in self.partial):
            raise PlanError(f"a step moves values along {digits}, over some of which they are partial")


def _overlap(a: Digit, b: Digit) -> bool:
    return a.axis == b.axis and a.stride < b.stride * b.radix and b.stride < a.stride * a.radix


def _reshape(step: s.Reshape, state: _State) -> None:
    state.factors.reshape(step.shape)


def _transpose(step: s.Transpose, state: _State) -> None:
    factors = state.factors
    factors.dims = [factors.dims[dim] for dim in step.permutation]


def _resize(step: s.Pad | s.Crop, state: _State) -> None:
    """Grows or shrinks dimensions at their end; or takes the halo of a shard away."""
    if isinstance(step, s.Crop) and state.held is not None and state.held.halo_sizes:
        plain = replace(state.held, halo_sizes=())
        dims = layout(state.plan.shape, state.plan.mesh, state.held)
        core = layout(state.plan.shape, state.plan.mesh, plain)
        if step.start != tuple(b.origin[0] - a.origin[0] for a, b in zip(dims, core, strict=True)):
            raise PlanError("a crop does not take away the halo")
        state.held = plain
        return
    factors = state.factors
    spread = {factor.dim for factor, _ in factors.spread}
    for dim, (before, after) in enumerate(zip(factors.shape, step.shape, strict=True)):
        if before != after:
            if factors.canonical()[0][dim] != ((Factor(dim, 1, before),) if before > 1 else ()) or dim in spread:
                raise PlanError(f"dimension {dim} is resized while it is not whole")
            if isinstance(step, s.Crop) and after < state.plan.shape[dim]:
                raise PlanError(f"a crop of dimension {dim} loses elements")
            factors.dims[dim] = [Factor(dim, 1, after)]
    if any(getattr(step, "low" if isinstance(step, s.Pad) else "start")):
        raise PlanError("padding at the beginning of a dimension")


def _mask(step: s.Mask, state: _State) -> None:
    state.partial = without([*state.partial, *step.digits], ())


def _slice(step: s.Slice, state: _State) -> None:
    state.idle(step.digits)
    state.factors.spread += state.factors.scatter(step.dim, step.digits)


def _all_gather(step: s.AllGather, state: _State) -> None:
    factors = state.factors
    factors.dims[step.dim] = factors.release(step.digits) + factors.dims[step.dim]


def _reduce(step: s.AllReduce, state: _State) -> None:
    if step.kind != state.plan.source.partial_kind:
        raise PlanError(f"a step reduces by {step.kind}")
    state.partial = without(state.partial, step.digits)


def _reduce_scatter(step: s.ReduceScatter, state: _State) -> None:
    state.partial = without(state.partial, step.digits)
    state.factors.spread += state.factors.scatter(step.dim, step.digits)


def _all_to_all(step: s.AllToAll, state: _State) -> None:
    factors = state.factors
    left = factors.release(step.digits)
    entered = factors.scatter(step.split, step.digits)
    factors.dims[step.concat] = left + factors.dims[step.concat]
    factors.spread += entered


def _permute(step: s.Permute, state: _State) -> None:
    state.idle(step.sources)
    state.factors.relabel(step.sources, step.targets)


def _rounds(step: s.Rounds, state: _State) -> None:
    state.idle(step.sources)
    factors = state.factors
    left = factors.release(tuple(step.sources[i] for i in step.rotating))
    entered = factors.scatter(0, tuple(step.targets[i] for i in step.rotating))
    still = [i for i in range(len(step.sources)) if i not in step.rotating]
    factors.relabel(tuple(step.sources[i] for i in still), tuple(step.targets[i] for i in still))
    factors.dims[0] = left + factors.dims[0]
    factors.spread += entered


def _tiles(step: TileExchange, state: _State) -> None:
    state.settle(step.source)
    state.idle(step.digits)
    _check_rounds(step)
    boxes = _Boxes(state.plan, step)
    by_receiver: dict[int, list[Tile]] = {}
    for each in step.rounds:
        for tile in each.tiles:
            by_receiver.setdefault(tile.receiver, []).append(tile)
    for number in range(s.group_size(step.digits)):
        boxes.covered(number, by_receiver.get(number, []))
    state.held, state.moved = step.target, None


def _check_rounds(step: TileExchange) -> None:
    for each in step.rounds:
        for ends in ([tile.sender for tile in each.tiles], [tile.receiver for tile in each.tiles]):
            if len(set(ends)) < len(ends) or any(tile.shape != each.shape for tile in each.tiles):
                raise PlanError("a round of permutes sends twice from or to one device")


class _Boxes:
    """The boxes of an exchange of tiles, per device of the exchange; a dimension that takes no part counts as all of the buffer."""

    def __init__(self, plan: Plan, step: TileExchange) -> None:
        self.before = layout(plan.shape, plan.mesh, step.source)
        self.after = layout(plan.shape, plan.mesh, step.target)
        radices = [range(digit.radix) for digit in step.digits]
        self.places = [dict(zip((d.axis for d in step.digits), at, strict=True)) for at in product(*radices)]
        self.mesh = plan.mesh

    def _block(self, axes: s.Shape, number: int) -> int:
        block = 0
        for axis in axes:
            block = block * self.mesh.shape[axis] + self.places[number][axis]
        return block

    def covered(self, receiver: int, tiles: list[Tile]) -> None:
        """Checks that `tiles` come from where their elements are and fill the receiver's box, each element once."""
        volume = 1
        for a, b in zip(self.before, self.after, strict=True):
            start, stop = (0, b.local) if a == b else b.kept[self._block(b.axes, receiver)]
            volume *= stop - start
        boxes = [self._box(tile) for tile in tiles]
        if volume != sum(prod(tile.shape) for tile in tiles) or any(_meet(x, y) for x, y in combinations(boxes, 2)):
            raise PlanError(f"the tiles of device {receiver} of the exchange do not fill its shard")

    def _box(self, tile: Tile) -> list[tuple[int, int]]:
        """The elements in `tile`, which both ends must have room for."""
        box = []
        for dim, (a, b) in enumerate(zip(self.before, self.after, strict=True)):
            size, taken, put = tile.shape[dim], tile.taken[dim], tile.put[dim]
            if a == b:
                ends = [(taken, taken + size), (put, put + size), (0, a.local), (0, b.local)]
            else:
                sent, got = self._block(a.axes, tile.sender), self._block(b.axes, tile.receiver)
                here, there = taken + a.origin[sent], put + b.origin[got]
                ends = [(here, here + size), (there, there + size), a.owned[sent], b.kept[got]]
            if ends[0] != ends[1] or any(low > ends[0][0] or ends[0][1] > high for low, high in ends[2:]):
                raise PlanError(f"{tile} carries elements that its sender does not hold or its receiver does not want")
            box.append(ends[0])
        return box


def _meet(x: list[tuple[int, int]], y: list[tuple[int, int]]) -> bool:
    return all(p[0] < q[1] and q[0] < p[1] for p, q in zip(x, y, strict=True))


EXECUTE: dict[type[Step], Callable[[Any, _State], None]] = {
    s.Reshape: _reshape,
    s.Transpose: _transpose,
    s.Pad: _resize,
    s.Crop: _resize,
    s.Mask: _mask,
    s.Slice: _slice,
    s.AllGather: _all_gather,
    s.AllReduce: _reduce,
    s.ReduceScatter: _reduce_scatter,
    s.AllToAll: _all_to_all,
    s.Permute: _permute,
    s.Rounds: _rounds,
    TileExchange: _tiles,
}
"""Step class to what it does to the state."""
