"""The decisions of one program for another that differs from it in sizes alone: the same axes split the same loops.

So figures of one plan are compared over sizes, where deciding anew might take another plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshbridge.decide.decisions import BlockDecisions, Decisions, FunctionDecisions, OpDecision, Shardings
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.errors import MeshError
from meshbridge.ir.mlir import COMPOSITE, functions_to_partition, ir
from meshbridge.ir.sharding import Mesh, is_even
from meshbridge.ops.composites import composite_body
from meshbridge.ops.option import is_legal
from meshbridge.ops.rule import Interface


class UnlikeProgramError(MeshError):
    """The other program has not the operations of the first, or cannot be split in the same way."""


def transplanted(decisions: Decisions, module: ir.Module) -> Decisions:
    """The same decisions for the functions of `module`, in order, a legal program on a mesh of the same axes.

    Raises UnlikeProgramError where that has other operations, where an option does not suit the sizes of an operation's loops,
    and for shardings with halo sizes or offsets, which are sizes themselves.
    """
    with module.context:
        functions = [function for function in functions_to_partition(module) if find_mesh(module, function) is not None]
        if len(functions) != len(decisions.functions):
            raise UnlikeProgramError("error: the program has other functions at other sizes")
        return Decisions(tuple(_function(*pair, module) for pair in zip(decisions.functions, functions, strict=True)))


def _function(known: FunctionDecisions, function: ir.Operation, module: ir.Module) -> FunctionDecisions:
    mesh = find_mesh(module, function)
    assert mesh is not None
    block = _Transplant(mesh, Interface()).block(known.block, function.regions[0].blocks[0])
    return FunctionDecisions(function, mesh, known.held, block)


class _Transplant:
    def __init__(self, mesh: Mesh, interface: Interface) -> None:
        self.mesh, self.interface = mesh, interface

    def block(self, known: BlockDecisions, block: ir.Block) -> BlockDecisions:
        operations = [view.operation for view in block.operations]
        if len(operations) != len(known.ops):
            raise UnlikeProgramError("error: the program has other operations at other sizes")
        ops = tuple(self._op(each, op) for each, op in zip(known.ops, operations, strict=True))
        return BlockDecisions(known.arguments, ops, operations)

    def _op(self, known: OpDecision, op: ir.Operation) -> OpDecision:
        if known.layout is not None or not all(each is None or each.is_plain for each in (*known.operands, *known.results)):
            raise UnlikeProgramError(f"error: '{op.name}' has a sharding with halo sizes or offsets, which fit one size alone")
        rule = None if known.rule is None else self.interface.rule(op)
        if rule is not None and (len(rule.loops) != len(known.option) or not is_legal(rule, known.option, self.mesh)):
            raise UnlikeProgramError(f"error: '{op.name}' cannot be split in the same way at other sizes")
        return replace(known, rule=rule, regions=self._regions(known, op))

    def _regions(self, known: OpDecision, op: ir.Operation) -> tuple[BlockDecisions, ...]:
        if not known.regions:
            return ()
        regions = composite_body(op).regions if op.name == COMPOSITE else op.regions
        return tuple(self.block(each, region.blocks[0]) for each, region in zip(known.regions, regions, strict=True))


def uneven_places(decisions: Decisions) -> frozenset[tuple[int, int]]:
    """Where values are in uneven shards: the number of the operation, in the order of the decisions, and that of the value."""
    found = set()
    for number, (values, shardings, mesh) in enumerate(_split_values(decisions)):
        for place, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
            if sharding is not None and isinstance(value.type, ir.RankedTensorType):
                shape = tuple(ir.RankedTensorType(value.type).shape)
                if not is_even(shape, mesh, sharding.padded(len(shape)).split_axes):
                    found.add((number, place))
    return frozenset(found)


def _split_values(decisions: Decisions) -> Iterator[tuple[Sequence[ir.Value], Shardings, Mesh]]:
    for function in decisions.functions:
        yield list(function.function.regions[0].blocks[0].arguments), function.held, function.mesh
        yield from _of_block(function.block, function.mesh)


def _of_block(block: BlockDecisions, mesh: Mesh) -> Iterator[tuple[Sequence[ir.Value], Shardings, Mesh]]:
    for known, op in zip(block.ops, block.operations, strict=True):
        for values, shardings in ((list(op.operands), known.operands), (list(op.results), known.results)):
            if len(shardings) == len(values):
                yield values, shardings, mesh
        for region in known.regions:
            yield from _of_block(region, mesh)
