"""The constraints worth writing into a model's code, so that propagation alone leads from a boundary to the plan that was found.

    decided plan, every value's sharding --+
    the same boundary, propagated ---------+-> values of the forward pass that differ, by the expression that makes them
        -> all of these constrained -> halves, quarters, … are left out as long as the step stays as short
        -> what is left, ranked by how much longer the step is without each

Each set is tried: the program is partitioned with it, by propagation alone, and its step predicted. Layers that come from one
expression of the source are constrained together, as the program will be that is written so.
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
from meshbridge.ir.locations import SourceLocation, is_repeated, trail_at
from meshbridge.ir.mlir import MANUAL, MeshError, ir, main_function, walk
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options, Pipeline, build, run
from meshbridge.read.formats import copy_module
from meshbridge.search.boundary import Named, ShardedBoundary, named_axes, partition_spec, pasted, split_along
from meshbridge.search.clock import Clock
from meshbridge.search.source_text import SourceExpression, constrained_text, place_of

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

EQUAL = 1.01
"""A propagated step that is longer by less than this factor is as short as the one that was found."""

CANDIDATES = 64
"""Expressions that are constrained at most before any is left out: those that make most bytes."""


@dataclass(frozen=True)
class Constraint:
    """A line to write into the model."""

    location: SourceLocation
    "Of the expression whose value it is about, in the user's own source."
    op: str
    "What makes the value, as JAX calls it: `dot_general`."
    path: str
    "The name stack in which that is, `jit(step)/LM/Dense_1`; of several layers, the first's."
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the names of the axes that split it."
    text: str
    "What to write: an assignment behind that of the line, or what to put in the expression's stead."
    saves: float
    "Seconds by which a step is longer with all the other constraints and without this one."

    @property
    def spec(self) -> PartitionSpec:
        """The sharding as JAX says it."""
        return partition_spec(self.sharding)


@dataclass(frozen=True)
class Constraints:
    """Constraints to write, the one that saves most first, and the predicted step of a program that is propagated with them."""

    propagated_seconds: float
    "Without any: arguments and results alone are sharded."
    seconds: float
    "With all of them."
    all: tuple[Constraint, ...]


class _LegalValue(NamedTuple):
    """A value of a legal program."""

    op: int
    "By its number."
    result: int


@dataclass(frozen=True)
class _LayerValues:
    """What one expression makes, of all layers."""

    place: SourceExpression
    values: tuple[_LegalValue, ...]
    cotangents: tuple[_LegalValue, ...]
    "Of these values, which JAX constrains in the same way."
    named: Named
    bytes: float


def constraints_of(
    legal: ir.Module, boundary: ShardedBoundary, options: Options, seconds: float, most: int, until: float, clock: Clock
) -> Constraints:
    """At most `most` constraints for a legal program with a boundary, of which a plan takes so many `seconds`. After `until`, on
    the clock, no more are left out: of what there is by then, those are ranked that make most bytes. Raises MeshError where the
    program cannot be partitioned by propagation alone."""
    seeking = _Constraining(copy_module(legal), boundary, options, until, clock)
    with legal.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs that nobody has written
        return seeking.found(seconds, most)


class _Constraining:
    """A search for constraints, under way."""

    def __init__(self, legal: ir.Module, boundary: ShardedBoundary, options: Options, until: float, clock: Clock) -> None:
        self.legal, self.options, self.until, self.clock = legal, options, until, clock
        with legal.context, ir.Location.unknown():
            boundary.annotate(legal)
        self._tried: dict[frozenset[_LayerValues], float] = {}
        self._slowest = 0.0

    @property
    def _left(self) -> int:
        """How many sets can be tried until the time is over."""
        return max(0, int((self.until - self.clock()) / self._slowest))

    def found(self, seconds: float, most: int) -> Constraints:
        bare = self._seconds(())
        needed: list[_LayerValues] = []
        if bare > EQUAL * seconds:
            every = self._groups()
            if self._seconds(every) < bare:
                needed = self._fewest(every, EQUAL * max(seconds, self._seconds(every)), most)
        if self._left < len(needed):
            needed = needed[: max(1, min(most, self._left))]
        named = sorted(needed, key=lambda group: -self._saves(group, needed))[:most]
        if self._seconds(named) >= bare:
            named = []
        saved = sorted(((self._saves(group, named), group) for group in named), key=itemgetter(0), reverse=True)
        return Constraints(bare, self._seconds(named), tuple(self._constraint(group, saves) for saves, group in saved))

    def _fewest(self, groups: Sequence[_LayerValues], seconds: float, most: int) -> list[_LayerValues]:
        """Groups of which none can be left out, the smallest ones tried first, while a step takes no more than `seconds`, and
        time is left to rank `most` of them."""
        kept = list(groups)
        size = max(1, len(kept) // 2)
        while True:
            end = len(kept)
            while end > 0:
                fewer = kept[: max(0, end - size)] + kept[end:]
                if self._left <= min(most, len(kept)) + 1:
                    return kept
                if self._seconds(fewer) <= seconds:
                    kept = fewer
                end -= size
            if size == 1:
                return kept
            size //= 2

    def _saves(self, group: _LayerValues, among: Iterable[_LayerValues]) -> float:
        others = [each for each in among if each != group]
        return self._seconds(others) - self._seconds([*others, group])

    def _seconds(self, groups: Iterable[_LayerValues]) -> float:
        """The predicted step of the program with these constraints, propagated; where it cannot be partitioned so, the step
        without any, than which it is to be better."""
        key = frozenset(groups)
        if key not in self._tried:
            began = self.clock()
            self._tried[key] = self._predicted(key)
            self._slowest = max(self._slowest, self.clock() - began)
        return self._tried[key]

    def _predicted(self, groups: Collection[_LayerValues]) -> float:
        target = self.options.target
        assert target is not None
        module = copy_module(self.legal)
        _constrain(module, groups)
        try:
            run(self._propagating.starting_at("legal").passes, module, verified="none")
            step = predict(module, target)
        except MeshError:
            if not groups:
                raise
            return self._seconds(())
        return step.seconds

    @cached_property
    def _propagating(self) -> Pipeline:
        plain = ShardingRefinement(moves=0, machine=self.options.machine, layout=self.options.layout, annotate=False)
        return build(self.options).replacing("decided", plain)

    def _groups(self) -> list[_LayerValues]:
        """What differs between the plan and propagation, by expression, the one that makes most bytes first."""
        decided, propagated = copy_module(self.legal), copy_module(self.legal)
        partition_module(decided, _annotating(self.options))
        plain = ShardingRefinement(moves=0, machine=self.options.machine, layout=self.options.layout)
        run((plain,), propagated, verified="none")
        wanted, had = _splits(decided), _splits(propagated)
        ops = _ops(main_function(self.legal))
        made, taken = _by_expression(ops)
        groups = []
        for place, values in made.items():
            types = {ops[number].results[result].type for number, result in values}
            (named, _), *_ = Counter(wanted[number][result] for number, result in values).most_common(1)
            differs = any(had[number][result] != named for number, result in values)
            if named is None or not differs or len(types) > 1:
                continue
            (type_,) = types
            cotangents = [each for each in taken.get(place, ()) if ops[each.op].results[each.result].type == type_]
            size = len(values) * type_bytes(type_)
            groups.append(_LayerValues(place, tuple(values), tuple(dict.fromkeys(cotangents)), named, size))
        return sorted(groups, key=lambda group: -group.bytes)[:CANDIDATES]

    def _constraint(self, group: _LayerValues, saves: float) -> Constraint:
        first = group.values[0]
        op = _ops(main_function(self.legal))[first.op]
        type_ = ir.RankedTensorType(op.results[first.result].type)
        trail = trail_at(op.location)
        path, _, name = (trail.stacks[-1] if trail.stacks else "").rpartition("/")
        path = "/".join((*trail.stacks[:-1], path)).strip("/")
        text = constrained_text(group.place, pasted(group.named), name or op.name)
        shape = tuple(type_.shape)
        return Constraint(trail.user_line, name or op.name, path, shape, str(type_.element_type), group.named, text, saves)


def _annotating(options: Options) -> Options:
    return Options(emit="annotated", machine=options.machine, layout=options.layout)


def _ops(main: ir.Operation) -> list[ir.Operation]:
    """Those of a program, without its annotations: the same of a program that is legal and of one that is decided."""
    annotations = (ShardOp.OPERATION_NAME, ShardingOp.OPERATION_NAME)
    return [op for op in walk(main) if op.name not in annotations]


def _splits(decided: ir.Module) -> list[list[Named | None]]:
    """By op and result, how the value is split where it is made; None where an annotation says more than that."""
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
    """By expression of the user, the values of the forward pass that it hands on to others, and the values of the backward pass
    that its derivative takes from others."""
    manual = {inner for op in ops if op.name == MANUAL for inner in walk(op)}
    place = {op: found for op in ops if op not in manual and (found := _place(op)) is not None}
    made: dict[SourceExpression, list[_LegalValue]] = {}
    taken: dict[SourceExpression, list[_LegalValue]] = {}
    for number, op in enumerate(ops):
        if op not in place or op.name == "stablehlo.constant":
            continue
        side, is_forward = (made, True) if _is_forward(op) else (taken, False)
        for result, value in enumerate(op.results):
            if not _is_large(value.type):
                continue
            users = {place.get(user) for user in _users(value) if _is_forward(user) is is_forward} - {place[op]}
            for key in [place[op]] if is_forward and users else users if not is_forward else ():
                if key is not None:
                    side.setdefault(key, []).append(_LegalValue(number, result))
    return made, taken


def _users(value: ir.Value) -> Iterator[ir.Operation]:
    """What reads a value, through its annotations."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == ShardOp.OPERATION_NAME:
            yield from _users(op.results[0])
        else:
            yield op


def _place(op: ir.Operation) -> SourceExpression | None:
    line = trail_at(op.location).user_line
    return place_of(op.location, line) if line.file and not line.is_library else None


def _is_forward(op: ir.Operation) -> bool:
    """Whether the user's code makes it run, not its derivative."""
    return is_repeated(op) or not any("transpose(" in stack for stack in trail_at(op.location).stacks)


def _is_large(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and DYNAMIC not in type_.shape and prod(type_.shape) > 1


def _constrain(module: ir.Module, groups: Iterable[_LayerValues]) -> None:
    """Writes constraints into a legal program, as `jax.lax.with_sharding_constraint` would: all dimensions are closed."""
    ops, mesh = _ops(main_function(module)), mesh_or_single(module)
    for group in sorted(groups, key=lambda group: group.place):
        split = split_along(mesh, group.named)
        for number, result in (*group.values, *group.cotangents):
            op = ops[number]
            at = Builder(op.location, ir.InsertionPoint.after(op))
            value = make.sharding(Sharding(mesh.name, split), at=at)
            make.shard_definition(op.results[result], value, extras={SOURCE: ir.StringAttr.get("sdy.sharding_constraint")}, at=at)
