"""CHLO ops that artifacts of older JAX versions have as custom calls, named after the MHLO op."""

from __future__ import annotations

from meshbridge.ir.mlir import CUSTOM_CALL, OpError, call_target, ir
from meshbridge.legalize.table import replaces

_ATTRIBUTES = "mhlo.attributes"
_UNARY = "acos acosh asin asinh atanh cosh erf erf_inv sinh tan"

LEGACY_CALLS = {**{f"mhlo.{name}": f"chlo.{name}" for name in _UNARY.split()}, "mhlo.topk": "chlo.top_k"}
"""By target of a call: the CHLO op."""


@replaces(CUSTOM_CALL)
def expand_older_calls(op: ir.Operation) -> list[ir.Value] | None:
    """`custom_call @mhlo.erf(%x)` -> `chlo.erf %x`, as XLA reads it.

    Raises OpError for a top-k of the smallest elements, which CHLO does not have.
    """
    name = LEGACY_CALLS.get(call_target(op))
    if name is None:
        return None
    carried = ir.DictAttr(op.attributes[_ATTRIBUTES]) if _ATTRIBUTES in op.attributes else ir.DictAttr.get({})
    if "largest" in carried and not ir.BoolAttr(carried["largest"]).value:
        raise OpError(op, "takes the smallest elements, which no operation of CHLO does", "negate the operand")
    attributes = {entry: carried[entry] for entry in ("k",) if entry in carried}
    kinds = [result.type for result in op.results]
    return list(ir.Operation.create(name, kinds, list(op.operands), attributes).results)
