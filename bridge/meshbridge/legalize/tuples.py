"""Removes tuples: readers of an element get the element."""

from __future__ import annotations

from meshbridge.ir.mlir import OpError, ir
from meshbridge.legalize.table import Legalizer, replaces, rewrites


@rewrites("stablehlo.tuple")
def refuse_tuples(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Raises OpError if an op takes a whole tuple, which has no sharding."""
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
    tuple_op = op.operands[0].owner
    if isinstance(tuple_op, ir.Block) or tuple_op.name != "stablehlo.tuple":
        return None
    return [tuple_op.operands[ir.IntegerAttr(op.attributes["index"]).value]]
