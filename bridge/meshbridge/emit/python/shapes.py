"""Writes data movement: broadcasts, reshapes, transpositions, slices, pads, iota."""

from __future__ import annotations

from meshbridge.dialect.attributes import integers
from meshbridge.emit.python import literals
from meshbridge.emit.python.code import ATOM, Code, bracketed, call, list_of, literal, method
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.mlir import ir


def integer(op: ir.Operation, name: str) -> int:
    """An integer attribute."""
    return int(ir.IntegerAttr(op.attributes[name]).value)


def sizes(op: ir.Operation, name: str) -> tuple[int, ...]:
    """An attribute that lists integers."""
    return integers(op.attributes[name])


@writes("broadcast_in_dim")
def broadcast_in_dim(op: ir.Operation, scope: Scope) -> Code | None:
    """Implicit broadcasting beside an operand of the full shape, else `jnp.broadcast_to`."""
    (operand,), (result,) = op.operands, op.results
    shape, dims = tuple(shape_of(result)), sizes(op, "broadcast_dimensions")
    operand_code = scope.written(operand)
    if operand_code.loose is not None and not operand_code.loose_shape and not dims:
        full = call("jnp.full", literal(shape), operand_code.loose, scope.dtype(result, op))
        scope.define(result, full if shape else operand_code.code, operand_code.loose, number=operand_code.is_number)
        return None
    code = operand_code.code
    if not code.text.isidentifier() and len(list(result.uses)) > 1:
        code = scope.named(operand)
    if list(dims) != sorted(dims):
        return call("lax.broadcast_in_dim", code, literal(shape), literal(dims))
    loose, loose_shape = _expanded(code, tuple(shape_of(operand)), dims, len(shape))
    full = loose if loose_shape == shape else call("jnp.broadcast_to", loose, literal(shape))
    scope.define(result, full, loose, loose_shape)
    return None


def _expanded(code: Code, shape: tuple[int, ...], dims: tuple[int, ...], rank: int) -> tuple[Code, tuple[int, ...]]:
    """`code`, an array of that shape, with new dimensions of size 1 so that its dimensions become `dims` of `rank`."""
    if not dims or dims == tuple(range(rank - len(dims), rank)):
        return code, shape
    places = range(dims[0], rank)
    expanded = tuple(shape[dims.index(place)] if place in dims else 1 for place in places)
    return subscript(code, [":" if place in dims else "None" for place in places]), expanded


def subscript(code: Code, entries: list[str]) -> Code:
    """`x[:, None]`."""
    return Code(f"{code.bound(ATOM)}[{', '.join(entries)}]")


@writes("reshape")
def reshape(op: ir.Operation, scope: Scope) -> Code:
    """`x.reshape`."""
    shape = tuple(shape_of(op.results[0]))
    if shape == tuple(shape_of(op.operands[0])):
        return scope.at(op.operands[0])
    return method(scope.short(op.operands[0]), "reshape", *([Code(str(size)) for size in shape] or [literal(())]))


@writes("transpose")
def transpose(op: ir.Operation, scope: Scope) -> Code:
    """`x.transpose`."""
    order = sizes(op, "permutation")
    if list(order) == sorted(order):
        return scope.at(op.operands[0])
    return method(scope.short(op.operands[0]), "transpose", *map(str, order))


@writes("slice")
def slice_(op: ir.Operation, scope: Scope) -> Code:
    """`x[1:3, :, ::2]`."""
    shape = shape_of(op.operands[0])
    bounds = zip(*(sizes(op, name) for name in ("start_indices", "limit_indices", "strides")), shape, strict=True)
    entries = [_bounds(*bound) for bound in bounds]
    while entries and entries[-1] == ":":
        entries.pop()
    return subscript(scope.short(op.operands[0]), entries) if entries else scope.at(op.operands[0])


def _bounds(start: int, limit: int, stride: int, size: int) -> str:
    lower, upper = str(start) if start else "", str(limit) if limit != size else ""
    return f"{lower}:{upper}" if stride == 1 else f"{lower}:{upper}:{stride}"


@writes("reverse")
def reverse(op: ir.Operation, scope: Scope) -> Code:
    """`lax.rev`."""
    return call("lax.rev", scope.at(op.operands[0]), literal(sizes(op, "dimensions")))


@writes("concatenate")
def concatenate(op: ir.Operation, scope: Scope) -> Code:
    """`jnp.concatenate`."""
    operands = scope.operands(op)
    if len(operands) == 1:
        return operands[0]
    return call("jnp.concatenate", list_of(operands), axis=literal(integer(op, "dimension")))


@writes("pad")
def pad(op: ir.Operation, scope: Scope) -> Code:
    """`jnp.pad` for zeros at the edges, else `lax.pad`."""
    operand, filling = op.operands
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    table = tuple(zip(*(sizes(op, name) for name in names), strict=True))
    filling_code = scope.written(filling)
    is_zero = filling_code.loose is not None and filling_code.loose.text in ("0", "0.0", "False")
    if is_zero and table and all(low >= 0 and high >= 0 and not inner for low, high, inner in table):
        return call("jnp.pad", scope.at(operand), literal(tuple((low, high) for low, high, _ in table)))
    return call("lax.pad", scope.at(operand), scope.at(filling), literal(table))


@writes("iota")
def iota(op: ir.Operation, scope: Scope) -> Code:
    """`lax.iota` in one dimension, `lax.broadcasted_iota` in more."""
    (result,) = op.results
    shape, dtype = tuple(shape_of(result)), scope.dtype(result, op)
    if len(shape) == 1 and not isinstance(element_of(result), ir.ComplexType):
        return call("lax.iota", dtype, literal(shape[0]))
    return call("lax.broadcasted_iota", dtype, literal(shape), literal(integer(op, "iota_dimension")))


@writes("dynamic_slice")
def dynamic_slice(op: ir.Operation, scope: Scope) -> Code:
    """`lax.dynamic_slice`, or `lax.dynamic_slice_in_dim`. Negative indices are not allowed, so that they are clamped as in
    StableHLO instead of counted from the end."""
    operand, *starts = op.operands
    size = sizes(op, "slice_sizes")
    sliced_dims = [dim for dim, whole in enumerate(shape_of(operand)) if size[dim] != whole]
    if not sliced_dims:
        return scope.at(operand)
    if len(sliced_dims) == 1:
        (dim,) = sliced_dims
        start = _start(starts[dim], scope)
        return call("lax.dynamic_slice_in_dim", scope.at(operand), start, literal(size[dim]), axis=literal(dim), **_CLAMPED)
    return call("lax.dynamic_slice", scope.at(operand), _starts(starts, scope), literal(size), **_CLAMPED)


@writes("dynamic_update_slice")
def dynamic_update_slice(op: ir.Operation, scope: Scope) -> Code:
    """`lax.dynamic_update_slice`, or `lax.dynamic_update_slice_in_dim`."""
    operand, update, *starts = op.operands
    updated_dims = [
        dim for dim, (whole, part) in enumerate(zip(shape_of(operand), shape_of(update), strict=True)) if part != whole
    ]
    if not updated_dims:
        return scope.at(update)
    arrays = (scope.at(operand), scope.at(update))
    if len(updated_dims) == 1:
        (dim,) = updated_dims
        return call("lax.dynamic_update_slice_in_dim", *arrays, _start(starts[dim], scope), axis=literal(dim), **_CLAMPED)
    return call("lax.dynamic_update_slice", *arrays, _starts(starts, scope), **_CLAMPED)


_CLAMPED = {"allow_negative_indices": "False"}


def _start(value: ir.Value, scope: Scope) -> Code:
    """A single index, which may be a Python number."""
    index_code = scope.written(value)
    return index_code.loose if index_code.loose is not None and index_code.is_number else index_code.code


def _starts(starts: list[ir.Value], scope: Scope) -> Code:
    return bracketed("(", map(scope.at, starts), ")")


@writes("stablehlo.get_dimension_size")
def dimension_size(op: ir.Operation, scope: Scope) -> Code:
    """The size, which is static."""
    size = shape_of(op.operands[0])[integer(op, "dimension")]
    return call(str(scope.dtype(op.results[0], op)), literals.number_code(size))
