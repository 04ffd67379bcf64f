"""`combine-collectives`: small collectives that do not wait for one another travel together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

from meshbridge.collectives.alike import CollectiveKind, drop_alike, looks
from meshbridge.collectives.independent import Candidate, CombinedCollectives, independent, replace
from meshbridge.collectives.rewriter import MeshRewriter, piece_dims, sharing_key
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

    Kinds: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`. They stand in one block, and none needs the result of
    another; the combined one replaces the last, and the few operations that use an earlier one move behind it. What is
    sent is laid out with the device that it goes to, or comes from, first, so that dimensions need not agree. One buffer, rather
    than one collective of several operands: the mesh dialect has none of these, and XLA's CPU backend would run each by itself.
    """

    name: ClassVar[str] = "combine-collectives"
    bytes: int = 2**16
    """Largest size of a combined buffer, sent or received, on each device. 0 combines nothing.

    Measured (`benchmarks.constants`): gpt12 executes 278 collectives with 0, 219 with 4 KB, 208 with 64 KB, 129 with 1 MB. Larger
    buffers are not taken because they copy more than a message costs to start: that is not measured."""

    def run(self, module: ir.Module) -> bool:
        changed = False
        while self._once(module):  # what has been combined may stand beside more of its kind
            changed = True
        return changed

    def _once(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            return combine(rewriter, self.bytes)


@dataclass(frozen=True)
class _Layout:
    """How one kind of collective sees a tensor as rows of a buffer, one for each device of the group where that matters."""

    send: Callable[[Builder, ir.Operation, ir.Value, int], ir.Value]
    communicate: Callable[[Builder, ir.Operation, ir.Value, Mesh], ir.Value]
    receive: Callable[[Builder, ir.Operation, ir.Value, int], ir.Value]


def combine(rewriter: MeshRewriter, limit: int) -> bool:
    """Combines what it can into buffers of at most `limit` bytes; returns whether there was anything."""
    rewriter.finish()
    small = _small(rewriter, limit)
    different = drop_alike(small, rewriter)
    rewriter.finish()
    turns: dict[ir.Value, tuple[object, int]] = {}
    candidates = [Candidate(op, (kind.travels, _turn(op, kind.travels, turns)), kind.size) for op, kind in different]
    groups = independent(candidates, rewriter, limit)
    write = partial(_combined, rewriter=rewriter)
    combined = replace([CombinedCollectives([each.op for each in group], 1, write) for group in groups], rewriter)
    return combined or len(different) < len(small)


def _combined(members: list[ir.Operation], emit: Builder, *, rewriter: MeshRewriter) -> list[ir.Value]:
    """One collective that does the work of `members`, and what each of them gives."""
    last = members[-1]
    layout, mesh = _LAYOUTS[last.name], rewriter.meshes[CollectiveOpView(last).mesh]
    count = group_size(mesh, CollectiveOpView(last).mesh_axes)
    sent = [layout.send(emit, op, op.operands[0], count) for op in members]
    columns = len(shape_of(sent[0])) - 1
    received = layout.communicate(emit, last, emit.concatenate(sent, columns), mesh)
    rewriter.adopt(received)
    values, start = [], 0
    for op, row in zip(members, sent, strict=True):
        size = shape_of(row)[columns]
        values.append(layout.receive(emit, op, emit.slice(received, columns, start, size), count))
        start += size
    return values


@dataclass(frozen=True)
class _CombinableKind(CollectiveKind):
    """What combining asks of a collective; those of the same name, attributes and types have one."""

    size: float
    "Bytes of what is sent or received, whichever is more."
    travels: Hashable
    "What collectives must share to travel together."


def _small(rewriter: MeshRewriter, limit: int) -> list[tuple[ir.Operation, _CombinableKind]]:
    """The collectives, in program order, of which two or more may fit into `limit` bytes."""
    kinds: dict[object, _CombinableKind | None] = {}
    found: list[tuple[ir.Operation, _CombinableKind]] = []
    for op in find(rewriter.module.operation, _LAYOUTS):
        if (key := op_key(op)) not in kinds:
            kinds[key] = _kind(op, rewriter, limit)
        if (kind := kinds[key]) is not None:
            found.append((op, kind))
    return found


def _kind(op: ir.Operation, rewriter: MeshRewriter, limit: int) -> _CombinableKind | None:
    """None for what is not small, and where the reduction, if it is one, or the sizes of its mesh or tensors are not known."""
    view, size = CollectiveOpView(op), _size(op.operands[0].type, op.results[0].type)
    is_known = view.reduction != "generic" and DYNAMIC not in rewriter.meshes[view.mesh].shape
    if size is None or 2 * size > limit or not is_known:
        return None
    travels = sharing_key(op), element_of(op.operands[0]), element_of(op.results[0])
    return _CombinableKind(looks(op), size, travels)


def _turn(op: ir.Operation, travels: object, turns: dict[ir.Value, tuple[object, int]]) -> int:
    """How many all-to-alls of its kind have brought just what one sends, without a computation between: where several tensors are
    relayed, the first of each travel together, and then the second. `turns` are those of the ones before, by result."""
    if op.name != AllToAllOp.OPERATION_NAME:
        return 0
    value = look_through(op.operands[0], ops_with(Trait.SHAPING, Trait.STRIDED, Trait.SLICING))
    before, turn = turns.get(value, (None, -1))
    turn = turn + 1 if before == travels else 0
    turns[op.results[0]] = travels, turn
    return turn


def _size(sent: ir.Type, received: ir.Type) -> float | None:
    """Bytes of what is sent or received, whichever is more; None where shapes are not known."""
    if not isinstance(sent, ir.RankedTensorType) or DYNAMIC in (*type_shape(sent), *type_shape(received)):
        return None
    if not is_bytewise(sent):
        return None
    return max(type_bytes(sent), type_bytes(received))


def _moved(rank: int, source: int, target: int) -> list[int]:
    """The order of dimensions in which `source` is the one numbered `target`, and the others stay in order."""
    order = [dim for dim in range(rank) if dim != source]
    order.insert(target, source)
    return order


def _flat(emit: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    return emit.reshape(_before_reshape(value), [prod(shape_of(value))])


def _one_row(emit: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    return emit.reshape(_before_reshape(value), [1, prod(shape_of(value))])


def _before_reshape(value: ir.Value) -> ir.Value:
    """The same elements in the same order. A reshape that only the collective has read goes with it."""
    op = defining_op(value)
    return op.operands[0] if op is not None and op.name == "stablehlo.reshape" else value


def _row_for_each(emit: Builder, op: ir.Operation, value: ir.Value, count: int) -> ir.Value:
    """One row for each device that gets a piece."""
    dim, shape = piece_dims(op)[0], shape_of(value)
    pieces = [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]]
    return emit.rearrange(value, pieces, _moved(len(pieces), dim, 0), [count, prod(shape) // count])


def _whole(emit: Builder, op: ir.Operation, row: ir.Value, count: int) -> ir.Value:
    """A row is all of the result."""
    return emit.reshape(row, shape_of(op.results[0]))


def _row_from_each(emit: Builder, op: ir.Operation, rows: ir.Value, count: int) -> ir.Value:
    """One row from each device, to stand one after the other along a dimension."""
    dim, shape = piece_dims(op)[-1], shape_of(op.results[0])
    pieces = [count, *shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
    return emit.rearrange(rows, pieces, _moved(len(pieces), 0, dim), shape)


def _reduce(emit: Builder, op: ir.Operation, flat: ir.Value, mesh: Mesh) -> ir.Value:
    view, element = AllReduceOp(op), element_of(op.results[0])
    return build.all_reduce(flat, mesh, mesh_axes=view.mesh_axes, reduction=view.reduction, element_type=element, at=emit)


def _gather(emit: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    return build.all_gather(rows, mesh, mesh_axes=AllGatherOp(op).mesh_axes, gather_axis=0, at=emit)


def _scatter(emit: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    view, element = ReduceScatterOp(op), element_of(op.results[0])
    axes, kind = view.mesh_axes, view.reduction
    return build.reduce_scatter(rows, mesh, mesh_axes=axes, scatter_axis=0, reduction=kind, element_type=element, at=emit)


def _exchange(emit: Builder, op: ir.Operation, rows: ir.Value, mesh: Mesh) -> ir.Value:
    return build.all_to_all(rows, mesh, mesh_axes=AllToAllOp(op).mesh_axes, split_axis=0, concat_axis=0, at=emit)


_LAYOUTS = {
    AllReduceOp.OPERATION_NAME: _Layout(_flat, _reduce, _whole),
    AllGatherOp.OPERATION_NAME: _Layout(_one_row, _gather, _row_from_each),
    ReduceScatterOp.OPERATION_NAME: _Layout(_row_for_each, _scatter, _whole),
    AllToAllOp.OPERATION_NAME: _Layout(_row_for_each, _exchange, _row_from_each),
}
"""By kind: how a tensor is sent, what is done with all of them, and how one is received."""
