"""gather and scatter in full: index vectors anywhere, batching dimensions, windows, every mode and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.operations.cases import ALL, FLOATS, INTEGERS, Case, Operand
from tests.operations.drawing import Drawer, family
from tests.operations.raw import raw, tensor

INDEX_TYPES = ("int32", "int64", "uint32", "int8", "uint8")


@dataclass(frozen=True)
class Places:
    """The dimension numbers that gather and scatter share, with the shapes that they are about.

    `window` are the operand dimensions of which slices stand in the result, `slices` their sizes by operand dimension,
    `result` the shape of gather's result and of scatter's updates.
    """

    operand: tuple[int, ...]
    indices: tuple[int, ...]
    vector_dim: int
    slices: tuple[int, ...]
    collapsed: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    start_map: tuple[int, ...]
    offsets: tuple[int, ...]
    result: tuple[int, ...]


def _places(d: Drawer) -> Places:
    operand = tuple(d.pick((8, 4, 10, 3, 5, 1, 12)) for _ in range(d.integer(1, 3)))
    rank = len(operand)
    roles = [d.pick(("collapsed", "window", "whole", "batching")) for _ in operand]
    collapsed, batching = ([dim for dim in range(rank) if roles[dim] == role] for role in ("collapsed", "batching"))
    window = [dim for dim in range(rank) if roles[dim] in ("window", "whole")]
    slices = tuple(
        1 if roles[dim] in ("collapsed", "batching") else size if roles[dim] == "whole" else d.integer(1, size)
        for dim, size in enumerate(operand)
    )
    indexed = [dim for dim in range(rank) if dim not in batching and (roles[dim] != "whole" or d.integer(0, 3) == 3)]
    start_map = d.order(indexed)
    lookups = [(None, d.pick((4, 8, 1, 3, 6))) for _ in range(d.integer(0, 2))]
    walks: list[tuple[int | None, int]] = list(d.order([*lookups, *[(dim, operand[dim]) for dim in batching]]))
    implicit = len(start_map) == 1 and d.flag()
    vector_dim = len(walks) if implicit else d.integer(0, len(walks))
    sizes = [size for _, size in walks]
    indices = tuple(sizes if implicit else [*sizes[:vector_dim], len(start_map), *sizes[vector_dim:]])
    places = {home: at + (not implicit and at >= vector_dim) for at, (home, _) in enumerate(walks) if home is not None}
    total = len(walks) + len(window)
    offsets = tuple(sorted(d.order(range(total))[: len(window)]))
    remaining, windows = iter(sizes), iter([slices[dim] for dim in window])
    result = tuple(next(windows) if dim in offsets else next(remaining) for dim in range(total))
    return Places(
        operand,
        indices,
        vector_dim,
        slices,
        tuple(collapsed),
        tuple(batching),
        tuple(places[dim] for dim in batching),
        start_map,
        offsets,
        result,
    )


def _list(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"


@family
def gather(d: Drawer) -> Case:
    """StableHLO's gather with all its dimension numbers; indices out of bounds are clamped."""
    places, dtype, index = _places(d), d.pick(ALL), d.pick(INDEX_TYPES)
    kinds = [tensor(places.operand, dtype), tensor(places.indices, index), tensor(places.result, dtype)]
    body = f"""%r = "stablehlo.gather"(%0, %1) {{dimension_numbers = #stablehlo.gather<offset_dims = {_list(places.offsets)},
      collapsed_slice_dims = {_list(places.collapsed)}, operand_batching_dims = {_list(places.batching)},
      start_indices_batching_dims = {_list(places.index_batching)}, start_index_map = {_list(places.start_map)},
      index_vector_dim = {places.vector_dim}>, slice_sizes = array<i64: {_list(places.slices)[1:-1]}>,
      indices_are_sorted = false}} : ({kinds[0]}, {kinds[1]}) -> {kinds[2]}"""
    function = raw(body, [(places.operand, dtype), (places.indices, index)], [(places.result, dtype)])
    operands = [d.operand(places.operand, dtype), d.operand(places.indices, index, max(places.operand))]
    return d.case(f"gather {places} {dtype} by {index}", function, operands, [len(places.result)])


KINDS = ("add", "multiply", "maximum", "minimum")


@family
def scatter(d: Drawer) -> Case:
    """StableHLO's scatter with all its dimension numbers and kinds; updates out of bounds are dropped."""
    places, index = _places(d), d.pick(INDEX_TYPES)
    dtype = d.pick((*FLOATS, *INTEGERS, "complex64", "bool"))
    bits = ("and", "or", "xor")
    kind = d.pick(("add", "multiply") if dtype == "complex64" else (*KINDS, *bits) if dtype in (*INTEGERS, "bool") else KINDS)
    combine = f"%s = stablehlo.{kind} %a, %b : {tensor((), dtype)}\nstablehlo.return %s : {tensor((), dtype)}"
    return _scatter_case(d, places, index, dtype, kind, combine)


@family
def scatter_any_body(d: Drawer) -> Case:
    """Bodies that replace (no index twice, so that there is one answer), and bodies of several ops."""
    places, dtype = _places(d), d.pick(("float32", "int32"))
    scalar = tensor((), dtype)
    if d.flag():
        places = _unrepeated(places)
        return _scatter_case(d, places, "int32", dtype, "replace", f"stablehlo.return %b : {scalar}", distinct=True)
    combine = f"""%s = stablehlo.maximum %a, %b : {scalar}
      %t = stablehlo.maximum %s, %a : {scalar}
      stablehlo.return %t : {scalar}"""
    return _scatter_case(d, places, "int32", dtype, "nested maximum", combine)


def _unrepeated(places: Places) -> Places:
    """The same with slices of single elements, so that different indices write to different elements."""
    slices = tuple(size if size == whole else 1 for size, whole in zip(places.slices, places.operand, strict=True))
    window = [dim for dim in range(len(slices)) if dim not in places.collapsed and dim not in places.batching]
    result = list(places.result)
    for dim, at in zip(window, places.offsets, strict=True):
        result[at] = slices[dim]
    values = {field: getattr(places, field) for field in places.__dataclass_fields__}
    return Places(**{**values, "slices": slices, "result": tuple(result)})


def _scatter_case(d: Drawer, places: Places, index: str, dtype: str, kind: str, combine: str, distinct: bool = False) -> Case:
    kinds = [tensor(places.operand, dtype), tensor(places.indices, index), tensor(places.result, dtype)]
    scalar = tensor((), dtype)
    body = f"""%r = "stablehlo.scatter"(%0, %1, %2) ({{ ^bb0(%a: {scalar}, %b: {scalar}):
      {combine} }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {_list(places.offsets)},
      inserted_window_dims = {_list(places.collapsed)}, input_batching_dims = {_list(places.batching)},
      scatter_indices_batching_dims = {_list(places.index_batching)}, scatter_dims_to_operand_dims = {_list(places.start_map)},
      index_vector_dim = {places.vector_dim}>, indices_are_sorted = false, unique_indices = false}}
      : ({kinds[0]}, {kinds[1]}, {kinds[2]}) -> {kinds[0]}"""
    call = raw(body, [(places.operand, dtype), (places.indices, index), (places.result, dtype)], [(places.operand, dtype)])
    indices: Operand = d.operand(places.indices, index, max(places.operand))

    def function(x: Any, i: Any, updates: Any) -> Any:
        return call(x, _spread(places, i) if distinct else i, updates)

    operands = [d.operand(places.operand, dtype, "whole"), indices, d.operand(places.result, dtype, "whole")]
    return d.case(f"scatter {kind} {places} {dtype} by {index}", function, operands, [len(places.operand)])


def _spread(places: Places, indices: Any) -> Any:
    """Indices of which no two are alike (along the look-ups of one batch): counted, some of them far out of bounds."""
    implicit = places.vector_dim == len(places.indices)
    counts = [1 if dim == places.vector_dim else size for dim, size in enumerate(places.indices)]
    number = lax.iota("int32", _product(counts)).reshape(counts)
    if implicit:
        return number + 0 * indices
    parts = []
    for dim in places.start_map:
        parts.append(number % places.operand[dim])
        number = number // places.operand[dim]
    if parts:
        parts[-1] = parts[-1] + number * 1000
    return jnp.concatenate(parts, places.vector_dim) + 0 * indices if parts else indices


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


@family
def numpy_indexing(d: Drawer) -> Case:
    """What users write: take in its modes, take_along_axis, `at` in its kinds, with gradients."""
    shape, count = d.shape(1, 3, 512), d.pick((4, 1, 3, 8))
    axis = d.integer(0, len(shape) - 1)
    mode, kind = d.pick(("clip", "fill", "promise_in_bounds")), d.pick(("add", "max", "min", "multiply"))
    high = shape[axis]
    inside = mode == "promise_in_bounds"
    picks = d.operand((count,), "int32", high)
    updates = (*shape[:axis], count, *shape[axis + 1 :])

    def function(x: Any, i: Any, u: Any) -> Any:
        i = jnp.clip(i, 0, high - 1) if inside else i
        place = (slice(None),) * axis + (i,)

        def taken(x: Any) -> Any:
            return jnp.take(x, i, axis, mode=None if inside else mode)

        written = getattr(x.at[place], kind)(u)
        gradient = jax.grad(lambda x: jnp.sum(jnp.where(jnp.isnan(taken(x)), 0.0, taken(x)) ** 2))(x)
        return taken(x), written, gradient, jnp.take_along_axis(x, jnp.argsort(x, axis), axis)

    operands = [d.operand(shape, "float32"), picks, d.operand(updates, "float32")]
    return d.case(f"take {mode}, at {kind} {axis}", function, operands, [len(shape)] * 4, 1e-4)


@family
def scatter_variadic(d: Drawer) -> Case:
    """Two operands scattered by one set of indices."""
    rows, columns, count = d.pick((8, 10, 3)), d.pick((4, 5)), d.pick((4, 6))
    kinds = [tensor((rows, columns), "float32"), tensor((rows, columns), "int32")]
    updates = [tensor((count, columns), "float32"), tensor((count, columns), "int32")]
    body = f"""%r:2 = "stablehlo.scatter"(%0, %1, %2, %3, %4) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<i32>):
      %s = stablehlo.add %a, %c : tensor<f32>
      %t = stablehlo.maximum %b, %d : tensor<i32>
      stablehlo.return %s, %t : tensor<f32>, tensor<i32> }}) {{scatter_dimension_numbers =
      #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>}} : ({kinds[0]}, {kinds[1]}, {tensor((count, 1), "int32")}, {updates[0]}, {updates[1]})
      -> ({kinds[0]}, {kinds[1]})"""
    shapes = [((rows, columns), "float32"), ((rows, columns), "int32"), ((count, 1), "int32")]
    shapes += [((count, columns), "float32"), ((count, columns), "int32")]
    values: list[str | int] = ["whole", "whole", rows, "whole", "whole"]
    operands = [d.operand(shape, dtype, kind) for (shape, dtype), kind in zip(shapes, values, strict=True)]
    return d.case(f"scatter of two {rows}", raw(body, shapes, shapes[:2]), operands, [2, 2])
