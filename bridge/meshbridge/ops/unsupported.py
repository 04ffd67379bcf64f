"""Ops and types that partitioning does not support, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import CUSTOM_CALL, OpError, call_target, ir

MAX_BYTES = 2**63 - 1
"""The largest size of one tensor in XLA."""

PLACEMENT = "annotate_device_placement"
"""The target that selects the memory of a value. It returns its operand; each device places its own shard."""

INSPECTION = "meshbridge.inspect_sharding"
"""The target that asks how its operand is sharded (`inspections`). It does nothing at run time."""

_EFFECT = "has a side effect that would happen once per device"
_DEVICE = "says which device runs it, which has no meaning where programs compute on global tensors"
_GROUPS = "exchanges shards, which has no meaning where programs compute on global tensors"

UNSUPPORTED: dict[str, tuple[str, str]] = {
    **{
        f"stablehlo.{name}": (_EFFECT, "keep it out of the partitioned program") for name in ("infeed", "outfeed", "send", "recv")
    },
    **{f"stablehlo.{name}": ("runs beside the program", "use the synchronous op") for name in ("async_start", "async_done")},
    "stablehlo.collective_reduce": ("sums up on one device, for which there is no lowering", "use stablehlo.all_reduce"),
    "stablehlo.set_dimension_size": ("makes a size that is only known at run time", "pad to a size that is known"),
}
"""By op that is never supported: the reason, and a hint."""

MANUAL_ONLY: dict[str, str] = {
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
"""Ops that are supported only in manual computations."""


def may_be_unsupported(name: str) -> bool:
    """True if `check_supported` can raise for an op of that name."""
    return name in UNSUPPORTED or name in MANUAL_ONLY or name == CUSTOM_CALL


def check_supported(op: ir.Operation, name: str, *, is_inside: bool) -> None:
    """Raises OpError for an op of that name that is not supported; `is_inside` a manual computation more ops are."""
    if name in UNSUPPORTED:
        raise OpError(op, *UNSUPPORTED[name])
    if name in MANUAL_ONLY and not is_inside:
        raise OpError(op, MANUAL_ONLY[name], "move it into a manual computation; --local takes the program as one device's")
    if name == CUSTOM_CALL and has_effect(op) and not is_callback(op):
        raise OpError(op, _EFFECT, "keep it out of the partitioned program")


def is_callback(op: ir.Operation) -> bool:
    """True if a custom call calls a Python function of the process that traced it."""
    return bool(_CALLBACK.fullmatch(call_target(op)))


_CALLBACK = re.compile(r"xla_(ffi_)?(partitioned_)?python_(cpu|gpu)_callback|xla_buffer_python_(cpu|gpu)_callback")
"""The targets by which JAX calls Python."""


DEVICE = "meshbridge.device"
"""The attribute of a Python callback that names the logical device to run it, if that is not the first one."""


def is_partitioned_callback(op: ir.Operation) -> bool:
    """True if each device calls a Python function with its own shards (`jax.debug.callback(…, partitioned=True)`)."""
    return is_callback(op) and "_partitioned_" in call_target(op)


def has_effect(op: ir.Operation) -> bool:
    """True if a call has an effect that must not happen once per device. Placements apply to each device's own shard, and
    inspections are answered before the program runs."""
    if call_target(op) in (PLACEMENT, INSPECTION):
        return False
    return "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value


def check_types(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Raises OpError, which names `op`, for quantized tensors among `values`, whose sums over shards have no meaning, and for
    tensors larger than MAX_BYTES."""
    for value in values:
        kind = value.type
        if not isinstance(kind, ir.RankedTensorType):
            continue
        if "!quant." in str(kind.element_type):
            raise OpError(op, f"has a quantized tensor, {kind}, which partitioning does not support", "dequantize it first")
        if prod(kind.shape) > MAX_BYTES // 16 and (size := tensor_bytes(value)) > MAX_BYTES:
            problem = f"has a tensor of {size:.3g} bytes, {kind}, expected at most 2^63 - 1, as sizes have 64 bits"
            raise OpError(op, problem, "compute it in several tensors")
