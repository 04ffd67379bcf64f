"""Which values of a block have no buffer because their readers fuse their computation, and how many bytes operations move.

This estimates XLA's fusion without running XLA. Readers fuse broadcasts, iotas, constants and views. They fuse other elementwise
or rearranging operations if they are such themselves: a single reader does, and several do if the value is cheap and its operands
have hardly more bytes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, ir, walk
from meshbridge.ir.uses import is_argument
from meshbridge.ops.traits import Trait, has, ops_with

_CONTRACTIONS = ops_with(Trait.CONTRACTION)
_FUSIBLE = ops_with(Trait.FUSIBLE)
_VIEWS = ops_with(Trait.ALIASING) - {BARRIER}

NO_KERNELS = ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""Ops that other ops' kernels compute."""

_READING = (NO_KERNELS | {"stablehlo.reduce", "stablehlo.dynamic_update_slice"}) - {BARRIER}
"""Ops that can fuse their operands."""

_ENOUGH = 1.1
"""Several readers fuse a value if its operands have at most this multiple of its bytes: a normalized tensor is computed from one
of its size and a few vectors."""

_OPERANDS = 64
"""The maximum number of buffers that a fusion reads."""

_WITHIN = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
"""Ops whose result is a contiguous part of their first operand."""

_TURNING = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Ops that a product performs while writing its result."""

_UPDATING = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": -1}
"""Ops that update their first operand in place, with the number of the operand that gives the written size."""

_PARTLY = ops_with(Trait.SLICING) | _UPDATING.keys()
"""Ops that read at most a part of their first operand."""


Buffers = Mapping[ir.Value, float]
"""The buffers that are read, by value, and the bytes read of each."""

SourceBuffers = ChainMap[ir.Value, Buffers]
"""For values without a buffer, the buffers that are read to compute them, in a block and its enclosing blocks."""


class Fusion:
    """The operations of one block, divided into those that fill buffers and those that readers fuse."""

    def __init__(
        self,
        operations: Sequence[ir.Operation],
        outside: SourceBuffers | None = None,
        *,
        repeats: bool = False,
        slices: bool = False,
        epilogues: bool = False,
        operands: bool = False,
    ) -> None:
        """`outside` has the buffers of outer values. Options of the compiler: with `repeats` several readers fuse even expensive
        ops; with `slices` products read slices in place; with `epilogues` products write the results of elementwise operations on
        theirs; with `operands` products fuse their operands."""
        self._repeats = repeats
        self._reading = _READING | _CONTRACTIONS if operands else _READING
        self._reading_slices = _READING | _CONTRACTIONS if slices else self._reading
        self._readers: dict[ir.Value, dict[ir.Operation, None]] = {}
        for op in operations:
            for value in values_read_by(op):
                self._readers.setdefault(value, {})[op] = None
        self.sources: dict[ir.Value, Sequence[ir.Value]] = {}
        "For values without a buffer, the operands that they are computed from."
        self._outside: SourceBuffers = ChainMap() if outside is None else outside
        self._buffers: dict[ir.Value, Buffers] = {}
        "The buffers of this block's values."
        self._epilogues = dict(self._epilogue(op.results[0]) for op in operations if epilogues and op.name in _CONTRACTIONS)
        "For results of products, the values that are written instead."
        self._ends = set(self._epilogues.values()) - self._epilogues.keys()
        self._expensive: set[ir.Value] = set()
        "Expensive values without a buffer."
        for op in operations:
            self._compute_on_the_way(op)

    def _compute_on_the_way(self, op: ir.Operation) -> None:
        """Records the results of `op` that have no buffer."""
        if op.name == "stablehlo.while":
            for number, _ in invariant_arguments(op):
                self._alias(op.results[number], op.operands[number])
        elif op.name == BARRIER:
            for result, operand in zip(op.results, op.operands, strict=True):
                self.sources[result] = [operand]
                if (
                    buffers := self._known(operand)
                ) is not None:  # if not, readers wait for the barrier, which passes the buffer on
                    self._buffers[result] = buffers
        elif op.name in _CONTRACTIONS and self._passes_on(op.results[0]):
            self._buffers[op.results[0]] = {op.results[0]: 0.0}
        elif (product := self._scaled(op)) is not None:
            self._alias(op.results[0], product)
        elif op.name in NO_KERNELS:
            read = self.read(op)
            takes_long = has(op.name, Trait.EXPENSIVE) and bool(
                shape_of(op.results[0])
            )  # computing a scalar takes no longer than reading it
            is_expensive = takes_long or any(operand in self._expensive for operand in op.operands)
            for result in op.results:
                if op.name not in _FUSIBLE or self._is_fused(result, op.name, read, is_expensive=is_expensive):
                    self.sources[result] = list(op.operands)
                    self._buffers[result] = read
                    if is_expensive:
                        self._expensive.add(result)

    def _epilogue(self, product: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The result of a product, and the last value of the chain of fusible operations that follows it, each the only reader of
        the one before."""
        value = end = product
        while len(readers := self._readers.get(value, {})) == 1:
            (reader,) = readers
            if reader.name not in _FUSIBLE and reader.name not in _VIEWS:
                break
            value = reader.results[0]
            end = value if reader.name in _FUSIBLE else end
        return product, end

    def _passes_on(self, product: ir.Value) -> bool:
        """True if the result of a product has no buffer because its epilogue is written instead."""
        return self._epilogues.get(product, product) != product

    def _scaled(self, op: ir.Operation) -> ir.Value | None:
        """The operand of `op` if it scales a product, perhaps transposed, by a constant, and nothing else reads the product: it
        is scaled before it is written."""
        if op.name != "stablehlo.multiply" or self._epilogues:
            return None
        for value, factor in (tuple(op.operands), tuple(op.operands)[::-1]):
            if _is_splat(factor) and self._is_product(value):
                return value
        return None

    def _is_product(self, value: ir.Value) -> bool:
        while len(self._readers.get(value, {})) == 1 and not is_argument(value):
            op = op_of(value)
            if op.name in _CONTRACTIONS:
                return True
            if op.name not in _TURNING:
                return False
            value = op.operands[0]
        return False

    def _alias(self, value: ir.Value, source: ir.Value) -> None:
        """Records that `value` is in the buffer of `source`."""
        self.sources[value] = [source]
        self._buffers[value] = self._buffers_of(source)

    def _is_fused(self, value: ir.Value, name: str, read: Buffers, *, is_expensive: bool) -> bool:
        """True if each reader fuses the computation of `value` by the operation `name`, which reads the buffers `read`."""
        if value in self._ends:
            return False
        readers = self._readers.get(value, {})
        reading = self._reading_slices if name in _WITHIN else self._reading
        if not readers or len(read) > _OPERANDS or any(reader.name not in reading for reader in readers):
            return False
        return len(readers) == 1 or ((self._repeats or not is_expensive) and sum(read.values()) <= _ENOUGH * tensor_bytes(value))

    def read(self, op: ir.Operation) -> dict[ir.Value, float]:
        """The buffers that `op` and its fused operands read."""
        buffers: dict[ir.Value, float] = {}
        for number, value in enumerate(values_read_by(op)):
            share = _share(op, number)
            for buffer, size in self._buffers_of(value).items():
                buffers[buffer] = max(buffers.get(buffer, 0.0), share * size)
        return buffers

    def inside(self, op: ir.Operation) -> SourceBuffers:
        """The buffers of outer values, for the regions of `op` (see `__init__`)."""
        carried = invariant_arguments(op) if op.name == "stablehlo.while" else ()
        arguments = {argument: self._buffers_of(op.operands[number]) for number, argument in carried}
        return ChainMap(arguments, self._buffers, *self._outside.maps)

    def _buffers_of(self, value: ir.Value) -> Buffers:
        buffers = self._known(value)
        return {value: tensor_bytes(value)} if buffers is None else buffers

    def _known(self, value: ir.Value) -> Buffers | None:
        own = self._buffers.get(value)
        return self._outside.get(value) if own is None else own

    def written(self, op: ir.Operation) -> float:
        """Bytes that `op` writes: results with buffers, or the part that it updates in place."""
        if op.name in _UPDATING:
            return tensor_bytes(op.operands[_UPDATING[op.name]])
        if op.name in REGION_OPS:
            return 0.0
        buffered = (result for result in op.results if result not in self.sources and not self._passes_on(result))
        return sum(tensor_bytes(result) for result in buffered)


def invariant_arguments(op: ir.Operation) -> Iterator[tuple[int, ir.Value]]:
    """Loop-carried values that never change: their numbers and the arguments of the body."""
    body = op.regions[1].blocks[0]
    yielded = body.operations[len(body.operations) - 1].operation.operands
    for number, (argument, value) in enumerate(zip(body.arguments, yielded, strict=True)):
        if argument == value:
            yield number, argument


def _is_splat(value: ir.Value) -> bool:
    """True if all elements are one constant."""
    if is_argument(value):
        return False
    op = op_of(value)
    if op.name == "stablehlo.broadcast_in_dim":
        return _is_splat(op.operands[0])
    return op.name == "stablehlo.constant" and ir.DenseElementsAttr(op.attributes["value"]).is_splat


def _share(op: ir.Operation, number: int) -> float:
    """The share of its operand of that number that `op` reads."""
    if number or op.name not in _PARTLY:
        return 1.0
    return 0.0 if op.name in _UPDATING else min(1.0, tensor_bytes(op.results[0]) / max(tensor_bytes(op.operands[0]), 1.0))


def values_read_by(op: ir.Operation) -> Iterable[ir.Value]:
    """The operands of `op` and of all operations in its regions."""
    if not len(op.regions):
        return op.operands
    return [value for inner in walk(op) for value in inner.operands]
