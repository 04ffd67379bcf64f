"""Executes plans symbolically: every plan is checked before it is lowered.

Steps on digits are executed on factors, whatever the number of devices; an exchange of tiles is checked on the boxes of its
devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshbridge.ir.digits import Digit, Digits, axis_digits, group_size
from meshbridge.ir.sharding import Sharding
from meshbridge.resharding import steps as s
from meshbridge.resharding.boxes import buffer_shape, layout, same_boxes
from meshbridge.resharding.check_tiles import check_tiles
from meshbridge.resharding.factors import Factor, Factors, PlanError, merged_digits, merged_factors, overlap, without_digits
from meshbridge.resharding.plan import ReshardingPlan
from meshbridge.resharding.steps import Step
from meshbridge.resharding.tiles import TileExchange

__all__ = ["PlanError", "check"]


def check(plan: ReshardingPlan) -> None:
    """Raises PlanError if the steps of `plan` do not produce every device's target shard from the source shards."""
    if 0 in plan.shape:
        return  # no element can have the wrong position
    state = _State(plan, plan.source, None, list(axis_digits(plan.mesh, plan.source.partial_axes)))
    try:
        for step in plan.steps:
            EXECUTE[type(step)](step, state)
            if state.shape != step.shape:
                raise PlanError(f"{step.text(plan.mesh)} leaves {list(state.shape)}")
        state.expect(plan.target)
        wanted = merged_digits(axis_digits(plan.mesh, plan.target.partial_axes))
        if merged_digits(state.partial) != wanted:
            raise PlanError(f"the result is partial over {merged_digits(state.partial)}, not {wanted}")
    except PlanError as error:
        raise PlanError(f"{error}\nin the plan {plan}") from None


@dataclass
class _State:
    """Where the elements are: in the shards of a `sharding`, or at positions that only factors describe."""

    plan: ReshardingPlan
    sharding: Sharding | None
    positions: Factors | None
    partial: list[Digit]

    @property
    def factors(self) -> Factors:
        """The factors, for a step to change."""
        if self.positions is None:
            sharding = self.sharding
            if sharding is None or sharding.halo_sizes or sharding.offsets:
                raise PlanError("a step on digits meets halos or offsets")
            self.positions, self.sharding = Factors.of(self.plan.shape, self.plan.mesh, sharding), None
        return self.positions

    @property
    def shape(self) -> s.Shape:
        """The shape of the local buffer."""
        plan = self.plan
        return self.positions.shape if self.positions else buffer_shape(plan.shape, plan.mesh, self.sharding or plan.source)

    def expect(self, sharding: Sharding) -> None:
        """Checks that the elements are sharded as `sharding`."""
        shape, mesh = self.plan.shape, self.plan.mesh
        if self.positions is None and self.sharding is not None:
            if not same_boxes(shape, mesh, self.sharding, sharding):
                raise PlanError(f"the elements are sharded as {self.sharding}, not {sharding}")
        elif sharding.halo_sizes or sharding.offsets or self.factors.canonical() != Factors.of(shape, mesh, sharding).canonical():
            raise PlanError(f"the elements are not sharded as {sharding}: {self.factors.canonical()}")
        self.sharding, self.positions = sharding, None

    def idle(self, digits: Digits) -> None:
        """Checks that the value is partial over none of `digits`: partial values of different sums must not be exchanged."""
        if any(overlap(digit, partial_digit) for digit in digits for partial_digit in self.partial):
            raise PlanError(f"a step sends values along {digits}, over some of which they are partial")


def _reshape(step: s.Reshape, state: _State) -> None:
    state.factors.reshape(step.shape)


def _transpose(step: s.Transpose, state: _State) -> None:
    factors = state.factors
    factors.dims = [factors.dims[dim] for dim in step.permutation]


def _resize(step: s.Pad | s.Crop, state: _State) -> None:
    """Grows or shrinks dimensions at their end, or crops the halo of a shard."""
    if isinstance(step, s.Crop) and state.sharding is not None and state.sharding.halo_sizes:
        plain = replace(state.sharding, halo_sizes=())
        dims = layout(state.plan.shape, state.plan.mesh, state.sharding)
        core = layout(state.plan.shape, state.plan.mesh, plain)
        if step.start != tuple(b.origin[0] - a.origin[0] for a, b in zip(dims, core, strict=True)):
            raise PlanError("a crop does not remove the halo")
        state.sharding = plain
        return
    factors = state.factors
    spread = {factor.dim for factor, _ in factors.spread}
    for dim, (before, after) in enumerate(zip(factors.shape, step.shape, strict=True)):
        if before != after:
            if factors.canonical()[0][dim] != ((Factor(dim, 1, before),) if before > 1 else ()) or dim in spread:
                raise PlanError(f"dimension {dim} is resized while it is sharded")
            if isinstance(step, s.Crop) and after < state.plan.shape[dim]:
                raise PlanError(f"a crop of dimension {dim} loses elements")
            factors.dims[dim] = [Factor(dim, 1, after)]
    if any(getattr(step, "low" if isinstance(step, s.Pad) else "start")):
        raise PlanError("padding at the beginning of a dimension")


def _mask(step: s.Mask | s.Place, state: _State) -> None:
    state.partial = without_digits([*state.partial, *step.digits], ())


def _place(step: s.Place, state: _State) -> None:
    _mask(step, state)
    factors = state.factors
    factors.dims[step.dim] = factors.release(step.digits) + factors.dims[step.dim]


def _slice(step: s.Slice, state: _State) -> None:
    state.idle(step.digits)
    state.factors.spread += state.factors.scatter(step.dim, step.digits)


def _all_gather(step: s.AllGather, state: _State) -> None:
    factors = state.factors
    factors.dims[step.dim] = factors.release(step.digits) + factors.dims[step.dim]


def _reduce(step: s.AllReduce, state: _State) -> None:
    if step.kind != state.plan.source.partial_kind:
        raise PlanError(f"a step reduces by {step.kind}")
    state.partial = without_digits(state.partial, step.digits)


def _reduce_scatter(step: s.ReduceScatter, state: _State) -> None:
    state.partial = without_digits(state.partial, step.digits)
    state.factors.spread += state.factors.scatter(step.dim, step.digits)


def _all_to_all(step: s.AllToAll, state: _State) -> None:
    factors = state.factors
    gathered = factors.release(step.digits)
    entered = factors.scatter(step.split, step.digits)
    factors.dims[step.concat] = gathered + factors.dims[step.concat]
    factors.spread += entered


def _relabel(step: s.Permute | s.Relay, state: _State) -> None:
    state.idle(step.sources)
    state.factors.relabel(step.sources, step.targets)


def _rounds(step: s.Rounds, state: _State) -> None:
    state.idle(step.sources)
    factors = state.factors
    gathered = [factors.release((step.sources[i],)) for i in step.rotating]
    entered = [factors.scatter(dim, (step.targets[i],)) for i, dim in zip(step.rotating, step.split, strict=True)]
    fixed = [i for i in range(len(step.sources)) if i not in step.rotating]
    factors.relabel(tuple(step.sources[i] for i in fixed), tuple(step.targets[i] for i in fixed))
    factors.spread += [entry for entries in entered for entry in entries]
    factors.reshape(step.piece(step.shape, step.concat))
    for dim, gathered_factors in zip(step.concat, gathered, strict=True):
        factors.dims[dim] = gathered_factors + factors.dims[dim]


def _reblock(step: s.Reblock, state: _State) -> None:
    """The blocks must be those of one dimension, in the order of the digits, and hold the tensor before and after."""
    factors, count, dim = state.factors, group_size(step.digits), step.dim
    if factors.shape[dim] != step.before or min(step.before, step.shape[dim]) * count < state.plan.shape[dim]:
        raise PlanError(f"{step.text(state.plan.mesh)} does not hold all of the dimension")
    if sum(step.pieces) < (count - 1) * min(abs(step.shift), step.before):
        raise PlanError(f"{step.text(state.plan.mesh)} leaves the last device without rows")
    blocks = [*factors.release(step.digits), *factors.dims[dim]]
    if merged_factors(blocks) != merged_factors([Factor(dim, 1, count * step.before)]):
        raise PlanError(f"{step.text(state.plan.mesh)} meets other blocks")
    factors.dims[dim] = [Factor(dim, 1, count * step.shape[dim])]
    factors.spread += factors.scatter(dim, step.digits)


def _tiles(step: TileExchange, state: _State) -> None:
    state.expect(step.source)
    state.idle(step.digits)
    check_tiles(state.plan, step)
    state.sharding, state.positions = step.target, None


EXECUTE: dict[type[Step], Callable[[Any, _State], None]] = {
    s.Reshape: _reshape,
    s.Transpose: _transpose,
    s.Pad: _resize,
    s.Crop: _resize,
    s.Mask: _mask,
    s.Place: _place,
    s.Slice: _slice,
    s.AllGather: _all_gather,
    s.AllReduce: _reduce,
    s.ReduceScatter: _reduce_scatter,
    s.AllToAll: _all_to_all,
    s.Permute: _relabel,
    s.Relay: _relabel,
    s.Rounds: _rounds,
    s.Reblock: _reblock,
    TileExchange: _tiles,
}
"""What each class of step does to the state."""
