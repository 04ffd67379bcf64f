"""A device's own slice of a tensor, by its position: no communication, and only mesh ops that return indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers_attr
from meshbridge.dialect.ops import AllSliceOp, MeshOpView
from meshbridge.ir.index_arithmetic import Arithmetic, Index
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.upstream.index_lowering import IndexLowering

_UNEVEN = "Slicing a tensor with axis size that is not exactly divisible by the mesh process group size is not supported."
"""The text of upstream's assertion."""


@register
@dataclass(frozen=True)
class AllSliceLowering(IndexLowering):
    """Turns `mesh.all_slice` into `tensor.extract_slice` at this device's place in its group; upstream's pass of this name.

    Input:   mesh.mesh @m(shape = 2x4)
             %0 = mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
    Output:  %c2 = arith.constant 2 : index
             %1 = mesh.process_multi_index on @m axes = [1] : index
             %2 = arith.muli %1, %c2 : index
             %3 = tensor.extract_slice %x[%2] [%c2] [1] : tensor<8xf32> to tensor<?xf32>
             %0 = tensor.cast %3 : tensor<?xf32> to tensor<2xf32>

    A size that is not known is divided at run time by `mesh.mesh_shape`, after a `cf.assert` that it divides. `canonicalize`
    writes known sizes into the slice.
    """

    name: ClassVar[str] = "test-mesh-all-slice-op-lowering"
    aliases: ClassVar[tuple[str, ...]] = ("test-grid-all-slice-op-lowering",)

    lowers: ClassVar[type[MeshOpView]] = AllSliceOp

    def lower(self, view: MeshOpView, mesh: Mesh, arithmetic: Arithmetic) -> None:
        """The slice, of the type that the op has."""
        assert isinstance(view, AllSliceOp)
        value = _extract(view, mesh, arithmetic) if view.mesh_axes else view.operation.operands[0]
        view.operation.results[0].replace_all_uses_with(_as_type(value, view.operation.results[0].type))


def _extract(view: AllSliceOp, mesh: Mesh, arithmetic: Arithmetic) -> ir.Value:
    """The slice; the type of its sliced dimension is left open, as upstream leaves it."""
    source, dim = view.operation.operands[0], view.slice_axis
    digits = build.process_multi_index(mesh, view.mesh_axes)
    bases = _axis_sizes(mesh, view.mesh_axes)
    size = _divided(_size(source, dim, arithmetic), arithmetic.product(bases), arithmetic)
    start = arithmetic.binary("muli", arithmetic.linearize(digits, bases), size)
    shape = list(ir.RankedTensorType(source.type).shape)
    shape[dim] = DYNAMIC
    sizes = [size if at == dim else _size(source, at, arithmetic) for at, extent in enumerate(shape) if extent == DYNAMIC]
    return _slice(source, dim, shape, list(map(arithmetic.value, (start, *sizes))))


def _axis_sizes(mesh: Mesh, axes: Axes) -> list[Index]:
    """The sizes of mesh axes, asked for at run time where the mesh does not say."""
    unknown = tuple(axis for axis in axes if mesh.shape[axis] == DYNAMIC)
    axis_sizes = iter(build.mesh_shape(mesh, unknown) if unknown else ())
    return [next(axis_sizes) if axis in unknown else mesh.shape[axis] for axis in axes]


def _slice(source: ir.Value, dim: int, shape: list[int], indices: list[ir.Value]) -> ir.Value:
    """`shape` elements of `source` from 0 along all dimensions but `dim`; `indices`: the start there, and what sizes `shape`
    leaves open."""
    rank = len(shape)
    result = ir.RankedTensorType.get(shape, ir.RankedTensorType(source.type).element_type)
    attributes = {
        "static_offsets": integers_attr(DYNAMIC if at == dim else 0 for at in range(rank)),
        "static_sizes": integers_attr(shape),
        "static_strides": integers_attr([1] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, len(indices) - 1, 0]),
    }
    value: ir.Value = ir.Operation.create("tensor.extract_slice", [result], [source, *indices], attributes).results[0]
    return value


def _size(source: ir.Value, dim: int, arithmetic: Arithmetic) -> Index:
    """The size of `source` along `dim`, asked for at run time where its type does not say."""
    static_size = int(ir.RankedTensorType(source.type).shape[dim])
    if static_size != DYNAMIC:
        return static_size
    value: ir.Value = ir.Operation.create("tensor.dim", [ir.IndexType.get()], [source, arithmetic.value(dim)]).results[0]
    return value


def _divided(size: Index, count: Index, arithmetic: Arithmetic) -> Index:
    """`size / count`, after the assertion that nothing is left over, unless that is known."""
    remainder = arithmetic.binary("remui", size, count)
    if remainder != 0:
        equal = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
        operands = [arithmetic.value(remainder), arithmetic.value(0)]
        even = ir.Operation.create("arith.cmpi", [ir.IntegerType.get_signless(1)], operands, {"predicate": equal}).results[0]
        ir.Operation.create("cf.assert", [], [even], {"msg": ir.StringAttr.get(_UNEVEN)})
    return arithmetic.binary("divui", size, count)


def _as_type(value: ir.Value, type_: ir.Type) -> ir.Value:
    """`value` with more or less of its shape in its type."""
    if value.type == type_:
        return value
    cast: ir.Value = ir.Operation.create("tensor.cast", [type_], [value]).results[0]
    return cast
