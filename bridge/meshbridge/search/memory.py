"""Memory: who holds how much, by the choice of which variable, and when.

A holder is a variable of the problem whose bytes differ between choices. Where it is tied to others, one variable of the normal
form decides for all of them, so that a variable may have many holders, each with its own lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshbridge.search.problem import Indices, Numbers
from meshbridge.search.steps import MemorySteps


def ranges(begins: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """The numbers of several ranges, one behind the other, and which range each of them is of."""
    which = np.repeat(np.arange(counts.size), counts)
    return begins[which] + np.arange(which.size) - (np.cumsum(counts) - counts)[which], which


@final
@dataclass(frozen=True, eq=False)
class HolderMemory:
    """Holders in the order of the variables that decide for them, and what is held whatever is chosen."""

    steps: MemorySteps  # first and last by holder
    owners: Indices  # by holder: the variable that decides for it
    begins: Indices  # by holder: where its bytes stand, one number for each choice of its owner
    held: Numbers
    base: Numbers  # by step: the bytes that are held whatever is chosen
    offsets: Indices  # by variable: where its choices begin

    def held_by(self, chosen: Indices) -> Numbers:
        """By holder: its bytes."""
        return np.asarray(self.held[self.begins + chosen[self.owners]])

    def usage(self, chosen: Indices) -> Numbers:
        """By step: the bytes that live there."""
        return np.asarray(self.base + self.steps.usage(self.held_by(chosen)))

    def priced(self, costs: Numbers, prices: Numbers) -> Numbers:
        """The costs by choice, with what each choice holds at a price on a byte for each holder."""
        choices, holders = self.numbers
        return np.asarray(costs + np.bincount(choices, self.held * prices[holders], costs.size))

    def of(self, variables: Indices) -> tuple[Indices, Indices]:
        """The holders that these variables decide for, and which variable of these each is of."""
        first, counts = self._held_by_variable
        return ranges(first[variables], counts[variables])

    @cached_property
    def most_saved(self) -> Numbers:
        """By holder: the bytes of its largest choice less those of its smallest."""
        if not self.owners.size:
            return np.zeros(0)
        return np.asarray(np.maximum.reduceat(self.held, self.begins) - np.minimum.reduceat(self.held, self.begins))

    @cached_property
    def numbers(self) -> tuple[Indices, Indices]:
        """By number of `held`: the choice that it belongs to, and the holder."""
        sizes = np.diff(self.offsets)[self.owners]
        return ranges(self.offsets[self.owners], sizes)

    @cached_property
    def _held_by_variable(self) -> tuple[Indices, Indices]:
        counts = np.bincount(self.owners, minlength=self.offsets.size - 1)
        return np.cumsum(counts) - counts, counts


def joined(steps: MemorySteps, owners: Indices, held: list[Numbers], base: Numbers, offsets: Indices) -> HolderMemory:
    """The memory of these holders, by owner, with one step for all at which the same is held, and one holder for those alike.

    Where ties make many variables one, those of repeated layers hold the same at step after step.
    """
    steps, base = _differing(steps, owners, held, base)
    places: dict[tuple[int, int, int], int] = {}
    tables: list[Numbers] = []
    for owner, first, last, table in zip(owners.tolist(), steps.first.tolist(), steps.last.tolist(), held, strict=True):
        if first < last:
            place = places.setdefault((owner, first, last), len(tables))
            if place < len(tables):
                tables[place] = tables[place] + table
            else:
                tables.append(table)
    keys = np.array(list(places), dtype=np.int64).reshape(-1, 3)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    lifetimes = MemorySteps(keys[:, 1], keys[:, 2], steps.times)
    return HolderMemory(lifetimes, keys[:, 0], np.cumsum(sizes) - sizes, np.concatenate([*tables, np.zeros(0)]), base, offsets)


def _differing(steps: MemorySteps, owners: Indices, held: list[Numbers], base: Numbers) -> tuple[MemorySteps, Numbers]:
    """Of the steps at which the same choices hold the same beside the base, the one of the largest base."""
    contents = [(owner, table.tobytes()) for owner, table in zip(owners.tolist(), held, strict=True)]
    names = {content: name for name, content in enumerate(dict.fromkeys(contents))}
    drawn = np.random.default_rng(0).integers(0, 2**63, len(names), dtype=np.uint64)
    each = drawn[[names[content] for content in contents]]
    changes = np.zeros(steps.times.size + 1, dtype=np.uint64)
    np.add.at(changes, steps.first, each)
    np.subtract.at(changes, steps.last, each)
    sums = np.cumsum(changes)[:-1]  # modulo 2^64: equal, but by a chance of 2^-64, where the same is held
    order = np.lexsort((-base, sums))
    kept = np.sort(order[np.unique(sums[order], return_index=True)[1]])
    return MemorySteps(np.searchsorted(kept, steps.first), np.searchsorted(kept, steps.last), steps.times[kept]), base[kept]
