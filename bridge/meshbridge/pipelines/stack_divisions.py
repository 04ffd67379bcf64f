"""Which values of a program are in parts because the stacks of its scans over layers are, and which parts devices can share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd, lcm

from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import ShardingOp
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.mlir import OpError, ir, main_function, terminator_operands
from meshbridge.pipelines.layer_scans import Family, LayerLoop
from meshbridge.pipelines.leading_split import Group, free_values, in_parts, parts_together
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.stacks import Division


def divisions_of_stacks(
    main: ir.Operation, loop: LayerLoop, families: Mapping[Family, Division]
) -> dict[ir.Value, list[Division]]:
    """By value that is in parts if the stacks of `families` are divided so, its division; several of one of which each reader can
    compute the parts. What several families read layer by layer, such as numbers of layers, is divided where it is read."""
    free, linked = free_values(_ops(main, loop)), _linked(main, loop, families)
    stacks = {family: {scan.op.operands[number] for scan in family.scans for number in scan.stacks} for family in families}
    counts = Counter(value for own in stacks.values() for value in own - free)
    taken = {value for value, count in counts.items() if count > 1}
    divisions: dict[ir.Value, list[Division]] = {}
    for family, division in families.items():
        others = {value for other, own in stacks.items() if other is not family for value in own - free}
        # A stack of gradients may begin as zeros, which are free, and nothing but the caller may read it.
        written_stacks = {scan.op.results[number] for scan in family.scans for number in scan.stacks}
        divided_values = in_parts((stacks[family] | written_stacks) - taken, linked, division, free, taken | others)
        for value in divided_values:
            ways = divisions.setdefault(value, [])
            ways += [division] if division not in ways else []
        taken |= divided_values - free
    return divisions


def _ops(main: ir.Operation, loop: LayerLoop) -> Iterator[ir.Operation]:
    """The ops of the program's function and of the loop of microbatches, in program order."""
    for view in main.regions[0].blocks[0].operations:
        if view.operation == loop.loop:
            yield from (inner.operation for inner in loop.body.operations)
        yield view.operation


def _linked(main: ir.Operation, loop: LayerLoop, families: Iterable[Family]) -> Callable[[ir.Operation], list[Group]]:
    """The groups of operands and results that are in parts together, by op."""
    scans = {scan.op: scan for family in families for scan in family.scans}

    def linked(op: ir.Operation) -> list[Group]:
        if op in scans:
            return [[op.operands[number], op.results[number]] for number in scans[op].stacks]
        if op == loop.loop:
            conditional, arguments = (region.blocks[0].arguments for region in op.regions)
            groups = zip(op.operands, conditional, arguments, terminator_operands(loop.body), op.results, strict=True)
            return [list(group) for group in groups if isinstance(group[0].type, ir.RankedTensorType) and shape_of(group[0])]
        return parts_together(op) if op.parent is not None and op.parent.operation in (loop.loop, main) else []

    return linked


def unit_of(loop: LayerLoop, family: Family, module: ir.Module) -> int:
    """The number of layers of which each chunk has a multiple: one, unless stacks are sharded along their layers. Raises OpError
    for stacks that are sharded into parts of which no number has whole layers."""
    each_alone = Division(tuple(range(family.layers + 1)))
    unit = 1
    for stack in divisions_of_stacks(main_function(module), loop, {family: each_alone}):
        devices, rows = devices_along_layers(module, stack), shape_of(stack)[0] // family.layers
        unit = lcm(unit, devices // gcd(devices, rows))
    if family.layers % unit:
        raise sharded_along_layers(family, unit, family.layers)
    return unit


def check_shardings(module: ir.Module, family: Family, division: Division, stacks: Iterable[ir.Value]) -> None:
    """Raises OpError for a stack whose parts the devices of a stage could not share as they share the stack."""
    for stack in stacks:
        devices = devices_along_layers(module, stack)
        for part in range(division.parts):
            start, end = division.rows(part, shape_of(stack)[0])
            if (end - start) % devices:
                raise sharded_along_layers(family, devices, end - start)


def sharded_along_layers(family: Family, devices: int, count: int) -> OpError:
    """The diagnostic for a stage with so many layers of a stack that so many devices share."""
    message = f"reads a stack that is sharded along its layers: {devices} devices do not divide the {count} of a stage"
    return OpError(family.first.op, message, "shard another dimension of the stack")


def devices_along_layers(module: ir.Module, stack: ir.Value) -> int:
    """The number of devices among which the program shards a stack along its first dimension."""
    mesh = find_mesh(module)
    counts = [1]
    for use in stack.uses:
        if mesh is not None and use.owner.operation.name == SHARD and use.operand_number == 0:
            split_axes = ShardingOp(op_of(use.owner.operation.operands[1])).value.split_axes
            counts.append(mesh.group_size(split_axes[0]) if split_axes else 1)
    return max(counts)
