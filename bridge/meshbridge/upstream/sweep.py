"""One sweep over a function, op by op, as in the RFC and in LLVM's pass: what `traversal` asks for.

Every op takes the first option that agrees with the annotations around it, and annotates its operands and results with it;
nothing is decided by cost, and a sweep visits nothing twice. A tensor that no annotation reaches stays without one.

An op keeps its own annotations (on the definition of its result, on its use of an operand). It follows its neighbours'
annotations (on the definition of an operand, on a reader's use of a result) if possible; where two of them disagree, the first
one counts and the others are resharded. An op whose own annotations contradict each other is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from meshbridge.dialect import build
from meshbridge.dialect.ops import ShardingOp, ShardOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import OpError, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, without_trailing_empty
from meshbridge.ops.option import Option, axes_by_loop, tensor_split
from meshbridge.ops.rule import Dims, Interface, ShardingRule

TRAVERSALS = {"forward": (1,), "backward": (-1,), "forward-backward": (1, -1), "backward-forward": (-1, 1)}
"""The sweeps of each traversal in order; -1 goes from the results to the arguments."""

MOST_COMBINATIONS = 4096
"""The most choices among the neighbours' annotations that are tried for one op. Not measured: a bound on time, which LLVM does
not have."""

Value = ir.Value[Any]


@dataclass
class _ShardUse:
    """A `mesh.shard`."""

    op: ir.Operation
    source: Value
    sharding: Sharding
    for_users: bool


@dataclass(frozen=True)
class _Annotation:
    """The annotation of one tensor of an op. `own`: it is the op's own, to be kept."""

    sharding: Sharding
    own: bool


class Sweeper:
    """Annotates one function of a single block, in place."""

    def __init__(self, function: ir.Operation, meshes: dict[str, Mesh], interface: Interface) -> None:
        self.meshes = meshes
        self.interface = interface
        self._shards: dict[Value, _ShardUse] = {}
        "By their results."
        self._uses: dict[Value, list[tuple[ir.Operation, int]]] = {}
        "The operands that each value is."
        self._payload: list[ir.Operation] = []
        self._read(function)

    def _read(self, function: ir.Operation) -> None:
        shardings: dict[Value, Sharding] = {}
        for view in function.regions[0].blocks[0].operations:
            op = view.operation
            if isinstance(view, ShardingOp):
                shardings[op.results[0]] = view.value
            elif isinstance(view, ShardOp):
                if view.sharding not in shardings:
                    raise OpError(op, "takes its sharding from something other than mesh.sharding")
                self._add(_ShardUse(op, view.source, shardings[view.sharding], view.annotate_for_users))
            elif not op.name.startswith("mesh."):
                for index, operand in enumerate(op.operands):
                    self._uses.setdefault(operand, []).append((op, index))
                if op.name != "func.return":
                    self._payload.append(op)

    def _add(self, shard: _ShardUse) -> None:
        self._shards[shard.op.results[0]] = shard
        self._uses.setdefault(shard.source, []).append((shard.op, 0))

    def run(self, traversal: str) -> None:
        """Sweeps once in each of the traversal's directions."""
        for direction in TRAVERSALS[traversal]:
            for op in self._payload[::direction]:
                self._visit(op)

    def _visit(self, op: ir.Operation) -> None:
        rule = self.interface.rule(op)
        if not rule.has_rule:
            return
        results = [self._of_result(result) for result in op.results]
        operands = [self._of_operand(operand) for operand in op.operands]
        chosen = self._choose(rule, [*results, *operands])
        if chosen is None:
            return
        mesh, option = chosen
        for result, dims in zip(op.results, rule.results, strict=True):
            if isinstance(result.type, ir.RankedTensorType):
                self._annotate_definition(op, result, _computed(rule, option, dims, mesh, is_result=True))
        for index, dims in enumerate(rule.operands):
            if isinstance(op.operands[index].type, ir.RankedTensorType):
                self._annotate_use(op, op.operands[index], _computed(rule, option, dims, mesh, is_result=False))

    def _of_result(self, result: Value) -> _Annotation | None:
        """The user's annotation of a result's definition, or else that of its readers, if they agree."""
        shards = [self._shards[user.results[0]] for user, _ in self._uses.get(result, ()) if user.name == ShardOp.OPERATION_NAME]
        definitions = [shard.sharding for shard in shards if not shard.for_users]
        if definitions:
            return _Annotation(definitions[0], own=True)
        wanted = [shard.sharding for shard in shards]
        return (
            _Annotation(wanted[0], own=False)
            if wanted and all(_split_equally(wanted[0], sharding) for sharding in wanted)
            else None
        )

    def _of_operand(self, operand: Value) -> _Annotation | None:
        shard = self._shards.get(operand)
        return None if shard is None else _Annotation(shard.sharding, shard.for_users)

    def _choose(self, rule: ShardingRule, known: list[_Annotation | None]) -> tuple[str, Option] | None:
        """The mesh and the option of the first combination that needs the least: no resharding, or resharding of neighbours.

        `known`: results, then operands. None if there is nothing to follow or the op's own annotations contradict each other.
        """
        maps: list[tuple[Dims, bool]] = [(dims, True) for dims in rule.results] + [(dims, False) for dims in rule.operands]
        second_best = None
        for combination in _combinations(known):
            option = self._option(rule, list(zip(maps, combination, strict=True)))
            mesh = next((annotation.sharding.mesh for annotation in combination if annotation is not None), None)
            if option is None or mesh is None:
                continue
            resized = [
                annotation
                for (dims, is_result), annotation in zip(maps, known, strict=True)
                if annotation
                and not _split_equally(annotation.sharding, _computed(rule, option, dims, mesh, is_result=is_result))
            ]
            if not resized:
                return mesh, option
            if second_best is None and not any(annotation.own for annotation in resized):
                second_best = mesh, option
        return second_best

    def _option(self, rule: ShardingRule, tensors: list[tuple[tuple[Dims, bool], _Annotation | None]]) -> Option | None:
        """The axes of each loop that the annotated tensors ask for together; None if they contradict each other."""
        loops: list[Axes] = [()] * len(rule.loops)
        meshes = set()
        for (dims, is_result), annotation in tensors:
            if annotation is None:
                continue
            meshes.add(annotation.sharding.mesh)
            wanted = self._wanted(rule, dims, annotation.sharding, is_result)
            if wanted is None:
                return None
            for loop, axes in wanted.items():
                if axes and loops[loop] not in ((), axes):
                    return None
                loops[loop] = axes or loops[loop]
        used = [axis for axes in loops for axis in axes]
        return tuple(loops) if len(set(used)) == len(used) and len(meshes) <= 1 else None

    def _wanted(self, rule: ShardingRule, dims: Dims, sharding: Sharding, is_result: bool) -> dict[int, Axes] | None:
        """What one tensor's sharding asks of the loops; None if a dimension without a loop, or an uneven one, is sharded."""
        wanted: dict[int, Axes] = {}
        mesh = self.meshes[sharding.mesh]
        for loops, axes in zip(dims, sharding.padded(len(dims)).split_axes, strict=True):
            if not axes:
                continue
            if not loops or (len(loops) > 1 and DYNAMIC in mesh.shape):
                return None
            loop_axes = axes_by_loop(loops, axes, rule, mesh)
            if tuple(axis for loop in loops for axis in loop_axes.get(loop, ())) != axes:
                return None
            wanted |= loop_axes
        if is_result and sharding.partial_axes:
            walked = {loop for loops in dims for loop in loops}
            reducing = [
                loop
                for loop, description in enumerate(rule.loops)
                if description.reduction == sharding.partial_kind and loop not in walked
            ]
            if reducing:
                wanted[reducing[0]] = sharding.partial_axes
        return wanted

    def _annotate_definition(self, op: ir.Operation, result: Value, sharding: Sharding) -> None:
        """Makes the readers of `result` read it through a `mesh.shard` of its definition. Without readers it needs none."""
        readers = self._uses.get(result, [])
        if not readers or any(self._is_definition(user) for user, _ in readers):
            return
        shard = self._insert(result, sharding, op, ir.InsertionPoint.after(op), for_users=False)
        self._redirect(result, shard, readers)

    def _is_definition(self, user: ir.Operation) -> bool:
        return user.name == ShardOp.OPERATION_NAME and not self._shards[user.results[0]].for_users

    def _annotate_use(self, op: ir.Operation, operand: Value, sharding: Sharding) -> None:
        """Makes `op` read `operand` through a `mesh.shard` of its own, or the existing one if that has the same sharding."""
        shard = self._shards.get(operand)
        if shard is not None and shard.for_users:
            return
        before = self._insert(operand, sharding, op, ir.InsertionPoint(op), for_users=True)
        self._redirect(operand, before, [(user, index) for user, index in self._uses[operand] if user == op])

    def _insert(self, value: Value, sharding: Sharding, op: ir.Operation, ip: ir.InsertionPoint, *, for_users: bool) -> _ShardUse:
        at = Builder(op.location, ip)
        annotation = build.shard(value, build.sharding(sharding, at=at), annotate_for_users=for_users, at=at)
        return _ShardUse(op_of(annotation), value, sharding, for_users)

    def _redirect(self, value: Value, shard: _ShardUse, readers: list[tuple[ir.Operation, int]]) -> None:
        """Makes `readers` of `value` read the result of `shard`, which itself becomes a reader of `value`."""
        result = shard.op.results[0]
        self._uses[value] = [reader for reader in self._uses[value] if reader not in readers]
        self._uses[result] = readers
        for user, index in readers:
            user.operands[index] = result
            if user.name == ShardOp.OPERATION_NAME:
                self._shards[user.results[0]].source = result
        self._add(shard)


def _combinations(known: list[_Annotation | None]) -> Iterator[tuple[_Annotation | None, ...]]:
    """All combinations of the op's own annotations with some of its neighbours', first those with most of them."""
    choices = [(annotation,) if annotation is None or annotation.own else (annotation, None) for annotation in known]
    return islice(product(*choices), MOST_COMBINATIONS)


def _computed(rule: ShardingRule, option: Option, dims: Dims, mesh: str, *, is_result: bool) -> Sharding:
    """The sharding of a tensor of the loops `dims` under `option`: a result is partial along the axes of the reductions."""
    split = without_trailing_empty(tensor_split(dims, option))
    partial: Axes = ()
    kind = "sum"
    for description, axes in zip(rule.loops, option, strict=True):
        if is_result and axes and description.reduction:
            partial, kind = (*partial, *axes), description.reduction
    return Sharding(mesh, split or ((),), partial, kind)


def _split_equally(left: Sharding, right: Sharding) -> bool:
    """Whether two shardings have the same splits and partial sums (halos and offsets are not propagated)."""
    kinds = (left.partial_kind, right.partial_kind) if left.partial_axes else ("", "")
    return (left.mesh, without_trailing_empty(left.split_axes), set(left.partial_axes), kinds[0]) == (
        right.mesh,
        without_trailing_empty(right.split_axes),
        set(right.partial_axes),
        kinds[1],
    )
