"""Halos around shards that stay where they are: `mesh.update_halo` says that in one op, as upstream's resharding does."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect import build
from meshbridge.ir.builder import Emitter, element_of, integers, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.boxes import buffer_shape
from meshbridge.resharding.plan import Options


def grows_halos(source: Sharding, target: Sharding, options: Options) -> bool:
    """Whether `target` is the plain `source` with halos around it. Plans that are to be `exact` send less: no cell that lies
    outside of the tensor."""
    return source.is_plain and bool(target.halo_sizes) and replace(target, halo_sizes=()) == source and not options.exact


def grow_halos(
    value: ir.Value, shape: tuple[int, ...], mesh: Mesh, target: Sharding, *, loc: ir.Location, ip: ir.InsertionPoint
) -> ir.Value:
    """The shard under `target` of a tensor of `shape`, of which `value` is the shard without halos.

    Cells outside of the tensor are zeros.
    """
    sizes = iter(target.halo_sizes)
    edges = [(next(sizes), next(sizes)) if axes else (0, 0) for axes in target.split_axes]
    emit, low, high = Emitter(loc, ip), [edge[0] for edge in edges], [edge[1] for edge in edges]
    zero = emit.splat(tensor([], element_of(value)), 0)
    attrs = {
        "edge_padding_low": integers(low),
        "edge_padding_high": integers(high),
        "interior_padding": integers([0] * len(low)),
    }
    grown = tensor(buffer_shape(shape, mesh, target), element_of(value))
    assert [size + before + after for size, (before, after) in zip(shape_of(value), edges, strict=True)] == list(grown.shape)
    padded = emit.value("pad", grown, [value, zero], attrs)
    return build.update_halo(padded, mesh, split_axes=target.split_axes, halo_sizes=target.halo_sizes, loc=loc, ip=ip)
