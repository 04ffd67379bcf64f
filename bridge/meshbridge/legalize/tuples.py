"""Tuples: their elements go to those who ask for them."""

from __future__ import annotations

from meshbridge.ir.mlir import OpError, ir
from meshbridge.legalize.table import Legalizer, replaces, rewrites


@rewrites("stablehlo.tuple")
def refuse_tuples(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Raises OpError if something takes the tuple as it is: it has no sharding."""
    for reader in rewriter.users(op.results[0]):
        if reader.name not in ("stablehlo.get_tuple_element", "stablehlo.tuple"):
            raise OpError(reader, "takes a tuple, which has no sharding", "pass its elements")
    return False


@replaces("stablehlo.get_tuple_element")
def take_tuples_apart(op: ir.Operation) -> list[ir.Value] | None:
    """Input:   %t = stablehlo.tuple %a, %b
             %0 = stablehlo.get_tuple_element %t[1]
    Output:  %b
    """
    made = op.operands[0].owner
    if isinstance(made, ir.Block) or made.name != "stablehlo.tuple":
        return None
    return [made.operands[ir.IntegerAttr(op.attributes["index"]).value]]
