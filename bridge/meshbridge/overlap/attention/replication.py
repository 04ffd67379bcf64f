"""Whether the devices along an axis compute different sums."""

from __future__ import annotations

from meshbridge.collectives.rewriter import is_replicated_argument
from meshbridge.dialect.ops import (
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    CollectiveOpView,
    ProcessLinearIndexOp,
    ProcessMultiIndexOp,
    ReduceScatterOp,
)
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import block_of, defining_op
from meshbridge.overlap.attention.online_softmax import OnlineSoftmax


def differs(softmax: OnlineSoftmax) -> bool:
    """Whether devices along the axis compute different sums. Those that all devices compute must stay the same on all of them,
    which rings do not give: each adds up in another order."""
    seen: set[ir.Value] = set()
    waiting: list[ir.Value] = [softmax.scores]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        op = defining_op(value)
        if op is None:
            around = block_of(value).owner.operation
            if around.name == "func.func":
                if not is_replicated_argument(value, softmax.mesh.name, (softmax.axis,)):
                    return True
            else:
                waiting += around.operands
            continue
        if op.name in _POSITIONS or (op.name in _SPLITTING and _along(op, softmax)):
            return True
        if not (op.name in _ALIKE and _along(op, softmax)):
            waiting += op.operands
    return False


_ALIKE = frozenset((AllGatherOp.OPERATION_NAME, AllReduceOp.OPERATION_NAME))
_SPLITTING = frozenset((AllSliceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME))
_POSITIONS = frozenset((ProcessMultiIndexOp.OPERATION_NAME, ProcessLinearIndexOp.OPERATION_NAME))


def _along(op: ir.Operation, softmax: OnlineSoftmax) -> bool:
    view = CollectiveOpView(op)
    return view.mesh == softmax.mesh.name and softmax.axis in view.mesh_axes
