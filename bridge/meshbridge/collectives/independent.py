"""Collectives of one block that do not need one another: found, and replaced by others where the last of them stands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.locations import Member, asked_at, reason_at, together
from meshbridge.ir.mlir import ancestor_in, in_program_order, ir
from meshbridge.ops.traits import Trait, has

FOLLOWERS = 16
"""How many operations may move behind a combined collective for each of its members.

Measured (`benchmarks.constants`): with 0, gpt12 executes 255 collectives, with 4 209, with 16 208; llama_scan_fsdp 227, 215 and
211, and 195 with 64. What moves is computed later, which delays what needs it: that is not measured."""


@dataclass(frozen=True)
class Candidate:
    """A collective that may be replaced together with others."""

    op: ir.Operation
    travels: Hashable
    "What those that are replaced together have in common."
    size: float
    "Bytes."


def independent(candidates: Iterable[Candidate], rewriter: MeshRewriter, limit: float) -> list[list[Candidate]]:
    """Groups of `candidates`, which are given in program order, of at most `limit` bytes: in each, two or more that stand in one
    block, travel alike, and do not need one another."""
    groups: list[_IndependentCollectives] = []
    open_groups: dict[object, _IndependentCollectives] = {}
    users = _Users(rewriter)
    for each in candidates:
        key = (each.op.block, each.travels)
        group = open_groups.get(key)
        if group is None or group.size + each.size > limit or not group.reaches(each.op, users):
            group = open_groups[key] = _IndependentCollectives()
            groups.append(group)
        group.append(each, users)
    return [group.members for group in groups if len(group.members) > 1]


Write = Callable[[list[ir.Operation], Builder], list[ir.Value]]
"""Writes what replaces collectives, which are in program order, and returns the value of each."""


@dataclass(frozen=True)
class CombinedCollectives:
    """Collectives to be replaced by `count` others."""

    members: list[ir.Operation]
    count: int
    write: Write


def replace(replacements: Iterable[CombinedCollectives], rewriter: MeshRewriter) -> bool:
    """Makes the replacements whose members still are independent of one another; returns whether there were any."""
    users = _Users(rewriter)
    moves = [_move_of(each, users) for each in replacements]
    changed, touched = False, set[ir.Value | None]()
    for move in moves:
        if not touched.isdisjoint(move.concerned):  # what stands where has changed, so that it has to be looked at again
            move = _move_of(move.replacement, _Users(rewriter))
        touched.update(move.concerned)
        changed |= move.apply(rewriter)
    return changed


class _Users:
    """What uses the results of operations of a block, or encloses such a use, while nothing there changes."""

    def __init__(self, rewriter: MeshRewriter) -> None:
        self.rewriter = rewriter
        self._found: dict[ir.Value, list[ir.Operation]] = {}

    def of(self, op: ir.Operation, block: ir.Block) -> list[ir.Operation]:
        """Those of `op`, which stands in `block`. Uses in blocks behind it come after all of it."""
        if not len(results := op.results):
            return []
        if (found := self._found.get(results[0])) is None:
            users = [user for result in results for user in self.rewriter.users(result)]
            places = [user if user.block == block else ancestor_in(block, user) for user in users]
            found = self._found[results[0]] = [place for place in places if place is not None]
        return found


@dataclass
class _IndependentCollectives:
    """Collectives of one block that do not need one another, in program order, and what uses their results."""

    members: list[Candidate] = field(default_factory=list)
    size: float = 0
    behind: set[ir.Operation] = field(default_factory=set)
    """What needs a result and stands before the last operation that was looked at."""
    ahead: dict[ir.Operation, None] = field(default_factory=dict)
    """What needs a result and stands further down."""

    def append(self, each: Candidate, users: _Users) -> None:
        self.members.append(each)
        self.size += each.size
        self.ahead.update(dict.fromkeys(users.of(each.op, each.op.block)))

    def reaches(self, op: ir.Operation, users: _Users) -> bool:
        """Whether all that uses the members can move behind `op`: it does not use them, and they are not too many."""
        waiting = list(self.ahead)
        while waiting:
            user = waiting.pop()
            if user == op:
                return False
            if user in self.behind or not user.is_before_in_block(op):
                continue
            self.ahead.pop(user, None)
            self.behind.add(user)
            if len(self.behind) > FOLLOWERS * len(self.members):
                return False
            further = users.of(user, op.block)
            self.ahead.update(dict.fromkeys(further))
            waiting += further
        return True


def _followers(members: list[ir.Operation], last: ir.Operation, users: _Users) -> list[ir.Operation] | None:
    """What stands before `last` and needs a result of `members`; None if `last` does, or if it is too much to move."""
    found: dict[ir.Operation, None] = {}
    waiting = list(members)
    while waiting:
        for user in users.of(waiting.pop(), last.block):
            if user == last or len(found) > FOLLOWERS * len(members):
                return None
            if user not in found and user.is_before_in_block(last):
                found[user] = None
                waiting.append(user)
    if any((len(op.regions) and not has(op.name, Trait.SCALAR_REGION)) or op in members for op in found):
        return None
    return in_program_order(list(found))


@dataclass(frozen=True)
class _Move:
    """A replacement, where the last of its members stands, and what has to move behind it.

    All are found before the first is applied: after each change, MLIR numbers the block anew to say what stands before what.
    """

    replacement: CombinedCollectives
    members: list[ir.Operation]
    followers: list[ir.Operation] | None
    "None where that is not possible: another replacement has moved what stood between."

    @property
    def concerned(self) -> set[ir.Value | None]:
        """What is replaced or moves, by its first result: operations hash by their operands, which change."""
        return {op.results[0] if len(op.results) else None for op in (*self.members, *(self.followers or ()))}

    def apply(self, rewriter: MeshRewriter) -> bool:
        """Replaces the members, if that is possible."""
        if self.followers is None:
            return False
        last = self.members[-1]
        emit = Builder(_location(self.members, self.replacement.count), ir.InsertionPoint(last))
        values = self.replacement.write(self.members, emit)
        for op in self.followers:
            op.move_before(last)
        for op, value in zip(self.members, values, strict=True):
            rewriter.replace(op, value)
        return True


def _move_of(replacement: CombinedCollectives, users: _Users) -> _Move:
    """The move of the members in the order in which they stand now."""
    members = in_program_order(replacement.members)
    return _Move(replacement, members, _followers(members[:-1], members[-1], users))


def _location(members: list[ir.Operation], count: int) -> ir.Location:
    """Where the last of them stands, and why, if that was written down; then also where the others stand."""
    last = members[-1]
    if not (reason := reason_at(last)):
        return last.location
    parts = [
        Member(op.location, max(type_bytes(op.operands[0].type), type_bytes(op.results[0].type))) for op in reversed(members)
    ]
    number = "one" if count == 1 else count
    return together(f"{len(members)} collectives in {number}; of the last: {reason}", asked_at(last), parts)
