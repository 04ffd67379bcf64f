"""Edge colouring of bipartite graphs: as few colours as the largest degree (Koenig). A colour is a round of permutes."""

from __future__ import annotations

import numpy as np

from meshbridge.resharding.overlaps import Numbers, sorted_by


def colour_edges(senders: Numbers, receivers: Numbers) -> Numbers:
    """A colour for every edge, from 0 on, such that no two edges of one colour share a sender or a receiver.

    Edges of one distance between sender and receiver never meet. Where there are no more distances than the largest degree, as in
    an exchange of all with all, the distances are the colours. No edge may occur twice.
    """
    sends, receives = np.bincount(senders), np.bincount(receivers)
    most, count = int(max(sends.max(), receives.max())), max(np.count_nonzero(sends), np.count_nonzero(receives))
    distance = ((np.cumsum(receives > 0) - 1)[receivers] - (np.cumsum(sends > 0) - 1)[senders]) % count
    used = np.bincount(distance) > 0
    if np.count_nonzero(used) <= most:
        colours: Numbers = (np.cumsum(used) - 1)[distance]
        return colours
    order = sorted_by(distance % most, senders, receivers)  # edges that are likely to share a colour, one after the other
    colours = np.empty(len(order), np.int64)
    colours[order] = _Colouring(senders[order].tolist(), receivers[order].tolist(), most).coloured()
    return colours


class _Colouring:
    """Gives each edge the lowest colour that is free at both ends. If there is none, swaps two colours along the path from the
    receiver on which they alternate: one is free at the sender, one at the receiver. Free colours are the bits of a number."""

    def __init__(self, senders: list[int], receivers: list[int], most: int) -> None:
        self.ends = (senders, receivers)
        self.most = most
        self.free = tuple([(1 << most) - 1] * (max(side) + 1) for side in self.ends)
        self.edge_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
        "Per side, the edge of a colour at a device: the key is device * most + colour."
        self.colours = [-1] * len(senders)

    def coloured(self) -> list[int]:
        """The colours, edge by edge."""
        free, most, (at_sender, at_receiver) = self.free, self.most, self.edge_of
        for edge, (sender, receiver) in enumerate(zip(*self.ends, strict=True)):
            bit = free[0][sender] & free[1][receiver]
            if not bit:
                self._swap(receiver, _lowest(free[0][sender]), _lowest(free[1][receiver]))
                bit = free[0][sender] & free[1][receiver]
            bit &= -bit
            colour = bit.bit_length() - 1
            free[0][sender] ^= bit
            free[1][receiver] ^= bit
            at_sender[sender * most + colour] = at_receiver[receiver * most + colour] = edge
            self.colours[edge] = colour
        return self.colours

    def _swap(self, device: int, colour: int, other: int) -> None:
        """Swaps two colours along the path that leaves the receiver `device` by an edge of `colour`; `other` is free there."""
        path, side, step = [], 1, colour
        while (edge := self.edge_of[side].get(device * self.most + step)) is not None:
            path.append(edge)
            side = 1 - side
            device = self.ends[side][edge]
            step = colour + other - step
        for side in (0, 1):
            touched = [self.ends[side][edge] for edge in path]
            for edge, device in zip(path, touched, strict=True):
                del self.edge_of[side][device * self.most + self.colours[edge]]
                self.free[side][device] |= 1 << self.colours[edge]
            for edge, device in zip(path, touched, strict=True):
                swapped = colour + other - self.colours[edge]
                self.edge_of[side][device * self.most + swapped] = edge
                self.free[side][device] &= ~(1 << swapped)
        for edge in path:
            self.colours[edge] = colour + other - self.colours[edge]


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
