"""The constraints worth writing into a model's code, so that propagation alone leads from a boundary to the searched plan.

    decided plan, every value's sharding --+
    the same boundary, propagated ---------+-> values of the forward pass that differ, by source expression
        -> constrain all of these -> leave out halves, quarters, … while the step stays as short
        -> rank the others by how much longer the step is without each

To try a set, the program is partitioned with it by propagation alone, and its step predicted. Layers that come from one source
expression are constrained together, as in the program with that line.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from meshbridge.cost.step import predict
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect import build as make
from meshbridge.dialect.module_mesh import mesh_or_single, sharding_on
from meshbridge.dialect.ops import SOURCE, ShardingOp, ShardOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.locations import SourceLocation, is_rematerialized, trail_at
from meshbridge.ir.mlir import MANUAL, MeshError, ir, main_function, walk
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options, Pipeline, build, run
from meshbridge.read.formats import copy_module
from meshbridge.sharding_search.boundary import Named, ShardedBoundary, named_axes, named_text, partition_spec, split_along
from meshbridge.sharding_search.clock import Clock
from meshbridge.sharding_search.source_text import SourceExpression, constrained_text, expression_at

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

EQUAL = 1.01
"""A propagated step is as short as the plan's if it is longer by less than this factor."""

CANDIDATES = 64
"""The most expressions that are constrained before any is left out: those whose values have the most bytes."""


@dataclass(frozen=True)
class Constraint:
    """A line to write into the model."""

    location: SourceLocation
    "The expression whose value is constrained, in the user's own source."
    op: str
    "The primitive that computes the value, by JAX's name: `dot_general`."
    path: str
    "The name stack of the primitive, `jit(step)/LM/Dense_1`; of the first layer, if there are several."
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "Per dimension, the names of the axes that split it."
    text: str
    "What to write: an assignment to add after that of the line, or a replacement of the expression."
    saves: float
    "Seconds by which a step is longer with all other constraints and without this one."

    @property
    def spec(self) -> PartitionSpec:
        """The sharding as a `PartitionSpec`."""
        return partition_spec(self.sharding)


@dataclass(frozen=True)
class Constraints:
    """Constraints to write, the one that saves most first, and the predicted step of the propagated program with them."""

    propagated_seconds: float
    "Without constraints: only arguments and results are sharded."
    seconds: float
    "With all of them."
    all: tuple[Constraint, ...]


class _LegalValue(NamedTuple):
    """A value of a legal program."""

    op: int
    "The number of the op."
    result: int


@dataclass(frozen=True)
class _LayerValues:
    """The values of one expression in all layers."""

    expression: SourceExpression
    values: tuple[_LegalValue, ...]
    cotangents: tuple[_LegalValue, ...]
    "The cotangents of these values, which JAX constrains in the same way."
    named: Named
    bytes: float


def constraints_of(
    legal: ir.Module, boundary: ShardedBoundary, options: Options, seconds: float, most: int, until: float, clock: Clock
) -> Constraints:
    """At most `most` constraints for a legal program with a boundary, whose plan takes so many `seconds`. After the time `until`
    no more are left out: those whose values have the most bytes are ranked. Raises MeshError if the program cannot be partitioned
    by propagation alone."""
    search = _ConstraintSearch(copy_module(legal), boundary, options, until, clock)
    with legal.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about trial programs
        return search.result(seconds, most)


class _ConstraintSearch:
    """A search for constraints, while it runs."""

    def __init__(self, legal: ir.Module, boundary: ShardedBoundary, options: Options, until: float, clock: Clock) -> None:
        self.legal, self.options, self.until, self.clock = legal, options, until, clock
        with legal.context, ir.Location.unknown():
            boundary.annotate(legal)
        self._tried: dict[frozenset[_LayerValues], float] = {}
        self._slowest = 0.0

    @property
    def _trials_left(self) -> int:
        """How many sets can be tried before the time is over."""
        return max(0, int((self.until - self.clock()) / self._slowest))

    def result(self, seconds: float, most: int) -> Constraints:
        bare = self._seconds(())
        needed: list[_LayerValues] = []
        if bare > EQUAL * seconds:
            candidates = self._groups()
            if self._seconds(candidates) < bare:
                needed = self._fewest(candidates, EQUAL * max(seconds, self._seconds(candidates)), most)
        if self._trials_left < len(needed):
            needed = needed[: max(1, min(most, self._trials_left))]
        named = sorted(needed, key=lambda group: -self._saves(group, needed))[:most]
        if self._seconds(named) >= bare:
            named = []
        saved = sorted(((self._saves(group, named), group) for group in named), key=itemgetter(0), reverse=True)
        return Constraints(bare, self._seconds(named), tuple(self._constraint(group, saves) for saves, group in saved))

    def _fewest(self, groups: Sequence[_LayerValues], seconds: float, most: int) -> list[_LayerValues]:
        """Groups none of which can be left out, while a step takes at most `seconds`, and time is left to rank `most` of them.
        Tries the smallest groups first."""
        needed = list(groups)
        size = max(1, len(needed) // 2)
        while True:
            end = len(needed)
            while end > 0:
                fewer = needed[: max(0, end - size)] + needed[end:]
                if self._trials_left <= min(most, len(needed)) + 1:
                    return needed
                if self._seconds(fewer) <= seconds:
                    needed = fewer
                end -= size
            if size == 1:
                return needed
            size //= 2

    def _saves(self, group: _LayerValues, among: Iterable[_LayerValues]) -> float:
        without_group = [other_group for other_group in among if other_group != group]
        return self._seconds(without_group) - self._seconds([*without_group, group])

    def _seconds(self, groups: Iterable[_LayerValues]) -> float:
        """The predicted step of the program with these constraints, propagated. If it cannot be partitioned with them, the step
        without any."""
        key = frozenset(groups)
        if key not in self._tried:
            began = self.clock()
            self._tried[key] = self._predicted(key)
            self._slowest = max(self._slowest, self.clock() - began)
        return self._tried[key]

    def _predicted(self, groups: Collection[_LayerValues]) -> float:
        devices = self.options.target.devices
        assert devices is not None
        module = copy_module(self.legal)
        _constrain(module, groups)
        try:
            run(self._propagating.starting_at("legal").passes, module, verified="none")
            step = predict(module, devices)
        except MeshError:
            if not groups:
                raise
            return self._seconds(())
        return step.seconds

    @cached_property
    def _propagating(self) -> Pipeline:
        plain = ShardingRefinement(moves=0, target=self.options.target, annotate=False)
        return build(self.options).replacing("decided", plain)

    def _groups(self) -> list[_LayerValues]:
        """The values that the plan and propagation shard differently, by expression, those of the most bytes first."""
        decided, propagated = copy_module(self.legal), copy_module(self.legal)
        partition_module(decided, _annotating(self.options))
        plain = ShardingRefinement(moves=0, target=self.options.target)
        run((plain,), propagated, verified="none")
        decided_splits, propagated_splits = _splits(decided), _splits(propagated)
        ops = _ops(main_function(self.legal))
        forward, backward = _by_expression(ops)
        groups = []
        for expression, values in forward.items():
            types = {ops[number].results[result].type for number, result in values}
            (named, _), *_ = Counter(decided_splits[number][result] for number, result in values).most_common(1)
            differs = any(propagated_splits[number][result] != named for number, result in values)
            if named is None or not differs or len(types) > 1:
                continue
            (type_,) = types
            cotangents = [value for value in backward.get(expression, ()) if ops[value.op].results[value.result].type == type_]
            size = len(values) * type_bytes(type_)
            groups.append(_LayerValues(expression, tuple(values), tuple(dict.fromkeys(cotangents)), named, size))
        return sorted(groups, key=lambda group: -group.bytes)[:CANDIDATES]

    def _constraint(self, group: _LayerValues, saves: float) -> Constraint:
        value = group.values[0]
        op = _ops(main_function(self.legal))[value.op]
        type_ = ir.RankedTensorType(op.results[value.result].type)
        trail = trail_at(op.location)
        path, _, name = (trail.stacks[-1] if trail.stacks else "").rpartition("/")
        path = "/".join((*trail.stacks[:-1], path)).strip("/")
        text = constrained_text(group.expression, named_text(group.named), name or op.name)
        shape = tuple(type_.shape)
        return Constraint(trail.user_line, name or op.name, path, shape, str(type_.element_type), group.named, text, saves)


def _annotating(options: Options) -> Options:
    return Options(emit="annotated", target=options.limited(None).target)


def _ops(main: ir.Operation) -> list[ir.Operation]:
    """The ops of a program without annotations: the same ops in a legal program and in a decided one."""
    annotations = (ShardOp.OPERATION_NAME, ShardingOp.OPERATION_NAME)
    return [op for op in walk(main) if op.name not in annotations]


def _splits(decided: ir.Module) -> list[list[Named | None]]:
    """Per op and result, the split of the value at its definition; None if the annotation is not plain."""
    mesh = mesh_or_single(decided)
    return [[_split(result, mesh) for result in op.results] for op in _ops(main_function(decided))]


def _split(value: ir.Value, mesh: Mesh) -> Named | None:
    for use in value.uses:
        op = use.owner
        if op.operation.name == ShardOp.OPERATION_NAME and "annotate_for_users" not in op.operation.attributes:
            sharding = sharding_on(mesh, op.operation.operands[1].owner)
            if not sharding.is_plain:
                return None
            return named_axes(mesh, sharding.padded(ir.RankedTensorType(value.type).rank).split_axes)
    return None


def _by_expression(
    ops: Sequence[ir.Operation],
) -> tuple[Mapping[SourceExpression, list[_LegalValue]], Mapping[SourceExpression, list[_LegalValue]]]:
    """By source expression, the forward values that it passes on to other expressions, and the backward values that its
    derivative takes from others."""
    manual = {inner for op in ops if op.name == MANUAL for inner in walk(op)}
    expression_of = {op: location for op in ops if op not in manual and (location := _expression(op)) is not None}
    forward: dict[SourceExpression, list[_LegalValue]] = {}
    backward: dict[SourceExpression, list[_LegalValue]] = {}
    for number, op in enumerate(ops):
        if op not in expression_of or op.name == "stablehlo.constant":
            continue
        side, is_forward = (forward, True) if _is_forward(op) else (backward, False)
        for result, value in enumerate(op.results):
            if not _is_large(value.type):
                continue
            users = {expression_of.get(user) for user in _users(value) if _is_forward(user) is is_forward} - {expression_of[op]}
            for key in [expression_of[op]] if is_forward and users else users if not is_forward else ():
                if key is not None:
                    side.setdefault(key, []).append(_LegalValue(number, result))
    return forward, backward


def _users(value: ir.Value) -> Iterator[ir.Operation]:
    """The readers of a value, through its annotations."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == ShardOp.OPERATION_NAME:
            yield from _users(op.results[0])
        else:
            yield op


def _expression(op: ir.Operation) -> SourceExpression | None:
    line = trail_at(op.location).user_line
    return expression_at(op.location, line) if line.file and not line.is_library else None


def _is_forward(op: ir.Operation) -> bool:
    """Whether the op belongs to the user's code, not to its derivative."""
    return is_rematerialized(op) or not any("transpose(" in stack for stack in trail_at(op.location).stacks)


def _is_large(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and DYNAMIC not in type_.shape and prod(type_.shape) > 1


def _constrain(module: ir.Module, groups: Iterable[_LayerValues]) -> None:
    """Writes constraints into a legal program, as `jax.lax.with_sharding_constraint` would: all dimensions are closed."""
    ops, mesh = _ops(main_function(module)), mesh_or_single(module)
    for group in sorted(groups, key=lambda group: group.expression):
        split = split_along(mesh, group.named)
        for number, result in (*group.values, *group.cotangents):
            op = ops[number]
            at = Builder(op.location, ir.InsertionPoint.after(op))
            value = make.sharding(Sharding(mesh.name, split), at=at)
            make.shard_definition(op.results[result], value, extras={SOURCE: ir.StringAttr.get("sdy.sharding_constraint")}, at=at)
