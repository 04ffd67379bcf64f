"""Sequential tree-reweighted message passing (TRW-S): a bound on the least sum of costs and edges that rises from sweep to sweep.

Messages move costs between variables and edges, and keep the sum for every choice of all variables. Each variable gives equal
shares of its costs to the chains of edges that pass through it in the order of the variables; a backward sweep solves all chains
exactly, and the sum of their minima is the bound (Kolmogorov, Convergent tree-reweighted message passing, 2006).

The order of the variables is cut into segments of `SEGMENT`, which are passed through side by side. Then a few levels contain all
variables, no two of a level are neighbours, and all edges of a level with tables of one shape are one array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.solver.problem import Indices, Numbers, product

SEGMENT = 30
"""Variables of a segment. In the original order a sweep raises the bound more, and takes longer: on IOPDDL's A 0.21 s, against
0.11 s with 30 and 0.09 s with 10, and 16 sweeps bound 3.43e9, 3.29e9 and 3.24e9. On a GPT's relaxed problem, 8 sweeps bound
1.36e8, 1.32e8 and 1.18e8; in a random order, 1.00e8."""

SHARED = 4096
"""Larger tables are not copied: only edges that share one are processed together."""

ENTRIES = 4_000_000
"""The most entries of all tables that are processed together: 32 MB."""

Edge = tuple[int, int, Numbers, int, int]
"""Sender, receiver, the table `[sender, receiver]`, and the positions of the messages to the sender and to the receiver."""


@final
@dataclass(frozen=True, eq=False)
class MessageBatch:
    """Edges along which messages are sent at once. The edge is the last dimension of all arrays."""

    tables: Numbers  # [choice of the sender, choice of the receiver, edge]; one entry if all edges share the table
    senders: Indices  # [choice of the sender, edge]: the positions of its costs
    receivers: Indices  # [choice of the receiver, edge]
    arriving: Indices  # [choice of the sender, edge]: the positions of the message to it
    leaving: Indices  # [choice of the receiver, edge]
    variables: tuple[Indices, Indices]  # by edge


@final
class TRWS:
    """Messages along the edges of a problem. They persist when the costs of the variables change."""

    def __init__(self, offsets: Indices, edges: Mapping[tuple[int, int], Numbers]) -> None:
        """`offsets[v]`: the position of the costs of variable v in the costs that the methods take."""
        order = _order(offsets.size - 1, edges)
        forward: list[Edge] = []
        size = 0
        for (i, j), matrix in sorted(edges.items(), key=lambda item: item[0]):
            v, u, table = (i, j, matrix) if order[i] < order[j] else (j, i, matrix.T)
            forward.append((v, u, table, size, size + table.shape[0]))
            size += sum(table.shape)
        self._edges = forward
        self._messages = np.zeros(size)
        self._forward = list(_batches(offsets, forward, _levels(order, forward)))
        back = [(u, v, table.T, to_receiver, to_sender) for v, u, table, to_sender, to_receiver in forward]
        self._back = list(_batches(offsets, back, _levels(-order, back)))
        later, earlier = (np.bincount([edge[0] for edge in direction], minlength=order.size) for direction in (forward, back))
        self.variables = np.flatnonzero(later + earlier)
        chains = np.maximum(1, np.maximum(later, earlier))
        self._shares = np.repeat(1.0 / chains, np.diff(offsets))
        self._ends = 1.0 - earlier / chains
        self._firsts = offsets[:-1]

    def sweep(self, costs: Numbers) -> float:
        """Sweeps forwards and backwards. Returns the bound on the cost of these variables and edges."""
        totals = self.totals(costs)
        self._pass(self._forward, totals)
        lower_bound = self._pass(self._back, totals)
        least = np.minimum.reduceat(totals, self._firsts)[self.variables] if self.variables.size else np.zeros(0)
        return lower_bound + product(least, self._ends[self.variables])

    def totals(self, costs: Numbers) -> Numbers:
        """The cost of each choice with all messages to it. The least of a variable is likely its best choice."""
        totals = costs.copy()
        for batch in (*self._forward, *self._back):
            np.add.at(totals, batch.senders, self._messages[batch.arriving])
        return totals

    def gaps(self, costs: Numbers, chosen: Indices) -> Numbers:
        """Per variable, the excess of its choice over its cheapest one by the messages, plus half the excess of its edges."""
        totals = self.totals(costs)
        result = np.asarray(totals[self._firsts + chosen] - np.minimum.reduceat(totals, self._firsts))
        for batch in self._forward:
            reduced = batch.tables - self._messages[batch.arriving][:, None] - self._messages[batch.leaving]
            sender, receiver = batch.variables
            excess = reduced[chosen[sender], chosen[receiver], np.arange(sender.size)] - reduced.min(axis=(0, 1))
            np.add.at(result, sender, excess / 2)
            np.add.at(result, receiver, excess / 2)
        return np.asarray(np.maximum(result, 0.0))

    def tables(self) -> dict[tuple[int, int], Numbers]:
        """Per edge (i < j), its table less the messages along it. Tables and totals add up to the edges and the costs."""
        messages = self._messages
        tables = {}
        for v, u, table, to_sender, to_receiver in self._edges:
            reduced = table - messages[to_sender:to_receiver, None] - messages[to_receiver : to_receiver + table.shape[1]]
            tables[min(v, u), max(v, u)] = reduced if v < u else reduced.T
        return tables

    def _pass(self, batches: list[MessageBatch], totals: Numbers) -> float:
        messages = self._messages
        lower_bound = 0.0
        for batch in batches:
            share = totals[batch.senders] * self._shares[batch.senders] - messages[batch.arriving]
            least = (batch.tables + share[:, None]).min(axis=0)
            lowest = least.min(axis=0)
            lower_bound += float(lowest.sum())
            least -= lowest
            np.add.at(totals, batch.receivers, least - messages[batch.leaving])
            messages[batch.leaving] = least
        return lower_bound


def _order(count: int, edges: Iterable[tuple[int, int]]) -> Indices:
    """The position of each variable if the first variables of all segments come first, then the second ones, and so on."""
    connected = np.array(sorted({v for pair in edges for v in pair}), dtype=np.int64)
    places = np.arange(connected.size)
    order = np.zeros(count, dtype=np.int64)
    order[connected[np.lexsort((places, places % SEGMENT))]] = places
    return order


def _levels(order: Indices, edges: list[Edge]) -> Indices:
    """The length of the longest path to each variable, each edge leading to a variable later in the order."""
    levels = np.zeros(order.size, dtype=np.int64)
    for v, u, *_ in sorted(edges, key=lambda edge: order[edge[0]]):
        levels[u] = max(levels[u], levels[v] + 1)
    return levels


def _batches(offsets: Indices, edges: list[Edge], levels: Indices) -> Iterator[MessageBatch]:
    """The edges by the level of the sender, and those of a level by shape."""
    groups: dict[tuple[int, tuple[int, int], int], list[Edge]] = defaultdict(list)
    for edge in edges:
        table = edge[2]
        shared = table.ctypes.data if table.size > SHARED else 0
        groups[int(levels[edge[0]]), (table.shape[0], table.shape[1]), shared].append(edge)
    for (_, shape, shared), members in sorted(groups.items(), key=lambda item: item[0]):
        most = max(1, ENTRIES // (shape[0] * shape[1]))
        for start in range(0, len(members), most):
            yield _batch(offsets, members[start : start + most], shared=bool(shared))


def _batch(offsets: Indices, edges: list[Edge], *, shared: bool) -> MessageBatch:
    senders, receivers, tables, arriving, leaving = zip(*edges, strict=True)
    rows, columns = (np.arange(extent)[:, None] for extent in tables[0].shape)
    return MessageBatch(
        tables[0][:, :, None] if shared else np.stack(tables, axis=-1),
        offsets[list(senders)] + rows,
        offsets[list(receivers)] + columns,
        np.array(arriving) + rows,
        np.array(leaving) + columns,
        (np.array(senders), np.array(receivers)),
    )
