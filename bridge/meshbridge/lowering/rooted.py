"""Collectives with a root: broadcast, gather, reduce, scatter. A root that is only known at run time works everywhere."""

from __future__ import annotations

from meshbridge.dialect.ops import BroadcastOp, GatherOp, ReduceOp, ScatterOp
from meshbridge.lowering.emit import shape_of
from meshbridge.lowering.exchanges import exchange, gather_over, in_pieces
from meshbridge.lowering.members import Member, member, moves
from meshbridge.lowering.reductions import all_reduce_over
from meshbridge.lowering.site import Site, lowers
from meshbridge.mlir import ir


@lowers(BroadcastOp)
def broadcast(op: BroadcastOp, site: Site) -> list[ir.Value]:
    """Known root: a tree of permutes (or one `collective_broadcast`). Else the root's pieces are scattered and then gathered."""
    return [broadcast_from(site, op.input, member(op, site, "root"))]


def broadcast_from(site: Site, value: ir.Value, root: Member) -> ir.Value:
    """The value of member `root` on every device of its group."""
    if site.group_size == 1:
        return value
    if not isinstance(root, int):
        return in_pieces(site, value, lambda flat: scatter_from(site, flat, root, 0))
    if site.groups.collective_broadcast:
        return site.emit.value("collective_broadcast", value.type, [value], site.groups.rooted(site.mesh, site.axes, root))
    return _tree(site, value, root)


def _tree(site: Site, value: ir.Value, root: int) -> ir.Value:
    """Binomial tree: whoever has the value sends it to one more device. Each device receives it once, in log2(n) permutes."""
    emit, size = site.emit, site.group_size
    reached = 1
    distance = emit.elementwise("remainder", emit.add(site.in_group(), size - root), emit.scalar(size))
    while reached < size:
        steps = [((root + k) % size, (root + k + reached) % size) for k in range(min(reached, size - reached))]
        received = site.permute(value, moves(site, steps))
        value = emit.select(emit.compare("GE", distance, emit.scalar(reached)), received, value)
        reached *= 2
    return value


@lowers(GatherOp)
def gather(op: GatherOp, site: Site) -> list[ir.Value]:
    """all_gather: what other devices than the root get is undefined."""
    member(op, site, "root")
    return [gather_over(site, op.input, op.gather_axis)]


@lowers(ReduceOp)
def reduce(op: ReduceOp, site: Site) -> list[ir.Value]:
    """all_reduce: what other devices than the root get is undefined."""
    member(op, site, "root")
    return [all_reduce_over(site, op.input, op.reduction)]


@lowers(ScatterOp)
def scatter(op: ScatterOp, site: Site) -> list[ir.Value]:
    """all_to_all, of which every device keeps what the root sent."""
    root = member(op, site, "root")
    return [op.input if site.group_size == 1 else scatter_from(site, op.input, root, op.scatter_axis)]


def scatter_from(site: Site, value: ir.Value, root: Member, dim: int) -> ir.Value:
    """This device's piece along `dim` of the value of member `root`."""
    piece = shape_of(value)[dim] // site.group_size
    received = exchange(site, value, dim, dim)
    if isinstance(root, int):
        return site.emit.slice(received, dim, root * piece, piece)
    return site.emit.dynamic_slice(received, dim, site.emit.multiply(root, piece), piece)
