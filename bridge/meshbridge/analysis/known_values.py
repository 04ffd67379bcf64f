"""Integers that the text of a program gives away."""

from __future__ import annotations

from meshbridge.ir.mlir import ir


def known_integer(value: ir.Value) -> int | None:
    """The scalar integer, or i1, that `value` is whatever the arguments are: a constant, or the result of a `case` or `if` all of
    whose branches that may be taken yield the same. Annotations make no difference."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if op.name == "mesh.shard":
        return known_integer(op.operands[0])
    if op.name == "stablehlo.constant":
        return _scalar(op.attributes["value"])
    if op.name not in ("stablehlo.case", "stablehlo.if"):
        return None
    number = ir.OpResult(value).result_number
    yielded = [known_integer(list(region.blocks[0].operations)[-1].operation.operands[number]) for region in op.regions]
    index = known_integer(op.operands[0])
    if index is not None:
        position = (0 if index else 1) if op.name == "stablehlo.if" else index if 0 <= index < len(yielded) else -1
        return yielded[position]
    return yielded[0] if len(set(yielded)) == 1 else None


def _scalar(value: ir.Attribute) -> int | None:
    if not isinstance(value, ir.DenseIntElementsAttr) or not value.is_splat or ir.RankedTensorType(value.type).rank:
        return None
    return int(ir.IntegerAttr(value.get_splat_value()).value)
