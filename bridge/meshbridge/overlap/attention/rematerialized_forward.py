"""The forward pass of attention that a backward pass recomputes: copies of its operations, which may become a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import in_program_order, ir
from meshbridge.ir.sharding import Mesh
from meshbridge.overlap.attention.block_trace import BlockTrace
from meshbridge.overlap.attention.linear_reductions import LinearReduction, sources_of
from meshbridge.overlap.attention.online_softmax import OnlineSoftmax, maxima_over_keys, online_softmax


@dataclass(frozen=True)
class RematerializedForward:
    """Copies of the operations that sums over keys read, and their originals."""

    copies: Mapping[ir.Value, ir.Value]
    readers: tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]
    "The sums and maxima that read copies, with their original operands."

    @staticmethod
    def of(exponential: ir.Operation, keys: int, sums: Sequence[LinearReduction]) -> RematerializedForward:
        """Makes the `sums`, and the maxima over keys before them, read copies of all operations that are computed key by key."""
        trace = BlockTrace(exponential.block, frozenset())
        trace.trace(exponential.results[0], keys)
        maxima = [op for op, _ in maxima_over_keys(trace)]
        for value, dim in sources_of(sums):
            trace.trace(value, dim)
        copies: dict[ir.Value, ir.Value] = {}
        for op in in_program_order({op for op, _ in trace.moving}):
            copy = op.clone(ip=ir.InsertionPoint(op))
            _read(copy.operation, [copies.get(value, value) for value in op.operands])
            copies[op.results[0]] = copy.operation.results[0]
        readers = []
        for op in (*maxima, *(reduction.op for reduction in sums)):
            operands = tuple(op.operands)
            _read(op, [copies.get(value, value) for value in operands])
            readers.append((op, operands))
        return RematerializedForward(copies, tuple(readers))

    def softmax(self, exponential: ir.Operation, keys: int, mesh: Mesh) -> OnlineSoftmax | None:
        """The copies as a softmax that can be a ring, if possible."""
        return online_softmax(op_of(self.copies[exponential.results[0]]), keys, {mesh.name: mesh}, max(mesh.shape))

    def undo(self) -> None:
        """Erases the copies."""
        for op, before in self.readers:
            _read(op, before)
        for copy in reversed([*self.copies.values()]):
            op_of(copy).erase()


def _read(op: ir.Operation, operands: Sequence[ir.Value]) -> None:
    for number, value in enumerate(operands):
        op.operands[number] = value
