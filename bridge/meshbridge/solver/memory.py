"""Memory: which holders have how many bytes, by the choice of which variable, and when.

A holder is a variable of the problem whose bytes differ between choices. Where it is tied to others, one variable of the
presolved problem decides for all of them, so a variable may have many holders, each with its own lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshbridge.solver.memory_profile import MemoryProfile
from meshbridge.solver.problem import Indices, Numbers


def ranges(begins: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """The numbers of several ranges, one after the other, and the range of each number."""
    which = np.repeat(np.arange(counts.size), counts)
    return begins[which] + np.arange(which.size) - (np.cumsum(counts) - counts)[which], which


@final
@dataclass(frozen=True, eq=False)
class HolderMemory:
    """Holders, sorted by the variables that decide for them, and the bytes that are held for any choices."""

    steps: MemoryProfile  # starts and stops by holder
    owners: Indices  # the variable that decides for each holder
    begins: Indices  # where the bytes of each holder begin, one number for each choice of its owner
    sizes: Numbers
    base: Numbers  # the bytes at each step for any choices
    offsets: Indices  # where the choices of each variable begin

    def held_by(self, chosen: Indices) -> Numbers:
        """The bytes of each holder."""
        return np.asarray(self.sizes[self.begins + chosen[self.owners]])

    def usage(self, chosen: Indices) -> Numbers:
        """The bytes alive at each step."""
        return np.asarray(self.base + self.steps.usage(self.held_by(chosen)))

    def priced(self, costs: Numbers, prices: Numbers) -> Numbers:
        """The cost of each choice, with the price of a byte of each holder times its bytes."""
        choices, holders = self.numbers
        return np.asarray(costs + np.bincount(choices, self.sizes * prices[holders], costs.size))

    def of(self, variables: Indices) -> tuple[Indices, Indices]:
        """The holders of these variables, and for each the index of its variable among these."""
        begins, counts = self._held_by_variable
        return ranges(begins[variables], counts[variables])

    @cached_property
    def most_saved(self) -> Numbers:
        """For each holder, the bytes of its largest choice less those of its smallest."""
        if not self.owners.size:
            return np.zeros(0)
        return np.asarray(np.maximum.reduceat(self.sizes, self.begins) - np.minimum.reduceat(self.sizes, self.begins))

    @cached_property
    def numbers(self) -> tuple[Indices, Indices]:
        """For each entry of `sizes`, its choice and its holder."""
        sizes = np.diff(self.offsets)[self.owners]
        return ranges(self.offsets[self.owners], sizes)

    @cached_property
    def _held_by_variable(self) -> tuple[Indices, Indices]:
        counts = np.bincount(self.owners, minlength=self.offsets.size - 1)
        return np.cumsum(counts) - counts, counts


def merged_holders(steps: MemoryProfile, owners: Indices, held: list[Numbers], base: Numbers, offsets: Indices) -> HolderMemory:
    """The memory of these holders, by owner. Merges steps that hold the same, and holders of one owner and lifetime.

    Where ties merge many variables, those of repeated layers hold the same at step after step.
    """
    steps, base = _differing(steps, owners, held, base)
    places: dict[tuple[int, int, int], int] = {}
    tables: list[Numbers] = []
    for owner, start, stop, table in zip(owners.tolist(), steps.starts.tolist(), steps.stops.tolist(), held, strict=True):
        if start < stop:
            place = places.setdefault((owner, start, stop), len(tables))
            if place < len(tables):
                tables[place] = tables[place] + table
            else:
                tables.append(table)
    keys = np.array(list(places), dtype=np.int64).reshape(-1, 3)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    lifetimes = MemoryProfile(keys[:, 1], keys[:, 2], steps.times)
    return HolderMemory(lifetimes, keys[:, 0], np.cumsum(sizes) - sizes, np.concatenate([*tables, np.zeros(0)]), base, offsets)


def _differing(steps: MemoryProfile, owners: Indices, held: list[Numbers], base: Numbers) -> tuple[MemoryProfile, Numbers]:
    """Keeps, of steps at which the same choices hold the same beside the base, the one of the largest base."""
    contents = [(owner, table.tobytes()) for owner, table in zip(owners.tolist(), held, strict=True)]
    names = {content: name for name, content in enumerate(dict.fromkeys(contents))}
    drawn = np.random.default_rng(0).integers(0, 2**63, len(names), dtype=np.uint64)
    codes = drawn[[names[content] for content in contents]]
    changes = np.zeros(steps.times.size + 1, dtype=np.uint64)
    np.add.at(changes, steps.starts, codes)
    np.subtract.at(changes, steps.stops, codes)
    sums = np.cumsum(changes)[:-1]  # modulo 2^64: equal where the same is held, and elsewhere with a chance of 2^-64
    order = np.lexsort((-base, sums))
    kept_steps = np.sort(order[np.unique(sums[order], return_index=True)[1]])
    return MemoryProfile(
        np.searchsorted(kept_steps, steps.starts), np.searchsorted(kept_steps, steps.stops), steps.times[kept_steps]
    ), base[kept_steps]
