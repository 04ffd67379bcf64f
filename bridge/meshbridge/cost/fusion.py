"""Which values of a block have no buffer because their readers fuse their computation, and how many bytes operations move.

This estimates XLA's fusion without running XLA. Readers fuse broadcasts, iotas, constants and views. They fuse other elementwise
or rearranging operations if they are such themselves: a single reader does, and several do if the value is cheap and its operands
have hardly more bytes. Reductions of rows are fused as `row_kernels` says.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

from meshbridge.cost.row_kernels import RowKernels, row_kernels
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.block_index import BlockIndex, BlockOp
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.mlir import BARRIER, REGION_OPS, ir
from meshbridge.ir.uses import is_argument, unchanged_numbers
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

_SLICES = _WITHIN | {AllSliceOp.OPERATION_NAME}
"""Ops that take a part of their first operand, which products may read in place."""

_TURNING = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Ops that a product performs while writing its result."""

_UPDATING = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": -1}
"""Ops that update their first operand in place, with the number of the operand that gives the written size."""

_PARTLY = ops_with(Trait.SLICING) | _UPDATING.keys()
"""Ops that read at most a part of their first operand."""


Buffers = Mapping[int, float]
"""The buffers that are read, by the numbers of values, and the bytes read of each."""

SourceBuffers = ChainMap[int, Buffers]
"""For values without a buffer, the buffers that are read to compute them, in a block and its enclosing blocks."""


class Fusion:
    """The operations of one block, divided into those that fill buffers and those that readers fuse."""

    def __init__(
        self,
        index: BlockIndex,
        outside: SourceBuffers | None = None,
        *,
        repeats: bool = False,
        slices: bool = False,
        epilogues: bool = False,
        operands: bool = False,
        row_elements: int = 0,
    ) -> None:
        """`outside` has the buffers of outer values. Options of the compiler: with `repeats` several readers fuse even expensive
        ops; with `slices` products read slices in place; with `epilogues` products write the results of elementwise operations on
        theirs; with `operands` products fuse their operands. Kernels reduce rows of up to `row_elements` that they write."""
        self.index = index
        self._values = index.values
        self._tensor_bytes = index.values.tensor_bytes
        self._repeats = repeats
        self._reading = _READING | _CONTRACTIONS if operands else _READING
        self._reading_slices = _READING | _CONTRACTIONS if slices else self._reading
        self.sources: dict[int, Sequence[int]] = {}
        "For values without a buffer, the operands that they are computed from."
        self._outside: SourceBuffers = ChainMap() if outside is None else outside
        self._buffers: dict[int, Buffers] = {}
        "The buffers of this block's values."
        self._own: dict[int, Buffers] = {}
        "The buffers of other values that were asked for: mostly their own."
        products = (block_op.results[0] for block_op in index.operations if epilogues and block_op.name in _CONTRACTIONS)
        self._epilogues = dict(map(self._epilogue, products))
        "For results of products, the values that are written instead."
        self._ends = set(self._epilogues.values()) - self._epilogues.keys()
        self._expensive: set[int] = set()
        "Expensive values without a buffer."
        self._rows = row_kernels(index, row_elements, self._readers_through_views) if row_elements else RowKernels()
        self._of_reduced_rows: set[int] = set()
        "Values without a buffer that need whole rows: reductions of rows, and what is computed of them."
        for block_op in index.operations:
            self._compute_on_the_way(block_op)

    def _compute_on_the_way(self, block_op: BlockOp) -> None:
        """Records the results of an operation that have no buffer."""
        op, name, operands, results, _ = block_op
        if name == "stablehlo.while":
            for number in unchanged_numbers(op):
                self._alias(results[number], operands[number])
        elif name == BARRIER:
            for result, operand in zip(results, operands, strict=True):
                self.sources[result] = [operand]
                buffers = self._known(operand)
                if buffers is not None:  # if not, readers wait for the barrier, which passes the buffer on
                    self._buffers[result] = buffers
        elif name in _CONTRACTIONS:
            if self._passes_on(results[0]):
                self._buffers[results[0]] = {results[0]: 0.0}
        elif name in NO_KERNELS:
            if name == "stablehlo.multiply" and (product := self._scaled(block_op)) is not None:
                self._alias(results[0], product)
                return
            read = self.read(block_op)
            takes_long = has(name, Trait.EXPENSIVE) and bool(
                shape_of(self._values.all[results[0]])
            )  # computing a scalar takes no longer than reading it
            is_expensive = takes_long or not self._expensive.isdisjoint(operands)
            needs_rows = not self._of_reduced_rows.isdisjoint(operands)
            for result in results:
                if needs_rows and name in _FUSIBLE and self._rows.is_written(result):
                    continue
                if name not in _FUSIBLE or self._is_fused(result, name, read, is_expensive=is_expensive):
                    self.sources[result] = operands
                    self._buffers[result] = read
                    if is_expensive:
                        self._expensive.add(result)
                    if needs_rows:
                        self._of_reduced_rows.add(result)
        elif results and results[0] in self._rows.reductions:
            self.sources[results[0]] = operands
            self._buffers[results[0]] = self.read(block_op)
            self._of_reduced_rows.add(results[0])

    def _epilogue(self, product: int) -> tuple[int, int]:
        """The result of a product, and the last value of the chain of fusible operations that follows it, each the only reader of
        the one before."""
        value = end = product
        while len(readers := self.index.readers_of(value)) == 1:
            reader = self.index.operations[readers[0]]
            if reader.name not in _FUSIBLE and reader.name not in _VIEWS:
                break
            value = reader.results[0]
            end = value if reader.name in _FUSIBLE else end
        return product, end

    def _passes_on(self, product: int) -> bool:
        """True if the result of a product has no buffer because its epilogue is written instead."""
        return self._epilogues.get(product, product) != product

    def _scaled(self, block_op: BlockOp) -> int | None:
        """The operand of a multiplication if it scales a product, perhaps transposed, by a constant, and nothing else reads the
        product: it is scaled before it is written."""
        if self._epilogues:
            return None
        for value, factor in (block_op.operands, block_op.operands[::-1]):
            if self._is_product(value) and _is_splat(self._values.all[factor]):
                return value
        return None

    def _is_product(self, value: int) -> bool:
        while len(self.index.readers_of(value)) == 1:
            block_op = self.index.maker(value)
            if block_op is None:
                if is_argument(self._values.all[value]):
                    return False
                block_op = BlockOp.of(op_of(self._values.all[value]), self._values)
            if block_op.name in _CONTRACTIONS:
                return True
            if block_op.name not in _TURNING:
                return False
            value = block_op.operands[0]
        return False

    def _alias(self, value: int, source: int) -> None:
        """Records that `value` is in the buffer of `source`."""
        self.sources[value] = [source]
        self._buffers[value] = self._buffers_of(source)

    def _is_fused(self, value: int, name: str, read: Buffers, *, is_expensive: bool) -> bool:
        """True if each reader fuses the computation of `value` by the operation `name`, which reads the buffers `read`."""
        if value in self._ends:
            return False
        if self._rows.is_part(value) and len(read) <= _OPERANDS:
            return True
        operations = self.index.operations
        # A slice behind a reshape counts as read in place, by collectives too: the copy that some compilers make is not priced.
        readers = self.index.readers_of(value) if name in _WITHIN else self._readers_through_views(value)
        reading = self._reading_slices if name in _SLICES else self._reading
        if not readers or len(read) > _OPERANDS:
            return False
        for reader in readers:
            if operations[reader].name not in reading:
                return False
        if len(readers) == 1:
            return True
        return (self._repeats or not is_expensive) and sum(read.values()) <= _ENOUGH * self._tensor_bytes(value)

    def _readers_through_views(self, value: int) -> Sequence[int]:
        """The numbers of the operations that read a value or a view of it. A view is no kernel that could compute the value."""
        readers, operations = self.index.readers_of(value), self.index.operations
        for reader in readers:
            if operations[reader].name in _VIEWS:
                break
        else:
            return readers
        through: dict[int, None] = {}
        for reader in readers:
            of_view = (
                self._readers_through_views(operations[reader].results[0]) if operations[reader].name in _VIEWS else [reader]
            )
            through.update(dict.fromkeys(of_view))
        return tuple(through)

    def read(self, block_op: BlockOp) -> Buffers:
        """The buffers that an operation and its fused operands read."""
        if not block_op.read:
            return {}
        first, *others = block_op.read
        buffers = self._buffers_of(first)
        if block_op.name in _PARTLY and (share := self._share(block_op)) != 1.0:
            buffers = {buffer: share * size for buffer, size in buffers.items()}
        if not others:
            return buffers
        merged = dict(buffers)
        for value in others:
            for buffer, size in self._buffers_of(value).items():
                if size > merged.setdefault(buffer, size):
                    merged[buffer] = size
        return merged

    def inside(self, op: ir.Operation) -> SourceBuffers:
        """The buffers of outer values, for the regions of `op` (see `__init__`)."""
        number_of = self._values
        arguments: dict[int, Buffers] = {}
        if op.name == "stablehlo.while":
            carried = op.regions[1].blocks[0].arguments
            unchanged = [(carried[number], op.operands[number]) for number in unchanged_numbers(op)]
            arguments = {number_of[argument]: self._buffers_of(number_of[value]) for argument, value in unchanged}
        return ChainMap(arguments, self._buffers, *self._outside.maps)

    def _buffers_of(self, value: int) -> Buffers:
        buffers = self._buffers.get(value) or self._own.get(value)
        if buffers is None:
            buffers = self._known(value)
            self._own[value] = buffers = {value: self._tensor_bytes(value)} if buffers is None else buffers
        return buffers

    def _known(self, value: int) -> Buffers | None:
        own = self._buffers.get(value)
        return self._outside.get(value) if own is None and value not in self.index.makers else own

    def written(self, block_op: BlockOp) -> float:
        """Bytes that an operation writes: results with buffers, or the part that it updates in place."""
        if block_op.name in _UPDATING:
            return self._tensor_bytes(block_op.operands[_UPDATING[block_op.name]])
        if block_op.name in REGION_OPS:
            return 0.0
        buffered = (result for result in block_op.results if result not in self.sources and not self._passes_on(result))
        return sum(map(self._tensor_bytes, buffered))

    def _share(self, block_op: BlockOp) -> float:
        """The share of its first operand that one of _PARTLY reads."""
        if block_op.name in _UPDATING:
            return 0.0
        return min(1.0, self._tensor_bytes(block_op.results[0]) / max(self._tensor_bytes(block_op.operands[0]), 1.0))


def _is_splat(value: ir.Value) -> bool:
    """True if all elements are one constant."""
    if is_argument(value):
        return False
    op = op_of(value)
    if op.name == "stablehlo.broadcast_in_dim":
        return _is_splat(op.operands[0])
    return op.name == "stablehlo.constant" and ir.DenseElementsAttr(op.attributes["value"]).is_splat
