"""Finds mesh axes to split into sub-axes: a reshape may divide a dimension inside an axis, as for two heads on four devices.

    mesh.mesh @m(shape = 4)
    %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
    %0 = mesh.shard %x to %s : tensor<8xf32>
    %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<2x4xf32>
==>
    mesh.mesh @m(shape = 2x2) {meshbridge.axis_digits = array<i64: 2>}
    %s = mesh.sharding @m split_axes = [[0, 1]] : !mesh.sharding
    …                                                                 now %1 can be sharded as [[0], [1]]

Every device keeps the same shards; those of the reshape stay in place. Rules of custom calls and composites require sub-axes by
products of factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from meshbridge.decide.graph import Tensor
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.sharding_rules import RULED

SubaxisSizes = dict[int, list[int]]
"""Per axis, the products of sizes, from outer to inner, after which it is split."""


def may_require_subaxes(name: str, rule: ShardingRule) -> bool:
    """Whether an op may require sub-axes because an axis fits its loops only in part."""
    merges = any(len(loops) > 1 for dims in (*rule.operands, *rule.results) for loops in dims)
    return merges and (name == "stablehlo.reshape" or name in RULED)


def required_subaxes(rule: ShardingRule, tensors: Iterable[Tensor | None], mesh: Mesh) -> SubaxisSizes:
    """The sub-axes that an op with these operand and result `tensors` requires, as far as they are compatible."""
    cuts: SubaxisSizes = {}
    for tensor, dims in zip(tensors, (*rule.operands, *rule.results), strict=True):
        for axes, loops in zip(tensor.split if tensor is not None else (), dims, strict=True):
            if axes and len(loops) > 1:
                for axis, after in _cuts_along(axes, mesh, [rule.loops[loop].size for loop in loops]):
                    chosen = cuts.setdefault(axis, [])
                    if after not in chosen and all(after % size == 0 or size % after == 0 for size in chosen):
                        chosen.append(after)
    return cuts


def _cuts_along(axes: Axes, mesh: Mesh, loops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The sizes after which axes are split so that those of one dimension fill its loops from the outermost on."""
    inner = iter(loops)
    room = next(inner)
    for axis in axes:
        remaining = mesh.shape[axis]
        while remaining > 1:
            if room == 1:
                room = next(inner, 0)
            part = gcd(remaining, room)
            if room == 0 or part == 1:
                return
            room, remaining = room // part, remaining // part
            if remaining > 1:
                yield axis, mesh.shape[axis] // remaining
                if room > 1:
                    return  # the rest of this loop would fall between the sub-axes
