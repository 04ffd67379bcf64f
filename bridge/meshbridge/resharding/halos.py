"""Halos around shards that stay in place: one `mesh.update_halo`, as in upstream's resharding."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect import build
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.boxes import buffer_shape
from meshbridge.resharding.plan import PlanOptions


def grows_halos(source: Sharding, target: Sharding, options: PlanOptions) -> bool:
    """Whether `target` is the plain `source` with halos around it. `exact` plans send less: no element outside of the tensor."""
    return source.is_plain and bool(target.halo_sizes) and replace(target, halo_sizes=()) == source and not options.exact


def grow_halos(value: ir.Value, shape: tuple[int, ...], mesh: Mesh, target: Sharding, emit: Builder) -> ir.Value:
    """Adds the halos of `target` to `value`, its shard of a tensor of `shape` without halos.

    Cells outside of the tensor are zeros.
    """
    sizes = iter(target.halo_sizes)
    edges = [(next(sizes), next(sizes)) if axes else (0, 0) for axes in target.split_axes]
    padded = emit.pad(value, 0, [edge[0] for edge in edges], [edge[1] for edge in edges])
    assert tuple(shape_of(padded)) == tuple(buffer_shape(shape, mesh, target))
    return build.update_halo(padded, mesh, split_axes=target.split_axes, halo_sizes=target.halo_sizes, at=emit)
