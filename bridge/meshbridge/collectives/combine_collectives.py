"""`combine-collectives`: combines small independent collectives into one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

from meshbridge.collectives.duplicate_collectives import CollectiveKind, drop_duplicates, duplicate_key
from meshbridge.collectives.independent_collectives import Candidate, CombinedCollectives, group_independent, replace
from meshbridge.collectives.rewriter import MeshRewriter, collective_dims, sharing_key
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, AllToAllOp, CollectiveOpView, ReduceScatterOp
from meshbridge.dialect.signature import group_size
from meshbridge.dialect.signature import shape_of as type_shape
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.elements import is_bytewise, type_bytes
from meshbridge.ir.mlir import find, ir, op_key
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.ops.traits import Trait, ops_with


@register
@dataclass(frozen=True)
class CombineCollectives(Pass):
    """Combines small collectives of one kind and group into one of as many bytes: fewer launches.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<2x3xf32> -> tensor<2x3xf32>
             %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
    Output:  %flat_x = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
             %both = stablehlo.concatenate %flat_x, %y, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
             %sum = mesh.all_reduce %both on @m mesh_axes = [0] : tensor<10xf32> -> tensor<10xf32>
             %part = stablehlo.slice %sum [0:6] : (tensor<10xf32>) -> tensor<6xf32>
             %0 = stablehlo.reshape %part : (tensor<6xf32>) -> tensor<2x3xf32>
             %1 = stablehlo.slice %sum [6:10] : (tensor<10xf32>) -> tensor<4xf32>

    Kinds: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`. Members are in one block and independent of each other. The
    combined collective replaces the last one; the few operations that use an earlier one move after it. The buffer has the
    receiving or sending device as its first dimension, so dimensions need not agree. It is one buffer because the mesh dialect
    has no variadic collectives, and XLA's CPU backend would run their operands one by one.
    """

    name: ClassVar[str] = "combine-collectives"
    bytes: int = 2**16
    """Largest size of a combined buffer, sent or received, on each device. 0 combines nothing.

    Measured (`benchmarks.constants`): gpt12 executes 278 collectives with 0, 219 with 4 KB, 208 with 64 KB, 129 with 1 MB. Larger
    buffers are not chosen because copying them costs more than starting a message; that is not measured."""

    def run(self, module: ir.Module) -> bool:
        changed = False
        while self._once(module):  # a combined collective may be next to more of its kind
            changed = True
        return changed

    def _once(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            return combine(rewriter, self.bytes)


@dataclass(frozen=True)
class _Layout:
    """How one kind of collective arranges a tensor as rows of a buffer, one per device of the group if they differ."""

    send: Callable[[Builder, ir.Operation, ir.Value, int], ir.Value]
    communicate: Callable[[Builder, ir.Operation, ir.Value, Mesh], ir.Value]
    receive: Callable[[Builder, ir.Operation, ir.Value, int], ir.Value]


def combine(rewriter: MeshRewriter, limit: int) -> bool:
    """Combines collectives in buffers of at most `limit` bytes, and drops duplicates; returns whether the program changed."""
    rewriter.finish()
    small = _small(rewriter, limit)
    different = drop_duplicates(small, rewriter)
    rewriter.finish()
    hops: dict[ir.Value, tuple[object, int]] = {}
    candidates = [Candidate(op, (kind.group_key, _hop(op, kind.group_key, hops)), kind.size) for op, kind in different]
    groups = group_independent(candidates, rewriter, limit)
    write = partial(_build_combined, rewriter=rewriter)
    combined = replace([CombinedCollectives([candidate.op for candidate in group], 1, write) for group in groups], rewriter)
    return combined or len(different) < len(small)


def _build_combined(members: list[ir.Operation], builder: Builder, *, rewriter: MeshRewriter) -> list[ir.Value]:
    """One collective in place of `members`, and the result of each of them."""
    template = members[-1]
    layout, mesh = _LAYOUTS[template.name], rewriter.meshes[CollectiveOpView(template).mesh]
    count = group_size(mesh, CollectiveOpView(template).mesh_axes)
    rows = [layout.send(builder, op, op.operands[0], count) for op in members]
    columns = len(shape_of(rows[0])) - 1
    received = layout.communicate(builder, template, builder.concatenate(rows, columns), mesh)
    rewriter.adopt(received)
    values, start = [], 0
    for op, row in zip(members, rows, strict=True):
        size = shape_of(row)[columns]
        values.append(layout.receive(builder, op, builder.slice(received, columns, start, size), count))
        start += size
    return values


@dataclass(frozen=True)
class _CombinableKind(CollectiveKind):
    """The properties of collectives of the same name, attributes and types that matter for combining."""

    size: float
    "Bytes that are sent or received, whichever is more."
    group_key: Hashable
    "Equal for collectives that can be combined."


def _small(rewriter: MeshRewriter, limit: int) -> list[tuple[ir.Operation, _CombinableKind]]:
    """The collectives, in program order, of which at least two fit into `limit` bytes."""
    kinds: dict[object, _CombinableKind | None] = {}
    small: list[tuple[ir.Operation, _CombinableKind]] = []
    for op in find(rewriter.module.operation, _LAYOUTS):
        if (key := op_key(op)) not in kinds:
            kinds[key] = _kind(op, rewriter, limit)
        if (kind := kinds[key]) is not None:
            small.append((op, kind))
    return small


def _kind(op: ir.Operation, rewriter: MeshRewriter, limit: int) -> _CombinableKind | None:
    """The kind of a collective; None if it is not small, its reduction is unknown, or sizes of its mesh or tensors are
    unknown."""
    view, size = CollectiveOpView(op), _size(op.operands[0].type, op.results[0].type)
    is_known = view.reduction != "generic" and DYNAMIC not in rewriter.meshes[view.mesh].shape
    if size is None or 2 * size > limit or not is_known:
        return None
    group_key = sharing_key(op), element_of(op.operands[0]), element_of(op.results[0])
    return _CombinableKind(duplicate_key(op), size, group_key)


def _hop(op: ir.Operation, key: object, hops: dict[ir.Value, tuple[object, int]]) -> int:
    """The number of all-to-alls of one kind that relay the operand of `op` without computation between them: the first of several
    tensors' relays are combined, then the second. `hops` are those of earlier ones, by result."""
    if op.name != AllToAllOp.OPERATION_NAME:
        return 0
    value = look_through(op.operands[0], ops_with(Trait.SHAPING, Trait.STRIDED, Trait.SLICING))
    earlier_key, hop = hops.get(value, (None, -1))
    hop = hop + 1 if earlier_key == key else 0
    hops[op.results[0]] = key, hop
    return hop


def _size(source: ir.Type, target: ir.Type) -> float | None:
    """Bytes that are sent or received, whichever is more; None if shapes are unknown."""
    if not isinstance(source, ir.RankedTensorType) or DYNAMIC in (*type_shape(source), *type_shape(target)):
        return None
    if not is_bytewise(source):
        return None
    return max(type_bytes(source), type_bytes(target))


def _moved(rank: int, source: int, target: int) -> list[int]:
    """The order of dimensions that moves `source` to number `target` and keeps the others in order."""
    order = [dim for dim in range(rank) if dim != source]
    order.insert(target, source)
    return order


def _flat(builder: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    return builder.reshape(_before_reshape(value), [prod(shape_of(value))])


def _one_row(builder: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    return builder.reshape(_before_reshape(value), [1, prod(shape_of(value))])


def _before_reshape(value: ir.Value) -> ir.Value:
    """The operand of a reshape, which has the same elements in the same order, so that the reshape may become dead."""
    op = defining_op(value)
    return op.operands[0] if op is not None and op.name == "stablehlo.reshape" else value


def _row_for_each(builder: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    """One row per receiving device."""
    dim, shape = collective_dims(op)[0], shape_of(value)
    pieces = [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]]
    return builder.rearrange(value, pieces, _moved(len(pieces), dim, 0), [count, prod(shape) // count])


def _whole(builder: Builder, op: ir.Operation, row: ir.Value, count: int) -> ir.Value:
    """A row is the whole result."""
    return builder.reshape(row, shape_of(op.results[0]))


def _row_from_each(builder: Builder, op: ir.Operation, rows: ir.Value, count: int) -> ir.Value:
    """Concatenates one row per sending device along a dimension."""
    dim, shape = collective_dims(op)[-1], shape_of(op.results[0])
    pieces = [count, *shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
    return builder.rearrange(rows, pieces, _moved(len(pieces), 0, dim), shape)


def _reduce(builder: Builder, op: ir.Operation, flat: ir.Value, mesh: Mesh) -> ir.Value:
    view, element = AllReduceOp(op), element_of(op.results[0])
    return build.all_reduce(flat, mesh, mesh_axes=view.mesh_axes, reduction=view.reduction, element_type=element, at=builder)


def _gather(builder: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    return build.all_gather(rows, mesh, mesh_axes=AllGatherOp(op).mesh_axes, gather_axis=0, at=builder)


def _scatter(builder: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    view, element = ReduceScatterOp(op), element_of(op.results[0])
    axes, kind = view.mesh_axes, view.reduction
    return build.reduce_scatter(rows, mesh, mesh_axes=axes, scatter_axis=0, reduction=kind, element_type=element, at=builder)


def _exchange(builder: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    return build.all_to_all(rows, mesh, mesh_axes=AllToAllOp(op).mesh_axes, split_axis=0, concat_axis=0, at=builder)


_LAYOUTS = {
    AllReduceOp.OPERATION_NAME: _Layout(_flat, _reduce, _whole),
    AllGatherOp.OPERATION_NAME: _Layout(_one_row, _gather, _row_from_each),
    ReduceScatterOp.OPERATION_NAME: _Layout(_row_for_each, _scatter, _whole),
    AllToAllOp.OPERATION_NAME: _Layout(_row_for_each, _exchange, _row_from_each),
}
"""By kind: how a tensor is sent, communicated and received."""
