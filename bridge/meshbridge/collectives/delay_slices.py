"""`delay-slices`: slices a layer of a stacked argument in the loop over layers, instead of all layers before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers_attr
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import find, ir, terminator
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import block_of, is_argument, look_through, unchanged_numbers


@register
@dataclass(frozen=True)
class DelaySlices(Pass):
    """Moves slices of a function's arguments at the device's number into the loops that read one layer of them at a time.

    Input:   %0 = mesh.all_slice %w on @m mesh_axes = [0] slice_axis = 1 : tensor<8x4xf32> -> tensor<8x2xf32>
             %1:3 = stablehlo.while(%i = %zero, %a = %0, %b = %x) {
               %2 = stablehlo.dynamic_slice %a, %i, %zero, sizes = [1, 2] : tensor<8x2xf32> -> tensor<1x2xf32>
             }
    Output:  %1:3 = stablehlo.while(%i = %zero, %a = %w, %b = %x) {
               %2 = stablehlo.dynamic_slice %a, %i, %zero, sizes = [1, 4] : tensor<8x4xf32> -> tensor<1x4xf32>
               %3 = mesh.all_slice %2 on @m mesh_axes = [0] slice_axis = 1 : tensor<1x4xf32> -> tensor<1x2xf32>
             }

    A slice of all layers is a copy, which is held while the loop runs. Compilers merge the two slices of one layer, and fuse them
    into the product that reads them. The argument stays in memory either way.
    """

    name: ClassVar[str] = "delay-slices"

    def run(self, module: ir.Module) -> bool:
        with module.context:
            meshes = declared_meshes(module.body)
            slices = [AllSliceOp(op) for op in find(module.operation, [AllSliceOp.OPERATION_NAME])]
            changed = [_delay(piece, meshes[piece.mesh]) for piece in reversed(slices) if _is_of_argument(piece)]
        return any(changed)


def _is_of_argument(piece: AllSliceOp) -> bool:
    """Whether a slice is one of a function's argument, which may be sliced along other dimensions before."""
    source = look_through(piece.input, (AllSliceOp.OPERATION_NAME,))
    return is_argument(source) and block_of(source).owner.operation.name == "func.func"


@dataclass
class _Uses:
    """The uses of a slice, through loops that carry it unchanged."""

    readers: list[ir.Operation] = field(default_factory=list)
    "Slices of it, at a layer."
    carried: list[ir.Value] = field(default_factory=list)
    "The arguments and results of loops that are it."


def _delay(piece: AllSliceOp, mesh: Mesh) -> bool:
    """Moves a slice after all its readers, if they read it in loops, a layer at a time; returns whether they do."""
    sliced, whole, uses = piece.operation.results[0], piece.input, _Uses()
    is_static = DYNAMIC not in (*mesh.shape, *shape_of(whole))
    if not is_static or not _reads_layers(sliced, piece.slice_axis, uses) or not uses.readers:
        return False
    sliced.replace_all_uses_with(whole)
    for value in uses.carried:
        value.set_type(whole.type)
    for reader in uses.readers:
        _slice_after(reader, piece, mesh)
    piece.operation.erase()
    return True


def _reads_layers(value: ir.Value, dim: int, uses: _Uses) -> bool:
    """Whether all readers of a value are loops, or slice it in one, but not along `dim`; adds them to `uses`."""
    for use in value.uses:
        user, number = use.owner.operation, use.operand_number
        if user.name == "stablehlo.while" and number in unchanged_numbers(user):
            same = [*(region.blocks[0].arguments[number] for region in user.regions), user.results[number]]
            uses.carried += same
            if not all(_reads_layers(carried, dim, uses) for carried in same):
                return False
        elif is_argument(value) and user.name == "stablehlo.dynamic_slice" and number == 0 and _takes_whole(user, dim):
            uses.readers.append(user)
        elif not (is_argument(value) and user == terminator(block_of(value)) and number == ir.BlockArgument(value).arg_number):
            return False
    return True


def _takes_whole(op: ir.Operation, dim: int) -> bool:
    """Whether a slice takes all elements along `dim`, and fewer along another dimension."""
    source, layer = op.operands[0], op.results[0]
    return shape_of(source)[dim] == shape_of(layer)[dim] and tensor_bytes(layer) < tensor_bytes(source)


def _slice_after(reader: ir.Operation, piece: AllSliceOp, mesh: Mesh) -> None:
    """Makes a slice take all elements along the dimension of `piece`, and slices its result as `piece` does."""
    layer, dim = reader.results[0], piece.slice_axis
    shape = shape_of(layer)
    shape[dim] = shape_of(piece.input)[dim]
    users = [(use.owner.operation, use.operand_number) for use in layer.uses]
    reader.attributes["slice_sizes"] = integers_attr(shape)
    layer.set_type(tensor(shape, element_of(layer)))
    part = build.all_slice(layer, mesh, mesh_axes=piece.mesh_axes, slice_axis=dim, at=Builder.after(reader))
    for user, number in users:
        user.operands[number] = part
