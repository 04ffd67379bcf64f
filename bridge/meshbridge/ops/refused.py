"""Ops that a partitioned program cannot have, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import CUSTOM_CALL, OpError, call_target, ir

MAX_BYTES = 2**63 - 1
"""Of one tensor, as XLA counts them."""

PLACEMENT = "annotate_device_placement"
"""The call that says in which memory its value is kept. Its operand is its result, and each device keeps its own shard there."""

INSPECTION = "meshbridge.inspect_sharding"
"""The call that asks how its operand is sharded (`inspections`). It does nothing when the program runs."""

_EFFECT = "has a side effect that would happen once per device"
_DEVICE = "says which device runs it, which has no meaning where programs compute on global tensors"
_GROUPS = "exchanges shards, which has no meaning where programs compute on global tensors"

REFUSED: dict[str, tuple[str, str]] = {
    **{
        f"stablehlo.{name}": (_EFFECT, "keep it out of the partitioned program") for name in ("infeed", "outfeed", "send", "recv")
    },
    **{f"stablehlo.{name}": ("runs beside the program", "use the synchronous op") for name in ("async_start", "async_done")},
    "stablehlo.collective_reduce": ("sums up on one device, for which there is no lowering", "use stablehlo.all_reduce"),
    "stablehlo.set_dimension_size": ("makes a size that is only known at run time", "pad to a size that is known"),
}
"""Ops that are refused anywhere: what is wrong with them, and a way out."""

INSIDE_ONLY: dict[str, str] = {
    **{f"stablehlo.{name}": _DEVICE for name in ("partition_id", "replica_id")},
    **{
        f"stablehlo.{name}": _GROUPS
        for name in (
            "all_gather",
            "all_reduce",
            "all_to_all",
            "collective_broadcast",
            "collective_permute",
            "cross-replica-sum",
            "reduce_scatter",
        )
    },
}
"""Ops that are refused outside of manual computations."""


def may_be_refused(name: str) -> bool:
    """Whether `refuse` raises for some op of that name."""
    return name in REFUSED or name in INSIDE_ONLY or name == CUSTOM_CALL


def refuse(op: ir.Operation, name: str, *, is_inside: bool) -> None:
    """Raises OpError for an op of that name that a partitioned program cannot have; `is_inside` a manual computation it may have
    more."""
    if name in REFUSED:
        raise OpError(op, *REFUSED[name])
    if name in INSIDE_ONLY and not is_inside:
        raise OpError(op, INSIDE_ONLY[name], "move it into a manual computation; --local takes the program as one device's")
    if name == CUSTOM_CALL and has_effect(op) and not is_callback(op):
        raise OpError(op, _EFFECT, "keep it out of the partitioned program")


def is_callback(op: ir.Operation) -> bool:
    """Whether a custom call is one of a Python function of the process that has traced it."""
    return bool(_CALLBACK.fullmatch(call_target(op)))


_CALLBACK = re.compile(r"xla_(ffi_)?(partitioned_)?python_(cpu|gpu)_callback|xla_buffer_python_(cpu|gpu)_callback")
"""The targets by which JAX calls Python."""


DEVICE = "meshbridge.device"
"""Attribute of a call of Python: the logical device that makes the call, where that is another one than the first."""


def is_of_shards(op: ir.Operation) -> bool:
    """Whether each device calls a Python function with the shards that it holds (`jax.debug.callback(…, partitioned=True)`)."""
    return is_callback(op) and "_partitioned_" in call_target(op)


def has_effect(op: ir.Operation) -> bool:
    """Whether a call does what must not be done by every device. A placement is for each device's own shard, and questions are
    answered before the program runs."""
    if call_target(op) in (PLACEMENT, INSPECTION):
        return False
    return "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value


def refuse_types(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Raises OpError, which names `op`, for quantized tensors among `values`, sums over shards of which have no meaning, and for
    those too large for any size."""
    for value in values:
        kind = value.type
        if not isinstance(kind, ir.RankedTensorType):
            continue
        if "!quant." in str(kind.element_type):
            raise OpError(op, f"has a quantized tensor, {kind}, which partitioning does not support", "dequantize it first")
        if prod(kind.shape) > MAX_BYTES // 16 and (size := tensor_bytes(value)) > MAX_BYTES:
            found = f"has a tensor of {size:.3g} bytes, {kind}, expected at most 2^63 - 1, as sizes have 64 bits"
            raise OpError(op, found, "compute it in several tensors")
