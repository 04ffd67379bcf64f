"""Writes loops and branches. Their regions become nested functions, which read variables around them."""

from __future__ import annotations

import re

from meshbridge.emit.python.code import Code, call, infix, list_of, literal, statement, tuple_of, unpacked
from meshbridge.emit.python.names import identifier
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, op_of, shape_of
from meshbridge.ir.mlir import ir, terminator_operands
from meshbridge.ir.uses import defining_name


@writes("while")
def while_(op: ir.Operation, scope: Scope) -> None:
    """`lax.while_loop` over the values that the loop changes; its functions read loop-invariant values as free variables."""
    condition, body = (region.blocks[0] for region in op.regions)
    next_values = terminator_operands(body)
    changed = [number for number, value in enumerate(next_values) if value != body.arguments[number]]
    for number in sorted({*range(len(next_values))} - {*changed}):
        for value in (condition.arguments[number], body.arguments[number], op.results[number]):
            scope.alias(value, op.operands[number])
    bases = [_base(op.operands[number], scope) for number in changed]
    names = [scope.argument(body.arguments[number], base) for number, base in zip(changed, bases, strict=True)]
    for index, number in enumerate(changed):
        scope.define(condition.arguments[number], Code("state" if len(changed) == 1 else f"state[{index}]"))
    begin = unpacked(names, "state", "") if len(names) > 1 else []
    goes_on = scope.defined(condition, "goes_on", ("state",), [])
    step = scope.defined(body, "step", names if len(names) == 1 else ("state",), begin, changed)
    codes = [scope.at(op.operands[number]) for number in changed]
    carried = [scope.argument(op.results[number], base) for number, base in zip(changed, bases, strict=True)]
    loop = call("lax.while_loop", goes_on, step, codes[0] if len(codes) == 1 else tuple_of(codes))
    scope.comment(op)
    scope.lines += statement(carried, loop, scope.indent)


_NUMBER = re.compile(r"_\d+$")


def _base(start: ir.Value, scope: Scope) -> str:
    """The base name of a loop variable: that of its initial value."""
    text = scope.at(start).text
    return _NUMBER.sub("", text) if text.isidentifier() else "x" if shape_of(start) else "i"


@writes("case")
def case(op: ir.Operation, scope: Scope) -> Code:
    """`lax.switch`, with StableHLO's rule that the last branch runs for an index out of range; `lax.cond` on a bit."""
    index, branches = op.operands[0], [region.blocks[0] for region in op.regions]
    if len(branches) == 2 and (bit := _converted_bit(index)) is not None:
        return _cond(bit, branches[1], branches[0], scope)
    code, last_branch = scope.at(index), len(branches) - 1
    names = [Code(scope.function(block, "branch")) for block in branches]
    if not _is_clamped(index):
        code = call("jnp.where", infix(scope.named(index), "<", Code("0")), literal(last_branch), scope.named(index))
    return call("lax.switch", code, list_of(names))


def _converted_bit(index: ir.Value) -> ir.Value | None:
    """The bit that was converted to `index`, or None."""
    if defining_name(index) != "stablehlo.convert":
        return None
    source: ir.Value = op_of(index).operands[0]
    return source if str(element_of(source)) == "i1" else None


def _is_clamped(index: ir.Value) -> bool:
    """True if the index is clamped to the branches."""
    return defining_name(index) == "stablehlo.clamp"


@writes("if")
def if_(op: ir.Operation, scope: Scope) -> Code:
    """`lax.cond`."""
    return _cond(op.operands[0], op.regions[0].blocks[0], op.regions[1].blocks[0], scope)


def _cond(bit: ir.Value, if_true: ir.Block, if_false: ir.Block, scope: Scope) -> Code:
    names = [scope.function(block, base) for block, base in ((if_true, "if_true"), (if_false, "if_false"))]
    return call("lax.cond", scope.at(bit), *names)


@writes("func.call", "composite")
def called(op: ir.Operation, scope: Scope) -> Code:
    """A call of a function that is defined here, from the function that the op names."""
    symbol = ir.FlatSymbolRefAttr(op.attributes["callee" if op.name == "func.call" else "decomposition"]).value
    body = scope.script.functions[symbol].regions[0].blocks[0]
    return call(scope.function(body, identifier(symbol)), *scope.operands(op))
