"""Cuts scans over layers into a scan for the layers of each chunk, with a boundary between.

    %1:2 = while(%i = 0, %x, %w : tensor<5x8x8xf32>) {… i < 5 …}        for chunks of three and two layers:

    %1:2 = while(%i = 0, %x, %w_0 : tensor<3x8x8xf32>) {… i < 3 …}
    %2 = the boundary of the second chunk on %1#1
    %3:2 = while(%i = 3, %2, %w_1 : tensor<2x8x8xf32>) {… i < 5 …}      reads at i - 3

Stacks of layers have a part for each chunk with some of them wherever that is possible (`leading_split`): arguments, sums of
gradients that the loop of microbatches carries, and the optimizer's ops on them, so that each stage has its own layers alone.
`layer_sequence` tells which chunk has which layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from meshbridge.dialect.donation import ALIASED, DONOR, aliased
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import BARRIER, entries, ir, main_function, set_entries, terminator_operands
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.pipelines.layer_cut import FamilyCut, LayerCut
from meshbridge.pipelines.layer_scans import READ, WRITE, LayerScan
from meshbridge.pipelines.layer_sequence import LayerSequence
from meshbridge.pipelines.leading_split import (
    joins_rows,
    on_part,
    part_type,
    part_with_rows,
    parts_of_rows,
    parts_together,
    slice_of_part,
    total_of,
)
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.marker import Marker, erase_markers, marker_of
from meshbridge.pipelines.reads import bytes_of, clone_reading, external_operands
from meshbridge.pipelines.stack_divisions import check_shardings, divisions_of_stacks
from meshbridge.pipelines.stacks import WHOLE, Division, Stacks, numbered


def split_scans(module: ir.Module, layers: LayerSequence, division: Division) -> tuple[ir.Module, Stacks]:
    """The program with its scans over `layers` cut for chunks of so many of them, the first of which runs first, and which of its
    arguments and results are parts of stacks. Raises OpError for layers that the scans pass in an order that no stages could
    follow, and for stacks that are sharded along layers into more parts than a chunk has."""
    with module.context, module.operation.location:
        return _Split(module, main_function(module), layers.cut(division)).written()


@dataclass(eq=False)
class _Split:
    module: ir.Module
    main: ir.Operation
    cut: LayerCut
    whole: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "By value of the program, the value of the new one."
    parts: dict[tuple[ir.Value, Division], list[ir.Value]] = field(default_factory=dict)
    "By value that is in parts, these."

    def __post_init__(self) -> None:
        self.scans = {scan.op: (scan, cut) for cut in self.cut.families for scan in cut.family.scans}
        divided = {cut.family: cut.division for cut in self.cut.families if cut.division.parts > 1}
        self.divisions = divisions_of_stacks(self.main, self.cut.loop, divided)
        for cut in self.cut.families:
            stacks = [value for value, ways in self.divisions.items() if cut.division in ways]
            check_shardings(self.module, cut.family, cut.division, stacks)

    def written(self) -> tuple[ir.Module, Stacks]:
        """The new program."""
        source = self.main.regions[0].blocks[0]
        module = ir.Module.create()
        for name in self.module.operation.attributes:
            key = name if isinstance(name, str) else name.name
            module.operation.attributes[key] = self.module.operation.attributes[key]
        end = ir.InsertionPoint(module.body)
        for view in self.module.body.operations:
            if view.operation != self.main:
                view.operation.clone(ip=end)
        returned = terminator_operands(source)
        stacks = Stacks(numbered(map(self._division, source.arguments)), numbered(map(self._division, returned)))
        types = [kind for argument in source.arguments for kind in self._types(argument)]
        kind = ir.FunctionType.get(types, [each for value in returned for each in self._types(value)])
        named = {"sym_name": self.main.attributes["sym_name"], "function_type": ir.TypeAttr.get(kind)}
        function = ir.Operation.create("func.func", [], [], named, regions=1, ip=end, loc=self.main.location)
        block = function.regions[0].blocks.append(*types)
        self._name(source.arguments, list(block.arguments))
        builder = Builder(self.main.location, ir.InsertionPoint(block))
        self._translate(source, builder)
        ir.Operation.create("func.return", [], self._all(returned, builder), ip=builder.ip)
        self._set_entries(function, stacks)
        return module, stacks

    def _division(self, value: ir.Value) -> Division:
        return self.divisions[value][0] if value in self.divisions else WHOLE

    def _types(self, value: ir.Value) -> list[ir.Type]:
        """The type of a value, or those of its parts."""
        if value not in self.divisions:
            return [value.type]
        division = self._division(value)
        return [part_type(value, division, part) for part in range(division.parts)]

    def _all(self, values: Sequence[ir.Value], at: Builder, like: Sequence[ir.Value] | None = None) -> list[ir.Value]:
        """The new values, as parts those that are in parts, or that are to be so `like` others."""
        return [
            each
            for value, other in zip(values, like or values, strict=True)
            for each in (self._parts(value, self._division(other), at) if other in self.divisions else [self._whole(value, at)])
        ]

    def _name(self, values: Sequence[ir.Value], written: Sequence[ir.Value]) -> None:
        """Takes new values, those in parts as parts, for `values`."""
        remaining = iter(written)
        for value in values:
            if value in self.divisions:
                division = self._division(value)
                self.parts[value, division] = [next(remaining) for _ in range(division.parts)]
            else:
                self.whole[value] = next(remaining)

    def _whole(self, value: ir.Value, at: Builder) -> ir.Value:
        return self.whole[value] if value in self.whole else at.concatenate(self.parts[value, self._division(value)], 0)

    def _parts(self, value: ir.Value, division: Division, at: Builder) -> list[ir.Value]:
        if (value, division) in self.parts:
            return self.parts[value, division]
        whole, size = self._whole(value, at), shape_of(value)[0]
        bounds = [division.rows(part, size) for part in range(division.parts)]
        return [at.slice(whole, 0, start, end - start) for start, end in bounds]

    def _translate(self, block: ir.Block, end: Builder) -> None:
        """Writes the ops of a block but its terminator."""
        for view in block.operations:
            op, at = view.operation, Builder(view.operation.location, end.ip)
            if op in self.scans:
                self._scan(*self.scans[op], at)
            elif op == self.cut.loop.loop:
                self._loop(op, at)
            elif (marker := marker_of(op)) is not None and marker.name in self.cut.erased:
                self._erase(op, at)
            elif op.name == BARRIER and any(value in self.divisions for value in op.results):
                self._barrier(op, at)
            elif (rows := self._rows(op)) is not None:
                parts = [[self._whole(value, at) for value in part] for part in rows]
                self.parts[op.results[0], self._division(op.results[0])] = [at.concatenate(part, 0) for part in parts]
            elif joins_rows(op):
                self._copy(op, at)
            elif len(op.results) and op.results[0] in self.divisions and self._is_linked(op):
                for division in self.divisions[op.results[0]]:
                    self._on_parts(op, division, at)
            elif (number := self._part_read(op)) is not None:
                self._slice_part(op, number, at)
            elif (total := total_of(op)) is not None and (shared := self._shared_division(op)) is not None:
                results = [self._clone(op, at, shared, part) for part in range(shared.parts)]
                combine = total.combine
                combined = reduce(lambda left, right, at=at: at.elementwise(combine, left, right), results)  # type: ignore[misc]
                self.whole[op.results[0]] = combined
            elif op.name not in ("func.return", "stablehlo.return"):
                self._copy(op, at)

    def _erase(self, op: ir.Operation, at: Builder) -> None:
        """Erases a boundary with which no stage begins."""
        for operand, result in zip(op.operands, op.results, strict=True):
            for division in self.divisions.get(result, ()):
                self.parts[result, division] = self._parts(operand, division, at)
            if result not in self.divisions:
                self.whole[result] = self._whole(operand, at)

    def _rows(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """The operands that make up each part of what an op concatenates, if that is in parts."""
        in_divisions = len(op.results) and op.results[0] in self.divisions
        return parts_of_rows(op, self._division(op.results[0])) if in_divisions else None

    def _is_linked(self, op: ir.Operation) -> bool:
        return any(op.results[0] in group for group in parts_together(op))

    def _part_read(self, op: ir.Operation) -> int | None:
        """The number of the part that has all that a slice reads of a value in parts; None for any other op."""
        is_read = len(op.operands) and op.operands[0] in self.divisions
        return part_with_rows(op, self._division(op.operands[0])) if is_read else None

    def _slice_part(self, op: ir.Operation, number: int, at: Builder) -> None:
        """A slice of the part of that number alone."""
        stack, division = op.operands[0], self._division(op.operands[0])
        start, _ = division.rows(number, shape_of(stack)[0])
        self.whole[op.results[0]] = slice_of_part(op, self._parts(stack, division, at)[number], start, at)

    def _shared_division(self, op: ir.Operation) -> Division | None:
        """How all operands that an op adds up along their first dimension are divided; None if they are divided in several ways,
        or one is not."""
        operands = list(op.operands) if op.name == "stablehlo.dot_general" else [op.operands[0]]
        ways = [self.divisions.get(operand, []) for operand in operands]
        return next((way for way in ways[0] if all(way in others for others in ways[1:])), None)

    def _on_parts(self, op: ir.Operation, division: Division, at: Builder) -> None:
        linked = {value for group in parts_together(op) for value in group}
        operands = [
            self._parts(operand, division, at) if operand in linked else [self._whole(operand, at)] * division.parts
            for operand in op.operands
        ]
        parts = range(division.parts)
        created = [on_part(op, [operand[part] for operand in operands], division, part, at) for part in parts]
        for number, result in enumerate(op.results):
            self.parts[result, division] = [each.results[number] for each in created]

    def _barrier(self, op: ir.Operation, at: Builder) -> None:
        """One barrier for each part, and one for all other values."""
        split = [number for number, value in enumerate(op.results) if value in self.divisions]
        others = [number for number in range(len(op.results)) if number not in split]
        attributes = dict(op.attributes.items())
        for division in dict.fromkeys(each for number in split for each in self.divisions[op.results[number]]):
            own = [number for number in split if division in self.divisions[op.results[number]]]
            operands = [self._parts(op.operands[number], division, at) for number in own]
            for part in range(division.parts):
                values = [each[part] for each in operands]
                created = at.op(BARRIER, [value.type for value in values], values, attributes)
                for number, result in zip(own, created.results, strict=True):
                    self.parts.setdefault((op.results[number], division), []).append(result)
        if others:
            values = [self._whole(op.operands[number], at) for number in others]
            created = at.op(BARRIER, [value.type for value in values], values, attributes)
            self.whole.update(zip([op.results[number] for number in others], created.results, strict=True))

    def _clone(self, op: ir.Operation, at: Builder, division: Division, part: int) -> ir.Value:
        """The result of a copy that reads that part of what is divided so."""
        operands = [
            self._parts(value, division, at)[part] if division in self.divisions.get(value, ()) else self._whole(value, at)
            for value in op.operands
        ]
        clone = op.clone(ip=at.ip)
        for index, operand in enumerate(operands):
            clone.operands[index] = operand
        result: ir.Value = clone.results[0]
        return result

    def _copy(self, op: ir.Operation, at: Builder) -> None:
        clone = clone_reading(op, {value: self._whole(value, at) for value in external_operands(op)}, at)
        for result, own in zip(op.results, clone.results, strict=True):
            self.whole[result] = own

    def _loop(self, op: ir.Operation, at: Builder) -> None:
        """The loop of microbatches, which carries the parts of what is in parts."""
        operands = self._all(list(op.operands), at, list(op.results))
        types = [value.type for value in operands]
        loop = at.op(op.name, types, operands, dict(op.attributes.items()), 2)
        for source, region, like in zip(op.regions, loop.regions, (None, list(op.results)), strict=True):
            (block,) = source.blocks
            own = region.blocks.append(*types)
            self._name(list(block.arguments), list(own.arguments))
            inside = Builder(op.location, ir.InsertionPoint(own))
            self._translate(block, inside)
            inside.op("return", [], self._all(terminator_operands(block), inside, like))
        self._name(list(op.results), list(loop.results))

    def _scan(self, scan: LayerScan, cut: FamilyCut, at: Builder) -> None:
        """A scan for the layers of each chunk, with boundaries between, and after what the last one returns."""
        op, counter, division = scan.op, scan.counted.counter, cut.division
        names, runs, is_forward = self.cut.names, scan.runs(division), cut.family.is_forward(scan)
        stacks = {number: self._parts(op.operands[number], division, at) for number in scan.stacks}
        if is_forward and cut.first_chunk and not self.cut.follows(cut, scan):
            # The smallest stack passes the boundary: it tells the chunk, and nothing is sent for it.
            number, (part, _) = min(stacks, key=lambda number: bytes_of(op.operands[number])), runs[0]
            passed = _passed([stacks[number][part]], Marker(names[cut.first_chunk], "forward"), at)
            stacks[number] = [*stacks[number][:part], *passed, *stacks[number][part + 1 :]]
        current = {number: self._whole(op.operands[number], at) for number in range(len(op.operands)) if number not in stacks}
        captured = {value: self._whole(value, at) for value in external_operands(op)}
        carried = scan.carried()

        def passes(marker: Marker) -> None:
            """Lets what passes from layer to layer pass a boundary."""
            if carried:
                current.update(zip(carried, _passed([current[number] for number in carried], marker, at), strict=True))

        written: dict[int, dict[int, ir.Value]] = {number: {} for number in stacks}
        limits = [*(start for _, start in runs[1:]), scan.trips]
        for (part, start), limit in zip(runs, limits, strict=True):
            chunk = cut.chunk(part)
            if is_forward and start:
                passes(Marker(names[chunk], "forward"))
            elif not is_forward and chunk + 1 in names:
                passes(Marker(names[chunk + 1], "backward"))
            current[counter] = at.splat(op.operands[counter].type, start)
            clone = clone_reading(op, captured, at)
            for number in range(len(op.operands)):
                clone.operands[number] = stacks[number][part] if number in stacks else current[number]
            for number in stacks:
                _narrow(clone, number, part_type(op.operands[number], division, part), division.bounds[part], at)
            _end(clone, scan, limit)
            erase_markers(clone)
            for number, result in enumerate(clone.results):
                if number in stacks:
                    written[number][part] = result
                elif number in carried or number == counter:
                    current[number] = result
        for name in self.cut.boundaries_after(cut) if is_forward else ():
            passes(Marker(name, "forward"))
        for number, result in enumerate(op.results):
            if number in stacks and division.parts > 1:
                self.divisions.setdefault(result, [division])
                self.parts[result, division] = [written[number][part] for part in range(division.parts)]
            else:
                self.whole[result] = written[number][0] if number in stacks else current[number]

    def _set_entries(self, function: ir.Operation, stacks: Stacks) -> None:
        """The attributes of arguments and results. A part of an argument may be overwritten by the same part of a result."""
        results = {(part.number, part.position, part.division): own for own, part in enumerate(stacks.results)}
        arguments = entries(self.main, "arg_attrs")
        changed = []
        for part in stacks.arguments:
            entry = dict(arguments[part.number])
            if ALIASED in entry:
                result = (ir.IntegerAttr(entry.pop(ALIASED)).value, part.position, part.division)
                if result in results:
                    entry[ALIASED] = aliased(results[result])
                else:
                    entry[DONOR] = ir.BoolAttr.get(True)
            changed.append(entry)
        set_entries(function, "arg_attrs", changed)
        of_results = entries(self.main, "res_attrs")
        set_entries(function, "res_attrs", [of_results[part.number] for part in stacks.results])


def _passed(values: Sequence[ir.Value], marker: Marker, at: Builder) -> list[ir.Value]:
    """Values that pass the boundary of a chunk."""
    return list(at.op(BARRIER, [value.type for value in values], values, marker.attributes()).results)


def _narrow(scan: ir.Operation, number: int, kind: ir.RankedTensorType, start: int, at: Builder) -> None:
    """Lets a scan carry one part of a stack, which begins at `start`."""
    for region in scan.regions:
        region.blocks[0].arguments[number].set_type(kind)
    scan.results[number].set_type(kind)
    waiting = [scan.regions[1].blocks[0].arguments[number]]
    while waiting:
        for use in list(waiting.pop().uses):
            user = use.owner.operation
            if user.name in (READ, WRITE):
                index = 1 if user.name == READ else 2
                before = Builder.before(user)
                user.operands[index] = before.subtract(user.operands[index], before.splat(user.operands[index].type, start))
            if user.name in (SHARD, WRITE):
                user.results[0].set_type(kind)
                waiting.append(user.results[0])


def _end(clone: ir.Operation, scan: LayerScan, limit: int) -> None:
    """Ends a scan before the layer `limit`."""
    returned = look_through(terminator_operands(clone.regions[0].blocks[0])[0], (SHARD,))
    compare = defining_op(returned)
    assert compare is not None, "a counted loop"
    before = Builder.before(compare)
    operand = compare.operands[scan.counted.limit_operand]
    compare.operands[scan.counted.limit_operand] = before.splat(operand.type, limit)
