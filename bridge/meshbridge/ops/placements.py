"""Values that are kept in another memory than the one that their device computes in, such as the host's.

    %1 = stablehlo.custom_call @annotate_device_placement(%0) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}}

Every device keeps its own shards there. What devices send to each other they send from the memory that they compute in: a value
is resharded before it is placed away, and after it has come back.
"""

from __future__ import annotations

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import call_target, ir, is_custom_call
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.option import Option
from meshbridge.ops.refused import PLACEMENT
from meshbridge.ops.rule import ShardingRule

_FRONTEND, _MEMORY, _COMPUTED_IN = "mhlo.frontend_attributes", "_xla_buffer_placement", "device"


def _memory(op: ir.Operation) -> str | None:
    """The memory that an op places its value in; None for any other op."""
    if not is_custom_call(op) or call_target(op) != PLACEMENT or _FRONTEND not in op.attributes:
        return None
    said = ir.DictAttr(op.attributes[_FRONTEND])
    return ir.StringAttr(said[_MEMORY]).value if _MEMORY in said else None


def places_away(op: ir.Operation) -> bool:
    """Whether an op places its value in a memory that nothing is computed in."""
    return _memory(op) not in (None, _COMPUTED_IN)


def place_again(op: ir.Operation, value: ir.Value, before: ir.Operation) -> ir.Value:
    """`value` where `op` places its operand."""
    attrs = {name: op.attributes[name] for name in op.attributes}
    return Builder(op.location, ir.InsertionPoint(before)).value(op.name, value.type, [value], attrs)


def as_held(op: ir.Operation, rule: ShardingRule, held: Sharding | None) -> Option | None:
    """The option in which an op that brings a value back takes it as it is `held`; None for any other op."""
    if held is None or not held.is_plain or held.partial_axes or _memory(op) != _COMPUTED_IN:
        return None
    by_loop = {loops[0]: axes for loops, axes in zip(rule.operands[0], held.split_axes, strict=True) if loops}
    return tuple(by_loop[loop] for loop in range(len(rule.loops)))
