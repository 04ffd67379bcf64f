"""Sorts, and the k largest elements; a top-k along a split dimension selects from the k largest of each shard.

%0:2 = chlo.top_k(%shard, k = 8) : tensor<4x2048xf32> -> (tensor<4x8xf32>, tensor<4x8xi32>)
%1, %2 = mesh.all_gather of both on @m mesh_axes = [0] gather_axis = 1 : … -> tensor<4x64x…>
%3:2 = chlo.top_k(%1, k = 8)          and the indices that %2 has at the places %3#1
"""

from __future__ import annotations

from meshbridge.dialect import build
from meshbridge.ir.builder import Builder, element_of, integer, integers, tensor
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ops.affine_access import ShardSummaries
from meshbridge.ops.option import Option, result_sharding, tensor_split
from meshbridge.ops.rule import RuleBuilder, ShardingRule, rank_of, shape_of, sharding_rule_of
from meshbridge.ops.shapes import shared_dims_rule
from meshbridge.ops.spmd import SpmdProgram, default_lowering, mask_padding, spmd_lowering
from meshbridge.ops.traits import Trait


@sharding_rule_of("stablehlo.sort", traits=(Trait.PURE, Trait.SCALAR_REGION, Trait.IN_PLACE))
def sort(op: ir.Operation) -> ShardingRule:
    """Every dimension passes through except the sorted one."""
    rank = rank_of(op.operands[0])
    along = ir.IntegerAttr(op.attributes["dimension"]).value % rank if "dimension" in op.attributes else rank - 1
    return shared_dims_rule(op, lambda dim: dim != along)


@sharding_rule_of("chlo.top_k", traits=(Trait.PURE,))
def top_k(op: ir.Operation) -> ShardingRule:
    """Every dimension except the last passes through. The last one may be split if each shard sends less than it holds."""
    rule = RuleBuilder()
    *batch_sizes, size = shape_of(op.operands[0])
    batch = tuple(rule.loop(extent) for extent in batch_sizes)
    searched = rule.loop(size) if 0 < 2 * _count(op) <= size else ()
    for _ in op.results:  # values and indices
        rule.exchange(searched, op, 0, len(batch_sizes), ShardSummaries(_count(op)))
    return rule.rule([(*batch, searched)], [(*batch, ())] * 2)


def _count(op: ir.Operation) -> int:
    return int(ir.IntegerAttr(op.attributes["k"]).value)


@spmd_lowering("chlo.top_k")
def local_top_k(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Gathers the candidates of each shard in the order of shards: of equal elements the first one still comes first."""
    operand = op.operands[0]
    dim = len(shape_of(operand)) - 1
    axes = tensor_split(rule.operands[0], option)[dim]
    if not axes:
        default_lowering(op, rule, option, at)
        return
    length, size = shape_of(operand)[dim], at.global_shape(operand)[dim]
    if size % at.mesh.group_size(axes):
        operand = mask_padding(operand, dim, size, axes, "max", at)
    local_values, places = _largest(operand, min(_count(op), length), at.builder)
    places = at.builder.add(places, at.offset(axes, length))
    parts = (build.all_gather(part, at.mesh, mesh_axes=axes, gather_axis=dim, at=at.builder) for part in (local_values, places))
    candidates, origins = parts
    best, chosen = _largest(candidates, _count(op), at.builder)
    results = (best, _pick(origins, chosen, at.builder))
    for index, (result, value) in enumerate(zip(op.results, results, strict=True)):
        at.register(value, at.global_shape(result), result_sharding(rule, option, index, at.mesh))
        result.replace_all_uses_with(value)
    op.erase()


def _largest(value: ir.Value, count: int, builder: Builder) -> tuple[ir.Value, ir.Value]:
    """The `count` largest elements along the last dimension and their indices."""
    shape = [*shape_of(value)[:-1], count]
    types = [tensor(shape, element) for element in (element_of(value), ir.IntegerType.get_signless(32))]
    top = builder.op("chlo.top_k", types, [value], {"k": integer(count)})
    return top.results[0], top.results[1]


def _pick(values: ir.Value, places: ir.Value, builder: Builder) -> ir.Value:
    """The elements of `values` at `indices` along the last dimension."""
    rank = len(shape_of(values))
    batch = list(range(rank - 1))
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=[],
        collapsed_slice_dims=[rank - 1],
        operand_batching_dims=batch,
        start_indices_batching_dims=batch,
        start_index_map=[rank - 1],
        index_vector_dim=rank,
    )
    attrs = {"dimension_numbers": numbers, "slice_sizes": integers([1] * rank)}
    return builder.value("gather", tensor(shape_of(places), element_of(values)), [values, places], attrs)
