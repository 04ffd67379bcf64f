"""Simplifies gathers and scatters whose indices are iotas: `x[2*arange(n)]` is a slice, and `x[arange(n), i]` reads row k by the
k-th index, so that operand and indices may be sharded alike."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.analysis.known_values import Iota, known
from meshbridge.dialect.attributes import integers_attr
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op
from meshbridge.legalize.table import Legalizer, replaces, rewrites
from meshbridge.ops.addressing import Addressing, addressing_of
from meshbridge.ops.rule import shape_of


@replaces("stablehlo.gather")
def slice_lookups(op: ir.Operation) -> list[ir.Value] | None:
    """Replaces a gather at equal steps by a slice, if the steps cover half of each indexed dimension or more. For a smaller part,
    a few devices would send pieces to all others, one after the other.

    Input:   %i = stablehlo.multiply of an iota along dimension 0 and 2 : tensor<32x1xi32>
             %0 = "stablehlo.gather"(%x, %i) offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0] :
                  (tensor<64x4xf32>, tensor<32x1xi32>) -> tensor<32x4xf32>
    Output:  %0 = stablehlo.slice %x [0:63:2, 0:4] : (tensor<64x4xf32>) -> tensor<32x4xf32>
    """
    how, (operand, indices) = addressing_of(op), op.operands
    shape, index_shape, result = shape_of(operand), shape_of(indices), shape_of(op.results[0])
    index_dims = [dim for dim in range(len(index_shape)) if dim != how.vector_dim]
    of_result, walks = {along: dim for dim, along in how.window if how.sizes[dim] == shape[dim]}, dict[int, range]()
    for component, dim in enumerate(how.addressed):
        part = indices if len(how.addressed) == 1 else _component(indices, how.vector_dim, component)
        counted = None if part is None else known(part)
        if not isinstance(counted, Iota) or not counted.step or counted.dim not in index_dims:
            return None
        end = counted.start + counted.step * index_shape[counted.dim]
        walks[dim] = range(counted.start, end, counted.step)
        of_result[how.batch_dims(len(result))[index_dims.index(counted.dim)]] = dim
    order = [of_result.get(along, -1) for along in range(len(result))]
    inside = all(walk and min(walk) >= 0 and max(walk) < shape[dim] for dim, walk in walks.items())
    across = all(2 * len(walk) * abs(walk.step) >= shape[dim] for dim, walk in walks.items())
    if not inside or not across or 0 in shape or sorted(order) != list(range(len(shape))):
        return None
    builder, every = Builder.current(), [walks.get(dim, range(size)) for dim, size in enumerate(shape)]
    ends = zip(*[(min(walk), max(walk) + 1, abs(walk.step)) for walk in every], strict=True)
    value = builder.cut(operand, *map(list, ends))
    if turned := [dim for dim, walk in enumerate(every) if walk.step < 0]:
        value = builder.value("reverse", value.type, [value], {"dimensions": integers_attr(turned)})
    return [value if order == sorted(order) else builder.transpose(value, order)]


@rewrites("stablehlo.gather", "stablehlo.scatter")
def batch_lookups(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Turns dimensions of a gather or scatter that a full iota indexes into batching dimensions.

    Input:   %i = stablehlo.concatenate of an iota along dimension 0 and %labels : tensor<8x2xi32>
             %0 = "stablehlo.gather"(%x, %i) collapsed_slice_dims = [0, 1], start_index_map = [0, 1] : (tensor<8x16xf32>, …)
    Output:  %j = stablehlo.slice %i [0:8, 1:2] : tensor<8x1xi32>
             %0 = "stablehlo.gather"(%x, %j) collapsed_slice_dims = [1], operand_batching_dims = [0],
                  start_indices_batching_dims = [0], start_index_map = [1] : …
    """
    how, number = addressing_of(op), 1 if op.name == "stablehlo.gather" else len(op.results)
    counting = _counting(how, shape_of(op.operands[0]), op.operands[number])
    if not counting:
        return False
    rewriter.set_operand(op, number, _select_components(op.operands[number], how.vector_dim, set(counting)))
    batching = [(how.addressed[component], dim) for component, dim in counting.items()]
    addressed = tuple(dim for component, dim in enumerate(how.addressed) if component not in counting)
    replace(how, addressed=addressed, batching=tuple(sorted((*how.batching, *batching)))).write_to(op)
    return True


def _counting(how: Addressing, operand: tuple[int, ...], indices: ir.Value) -> dict[int, int]:
    """Index components that are a full iota along a dimension of the indices, and that dimension; never all components."""
    shape = shape_of(indices)
    batched_dims = {index_dim for _, index_dim in how.batching}
    inside = {dim for dim, _ in how.window}
    counting: dict[int, int] = {}
    for component, addressed in enumerate(how.addressed):
        part = _component(indices, how.vector_dim, component)
        counted = None if part is None or addressed in inside else known(part)
        dim = counted.dim if isinstance(counted, Iota) and (counted.start, counted.step) == (0, 1) else None
        fits = dim is not None and dim != how.vector_dim and dim not in batched_dims and shape[dim] == operand[addressed]
        if dim is not None and fits and len(counting) + 1 < len(how.addressed):
            batched_dims.add(dim)
            counting[component] = dim
    return counting


def _component(indices: ir.Value, vector_dim: int, component: int) -> ir.Value | None:
    """The value that was concatenated into `indices` as one component of the index vectors, or None."""
    op = defining_op(indices)
    if op is None or op.name != "stablehlo.concatenate" or ir.IntegerAttr(op.attributes["dimension"]).value != vector_dim:
        return None
    parts = [part for part in op.operands for _ in range(shape_of(part)[vector_dim])]
    return parts[component] if shape_of(parts[component])[vector_dim] == 1 else None


def _select_components(indices: ir.Value, vector_dim: int, dropped: set[int]) -> ir.Value:
    """The index vectors without the components `dropped`."""
    builder, components = Builder.current(), sorted(set(range(shape_of(indices)[vector_dim])) - dropped)
    return builder.concatenate([builder.slice(indices, vector_dim, component, 1) for component in components], vector_dim)
