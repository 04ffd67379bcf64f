"""A product over shards, and XLA's partitioned program of it as HLO text."""

from __future__ import annotations

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge_converters import hlo

SOURCE = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x15xf32>, %b: tensor<15x12xf32>)
    -> (tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x15xf32>, tensor<15x12xf32>) -> tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""

HLO = """HloModule jit_f, num_partitions=8

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %sum = f32[] add(%p, %q)
}

ENTRY %main_spmd (a: f32[4,4], b: f32[4,12]) -> f32[4,12] {
  %a = f32[4,4] parameter(0), sharding={devices=[2,4]<=[8]}
  %b = f32[4,12] parameter(1), sharding={devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  %zero = f32[] constant(0)
  %four = u32[] constant(4)
  %id = u32[] partition-id()
  %column = u32[] remainder(%id, %four)
  %start = u32[] multiply(%column, %four)
  %starts = u32[4,4] broadcast(%start), dimensions={}
  %count = u32[4,4] iota(), iota_dimension=1
  %position = u32[4,4] add(%starts, %count)
  %end = u32[] constant(15)
  %ends = u32[4,4] broadcast(%end), dimensions={}
  %inside = pred[4,4] compare(%position, %ends), direction=LT
  %zeros = f32[4,4] broadcast(%zero), dimensions={}
  %left = f32[4,4] select(%inside, %a, %zeros)
  %dot = f32[4,12] dot(%left, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %all = f32[4,12] all-reduce(%dot), channel_id=1, replica_groups=GROUPS, use_global_device_ids=true, to_apply=%add
}
"""

ROWS = "{{0,1,2,3},{4,5,6,7}}"


def source() -> ir.Module:
    return assembly.read(SOURCE, "source.mlir", mlir.context())


def partitioned(text: str) -> ir.Module:
    return hlo.read(text.encode(), "partitioned.hlo", mlir.context())
