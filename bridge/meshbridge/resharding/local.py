"""The local buffer while a plan is built: its positions in order, and the steps so far.

A step works on dimensions of the buffer. `LocalBuffer` finds the view in which a set of positions is one dimension, and
transposes only where there is no such view, so that the common cases (gather a dimension, slice a dimension) become one step on
the tensor's own dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod

from meshbridge.ir.digits import Digits, group_size
from meshbridge.resharding import steps as s
from meshbridge.resharding.alignment import Position
from meshbridge.resharding.steps import Shape, Step


class LocalBuffer:
    """A row-major array of positions, and the list of `steps` that produced it."""

    def __init__(self, order: Sequence[Position]) -> None:
        self.order = list(order)
        self.steps: list[Step] = []
        self._shape = self._view()

    @property
    def shape(self) -> Shape:
        """The current shape of the buffer."""
        return self._shape

    def _starts(self, cuts: Sequence[int], joined: int) -> list[int]:
        """Indices into `order` at which the dimensions of a view begin: at each tensor dimension and at `cuts`, except at the
        `joined` positions after the first cut."""
        order, inside = self.order, range(cuts[0] + 1, cuts[0] + 1 + joined) if cuts else range(0)
        return [i for i in range(len(order)) if i == 0 or i in cuts or not (i in inside or _continues(order[i - 1], order[i]))]

    def _view(self, cuts: Sequence[int] = (), joined: int = 0) -> Shape:
        starts = self._starts(cuts, joined)
        ends = [*starts[1:], len(self.order)] if starts else []  # a scalar has no dimensions
        return tuple(prod(position.radix for position in self.order[a:b]) for a, b in zip(starts, ends, strict=True))

    def _set_view(self, *cuts: int, joined: int = 0) -> list[int]:
        """Reshapes to the view with these cuts. Returns the index into `order` at which each of its dimensions begins."""
        self._reshape(self._view(cuts, joined))
        return self._starts(cuts, joined)

    def _reshape(self, shape: Shape) -> None:
        if shape != self._shape:
            self.steps.append(s.Reshape(shape))
            self._shape = shape

    def _append(self, step: Step, order: list[Position]) -> None:
        self.steps.append(step)
        self._shape = step.shape
        self.order = order

    def _resized(self, dim: int, multiply: int = 1, divide: int = 1) -> Shape:
        return (*self._shape[:dim], self._shape[dim] * multiply // divide, *self._shape[dim + 1 :])

    def make_adjacent(self, positions: Sequence[Position]) -> list[Position]:
        """Makes `positions` adjacent, by a transpose to the front if needed. Returns them in buffer order."""
        indices = sorted(self.order.index(position) for position in positions)
        ordered = [self.order[i] for i in indices]
        if indices != list(range(indices[0], indices[0] + len(indices))):
            self.reorder([*ordered, *(position for position in self.order if position not in ordered)])
        return ordered

    def reorder(self, order: list[Position]) -> None:
        """Transposes to `order`."""
        if order == self.order:
            return
        index = {position: i for i, position in enumerate(self.order)}
        breaks = {index[b] for a, b in itertools.pairwise(order) if index[b] != index[a] + 1}
        breaks |= {index[order[0]]} | {index[a] + 1 for a, b in itertools.pairwise(order) if index[b] != index[a] + 1}
        starts = self._set_view(*(breaks - {len(order)}))
        where = {start: dim for dim, start in enumerate(starts)}
        permutation = tuple(where[index[position]] for position in order if index[position] in where)
        shape = tuple(self._shape[dim] for dim in permutation)
        self._append(s.Transpose(shape, permutation), order)

    def slice(self, labels: dict[Position, Digits]) -> None:
        """Each device keeps the values of the positions in `labels` that its digits name; adjacent ones in one step."""
        while labels:
            start = min(self.order.index(position) for position in labels)
            run = [self.order[start]]
            for position in self.order[start + 1 :]:
                if position not in labels or not _continues(run[-1], position):
                    break
                run.append(position)
            dim = self._set_view(start).index(start)
            digits = tuple(digit for position in run for digit in labels[position])
            shape = self._resized(dim, divide=prod(position.radix for position in run))
            labels = {position: digits for position, digits in labels.items() if position not in run}
            self._append(s.Slice(shape, digits, dim), [position for position in self.order if position not in run])

    def reduce_scatter(self, labels: dict[Position, Digits], kind: str) -> None:
        """Reduces over the digits in `labels`, and leaves each device the values of the positions that its digits name."""
        run = self.make_adjacent(list(labels))
        i = self.order.index(run[0])
        dim = self._set_view(i, joined=len(run) - 1).index(i)
        digits = tuple(digit for position in run for digit in labels[position])
        shape = self._resized(dim, divide=prod(position.radix for position in run))
        self._append(s.ReduceScatter(shape, digits, dim, kind), [position for position in self.order if position not in labels])

    def all_reduce(self, digits: Digits, kind: str) -> None:
        """Reduces over `digits`."""
        self._append(s.AllReduce(self._shape, digits, kind), self.order)

    def relabel(self, sources: Digits, targets: Digits, step: type[s.Permute | s.Relay]) -> None:
        """Relabels the buffer in a step of the class `step`."""
        self._append(step(self._shape, sources, targets), self.order)

    def gather(self, labels: Mapping[Position, Digits]) -> None:
        """Makes the positions in `labels` local by an all-gather over their digits."""
        inserted, run = self._insertion(self.order, list(labels))
        dim = self._set_view(inserted).index(inserted)
        digits = tuple(digit for position in run for digit in labels[position])
        order = [*self.order[:inserted], *run, *self.order[inserted:]]
        self._append(s.AllGather(self._resized(dim, multiply=group_size(digits)), digits, dim), order)

    def runs(self, absent: list[Position]) -> list[list[Position]]:
        """Runs of the `absent` positions, in tensor order, split where a position of the buffer comes between."""
        ordered = sorted(
            [*absent, *(present for present in self.order if present.radix > 1)], key=lambda position: position.order
        )
        return [list(run) for missing, run in itertools.groupby(ordered, key=absent.__contains__) if missing]

    def all_to_all(self, moves: Sequence[tuple[Position, Position, Digits]]) -> None:
        """For each (gathered, entered, digits): the digits no longer shard `gathered`, which becomes local, but `entered`."""
        by_entered = {entered: (gathered, digits) for gathered, entered, digits in moves}
        run = self.make_adjacent(list(by_entered))
        split_at = self.order.index(run[0])
        gathered = [by_entered[position][0] for position in run]
        digits = tuple(digit for position in run for digit in by_entered[position][1])
        remaining = [position for position in self.order if position not in by_entered]
        inserted, ordered = self._insertion(remaining, gathered)
        if ordered != gathered:  # `run` fixes the order of the group: put the pieces at the front and transpose later
            inserted = 0
        if inserted == split_at:  # right after the split positions: the same dimension
            split = concat = self._set_view(split_at, joined=len(run) - 1).index(split_at)
        else:
            concat_at = inserted if inserted < split_at else inserted + len(run)
            starts = self._set_view(split_at, concat_at, joined=len(run) - 1)
            split, concat = starts.index(split_at), starts.index(concat_at)
        n = group_size(digits)
        shape = list(self._shape)
        shape[split] //= n
        shape[concat] *= n
        step = s.AllToAll(tuple(shape), digits, split, concat)
        self._append(step, [*remaining[:inserted], *gathered, *remaining[inserted:]])

    def rounds(self, sources: Digits, targets: Digits, moved: Sequence[tuple[Position, Position, int]]) -> None:
        """An exchange in rounds. For each (gathered, entered, index) in `moved`, `gathered` becomes local, `entered` sharded, and
        the digit at `index` of the sources rotates."""
        entered = [self.order.index(position) for _, position, _ in moved]
        gathered = [position for position, _, _ in moved]
        remaining = [position for i, position in enumerate(self.order) if i not in entered]
        starts = self._set_view(*sorted(entered))
        split = tuple(starts.index(i) for i in entered)
        in_place = sorted([*remaining, *gathered], key=lambda position: position.order)
        fits = [position for position in in_place if position not in gathered] == remaining
        self.order = in_place if fits else [*gathered, *remaining]
        indices = [self.order.index(position) for position in gathered]
        starts = self._starts(sorted(indices), 0)
        concat = tuple(starts.index(i) for i in indices)
        turning = tuple(index for _, _, index in moved)
        self._append(s.Rounds(self._view(sorted(indices)), sources, targets, turning, split, concat), self.order)

    def finish(self) -> None:
        """Transposes to the tensor's own order and dimensions."""
        self.reorder(sorted(self.order, key=lambda position: position.order))
        self._set_view()

    def _insertion(self, order: list[Position], added: list[Position]) -> tuple[int, list[Position]]:
        """Where and in which order to insert `added` into `order` so that no transpose follows; at the front if there is no such
        place."""
        run = sorted(added, key=lambda position: position.order)
        inner = sum(1 for position in order if position.order < run[0].order)
        between = [position for position in order if run[0].order < position.order < run[-1].order]
        is_sorted = all(a.order < b.order for a, b in itertools.pairwise(order))
        return (inner, run) if is_sorted and not between else (0, run)


def _continues(outer: Position, inner: Position) -> bool:
    """Whether two adjacent positions are one dimension of a view."""
    return outer.dim == inner.dim and outer.place < inner.place
