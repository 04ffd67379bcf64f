"""HloSharding strings, as `mhlo.sharding` attributes carry them, as frozen values; all of their versions.

    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"   version 2: an iota, reshaped and transposed
    "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"   version 1: a list of devices
    "{mesh['x'=2,'y'=4], [{'x'}, {}]}"   version 3: axes of a mesh

jaxlib's HloSharding parses and prints; what would make it abort is refused here first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from jaxlib.xla_client import HloSharding, OpSharding

_SUBGROUPS = {
    OpSharding.Type.REPLICATED: "replicated",
    OpSharding.Type.MANUAL: "manual",
    OpSharding.Type.UNREDUCED: "unreduced",
}


@dataclass(frozen=True)
class Tiling:
    """The sharding of one value.

    `kind` is tiled, replicated, maximal, manual, unknown or unreduced. A tiled one has `tiles` per tensor dimension, then
    `subgroups` of devices (what they are, and how many devices), and all `devices` in row-major order of tiles and subgroups.
    A maximal one has one device. `group` ties the values that must be sharded alike.
    """

    kind: str
    tiles: tuple[int, ...] = ()
    subgroups: tuple[tuple[str, int], ...] = ()
    devices: tuple[int, ...] = ()
    group: int | None = None


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Tiling, ...]:
    """The shardings in an HloSharding string: one, or the elements of a tuple.

    Raises ValueError for a string that is not an HloSharding.
    """
    _check_assignments(text)
    try:
        sharding = HloSharding.from_string(text)
    except RuntimeError as error:
        raise ValueError(f"not an HloSharding: {' '.join(str(error).split())}") from None
    elements = sharding.tuple_elements()
    return tuple(_tiling(element) for element in elements) if elements else (_tiling(sharding),)


def _tiling(sharding: HloSharding) -> Tiling:
    # Version 3 names mesh axes, version 2 says tiles; before JAX 0.10 there was no other.
    plain = sharding.v3_to_v2_sharding() if hasattr(sharding, "v3_to_v2_sharding") else sharding
    proto = plain.to_proto()
    group = proto.shard_group_id if proto.is_shard_group else None
    if proto.type != OpSharding.Type.OTHER:
        devices = tuple(proto.tile_assignment_devices) if proto.type == OpSharding.Type.MAXIMAL else ()
        return Tiling(proto.type.name.lower(), devices=devices, group=group)
    sizes = list(plain.tile_assignment_dimensions())
    kinds = [_SUBGROUPS[kind] for kind in plain.subgroup_types()] or ["replicated"] * plain.replicate_on_last_tile_dim()
    rank = len(sizes) - len(kinds)
    subgroups = tuple(zip(kinds, sizes[rank:], strict=True))
    return Tiling("tiled", tuple(sizes[:rank]), subgroups, tuple(plain.tile_assignment_devices()), group)


_ASSIGNMENT = re.compile(r"devices=\[([\d, ]*)\]\s*(?:<=\[([\d, ]*)\](?:T\(([\d, ]*)\))?|([\d, ]*))")


def _check_assignments(text: str) -> None:
    """Refuses device assignments that are not permutations, over which jaxlib aborts or makes up devices."""
    if not text.strip("{} \t"):
        raise ValueError("not an HloSharding: it is empty")
    for tiles, reshaped, permutation, listed in _ASSIGNMENT.findall(text):
        count = prod(_numbers(tiles))
        if not reshaped:
            devices = _numbers(listed)
            if sorted(devices) != list(range(count)):
                raise ValueError(f"devices=[{tiles}] needs the devices 0 to {count - 1}, each once, found {listed.strip()}")
            continue
        shape = _numbers(reshaped)
        if prod(shape) != count:
            raise ValueError(f"devices=[{tiles}] has {count} tiles, but <=[{reshaped}] has {prod(shape)} devices")
        if permutation and sorted(_numbers(permutation)) != list(range(len(shape))):
            raise ValueError(f"T({permutation}) is not a permutation of the dimensions of [{reshaped}]")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.replace(" ", "").split(",") if number]


def print_tiled(
    tiles: Sequence[int], subgroups: Sequence[tuple[str, int]], shape: Sequence[int], order: Sequence[int], devices: Sequence[int]
) -> str:
    """The string of a tiled sharding over a mesh of `shape`, whose axes in `order` make up the tiles of each dimension, then the
    subgroups. `devices` in row-major order of the mesh, empty for 0, 1, 2, …
    """
    if all(size == 1 for size in tiles):
        if all(kind == "replicated" for kind, _ in subgroups):
            return "{replicated}"
        if [kind for kind, _ in subgroups] == ["manual"]:
            return "{manual}"
    kinds = {name: kind for kind, name in _SUBGROUPS.items()}
    dims, types = [*tiles, *(size for _, size in subgroups)], [kinds[name] for name, _ in subgroups]
    if not devices:
        return str(HloSharding.iota_tile(dims, list(shape), list(order), types))
    grid = np.array(devices, dtype=np.int64).reshape(shape).transpose(order).reshape(dims)
    return str(HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(grid), types))
