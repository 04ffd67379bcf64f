"""Collectives with a root: broadcast, gather, reduce, scatter. A root that is only known at run time works everywhere."""

from __future__ import annotations

from meshbridge.dialect.ops import BroadcastOp, GatherOp, ReduceOp, ScatterOp
from meshbridge.lowering.emit import element_of, shape_of, tensor
from meshbridge.lowering.exchanges import exchange, gather_over
from meshbridge.lowering.members import Member, is_member, member, moves
from meshbridge.lowering.reductions import add_body, reduce_over
from meshbridge.lowering.site import Site, lowers
from meshbridge.mlir import ir


@lowers(BroadcastOp)
def broadcast(op: BroadcastOp, site: Site) -> list[ir.Value]:
    """Known root: a tree of permutes (or one `collective_broadcast`); else one all_reduce of what only the root contributes."""
    return [broadcast_from(site, op.input, member(op, site, "root"))]


def broadcast_from(site: Site, value: ir.Value, root: Member) -> ir.Value:
    """The value of member `root` on every device of its group."""
    if site.group_size == 1:
        return value
    if not isinstance(root, int):
        return _selected_at_run_time(site, value, root)
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


def _selected_at_run_time(site: Site, value: ir.Value, root: ir.Value) -> ir.Value:
    """An all_reduce with "or" of the bits, which are 0 on all devices but the root: exact for every value of every type."""
    element = element_of(value)
    if isinstance(element, ir.ComplexType):
        part = tensor(shape_of(value), element.element_type)
        halves = [_selected_at_run_time(site, site.emit.value(half, part, [value]), root) for half in ("real", "imag")]
        return site.emit.value("complex", value.type, halves)
    emit = site.emit
    bits = value
    if not isinstance(element, ir.IntegerType):
        integers = tensor(shape_of(value), ir.IntegerType.get_signless(ir.FloatType(element).width))
        bits = emit.value("bitcast_convert", integers, [value])
    zero = emit.constant(ir.Attribute.parse(f"dense<{'false' if str(element) == 'i1' else 0}> : {bits.type}"))
    masked = emit.select(is_member(site, root), bits, zero)
    reduce = emit.op("all_reduce", bits.type, [masked], site.groups.collective(site.mesh, site.axes), regions=1)
    add_body(reduce, "or", element_of(bits))
    chosen: ir.Value = reduce.results[0]
    return chosen if isinstance(element, ir.IntegerType) else emit.value("bitcast_convert", value.type, [chosen])


@lowers(GatherOp)
def gather(op: GatherOp, site: Site) -> list[ir.Value]:
    """all_gather: what other devices than the root get is undefined."""
    member(op, site, "root")
    return [gather_over(site, op.input, op.gather_axis)]


@lowers(ReduceOp)
def reduce(op: ReduceOp, site: Site) -> list[ir.Value]:
    """all_reduce: what other devices than the root get is undefined."""
    member(op, site, "root")
    return [reduce_over(site, op.input, op.reduction)]


@lowers(ScatterOp)
def scatter(op: ScatterOp, site: Site) -> list[ir.Value]:
    """all_to_all, of which every device keeps what the root sent."""
    root = member(op, site, "root")
    if site.group_size == 1:
        return [op.input]
    emit, dim = site.emit, op.scatter_axis
    received = exchange(site, op.input, dim, dim, ir.RankedTensorType(op.input.type))
    piece = int(site.result_type.shape[dim])
    if isinstance(root, int):
        return [emit.slice(received, dim, root * piece, piece)]
    return [emit.dynamic_slice(received, dim, emit.multiply(root, piece), piece)]
