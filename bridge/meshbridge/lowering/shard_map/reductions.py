"""Reductions, those over windows, and sorts: functions of lax by what their regions compute."""

from __future__ import annotations

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import element_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir, terminator
from meshbridge.lowering.shard_map import literals
from meshbridge.lowering.shard_map.code import INDENT, Code, call, literal, returned, statement, tuple_of
from meshbridge.lowering.shard_map.elementwise import direction_of, is_total
from meshbridge.lowering.shard_map.scope import Scope
from meshbridge.lowering.shard_map.shapes import integer, sizes
from meshbridge.lowering.shard_map.table import writes

_REDUCERS = {
    "add": ("sum", "lax.reduce_sum", "lax.add"),
    "maximum": ("max", "lax.reduce_max", "lax.max"),
    "minimum": ("min", "lax.reduce_min", "lax.min"),
    "multiply": ("product", "lax.reduce_prod", "lax.mul"),
    "and": ("bitwise_and", "lax.reduce_and", "lax.bitwise_and"),
    "or": ("bitwise_or", "lax.reduce_or", "lax.bitwise_or"),
    "xor": ("bitwise_xor", "lax.reduce_xor", "lax.bitwise_xor"),
}
"""What a region of one op is: the kind of reduction, JAX's function for one from its neutral element, and that of two elements."""

_OF_BITS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
"""What these mean on `i1`."""


def combiner_of(block: ir.Block) -> str:
    """The one op of StableHLO, by its name there, that a region of two arguments applies to both; empty where it does more."""
    inner = [view.operation for view in block.operations]
    if len(inner) != 2 or len(block.arguments) != 2 or not inner[0].name.startswith("stablehlo."):
        return ""
    op, end = inner
    if set(op.operands) != set(block.arguments) or list(end.operands) != list(op.results):
        return ""
    name = op.name.partition(".")[2]
    bits = str(element_of(block.arguments[0])) == "i1"
    return _OF_BITS.get(name, name) if bits else name


def function_of(block: ir.Block, scope: Scope) -> Code:
    """A region of two scalars as a function of lax, or as one that is defined here."""
    found = _REDUCERS.get(combiner_of(block))
    return Code(found[2] if found else scope.function(block, "combine"))


def _pairs(block: ir.Block, scope: Scope) -> Code:
    """A region of several scalars, those so far before those that are new, as a function of two tuples."""
    names = [scope.argument(argument, "x") for argument in block.arguments]
    half = len(names) // 2
    begin = [f"{', '.join(part)} = {side}" for part, side in ((names[:half], "so_far"), (names[half:], "new"))]
    return Code(scope.defined(block, "combine", ("so_far", "new"), begin))


@writes("reduce")
def reduce(op: ir.Operation, scope: Scope) -> Code:
    """`lax.reduce_sum` and others where the region is that of one and the start is neutral, `lax.reduce` elsewhere."""
    block, dims = op.regions[0].blocks[0], literal(sizes(op, "dimensions"))
    codes = scope.operands(op)
    count = len(op.results)
    if count > 1:
        return call("lax.reduce", tuple_of(codes[:count]), tuple_of(codes[count:]), _pairs(block, scope), dims)
    found = _REDUCERS.get(combiner_of(block))
    if found and _is_neutral(op.operands[1], found[0]):
        return call(found[1], codes[0], axes=dims)
    return call("lax.reduce", *codes, function_of(block, scope), dims)


def _is_neutral(value: ir.Value, kind: str) -> bool:
    """Whether a reduction of that kind ignores `value`."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "stablehlo.constant":
        return False
    element = element_of(value)
    if isinstance(element, ir.ComplexType):
        return kind in ("sum", "product") and complex(literals.splat(value.owner.operation)) == (kind == "product")
    found = np.asarray(literals.splat(value.owner.operation))
    if kind == "sum" and bool(np.signbit(found.astype(np.float64))) and not float(found):
        return False  # JAX starts at +0, which makes a sum of nothing but -0 another one
    return bool(found == np.asarray(neutral(kind, element)).astype(found.dtype))


@writes("reduce_window")
def reduce_window(op: ir.Operation, scope: Scope) -> Code:
    """`lax.reduce_window`."""
    block, count = op.regions[0].blocks[0], len(op.results)
    codes = scope.operands(op)
    window = sizes(op, "window_dimensions")
    if count > 1:
        given: list[Code] = [tuple_of(codes[:count]), tuple_of(codes[count:]), _pairs(block, scope)]
    else:
        given = [*codes, function_of(block, scope)]
    ones = (1,) * len(window)
    named = {"window_dimensions": literal(window), "window_strides": literal(_or(op, "window_strides", ones))}
    named["padding"] = literal(padding_of(op, len(window)))
    for name, ours in (("base_dilations", "base_dilation"), ("window_dilations", "window_dilation")):
        if (found := _or(op, name, ones)) != ones:
            named[ours] = literal(found)
    return call("lax.reduce_window", *given, **named)


def _or(op: ir.Operation, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return integers(op.attributes[name]) if name in op.attributes else default


def padding_of(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    """Of a window: how far it reaches beyond the operand at both ends of each dimension."""
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    return [(int(low), int(high)) for low, high in np.array(op.attributes["padding"]).reshape(-1, 2)]


_SELECTED = {"GE": ("lax.max", True), "GT": ("lax.max", True), "LE": ("lax.min", False), "LT": ("lax.min", False)}


@writes("select_and_scatter")
def select_and_scatter(op: ir.Operation, scope: Scope) -> Code:
    """The gradient of a pooling by its largest or smallest elements, which is what JAX makes this op of."""
    operand, source, start = op.operands
    select, scatter = (region.blocks[0] for region in op.regions)
    compared = [view.operation for view in select.operations][0]
    found = direction_of(compared) if compared.name == "stablehlo.compare" else ""
    in_order = list(compared.operands) == list(select.arguments)
    if found not in ("GE", "LE") or not in_order or combiner_of(scatter) != "add" or not _is_neutral(start, "sum"):
        raise scope.error(op, "selects or adds up in a way that JAX has no function for, expected GE or LE, and a sum from 0")
    function, lowest = _SELECTED[found]
    element = element_of(operand)
    bound = neutral("max" if lowest else "min", element)
    number = literals.number_code(np.asarray(bound).astype(literals.numpy_type(element, op))[()])
    rank = len(sizes(op, "window_dimensions"))
    window = {"window_dimensions": literal(sizes(op, "window_dimensions"))}
    window["window_strides"] = literal(_or(op, "window_strides", (1,) * rank))
    window["padding"] = literal(padding_of(op, rank))
    start_at = call("np.array", number, scope.dtype(operand, op))  # which JAX knows at once, and so how to differentiate
    pooled = call("lax.reduce_window", "x", start_at, function, **window)
    name = scope.script.names.numbered("pool")
    scope.lines += [f"{scope.indent}def {name}(x):", *returned(pooled, scope.indent + INDENT), ""]
    return Code(f"jax.vjp({name}, {scope.at(operand)})[1]({scope.at(source)})[0]")


@writes("sort")
def sort(op: ir.Operation, scope: Scope) -> Code:
    """`lax.sort`. A comparator is known where it compares one operand, or several in the order that JAX's own comparators have;
    descending order is ascending order of what is turned round."""
    block, dim = op.regions[0].blocks[0], integer(op, "dimension")
    keys, descends = _keys(op, block, scope)
    codes = scope.operands(op)
    order = [*keys, *(index for index in range(len(codes)) if index not in keys)]
    turned = [call("lax.rev", codes[index], literal((dim,))) if descends else codes[index] for index in order]
    stable = "True" if "is_stable" in op.attributes and ir.BoolAttr(op.attributes["is_stable"]).value else "False"
    given = tuple_of(turned) if len(turned) > 1 else turned[0]
    named = {"dimension": literal(dim), "is_stable": Code(stable)} | ({"num_keys": literal(len(keys))} if len(keys) > 1 else {})
    found = call("lax.sort", given, **named)
    if order == sorted(order) and not descends:
        return found
    name = scope.script.names.numbered("in_order")
    scope.lines += statement([name], found, scope.indent)
    parts = [Code(f"{name}[{order.index(index)}]" if len(codes) > 1 else name) for index in range(len(codes))]
    turned = [call("lax.rev", part, literal((dim,))) if descends else part for part in parts]
    return tuple_of(turned) if len(turned) > 1 else turned[0]


def _keys(op: ir.Operation, block: ir.Block, scope: Scope) -> tuple[list[int], bool]:
    """The operands that a comparator compares, first ones first, and whether the largest comes first."""
    arguments = {argument: number for number, argument in enumerate(block.arguments)}
    (last,) = terminator(block).operands  # type: ignore[union-attr]  # blocks end
    found = _comparison(last, arguments)
    if found is None:
        hint = "sort by one key, or by several with lax.sort and num_keys"
        raise scope.error(op, "sorts by a comparator that lax.sort does not have", hint)
    return found


def _comparison(value: ir.Value, arguments: dict[ir.Value, int]) -> tuple[list[int], bool] | None:
    """`a < b`, or JAX's `a0 < b0 or (a0 == b0 and a1 < b1)`, nested."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        key = _compared(op, arguments)
        side = direction_of(op)
        return ([key], side == "GT") if key is not None and side in ("LT", "GT") else None
    if op.name == "stablehlo.or":
        for first, second in (tuple(op.operands), tuple(reversed(op.operands))):
            head, tail = _comparison(first, arguments), _tied(second, arguments)
            if head is not None and tail is not None and head == ([tail[0]], tail[1][1]):
                return [tail[0], *tail[1][0]], tail[1][1]
    if op.name == "stablehlo.select":  # select(a0 == b0, a1 < b1, a0 < b0)
        tie, rest, head = op.operands
        key, tail, first = _equal(tie, arguments), _comparison(rest, arguments), _comparison(head, arguments)
        if key is not None and tail is not None and first == ([key], tail[1]):
            return [key, *tail[0]], tail[1]
    return None


def _tied(value: ir.Value, arguments: dict[ir.Value, int]) -> tuple[int, tuple[list[int], bool]] | None:
    """`a0 == b0 and (…)`."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "stablehlo.and":
        return None
    for first, second in (tuple(op.operands), tuple(reversed(op.operands))):
        key, rest = _equal(first, arguments), _comparison(second, arguments)
        if key is not None and rest is not None:
            return key, rest
    return None


def _equal(value: ir.Value, arguments: dict[ir.Value, int]) -> int | None:
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "stablehlo.compare" or direction_of(op) != "EQ":
        return None
    return _compared(op, arguments)


def _compared(op: ir.Operation, arguments: dict[ir.Value, int]) -> int | None:
    """The operand whose two elements are compared, the first of them on the left."""
    left, right = (_element(operand, arguments) for operand in op.operands)
    if left is None or right is None or left % 2 or right != left + 1:
        return None
    if is_total(op) and literals.is_float_type(element_of(op.operands[0])) and op.operands[0] in arguments:
        return None  # signed zeros differ there, and are equal to lax.sort
    return left // 2


def _element(value: ir.Value, arguments: dict[ir.Value, int]) -> int | None:
    """The argument of a comparator that `value` is, signed zeros and NaNs made one as JAX's comparators do."""
    if value in arguments:
        return arguments[value]
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "stablehlo.select":
        return None
    _, canonical, other = value.owner.operation.operands
    is_constant = not isinstance(canonical.owner, ir.Block) and canonical.owner.operation.name == "stablehlo.constant"
    return _element(other, arguments) if is_constant else None
