"""Shardy's own passes on programs of its MPMD dialect: what jaxlib has of its compiler."""

from __future__ import annotations

import sys
from typing import Any

import jaxlib
import jaxlib._jax
import pytest

from meshbridge.ir.mlir import ir, main_function, sdy
from meshbridge.pipelines.mpmd_types import TOPOLOGY, meshes_of


def lowered(module: ir.Module) -> ir.Module:
    """A mapped program after Shardy's propagation of shardings and its export, which makes functions of fragments. The given
    module changes."""
    mpmd = _extension()
    rules = ("fragment_merge_rules", "fragment_schedule_rules")  # jaxlib 0.9 has none of schedules
    known: dict[str, list[Any]] = {name: [] for name in rules if name in mpmd.apply_mpmd_partitioning.__doc__}
    result = mpmd.apply_mpmd_partitioning(
        module,
        "main",
        [(name, _axes(mesh)) for name, mesh in meshes_of(main_function(module).attributes[TOPOLOGY]).items()],
        {},
        [],
        [],
        [],
        partitioning_options={},
        phases=mpmd.PartitioningPhase.PARTITION,
        **known,
    )
    exported: ir.Module = result.mpmd_module
    return exported


def _axes(mesh: ir.Attribute) -> list[tuple[str, int]]:
    return [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh).axes)]


def _extension() -> Any:
    """The extension of jaxlib with Shardy's passes. It looks for jaxlib below jax, where jaxlib's own builds have it."""
    sys.modules.setdefault("jax.jaxlib", jaxlib)
    sys.modules.setdefault("jax.jaxlib._jax", jaxlib._jax)
    return pytest.importorskip("jaxlib._sdy_mpmd")
