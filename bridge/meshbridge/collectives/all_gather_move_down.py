"""`all-gather-move-down`: compute on shards, gather what comes out (the RFC)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshPattern, MeshRewriter, PatternPass, in_size
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.dialect.signature import element_of, group_size, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import is_bytewise, neutral, resized, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC, Axes
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class AllGatherMoveDown(PatternPass):
    """Moves all-gathers below operations that work on shards as well, if what is gathered then is not larger.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xbf16>
    Output:  %0 = stablehlo.convert %x : (tensor<2xf32>) -> tensor<2xbf16>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xbf16> -> tensor<4xbf16>

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x3xf32> -> tensor<4x3xf32>
             %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
    Output:  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<3xf32> -> tensor<3xf32>

    Such operations are the elementwise ones, `transpose`, `reduce`, and `slice` along other dimensions, or with a stride that
    takes as much of every shard. All their operands are gathered alike, or are the same on every device of a group.
    """

    name: ClassVar[str] = "all-gather-move-down"


@dataclass(frozen=True)
class _Gather:
    """What one gather and another must share to become one."""

    mesh: str
    axes: Axes
    dim: int

    @staticmethod
    def of(op: AllGatherOp) -> _Gather:
        return _Gather(op.mesh, op.mesh_axes, op.gather_axis)


def move_down(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gathers that `op` reads below it."""
    operands = list(op.operands)
    gathers = [rewriter.collective(operand, AllGatherOp, op) for operand in operands]
    kinds = {_Gather.of(each) for each in gathers if each is not None}
    if len(kinds) != 1:
        return False
    (kind,) = kinds
    mesh, dim = rewriter.meshes[kind.mesh], _MOVES[op.name](op, kind.dim)
    count, result = group_size(mesh, kind.axes), ir.RankedTensorType(op.results[0].type)
    if op.name == "stablehlo.slice" and DYNAMIC not in (count, *shape_of(operands[0].type)):
        dim = _sliced_alike(op, kind.dim, count)
    if dim is None or DYNAMIC in (count, *result.shape) or not _pays(op, operands, gathers, rewriter):
        return False
    others = {value for value, each in zip(operands, gathers, strict=True) if each is None}
    if not all(rewriter.is_uniform(value, kind.mesh, kind.axes) for value in others):
        return False  # each device used its own with the gathered value, and would use it with its shard alone
    location = next(each.operation.location for each in gathers if each is not None)
    inputs = [each.input if each is not None else None for each in gathers]
    for number, value in enumerate(inputs):
        rewriter.feed(op, number, value if value is not None else _shrunk(operands[number], kind, count, op, rewriter))
    op.results[0].set_type(resized(result, dim, divide=count))
    if op.name == "stablehlo.slice":
        limits = list(integers(op.attributes["limit_indices"]))
        limits[dim] = shape_of(op.operands[0].type)[dim]
        op.attributes["limit_indices"] = integers_attr(limits)
    rewriter.put_after(op, location, lambda shard: build.all_gather(shard, mesh, mesh_axes=kind.axes, gather_axis=dim))
    return True


def reduce_shards(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Reduces the shards of the all-gather that `op` reads and reduces along the gathered dimension, then over the devices."""
    gather = rewriter.collective(op.operands[0], AllGatherOp, op)
    if gather is None or len(op.results) != 1 or rewriter.uses(op.operands[0]) != 1:
        return False
    kind, element = body_kind(op), element_of(op.results[0].type)
    shapes = (*shape_of(op.results[0].type), *shape_of(op.operands[0].type))
    if gather.gather_axis not in integers(op.attributes["dimensions"]) or not kind or DYNAMIC in shapes:
        return False
    if 2 * type_bytes(op.results[0].type) > type_bytes(op.operands[0].type) or not is_splat(
        op.operands[1], neutral(kind, element)
    ):
        return False
    mesh, axes = rewriter.meshes[gather.mesh], gather.mesh_axes
    if DYNAMIC in mesh.shape:
        return False
    location = gather.operation.location
    rewriter.feed(op, 0, gather.input)
    rewriter.put_after(op, location, lambda part: build.all_reduce(part, mesh, mesh_axes=axes, reduction=kind))
    return True


def _pays(op: ir.Operation, operands: list[ir.Value], gathers: list[AllGatherOp | None], rewriter: MeshRewriter) -> bool:
    """Whether the gathers that go, because nothing else uses them, weigh as much as the one that comes."""
    gathered = {value for value, each in zip(operands, gathers, strict=True) if each is not None}
    saved = sum(type_bytes(value.type) for value in gathered if rewriter.uses(value) == operands.count(value))
    return type_bytes(op.results[0].type) <= saved and is_bytewise(op.results[0].type)


def _shrunk(value: ir.Value, gather: _Gather, count: int, user: ir.Operation, rewriter: MeshRewriter) -> ir.Value:
    """What `value`, the same on all devices of a group, is for one shard: a smaller constant or broadcast, or a slice of it.
    Scalars stay."""
    emit = Builder.before(user)
    if (make := in_size(value, gather.dim, divide=count)) is not None:
        return make(emit)
    return build.all_slice(value, rewriter.meshes[gather.mesh], mesh_axes=gather.axes, slice_axis=gather.dim, at=emit)


def _same(op: ir.Operation, dim: int) -> int | None:
    """Elementwise: all operands of a rank have the result's shape."""
    return dim


def _permuted(op: ir.Operation, dim: int) -> int | None:
    return integers(op.attributes["permutation"]).index(dim)


def _sliced_alike(op: ir.Operation, dim: int, count: int) -> int | None:
    """A slice that takes as much of every shard: all of it, or one of every so many elements from its beginning on."""
    piece, taken = shape_of(op.operands[0].type)[dim] // count, shape_of(op.results[0].type)[dim]
    start, stride = (integers(op.attributes[name])[dim] for name in ("start_indices", "strides"))
    return dim if start < stride and piece % stride == 0 and taken == count * piece // stride else None


def _unreduced(op: ir.Operation, dim: int) -> int | None:
    """A reduction of one operand along other dimensions."""
    reduced = integers(op.attributes["dimensions"])
    return None if dim in reduced or len(op.results) != 1 else dim - sum(each < dim for each in reduced)


_MOVES: dict[str, Callable[[ir.Operation, int], int | None]] = {
    **dict.fromkeys(ELEMENTWISE, _same),
    "stablehlo.transpose": _permuted,
    "stablehlo.slice": _same,
    "stablehlo.reduce": _unreduced,
}
"""By name, where an operation puts a dimension of its operands that it takes element by element; None where it does not."""

AllGatherMoveDown.patterns = (
    MeshPattern((AllGatherOp.OPERATION_NAME,), move_down, frozenset(_MOVES)),
    MeshPattern((AllGatherOp.OPERATION_NAME,), reduce_shards, frozenset(("stablehlo.reduce",))),
)
