"""What an op reads, and which ops are copied to each reader of their results instead of being computed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import inside, ir, walk
from meshbridge.ir.uses import defining_op
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.loop import SHARD, WHILE

FEW_BYTES = 64
"""The size below which it does not count where a value is computed. Nothing was measured: it is less than a link's latency."""


def external_operands(op: ir.Operation) -> list[ir.Value]:
    """The values from outside of `op` that it or an op in its regions reads, each once."""
    own = dict.fromkeys(op.operands)
    if not len(op.regions):
        return list(own)
    inner = inside(op)
    defined: set[ir.Value] = {value for each in inner for value in each.results}
    defined |= {argument for each in (op, *inner) for region in each.regions for block in region for argument in block.arguments}
    return list(own | dict.fromkeys(value for each in inner for value in each.operands if value not in defined))


def clone_reading(op: ir.Operation, written: Mapping[ir.Value, ir.Value], at: Builder) -> ir.Operation:
    """A copy of an op that reads other values from outside."""
    clone = op.clone(ip=at.ip)
    for inner in walk(clone):
        for index, operand in enumerate(inner.operands):
            if operand in written:
                inner.operands[index] = written[operand]
    return clone


def bytes_of(value: ir.Value) -> float:
    """The bytes of a tensor; 0 for any other value."""
    return tensor_bytes(value) if isinstance(value.type, ir.RankedTensorType) else 0.0


@dataclass(eq=False)
class Reads:
    """The values from which ops are computed, seen through the ops that are copied to their readers: constants and what is
    computed from constants alone, annotations of uses, other shapes and types of values of a few bytes, and in the loop of values
    that do not change in it. Outside of the loop these are computed once, and so are other shardings.
    """

    unchanging: set[ir.Value]
    shardings: Mapping[ir.Value, ir.Value]
    "The annotations of definitions."
    _operands: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)
    _leaves: dict[ir.Value, tuple[ir.Value, ...]] = field(default_factory=dict)

    def operands(self, op: ir.Operation) -> list[ir.Value]:
        """`external_operands`, kept."""
        key = op.results[0]
        if key not in self._operands:
            self._operands[key] = external_operands(op)
        return self._operands[key]

    def reshard(self, use: ir.Operation, sharding: ir.Value) -> None:
        """Annotates a use otherwise."""
        use.operands[1] = sharding
        self._operands.pop(use.results[0], None)

    def of(self, op: ir.Operation) -> list[ir.Value]:
        """The values that must be there where `op` is computed, each once."""
        return self.of_values(self.operands(op))

    def of_values(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """The values that must be there to compute `values` from, each once."""
        return list(dict.fromkeys(leaf for value in values for leaf in self.leaves(value)))

    def leaves(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """The values from which copied ops compute `value`: itself if its op is not copied."""
        if value not in self._leaves:
            op = defining_op(value)
            self._leaves[value] = tuple(self.of(op)) if op is not None and self.is_copied(op) else (value,)
        return self._leaves[value]

    def is_copied(self, op: ir.Operation) -> bool:
        """Whether each reader of the results computes them itself."""
        if op.name == "mesh.sharding":
            return True
        if op.name == SHARD and "annotate_for_users" in op.attributes:
            return self._in_loop(op) or not self._reshards(op)
        if not has(op.name, Trait.PURE) or has(op.name, Trait.CONTROL_FLOW) or has(op.name, Trait.EXPENSIVE):
            return False
        leaves = self.of(op)
        if not leaves:
            return not has(op.name, Trait.CONTRACTION)
        if not has(op.name, Trait.SHAPING) and op.name != "stablehlo.convert":
            return False
        in_loop = self._in_loop(op)
        return all((in_loop and leaf in self.unchanging) or bytes_of(leaf) <= FEW_BYTES for leaf in leaves)

    def _in_loop(self, op: ir.Operation) -> bool:
        return op.parent is not None and op.parent.operation.name == WHILE

    def _reshards(self, op: ir.Operation) -> bool:
        """Whether the sharding of a use differs from that of the definition."""
        value, sharding = op.operands
        defined = self.shardings.get(value)
        return defined is not None and dict(op_of(defined).attributes) != dict(op_of(sharding).attributes)

    def original(self, value: ir.Value) -> ir.Value:
        """The value that `value` is under annotations that do not reshard it."""
        while (op := defining_op(value)) is not None and op.name == SHARD and self.is_copied(op):
            value = op.operands[0]
        return value
