"""A program of one device turned into a program of all devices side by side, for one thread of the interpreter.

    %0 = stablehlo.add %x, %x                        %0 = stablehlo.add %x.0, %x.0
    %1 = "stablehlo.all_gather"(%0) dim 0     =>     %1 = stablehlo.add %x.1, %x.1
                                                     %2 = stablehlo.concatenate %0, %1, dim = 0   // what both devices get

Every value has one copy for each device; collectives become concatenations, slices and folds of the copies, as the StableHLO
specification defines them. The interpreter's own collectives need a thread for each device at a time, and it takes as many
threads as there are cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, stablehlo

Copies = list[Any]
"""A value by device."""


def side_by_side(main: ir.Operation, count: int) -> str:
    """The function as text: `main` with `count` copies of each argument and result, all of device 0 first."""
    kind = mlir.function_type(main)
    module = ir.Module.create(ir.Location.unknown(main.context))
    with main.context, ir.Location.unknown():
        types = ir.FunctionType.get(list(kind.inputs) * count, list(kind.results) * count)
        with ir.InsertionPoint(module.body):
            attributes = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(types)}
            function = ir.Operation.create("func.func", attributes=attributes, regions=1)
        block = function.regions[0].blocks.append(*types.inputs)
        _Copier(count).block(main.regions[0].blocks[0], block)
    module.operation.verify()
    return str(module)


class _Copier:
    """Copies blocks; `values` holds what stands for each value on each device."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[ir.Value, Copies] = {}

    def block(self, source: ir.Block, target: ir.Block, returning: int | None = None) -> None:
        """Copies the ops of a block; its terminator returns the values of the first `returning` devices, or of all."""
        width = len(source.arguments)
        for index, argument in enumerate(source.arguments):
            self.values[argument] = [target.arguments[device * width + index] for device in range(self.count)]
        *ops, terminator = (op.operation for op in source.operations)
        with ir.InsertionPoint(target):
            for op in ops:
                self.op(op)
            ir.Operation.create(terminator.name, operands=self.operands(terminator, returning))

    def op(self, op: ir.Operation) -> None:
        if (collective := COLLECTIVES.get(op.name)) is not None:
            for index, operand in enumerate(op.operands):
                self.values[op.results[index]] = collective(_Exchange(op, self.values[operand], self.count))
        elif op.name == "stablehlo.partition_id":
            self.values[op.results[0]] = [_u32(device) for device in range(self.count)]
        elif any(inner.name in DIFFERS for inner in mlir.walk(op)):
            self.joined(op)
        else:
            clones = [self.clone(op, device) for device in range(self.count)]
            for index, result in enumerate(op.results):
                self.values[result] = [clone.results[index] for clone in clones]

    def operands(self, op: ir.Operation, devices: int | None = None) -> list[ir.Value]:
        return [self.values[operand][device] for device in range(devices or self.count) for operand in op.operands]

    def clone(self, op: ir.Operation, device: int) -> ir.Operation:
        """The op as one device runs it: all that it and its regions take from outside is that device's."""
        copy: ir.Operation = op.clone()
        for old, new in zip(mlir.walk(op), mlir.walk(copy), strict=True):
            for index, operand in enumerate(old.operands):
                if operand in self.values:
                    new.operands[index] = self.values[operand][device]
        return copy

    def joined(self, op: ir.Operation) -> None:
        """One loop or branch for all devices. They meet inside of it, so that all take the decision of the first."""
        loops = op.name == "stablehlo.while"
        assert loops or op.name in ("stablehlo.if", "stablehlo.case"), op.name
        types = [result.type for _ in range(self.count) for result in op.results]
        joined = ir.Operation.create(op.name, types, self.operands(op, None if loops else 1), regions=len(op.regions))
        for index, (mine, theirs) in enumerate(zip(op.regions, joined.regions, strict=True)):
            arguments = [argument.type for argument in mine.blocks[0].arguments] * self.count
            self.block(mine.blocks[0], theirs.blocks.append(*arguments), 1 if loops and index == 0 else None)
        width = len(op.results)
        for index, result in enumerate(op.results):
            self.values[result] = [joined.results[device * width + index] for device in range(self.count)]


def _u32(number: int) -> ir.Value:
    return stablehlo.constant(ir.DenseElementsAttr.get(np.array(number, np.uint32), signless=False))


@dataclass(frozen=True)
class _Exchange:
    """One operand of a collective, by device."""

    op: ir.Operation
    copies: Copies
    count: int

    def groups(self) -> list[list[int]]:
        """The devices of each group; a group shorter than the others ends in -1."""
        attribute = ir.DenseIntElementsAttr(self.op.attributes["replica_groups"])
        rows = np.array(list(attribute)).reshape(ir.ShapedType(attribute.type).shape)
        return [[int(device) for device in row if device >= 0] for row in rows]

    def in_groups(self, of_group: Callable[[Copies], Copies]) -> Copies:
        """What every device gets from what its group holds."""
        found: Copies = [None] * self.count
        for group in self.groups():
            for device, value in zip(group, of_group([self.copies[member] for member in group]), strict=True):
                found[device] = value
        return found

    def integer(self, name: str) -> int:
        return ir.IntegerAttr(self.op.attributes[name]).value


def _pieces(value: ir.Value, dim: int, parts: int) -> Copies:
    shape = list(ir.RankedTensorType(value.type).shape)
    size = shape[dim] // parts
    found = []
    for part in range(parts):
        starts, limits = [0] * len(shape), list(shape)
        starts[dim], limits[dim] = part * size, (part + 1) * size
        found.append(stablehlo.slice(value, starts, limits, [1] * len(shape)))
    return found


def _concatenated(values: Sequence[ir.Value], dim: int) -> ir.Value:
    return stablehlo.concatenate(list(values), dim)


def _all_gather(exchange: _Exchange) -> Copies:
    dim = exchange.integer("all_gather_dim")
    return exchange.in_groups(lambda held: [_concatenated(held, dim)] * len(held))


def _folded(op: ir.Operation, held: Copies) -> ir.Value:
    """The values combined by the op's own body, one after the other."""
    body = op.regions[0].blocks[0]
    result = held[0]
    for value in held[1:]:
        dims = range(ir.RankedTensorType(value.type).rank)
        attributes = {"dimensions": ir.DenseI64ArrayAttr.get(list(dims))}
        combined = ir.Operation.create("stablehlo.map", [value.type], [result, value], attributes, regions=1)
        body_copy = combined.regions[0].blocks.append(*[argument.type for argument in body.arguments])
        _Copier(1).block(body, body_copy)
        result = combined.results[0]
    return result


def _all_reduce(exchange: _Exchange) -> Copies:
    return exchange.in_groups(lambda held: [_folded(exchange.op, held)] * len(held))


def _reduce_scatter(exchange: _Exchange) -> Copies:
    dim = exchange.integer("scatter_dimension")
    return exchange.in_groups(lambda held: _pieces(_folded(exchange.op, held), dim, len(held)))


def _all_to_all(exchange: _Exchange) -> Copies:
    split, concat = exchange.integer("split_dimension"), exchange.integer("concat_dimension")

    def of_group(held: Copies) -> Copies:
        sent = [_pieces(value, split, len(held)) for value in held]
        return [_concatenated([pieces[member] for pieces in sent], concat) for member in range(len(held))]

    return exchange.in_groups(of_group)


def _collective_broadcast(exchange: _Exchange) -> Copies:
    return exchange.in_groups(lambda held: [held[0]] * len(held))


def _collective_permute(exchange: _Exchange) -> Copies:
    """What no device sends to is zero."""
    pairs = np.array(list(ir.DenseIntElementsAttr(exchange.op.attributes["source_target_pairs"]))).reshape(-1, 2)
    kind = ir.RankedTensorType(exchange.copies[0].type)
    element = kind.element_type
    zero = ir.FloatAttr.get(element, 0.0) if isinstance(element, ir.FloatType) else ir.IntegerAttr.get(element, 0)
    found = [stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, zero)) for _ in range(exchange.count)]
    for source, target in pairs.tolist():
        found[target] = exchange.copies[source]
    return found


COLLECTIVES: dict[str, Callable[[_Exchange], Copies]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_broadcast": _collective_broadcast,
    "stablehlo.collective_permute": _collective_permute,
    "stablehlo.reduce_scatter": _reduce_scatter,
}

DIFFERS = {*COLLECTIVES, "stablehlo.partition_id"}
"""Ops that no device can run without knowing of the others."""
