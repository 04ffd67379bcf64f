"""`chlo.ragged_dot`: a product whose rows, contracted elements or batches come in groups of sizes known only at run time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.traits import Trait

RAGGED_DOT, DIMENSION_NUMBERS = "chlo.ragged_dot", "ragged_dot_dimension_numbers"


@sharding_rule_of(RAGGED_DOT, traits=(Trait.PURE,), multilinear=(0, 1))
def ragged_dot(op: ir.Operation) -> ShardingRule:
    """Batch and free dimensions are parallel, contracting ones a sum. The ragged dimension and the groups are replicated:
    assigning elements to groups takes all of them."""
    numbers = _numbers(op)
    lhs, rhs, sizes = (shape_of(value) for value in op.operands)
    ragged, groups = numbers["lhs_ragged_dimensions"], numbers["rhs_group_dimensions"]
    build = RuleBuilder()
    maps: list[dict[int, tuple[int, ...]]] = [dict.fromkeys(ragged, ()), dict.fromkeys(groups, ())]
    result: list[tuple[int, ...]] = []

    def pair(kind: str, reduction: str) -> list[tuple[int, ...]]:
        entries = []
        for lhs_dim, rhs_dim in zip(numbers[f"lhs_{kind}_dimensions"], numbers[f"rhs_{kind}_dimensions"], strict=True):
            entry = () if lhs_dim in ragged else build.loop(lhs[lhs_dim], reduction)
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
                maps[side].setdefault(dim, build.loop(size) if dim not in maps[side] else ())
                result.append(maps[side][dim])
    if is_grouped:  # one product per group
        result.insert(0, ())
    # Group sizes per batch have leading batch dimensions.
    batch = result[is_grouped : is_grouped + len(sizes) - 1]
    operands = [tuple(maps[side][dim] for dim in range(len(shape))) for side, shape in enumerate((lhs, rhs))]
    described = build.rule([*operands, (*batch, ())], [tuple(result)])
    return replace(described, is_contraction=True) if contracted else described


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
