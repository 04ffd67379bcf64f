"""Lowers collectives with a root: broadcast, gather, reduce, scatter. The root may be known only at run time."""

from __future__ import annotations

from meshbridge.dialect.ops import BroadcastOp, GatherOp, ReduceOp, ScatterOp
from meshbridge.ir.builder import shape_of
from meshbridge.ir.mlir import ir
from meshbridge.lowering.exchanges import exchange, gather_over, in_pieces
from meshbridge.lowering.members import Member, member
from meshbridge.lowering.reductions import all_reduce_over
from meshbridge.lowering.site import Site, lowers


@lowers(BroadcastOp)
def broadcast(op: BroadcastOp, site: Site) -> list[ir.Value]:
    """A tree of permutes, or one `collective_broadcast`; from a root known only at run time, a scatter and an all-gather."""
    return [broadcast_from(site, op.input, member(op, site, "root"))]


def broadcast_from(site: Site, value: ir.Value, root: Member) -> ir.Value:
    """The value of member `root` on every device of its group."""
    if site.group_size == 1:
        return value
    if not isinstance(root, int):
        return in_pieces(site, value, lambda flat: scatter_from(site, flat, root, 0))
    if site.groups.collective_broadcast:
        return site.builder.value("collective_broadcast", value.type, [value], site.groups.rooted(site.mesh, site.digits, root))
    return _tree(site, value, root)


def _tree(site: Site, value: ir.Value, root: int) -> ir.Value:
    """Binomial tree of log2(n) permutes: each device that has the value sends it to one more device."""
    builder, size = site.builder, site.group_size
    reached = 1
    distance = _distance(site, root)
    while reached < size:
        steps = [((root + k) % size, (root + k + reached) % size) for k in range(min(reached, size - reached))]
        received = site.permute(value, steps)
        value = builder.select(builder.compare("GE", distance, reached), received, value)
        reached *= 2
    return value


def _distance(site: Site, root: int) -> ir.Value:
    """The cyclic distance of this device from the root, in members."""
    if root == 0:
        return site.in_group()
    size = site.group_size
    return site.builder.elementwise("remainder", site.builder.add(site.in_group(), size - root), site.builder.scalar(size))


@lowers(GatherOp)
def gather(op: GatherOp, site: Site) -> list[ir.Value]:
    """`all_gather`: the dialect leaves the results on devices other than the root undefined."""
    member(op, site, "root")
    return [gather_over(site, op.input, op.gather_axis)]


@lowers(ReduceOp)
def reduce(op: ReduceOp, site: Site) -> list[ir.Value]:
    """`all_reduce`: the dialect leaves the results on devices other than the root undefined."""
    member(op, site, "root")
    return [all_reduce_over(site, op.input, op.reduction)]


@lowers(ScatterOp)
def scatter(op: ScatterOp, site: Site) -> list[ir.Value]:
    """A tree of permutes; from a root known only at run time, an all_to_all of which each device keeps the root's piece."""
    root = member(op, site, "root")
    if site.group_size == 1:
        return [op.input]
    if isinstance(root, int):
        return [_halving_tree(site, op.input, root, op.scatter_axis)]
    return [scatter_from(site, op.input, root, op.scatter_axis)]


def scatter_from(site: Site, value: ir.Value, root: ir.Value, dim: int) -> ir.Value:
    """This device's piece, along `dim`, of the value of member `root`, a number known only at run time."""
    piece = shape_of(value)[dim] // site.group_size
    received = exchange(site, value, dim, dim)
    return site.builder.dynamic_slice(received, dim, site.builder.beginning(root, site.group_size, piece), piece)


def _halving_tree(site: Site, value: ir.Value, root: int, dim: int) -> ir.Value:
    """Binomial tree of log2(n) permutes: each device that has pieces sends on the farther half of them."""
    builder, size = site.builder, site.group_size
    piece = shape_of(value)[dim] // size
    count = 1 << (size - 1).bit_length()
    if root:  # the root's own piece first
        tail = builder.slice(value, dim, root * piece, (size - root) * piece)
        value = builder.concatenate([tail, builder.slice(value, dim, 0, root * piece)], dim)
    if count > size:  # padding for members beyond the group's end, which no device reads
        value = builder.concatenate([value, builder.slice(value, dim, 0, (count - size) * piece)], dim)
    distance = _distance(site, root)
    while count > 1:
        half = count // 2
        steps = [((root + k) % size, (root + k + half) % size) for k in range(0, size, count) if k + half < size]
        received = site.permute(builder.slice(value, dim, half * piece, half * piece), steps)
        place = builder.elementwise("remainder", distance, count)
        near_half = builder.slice(value, dim, 0, half * piece)
        value = builder.select(builder.compare("GE", place, half), received, near_half)
        count = half
    return value
