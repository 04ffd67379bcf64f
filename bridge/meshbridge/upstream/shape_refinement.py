"""Sizes that follow from a mesh's: what an unknown size (`?`) of a type becomes once the collectives' group sizes are known.

%1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<?xf32>     @m was ?, is 2 now
%2 = math.exp %1 : tensor<?xf32>
    becomes
%1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
%2 = math.exp %1 : tensor<8xf32>

Sizes pass on through mesh operations, elementwise operations, casts and returns. Any other operation gets the type that it had,
by a `tensor.cast`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshbridge.dialect.ops import CollectiveOpView, ShardOp, UpdateHaloOp
from meshbridge.dialect.signature import Shape, group_size
from meshbridge.ir.mlir import function_type, ir, tensor_type, walk, walk_all
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ops.elementwise import ELEMENTWISE

Value = ir.Value[Any]

_GROWS = ("gather_axis", "concat_axis")
_SHRINKS = ("slice_axis", "split_axis", "scatter_axis")
"""Attributes of collectives that name the dimension that the group's size multiplies or divides."""


def refine_shapes(module: ir.Module, meshes: Mapping[str, Mesh]) -> None:
    """Fills in the sizes of `module` that follow from its `meshes`, in place, function by function."""
    called = {str(op.attributes["callee"]) for op in walk_all(module) if op.name == "func.call"}
    with module.context, ir.Location.unknown():
        for view in module.body.operations:
            function = view.operation
            if function.name == "func.func" and len(function.regions[0].blocks):
                is_called = str(ir.FlatSymbolRefAttr.get(ir.StringAttr(function.attributes["sym_name"]).value)) in called
                _ShapeRefiner(meshes, may_return=not is_called).run(function)


class _ShapeRefiner:
    """Refines one function in program order: operands are refined before their readers."""

    def __init__(self, meshes: Mapping[str, Mesh], *, may_return: bool) -> None:
        self.meshes = meshes
        self.may_return = may_return
        self._before: dict[Value, ir.Type] = {}
        "The earlier type of each refined value."

    def run(self, function: ir.Operation) -> None:
        for op in list(walk(function))[1:]:
            view = op.opview
            if isinstance(view, CollectiveOpView):
                self._fill(op.results[0], self._collective_shape(view))
            elif isinstance(view, ShardOp | UpdateHaloOp) or op.name == "tensor.cast":
                self._fill(op.results[0], _shape(op.operands[0]))
            elif op.name in ELEMENTWISE:
                self._unify(op)
            elif op.name == "func.return" and self.may_return:
                types = ir.FunctionType.get(list(function_type(function).inputs), [value.type for value in op.operands])
                function.attributes["function_type"] = ir.TypeAttr.get(types)
            else:
                self._as_before(op)

    def _collective_shape(self, view: CollectiveOpView) -> Shape:
        """The shape of a collective's result."""
        op = view.operation
        shape = list(_shape(op.operands[0]))
        mesh = self.meshes.get(view.mesh)
        count = group_size(mesh, view.mesh_axes) if mesh is not None else DYNAMIC
        for name in (*_GROWS, *_SHRINKS):
            if name in op.attributes:
                is_growing = name in _GROWS
                dim = int(ir.IntegerAttr(op.attributes[name]).value)
                size = shape[dim]
                is_known = DYNAMIC not in (size, count) and (is_growing or size % count == 0)
                shape[dim] = (size * count if is_growing else size // count) if is_known else DYNAMIC
        return tuple(shape)

    def _unify(self, op: ir.Operation) -> None:
        """Gives all tensors of an elementwise operation but its scalars one shape, with every size that one of them knows."""
        rank = len(_shape(op.results[0]))
        shapes = [_shape(value) for value in (*op.operands, *op.results) if len(_shape(value)) == rank]
        shape = [next((size for size in sizes if size != DYNAMIC), DYNAMIC) for sizes in zip(*shapes, strict=True)]
        for index, operand in enumerate(op.operands):
            if rank and len(_shape(operand)) == rank:
                op.operands[index] = _cast(operand, _filled(operand, shape), op)
        for result in op.results:
            self._fill(result, shape)

    def _fill(self, value: Value, shape: Sequence[int]) -> None:
        refined = _filled(value, shape)
        if refined != value.type:
            self._before.setdefault(value, value.type)
            value.set_type(refined)

    def _as_before(self, op: ir.Operation) -> None:
        for index, operand in enumerate(op.operands):
            if operand in self._before:
                op.operands[index] = _cast(operand, self._before[operand], op)


def _shape(value: Value) -> Shape:
    tensor = tensor_type(value)
    return tuple(tensor.shape) if tensor else ()


def _filled(value: Value, shape: Sequence[int]) -> ir.Type:
    """The type of `value` with its unknown sizes from `shape`."""
    type_: ir.Type = value.type
    tensor = tensor_type(value)
    if tensor is None or len(shape) != tensor.rank or DYNAMIC not in tensor.shape:
        return type_
    sizes = [refined_size if size == DYNAMIC else size for size, refined_size in zip(tensor.shape, shape, strict=True)]
    return ir.RankedTensorType.get(sizes, tensor.element_type, tensor.encoding)


def _cast(value: Value, type_: ir.Type, user: ir.Operation) -> Value:
    if value.type == type_:
        return value
    cast: Value = ir.Operation.create("tensor.cast", [type_], [value], loc=user.location, ip=ir.InsertionPoint(user)).results[0]
    return cast
