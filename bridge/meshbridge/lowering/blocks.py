"""Drives the lowering: one walk that replaces each operation in place, and repeats the recipe of the first for those alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from meshbridge.backends import xla_cpu
from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import mesh_ops, refuse_too_many
from meshbridge.dialect.ops import BOUNDARY_MESH, OPERATION_NAMES, OPTION, RESULT_SPLIT, MeshOpView, ShardShapeOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.exchange import is_assembled
from meshbridge.ir.groups import Groups, device_line, is_nameable
from meshbridge.ir.mlir import (
    CUSTOM_CALL,
    MANUAL,
    OpError,
    ancestors,
    call_target,
    find,
    function_type,
    ir,
    mentions,
    op_key,
    walk_all,
)
from meshbridge.ir.positions import Positions
from meshbridge.ir.recipes import FreeValues, Recipes, SharingBuilder
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.lowering import exchanges, neighbours, reductions, rooted  # noqa: F401  they fill LOWERINGS
from meshbridge.lowering.indices import definition_of_sharding, sharding_of
from meshbridge.lowering.messages import MESSAGES, SendRecv, lower_pair, pairs
from meshbridge.lowering.replicas import BY_PARTITION, by_replica
from meshbridge.lowering.scalars import (
    FORMS,
    check_users,
    is_scalar,
    lower_scalar,
    needs_form,
    retype_arguments,
    retype_signature,
)
from meshbridge.lowering.site import LOWERINGS, Lowering, Site
from meshbridge.ops.traits import Trait, ops_with

_REPLACED = OPERATION_NAMES - ops_with(Trait.ANNOTATION)
_VISITED = _REPLACED | FORMS.keys() | BY_PARTITION | {CUSTOM_CALL}

_CUSTOM_PARTITIONING = "CustomSPMDPartitioning"
"""The target of JAX's `custom_partitioning`. XLA asks a Python function to partition it by shardings, which are gone by now."""


def lower_module(module: ir.Module, groups: Groups, is_kept: Callable[[ir.Operation], bool] = lambda op: False) -> None:
    """Replaces all mesh operations of `module` that run on devices, except those that `is_kept` accepts.

    Groups are dense if the module has several meshes of different axes: XLA (as of jaxlib 0.10) knows one mesh.

    Raises OpError for an operation that cannot be lowered.
    """
    meshes = {op.sym_name: op.value for op in mesh_ops(module.body)}
    for op in mesh_ops(module.body):
        refuse_too_many(op.operation, op.value)
    several = [mesh for mesh in meshes.values() if mesh.size > 1]
    if len(set(map(device_line, several))) > 1 or not all(map(is_nameable, several)):
        groups = replace(groups, spelling="dense")
    with module.context:
        _forget_decisions(module)
        functions = [view.operation for view in module.body.operations if _takes_scalars(view.operation)]
        for function in functions:
            retype_arguments(function)
        _Lowering(meshes, groups).run([op for op in find(module.operation, _VISITED) if not is_kept(op)])
        for function in functions:
            retype_signature(function)


def _forget_decisions(module: ir.Module) -> None:
    """Removes the attributes of the mesh dialect from ops and functions: XLA cannot parse them."""
    for op in walk_all(module) if mentions(module, OPTION, RESULT_SPLIT) else ():
        for name in (OPTION, RESULT_SPLIT):
            if name in op.attributes:
                del op.attributes[name]
    for view in module.body.operations:
        if BOUNDARY_MESH in view.operation.attributes:
            del view.operation.attributes[BOUNDARY_MESH]


@dataclass(frozen=True)
class _OpKind:
    """The lowering that mesh operations of the same name, attributes and types share."""

    lowering: Lowering[MeshOpView]
    mesh: Mesh
    axes: Axes
    is_narrow: bool
    "True if it has elements of two bits."
    gives_scalars: bool
    is_unary: bool
    "True if it has one operand and one result."


class _Lowering:
    """Lowers operations in program order, outer ones first, so that operands are lowered before their users."""

    def __init__(self, meshes: dict[str, Mesh], groups: Groups) -> None:
        self.meshes = meshes
        self.groups = groups
        self.constants: dict[ir.Value, int] = {}
        self._kinds: dict[object, _OpKind] = {}
        self._free = FreeValues()
        self._recipes = Recipes(self._free)
        self._open: list[ir.Block] = []
        "The blocks whose values the current operation can use, from the outside in."

    def run(self, ops: list[ir.Operation]) -> None:
        names = [op.name for op in ops]
        messages = _pairs(ops, names)
        for number, (op, name) in enumerate(zip(ops, names, strict=True)):
            if name in MESSAGES:
                if number in messages:  # else the pair is lowered at its counterpart
                    view = _view(op)
                    lower_pair(messages[number], self._site(view, self._mesh(view), self._builder(op)))
            elif name in _REPLACED:
                self._replace(op)
            elif name == CUSTOM_CALL:
                _refuse_python(op)
            elif not (name in FORMS and lower_scalar(op, self.constants)) and name in BY_PARTITION:
                self._respell(op)

    def _respell(self, op: ir.Operation) -> None:
        """Respells the groups of a StableHLO collective, which is in the exported form."""
        if self.meshes and "replica_groups" in op.attributes:
            mesh = max(self.meshes.values(), key=lambda mesh: mesh.size)
            op.attributes["replica_groups"] = self.groups.respelled(mesh, op.attributes["replica_groups"])
        if self.groups.form == "local":
            by_replica(op)

    def _replace(self, op: ir.Operation) -> None:
        view = _view(op)
        key: object = op_key(op)
        if isinstance(view, ShardShapeOp):  # its sharding is an operand, which `op_key` does not contain
            key = key, sharding_of(view)
        if (kind := self._kinds.get(key)) is None:
            kind = self._kinds[key] = self._kind(op)
        if kind.is_narrow:
            xla_cpu.send_two_bits_as_bytes(op)
        if kind.gives_scalars:
            check_users(op.results)
        results, builder = op.results, self._builder(op)
        if kind.is_unary and not exchanges.clamps_start(operand := op.operands[0]):
            recipe_key = (id(kind), is_assembled(operand))  # `id` is faster than `key`, which would hash every attribute again
            values: Sequence[ir.Value] = [self._recipes.value(recipe_key, [operand], builder, partial(self._lower, kind, view))]
        else:
            values = kind.lowering(view, self._site(view, kind.mesh, builder))
        for result, value in zip(results, values, strict=True):
            result.replace_all_uses_with(value)
        sharding_op = definition_of_sharding(view).operation if isinstance(view, ShardShapeOp) else None
        op.erase()
        if sharding_op and not any(True for _ in sharding_op.results[0].uses):
            sharding_op.erase()

    def _lower(self, kind: _OpKind, view: MeshOpView, builder: Builder) -> ir.Value:
        (value,) = kind.lowering(view, self._site(view, kind.mesh, builder))
        return value

    def _kind(self, op: ir.Operation) -> _OpKind:
        if (lowering := LOWERINGS.get(op.name)) is None:
            raise OpError(op, "has no lowering to StableHLO")
        view = _view(op)
        mesh, narrow = self._mesh(view), any(map(xla_cpu.has_two_bits, (*op.operands, *op.results)))
        scalars = any(is_scalar(result.type) for result in op.results)
        unary = len(op.operands) == len(op.results) == 1 and not isinstance(view, ShardShapeOp)
        return _OpKind(lowering, mesh, _group_axes(view, mesh), narrow, scalars, unary)

    def _mesh(self, view: MeshOpView) -> Mesh:
        op = view.operation
        name = sharding_of(view).mesh if isinstance(view, ShardShapeOp) else view.mesh
        mesh = self.meshes.get(name)
        if mesh is None:
            raise OpError(op, f"names the mesh @{name}, which the module does not declare")
        _check_static(op, mesh)
        return mesh

    def _site(self, view: MeshOpView, mesh: Mesh, builder: Builder) -> Site:
        axes = _group_axes(view, mesh)
        return Site(view.operation, mesh, axes, builder, self.groups, Positions(self.groups.form), self.constants)

    def _builder(self, op: ir.Operation) -> Builder:
        """Builds before `op`, and shares values that are the same for all operations of its block."""
        self._enter(op)
        return SharingBuilder(op.location, ir.InsertionPoint(op), self._free)

    def _enter(self, op: ir.Operation) -> None:
        block = op.block
        if self._open and self._open[-1] == block:
            return
        visible = []
        for enclosing in ancestors(op):
            if enclosing.name in _ISOLATED:
                break
            visible.append(enclosing.block)
        while self._open and self._open[-1] not in visible:
            self._open.pop()
            self._free.leave_block()
        if not self._open or self._open[-1] != block:
            self._open.append(block)
            self._free.enter_block()


def _refuse_python(op: ir.Operation) -> None:
    if call_target(op) == _CUSTOM_PARTITIONING:
        hint = "partition the jitted function itself, or move the call into jax.shard_map"
        raise OpError(op, "is partitioned by a Python function of the process that traced it, which XLA cannot ask here", hint)


_ISOLATED = frozenset(("func.func", MANUAL))
"""Ops whose regions cannot use values from outside."""


def _view(op: ir.Operation) -> MeshOpView:
    return cast("MeshOpView", op.opview)


def _pairs(ops: list[ir.Operation], names: list[str]) -> dict[int, SendRecv]:
    """The messages of all blocks, by the number of the operation at which each is lowered."""
    blocks: dict[ir.Block, list[int]] = {}
    for number, name in enumerate(names):
        if name in MESSAGES:
            xla_cpu.send_two_bits_as_bytes(ops[number])
            blocks.setdefault(ops[number].block, []).append(number)
    return {
        numbers[place]: pair
        for numbers in blocks.values()
        for place, pair in pairs([ops[number].opview for number in numbers]).items()
    }


def _takes_scalars(op: ir.Operation) -> bool:
    """True if `op` is a function with scalar arguments or results."""
    if op.name != "func.func":
        return False
    type_ = function_type(op)
    return any(needs_form(kind) for kind in {*type_.inputs, *type_.results})


def _check_static(op: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError if the mesh or a tensor of `op` has a size that is only known at run time."""
    if any(size < 1 for size in mesh.shape):
        raise OpError(op, f"runs on @{mesh.name}, whose shape is not known; XLA needs one")
    for type_ in (value.type for value in (*op.operands, *op.results)):
        if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape:
            raise OpError(op, f"moves a {type_}, whose shape is not known; XLA needs one")


def _group_axes(view: MeshOpView, mesh: Mesh) -> Axes:
    """The axes of the operation's groups. Empty `axes` mean all; empty `mesh_axes` mean groups of one device, as upstream."""
    attrs = view.operation.attributes
    if "mesh_axes" in attrs:
        return attributes.integers(attrs["mesh_axes"])
    return (attributes.integers(attrs["axes"]) if "axes" in attrs else ()) or tuple(range(mesh.rank))
