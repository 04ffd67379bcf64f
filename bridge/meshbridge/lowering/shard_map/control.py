"""Loops and branches, whose regions are functions that read what is around them."""

from __future__ import annotations

from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import ir
from meshbridge.lowering.shard_map.code import Code, call, infix, list_of, literal, tuple_of
from meshbridge.lowering.shard_map.scope import Scope
from meshbridge.lowering.shard_map.table import writes


@writes("while")
def while_(op: ir.Operation, scope: Scope) -> Code:
    """`lax.while_loop` over a tuple, or over the one value that the loop carries."""
    condition, body = (region.blocks[0] for region in op.regions)
    parameters = ("state",) if len(op.operands) > 1 else ()
    names = [scope.function(block, base, parameters) for block, base in ((condition, "goes_on"), (body, "step"))]
    codes = scope.operands(op)
    return call("lax.while_loop", *names, codes[0] if len(codes) == 1 else tuple_of(codes))


@writes("case")
def case(op: ir.Operation, scope: Scope) -> Code:
    """`lax.switch`, in which StableHLO's last branch is taken for every index that has none; `lax.cond` where a bit chooses."""
    index, branches = op.operands[0], [region.blocks[0] for region in op.regions]
    if len(branches) == 2 and (bit := _converted_bit(index)) is not None:
        return _cond(bit, branches[1], branches[0], scope)
    code, last = scope.at(index), len(branches) - 1
    names = [Code(scope.function(block, "branch")) for block in branches]
    if not _is_clamped(index):
        code = call("jnp.where", infix(scope.named(index), "<", Code("0")), literal(last), scope.named(index))
    return call("lax.switch", code, list_of(names))


def _converted_bit(index: ir.Value) -> ir.Value | None:
    """The bit that an index was made of."""
    if isinstance(index.owner, ir.Block) or index.owner.operation.name != "stablehlo.convert":
        return None
    source: ir.Value = index.owner.operation.operands[0]
    return source if str(element_of(source)) == "i1" else None


def _is_clamped(index: ir.Value) -> bool:
    """Whether nothing but indices of branches, or more, can come."""
    return not isinstance(index.owner, ir.Block) and index.owner.operation.name == "stablehlo.clamp"


@writes("if")
def if_(op: ir.Operation, scope: Scope) -> Code:
    """`lax.cond`."""
    return _cond(op.operands[0], op.regions[0].blocks[0], op.regions[1].blocks[0], scope)


def _cond(bit: ir.Value, taken: ir.Block, otherwise: ir.Block, scope: Scope) -> Code:
    names = [scope.function(block, base) for block, base in ((taken, "if_true"), (otherwise, "if_false"))]
    return call("lax.cond", scope.at(bit), *names)
