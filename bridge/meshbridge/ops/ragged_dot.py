"""`chlo.ragged_dot`: a product whose rows, contracted elements or batches come in groups of sizes known only at run time.

%0 = chlo.ragged_dot(%rows, %experts, %sizes) : (tensor<64x32xf32>, tensor<4x32x16xf32>, tensor<4xi32>) -> tensor<64x16xf32>

On 8 devices with 8 rows each, sizes 40, 8, 16, 0 are 0, 0, 8, 0 on the seventh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, mask_padding, spmd_lowering
from meshbridge.ops.traits import Trait

RAGGED_DOT, DIMENSION_NUMBERS = "chlo.ragged_dot", "ragged_dot_dimension_numbers"


@sharding_rule_of(RAGGED_DOT, traits=(Trait.PURE,), multilinear=(0, 1))
def ragged_dot(op: ir.Operation) -> ShardingRule:
    """Batch and free dimensions are parallel, contracting ones a sum, the ragged one among them. The groups are replicated, and
    so is a ragged batch dimension."""
    numbers = _numbers(op)
    lhs, rhs, sizes = (shape_of(value) for value in op.operands)
    ragged, groups = numbers["lhs_ragged_dimensions"], numbers["rhs_group_dimensions"]
    build = RuleBuilder()
    maps: list[dict[int, tuple[int, ...]]] = [{}, dict.fromkeys(groups, ())]
    result: list[tuple[int, ...]] = []

    def pair(kind: str, reduction: str) -> list[tuple[int, ...]]:
        entries = []
        for lhs_dim, rhs_dim in zip(numbers[f"lhs_{kind}_dimensions"], numbers[f"rhs_{kind}_dimensions"], strict=True):
            entry = () if lhs_dim in ragged and kind == "batching" else build.loop(lhs[lhs_dim], reduction)
            maps[0][lhs_dim] = maps[1][rhs_dim] = entry
            entries.append(entry)
        return entries

    result += pair("batching", "")
    contracted = pair("contracting", "sum")
    is_grouped = any(dim in numbers["lhs_contracting_dimensions"] for dim in ragged)
    for side, shape in enumerate((lhs, rhs)):
        named = {*numbers[f"{'lr'[side]}hs_batching_dimensions"], *numbers[f"{'lr'[side]}hs_contracting_dimensions"]}
        for dim, size in enumerate(shape):
            if dim not in named and not (side == 1 and dim in groups):
                maps[side][dim] = build.loop(size)
                result.append(maps[side][dim])
    if is_grouped:  # one product per group
        result.insert(0, ())
    # Group sizes per batch have leading batch dimensions.
    batch = result[is_grouped : is_grouped + len(sizes) - 1]
    operands = [tuple(maps[side][dim] for dim in range(len(shape))) for side, shape in enumerate((lhs, rhs))]
    described = build.rule([*operands, (*batch, ())], [tuple(result)])
    return replace(described, is_contraction=True) if contracted else described


@spmd_lowering(RAGGED_DOT)
def local_ragged_dot(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """A device that has a part of the ragged dimension counts the elements of each group in it."""
    numbers = _numbers(op)
    (dim,) = numbers["lhs_ragged_dimensions"]
    axes = tensor_split(rule.operands[0], option)[dim]
    if axes:
        length, size = shape_of(op.operands[0])[dim], at.global_shape(op.operands[0])[dim]
        contracted = dict(zip(*(numbers[f"{side}_contracting_dimensions"] for side in ("lhs", "rhs")), strict=True))
        if dim in contracted and length * at.mesh.group_size(axes) > size:
            for number, own in enumerate((dim, contracted[dim])):
                op.operands[number] = mask_padding(op.operands[number], own, size, axes, "sum", at)
        op.operands[2] = _sizes_within(op.operands[2], at.offset(axes, length), length, size, at.builder)
    default_lowering(op, rule, option, at)


def _sizes_within(sizes: ir.Value, offset: ir.Value, length: int, size: int, builder: Builder) -> ir.Value:
    """How many of `length` elements from the `offset` on, of `size` in all, each group has."""
    shape, element = shape_of(sizes), element_of(sizes)
    groups, rank = shape[-1], len(shape)
    rows, columns = (builder.iota([groups, groups], along) for along in (0, 1))
    is_before = builder.broadcast(builder.compare("LE", columns, rows), [*shape, groups], [rank - 1, rank])
    each = builder.broadcast(sizes, [*shape, groups], [*range(rank - 1), rank])
    ends = builder.reduce(builder.select(is_before, each, 0), 0, [rank], "add")
    first = builder.broadcast(builder.convert(offset, element), shape)
    last = builder.add(first, length)
    last = builder.elementwise("minimum", last, builder.splat(last.type, size))

    def within(position: ir.Value) -> ir.Value:
        return builder.elementwise("minimum", builder.elementwise("maximum", position, first), last)

    return builder.subtract(within(ends), within(builder.subtract(ends, sizes)))


_NAMES = (
    *(f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs")),
    "lhs_ragged_dimensions",
    "rhs_group_dimensions",
)
"""The dimension numbers, in the order in which a composite lists them."""
_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")


def _numbers(op: ir.Operation) -> dict[str, list[int]]:
    """The dimension numbers by name, parsed from text because the bindings have no class for them."""
    lists = dict.fromkeys(_NAMES, "") | dict(_LIST.findall(str(op.attributes[DIMENSION_NUMBERS])))
    return {name: [int(number) for number in text.split(",") if number.strip()] for name, text in lists.items()}


def ragged_dot_attributes(composite: Mapping[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """The attributes of the op, from those of a composite: an artifact of jax.export has lists of dimensions and words."""
    attributes = dict(composite)
    if "precision_config" in composite:
        words = [ir.StringAttr(word).value for word in ir.ArrayAttr(composite["precision_config"])]
        attributes["precision_config"] = ir.ArrayAttr.get([ir.Attribute.parse(f"#chlo<precision {word}>") for word in words])
    if DIMENSION_NUMBERS in composite:
        lists = [[*map(int, np.array(ir.DenseIntElementsAttr(dims)))] for dims in ir.ArrayAttr(composite[DIMENSION_NUMBERS])]
        text = ", ".join(f"{name} = {dims}" for name, dims in zip(_NAMES, lists, strict=True) if dims)
        attributes[DIMENSION_NUMBERS] = ir.Attribute.parse(f"#chlo.ragged_dot<{text}>")
    return attributes
