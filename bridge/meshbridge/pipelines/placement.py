"""Which part of a pipeline computes each op of a program with a loop of microbatches.

A site is a program of its own: what a group of devices computes before the loop, what it computes forward or backward in one chunk
of the program for one microbatch, and what it computes after the loop. In the loop the data flow decides. Positions are ordered
`F0 < F1 < … < B1 < B0`: chunks forward, then backward. The boundary of chunk `k` has position `Fk`, passed backward `B(k-1)`; an
op has the last position of what it reads. An op that depends on no boundary, nor on a product that passes one, is computed in each
chunk that reads its results.

After the loop an op is computed on the group that has the largest of the values that it reads. Values that cross groups there,
such as the norm of all gradients, start a new level: the site of `(group, level)` reads other groups' values of lower levels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from meshbridge.ir.mlir import MeshError, OpError, ir, source_location
from meshbridge.ir.uses import look_through
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.loop import MARK, SHARD, MicrobatchLoop
from meshbridge.pipelines.marker import marker_of
from meshbridge.pipelines.reads import FEW_BYTES, Reads, bytes_of

SiteKind = Literal["pre", "forward", "backward", "weight", "post"]


class Site(NamedTuple):
    """A part of a pipeline. `index` is the group of devices before and after the loop, and the chunk of the program in it."""

    kind: SiteKind
    index: int
    level: int = 0

    @property
    def per_microbatch(self) -> bool:
        """Whether it is computed once for each microbatch, and not once in a step."""
        return self.kind not in ("pre", "post")

    def __str__(self) -> str:
        return f"{self.kind}{self.index}" + (f".{self.level}" if self.level else "")


def place(loop: MicrobatchLoop, groups: int, chunks: int, *, split_weights: bool = False) -> Placement:
    """The sites of the ops of a program, cut into `chunks` for that many groups of devices.

    With `split_weights`, what a backward pass computes for its own chunk alone, such as gradients of weights, is a site of its
    own. Raises MeshError for another number of marked stages, and OpError for a stage that needs a value of a later one.
    """
    if len(loop.names) not in (chunks - 1, chunks):
        names = ", ".join(loop.names)
        raise MeshError(
            f"{source_location(loop.op)}: error: expected boundaries of {chunks} stages, found {len(loop.names)}: {names}"
            f"\n  hint: {MARK}; the first stage may begin without one"
        )
    return Placement(loop, groups, chunks, split_weights)


@dataclass(eq=False)
class Placement:
    """The sites of ops, and those that compute the carried values of the loop."""

    loop: MicrobatchLoop
    groups: int
    chunks: int
    split_weights: bool
    sites: dict[ir.Value, tuple[Site, ...]] = field(default_factory=dict)
    "By the first result of an op, where it is computed; copied ops are missing."
    owners: dict[int, tuple[Site, ...]] = field(default_factory=dict)
    "By the number of a carried value that changes, where it is kept and computed."

    def __post_init__(self) -> None:
        self._groups_after = self._choose_groups()
        needed = self._place_after()
        self._place_in_loop(needed)
        self._place_before(needed)

    # What the program consists of.

    @cached_property
    def reads(self) -> Reads:
        """What ops read. Arguments of the program, and what the loop carries unchanged, do not change."""
        arguments = set(self.loop.block.arguments)
        return Reads(arguments | {self.loop.body.arguments[number] for number in self.invariant})

    @cached_property
    def invariant(self) -> dict[int, ir.Value]:
        """By number, the carried values that each microbatch leaves unchanged, with their value before the loop."""
        body = self.loop.body
        return {
            number: self.loop.op.operands[number]
            for number, value in enumerate(self.loop.yielded())
            if look_through(value, (SHARD,)) == body.arguments[number]
        }

    @cached_property
    def before(self) -> list[ir.Operation]:
        """The ops before the loop."""
        ops = [view.operation for view in self.loop.block.operations]
        return [op for op in ops[: ops.index(self.loop.op)] if op.results]

    @cached_property
    def inside(self) -> list[ir.Operation]:
        """The ops of a microbatch."""
        return [view.operation for view in self.loop.body.operations if view.operation.results]

    @cached_property
    def after(self) -> list[ir.Operation]:
        """The ops after the loop."""
        ops = [view.operation for view in self.loop.block.operations]
        return [op for op in ops[ops.index(self.loop.op) + 1 :] if op.results]

    def group(self, site: Site) -> int:
        """The group of devices that computes a site."""
        return site.index % self.groups if site.per_microbatch else site.index

    @cached_property
    def _state_numbers(self) -> dict[ir.Value, int]:
        """The carried values that change, by the argument of the body."""
        arguments = enumerate(self.loop.body.arguments)
        return {argument: number for number, argument in arguments if number not in self.invariant}

    @cached_property
    def _loop_results(self) -> dict[ir.Value, int]:
        return {result: number for number, result in enumerate(self.loop.op.results)}

    def state_of(self, value: ir.Value) -> int | None:
        """The number of the carried value that `value` is in the body; None for any other value."""
        return self._state_numbers.get(value)

    def final_of(self, value: ir.Value) -> int | None:
        """The number of the carried value of which `value` is the loop's result; None for any other value."""
        return self._loop_results.get(value)

    def entering(self, value: ir.Value) -> ir.Value:
        """The value before the loop of one that all microbatches read alike; any other value unchanged."""
        owner = value.owner
        if isinstance(owner, ir.Block) and owner == self.loop.body and value not in self._state_numbers:
            return look_through(self.invariant[ir.BlockArgument(value).arg_number], (SHARD,))
        number = self._loop_results.get(value)
        return look_through(self.invariant[number], (SHARD,)) if number in self.invariant else value

    # In the loop: positions.

    @cached_property
    def positions(self) -> dict[ir.Value, int]:
        """The positions of the values of the body that depend on a boundary, by data flow."""
        known: dict[ir.Value, int] = {}
        yielded = self.loop.yielded()
        while True:
            for op in self.inside:
                if not self.reads.is_copied(op) and (position := self._position(op, known)) is not None:
                    known |= dict.fromkeys(op.results, position)
            changed = False
            for argument, number in self._state_numbers.items():
                position = self._last(known, self.reads.leaves(yielded[number]))
                changed |= position != known.get(argument)
                if position is not None:
                    known[argument] = position
            if not changed:
                return self._with_weights_apart(known) if self.split_weights else known

    def _last(self, known: Mapping[ir.Value, int], values: Iterable[ir.Value]) -> int | None:
        return max((known[value] for value in values if value in known), default=None)

    def _position(self, op: ir.Operation, known: Mapping[ir.Value, int]) -> int | None:
        position = self._last(known, self.reads.of(op))
        marker = marker_of(op)
        if marker is None:
            return 0 if position is None and op.results[0] in self._first_products else position
        chunk = self._chunk_named(marker.name, op)
        boundary = chunk if marker.direction == "forward" else self._backward(max(chunk - 1, 0))
        if position is not None and position > boundary:
            raise self._late(op, marker.name, position)
        return boundary

    @cached_property
    def _first_products(self) -> set[ir.Value]:
        """The results of costly ops from which a value that passes a boundary forward is computed: unless they depend on another
        boundary, they belong to the first chunk, and so does what depends on them."""
        needed: set[ir.Value] = set()
        for op in reversed(self.inside):
            marker = marker_of(op)
            if (marker is not None and marker.direction == "forward") or needed.intersection(op.results):
                needed.update(self.reads.of(op))
        return {op.results[0] for op in self.inside if _is_costly(op)} & needed

    def _chunk_named(self, name: str, op: ir.Operation) -> int:
        if name not in self.loop.names:
            raise OpError(op, f"passes the boundary of stage {name!r} backward, which nothing passes forward")
        return self.loop.names.index(name) + self.chunks - len(self.loop.names)

    def _backward(self, chunk: int) -> int:
        return 2 * self.chunks - 1 - chunk

    def _late(self, op: ir.Operation, name: str, position: int) -> OpError:
        site = self._site(position)
        if site.kind == "backward" and marker_of(op) is not None:
            hint = "call jax.checkpoint within a stage, not around several, and jax.grad around all of them"
            return OpError(op, f"begins stage {name!r} with a value of the backward pass of stage {site.index}", hint)
        hint = "let values pass stages in order; microbatches must not depend on later stages of the one before"
        return OpError(op, f"begins stage {name!r} with a value of the later stage {site.index}", hint)

    def _site(self, position: int) -> Site:
        chunks = self.chunks
        if position >= 2 * chunks:
            return Site("weight", position - 2 * chunks)
        return Site("forward", position) if position < chunks else Site("backward", 2 * chunks - 1 - position)

    def _position_of(self, site: Site) -> int:
        if site.kind == "weight":
            return 2 * self.chunks + site.index
        return site.index if site.kind == "forward" else self._backward(site.index)

    def _with_weights_apart(self, known: dict[ir.Value, int]) -> dict[ir.Value, int]:
        """The same with positions after all others for what a backward pass computes for its own chunk alone. The last chunk's
        begins where its forward pass ends, at the same position."""
        apart = range(self.chunks - 1, 2 * self.chunks)
        yielded = self.loop.yielded()
        needed = {leaf for op in self.inside for leaf in self.reads.of(op) if self._is_read_elsewhere(op, leaf, known)}
        while True:
            for op in reversed(self.inside):
                if needed.intersection(op.results):
                    needed.update(self.reads.of(op))
            carried = {
                leaf
                for argument, number in self._state_numbers.items()
                if argument in needed
                for leaf in self.reads.leaves(yielded[number])
            }
            if carried <= needed:
                break
            needed |= carried
        return {
            value: 2 * self.chunks + self._site(position).index if position in apart and value not in needed else position
            for value, position in known.items()
        }

    def _is_read_elsewhere(self, op: ir.Operation, value: ir.Value, known: Mapping[ir.Value, int]) -> bool:
        return not self.reads.is_copied(op) and value in known and known.get(op.results[0]) != known[value]

    # After the loop: groups.

    def _home(self, value: ir.Value) -> int | None:
        """The group whose chunk computes a result of the loop; None if several do, and for values from before it."""
        number = self.final_of(value)
        if number is None or number in self.invariant:
            return None
        position = self.positions.get(self.loop.body.arguments[number])
        return None if position is None else self.group(self._site(position))

    @cached_property
    def _groups_of_arguments(self) -> dict[ir.Value, int]:
        """The first group that reads each value from before the loop in the loop."""
        first: dict[ir.Value, int] = {}
        for op in self.inside:
            position = self.positions.get(op.results[0])
            for value in () if position is None else self.reads.of(op):
                entering, group = self.entering(value), self.group(self._site(position or 0))
                first[entering] = min(group, first.get(entering, group))
        return first

    def _choose_groups(self) -> dict[ir.Value, int]:
        """The groups of the values after the loop that depend on what it computes."""
        groups = {value: group for value in self.loop.op.results if (group := self._home(value)) is not None}
        for op in self.after:
            read = self.reads.of(op)
            located = [value for value in read if value in groups]
            if located and not self.reads.is_copied(op):
                group = self._group_of_largest(read, located, groups)
                groups |= dict.fromkeys(op.results, group)
        return groups

    def _group_of_largest(self, read: Sequence[ir.Value], located: Sequence[ir.Value], groups: Mapping[ir.Value, int]) -> int:
        options = {groups[value] for value in located}
        if len(options) == 1 and all(bytes_of(value) <= FEW_BYTES or value in groups for value in read):
            return options.pop()
        homes = {value: groups.get(value, self._groups_of_arguments.get(self.entering(value))) for value in read}
        sizes = [(bytes_of(value), -group) for value, group in homes.items() if group is not None]
        largest, group = max(sizes)
        return -group if largest > FEW_BYTES else min(options)

    def _place_after(self) -> dict[ir.Value, set[int]]:
        """Places the ops after the loop; returns the groups that need each value that is computed before."""
        needed: dict[ir.Value, set[int]] = defaultdict(set)
        for value in self.loop.returned():
            for leaf in self.reads.leaves(value):
                needed[leaf].add(self.result_group(value))
        placed: dict[ir.Value, tuple[int, ...]] = {}
        for op in reversed(self.after):
            if self.reads.is_copied(op):
                continue
            group = self._groups_after.get(op.results[0])
            used = {each for result in op.results for each in needed.pop(result, ())}
            placed[op.results[0]] = (group,) if group is not None and used else tuple(sorted(used))
            for leaf in self.reads.of(op):
                needed[leaf].update(placed[op.results[0]])
        self._set_levels(placed)
        return needed

    def result_group(self, value: ir.Value) -> int:
        """The group that returns a result of the program: the one that computes it, else the first that reads it in the loop."""
        leaves = self.reads.leaves(value)
        located = [self._groups_after[leaf] for leaf in leaves if leaf in self._groups_after]
        homes = (self._groups_of_arguments.get(self.entering(leaf), 0) for leaf in leaves)
        return min(located) if located else min(homes, default=0)

    def _set_levels(self, placed: Mapping[ir.Value, tuple[int, ...]]) -> None:
        levels: dict[tuple[ir.Value, int], int] = {}
        for op in self.after:
            for group in placed.get(op.results[0], ()):
                level = 0
                for leaf in self.reads.of(op):
                    source = leaf.owner.operation.results[0] if not isinstance(leaf.owner, ir.Block) else leaf
                    groups = placed.get(source)
                    if groups:
                        here = group in groups
                        level = max(level, levels[source, group if here else groups[0]] + (not here))
                levels[op.results[0], group] = level
        for value, groups in placed.items():
            self.sites[value] = tuple(Site("post", group, levels[value, group]) for group in groups)

    # Sites in the loop, and before it.

    def _place_in_loop(self, after: Mapping[ir.Value, set[int]]) -> None:
        """Places the ops of a microbatch; repeats until carried values that depend on no boundary are where they are read."""
        seeds: dict[ir.Value, set[int]] = defaultdict(set)
        yielded = self.loop.yielded()
        for result, number in self._loop_results.items():
            argument = self.loop.body.arguments[number]
            if result in after and number not in self.invariant and argument not in self.positions:
                seeds[argument].add(0)
        while True:
            needed = self._needed_positions(seeds)
            owners = {
                number: self._placed(argument, needed[argument])
                for argument, number in self._state_numbers.items()
                if argument in self.positions or needed[argument]
            }
            grown = False
            for number, positions in owners.items():
                for leaf in self.reads.leaves(yielded[number]):
                    if leaf not in self.positions and not set(positions) <= seeds[leaf]:
                        seeds[leaf].update(positions)
                        grown = True
            if not grown:
                break
        self.owners |= {number: tuple(map(self._site, positions)) for number, positions in owners.items()}

    def _needed_positions(self, seeds: Mapping[ir.Value, set[int]]) -> dict[ir.Value, set[int]]:
        needed: dict[ir.Value, set[int]] = defaultdict(set, {value: set(positions) for value, positions in seeds.items()})
        yielded = self.loop.yielded()
        for argument, number in self._state_numbers.items():
            for leaf in self.reads.leaves(yielded[number]) if argument in self.positions else ():
                needed[leaf].add(self.positions[argument])
        for op in reversed(self.inside):
            if self.reads.is_copied(op):
                continue
            used = {position for result in op.results for position in needed[result]}
            positions = self._placed(op.results[0], used, alone=_is_costly(op)) if used else ()
            self.sites[op.results[0]] = tuple(map(self._site, positions))
            marker = marker_of(op)
            if marker is not None and marker.direction == "forward":  # what passes it is computed before it
                positions = tuple(max(position - 1, 0) for position in positions)
            for leaf in self.reads.of(op):
                needed[leaf].update(positions)
        return needed

    def _placed(self, value: ir.Value, used: Iterable[int], *, alone: bool = False) -> tuple[int, ...]:
        """Where a value is computed that is used at those positions: at its own; if it has none, at the first of each chunk, or at
        the first `alone`."""
        if value in self.positions:
            return (self.positions[value],)
        first: dict[int, int] = {}
        for position in sorted(used):
            first.setdefault(0 if alone else self._site(position).index, position)
        return tuple(sorted(first.values()))

    def _place_before(self, after: Mapping[ir.Value, set[int]]) -> None:
        """Places the ops before the loop on each group that needs their results."""
        needed: dict[ir.Value, set[int]] = defaultdict(set)
        for leaf, groups in after.items():
            needed[self.entering(leaf)].update(groups)
        for op in self.inside:
            groups = {self.group(site) for site in self.sites.get(op.results[0], ())}
            for leaf in self.reads.of(op):
                needed[self.entering(leaf)].update(groups)
        for number, sites in self.owners.items():
            for leaf in self.reads.leaves(self.loop.op.operands[number]):
                needed[leaf].update(self.group(site) for site in sites)
            for leaf in self.reads.leaves(self.loop.yielded()[number]):
                needed[self.entering(leaf)].update(self.group(site) for site in sites)
        for value in list(needed):  # what copied ops compute from what is unchanged in the loop
            for leaf in self.reads.leaves(value):
                needed[leaf] |= needed[value]
        for op in reversed(self.before):
            if self.reads.is_copied(op):
                continue
            groups = {group for result in op.results for group in needed[result]}
            self.sites[op.results[0]] = tuple(Site("pre", group) for group in sorted(groups))
            for leaf in self.reads.of(op):
                needed[leaf] |= groups


def _is_costly(op: ir.Operation) -> bool:
    """Whether an op costs more than to send its result."""
    return has(op.name, Trait.CONTRACTION) or has(op.name, Trait.CONTROL_FLOW) or not has(op.name, Trait.PURE)
