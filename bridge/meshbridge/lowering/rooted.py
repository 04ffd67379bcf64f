"""Collectives with a root: broadcast, gather, reduce, scatter. A root that is only known at run time works everywhere."""

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
    """Known root: a tree of permutes (or one `collective_broadcast`). Else the root's pieces are scattered and then gathered."""
    return [broadcast_from(site, op.input, member(op, site, "root"))]


def broadcast_from(site: Site, value: ir.Value, root: Member) -> ir.Value:
    """The value of member `root` on every device of its group."""
    if site.group_size == 1:
        return value
    if not isinstance(root, int):
        return in_pieces(site, value, lambda flat: scatter_from(site, flat, root, 0))
    if site.groups.collective_broadcast:
        return site.emit.value("collective_broadcast", value.type, [value], site.groups.rooted(site.mesh, site.digits, root))
    return _tree(site, value, root)


def _tree(site: Site, value: ir.Value, root: int) -> ir.Value:
    """Binomial tree: whoever has the value sends it to one more device. Each device receives it once, in log2(n) permutes."""
    emit, size = site.emit, site.group_size
    reached = 1
    distance = _distance(site, root)
    while reached < size:
        steps = [((root + k) % size, (root + k + reached) % size) for k in range(min(reached, size - reached))]
        received = site.permute(value, steps)
        value = emit.select(emit.compare("GE", distance, reached), received, value)
        reached *= 2
    return value


def _distance(site: Site, root: int) -> ir.Value:
    """How many members after the root, cyclically, this device comes."""
    if root == 0:
        return site.in_group()
    size = site.group_size
    return site.emit.elementwise("remainder", site.emit.add(site.in_group(), size - root), site.emit.scalar(size))


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
    """Known root: a tree of permutes. Else an all_to_all, of which every device keeps what the root sent."""
    root = member(op, site, "root")
    if site.group_size == 1:
        return [op.input]
    if isinstance(root, int):
        return [_halving_tree(site, op.input, root, op.scatter_axis)]
    return [scatter_from(site, op.input, root, op.scatter_axis)]


def scatter_from(site: Site, value: ir.Value, root: ir.Value, dim: int) -> ir.Value:
    """This device's piece along `dim` of the value of member `root`, which is only known at run time."""
    piece = shape_of(value)[dim] // site.group_size
    received = exchange(site, value, dim, dim)
    return site.emit.dynamic_slice(received, dim, site.emit.beginning(root, site.group_size, piece), piece)


def _halving_tree(site: Site, value: ir.Value, root: int, dim: int) -> ir.Value:
    """Binomial tree: whoever has pieces sends the farther half of them on. log2(n) permutes, the root sends each piece once."""
    emit, size = site.emit, site.group_size
    piece = shape_of(value)[dim] // size
    held = 1 << (size - 1).bit_length()
    if root:  # the root's own piece first
        tail = emit.slice(value, dim, root * piece, (size - root) * piece)
        value = emit.concatenate([tail, emit.slice(value, dim, 0, root * piece)], dim)
    if held > size:  # pieces for members beyond the group's end: nobody reads them
        value = emit.concatenate([value, emit.slice(value, dim, 0, (held - size) * piece)], dim)
    distance = _distance(site, root)
    while held > 1:
        half = held // 2
        steps = [((root + k) % size, (root + k + half) % size) for k in range(0, size, held) if k + half < size]
        received = site.permute(emit.slice(value, dim, half * piece, half * piece), steps)
        place = emit.elementwise("remainder", distance, held)
        kept = emit.slice(value, dim, 0, half * piece)
        value = emit.select(emit.compare("GE", place, half), received, kept)
        held = half
    return value
