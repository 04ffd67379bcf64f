"""Traits of ops without a sharding rule: control flow, terminators, annotations, and ops that take sizes as operands.

`decide` and `partition` handle each of them, or an earlier pass removes them.
"""

from __future__ import annotations

from meshbridge.ir.mlir import REGION_OPS, SHARDING_GROUP
from meshbridge.ops.traits import Trait, declare

declare(*REGION_OPS, traits=(Trait.CONTROL_FLOW,))
declare("stablehlo.while", traits=(Trait.IN_PLACE,))
declare("func.return", "stablehlo.return", "sdy.return", traits=(Trait.TERMINATOR,))
declare("stablehlo.tuple", "stablehlo.get_tuple_element", traits=(Trait.PURE,))

declare("mesh.mesh", "mesh.sharding", "mesh.get_sharding", "sdy.mesh", SHARDING_GROUP, traits=(Trait.ANNOTATION,))
declare("mesh.shard", "sdy.reshard", "sdy.sharding_constraint", traits=(Trait.ANNOTATION, Trait.FORWARDING))
declare("sdy.propagation_barrier", "sdy.data_flow_edge", "sdy.func_data_flow_edge", traits=(Trait.ANNOTATION, Trait.FORWARDING))
declare("sdy.sharding_constraint", traits=(Trait.ALIASING,))

declare("stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_iota", "stablehlo.dynamic_reshape", traits=(Trait.SIZED,))
declare("stablehlo.dynamic_conv", "stablehlo.dynamic_gather", "stablehlo.dynamic_pad", traits=(Trait.SIZED,))
declare("stablehlo.real_dynamic_slice", traits=(Trait.SIZED,))
