"""Reads the sharding options that a program gives its ops as attributes."""

from __future__ import annotations

from meshbridge.dialect.attributes import axis_array
from meshbridge.dialect.ops import OPTION
from meshbridge.ir.mlir import OpError, ir
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.option import Option, is_legal
from meshbridge.ops.rule import ShardingRule, loop_types


def option_attribute(op: ir.Operation, rule: ShardingRule, mesh: Mesh) -> Option | None:
    """The sharding option that the program gives an op. Raises OpError for an option that is illegal for its loops."""
    if OPTION not in op.attributes:
        return None
    option = axis_array(op.attributes[OPTION])
    if len(option) > len(rule.loops):
        raise OpError(op, f"has a sharding option for {len(option)} loops, but it has {len(rule.loops)}")
    if unknown := [axis for axes in option for axis in axes if not 0 <= axis < mesh.rank]:
        raise OpError(op, f"has a sharding option with axis {unknown[0]} of a mesh of {mesh.rank} axes")
    option += ((),) * (len(rule.loops) - len(option))  # the RFC leaves out empty lists at the end
    if not is_legal(rule, option, mesh):
        message = f"has the sharding option {[list(axes) for axes in option]}, which its loops cannot take"
        raise OpError(op, message, hint=f"its loops are {_loops_text(rule)}; an axis can split one loop")
    return option


def _loops_text(rule: ShardingRule) -> str:
    """The loops, such as `parallel 8, reduction_sum 16`, with their limits on splits."""
    texts = []
    for number, (kind, loop) in enumerate(zip(loop_types(rule), rule.loops, strict=True)):
        limit = " (not to be split)" if number in rule.replicated else " (evenly)" if number in rule.merged_loops else ""
        texts.append(f"{kind} {loop.size}{limit}")
    return ", ".join(texts) or "none"
