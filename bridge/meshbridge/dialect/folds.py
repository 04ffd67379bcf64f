"""Folds of mesh operations: what is always true of one operation or of two alike, wherever it stands.

MLIR does not know that unregistered operations are pure, so that dead and duplicate mesh operations are ours to remove too.
Upstream's folds are kept where they are sound. Three are not (facts of LLVM 21 and 22) and differ here: even offsets are dropped
only where they cover the dimension, shards that differ in `annotate_for_users` stay apart, and a second, different shard of a
value is not chained onto the first.
"""

from __future__ import annotations

from math import prod
from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import OPERATION_NAMES, CollectiveOpView, ShardingOp, ShardOp, ShiftOp
from meshbridge.dialect.shard_constraints import offsets_by_dimension
from meshbridge.ir.mlir import ir
from meshbridge.ir.rewrite import Pattern, Rewriter, rewriting
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import is_argument

_MESSAGES = {"mesh.send", "mesh.recv"}


def simplify(module: ir.Module, *, fold: bool = True, merge: bool = True) -> bool:
    """Folds the mesh operations of `module`, merges those that compute the same and erases dead ones, in place and in one walk;
    returns whether anything changed."""
    with rewriting(Folder, module) as folder:
        changed = fold and folder.apply(PATTERNS)
        changed |= merge and _merge(folder)
        folder.finish()
        return _erase_dead(folder) or changed


class Folder(Rewriter):
    """A module while its mesh operations are folded."""

    names = OPERATION_NAMES

    def __init__(self, module: ir.Module) -> None:
        self.meshes = declared_meshes(module.body)
        self.annotated: dict[tuple[ir.Value, object, bool], ir.Operation] = {}
        "By value, sharding and kind of annotation, the first such `mesh.shard`."
        super().__init__(module)

    def is_dispensable(self, name: str) -> bool:
        """None: what has no uses goes at the end, by its effects."""
        return False

    def first_alike(self, op: ir.Operation) -> ir.Operation:
        """The first `mesh.shard` that annotates what the `mesh.shard` `op` annotates, in the same way."""
        view = ShardOp(op)
        return self.annotated.setdefault((view.source, _sharding(view.sharding), view.annotate_for_users), op)


def _sharding(value: ir.Value) -> object:
    """What an operation without dynamic entries says, else the value itself."""
    made = value.owner
    if isinstance(made, ir.Block) or made.name != ShardingOp.OPERATION_NAME or len(made.operands):
        return value
    return ShardingOp(made.operation).value


def _erase_dead(folder: Folder) -> bool:
    """Erases mesh operations without uses, users before what they use.

    A `mesh.shard` without uses goes too, as an operation without effects, but for that of an argument: it says what callers pass.
    """
    erased, roots = False, folder.roots
    for op in roots:
        if op.name == ShardOp.OPERATION_NAME:
            folder.first_alike(op)
    for op in reversed(roots):
        if not any(map(_is_used, op.results)) and not _has_effect(op, folder):
            op.erase()
            erased = True
    return erased


def _is_used(value: ir.Value[Any]) -> bool:
    return next(iter(value.uses), None) is not None


def _has_effect(op: ir.Operation, folder: Folder) -> bool:
    if op.name in _MESSAGES:
        return not _alone(op, folder)
    if op.name == ShardOp.OPERATION_NAME:
        view = ShardOp(op)
        return is_argument(view.source) and not view.annotate_for_users and folder.first_alike(op) == op
    return any(isinstance(operand.type, ir.MemRefType) for operand in op.operands)


def _replace(op: ir.Operation, value: ir.Value[Any]) -> bool:
    """Uses of the operation's result become uses of `value`; the operation dies with the others that have no uses."""
    if not _is_used(op.results[0]):
        return False
    op.results[0].replace_all_uses_with(value)
    return True


def _alone(op: ir.Operation, folder: Folder) -> bool:
    """Whether every device is a group of its own, so that the collective returns what it is given."""
    axes = CollectiveOpView(op).mesh_axes
    mesh = folder.meshes.get(CollectiveOpView(op).mesh)
    return not axes or (mesh is not None and prod(mesh.shape[axis] for axis in axes) == 1)


def _fold_collective(op: ir.Operation, folder: Folder) -> bool:
    """In groups of one device a collective is the identity. Where the element type changes it converts, and stays."""
    if op.operands[0].type != op.results[0].type or not _alone(op, folder):
        return False
    return _replace(op, op.operands[0])


def _fold_shift(op: ir.Operation, folder: Folder) -> bool:
    """A shift by nothing, or around all of its axis."""
    view = ShiftOp(op)
    mesh = folder.meshes.get(view.mesh)
    size = mesh.shape[view.shift_axis] if mesh is not None else DYNAMIC
    around = view.rotate and size != DYNAMIC and view.offset % size == 0
    return (view.offset == 0 or around) and _replace(op, op.operands[0])


def _fold_shard(op: ir.Operation, folder: Folder) -> bool:
    """The same annotation twice in a row, or of one value twice in a block."""
    view = ShardOp(op)
    made = view.source.owner
    before = ShardOp(made.operation) if not isinstance(made, ir.Block) and made.name == op.name else None
    if before is not None and before.annotate_for_users == view.annotate_for_users:
        alike = _sharding(before.sharding) == _sharding(view.sharding)
        return alike and _only_inherent(op) and _replace(op, view.source)
    first = folder.first_alike(op)
    return first != op and first.block == op.block and _only_inherent(op) and _replace(op, first.results[0])


def _only_inherent(op: ir.Operation) -> bool:
    return all(name == "annotate_for_users" for name in op.attributes)


def _fold_sharding(op: ir.Operation, folder: Folder) -> bool:
    """Constant operands become static entries; halos of nothing and offsets of even shards go."""
    view = ShardingOp(op)
    offset_count = attributes.integers(op.attributes["operandSegmentSizes"])[0]
    operands = list(op.operands)
    offsets, offset_operands = _static(view.sharded_dims_offsets, operands[:offset_count])
    halos, halo_operands = _static(view.halo_sizes, operands[offset_count:])
    if not any(halos):
        halos = ()
    mesh = folder.meshes.get(view.mesh)
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
    folder.replace(op, new.results[0])
    return True


def _static(entries: tuple[int, ...], operands: list[ir.Value[Any]]) -> tuple[tuple[int, ...], list[ir.Value[Any]]]:
    """The list with known operands written in, and the operands that stay."""
    left = iter(operands)
    kept: list[ir.Value[Any]] = []
    result: list[int] = []
    for entry in entries:
        operand = next(left) if entry == DYNAMIC else None
        known = _constant(operand) if operand is not None else entry
        if operand is not None and known is None:
            kept.append(operand)
        result.append(DYNAMIC if known is None else known)
    return tuple(result), kept


def _constant(value: ir.Value) -> int | None:
    made = value.owner
    held = made.attributes["value"] if not isinstance(made, ir.Block) and made.name == "arith.constant" else None
    return int(held.value) if isinstance(held, ir.IntegerAttr) else None


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

PATTERNS: tuple[Pattern[Folder], ...] = (
    Pattern(tuple(f"mesh.{name}" for name in _GROUPED), _fold_collective),
    Pattern(("mesh.shift",), _fold_shift),
    Pattern(("mesh.shard",), _fold_shard),
    Pattern(("mesh.sharding",), _fold_sharding),
)


def _merge(folder: Folder) -> bool:
    """Replaces mesh operations by earlier ones that are alike and dominate them; returns whether there were any."""
    first_readers: dict[ir.Value | None, ir.Operation] = {}
    "By first operand, the first operation that was met; most are the only one."
    alike: dict[object, list[ir.Operation]] = {}
    several: set[ir.Value | None] = set()
    changed = False
    for op in folder.roots:
        operand = op.operands[0] if len(op.operands) else None
        first = first_readers.setdefault(operand, op)
        if first is op:
            continue
        if operand not in several:
            several.add(operand)
            alike.setdefault(_merge_key(first), []).append(first)
        before = alike.setdefault(key := _merge_key(op), [])
        same = next((other for other in before if folder.dominates(other, op)), None) if key is not None else None
        if same is None:
            before.append(op)
        else:
            folder.replace(op, *same.results)
            changed = True
    return changed


def _merge_key(op: ir.Operation) -> object | None:
    """What makes two operations compute the same; None if they are not to be merged."""
    operands = tuple(op.operands)
    if op.name in _MESSAGES or any(isinstance(operand.type, ir.MemRefType) for operand in operands):
        return None
    return op.name, tuple(op.attributes.items()), operands, tuple([result.type for result in op.results])
