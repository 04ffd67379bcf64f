"""Folds of mesh operations: what is always true of one operation or of two alike, wherever it stands.

MLIR does not know that unregistered operations are pure, so that dead and duplicate mesh operations are ours to remove too.
Upstream's folds are kept where they are sound. Three are not (facts of LLVM 21 and 22) and differ here: even offsets are dropped
only where they cover the dimension, shards that differ in `annotate_for_users` stay apart, and a second, different shard of a
value is not chained onto the first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import CollectiveOpView, MeshOp, ShardingOp, ShardOp, ShiftOp
from meshbridge.dialect.shard_constraints import offsets_by_dimension
from meshbridge.ir.mlir import ir, walk
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding

_MESSAGES = {"mesh.send", "mesh.recv"}


def fold(module: ir.Module) -> bool:
    """Folds the mesh operations of `module` once, in place; returns whether anything changed."""
    with module.context, ir.Location.unknown():
        ops = [op for op in walk(module.operation) if op.name.startswith("mesh.") or op.name == "arith.constant"]
        facts = _Facts(ops)
        changed = False
        for op in ops:
            folding = _FOLDS.get(op.name)
            if folding is not None:
                changed |= folding(op, facts)
        return _erase_dead(ops, facts) or changed


class _Facts:
    """Constants, shards and meshes by the value or name that refers to them."""

    def __init__(self, ops: list[ir.Operation]) -> None:
        self.constants: dict[ir.Value[Any], int] = {}
        self.shards: dict[ir.Value[Any], ShardOp] = {}
        self.shardings: dict[ir.Value[Any], Sharding] = {}
        "Those without dynamic entries."
        self.annotated: dict[tuple[ir.Value[Any], object, bool], ir.Operation] = {}
        "By value, sharding and kind of annotation, the first such `mesh.shard`."
        self.meshes: dict[str, Mesh] = {}
        for op in ops:
            if op.name == "arith.constant" and isinstance(op.attributes["value"], ir.IntegerAttr):
                self.constants[op.results[0]] = int(ir.IntegerAttr(op.attributes["value"]).value)
            elif op.name == ShardOp.OPERATION_NAME:
                self.shards[op.results[0]] = ShardOp(op)
            elif op.name == ShardingOp.OPERATION_NAME and not len(op.operands):
                self.shardings[op.results[0]] = ShardingOp(op).value
            elif op.name == MeshOp.OPERATION_NAME:
                self.meshes[MeshOp(op).sym_name] = MeshOp(op).value


def _erase_dead(ops: list[ir.Operation], facts: _Facts) -> bool:
    """Erases mesh operations without uses, users before what they use.

    A `mesh.shard` without uses goes too, as an operation without effects, but for that of an argument: it says what callers pass.
    """
    erased = False
    for op in reversed(ops):
        if op.name.startswith("mesh.") and op.results and not any(map(_is_used, op.results)) and not _has_effect(op, facts):
            op.erase()
            erased = True
    return erased


def _is_used(value: ir.Value[Any]) -> bool:
    return any(True for _ in value.uses)


def _has_effect(op: ir.Operation, facts: _Facts) -> bool:
    if op.name in _MESSAGES:
        return not _alone(op, facts)
    if op.name == ShardOp.OPERATION_NAME:
        view = ShardOp(op)
        key = (view.source, facts.shardings.get(view.sharding, view.sharding), False)
        return isinstance(view.source.owner, ir.Block) and not view.annotate_for_users and facts.annotated.get(key) == op
    return any(isinstance(operand.type, ir.MemRefType) for operand in op.operands)


def _replace(op: ir.Operation, value: ir.Value[Any]) -> bool:
    """Uses of the operation's result become uses of `value`; the operation dies with the others that have no uses."""
    if not _is_used(op.results[0]):
        return False
    op.results[0].replace_all_uses_with(value)
    return True


def _alone(op: ir.Operation, facts: _Facts) -> bool:
    """Whether every device is a group of its own, so that the collective returns what it is given."""
    axes = CollectiveOpView(op).mesh_axes
    mesh = facts.meshes.get(CollectiveOpView(op).mesh)
    return not axes or (mesh is not None and prod(mesh.shape[axis] for axis in axes) == 1)


def _fold_collective(op: ir.Operation, facts: _Facts) -> bool:
    """In groups of one device a collective is the identity. Where the element type changes it converts, and stays."""
    if op.operands[0].type != op.results[0].type or not _alone(op, facts):
        return False
    return _replace(op, op.operands[0])


def _fold_shift(op: ir.Operation, facts: _Facts) -> bool:
    """A shift by nothing, or around all of its axis."""
    view = ShiftOp(op)
    mesh = facts.meshes.get(view.mesh)
    size = mesh.shape[view.shift_axis] if mesh is not None else DYNAMIC
    around = view.rotate and size != DYNAMIC and view.offset % size == 0
    return (view.offset == 0 or around) and _replace(op, op.operands[0])


def _fold_shard(op: ir.Operation, facts: _Facts) -> bool:
    """The same annotation twice in a row, or of one value twice in a block."""
    view = ShardOp(op)
    sharding = facts.shardings.get(view.sharding, view.sharding)
    before = facts.shards.get(view.source)
    if before is not None and before.annotate_for_users == view.annotate_for_users:
        alike = facts.shardings.get(before.sharding, before.sharding) == sharding
        return alike and _only_inherent(op) and _replace(op, view.source)
    first = facts.annotated.setdefault((view.source, sharding, view.annotate_for_users), op)
    return first != op and first.block == op.block and _only_inherent(op) and _replace(op, first.results[0])


def _only_inherent(op: ir.Operation) -> bool:
    return all(name == "annotate_for_users" for name in op.attributes)


def _fold_sharding(op: ir.Operation, facts: _Facts) -> bool:
    """Constant operands become static entries; halos of nothing and offsets of even shards go."""
    view = ShardingOp(op)
    offset_count = attributes.integers(op.attributes["operandSegmentSizes"])[0]
    operands = list(op.operands)
    offsets, offset_operands = _static(view.sharded_dims_offsets, operands[:offset_count], facts)
    halos, halo_operands = _static(view.halo_sizes, operands[offset_count:], facts)
    if not any(halos):
        halos = ()
    mesh = facts.meshes.get(view.mesh)
    if offsets and mesh is not None and DYNAMIC not in offsets and DYNAMIC not in mesh.shape:
        lists = offsets_by_dimension(offsets, view.split_axes, mesh)
        if all(_is_even(listed) for listed in lists):
            offsets = ()
    if (offsets, halos) == (view.sharded_dims_offsets, view.halo_sizes):
        return False
    attrs = dict(op.attributes.items()) | {
        "static_sharded_dims_offsets": attributes.integers_attr(offsets),
        "static_halo_sizes": attributes.integers_attr(halos),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(offset_operands), len(halo_operands)]),
    }
    kept = [*offset_operands, *halo_operands]
    new = ir.Operation.create(op.name, [op.results[0].type], kept, attrs, loc=op.location, ip=ir.InsertionPoint(op))
    op.results[0].replace_all_uses_with(new.results[0])
    return True


def _static(
    entries: tuple[int, ...], operands: list[ir.Value[Any]], facts: _Facts
) -> tuple[tuple[int, ...], list[ir.Value[Any]]]:
    """The list with known operands written in, and the operands that stay."""
    left = iter(operands)
    kept: list[ir.Value[Any]] = []
    result: list[int] = []
    for entry in entries:
        operand = next(left) if entry == DYNAMIC else None
        known = facts.constants.get(operand) if operand is not None else entry
        if operand is not None and known is None:
            kept.append(operand)
        result.append(DYNAMIC if known is None else known)
    return tuple(result), kept


def _is_even(offsets: tuple[int, ...]) -> bool:
    """Whether the offsets say what the sharding says without them. The verifier has checked that they end with the dimension."""
    step = offsets[1] - offsets[0]
    return all(offset == index * step for index, offset in enumerate(offsets))


_GROUPED = (
    "all_gather",
    "all_reduce",
    "all_slice",
    "all_to_all",
    "broadcast",
    "gather",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)

_FOLDS: dict[str, Callable[[ir.Operation, _Facts], bool]] = {
    **{f"mesh.{name}": _fold_collective for name in _GROUPED},
    "mesh.shift": _fold_shift,
    "mesh.shard": _fold_shard,
    "mesh.sharding": _fold_sharding,
}


def merge_duplicates(module: ir.Module) -> bool:
    """Replaces mesh operations by earlier ones that are alike and dominate them; returns whether anything changed."""
    return _merge_in(module.body, {})


def erase_dead(module: ir.Module) -> bool:
    """Erases mesh operations that nobody uses and that have no effect; returns whether there were any."""
    ops = [op for op in walk(module.operation) if op.name.startswith("mesh.")]
    facts = _Facts(ops)
    for op in ops:
        if op.name == ShardOp.OPERATION_NAME:
            view = ShardOp(op)
            sharding = facts.shardings.get(view.sharding, view.sharding)
            facts.annotated.setdefault((view.source, sharding, view.annotate_for_users), op)
    return _erase_dead(ops, facts)


def _merge_in(block: ir.Block, known: dict[object, ir.Operation]) -> bool:
    """`known` holds what stands before this block and around it; it is left as it was found."""
    changed = False
    added: list[object] = []
    for view in list(block.operations):
        op = view.operation
        if op.name.startswith("mesh."):
            key = _merge_key(op)
            if key is None:
                continue
            first = known.setdefault(key, op)
            if first is op:
                added.append(key)
            else:
                _replace_by(op, first)
                changed = True
            continue
        for region in op.regions:
            for inner in region.blocks:
                # What stands outside a function cannot be used inside.
                changed |= _merge_in(inner, {} if op.name in _ISOLATED else known)
    for key in added:
        del known[key]
    return changed


_ISOLATED = {"func.func", "builtin.module"}


def _merge_key(op: ir.Operation) -> object | None:
    """What makes two operations compute the same; None if they are not to be merged."""
    operands = tuple(op.operands)
    if not op.results or op.name in _MESSAGES or any(isinstance(operand.type, ir.MemRefType) for operand in operands):
        return None
    return op.name, tuple(op.attributes.items()), operands, tuple([result.type for result in op.results])


def _replace_by(op: ir.Operation, same: ir.Operation) -> None:
    for result, value in zip(op.results, same.results, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
