"""Shapes, meshes and shardings as text on a command line."""

from __future__ import annotations

import ast
import re

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import REDUCTION_KINDS, Mesh, Sharding
from meshbridge.resharding.steps import Shape

_CLAUSES = re.compile(
    r"\s*(?P<split>\[.*?\])"
    r"(?:\s*partial\s*=\s*(?P<kind>\w+)\s*(?P<partial>\[[^]]*\]))?"
    r"(?:\s*halo_sizes\s*=\s*(?P<halo>\[[^]]*\]))?"
    r"(?:\s*sharded_dims_offsets\s*=\s*(?P<offsets>\[[^]]*\]))?\s*",
    re.S,
)


def parse_shape(text: str) -> tuple[Shape, str]:
    """`96x192xf32` as sizes and element type; `f32` alone is a scalar. Raises MeshError."""
    match = re.fullmatch(r"((?:\d+x)*)([a-z]\w*(?:<\w+>)?)", text.strip())
    if match is None:
        raise MeshError(f"error: expected a shape such as 96x192xf32, found '{text}'")
    element_bytes(match.group(2))
    return tuple(int(size) for size in match.group(1).split("x")[:-1]), match.group(2)


def parse_mesh(text: str) -> Mesh:
    """`2x3` as a mesh named `mesh`. Raises MeshError."""
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text.strip()) is None:
        raise MeshError(f"error: expected a mesh such as 2x3, found '{text}'")
    return Mesh("mesh", tuple(int(size) for size in text.split("x")))


def parse_sharding(text: str, mesh: Mesh) -> Sharding:
    """`[[0], [1]] partial = sum [2] halo_sizes = [1, 1]`, as `mesh.sharding` writes its operands. Raises MeshError."""
    match = _CLAUSES.fullmatch(text)
    if match is None:
        raise MeshError(f"error: expected a sharding such as [[0], [1]] or [[0], []] partial = sum [1], found '{text}'")
    split = tuple(_integers(axes, match["split"]) for axes in _list(match["split"]))
    if (kind := match["kind"] or "sum") not in REDUCTION_KINDS:
        raise MeshError(f"error: expected one of {', '.join(REDUCTION_KINDS)}, found '{kind}'")
    partial, halo, offsets = (_integers(_list(match[name] or "[]"), match[name]) for name in ("partial", "halo", "offsets"))
    return Sharding(mesh.name, split, partial, kind, halo, offsets)


def _list(text: str) -> list[object]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, list):
        raise MeshError(f"error: expected a list, found '{text}'")
    return value


def _integers(value: object, text: str) -> tuple[int, ...]:
    numbers = [number for number in value if type(number) is int] if isinstance(value, list) else []
    if not isinstance(value, list) or len(numbers) < len(value):
        raise MeshError(f"error: expected a list of integers where '{text}' has {value}")
    return tuple(numbers)


def sharding_text(sharding: Sharding) -> str:
    """The sharding as `parse_sharding` reads it."""
    text = str([list(axes) for axes in sharding.split_axes])
    if sharding.partial_axes:
        text += f" partial = {sharding.partial_kind} {list(sharding.partial_axes)}"
    if sharding.halo_sizes:
        text += f" halo_sizes = {list(sharding.halo_sizes)}"
    if sharding.offsets:
        text += f" sharded_dims_offsets = {list(sharding.offsets)}"
    return text
