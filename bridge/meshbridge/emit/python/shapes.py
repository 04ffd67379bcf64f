"""Ops that put elements elsewhere: broadcasts, reshapes, transpositions, slices, pads, iota."""

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
    """What numpy's rules do by themselves where an operand of the full shape stands beside it, else `jnp.broadcast_to`."""
    (operand,), (result,) = op.operands, op.results
    shape, dims = tuple(shape_of(result)), sizes(op, "broadcast_dimensions")
    known = scope.written(operand)
    if known.loose is not None and not known.loose_shape and not dims:
        full = call("jnp.full", literal(shape), known.loose, scope.dtype(result, op))
        scope.define(result, full if shape else known.code, known.loose, number=known.is_number)
        return None
    code = known.code
    if not code.text.isidentifier() and len(list(result.uses)) > 1:
        code = scope.named(operand)
    if list(dims) != sorted(dims):
        return call("lax.broadcast_in_dim", code, literal(shape), literal(dims))
    loose, loose_shape = _expanded(code, tuple(shape_of(operand)), dims, len(shape))
    full = loose if loose_shape == shape else call("jnp.broadcast_to", loose, literal(shape))
    scope.define(result, full, loose, loose_shape)
    return None


def _expanded(code: Code, shape: tuple[int, ...], dims: tuple[int, ...], rank: int) -> tuple[Code, tuple[int, ...]]:
    """An array of that shape, its dimensions at `dims` of `rank`: with new dimensions of size 1 behind its first one."""
    if not dims or dims == tuple(range(rank - len(dims), rank)):
        return code, shape
    places = range(dims[0], rank)
    expanded = tuple(shape[dims.index(place)] if place in dims else 1 for place in places)
    return subscript(code, [":" if place in dims else "None" for place in places]), expanded


def subscript(code: Code, entries: list[str]) -> Code:
    """`x[:, None]`, without what stands behind the last entry that says something."""
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
    entries = [_bounds(*each) for each in bounds]
    while entries and entries[-1] == ":":
        entries.pop()
    return subscript(scope.short(op.operands[0]), entries) if entries else scope.at(op.operands[0])


def _bounds(start: int, limit: int, stride: int, size: int) -> str:
    first, last = str(start) if start else "", str(limit) if limit != size else ""
    return f"{first}:{last}" if stride == 1 else f"{first}:{last}:{stride}"


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
    """`jnp.pad` with zeros behind and in front, `lax.pad` with anything else or between."""
    operand, filling = op.operands
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    table = tuple(zip(*(sizes(op, name) for name in names), strict=True))
    known = scope.written(filling)
    is_zero = known.loose is not None and known.loose.text in ("0", "0.0", "False")
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
    """`lax.dynamic_slice`, or that of one dimension. Indices that no piece can start at are clamped, as StableHLO's are: JAX
    would count negative ones from the end."""
    operand, *starts = op.operands
    size = sizes(op, "slice_sizes")
    cut = [dim for dim, whole in enumerate(shape_of(operand)) if size[dim] != whole]
    if not cut:
        return scope.at(operand)
    if len(cut) == 1:
        (dim,) = cut
        start = _start(starts[dim], scope)
        return call("lax.dynamic_slice_in_dim", scope.at(operand), start, literal(size[dim]), axis=literal(dim), **_CLAMPED)
    return call("lax.dynamic_slice", scope.at(operand), _starts(starts, scope), literal(size), **_CLAMPED)


@writes("dynamic_update_slice")
def dynamic_update_slice(op: ir.Operation, scope: Scope) -> Code:
    """`lax.dynamic_update_slice`, or that of one dimension."""
    operand, update, *starts = op.operands
    cut = [dim for dim, (whole, part) in enumerate(zip(shape_of(operand), shape_of(update), strict=True)) if part != whole]
    if not cut:
        return scope.at(update)
    given = (scope.at(operand), scope.at(update))
    if len(cut) == 1:
        (dim,) = cut
        return call("lax.dynamic_update_slice_in_dim", *given, _start(starts[dim], scope), axis=literal(dim), **_CLAMPED)
    return call("lax.dynamic_update_slice", *given, _starts(starts, scope), **_CLAMPED)


_CLAMPED = {"allow_negative_indices": "False"}


def _start(value: ir.Value, scope: Scope) -> Code:
    """An index alone, which may be a Python number."""
    known = scope.written(value)
    return known.loose if known.loose is not None and known.is_number else known.code


def _starts(starts: list[ir.Value], scope: Scope) -> Code:
    return bracketed("(", map(scope.at, starts), ")")


@writes("stablehlo.get_dimension_size")
def dimension_size(op: ir.Operation, scope: Scope) -> Code:
    """The size itself, which is known."""
    size = shape_of(op.operands[0])[integer(op, "dimension")]
    return call(str(scope.dtype(op.results[0], op)), literals.number_code(size))
