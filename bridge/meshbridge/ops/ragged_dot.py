"""`chlo.ragged_dot`: a product whose rows, contracted elements or batches come in groups of sizes known only at run time."""

from __future__ import annotations

import re
from dataclasses import replace

from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.traits import Trait


@sharding_rule_of("chlo.ragged_dot", traits=(Trait.PURE,), multilinear=(0, 1))
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


_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")


def _numbers(op: ir.Operation) -> dict[str, list[int]]:
    """The dimension numbers by name, parsed from text because the bindings have no class for them."""
    lists = dict.fromkeys((f"{side}_{kind}_dimensions" for side in ("lhs", "rhs") for kind in ("batching", "contracting")), "")
    lists |= {"lhs_ragged_dimensions": "", "rhs_group_dimensions": ""}
    lists |= dict(_LIST.findall(str(op.attributes["ragged_dot_dimension_numbers"])))
    return {name: [int(number) for number in text.split(",") if number.strip()] for name, text in lists.items()}
