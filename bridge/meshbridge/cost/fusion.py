"""Which values of a block no buffer holds, because their readers compute them on the way, and how many bytes operations move.

The estimate is of what XLA fuses, without asking it. Readers compute broadcasts, iotas, constants and views on the way,
and a value of elementwise or rearranging operations if they do the like: one reader, or several where the value is cheap to
compute, and what it is computed from takes hardly more bytes to read.
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
"""What kernels of other ops compute on the way."""

_READING = (NO_KERNELS | {"stablehlo.reduce", "stablehlo.dynamic_update_slice"}) - {BARRIER}
"""Can compute their operands on the way."""

_ENOUGH = 1.1
"""How many times the bytes of a value several readers read to compute it for themselves: a normalised tensor is computed from
one of its size and a few vectors."""

_OPERANDS = 64
"""More buffers no fusion reads."""

_WITHIN = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
"""Are a part of their first operand, where it stands."""

_TURNING = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Products are written so, instead of turned."""

_UPDATING = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": -1}
"""Write into their first operand, by the number of the operand that says how much."""

_PARTLY = ops_with(Trait.SLICING) | _UPDATING.keys()
"""Read a part of their first operand, or none of it."""


Buffers = Mapping[ir.Value, float]
"""What is read, by the value that a buffer holds, and how many bytes of it."""

Known = ChainMap[ir.Value, Buffers]
"""For values without a buffer, what is read to compute them: in a block, and in each of those around it."""


class Fusion:
    """The operations of one block, those that fill buffers and those that only their readers compute."""

    def __init__(
        self,
        operations: Sequence[ir.Operation],
        outside: Known | None = None,
        *,
        repeats: bool = False,
        slices: bool = False,
        epilogues: bool = False,
        operands: bool = False,
    ) -> None:
        """`outside` is what is known of values around the block. By `repeats` several readers compute even what takes long; by
        `slices` products read slices in place; by `epilogues` they write what elementwise operations make of their result; by
        `operands` they compute operands on the way."""
        self._repeats = repeats
        self._reading = _READING | _CONTRACTIONS if operands else _READING
        self._reading_slices = _READING | _CONTRACTIONS if slices else self._reading
        self._readers: dict[ir.Value, dict[ir.Operation, None]] = {}
        for op in operations:
            for value in read_by(op):
                self._readers.setdefault(value, {})[op] = None
        self.sources: dict[ir.Value, Sequence[ir.Value]] = {}
        "For values without a buffer, what they are computed from."
        self._outside: Known = ChainMap() if outside is None else outside
        self._buffers: dict[ir.Value, Buffers] = {}
        "What is known of this block's own."
        self._epilogues = dict(self._ending(op.results[0]) for op in operations if epilogues and op.name in _CONTRACTIONS)
        "What products write instead of their results, by these."
        self._ends = set(self._epilogues.values()) - self._epilogues.keys()
        self._expensive: set[ir.Value] = set()
        "Values without a buffer that take long to compute."
        for op in operations:
            self._compute_on_the_way(op)

    def _compute_on_the_way(self, op: ir.Operation) -> None:
        """Notes the results of `op` that have no buffer."""
        if op.name == "stablehlo.while":
            for number, _ in only_read(op):
                self._share(op.results[number], op.operands[number])
        elif op.name == BARRIER:
            for result, operand in zip(op.results, op.operands, strict=True):
                self.sources[result] = [operand]
                if (known := self._known(operand)) is not None:  # else readers wait for the barrier, which hands the buffer on
                    self._buffers[result] = known
        elif op.name in _CONTRACTIONS and self._passes_on(op.results[0]):
            self._buffers[op.results[0]] = {op.results[0]: 0.0}
        elif (product := self._scaled(op)) is not None:
            self._share(op.results[0], product)
        elif op.name in NO_KERNELS:
            read = self.read(op)
            takes_long = has(op.name, Trait.EXPENSIVE) and bool(
                shape_of(op.results[0])
            )  # a number takes no longer than reading it
            is_expensive = takes_long or any(operand in self._expensive for operand in op.operands)
            for result in op.results:
                if op.name not in _FUSIBLE or self._is_fused(result, op.name, read, is_expensive=is_expensive):
                    self.sources[result] = list(op.operands)
                    self._buffers[result] = read
                    if is_expensive:
                        self._expensive.add(result)

    def _ending(self, product: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The result of a product, and the last that operations one after the other, each the only reader of the one before,
        compute of it."""
        value = last = product
        while len(readers := self._readers.get(value, {})) == 1:
            (reader,) = readers
            if reader.name not in _FUSIBLE and reader.name not in _VIEWS:
                break
            value = reader.results[0]
            last = value if reader.name in _FUSIBLE else last
        return product, last

    def _passes_on(self, product: ir.Value) -> bool:
        """Whether no buffer holds the result of a product, but what is computed of it."""
        return self._epilogues.get(product, product) != product

    def _scaled(self, op: ir.Operation) -> ir.Value | None:
        """What `op` multiplies by a constant if that is a product, perhaps transposed, which nothing else reads: products are
        scaled before they are written."""
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

    def _share(self, value: ir.Value, source: ir.Value) -> None:
        """Notes that `value` is in the buffer of `source`."""
        self.sources[value] = [source]
        self._buffers[value] = self._buffers_of(source)

    def _is_fused(self, value: ir.Value, name: str, read: Buffers, *, is_expensive: bool) -> bool:
        """Whether each reader computes `value`, which the operation `name` gives, for itself out of what is `read` for that."""
        if value in self._ends:
            return False
        readers = self._readers.get(value, {})
        reading = self._reading_slices if name in _WITHIN else self._reading
        if not readers or len(read) > _OPERANDS or any(reader.name not in reading for reader in readers):
            return False
        return len(readers) == 1 or ((self._repeats or not is_expensive) and sum(read.values()) <= _ENOUGH * tensor_bytes(value))

    def read(self, op: ir.Operation) -> dict[ir.Value, float]:
        """What `op` reads, itself or to compute operands on the way."""
        found: dict[ir.Value, float] = {}
        for number, value in enumerate(read_by(op)):
            share = _share(op, number)
            for buffer, size in self._buffers_of(value).items():
                found[buffer] = max(found.get(buffer, 0.0), share * size)
        return found

    def inside(self, op: ir.Operation) -> Known:
        """What the regions of `op` know of values around them (see `__init__`)."""
        carried = only_read(op) if op.name == "stablehlo.while" else ()
        arguments = {argument: self._buffers_of(op.operands[number]) for number, argument in carried}
        return ChainMap(arguments, self._buffers, *self._outside.maps)

    def _buffers_of(self, value: ir.Value) -> Buffers:
        known = self._known(value)
        return {value: tensor_bytes(value)} if known is None else known

    def _known(self, value: ir.Value) -> Buffers | None:
        found = self._buffers.get(value)
        return self._outside.get(value) if found is None else found

    def written(self, op: ir.Operation) -> float:
        """Bytes that `op` writes: its results that have buffers, or what it updates in place."""
        if op.name in _UPDATING:
            return tensor_bytes(op.operands[_UPDATING[op.name]])
        if op.name in REGION_OPS:
            return 0.0
        held = (result for result in op.results if result not in self.sources and not self._passes_on(result))
        return sum(tensor_bytes(result) for result in held)


def only_read(op: ir.Operation) -> Iterator[tuple[int, ir.Value]]:
    """What a loop carries and never changes: its number, and the argument of the body."""
    body = op.regions[1].blocks[0]
    yielded = body.operations[len(body.operations) - 1].operation.operands
    for number, (argument, value) in enumerate(zip(body.arguments, yielded, strict=True)):
        if argument == value:
            yield number, argument


def _is_splat(value: ir.Value) -> bool:
    """Whether all elements are one constant."""
    if is_argument(value):
        return False
    op = op_of(value)
    if op.name == "stablehlo.broadcast_in_dim":
        return _is_splat(op.operands[0])
    return op.name == "stablehlo.constant" and ir.DenseElementsAttr(op.attributes["value"]).is_splat


def _share(op: ir.Operation, number: int) -> float:
    """How large a part of its operand of that number `op` reads."""
    if number or op.name not in _PARTLY:
        return 1.0
    return 0.0 if op.name in _UPDATING else min(1.0, tensor_bytes(op.results[0]) / max(tensor_bytes(op.operands[0]), 1.0))


def read_by(op: ir.Operation) -> Iterable[ir.Value]:
    """The operands of `op` and whatever its regions use from outside (and inside, which nobody asks for)."""
    if not len(op.regions):
        return op.operands
    return [value for inner in walk(op) for value in inner.operands]
