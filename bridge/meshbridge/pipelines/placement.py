"""Which site of a pipeline computes each op of a program with a loop of microbatches.

In the loop, an op is computed at its position (`positions`); one that has none, in each chunk that reads its results. Ops before
the loop are computed on each group of devices that reads their results. `after` has those after the loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import ir
from meshbridge.pipelines.after import AfterLoop
from meshbridge.pipelines.flow import Positions, is_costly
from meshbridge.pipelines.loop import MicrobatchLoop
from meshbridge.pipelines.marker import marker_of
from meshbridge.pipelines.positions import positions_of
from meshbridge.pipelines.program import LoopProgram, key_of
from meshbridge.pipelines.sites import Chunks, Site


def place(
    loop: MicrobatchLoop, groups: int, chunks: int, begins: tuple[int, ...] | None = None, *, split_weights: bool = False
) -> Placement:
    """The sites of the ops of a program, cut into `chunks` for that many groups of devices; `begins` and `split_weights` as for
    `positions_of`.

    Raises MeshError for another number of marked stages, and OpError for a stage that needs a value of a later one.
    """
    program, cut = LoopProgram(loop), Chunks(groups, chunks)
    positions = positions_of(program, cut, begins, split_weights=split_weights)
    return Placement(program, cut, positions, AfterLoop(program, cut, positions))


@dataclass(frozen=True, eq=False)
class Placement:
    """The sites of ops and of carried values."""

    program: LoopProgram
    chunks: Chunks
    positions: Positions
    after: AfterLoop

    def sites_of(self, value: ir.Value) -> tuple[Site, ...]:
        """The sites that compute the op of a value; none for an argument, and for ops that are copied or unused."""
        key = key_of(value)
        return () if key is None else self._sites.get(key, ())

    def nearest(self, site: Site, options: Sequence[Site]) -> Site:
        """Of the sites that compute a value, the one from which `site` gets it: of its own chunk or group, or else the first."""
        group = self.chunks.group
        own = [option for option in options if option.per_microbatch == site.per_microbatch and option.number == site.number]
        once = not site.per_microbatch or not options[0].per_microbatch
        near = [option for option in options if group(option) == group(site) and once]
        return (own or near or list(options))[0]

    @cached_property
    def owners(self) -> dict[int, tuple[Site, ...]]:
        """By the number of a carried value, the sites that keep it and compute the next one."""
        return {number: tuple(map(self.chunks.site, positions)) for number, positions in self._in_loop[1].items()}

    @cached_property
    def _sites(self) -> dict[ir.Value, tuple[Site, ...]]:
        inside = {value: tuple(map(self.chunks.site, positions)) for value, positions in self._in_loop[0].items()}
        return {**self._before(inside), **inside, **self.after.sites}

    @cached_property
    def _in_loop(self) -> tuple[dict[ir.Value, tuple[int, ...]], dict[int, tuple[int, ...]]]:
        """The positions at which ops of a microbatch and carried values are computed. Repeats until carried values without a
        position of their own are computed where they are read."""
        program = self.program
        seeds: dict[ir.Value, set[int]] = defaultdict(set)
        for result, number in program.final.items():
            argument = program.loop.body.arguments[number]
            if result in self.after.needed and argument not in self.positions:
                seeds[argument].add(0)
        while True:
            placed, needed = self._placed_in_loop(seeds)
            owners = {
                number: self._first_of_chunks(argument, needed[argument])
                for argument, number in program.carried.items()
                if argument in self.positions or needed[argument]
            }
            missing = [
                (leaf, positions)
                for number, positions in owners.items()
                for leaf in program.next_leaves(number)
                if leaf not in self.positions and not seeds[leaf].issuperset(positions)
            ]
            if not missing:
                return placed, owners
            for leaf, positions in missing:
                seeds[leaf].update(positions)

    def _placed_in_loop(
        self, seeds: Mapping[ir.Value, set[int]]
    ) -> tuple[dict[ir.Value, tuple[int, ...]], dict[ir.Value, set[int]]]:
        """The positions at which ops are computed, and at which values are read, beside the `seeds`."""
        program = self.program
        needed: dict[ir.Value, set[int]] = defaultdict(set, {value: set(positions) for value, positions in seeds.items()})
        for argument, number in program.carried.items():
            for leaf in program.next_leaves(number) if argument in self.positions else ():
                needed[leaf].add(self.positions[argument])
        placed: dict[ir.Value, tuple[int, ...]] = {}
        for op in reversed(program.inside):
            used = {position for result in op.results for position in needed[result]}
            positions = self._first_of_chunks(op.results[0], used, alone=is_costly(op)) if used else ()
            placed[op.results[0]] = positions
            marker = marker_of(op)
            if marker is not None and marker.direction == "forward":  # what passes it is computed before it
                positions = tuple(max(position - 1, 0) for position in positions)
            for leaf in program.reads.of(op):
                needed[leaf].update(positions)
        return placed, needed

    def _first_of_chunks(self, value: ir.Value, used: Iterable[int], *, alone: bool = False) -> tuple[int, ...]:
        """Where a value is computed that is read at those positions: at its own; if it has none, at the first of each chunk, or
        at the first of all if `alone`."""
        if value in self.positions:
            return (self.positions[value],)
        first: dict[int, int] = {}
        for position in sorted(used):
            first.setdefault(0 if alone else self.chunks.site(position).number, position)
        return tuple(sorted(first.values()))

    def _before(self, inside: Mapping[ir.Value, tuple[Site, ...]]) -> dict[ir.Value, tuple[Site, ...]]:
        """The sites of ops before the loop."""
        program, group = self.program, self.chunks.group
        needed: dict[ir.Value, set[int]] = defaultdict(set)

        def need(values: Iterable[ir.Value], groups: set[int]) -> None:
            for leaf in program.reads.of_values(map(program.entering, values)):
                needed[leaf] |= groups

        for value, groups in self.after.needed.items():
            need([value], groups)
        for op in program.inside:
            need(program.reads.of(op), set(map(group, inside[op.results[0]])))
        for number, owners in self.owners.items():
            need((program.loop.op.operands[number], *program.next_leaves(number)), set(map(group, owners)))
        sites: dict[ir.Value, tuple[Site, ...]] = {}
        for op in reversed(program.before):
            groups = {each for result in op.results for each in needed[result]}
            sites[op.results[0]] = tuple(Site("pre", each) for each in sorted(groups))
            need(program.reads.of(op), groups)
        return sites
