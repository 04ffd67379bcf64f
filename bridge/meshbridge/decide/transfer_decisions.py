"""Transfers the decisions of one program to another that differs only in sizes: the same axes split the same loops.

Figures of one plan can then be compared over sizes; deciding again might take another plan.
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


class ProgramMismatchError(MeshError):
    """The other program has other operations, or cannot be split in the same way."""


def transfer_decisions(decisions: Decisions, module: ir.Module) -> Decisions:
    """The same decisions for the functions of `module`, in order, a legal program on a mesh of the same axes.

    Raises ProgramMismatchError if it has other operations, if an option is illegal for the sizes of an operation's loops, and for
    shardings with halo sizes or offsets, which depend on sizes.
    """
    with module.context:
        functions = [function for function in functions_to_partition(module) if find_mesh(module, function) is not None]
        if len(functions) != len(decisions.functions):
            raise ProgramMismatchError("error: the program has other functions at other sizes")
        return Decisions(tuple(_function(*pair, module) for pair in zip(decisions.functions, functions, strict=True)))


def _function(decisions: FunctionDecisions, function: ir.Operation, module: ir.Module) -> FunctionDecisions:
    mesh = find_mesh(module, function)
    assert mesh is not None
    block = _Transfer(mesh, Interface()).block(decisions.block, function.regions[0].blocks[0])
    return FunctionDecisions(function, mesh, decisions.from_caller, block)


class _Transfer:
    def __init__(self, mesh: Mesh, interface: Interface) -> None:
        self.mesh, self.interface = mesh, interface

    def block(self, decisions: BlockDecisions, block: ir.Block) -> BlockDecisions:
        operations = [view.operation for view in block.operations]
        if len(operations) != len(decisions.ops):
            raise ProgramMismatchError("error: the program has other operations at other sizes")
        ops = tuple(self._op(decision, op) for decision, op in zip(decisions.ops, operations, strict=True))
        return BlockDecisions(decisions.arguments, ops, operations)

    def _op(self, decision: OpDecision, op: ir.Operation) -> OpDecision:
        if decision.layout is not None or not all(
            sharding is None or sharding.is_plain for sharding in (*decision.operands, *decision.results)
        ):
            raise ProgramMismatchError(f"error: '{op.name}' has a sharding with halo sizes or offsets, which fit one size alone")
        rule = None if decision.rule is None else self.interface.rule(op)
        if rule is not None and (len(rule.loops) != len(decision.option) or not is_legal(rule, decision.option, self.mesh)):
            raise ProgramMismatchError(f"error: '{op.name}' cannot be split in the same way at other sizes")
        return replace(decision, rule=rule, regions=self._regions(decision, op))

    def _regions(self, decision: OpDecision, op: ir.Operation) -> tuple[BlockDecisions, ...]:
        if not decision.regions:
            return ()
        regions = composite_body(op).regions if op.name == COMPOSITE else op.regions
        return tuple(self.block(block, region.blocks[0]) for block, region in zip(decision.regions, regions, strict=True))


def uneven_values(decisions: Decisions) -> frozenset[tuple[int, int]]:
    """The values in uneven shards: the number of the operation, in the order of the decisions, and that of the value."""
    uneven = set()
    for number, (values, shardings, mesh) in enumerate(_split_values(decisions)):
        for index, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
            if sharding is not None and isinstance(value.type, ir.RankedTensorType):
                shape = tuple(ir.RankedTensorType(value.type).shape)
                if not is_even(shape, mesh, sharding.padded(len(shape)).split_axes):
                    uneven.add((number, index))
    return frozenset(uneven)


def _split_values(decisions: Decisions) -> Iterator[tuple[Sequence[ir.Value], Shardings, Mesh]]:
    for function in decisions.functions:
        yield list(function.function.regions[0].blocks[0].arguments), function.from_caller, function.mesh
        yield from _of_block(function.block, function.mesh)


def _of_block(block: BlockDecisions, mesh: Mesh) -> Iterator[tuple[Sequence[ir.Value], Shardings, Mesh]]:
    for decision, op in zip(block.ops, block.operations, strict=True):
        for values, shardings in ((list(op.operands), decision.operands), (list(op.results), decision.results)):
            if len(shardings) == len(values):
                yield values, shardings, mesh
        for region in decision.regions:
            yield from _of_block(region, mesh)
