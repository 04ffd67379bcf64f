"""Collectives over factors of mesh axes, which no mesh operation names: StableHLO's, with their device groups written out.

Groups are partition ids, as in the form `exported`; lowering to `local` makes them replicas.
"""

from __future__ import annotations

from meshbridge.ir import exchange
from meshbridge.ir.builder import element_of, integer, tensor
from meshbridge.ir.digits import Digits, group_size
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.resharding import steps as s
from meshbridge.resharding.site import Site


def slice_over(step: s.Slice, value: ir.Value, site: Site) -> ir.Value:
    """The piece along `step.dim` that this device's number names."""
    size = step.shape[step.dim]
    return site.emit.dynamic_slice(value, step.dim, site.emit.multiply(site.number(step.digits), size), size)


def gather_over(step: s.AllGather, value: ir.Value, site: Site) -> ir.Value:
    """`stablehlo.all_gather`."""
    attrs = {"all_gather_dim": integer(step.dim)} | site.groups.collective(site.mesh, step.digits)
    return site.emit.value("all_gather", tensor(step.shape, element_of(value)), [value], attrs)


def exchange_over(digits: Digits, split: int, concat: int, value: ir.Value, site: Site) -> ir.Value:
    """`stablehlo.all_to_all`."""
    groups = site.groups.collective(site.mesh, digits, global_ids=False)
    return exchange.exchange_over(site.emit, value, split, concat, group_size(digits), groups)


def permute_over(step: s.Permute, value: ir.Value, site: Site) -> ir.Value:
    """`stablehlo.collective_permute` between the devices whose numbers along both lists agree."""
    return site.permute(value, site.groups.relabelling(site.mesh, step.sources, step.targets))


def reduce_scatter_over(step: s.ReduceScatter, value: ir.Value, site: Site) -> ir.Value:
    """An all-to-all, whose pieces every device combines itself: as many bytes as a reduce-scatter."""
    emit, count = site.emit, group_size(step.digits)
    if step.kind not in COMBINERS:
        raise MeshError(f"reduction '{step.kind}' has no body that could run")
    received = exchange_over(step.digits, step.dim, step.dim, value, site)
    apart = emit.reshape(received, [*step.shape[: step.dim], count, *step.shape[step.dim :]])
    total: ir.Value | None = None
    for term in range(count):
        piece = emit.reshape(emit.slice(apart, step.dim, term, 1), step.shape)
        total = piece if total is None else emit.elementwise(COMBINERS[step.kind], total, piece)
    assert total is not None
    if step.kind == "average":
        return emit.elementwise("divide", total, count)
    return total
