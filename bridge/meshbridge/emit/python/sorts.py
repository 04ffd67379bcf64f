"""Writes sorts as `lax.sort`, by the keys of their comparators."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.emit.python import literals
from meshbridge.emit.python.code import Code, call, literal, statement, tuple_of
from meshbridge.emit.python.elementwise import direction_of, is_total
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import integer
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, op_of
from meshbridge.ir.mlir import ir, terminator_operands
from meshbridge.ir.uses import is_argument


@writes("sort")
def sort(op: ir.Operation, scope: Scope) -> Code:
    """`lax.sort`. The comparator must compare one operand, or several as JAX's own comparators do; a descending sort reverses
    the operands and the results."""
    dim, sort_order = integer(op, "dimension"), _order_of(op, scope)
    keys, descends = sort_order.keys, sort_order.descends
    codes = scope.operands(op)
    order = [*keys, *(index for index in range(len(codes)) if index not in keys)]
    turned = [call("lax.rev", codes[index], literal((dim,))) if descends else codes[index] for index in order]
    stable = "True" if "is_stable" in op.attributes and ir.BoolAttr(op.attributes["is_stable"]).value else "False"
    operand = tuple_of(turned) if len(turned) > 1 else turned[0]
    named = {"dimension": literal(dim), "is_stable": Code(stable)} | ({"num_keys": literal(len(keys))} if len(keys) > 1 else {})
    in_order = call("lax.sort", operand, **named)
    if order == sorted(order) and not descends:
        return in_order
    name = scope.script.names.numbered("in_order")
    scope.lines += statement([name], in_order, scope.indent)
    parts = [Code(f"{name}[{order.index(index)}]" if len(codes) > 1 else name) for index in range(len(codes))]
    turned = [call("lax.rev", part, literal((dim,))) if descends else part for part in parts]
    return tuple_of(turned) if len(turned) > 1 else turned[0]


@dataclass(frozen=True)
class _SortOrder:
    """The order of a comparator: the numbers of the operands it compares, the primary key first, and whether it descends."""

    keys: tuple[int, ...]
    descends: bool


def _order_of(op: ir.Operation, scope: Scope) -> _SortOrder:
    """The order of the comparator of a sort. Raises OpError for one that lax.sort does not have."""
    block = op.regions[0].blocks[0]
    arguments: dict[ir.Value, int] = {argument: number for number, argument in enumerate(block.arguments)}
    (predicate,) = terminator_operands(block)
    if (sort_order := _order_by(predicate, arguments)) is None:
        hint = "sort by one key, or by several with lax.sort and num_keys"
        raise scope.error(op, "sorts by a comparator that lax.sort does not have", hint)
    return sort_order


def _definition(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that defines `value`, if it has one of these names."""
    if is_argument(value):
        return None
    op = op_of(value)
    return op if op.name.partition(".")[2] in names else None


def _order_by(value: ir.Value, arguments: dict[ir.Value, int]) -> _SortOrder | None:
    """`a0 < b0`, or for several keys JAX's `a0 < b0 or (a0 == b0 and …)` and `select(a0 == b0, …, a0 < b0)`."""
    op = _definition(value, "compare", "or", "select")
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        key, side = _key(op, arguments), direction_of(op)
        return _SortOrder((key,), side == "GT") if key is not None and side in ("LT", "GT") else None
    if op.name == "stablehlo.select":
        return _order_by_ties(op.operands[0], op.operands[1], op.operands[2], arguments)
    for strict, alternative in (tuple(op.operands), tuple(reversed(op.operands))):
        tied = _definition(alternative, "and")
        for tie, tie_break in (tuple(tied.operands), tuple(reversed(tied.operands))) if tied else ():
            if (sort_order := _order_by_ties(tie, tie_break, strict, arguments)) is not None:
                return sort_order
    return None


def _order_by_ties(tie: ir.Value, tie_break: ir.Value, strict: ir.Value, arguments: dict[ir.Value, int]) -> _SortOrder | None:
    """The order of the comparison `strict`, with `tie_break` as the order of ties; `tie` is the test for one."""
    equal = _definition(tie, "compare")
    if equal is None or direction_of(equal) != "EQ" or (key := _key(equal, arguments)) is None:
        return None
    inner_order = _order_by(tie_break, arguments)
    if inner_order is None or _order_by(strict, arguments) != _SortOrder((key,), inner_order.descends):
        return None
    return _SortOrder((key, *inner_order.keys), inner_order.descends)


def _key(op: ir.Operation, arguments: dict[ir.Value, int]) -> int | None:
    """The number of the operand whose two elements are compared, the first of them on the left."""
    left_number, right_number = (_argument(operand, arguments) for operand in op.operands)
    if left_number is None or right_number is None or left_number % 2 or right_number != left_number + 1:
        return None
    if is_total(op) and literals.is_float_type(element_of(op.operands[0])) and op.operands[0] in arguments:
        return None  # signed zeros differ there, and are equal to lax.sort
    return left_number // 2


def _argument(value: ir.Value, arguments: dict[ir.Value, int]) -> int | None:
    """The number of the comparator argument `value`, through the selects by which JAX merges signed zeros and NaNs."""
    if value in arguments:
        return arguments[value]
    chosen = _definition(value, "select")
    if chosen is None or _definition(chosen.operands[1], "constant") is None:
        return None
    return _argument(chosen.operands[2], arguments)
