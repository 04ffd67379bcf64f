"""Lowers each matched pair of send and recv to one collective_permute.

Every device runs the same program. The k-th send of a block pairs with the block's k-th recv of the same mesh, axes and type. The
recv names the source, and the send the destination. On the destination, the recv returns the source's operand of the send; on
every other device, it returns its own operand. A send returns its input.
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
    """The matched pairs of one block, by the number of the operation at which each is lowered.

    Raises OpError for a send or recv without a counterpart.
    """
    sends: dict[Channel, list[SendOp]] = defaultdict(list)
    recvs: dict[Channel, list[RecvOp]] = defaultdict(list)
    for view in views:
        if isinstance(view, SendOp):
            sends[_channel(view)].append(view)
        elif isinstance(view, RecvOp):
            recvs[_channel(view)].append(view)
    by_place: dict[ir.Operation, SendRecv] = {}
    for channel in sends | recvs:
        channel_sends, channel_recvs = sends[channel], recvs[channel]
        matched = min(len(channel_sends), len(channel_recvs))
        for unmatched in (*channel_sends[matched:], *channel_recvs[matched:]):
            raise _unmatched(unmatched)
        by_place |= {_place(send, recv): SendRecv(send, recv) for send, recv in zip(channel_sends, channel_recvs, strict=True)}
    return {number: by_place[view.operation] for number, view in enumerate(views) if view.operation in by_place}


def _channel(view: CollectiveOpView) -> Channel:
    return view.mesh, view.mesh_axes, view.input.type


def _unmatched(view: CollectiveOpView) -> OpError:
    counterpart = "recv" if isinstance(view, SendOp) else "send"
    return OpError(
        view.operation,
        f"has no mesh.{counterpart} to match it",
        f"a mesh.{counterpart} of the same mesh, mesh_axes and type must stand in the same block",
    )


def _place(send: SendOp, recv: RecvOp) -> ir.Operation:
    """The later of the two, or the recv if the operands of the send are defined before it.

    Raises OpError if the recv's result is used before the message is computed: the devices would wait for each other.
    """
    send_op, recv_op = send.operation, recv.operation
    if send_op.is_before_in_block(recv_op) or all(_known_before(value, recv_op) for value in send.operation.operands):
        return recv_op
    for use in recv.operation.results[0].uses:
        user = ancestor_in(recv_op.block, use.owner.operation)
        if user is not None and user.is_before_in_block(send_op):
            raise OpError(recv_op, f"is used before the matching mesh.send at {source_location(send_op)} has what it sends")
    return send_op


def _known_before(value: ir.Value, op: ir.Operation) -> bool:
    """True if `value`, which is visible in the block of `op`, is defined before `op`."""
    definition = defining_op(value)
    return definition is None or definition.block != op.block or definition.is_before_in_block(op)


def lower_pair(pair: SendRecv, site: Site) -> None:
    """Builds the permute at `site` and erases both operations."""
    if "source" not in pair.recv.operation.attributes:
        raise OpError(pair.recv.operation, "names no source, so what it receives is not decided")
    source = member(pair.recv, site, "source")
    destination = member(pair.send, site, "destination")
    message, fallback = pair.send.input, pair.recv.input
    if isinstance(source, int) and isinstance(destination, int):
        arrived = message if source == destination else site.permute(message, [(source, destination)])
    else:
        arrived = broadcast_from(site, message, source)
    received = site.builder.select(is_member(site, destination), arrived, fallback)
    pair.recv.operation.results[0].replace_all_uses_with(received)
    pair.send.operation.results[0].replace_all_uses_with(message)
    pair.recv.operation.erase()
    pair.send.operation.erase()
