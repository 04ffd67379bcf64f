"""Values placed in another memory than the device's own, such as the host's.

    %1 = stablehlo.custom_call @annotate_device_placement(%0) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}}

Each device places its own shards there. Devices communicate only from device memory: a value is resharded before it is offloaded,
and after it has been loaded back.
"""

from __future__ import annotations

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import call_target, ir, is_custom_call
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.option import Option
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.unsupported import PLACEMENT

_FRONTEND, _MEMORY, _COMPUTED_IN = "mhlo.frontend_attributes", "_xla_buffer_placement", "device"


def _memory(op: ir.Operation) -> str | None:
    """The memory that an op places its value in; None for any other op."""
    if not is_custom_call(op) or call_target(op) != PLACEMENT or _FRONTEND not in op.attributes:
        return None
    attributes = ir.DictAttr(op.attributes[_FRONTEND])
    return ir.StringAttr(attributes[_MEMORY]).value if _MEMORY in attributes else None


def is_offload(op: ir.Operation) -> bool:
    """True if an op places its value outside device memory."""
    return _memory(op) not in (None, _COMPUTED_IN)


def clone_placement(op: ir.Operation, value: ir.Value, before: ir.Operation) -> ir.Value:
    """Places `value` as `op` places its operand."""
    attrs = {name: op.attributes[name] for name in op.attributes}
    return Builder(op.location, ir.InsertionPoint(before)).value(op.name, value.type, [value], attrs)


def load_option(op: ir.Operation, rule: ShardingRule, sharding: Sharding | None) -> Option | None:
    """The option in which an op that loads a value back takes it in the sharding `placed`; None for any other op."""
    if sharding is None or not sharding.is_plain or sharding.partial_axes or _memory(op) != _COMPUTED_IN:
        return None
    by_loop = {loops[0]: axes for loops, axes in zip(rule.operands[0], sharding.split_axes, strict=True) if loops}
    return tuple(by_loop[loop] for loop in range(len(rule.loops)))
