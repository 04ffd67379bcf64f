"""send and recv: a matched pair is one collective_permute.

Every device runs the same program, so what one device sends, another receives a few lines further down or up. The k-th send of a
block pairs with the block's k-th recv of the same mesh, axes and type. The recv names the source and the send the destination.
On the destination the recv's result is what the source gave to the send; every other device keeps what it gave to the recv. A
send returns its input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from meshbridge.dialect.ops import CollectiveOpView, RecvOp, SendOp
from meshbridge.ir.mlir import OpError, ancestor_in, ir, source_location
from meshbridge.ir.uses import defining_op
from meshbridge.lowering.members import is_member, member
from meshbridge.lowering.rooted import broadcast_from
from meshbridge.lowering.site import Site

MESSAGES = frozenset((str(SendOp.OPERATION_NAME), str(RecvOp.OPERATION_NAME)))

Channel = tuple[str, tuple[int, ...], ir.Type]


@dataclass(frozen=True)
class SendRecv:
    """A send and its recv."""

    send: SendOp
    recv: RecvOp


def pairs(views: Sequence[ir.OpView]) -> dict[int, SendRecv]:
    """The matched pairs of one block, by the number of the operation where each can be lowered.

    Raises OpError for a send or recv without its counterpart.
    """
    sends: dict[Channel, list[SendOp]] = defaultdict(list)
    recvs: dict[Channel, list[RecvOp]] = defaultdict(list)
    for view in views:
        if isinstance(view, SendOp):
            sends[_channel(view)].append(view)
        elif isinstance(view, RecvOp):
            recvs[_channel(view)].append(view)
    found: dict[ir.Operation, SendRecv] = {}
    for channel in sends | recvs:
        here, there = sends[channel], recvs[channel]
        matched = min(len(here), len(there))
        for unmatched in (*here[matched:], *there[matched:]):
            raise _unmatched(unmatched)
        found |= {_place(send, recv): SendRecv(send, recv) for send, recv in zip(here, there, strict=True)}
    return {number: found[view.operation] for number, view in enumerate(views) if view.operation in found}


def _channel(view: CollectiveOpView) -> Channel:
    return view.mesh, view.mesh_axes, view.input.type


def _unmatched(view: CollectiveOpView) -> OpError:
    other = "recv" if isinstance(view, SendOp) else "send"
    return OpError(
        view.operation,
        f"has no mesh.{other} to match it",
        f"a mesh.{other} of the same mesh, mesh_axes and type must stand in the same block",
    )


def _place(send: SendOp, recv: RecvOp) -> ir.Operation:
    """The later of the two; but the recv if all that the send needs is there already.

    Raises OpError where the recv's result is used before what is sent is known: the devices would wait for each other.
    """
    first, last = send.operation, recv.operation
    if first.is_before_in_block(last) or all(_known_before(value, last) for value in send.operation.operands):
        return last
    for use in recv.operation.results[0].uses:
        user = ancestor_in(last.block, use.owner.operation)
        if user is not None and user.is_before_in_block(first):
            raise OpError(last, f"is used before the matching mesh.send at {source_location(first)} has what it sends")
    return first


def _known_before(value: ir.Value, op: ir.Operation) -> bool:
    """Whether `value`, visible in the block of `op`, is defined before `op`."""
    definition = defining_op(value)
    return definition is None or definition.block != op.block or definition.is_before_in_block(op)


def lower_pair(pair: SendRecv, site: Site) -> None:
    """Writes the permute at `site` and removes both operations."""
    if "source" not in pair.recv.operation.attributes:
        raise OpError(pair.recv.operation, "names no source, so what it receives is not decided")
    source = member(pair.recv, site, "source")
    destination = member(pair.send, site, "destination")
    sent, kept = pair.send.input, pair.recv.input
    if isinstance(source, int) and isinstance(destination, int):
        arrived = sent if source == destination else site.permute(sent, [(source, destination)])
    else:
        arrived = broadcast_from(site, sent, source)
    received = site.emit.select(is_member(site, destination), arrived, kept)
    pair.recv.operation.results[0].replace_all_uses_with(received)
    pair.send.operation.results[0].replace_all_uses_with(sent)
    pair.recv.operation.erase()
    pair.send.operation.erase()
