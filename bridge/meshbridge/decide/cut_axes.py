"""Where mesh axes are to be cut into parts: where a reshape cuts a dimension inside an axis, as for two heads on four devices.

    mesh.mesh @m(shape = 4)
    %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
    %0 = mesh.shard %x to %s : tensor<8xf32>
    %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<2x4xf32>
==>
    mesh.mesh @m(shape = 2x2) {meshbridge.axis_digits = array<i64: 2>}
    %s = mesh.sharding @m split_axes = [[0, 1]] : !mesh.sharding
    …                                                                 and %1 can be sharded as [[0], [1]]

The same devices hold the same shards, so that those of a reshape stay where they are. Rules of custom calls and composites ask
for the same by products of factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from meshbridge.decide.graph import Tensor
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.sharding_rules import RULED

Cuts = dict[int, list[int]]
"""Per axis, after which products of sizes it is cut, from outer to inner."""


def may_cut(name: str, rule: ShardingRule) -> bool:
    """Whether an op of that name and rule asks for axes to be cut where they fit its loops only in part."""
    merges = any(len(loops) > 1 for dims in (*rule.operands, *rule.results) for loops in dims)
    return merges and (name == "stablehlo.reshape" or name in RULED)


def wanted_cuts(rule: ShardingRule, tensors: Iterable[Tensor | None], mesh: Mesh) -> Cuts:
    """The cuts that an op asks for whose operands and results are `tensors`, as far as they go together."""
    cuts: Cuts = {}
    for tensor, dims in zip(tensors, (*rule.operands, *rule.results), strict=True):
        for axes, loops in zip(tensor.split if tensor is not None else (), dims, strict=True):
            if axes and len(loops) > 1:
                for axis, after in _cuts_along(axes, mesh, [rule.loops[loop].size for loop in loops]):
                    known = cuts.setdefault(axis, [])
                    if after not in known and all(after % other == 0 or other % after == 0 for other in known):
                        known.append(after)
    return cuts


def _cuts_along(axes: Axes, mesh: Mesh, loops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where axes that split one dimension are to be cut so that they fill its loops from the outermost on."""
    inner = iter(loops)
    room = next(inner)
    for axis in axes:
        left = mesh.shape[axis]
        while left > 1:
            if room == 1:
                room = next(inner, 0)
            part = gcd(left, room)
            if room == 0 or part == 1:
                return
            room, left = room // part, left // part
            if left > 1:
                yield axis, mesh.shape[axis] // left
                if room > 1:
                    return  # the rest of this loop lies between the two parts
