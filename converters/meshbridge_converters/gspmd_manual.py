"""GSPMD's manual regions -> `sdy.manual_computation`.

    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<4x4xf32>
    %2 = … %1 …
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
==>
    %4 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"0"}, {"1"}]>] out_shardings=[<@mesh, [{"0"}, {"1"}]>]
        manual_axes={"0", "1"} (%a: tensor<4x4xf32>) {
      %2 = … %a …
      sdy.return %2
    }

GSPMD has no region: the body is what is between the calls. Computations whose bodies share an operation are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from meshbridge.ir.mlir import MANUAL, OpError, ancestor_in, in_program_order, ir, sdy, walk
from meshbridge_converters import carriers
from meshbridge_converters.gspmd_annotations import (
    CONSTRAINT,
    FULL_TO_SHARD,
    SHARD_TO_FULL,
    Survey,
    open_dims,
    rank,
    tiling,
)
from meshbridge_converters.gspmd_writer import Writer

Value: TypeAlias = "ir.Value[Any]"

LITERALS = ("stablehlo.constant", "stablehlo.iota")
"""Operations that a body may share with what is outside: it gets a copy."""


def fold(survey: Survey, writer: Writer) -> None:
    """Makes an `sdy.manual_computation` of each manual region, inner ones first. The `@Sharding` calls at its ends go.

    Raises OpError for a region that is not closed: a call that opens one and is never closed, a value from outside that is not
    a literal, shardings or manual axes that the calls do not say.
    """
    targets = (CONSTRAINT, FULL_TO_SHARD, SHARD_TO_FULL)
    folder = _Folder(writer, *({op.results[0]: op for op in survey.calls[target]} for target in targets))
    while folder.exits:
        folder.fold_one()
    for op in folder.entries.values():
        raise OpError(op, f"opens a manual region that no {SHARD_TO_FULL} closes")
    survey.calls[CONSTRAINT] = list(folder.constraints.values())


@dataclass(eq=False)
class _Region:
    """One manual computation to be: the calls that open and close it, the operations of its body, the literals that it uses.

    Keys are operations, whose hash follows their contents: nothing changes while a region is being found.
    """

    entries: dict[ir.Operation, None] = field(default_factory=dict)
    exits: dict[ir.Operation, None] = field(default_factory=dict)
    body: dict[ir.Operation, None] = field(default_factory=dict)
    literals: dict[ir.Operation, None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Crossing:
    """A value that passes into or out of a region: the global value (of an exit: the local one), the sharding outside, the axes
    that the region makes manual and the `@Sharding` call that says so, if one does.
    """

    value: Value
    sharding: ir.Attribute
    axes: frozenset[str] | None
    call: ir.Operation | None


@dataclass
class _Folder:
    """GSPMD's calls that are left, by result. Folding a region takes those at its ends away."""

    writer: Writer
    constraints: dict[Value, ir.Operation]
    entries: dict[Value, ir.Operation]
    exits: dict[Value, ir.Operation]

    def fold_one(self) -> None:
        """Folds the first region that holds no other."""
        for exit_ in self.exits.values():
            region = self._region(exit_)
            if not any(_is_one(op, self.entries) or _is_one(op, self.exits) for op in region.body):
                self._write(region)
                return
        raise OpError(next(iter(self.exits.values())), "closes a manual region that overlaps another one")

    def _region(self, exit_: ir.Operation) -> _Region:
        """Everything that `exit_` depends on down to the calls that open the region, and everything that depends on that."""
        block = exit_.block
        region = _Region(exits={exit_: None})
        work = [_defining(exit_, exit_.operands[0])]
        while work:
            op = work.pop()
            if op in region.body or op in region.entries or op in region.literals:
                continue
            if op.name in LITERALS:
                region.literals[op] = None
                continue
            if _is_one(op, self.entries):
                region.entries[op] = None
            else:
                if op.block != block:
                    raise OpError(op, "is used inside a manual region without being passed into it")
                region.body[op] = None
                work += [_defining(op, value) for value in _used(op)]
            for user in _users(op, block):
                if _is_one(user, self.exits):
                    region.exits[user] = None
                else:
                    work.append(user)
                    if _is_one(user, self.entries):  # of a region inside this one, which must be folded before
                        region.body[user] = None
        return region

    def _write(self, region: _Region) -> None:
        entries, exits, body, literals = map(in_program_order, (region.entries, region.exits, region.body, region.literals))
        if entries and not entries[-1].is_before_in_block(exits[0]):
            raise OpError(entries[-1], "opens a manual region after it is closed for another value")
        opened, closed = [self._opened(op) for op in entries], [self._closed(op) for op in exits]
        attrs = {
            "in_shardings": carriers.per_value_attr([crossing.sharding for crossing in opened]),
            "out_shardings": carriers.per_value_attr([crossing.sharding for crossing in closed]),
            "manual_axes": self._manual_axes(exits[0], [*opened, *closed]),
        }
        for crossing in closed:  # what they say of the local value, the exits say of the global one
            if crossing.call is not None:
                body = [op for op in body if op != crossing.call]
                self._erase(crossing.call, crossing.call.operands[0])
        types, operands = [op.results[0].type for op in exits], [crossing.value for crossing in opened]
        ip, loc = ir.InsertionPoint(exits[0]), exits[0].location
        manual = ir.Operation.create(MANUAL, types, operands, attrs, regions=1, loc=loc, ip=ip)
        local = [op.results[0].type for op in entries]
        block = manual.regions[0].blocks.append(*local, arg_locs=[op.location for op in entries])
        for op, argument in zip(entries, block.arguments, strict=True):
            self._erase(op, argument)
        for op in body:
            block.append(op)
        copies = {op.results[0]: _copy_for(op, manual) for op in literals}
        returned = [copies.get(op.operands[0], op.operands[0]) for op in exits]
        ir.Operation.create("sdy.return", [], returned, loc=exits[-1].location, ip=ir.InsertionPoint(block))
        for op, result in zip(exits, manual.results, strict=True):
            self._erase(op, result)
        for crossing in opened:
            if crossing.call is not None and next(iter(crossing.call.results[0].uses), None) is None:
                self._erase(crossing.call, crossing.value)

    def _erase(self, op: ir.Operation, instead: Value) -> None:
        for calls in (self.constraints, self.entries, self.exits):
            calls.pop(op.results[0], None)
        op.results[0].replace_all_uses_with(instead)
        op.erase()

    def _opened(self, entry: ir.Operation) -> _Crossing:
        call = self.constraints.get(entry.operands[0])
        if call is None:
            raise OpError(entry, f"opens a manual region for a value that no @{CONSTRAINT} says the sharding of")
        outside = tiling(call)
        axes = self.writer.manual_axes(tiling(entry)) - self.writer.manual_axes(outside)
        sharding = self.writer.sharding(call, outside, rank(call.results[0].type), open_dims(call))
        return _Crossing(call.operands[0], sharding, axes, call)

    def _closed(self, exit_: ir.Operation) -> _Crossing:
        call = self.constraints.get(exit_.operands[0])
        outside = tiling(exit_)
        sharding = self.writer.sharding(exit_, outside, rank(exit_.results[0].type), open_dims(exit_))
        if call is None:
            return _Crossing(exit_.operands[0], sharding, None, None)
        axes = self.writer.manual_axes(tiling(call)) - self.writer.manual_axes(outside)
        return _Crossing(exit_.operands[0], sharding, axes, call)

    def _manual_axes(self, op: ir.Operation, crossings: Iterable[_Crossing]) -> ir.Attribute:
        """The axes that the region makes manual, on which all its arguments and results must agree."""
        found = {crossing.axes for crossing in crossings if crossing.axes is not None}
        if len(found) != 1:
            listed = " and ".join(str(self.writer.in_order(axes)) for axes in found) or "none"
            raise OpError(op, f"closes a manual region whose values agree on no one set of manual axes, found {listed}")
        return sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in self.writer.in_order(found.pop())])


def _copy_for(literal: ir.Operation, manual: ir.Operation) -> Value:
    """A copy of `literal` inside `manual`, for what uses it there."""
    inside = manual.regions[0].blocks[0]
    copy = literal.clone(ip=ir.InsertionPoint.at_block_begin(inside))
    for use in list(literal.results[0].uses):
        user = use.owner.operation
        if ancestor_in(inside, user) is not None:
            user.replace_uses_of_with(literal.results[0], copy.results[0])
    copied: Value = copy.results[0]
    return copied


def _is_one(op: ir.Operation, calls: dict[Value, ir.Operation]) -> bool:
    return len(op.results) == 1 and op.results[0] in calls


def _defining(user: ir.Operation, value: Value) -> ir.Operation:
    owner = value.owner
    if isinstance(owner, ir.Block):
        raise OpError(user, "uses a block argument inside a manual region into which it is not passed")
    return owner.operation


def _used(op: ir.Operation) -> list[Value]:
    """What `op` takes from outside of itself, through its regions too."""
    if not len(op.regions):
        return list(op.operands)
    inner = list(walk(op))
    blocks = [block for nested in inner for region in nested.regions for block in region.blocks]
    own: set[Value] = {argument for block in blocks for argument in block.arguments}
    own |= {result for nested in inner for result in nested.results}
    return [value for nested in inner for value in nested.operands if value not in own]


def _users(op: ir.Operation, block: ir.Block) -> Iterator[ir.Operation]:
    """The operations of `block` that use a result of `op`, themselves or in their regions."""
    for result in op.results:
        for use in result.uses:
            user = ancestor_in(block, use.owner.operation)
            assert user is not None, "uses stand in the block of the definition or below it"
            yield user
