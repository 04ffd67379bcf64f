"""Devices that stand in for those of JAX: what they say of where they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any


def torus(*sizes: int, kind: str = "TPU v5 lite", cores: int = 1, slices: int = 1, axes: int = 3, at: int = 0) -> list[Any]:
    """Devices of slices of that many chips along x, y, z, in the order of their ids: x counts fastest."""
    spans = [range(slices), *map(range, (*[1] * (axes - len(sizes)), *reversed(sizes))), range(cores)]
    return [
        SimpleNamespace(
            platform="tpu",
            device_kind=kind,
            id=number,
            slice_index=slice_index,
            coords=[place + at for place in reversed(places)],
            core_on_chip=core,
            process_index=number // 4,
        )
        for number, (slice_index, *places, core) in enumerate(product(*spans))
    ]


def nodes(
    count: int, size: int = 8, *, slice_of: Any = lambda node, _: node, process_of: Any = lambda node, _: node
) -> list[Any]:
    return [
        SimpleNamespace(
            platform="gpu",
            device_kind="NVIDIA H100 80GB HBM3",
            id=node * size + place,
            slice_index=slice_of(node, place),
            process_index=process_of(node, place),
        )
        for node in range(count)
        for place in range(size)
    ]


def transposed(some: Sequence[Any], rows: int) -> list[Any]:
    return [some[at + row] for at in range(len(some) // rows) for row in range(0, len(some), len(some) // rows)]


V5E = torus(4, 4)
