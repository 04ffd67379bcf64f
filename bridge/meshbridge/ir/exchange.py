"""StableHLO all-to-alls, for the lowering of mesh collectives and for resharding plans."""

from __future__ import annotations

from math import prod

from meshbridge.ir.builder import Builder, Shape, element_of, integer, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_name, look_through

COMBINERS = {
    "sum": "add",
    "average": "add",
    "max": "maximum",
    "min": "minimum",
    "product": "multiply",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}
"""By reduction kind, the StableHLO operation that combines two elements. `generic` has no body to lower."""


def exchange_over(
    emit: Builder, value: ir.Value, split: int, concat: int, count: int, groups: dict[str, ir.Attribute]
) -> ir.Value:
    """`stablehlo.all_to_all` between groups of `count` devices, given by the attributes `groups`."""
    whole = shape_of(value)
    if is_assembled(value):
        value = emit.barrier(value)
    if split > concat:  # if pieces are a dimension of their own, XLA needs no further copy of the shard
        value = emit.reshape(value, [*whole[:split], count, whole[split] // count, *whole[split + 1 :]])
    shape = shape_of(value)
    for sizes in (shape, whole):
        sizes[split] //= count
        sizes[concat] *= count
    attrs = {"split_dimension": integer(split), "concat_dimension": integer(concat), "split_count": integer(count)}
    return emit.reshape(emit.value("all_to_all", tensor(shape, element_of(value)), [value], attrs | groups), whole)


def in_rows(emit: Builder, value: ir.Value, count: int) -> ir.Value:
    """The elements of `value` in `count` rows, the last ones padded. An all-to-all of rows gives each member of a group a piece
    of every value, one row each; another one collects pieces. Together they replace a permute."""
    total = prod(shape_of(value))
    flat = emit.pad_along(emit.reshape(value, [total]), 0, 0, 0, -total % count)
    return emit.reshape(flat, [count, -(-total // count)])


def out_of_rows(emit: Builder, rows: ir.Value, shape: Shape) -> ir.Value:
    """The value of `shape` from which `in_rows` made `rows`."""
    flat = emit.reshape(rows, [prod(shape_of(rows))])
    return emit.reshape(emit.slice(flat, 0, 0, prod(shape)), shape)


_REARRANGING = frozenset(("stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice"))


def is_assembled(value: ir.Value) -> bool:
    """Whether `value` is padded or concatenated, and at most rearranged afterwards: XLA would send the parts instead of pieces of
    the result, and refuse them if it has chosen other layouts for them."""
    return defining_name(look_through(value, _REARRANGING)) in ("stablehlo.pad", "stablehlo.concatenate")
