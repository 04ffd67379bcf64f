"""Finds independent collectives of one block, and replaces them by others at the position of the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.ir import locations
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.locations import Member, combined_location, reason_at, requester_at, user_line
from meshbridge.ir.mlir import ancestor_in, in_program_order, ir
from meshbridge.ops.traits import Trait, has

FOLLOWERS = 16
"""The number of operations that may move after a combined collective, per member.

Measured (`benchmarks.constants`): with 0, gpt12 executes 255 collectives, with 4 209, with 16 208; llama_scan_fsdp 227, 215 and
211, and 195 with 64. Moved operations run later, which delays their users: that is not measured."""


@dataclass(frozen=True)
class Candidate:
    """A collective that may be replaced together with others."""

    op: ir.Operation
    group_key: Hashable
    "Equal for collectives that can be replaced together."
    size: float
    "Bytes."


def group_independent(candidates: Iterable[Candidate], rewriter: MeshRewriter, limit: float) -> list[list[Candidate]]:
    """Groups of two or more `candidates`, given in program order, with at most `limit` bytes, which are in one block, have one
    group key, and are independent."""
    groups: list[_IndependentCollectives] = []
    open_groups: dict[object, _IndependentCollectives] = {}
    users = _Users(rewriter)
    for candidate in candidates:
        key = (candidate.op.block, candidate.group_key)
        group = open_groups.get(key)
        if group is None or group.size + candidate.size > limit or not group.can_extend_to(candidate.op, users):
            group = open_groups[key] = _IndependentCollectives()
            groups.append(group)
        group.append(candidate, users)
    return [group.members for group in groups if len(group.members) > 1]


Write = Callable[[list[ir.Operation], Builder], list[ir.Value]]
"""Builds the replacement of collectives, given in program order, and returns the value of each."""


@dataclass(frozen=True)
class CombinedCollectives:
    """Collectives to be replaced by `count` others."""

    members: list[ir.Operation]
    count: int
    write: Write


def replace(replacements: Iterable[CombinedCollectives], rewriter: MeshRewriter) -> bool:
    """Replaces groups whose members are still independent; returns whether the program changed."""
    users = _Users(rewriter)
    moves = [_move_of(replacement, users) for replacement in replacements]
    changed, touched = False, set[ir.Value | None]()
    for move in moves:
        if not touched.isdisjoint(move.affected):  # operations have moved, so users are found again
            move = _move_of(move.replacement, _Users(rewriter))
        touched.update(move.affected)
        changed |= move.apply(rewriter)
    return changed


class _Users:
    """The users of operations of a block, as operations of that block; valid while the block does not change."""

    def __init__(self, rewriter: MeshRewriter) -> None:
        self.rewriter = rewriter
        self._found: dict[ir.Value, list[ir.Operation]] = {}

    def of(self, op: ir.Operation, block: ir.Block) -> list[ir.Operation]:
        """The users of `op`, an operation of `block`, or the operations of `block` that enclose them. Users in later blocks are
        left out."""
        if not len(results := op.results):
            return []
        if (users := self._found.get(results[0])) is None:
            all_users = [user for result in results for user in self.rewriter.users(result)]
            enclosing = [user if user.block == block else ancestor_in(block, user) for user in all_users]
            users = self._found[results[0]] = [user for user in enclosing if user is not None]
        return users


@dataclass
class _IndependentCollectives:
    """Independent collectives of one block in program order, and the users of their results."""

    members: list[Candidate] = field(default_factory=list)
    size: float = 0
    followers: set[ir.Operation] = field(default_factory=set)
    """Transitive users before the last operation that was considered."""
    later_users: dict[ir.Operation, None] = field(default_factory=dict)
    """Users after it."""

    def append(self, candidate: Candidate, users: _Users) -> None:
        self.members.append(candidate)
        self.size += candidate.size
        self.later_users.update(dict.fromkeys(users.of(candidate.op, candidate.op.block)))

    def can_extend_to(self, op: ir.Operation, users: _Users) -> bool:
        """True if all users of the members can move after `op`: `op` is not one of them, and they are not too many."""
        worklist = list(self.later_users)
        while worklist:
            user = worklist.pop()
            if user == op:
                return False
            if user in self.followers or not user.is_before_in_block(op):
                continue
            self.later_users.pop(user, None)
            self.followers.add(user)
            if len(self.followers) > FOLLOWERS * len(self.members):
                return False
            further = users.of(user, op.block)
            self.later_users.update(dict.fromkeys(further))
            worklist += further
        return True


def _followers(members: list[ir.Operation], target: ir.Operation, users: _Users) -> list[ir.Operation] | None:
    """The transitive users of `members` before `last`; None if `last` is one of them, or if they cannot move."""
    followers: dict[ir.Operation, None] = {}
    worklist = list(members)
    while worklist:
        for user in users.of(worklist.pop(), target.block):
            if user == target or len(followers) > FOLLOWERS * len(members):
                return None
            if user not in followers and user.is_before_in_block(target):
                followers[user] = None
                worklist.append(user)
    if any((len(op.regions) and not has(op.name, Trait.SCALAR_REGION)) or op in members for op in followers):
        return None
    return in_program_order(list(followers))


@dataclass(frozen=True)
class _Move:
    """A replacement with its members and the operations that have to move after the last of them.

    All are found before the first is applied, because MLIR renumbers a block after each change to compare positions.
    """

    replacement: CombinedCollectives
    members: list[ir.Operation]
    followers: list[ir.Operation] | None
    "None if it is not possible: another replacement has moved operations in between."

    @property
    def affected(self) -> set[ir.Value | None]:
        """The affected operations by their first result: operations hash by their operands, which change."""
        return {op.results[0] if len(op.results) else None for op in (*self.members, *(self.followers or ()))}

    def apply(self, rewriter: MeshRewriter) -> bool:
        """Replaces the members, if possible."""
        if self.followers is None:
            return False
        target = self.members[-1]
        builder = Builder(_location(self.members, self.replacement.count), ir.InsertionPoint(target))
        values = self.replacement.write(self.members, builder)
        for op in self.followers:
            op.move_before(target)
        for op, value in zip(self.members, values, strict=True):
            rewriter.replace(op, value)
        return True


def _move_of(replacement: CombinedCollectives, users: _Users) -> _Move:
    """The move of the members in their current order."""
    members = in_program_order(replacement.members)
    return _Move(replacement, members, _followers(members[:-1], members[-1], users))


def _location(members: list[ir.Operation], count: int) -> ir.Location:
    """The location of the last member; if it has a reason, also the locations of the others."""
    target = members[-1]
    if not (reason := reason_at(target)):
        return target.location
    parts = [
        Member(op.location, max(type_bytes(op.operands[0].type), type_bytes(op.results[0].type))) for op in reversed(members)
    ]
    combined = f"{len(members)} collectives in {'one' if count == 1 else count}: {_listed(members)}"
    return combined_location(f"{combined}; of the last: {reason}", requester_at(target), parts)


_LISTED = 4
"""The most lines and results of a combined collective that its reason lists."""


def _listed(ops: Iterable[ir.Operation]) -> str:
    """`model.py:42, model.py:50 (3 times) and 12 more`: whose collectives these are, by result of the function or by line."""
    counts = Counter(name for op in ops for name in _names(op))
    names = [name if count == 1 else f"{name} ({count} times)" for name, count in counts.items()]
    more = sum([*counts.values()][_LISTED:])
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more else "")


def _names(op: ir.Operation) -> list[str]:
    """The result that a collective is for, if the user says how that is sharded, or the lines that it comes from."""
    _, is_result, result = requester_at(op).partition("your sharding of ")
    return [result] if is_result else [user_line(part.location).short for part in locations.members(op.location) if part.weight]
