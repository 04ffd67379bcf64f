"""CHLO ops that artifacts of older JAX versions have as custom calls, named after the MHLO op."""

from __future__ import annotations

from meshbridge.ir.mlir import CUSTOM_CALL, OpError, call_target, ir
from meshbridge.legalize.table import replaces
from meshbridge.ops.rule import RULES

_ATTRIBUTES = "mhlo.attributes"
_TOP_K = "mhlo.topk"


@replaces(CUSTOM_CALL)
def expand_older_calls(op: ir.Operation) -> list[ir.Value] | None:
    """`custom_call @mhlo.erf(%x)` -> `chlo.erf %x`, as XLA reads it.

    Raises OpError for a top-k of the smallest elements, which CHLO does not have.
    """
    target = call_target(op)
    name = "chlo.top_k" if target == _TOP_K else target.replace("mhlo.", "chlo.", 1)
    if not target.startswith("mhlo.") or name not in RULES:
        return None
    carried = ir.DictAttr(op.attributes[_ATTRIBUTES]) if _ATTRIBUTES in op.attributes else ir.DictAttr.get({})
    if "largest" in carried and not ir.BoolAttr(carried["largest"]).value:
        raise OpError(op, "takes the smallest elements, which no operation of CHLO does", "negate the operand")
    attributes = {entry: carried[entry] for entry in ("k",) if entry in carried}
    kinds = [result.type for result in op.results]
    return list(ir.Operation.create(name, kinds, list(op.operands), attributes).results)
