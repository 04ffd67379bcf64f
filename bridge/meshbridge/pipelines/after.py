"""Which group of devices computes each op after the loop of microbatches.

An op is computed on the group that has the largest of the values that it reads: an optimizer's ops where the gradient is. One
that depends on nothing of the loop is computed on each group that reads its results. What is computed from values of several
groups, such as the norm of all gradients, starts a new level: the site of a group and level reads other groups' values of lower
levels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import ir
from meshbridge.pipelines.flow import Positions
from meshbridge.pipelines.program import LoopProgram, key_of
from meshbridge.pipelines.reads import FEW_BYTES, bytes_of
from meshbridge.pipelines.sites import Chunks, Site


@dataclass(frozen=True, eq=False)
class AfterLoop:
    """The groups of ops after the loop."""

    program: LoopProgram
    chunks: Chunks
    positions: Positions

    @cached_property
    def sites(self) -> dict[ir.Value, tuple[Site, ...]]:
        """The sites of ops, by first result."""
        levels: dict[tuple[ir.Value, int], int] = {}
        for op in self.program.after:
            for group in self._placed.get(op.results[0], ()):
                levels[op.results[0], group] = self._level(op, group, levels)
        return {
            value: tuple(Site("post", group, levels[value, group]) for group in groups) for value, groups in self._placed.items()
        }

    def result_site(self, value: ir.Value) -> Site:
        """The site that returns a result of the program."""
        group = self._result_group(value)
        sites = (site for leaf in self.program.reads.leaves(value) for site in self.sites.get(key_of(leaf) or leaf, ()))
        return Site("post", group, max((site.level + (site.number != group) for site in sites), default=0))

    @cached_property
    def needed(self) -> dict[ir.Value, set[int]]:
        """By value that is computed before the end of the loop, the groups that read it after the loop."""
        return self._placed_and_needed[1]

    @property
    def _placed(self) -> dict[ir.Value, tuple[int, ...]]:
        """The groups of ops, by first result."""
        return self._placed_and_needed[0]

    @cached_property
    def _placed_and_needed(self) -> tuple[dict[ir.Value, tuple[int, ...]], dict[ir.Value, set[int]]]:
        reads = self.program.reads
        needed: dict[ir.Value, set[int]] = defaultdict(set)
        for value in self.program.loop.returned():
            for leaf in reads.leaves(value):
                needed[leaf].add(self._result_group(value))
        placed: dict[ir.Value, tuple[int, ...]] = {}
        for op in reversed(self.program.after):
            group = self._groups.get(op.results[0])
            used = {each for result in op.results for each in needed.pop(result, ())}
            placed[op.results[0]] = (group,) if group is not None and used else tuple(sorted(used))
            for leaf in reads.of(op):
                needed[leaf].update(placed[op.results[0]])
        return placed, needed

    def _result_group(self, value: ir.Value) -> int:
        """The group that computes a result, else the first one that reads it in the loop."""
        leaves = self.program.reads.leaves(value)
        located = [self._groups[leaf] for leaf in leaves if leaf in self._groups]
        homes = (self._first_readers.get(self.program.entering(leaf), 0) for leaf in leaves)
        return min(located) if located else min(homes, default=0)

    def _level(self, op: ir.Operation, group: int, levels: Mapping[tuple[ir.Value, int], int]) -> int:
        level = 0
        for leaf in self.program.reads.of(op):
            source = key_of(leaf)
            groups = () if source is None else self._placed.get(source, ())
            if groups and source is not None:
                here = group in groups
                level = max(level, levels[source, group if here else groups[0]] + (not here))
        return level

    @cached_property
    def _groups(self) -> dict[ir.Value, int]:
        """The groups of the values that depend on what the loop computes."""
        groups: dict[ir.Value, int] = {}
        for result, number in self.program.final.items():
            position = self.positions.get(self.program.loop.body.arguments[number])
            if position is not None:
                groups[result] = self.chunks.group(self.chunks.site(position))
        for op in self.program.after:
            read = self.program.reads.of(op)
            if any(value in groups for value in read):
                groups |= dict.fromkeys(op.results, self._group_of_largest(read, groups))
        return groups

    def _group_of_largest(self, read: Sequence[ir.Value], groups: Mapping[ir.Value, int]) -> int:
        homes = {value: groups.get(value, self._first_readers.get(self.program.entering(value))) for value in read}
        largest, first = max((bytes_of(value), -group) for value, group in homes.items() if group is not None)
        return -first if largest > FEW_BYTES else min(groups[value] for value in read if value in groups)

    @cached_property
    def _first_readers(self) -> dict[ir.Value, int]:
        """By value from before the loop, the first group that reads it in the loop."""
        first: dict[ir.Value, int] = {}
        for op in self.program.inside:
            position = self.positions.get(op.results[0])
            if position is not None:
                group = self.chunks.group(self.chunks.site(position))
                for value in self.program.reads.of(op):
                    entering = self.program.entering(value)
                    first[entering] = min(group, first.get(entering, group))
        return first
