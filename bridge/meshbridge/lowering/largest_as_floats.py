"""`largest-as-floats`: finds maxima and minima over devices that may lose a NaN, because later values are NaN anyway.

A dataflow analysis follows rows: all elements that belong to one element of the maximum. A row with a NaN, in a softmax:

    %x          has the NaN somewhere along the reduced dimension, on some device
    %m          may have lost it
    exp(%x-%m)  has it where %x has it; other elements may differ from the right value, NaN
    its sum     is NaN on all devices, with %m or without
    a quotient  by that sum is NaN everywhere, which is right

No value after the quotient differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from meshbridge.dialect.ops import NAN_FOLLOWS, AllReduceOp, AllSliceOp, ReduceScatterOp
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.float_keys import is_orderable
from meshbridge.ir.mlir import BARRIER, comparison_direction, find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import LOOK_THROUGH, is_argument
from meshbridge.ops.dimensions import REDUCE, RESHAPE, operand_dims, result_dim
from meshbridge.ops.einsum import DOT
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.traits import Trait, has, ops_with

_COMPARE, _SELECT = "stablehlo.compare", "stablehlo.select"
_VIEWS = ops_with(Trait.SHAPING)
_COLLECTIVES = (ops_with(Trait.REDUCING) & ops_with(Trait.GROUPED, dialect="mesh")) | {AllSliceOp.OPERATION_NAME}


@register
@dataclass(frozen=True)
class LargestAsFloats(Pass):
    """Marks floating-point maxima and minima over devices that may use XLA's collectives, which lose a NaN.

    Input:   %0 = stablehlo.reduce(%x init: -inf) applies stablehlo.maximum across dimensions = [1] : … -> tensor<4xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.exponential (%x - %1)
             %3 = mesh.all_reduce (the sum of %2 along dimension 1) on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %4 = stablehlo.divide %2, %3
    Output:  the same, %1 with the attribute `meshbridge.nan_follows`

    Any other maximum is computed on integers in the order of the numbers (`ir/float_keys.py`), which costs two more kernels. The
    pass follows elementwise operations, views, sums, products and collectives until no value remains that a lost NaN would
    change. It does not follow padding, so rows that devices pad keep their integers.
    """

    name: ClassVar[str] = "largest-as-floats"

    def run(self, module: ir.Module) -> bool:
        changed = False
        with module.context:
            blocks: dict[ir.Block, _OpPositions] = {}
            for op in find(module.operation, {AllReduceOp.OPERATION_NAME}):
                view = AllReduceOp(op)
                if view.reduction not in ("max", "min") or not is_orderable(ir.RankedTensorType(view.input.type).element_type):
                    continue
                if op.block not in blocks:
                    blocks[op.block] = _OpPositions(op.block)
                if _MaximumRows(view, blocks[op.block]).are_nan():
                    op.attributes[NAN_FOLLOWS] = ir.UnitAttr.get()
                    changed = True
        return changed


@dataclass(frozen=True)
class _NanFacts:
    """Facts about a value in the rows where the maximum lost a NaN."""

    rows: tuple[int, ...]
    "For each dimension of the maximum, the dimension of the value that it is."
    pieces: tuple[tuple[int, Axes], ...] = ()
    "The entries of `rows`, by number, of which a device has only its piece along these axes; outer ones first."
    where: frozenset[int] | None = frozenset()
    "The dimensions along which some element is NaN; along all others every element is. None if there may be no NaN."
    axes: frozenset[int] = frozenset()
    "The axes along which some device has the NaN; along all others every device has it."
    holds: bool | None = None
    "The value of a comparison with NaN; None for other values."
    differs: bool = False
    "True if losing the NaN may have changed the value."

    @property
    def is_nan(self) -> bool:
        """True if the whole row is NaN on all devices."""
        return self.where == frozenset() and not self.axes

    def without_certain(self) -> _NanFacts:
        """The same facts; a value that is NaN in any case does not differ."""
        return replace(self, differs=False) if self.is_nan else self


class _MaximumRows:
    """Follows the rows of one maximum in program order."""

    def __init__(self, view: AllReduceOp, block: _OpPositions) -> None:
        self.view = view
        self.block = block
        self.position = block.positions[view.operation]
        self.facts: dict[ir.Value, _NanFacts] = {}
        self.worklist: list[int] = []
        "A heap of the positions of operations that read a value with facts."
        self.differing: set[int] = set()
        "The positions of operations that read a value that may differ."

    def are_nan(self) -> bool:
        """True if every value that may differ is followed to one that is NaN in any case."""
        for value, facts in _sources(self.view):
            self._add(value, facts)
        if not self._add(self.view.operation.results[0], _facts_of_maximum(self.view)):
            return False
        for _ in range(LOOK_THROUGH):
            if not self.differing:
                return True
            position = heappop(self.worklist)
            while self.worklist and self.worklist[0] == position:
                heappop(self.worklist)
            self.differing.discard(position)
            if not self._follow(self.block.operations[position]):
                return False
        return False

    def _follow(self, op: ir.Operation) -> bool:
        """Adds the facts of the results of `op`; False if it reads a value that may differ and has no facts itself."""
        operand_facts = [self.facts.get(value) for value in op.operands]
        if op.name == BARRIER:
            result_facts = operand_facts
        elif (result := _transfer(op, operand_facts, self.view)) is not None:
            result_facts = [result]
        else:
            return not any(facts and facts.differs for facts in operand_facts)
        return all(
            self._add(value, facts.without_certain()) for value, facts in zip(op.results, result_facts, strict=True) if facts
        )

    def _add(self, value: ir.Value, facts: _NanFacts) -> bool:
        """Records facts about `value`, and its readers; False if it may differ and is read in another block."""
        self.facts[value] = facts
        for use in value.uses:
            position = self.block.positions.get(use.owner.operation)
            if position is None and facts.differs:
                return False
            if position is not None and position > self.position:
                heappush(self.worklist, position)
                if facts.differs:
                    self.differing.add(position)
        return True


class _OpPositions:
    """The operations of a block, and the position of each."""

    def __init__(self, block: ir.Block) -> None:
        self.operations = [view.operation for view in block.operations]
        self.positions = {op: position for position, op in enumerate(self.operations)}


def _facts_of_maximum(view: AllReduceOp) -> _NanFacts:
    return _NanFacts(_long_dims(view.input), where=None, differs=True)


def _long_dims(value: ir.Value) -> tuple[int, ...]:
    return tuple(dim for dim, size in enumerate(shape_of(value)) if size > 1)


def _sources(view: AllReduceOp) -> Iterator[tuple[ir.Value, _NanFacts]]:
    """The operands of the maximum over devices and of the local one before it: some device has the NaN of a row there."""
    rows, axes = _long_dims(view.input), frozenset(view.mesh_axes)
    yield view.input, _NanFacts(rows, axes=axes)
    if is_argument(view.input):
        return
    op = op_of(view.input)
    if op.name == REDUCE and len(op.results) == 1 and body_kind(op) == view.reduction:
        along = [operand_dims(op, dim) for dim in rows]
        source_rows = tuple(dims[0] for dims in along if dims is not None and dims[0] is not None)
        yield op.operands[0], _NanFacts(source_rows, where=frozenset(_long_dims(op.operands[0])) - set(source_rows), axes=axes)


def _transfer(op: ir.Operation, operand_facts: Sequence[_NanFacts | None], view: AllReduceOp) -> _NanFacts | None:
    """The facts of the result, from those of each operand; None if rows cannot be followed through `op`."""
    if op.name in _COLLECTIVES:
        return operand_facts[0] and _transfer_collective(op, operand_facts[0], view)
    if len(op.results) != 1:
        return None
    transferred = [_transfer_operand(op, number, facts) for number, facts in enumerate(operand_facts) if facts]
    followed = [facts for facts in transferred if facts]
    if len(followed) < len(transferred) or len({(facts.rows, facts.pieces) for facts in followed}) != 1:
        return None
    if op.name == _COMPARE and any(facts.is_nan for facts in followed):
        return replace(followed[0], where=None, holds=comparison_direction(op) == "NE", differs=False)
    if op.name == _SELECT and (selected := _transfer_select(op, operand_facts)):
        return selected
    certain = [facts for facts in followed if facts.where is not None] if _gives_nan(op) else []
    best = min(certain, key=lambda facts: not facts.is_nan, default=replace(followed[0], where=None))
    return replace(best, holds=best.holds if op.name in _VIEWS else None, differs=any(facts.differs for facts in followed))


def _transfer_select(op: ir.Operation, operand_facts: Sequence[_NanFacts | None]) -> _NanFacts | None:
    """The facts of a selection whose predicate is known, else None."""
    predicate = operand_facts[0]
    if predicate is None or predicate.holds is None:
        return None
    number = 1 if predicate.holds else 2
    facts = operand_facts[number]
    return (facts and _transfer_operand(op, number, facts)) or replace(predicate, where=None, holds=None, differs=False)


def _gives_nan(op: ir.Operation) -> bool:
    """True if an element of the result is NaN whenever one of its inputs is."""
    if has(op.name, Trait.ELEMENTWISE) and has(op.name, Trait.NAN_PROPAGATING):
        return all(is_orderable(ir.RankedTensorType(value.type).element_type) for value in (*op.operands, *op.results))
    return op.name in _VIEWS or op.name == DOT or (op.name == REDUCE and body_kind(op) == "sum")


def _transfer_operand(op: ir.Operation, number: int, facts: _NanFacts) -> _NanFacts | None:
    """The facts of the result from operand `number` alone; None if the operand's rows are not those of the result."""
    if op.name == REDUCE:
        if number or not body_kind(op):
            return None
    elif not (op.name in ELEMENTWISE or op.name in _VIEWS or op.name == DOT):
        return None
    rows = [result_dim(op, number, dim) for dim in facts.rows]
    if None in rows:
        return None
    dims = [result_dim(op, number, dim) for dim in facts.where or ()]
    # A sum or product drops the dimensions that it reduces; a reshape that merges a dimension loses its facts.
    lost = facts.where is None or (op.name == RESHAPE and None in dims)
    where = None if lost else frozenset(dim for dim in dims if dim is not None)
    return replace(facts, rows=tuple(row for row in rows if row is not None), where=where)


def _transfer_collective(op: ir.Operation, facts: _NanFacts, view: AllReduceOp) -> _NanFacts | None:
    """The facts of an all-reduce, a reduce-scatter or an all-slice; None if it combines rows."""
    sliced = op.name == AllSliceOp.OPERATION_NAME
    collective = AllSliceOp(op) if sliced else ReduceScatterOp(op)
    if collective.mesh != view.mesh:
        return None
    if not sliced:
        divided = {axis for _, axes in facts.pieces for axis in axes}
        if not set(collective.mesh_axes) <= set(view.mesh_axes) - divided:
            return None
        sums = collective.reduction in ("sum", "average")
        facts = replace(facts, axes=facts.axes - set(collective.mesh_axes), where=facts.where if sums else None)
    if op.name == AllReduceOp.OPERATION_NAME:
        return facts
    dim = collective.slice_axis if isinstance(collective, AllSliceOp) else collective.scatter_axis
    if dim in facts.rows:
        return replace(facts, pieces=(*facts.pieces, (facts.rows.index(dim), tuple(collective.mesh_axes))))
    return replace(facts, where=None if facts.where is None or dim in facts.where else facts.where)
