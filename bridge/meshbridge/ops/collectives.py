"""Collectives that the user wrote inside a manual computation: dimensions that they do not rearrange pass through.

Their device groups speak of all devices, so a split along an axis that is not theirs only makes each device's part smaller.
"""

from __future__ import annotations

from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.shapes import passing
from meshbridge.ops.traits import Trait, declare

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

declare(*_REARRANGED.keys() - {AllSliceOp.OPERATION_NAME}, traits=(Trait.COLLECTIVE,))
declare(AllSliceOp.OPERATION_NAME, traits=(Trait.MOVEMENT, Trait.SLICING, Trait.FUSIBLE), linear=(0,))
for _dialect in ("stablehlo", "mesh"):
    declare(f"{_dialect}.all_gather", f"{_dialect}.all_to_all", traits=(Trait.GROUPED,))
    declare(f"{_dialect}.all_reduce", f"{_dialect}.reduce_scatter", traits=(Trait.GROUPED, Trait.REDUCING))
    declare(f"{_dialect}.all_reduce", traits=(Trait.IN_PLACE,))
declare("mesh.reduce", traits=(Trait.REDUCING, Trait.ROOTED))
declare("mesh.broadcast", "mesh.gather", "mesh.scatter", traits=(Trait.ROOTED,))
declare("stablehlo.all_reduce", "stablehlo.reduce_scatter", traits=(Trait.SCALAR_REGION,))
declare("stablehlo.partition_id", "stablehlo.replica_id", traits=(Trait.FREE,))


@sharding_rule_of(*_REARRANGED, traits=())
def collective(op: ir.Operation) -> ShardingRule:
    """All dimensions but those that the collective splits or joins; variadic ones share no loops unless their shapes agree."""
    along = {ir.IntegerAttr(op.attributes[name]).value for name in _REARRANGED[op.name]}
    first = shape_of(op.results[0])
    same = all(shape_of(result) == first for result in op.results)
    return passing(op, lambda dim: same and dim not in along)
