"""`largest-as-floats`: maxima and minima over devices that may lose a NaN, as what is computed with them is one anyway.

What is followed are rows: all that belongs to one element of the maximum. Of a row with a NaN, in a softmax,

    %x          has it somewhere along the reduced dimension, on some device
    %m          may have lost it
    exp(%x-%m)  has it where %x has it, and else may differ from what it should be: NaN
    its sum     is NaN on all devices, with %m or without
    a quotient  by that sum is NaN everywhere, as it should be

Nothing that may differ is left behind that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from meshbridge.dialect.ops import NAN_FOLLOWS, AllReduceOp, AllSliceOp, ReduceScatterOp
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.mlir import BARRIER, comparison_direction, find, ir
from meshbridge.ir.ordered import is_orderable
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import is_argument
from meshbridge.ops.einsum import DOT
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.read_along import BROADCAST, REDUCE, RESHAPE, TRANSPOSE, read_along, read_by
from meshbridge.ops.reductions import body_kind

_COMPARE, _SELECT = "stablehlo.compare", "stablehlo.select"
_NAN_OF_NAN = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "convert", "divide", "exponential", "exponential_minus_one", "log", "log_plus_one", "multiply", "negate"),
        "subtract",
    )
)
"""Elementwise operations that give NaN where an operand of floating point numbers is."""

_VIEWS = frozenset((BROADCAST, RESHAPE, TRANSPOSE))
_COLLECTIVES = frozenset((AllReduceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME, AllSliceOp.OPERATION_NAME))
_MOST = 64
"""How many operations are looked at for one maximum. Not measured: a bound on time; a softmax has ten."""


@register
@dataclass(frozen=True)
class LargestAsFloats(Pass):
    """Marks maxima and minima over devices of floating point numbers that may be those of XLA's collectives, which lose a NaN.

    Input:   %0 = stablehlo.reduce(%x init: -inf) applies stablehlo.maximum across dimensions = [1] : … -> tensor<4xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.exponential (%x - %1)
             %3 = mesh.all_reduce (the sum of %2 along dimension 1) on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %4 = stablehlo.divide %2, %3
    Output:  the same, %1 with the attribute `meshbridge.nan_follows`

    Any other maximum is one of integers in the order of the numbers (`ir/ordered.py`): two kernels more, before and behind it.
    Followed are element by element operations, views, sums, products and the collectives of their results, up to where no value
    is left that a lost NaN would change. Rows that devices pad keep their integers: what stands in the padding is not followed.
    """

    name: ClassVar[str] = "largest-as-floats"

    def run(self, module: ir.Module) -> bool:
        changed = False
        with module.context:
            blocks: dict[ir.Block, _OrderedBlock] = {}
            for op in find(module.operation, {AllReduceOp.OPERATION_NAME}):
                view = AllReduceOp(op)
                if view.reduction not in ("max", "min") or not is_orderable(ir.RankedTensorType(view.input.type).element_type):
                    continue
                if op.block not in blocks:
                    blocks[op.block] = _OrderedBlock(op.block)
                if _MaximumRows(view, blocks[op.block]).are_nan():
                    op.attributes[NAN_FOLLOWS] = ir.UnitAttr.get()
                    changed = True
        return changed


@dataclass(frozen=True)
class _Known:
    """What is known of a value in the rows where the maximum lost a NaN."""

    rows: tuple[int, ...]
    "The dimension along which it has each dimension of the maximum."
    pieces: tuple[tuple[int, Axes], ...] = ()
    "Of which of these, by number, a device has only its piece along these axes; the outer ones first."
    where: frozenset[int] | None = frozenset()
    "The dimensions along which a NaN stands somewhere; along all others it stands everywhere. None where there may be none."
    axes: frozenset[int] = frozenset()
    "The axes along which some device has it; along all others each."
    holds: bool | None = None
    "What it is, where it is what a comparison with NaN gives."
    differs: bool = False
    "Whether it may be something else than it would be had the NaN not been lost."

    @property
    def is_nan(self) -> bool:
        """Whether all of the row is NaN, on all devices."""
        return self.where == frozenset() and not self.axes

    def settled(self) -> _Known:
        """The same; what is NaN in any case does not differ."""
        return replace(self, differs=False) if self.is_nan else self


class _MaximumRows:
    """What becomes of the rows of one maximum, in the program's order."""

    def __init__(self, view: AllReduceOp, block: _OrderedBlock) -> None:
        self.view = view
        self.block = block
        self.place = block.places[view.operation]
        self.known: dict[ir.Value, _Known] = {}
        self.waiting: list[int] = []
        "The places of the operations that read what is known, a heap."
        self.concerned: set[int] = set()
        "Those of operations that read what may differ."

    def are_nan(self) -> bool:
        """Whether all is NaN, had it been lost or not, before anything reads it that it is not followed through."""
        for value, known in _sources(self.view):
            self._add(value, known)
        if not self._add(self.view.operation.results[0], _known_of_maximum(self.view)):
            return False
        for _ in range(_MOST):
            if not self.concerned:
                return True
            place = heappop(self.waiting)
            while self.waiting and self.waiting[0] == place:
                heappop(self.waiting)
            self.concerned.discard(place)
            if not self._follow(self.block.operations[place]):
                return False
        return False

    def _follow(self, op: ir.Operation) -> bool:
        """Whether nothing that `op` reads may differ, or its results are known."""
        given = [self.known.get(value) for value in op.operands]
        if op.name == BARRIER:
            found = given
        elif (result := _through(op, given, self.view)) is not None:
            found = [result]
        else:
            return not any(known and known.differs for known in given)
        return all(self._add(value, known.settled()) for value, known in zip(op.results, found, strict=True) if known)

    def _add(self, value: ir.Value, known: _Known) -> bool:
        """Notes what is known of `value`, and who reads it; False where that may differ and is read in another block."""
        self.known[value] = known
        for use in value.uses:
            place = self.block.places.get(use.owner.operation)
            if place is None and known.differs:
                return False
            if place is not None and place > self.place:
                heappush(self.waiting, place)
                if known.differs:
                    self.concerned.add(place)
        return True


class _OrderedBlock:
    """The operations of a block, and the place of each."""

    def __init__(self, block: ir.Block) -> None:
        self.operations = [view.operation for view in block.operations]
        self.places = {op: place for place, op in enumerate(self.operations)}


def _known_of_maximum(view: AllReduceOp) -> _Known:
    return _Known(_long_dims(view.input), where=None, differs=True)


def _long_dims(value: ir.Value) -> tuple[int, ...]:
    return tuple(dim for dim, size in enumerate(shape_of(value)) if size > 1)


def _sources(view: AllReduceOp) -> Iterator[tuple[ir.Value, _Known]]:
    """What the maximum is taken of, first on each device, then of all: of a row with a NaN, some device has it there."""
    rows, axes = _long_dims(view.input), frozenset(view.mesh_axes)
    yield view.input, _Known(rows, axes=axes)
    if is_argument(view.input):
        return
    op = op_of(view.input)
    if op.name == REDUCE and len(op.results) == 1 and body_kind(op) == view.reduction:
        along = [read_along(op, dim) for dim in rows]
        kept = tuple(each[0] for each in along if each is not None and each[0] is not None)
        yield op.operands[0], _Known(kept, where=frozenset(_long_dims(op.operands[0])) - set(kept), axes=axes)


def _through(op: ir.Operation, given: Sequence[_Known | None], view: AllReduceOp) -> _Known | None:
    """What is known of the result, by what is of each operand; None where `op` is none that rows are followed through."""
    if op.name in _COLLECTIVES:
        return given[0] and _collected(op, given[0], view)
    if len(op.results) != 1:
        return None
    moved = [_moved(op, number, known) for number, known in enumerate(given) if known]
    followed = [known for known in moved if known]
    if len(followed) < len(moved) or len({(known.rows, known.pieces) for known in followed}) != 1:
        return None
    if op.name == _COMPARE and any(known.is_nan for known in followed):
        return replace(followed[0], where=None, holds=comparison_direction(op) == "NE", differs=False)
    if op.name == _SELECT and (selected := _selected(op, given)):
        return selected
    certain = [known for known in followed if known.where is not None] if _gives_nan(op) else []
    best = min(certain, key=lambda known: not known.is_nan, default=replace(followed[0], where=None))
    return replace(best, holds=best.holds if op.name in _VIEWS else None, differs=any(known.differs for known in followed))


def _selected(op: ir.Operation, given: Sequence[_Known | None]) -> _Known | None:
    """What is known of a selection by a predicate that is known; else None."""
    predicate = given[0]
    if predicate is None or predicate.holds is None:
        return None
    number = 1 if predicate.holds else 2
    known = given[number]
    return (known and _moved(op, number, known)) or replace(predicate, where=None, holds=None, differs=False)


def _gives_nan(op: ir.Operation) -> bool:
    """Whether an element of the result is NaN where one is that it is computed of."""
    if op.name in _NAN_OF_NAN:
        return all(is_orderable(ir.RankedTensorType(value.type).element_type) for value in (*op.operands, *op.results))
    return op.name in _VIEWS or op.name == DOT or (op.name == REDUCE and body_kind(op) == "sum")


def _moved(op: ir.Operation, number: int, known: _Known) -> _Known | None:
    """What is known of the result by operand `number` alone; None where its rows are not those of the result."""
    if op.name == REDUCE:
        if number or not body_kind(op):
            return None
    elif not (op.name in ELEMENTWISE or op.name in _VIEWS or op.name == DOT):
        return None
    rows = [read_by(op, number, dim) for dim in known.rows]
    if None in rows:
        return None
    places = [read_by(op, number, dim) for dim in known.where or ()]
    # What a sum or product adds up has no place in the result any more; of what a view joins with others, none is known.
    lost = known.where is None or (op.name == RESHAPE and None in places)
    where = None if lost else frozenset(place for place in places if place is not None)
    return replace(known, rows=tuple(row for row in rows if row is not None), where=where)


def _collected(op: ir.Operation, known: _Known, view: AllReduceOp) -> _Known | None:
    """What is known of a sum over devices, of this device's piece of one, or of a value's; None where it joins rows."""
    sliced = op.name == AllSliceOp.OPERATION_NAME
    here = AllSliceOp(op) if sliced else ReduceScatterOp(op)
    if here.mesh != view.mesh:
        return None
    if not sliced:
        divided = {axis for _, axes in known.pieces for axis in axes}
        if not set(here.mesh_axes) <= set(view.mesh_axes) - divided:
            return None
        sums = here.reduction in ("sum", "average")
        known = replace(known, axes=known.axes - set(here.mesh_axes), where=known.where if sums else None)
    if op.name == AllReduceOp.OPERATION_NAME:
        return known
    dim = here.slice_axis if isinstance(here, AllSliceOp) else here.scatter_axis
    if dim in known.rows:
        return replace(known, pieces=(*known.pieces, (known.rows.index(dim), tuple(here.mesh_axes))))
    return replace(known, where=None if known.where is None or dim in known.where else known.where)
