"""Folds mesh operations, merges duplicates, and erases dead ones.

MLIR does not know that unregistered operations are pure, so that it does not remove dead and duplicate mesh operations.
Upstream's folds are used if they are sound. Three are not (in LLVM 21 and 22) and differ here: even offsets are dropped only if
they cover the dimension, shards that differ in `annotate_for_users` stay separate, and a second, different shard of a value is
not chained onto the first.
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
    """Folds the mesh operations of a module."""

    names = OPERATION_NAMES

    def __init__(self, module: ir.Module) -> None:
        self.meshes = declared_meshes(module.body)
        self.annotated: dict[tuple[ir.Value, object, bool], ir.Operation] = {}
        "By value, sharding and kind of annotation, the first such `mesh.shard`."
        super().__init__(module)

    def is_erasable(self, name: str) -> bool:
        """False for all: ops without uses are erased at the end, by their effects."""
        return False

    def first_alike(self, op: ir.Operation) -> ir.Operation:
        """The first `mesh.shard` with the value, sharding and kind of annotation of the `mesh.shard` `op`."""
        view = ShardOp(op)
        return self.annotated.setdefault((view.source, _sharding(view.sharding), view.annotate_for_users), op)


def _sharding(value: ir.Value) -> object:
    """The sharding of a `mesh.sharding` without dynamic entries, else the value itself."""
    definition = value.owner
    if isinstance(definition, ir.Block) or definition.name != ShardingOp.OPERATION_NAME or len(definition.operands):
        return value
    return ShardingOp(definition.operation).value


def _erase_dead(folder: Folder) -> bool:
    """Erases mesh operations without uses, users before their operands.

    A `mesh.shard` without uses is erased, too, except that of an argument, which gives the caller's sharding.
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
        return not _is_identity(op, folder)
    if op.name == ShardOp.OPERATION_NAME:
        view = ShardOp(op)
        return is_argument(view.source) and not view.annotate_for_users and folder.first_alike(op) == op
    return any(isinstance(operand.type, ir.MemRefType) for operand in op.operands)


def _replace(op: ir.Operation, value: ir.Value[Any]) -> bool:
    """Replaces the uses of the operation's result by `value`; the operation is erased later."""
    if not _is_used(op.results[0]):
        return False
    op.results[0].replace_all_uses_with(value)
    return True


def _is_identity(op: ir.Operation, folder: Folder) -> bool:
    """True if every device is a group of its own, so that the collective returns its operand."""
    axes = CollectiveOpView(op).mesh_axes
    mesh = folder.meshes.get(CollectiveOpView(op).mesh)
    return not axes or (mesh is not None and prod(mesh.shape[axis] for axis in axes) == 1)


def _fold_collective(op: ir.Operation, folder: Folder) -> bool:
    """A collective over groups of one device is the identity, unless it converts the element type."""
    if op.operands[0].type != op.results[0].type or not _is_identity(op, folder):
        return False
    return _replace(op, op.operands[0])


def _fold_shift(op: ir.Operation, folder: Folder) -> bool:
    """A shift by 0, or by a multiple of the axis with `rotate`."""
    view = ShiftOp(op)
    mesh = folder.meshes.get(view.mesh)
    size = mesh.shape[view.shift_axis] if mesh is not None else DYNAMIC
    around = view.rotate and size != DYNAMIC and view.offset % size == 0
    return (view.offset == 0 or around) and _replace(op, op.operands[0])


def _fold_shard(op: ir.Operation, folder: Folder) -> bool:
    """A repeated annotation, in a row or of one value in a block."""
    view = ShardOp(op)
    definition = view.source.owner
    before = ShardOp(definition.operation) if not isinstance(definition, ir.Block) and definition.name == op.name else None
    if before is not None and before.annotate_for_users == view.annotate_for_users:
        alike = _sharding(before.sharding) == _sharding(view.sharding)
        return alike and _only_inherent(op) and _replace(op, view.source)
    earlier = folder.first_alike(op)
    return earlier != op and earlier.block == op.block and _only_inherent(op) and _replace(op, earlier.results[0])


def _only_inherent(op: ir.Operation) -> bool:
    return all(name == "annotate_for_users" for name in op.attributes)


def _fold_sharding(op: ir.Operation, folder: Folder) -> bool:
    """Makes constant operands static entries, and drops empty halos and offsets of even shards."""
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
    operands_left = [*offset_operands, *halo_operands]
    folded = ir.Operation.create(op.name, [op.results[0].type], operands_left, attrs, loc=op.location, ip=ir.InsertionPoint(op))
    folder.replace(op, folded.results[0])
    return True


def _static(entries: tuple[int, ...], operands: list[ir.Value[Any]]) -> tuple[tuple[int, ...], list[ir.Value[Any]]]:
    """The list with constant operands as static entries, and the remaining operands."""
    dynamic = iter(operands)
    dynamic_operands: list[ir.Value[Any]] = []
    result: list[int] = []
    for entry in entries:
        operand = next(dynamic) if entry == DYNAMIC else None
        number = _constant(operand) if operand is not None else entry
        if operand is not None and number is None:
            dynamic_operands.append(operand)
        result.append(DYNAMIC if number is None else number)
    return tuple(result), dynamic_operands


def _constant(value: ir.Value) -> int | None:
    definition = value.owner
    number = (
        definition.attributes["value"] if not isinstance(definition, ir.Block) and definition.name == "arith.constant" else None
    )
    return int(number.value) if isinstance(number, ir.IntegerAttr) else None


def _is_even(offsets: tuple[int, ...]) -> bool:
    """True if the offsets are those of even shards. The verifier checks that they end with the dimension."""
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
    """Replaces mesh operations by equal ones that dominate them; returns True if there are any."""
    first_readers: dict[ir.Value | None, ir.Operation] = {}
    "By first operand, the first operation in the walk; most are the only one."
    alike: dict[object, list[ir.Operation]] = {}
    several: set[ir.Value | None] = set()
    changed = False
    for op in folder.roots:
        operand = op.operands[0] if len(op.operands) else None
        first_reader = first_readers.setdefault(operand, op)
        if first_reader is op:
            continue
        if operand not in several:
            several.add(operand)
            alike.setdefault(_merge_key(first_reader), []).append(first_reader)
        before = alike.setdefault(key := _merge_key(op), [])
        equal_op = next((earlier for earlier in before if folder.dominates(earlier, op)), None) if key is not None else None
        if equal_op is None:
            before.append(op)
        else:
            folder.replace(op, *equal_op.results)
            changed = True
    return changed


def _merge_key(op: ir.Operation) -> object | None:
    """A key that is equal for operations that compute the same; None for operations that are not merged."""
    operands = tuple(op.operands)
    if op.name in _MESSAGES or any(isinstance(operand.type, ir.MemRefType) for operand in operands):
        return None
    return op.name, tuple(op.attributes.items()), operands, tuple([result.type for result in op.results])
