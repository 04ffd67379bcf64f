"""Cuts scans over layers into a scan for the layers of each chunk, with a boundary between.

    %1:2 = while(%i = 0, %x, %w : tensor<5x8x8xf32>) {… i < 5 …}        for chunks of three and two layers:

    %1:2 = while(%i = 0, %x, %w_0 : tensor<3x8x8xf32>) {… i < 3 …}
    %2 = the boundary of the second chunk on %1#1
    %3:2 = while(%i = 3, %2, %w_1 : tensor<2x8x8xf32>) {… i < 5 …}      reads at i - 3

Stacks of layers are in as many parts as there are chunks wherever that is possible (`leading_split`): arguments, sums of
gradients that the loop of microbatches carries, and the optimizer's ops on them, so that each stage has its own layers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd, lcm

from meshbridge.dialect.donation import ALIASED, DONOR, aliased
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import ShardingOp
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.mlir import BARRIER, OpError, entries, ir, main_function, set_entries, terminator_operands, walk
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.pipelines.layer_scans import READ, WRITE, LayerLoop, LayerScan
from meshbridge.pipelines.leading_split import (
    Group,
    in_parts,
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
from meshbridge.pipelines.marker import Direction, Marker, marker_of
from meshbridge.pipelines.reads import external_operands
from meshbridge.pipelines.stacks import WHOLE, Division, Stacks, numbered


def split_scans(module: ir.Module, layers: LayerLoop, division: Division) -> tuple[ir.Module, Stacks]:
    """The program with its scans over `layers` cut for chunks of so many layers, the first of which runs first, and which of its
    arguments and results are parts of stacks. Raises OpError for layers that the scans pass in an order that no stages could
    follow, and for stacks that are sharded along layers into more parts than a chunk has."""
    own = division.turned() if layers.family[0].descends else division
    with module.context, module.operation.location:
        return _Split(module, main_function(module), layers, own).written()


@dataclass(eq=False)
class _Split:
    module: ir.Module
    main: ir.Operation
    layers: LayerLoop
    division: Division
    "Of the stacks, from their first layer on."
    whole: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "By value of the program, the value of the new one."
    parts: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)
    "By value that is in parts, these."

    def __post_init__(self) -> None:
        self.scans = {scan.op: scan for scan in self.layers.family}
        self.runs = {scan.op: scan.runs(self.division) for scan in self.layers.family}
        first = next(iter(self.runs.values()))
        self.chunk_of = {part: chunk for chunk, (part, _) in enumerate(first)}
        self.split = _stacks(self.main, self.layers, self.division)
        self._check_shardings()

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.division.parts

    def _check_shardings(self) -> None:
        """Raises OpError for a stack whose parts the devices of a stage could not share as they share the stack."""
        for value in self.split:
            devices = _devices_along_layers(self.module, value)
            for start, end in self._rows_of(value):
                if (end - start) % devices:
                    raise _sharded_along_layers(self.layers, devices, end - start)

    def _rows_of(self, value: ir.Value) -> list[tuple[int, int]]:
        """The first row of each part of a value, and the one after its last."""
        return [self.division.rows(part, shape_of(value)[0]) for part in range(self.count)]

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
        return self.division if value in self.split else WHOLE

    def _types(self, value: ir.Value) -> list[ir.Type]:
        """The type of a value, or those of its parts."""
        if value not in self.split:
            return [value.type]
        return [part_type(value, self.division, part) for part in range(self.count)]

    def _all(self, values: Sequence[ir.Value], at: Builder) -> list[ir.Value]:
        """The new values, those in parts as parts."""
        return [
            each for value in values for each in (self._parts(value, at) if value in self.split else [self._whole(value, at)])
        ]

    def _name(self, values: Sequence[ir.Value], written: Sequence[ir.Value]) -> None:
        """Takes new values, those in parts as parts, for `values`."""
        remaining = iter(written)
        for value in values:
            if value in self.split:
                self.parts[value] = [next(remaining) for _ in range(self.count)]
            else:
                self.whole[value] = next(remaining)

    def _whole(self, value: ir.Value, at: Builder) -> ir.Value:
        return self.whole[value] if value in self.whole else at.concatenate(self.parts[value], 0)

    def _parts(self, value: ir.Value, at: Builder) -> list[ir.Value]:
        if value in self.parts:
            return self.parts[value]
        return [at.slice(self.whole[value], 0, start, end - start) for start, end in self._rows_of(value)]

    def _translate(self, block: ir.Block, end: Builder) -> None:
        """Writes the ops of a block but its terminator."""
        for view in block.operations:
            op, at = view.operation, Builder(view.operation.location, end.ip)
            if op in self.scans:
                self._scan(self.scans[op], at)
            elif op == self.layers.loop:
                self._loop(op, at)
            elif op.name == BARRIER and any(value in self.split for value in op.results):
                self._barrier(op, at)
            elif (rows := self._rows(op)) is not None:
                parts = [[self._whole(value, at) for value in part] for part in rows]
                self.parts[op.results[0]] = [at.concatenate(part, 0) for part in parts]
            elif joins_rows(op):
                self._copy(op, at)
            elif len(op.results) and op.results[0] in self.split and self._is_linked(op):
                self._on_parts(op, at)
            elif len(op.operands) and op.operands[0] in self.split and (number := part_with_rows(op, self.division)) is not None:
                stack = op.operands[0]
                self.whole[op.results[0]] = slice_of_part(op, self._parts(stack, at)[number], self._rows_of(stack)[number][0], at)
            elif (total := total_of(op)) is not None and self._all_split(op):
                results = [self._clone(op, at, part) for part in range(self.count)]
                combine = total.combine
                combined = reduce(lambda left, right, at=at: at.elementwise(combine, left, right), results)  # type: ignore[misc]
                self.whole[op.results[0]] = combined
            elif op.name not in ("func.return", "stablehlo.return"):
                self._copy(op, at)

    def _rows(self, op: ir.Operation) -> list[list[ir.Value]] | None:
        """The operands that make up each part of what an op concatenates, if that is in parts."""
        return parts_of_rows(op, self.division) if len(op.results) and op.results[0] in self.split else None

    def _is_linked(self, op: ir.Operation) -> bool:
        return any(op.results[0] in group for group in parts_together(op))

    def _all_split(self, op: ir.Operation) -> bool:
        operands = list(op.operands) if op.name == "stablehlo.dot_general" else [op.operands[0]]
        return all(operand in self.split for operand in operands)

    def _on_parts(self, op: ir.Operation, at: Builder) -> None:
        operands = [
            self._parts(operand, at) if operand in self.split else [self._whole(operand, at)] * self.count
            for operand in op.operands
        ]
        created = [on_part(op, [own[part] for own in operands], self.division, part, at) for part in range(self.count)]
        for number, result in enumerate(op.results):
            self.parts[result] = [each.results[number] for each in created]

    def _barrier(self, op: ir.Operation, at: Builder) -> None:
        """One barrier for each part, and one for all other values."""
        split = [number for number, value in enumerate(op.results) if value in self.split]
        others = [number for number in range(len(op.results)) if number not in split]
        attributes = dict(op.attributes.items())
        operands = [self._parts(op.operands[number], at) for number in split]
        for part in range(self.count):
            values = [each[part] for each in operands]
            created = at.op(BARRIER, [value.type for value in values], values, attributes)
            for number, result in zip(split, created.results, strict=True):
                self.parts.setdefault(op.results[number], []).append(result)
        if others:
            values = [self._whole(op.operands[number], at) for number in others]
            created = at.op(BARRIER, [value.type for value in values], values, attributes)
            self.whole.update(zip([op.results[number] for number in others], created.results, strict=True))

    def _clone(self, op: ir.Operation, at: Builder, part: int) -> ir.Value:
        """The result of a copy that reads that part of what is in parts."""
        operands = [self._parts(value, at)[part] if value in self.split else self._whole(value, at) for value in op.operands]
        clone = op.clone(ip=at.ip)
        for index, operand in enumerate(operands):
            clone.operands[index] = operand
        result: ir.Value = clone.results[0]
        return result

    def _copy(self, op: ir.Operation, at: Builder) -> None:
        clone = self._with_operands(op, {value: self._whole(value, at) for value in external_operands(op)}, at)
        for result, own in zip(op.results, clone.results, strict=True):
            self.whole[result] = own

    def _with_operands(self, op: ir.Operation, written: Mapping[ir.Value, ir.Value], at: Builder) -> ir.Operation:
        """A copy of an op that reads other values from outside."""
        clone = op.clone(ip=at.ip)
        for inner in walk(clone):
            for index, operand in enumerate(inner.operands):
                if operand in written:
                    inner.operands[index] = written[operand]
        return clone

    def _loop(self, op: ir.Operation, at: Builder) -> None:
        """The loop of microbatches, which carries the parts of what is in parts."""
        operands = self._all(list(op.operands), at)
        types = [value.type for value in operands]
        loop = at.op(op.name, types, operands, dict(op.attributes.items()), 2)
        for source, region in zip(op.regions, loop.regions, strict=True):
            (block,) = source.blocks
            own = region.blocks.append(*types)
            self._name(list(block.arguments), list(own.arguments))
            inside = Builder(op.location, ir.InsertionPoint(own))
            self._translate(block, inside)
            values = terminator_operands(block)
            inside.op("return", [], self._all(values, inside))
        self._name(list(op.results), list(loop.results))

    def _scan(self, scan: LayerScan, at: Builder) -> None:
        """A scan for the layers of each chunk."""
        op, counter, runs = scan.op, scan.counted.counter, self.runs[scan.op]
        chunks = [self.chunk_of[part] for part, _ in runs]
        direction: Direction = "forward" if chunks[0] < chunks[-1] else "backward"
        stacks = {number: self._parts(op.operands[number], at) for number in scan.stacks}
        current = {number: self._whole(op.operands[number], at) for number in range(len(op.operands)) if number not in stacks}
        captured = {value: self._whole(value, at) for value in external_operands(op)}
        carried = scan.carried()
        names = [marker.name for _, marker in scan.markers]
        written: dict[int, dict[int, ir.Value]] = {number: {} for number in stacks}
        limits = [*(start for _, start in runs[1:]), scan.trips]
        for turn, ((part, start), limit) in enumerate(zip(runs, limits, strict=True)):
            if turn and carried:
                named = chunks[turn] if direction == "forward" else chunks[turn - 1]
                assert named, "the first chunk has no boundary"
                layer = start if direction == "forward" else scan.trips - start
                marker = Marker(f"{names[0] if names else 'layers'} from {layer}", direction)
                values = [current[number] for number in carried]
                barrier = at.op(BARRIER, [value.type for value in values], values, marker.attributes())
                current.update(zip(carried, barrier.results, strict=True))
            current[counter] = at.splat(op.operands[counter].type, start)
            clone = self._with_operands(op, captured, at)
            for number in range(len(op.operands)):
                clone.operands[number] = stacks[number][part] if number in stacks else current[number]
            for number in stacks:
                kind = part_type(op.operands[number], self.division, part)
                _narrow(clone, number, kind, self.division.bounds[part], at)
            _end(clone, scan, limit)
            _erase_markers(clone)
            for number, result in enumerate(clone.results):
                if number in stacks:
                    written[number][part] = result
                elif number in carried or number == counter:
                    current[number] = result
        for number, result in enumerate(op.results):
            if number in stacks:
                self.parts[result] = [written[number][part] for part in range(self.count)]
            else:
                self.whole[result] = current[number]

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


def unit_of(layers: LayerLoop, module: ir.Module, chunks: int) -> int:
    """The number of layers of which each of so many chunks has a multiple: one, unless stacks are sharded along their layers.
    Raises OpError for stacks that have fewer layers for a chunk than there are devices along them."""
    each_alone = Division(tuple(range(layers.trips + 1)))
    unit = 1
    for stack in _stacks(main_function(module), layers, each_alone):
        devices, rows = _devices_along_layers(module, stack), shape_of(stack)[0] // layers.trips
        unit = lcm(unit, devices // gcd(devices, rows))
    if layers.trips % unit or layers.trips // unit < chunks:
        raise _sharded_along_layers(layers, unit, layers.trips // chunks)
    return unit


def _stacks(main: ir.Operation, layers: LayerLoop, division: Division) -> set[ir.Value]:
    """The values that are in parts if the stacks of the scans are."""
    scans, loop = {scan.op: scan for scan in layers.family}, layers.loop

    def linked(op: ir.Operation) -> list[Group]:
        if op in scans:
            return [[op.operands[number], op.results[number]] for number in scans[op].stacks]
        if op == loop:
            conditional, arguments = (region.blocks[0].arguments for region in loop.regions)
            yielded = terminator_operands(loop.regions[1].blocks[0])
            groups = zip(loop.operands, conditional, arguments, yielded, loop.results, strict=True)
            return [list(group) for group in groups if isinstance(group[0].type, ir.RankedTensorType) and shape_of(group[0])]
        return parts_together(op) if op.parent is not None and op.parent.operation in (loop, main) else []

    return in_parts((scan.op.operands[number] for scan in layers.family for number in scan.stacks), linked, division)


def _sharded_along_layers(layers: LayerLoop, devices: int, count: int) -> OpError:
    message = f"reads a stack that is sharded along its layers: {devices} devices do not divide the {count} of a stage"
    return OpError(layers.family[0].op, message, "shard another dimension of the stack")


def _devices_along_layers(module: ir.Module, stack: ir.Value) -> int:
    """The number of devices among which the program shards a stack along its first dimension."""
    mesh = find_mesh(module)
    counts = [1]
    for use in stack.uses:
        if mesh is not None and use.owner.operation.name == SHARD and use.operand_number == 0:
            split_axes = ShardingOp(op_of(use.owner.operation.operands[1])).value.split_axes
            counts.append(mesh.group_size(split_axes[0]) if split_axes else 1)
    return max(counts)


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


def _erase_markers(scan: ir.Operation) -> None:
    """Erases the boundaries of stages in a scan."""
    for op in [op for op in walk(scan) if marker_of(op) is not None]:
        for result, operand in zip(op.results, op.operands, strict=True):
            result.replace_all_uses_with(operand)
        op.erase()


def _end(clone: ir.Operation, scan: LayerScan, limit: int) -> None:
    """Ends a scan before the layer `limit`."""
    returned = look_through(terminator_operands(clone.regions[0].blocks[0])[0], (SHARD,))
    compare = defining_op(returned)
    assert compare is not None, "a counted loop"
    before = Builder.before(compare)
    operand = compare.operands[scan.counted.limit_operand]
    compare.operands[scan.counted.limit_operand] = before.splat(operand.type, limit)
