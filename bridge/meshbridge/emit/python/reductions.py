"""Writes reductions, also over windows, as functions of lax."""

from __future__ import annotations

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.emit.python import literals
from meshbridge.emit.python.code import INDENT, Code, call, literal, returned, tuple_of
from meshbridge.emit.python.elementwise import direction_of
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import sizes
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, op_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_name

_REDUCERS = {
    "add": ("sum", "lax.reduce_sum", "lax.add"),
    "maximum": ("max", "lax.reduce_max", "lax.max"),
    "minimum": ("min", "lax.reduce_min", "lax.min"),
    "multiply": ("product", "lax.reduce_prod", "lax.mul"),
    "and": ("bitwise_and", "lax.reduce_and", "lax.bitwise_and"),
    "or": ("bitwise_or", "lax.reduce_or", "lax.bitwise_or"),
    "xor": ("bitwise_xor", "lax.reduce_xor", "lax.bitwise_xor"),
}
"""By the op of a region: the kind of reduction, JAX's function of it from the neutral element, and that of two elements."""

ON_BITS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
"""By arithmetic op: its meaning on `i1`."""


def combiner_of(block: ir.Block) -> str:
    """The name of the only StableHLO op of a region, applied to its two arguments; empty if the region computes more."""
    inner = [view.operation for view in block.operations]
    if len(inner) != 2 or len(block.arguments) != 2 or not inner[0].name.startswith("stablehlo."):
        return ""
    op, end = inner
    if set(op.operands) != set(block.arguments) or list(end.operands) != list(op.results):
        return ""
    name = op.name.partition(".")[2]
    bits = str(element_of(block.arguments[0])) == "i1"
    return ON_BITS.get(name, name) if bits else name


def function_of(block: ir.Block, scope: Scope) -> Code:
    """A region on two scalars as a function of lax, or as a function that is defined here."""
    reducer = _reducer(block)
    return Code(reducer[2] if reducer else scope.function(block, "combine"))


def _reducer(block: ir.Block) -> tuple[str, str, str] | None:
    """The entry of _REDUCERS for a region. JAX has no bitwise reductions of integers below 8 bits."""
    name, element = combiner_of(block), element_of(block.arguments[0])
    if name in ("and", "or", "xor") and isinstance(element, ir.IntegerType) and 1 < element.width < 8:
        return None
    return _REDUCERS.get(name)


def _pairs(block: ir.Block, scope: Scope) -> Code:
    """A region on several accumulated and several new scalars, as a function of two tuples."""
    names = [scope.argument(argument, "x") for argument in block.arguments]
    half = len(names) // 2
    begin = [f"{', '.join(part)} = {side}" for part, side in ((names[:half], "so_far"), (names[half:], "new"))]
    return Code(scope.defined(block, "combine", ("so_far", "new"), begin))


@writes("reduce")
def reduce(op: ir.Operation, scope: Scope) -> Code:
    """`lax.reduce_sum` and others if the region is theirs and the initial value neutral, else `lax.reduce`."""
    block, dims = op.regions[0].blocks[0], literal(sizes(op, "dimensions"))
    codes = scope.operands(op)
    count = len(op.results)
    if count > 1:
        return call("lax.reduce", tuple_of(codes[:count]), tuple_of(codes[count:]), _pairs(block, scope), dims)
    reducer = _reducer(block)
    if reducer and _is_neutral(op.operands[1], reducer[0]):
        return call(reducer[1], codes[0], axes=dims)
    return call("lax.reduce", *codes, function_of(block, scope), dims)


def _is_neutral(value: ir.Value, kind: str) -> bool:
    """True if a reduction of that kind ignores `value`."""
    if defining_name(value) != "stablehlo.constant":
        return False
    element = element_of(value)
    if isinstance(element, ir.ComplexType):
        return kind in ("sum", "product") and complex(literals.splat(op_of(value))) == (kind == "product")
    start = np.asarray(literals.splat(op_of(value)))
    if kind == "sum" and bool(np.signbit(start.astype(np.float64))) and not float(start):
        return False  # JAX starts at +0, which changes a sum of -0 only
    return bool(start == np.asarray(neutral(kind, element)).astype(start.dtype))


@writes("reduce_window")
def reduce_window(op: ir.Operation, scope: Scope) -> Code:
    """`lax.reduce_window`."""
    block, count = op.regions[0].blocks[0], len(op.results)
    codes = scope.operands(op)
    window = sizes(op, "window_dimensions")
    if count > 1:
        arguments: list[Code] = [tuple_of(codes[:count]), tuple_of(codes[count:]), _pairs(block, scope)]
    else:
        arguments = [*codes, function_of(block, scope)]
    ones = (1,) * len(window)
    named = {"window_dimensions": literal(window), "window_strides": literal(_attribute(op, "window_strides", ones))}
    named["padding"] = literal(padding_of(op, len(window)))
    for name, ours in (("base_dilations", "base_dilation"), ("window_dilations", "window_dilation")):
        if (dilation := _attribute(op, name, ones)) != ones:
            named[ours] = literal(dilation)
    return call("lax.reduce_window", *arguments, **named)


def _attribute(op: ir.Operation, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return integers(op.attributes[name]) if name in op.attributes else default


def padding_of(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    """The low and high padding of a window in each dimension."""
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    return [(int(low), int(high)) for low, high in np.array(op.attributes["padding"]).reshape(-1, 2)]


_SELECTED = {"GE": ("lax.max", True), "GT": ("lax.max", True), "LE": ("lax.min", False), "LT": ("lax.min", False)}


@writes("select_and_scatter")
def select_and_scatter(op: ir.Operation, scope: Scope) -> Code:
    """The gradient of a max or min pooling, from which JAX makes this op."""
    operand, source, start = op.operands
    select, scatter = (region.blocks[0] for region in op.regions)
    compared = next(view.operation for view in select.operations)
    direction = direction_of(compared) if compared.name == "stablehlo.compare" else ""
    in_order = list(compared.operands) == list(select.arguments)
    if direction not in ("GE", "LE") or not in_order or combiner_of(scatter) != "add" or not _is_neutral(start, "sum"):
        raise scope.error(op, "selects or adds up in a way that JAX has no function for, expected GE or LE, and a sum from 0")
    function, lowest = _SELECTED[direction]
    element = element_of(operand)
    bound = neutral("max" if lowest else "min", element)
    number = literals.number_code(np.asarray(bound).astype(literals.numpy_type(element, op))[()])
    rank = len(sizes(op, "window_dimensions"))
    window = {"window_dimensions": literal(sizes(op, "window_dimensions"))}
    window["window_strides"] = literal(_attribute(op, "window_strides", (1,) * rank))
    window["padding"] = literal(padding_of(op, rank))
    start_at = call("np.array", number, scope.dtype(operand, op))  # a constant, so that JAX can differentiate
    pooled = call("lax.reduce_window", "x", start_at, function, **window)
    name = scope.script.names.numbered("pool")
    scope.lines += [f"{scope.indent}def {name}(x):", *returned(pooled, scope.indent + INDENT), ""]
    return Code(f"jax.vjp({name}, {scope.at(operand)})[1]({scope.at(source)})[0]")
