"""Value numbering for one block: finds what `jax.checkpoint` recomputes after an `optimization_barrier`."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter

from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.mlir import BARRIER, ir
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.traits import Trait, ops_with

_REPEATABLE = ops_with(Trait.PURE, Trait.COLLECTIVE) | {AllSliceOp.OPERATION_NAME}
"""Operations that compute the same from the same operands."""


@dataclass
class ValueNumbering:
    """Numbers the values of a block: equal numbers mean equal values."""

    home: ir.Block
    _numbers: dict[ir.Value, int] = field(default_factory=dict)
    _known: dict[object, int] = field(default_factory=dict)
    _first: dict[int, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for view in self.home.operations:
            self._count(view.operation)

    def number(self, value: ir.Value) -> int:
        """The number of a value, which may be defined outside of the block."""
        if value not in self._numbers:
            self._numbers[value] = len(self._numbers)
            self._first[self._numbers[value]] = value
        return self._numbers[value]

    def first(self, value: ir.Value) -> ir.Value:
        """The first value that equals `value`, perhaps itself."""
        return self._first[self.number(value)]

    def _count(self, op: ir.Operation) -> None:
        if op.name == BARRIER:
            self._numbers |= {result: self.number(operand) for result, operand in zip(op.results, op.operands, strict=True)}
            return
        if op.name not in _REPEATABLE or len(op.results) != 1:
            return
        kind = body_kind(op) if len(op.regions) else op.name
        if not kind:
            return
        (result,) = op.results
        attributes = tuple(sorted(op.attributes.items(), key=itemgetter(0)))
        key = (op.name, kind, result.type, attributes, tuple(map(self.number, op.operands)))
        if key in self._known:
            self._numbers[result] = self._known[key]
        else:
            self._known[key] = self.number(result)
