"""Collectives that the user wrote inside a manual computation: dimensions that they do not rearrange pass through.

Their device groups name all devices, so a split along another axis only makes each device's part smaller.
"""

from __future__ import annotations

from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.shapes import shared_dims_rule
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
"""The attributes that name the dimensions that a collective rearranges."""

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
    """Every dimension that the collective does not rearrange is a parallel loop. Variadic collectives share loops only if their
    shapes agree."""
    along = {ir.IntegerAttr(op.attributes[name]).value for name in _REARRANGED[op.name]}
    shape = shape_of(op.results[0])
    has_one_shape = all(shape_of(result) == shape for result in op.results)
    return shared_dims_rule(op, lambda dim: has_one_shape and dim not in along)
