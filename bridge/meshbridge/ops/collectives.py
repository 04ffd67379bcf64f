"""Collectives that the user wrote inside a manual computation: dimensions that they do not rearrange pass through.

Their device groups speak of all devices, so a split along an axis that is not theirs only makes each device's part smaller.
"""

from __future__ import annotations

from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.shapes import passing

_REARRANGED = {
    "stablehlo.all_gather": ("all_gather_dim",),
    "stablehlo.reduce_scatter": ("scatter_dimension",),
    "stablehlo.all_to_all": ("split_dimension", "concat_dimension"),
    "stablehlo.all_reduce": (),
    "stablehlo.collective_broadcast": (),
    "stablehlo.collective_permute": (),
    "mesh.all_gather": ("gather_axis",),
    "mesh.all_reduce": (),
    "mesh.all_slice": ("slice_axis",),
    "mesh.all_to_all": ("split_axis", "concat_axis"),
    "mesh.broadcast": (),
    "mesh.gather": ("gather_axis",),
    "mesh.permute": (),
    "mesh.reduce": (),
    "mesh.reduce_scatter": ("scatter_axis",),
    "mesh.scatter": ("scatter_axis",),
    "mesh.shift": (),
}
"""The attributes that name the dimensions a collective works along."""


@sharding_rule_of(*_REARRANGED)
def collective(op: ir.Operation) -> ShardingRule:
    """All dimensions but those that the collective splits or joins; variadic ones share no loops unless their shapes agree."""
    along = {ir.IntegerAttr(op.attributes[name]).value for name in _REARRANGED[op.name]}
    first = shape_of(op.results[0])
    same = all(shape_of(result) == first for result in op.results)
    return passing(op, lambda dim: same and dim not in along)
