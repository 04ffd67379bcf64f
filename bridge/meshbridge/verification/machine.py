"""Evaluates the ops of a module on simulated devices.

The value of a tensor is one numpy array whose first dimension is the device: of length 1 if all devices hold the same, otherwise
of length `Grid.count`. Floating-point tensors are arrays of field elements (see `field`); integers and booleans are themselves. A
program on global tensors runs on a grid of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, Protocol, cast

import numpy as np

from meshbridge.ir.mlir import MeshError, OpError, ir, walk
from meshbridge.verification.field import Array, Field
from meshbridge.verification.narrow_bits import of_one_kind

Rule = Callable[["Evaluator", ir.Operation, list[Array]], Sequence[Array]]
"""Computes the results of an op from the values of its operands."""

RULES: dict[str, Rule] = {}
"""The rule of each op name."""


def evaluates(*names: str) -> Callable[[Rule], Rule]:
    """Enters a rule in RULES. Refuses a second rule for an op, and a rule without a docstring."""

    def register(rule: Rule) -> Rule:
        if not (rule.__doc__ or "").strip():
            raise ValueError(f"the rule of {', '.join(names)} has no docstring")
        for name in names:
            if RULES.setdefault(name, rule) is not rule:
                raise ValueError(f"{name} has two rules")
        return rule

    return register


CALLS = 100_000
"""The most function calls of a run, beyond which it is considered endless: functions that call each other twice double with each
level."""

ITERATION_LIMIT = 100_000
"""The most iterations of a loop, beyond which it is considered endless."""


@dataclass(frozen=True)
class Grid:
    """Devices as StableHLO numbers them: `replicas` times `partitions`, replica-major."""

    replicas: int = 1
    partitions: int = 1

    @property
    def count(self) -> int:
        return self.replicas * self.partitions

    def replica_ids(self) -> Array:
        return np.arange(self.count) // self.partitions

    def partition_ids(self) -> Array:
        return np.arange(self.count) % self.partitions


@dataclass(frozen=True)
class CompiledOp:
    """One op of a block, and the values that no later op of the block reads."""

    op: ir.Operation
    name: str
    operands: tuple[ir.Value, ...]
    results: tuple[ir.Value, ...]
    dying: tuple[ir.Value, ...]


@dataclass(frozen=True)
class CompiledBlock:
    """A block ready to run: its arguments, its ops, and the operands of its terminator."""

    arguments: tuple[ir.Value, ...]
    steps: tuple[CompiledOp, ...]
    yields: tuple[ir.Value, ...]


Observer = Callable[[ir.Operation, Sequence[Array], Sequence[Array]], None]
"""Called with every op that was evaluated, its operands and its results."""


@dataclass
class Evaluator:
    """Evaluates functions of one module. `memory` bounds the live bytes, `iteration_limit` the iterations of a loop."""

    module: ir.Module
    field: Field
    grid: Grid = member(default_factory=Grid)
    memory: int = 8 * 10**9
    iteration_limit: int = ITERATION_LIMIT
    observe: Observer | None = None
    joined: dict[ir.Value, Array] | None = None
    """The devices' values of results of manual computations, if requested."""
    has_extended: bool = False
    """Whether a value may be extended (see narrow_bits)."""
    functions: dict[str, ir.Operation] = member(default_factory=dict)
    meshes: dict[str, ir.Operation] = member(default_factory=dict)
    _values: dict[ir.Value, Array] = member(default_factory=dict)
    _codes: dict[tuple[ir.Operation, int], CompiledBlock] = member(default_factory=dict)
    _live: int = 0
    _calls: int = 0

    def __post_init__(self) -> None:
        for view in self.module.body.operations:
            op = view.operation
            if "sym_name" in op.attributes:
                table = self.functions if op.name == "func.func" else self.meshes
                table[ir.StringAttr(op.attributes["sym_name"]).value] = op

    def call(self, op: ir.Operation, name: str, arguments: Sequence[Array]) -> list[Array]:
        """The results of a function of the module that an op calls. Raises OpError after CALLS calls in a run."""
        self._calls += 1
        if self._calls > CALLS:
            raise OpError(op, f"calls @{name} after {CALLS:,} calls in one run, expected at most that many")
        return self.run(self.functions[name], 0, arguments)

    def run(self, owner: ir.Operation, region: int, arguments: Sequence[Array]) -> list[Array]:
        """The values that a region's block yields for these arguments."""
        code = self._code(owner, region)
        values = self._values
        for name, argument in zip(code.arguments, arguments, strict=True):
            values[name] = argument
        for step in code.steps:
            self._execute(step)
        yielded = [values[name] for name in code.yields]
        for name in code.arguments:
            values.pop(name, None)
        return yielded

    def value(self, name: ir.Value) -> Array:
        """The value of an enclosing op's operand or result."""
        return self._values[name]

    def _execute(self, step: CompiledOp) -> None:
        rule = RULES.get(step.name)
        if rule is None:
            raise OpError(step.op, "has no exact evaluation", "docs/verify.md lists the ops that have one")
        values = self._values
        operands = [values[operand] for operand in step.operands]
        if self.has_extended:
            operands = of_one_kind(step.name, [operand.type for operand in step.operands], operands)
        results = rule(self, step.op, operands)
        for name, value in zip(step.results, results, strict=True):
            values[name] = value
            self._live += _own_bytes(value)
        if self._live > self.memory:
            gigabytes = self.memory / 10**9
            raise OpError(step.op, f"needs more memory than {gigabytes:g} GB", "give smaller sizes by --dims or more by --memory")
        if self.observe is not None:
            self.observe(step.op, operands, results)
        for name in step.dying:
            self._live -= _own_bytes(values.pop(name))

    def _code(self, owner: ir.Operation, region: int) -> CompiledBlock:
        if (owner, region) not in self._codes:
            self._codes[owner, region] = _compile(owner, region)
        return self._codes[owner, region]

    def everywhere(self, value: Array) -> Array:
        """`value` with one entry for each device."""
        return np.broadcast_to(value, (self.grid.count, *value.shape[1:]))


def _own_bytes(value: Array) -> int:
    """The bytes of a value that is not a view of another."""
    return value.nbytes if value.base is None else 0


def _compile(owner: ir.Operation, region: int) -> CompiledBlock:
    blocks = list(owner.regions[region].blocks)
    if len(blocks) != 1:
        raise OpError(owner, f"has {len(blocks)} blocks in a region, expected one")
    ops = [view.operation for view in blocks[0].operations]
    arguments = tuple(blocks[0].arguments)
    last_use: dict[ir.Value, int] = dict.fromkeys(arguments, -1)
    for index, op in enumerate(ops):
        last_use.update(dict.fromkeys(op.results, index))
        for below in walk(op):
            last_use.update({value: index for value in below.operands if value in last_use})
    dying: dict[int, list[ir.Value]] = {}
    for value, index in last_use.items():
        if index >= 0 and value not in set(arguments):
            dying.setdefault(index, []).append(value)
    for op in ops:
        _check_ranks(op)
    steps = tuple(
        CompiledOp(op, op.name, tuple(op.operands), tuple(op.results), tuple(dying.get(index, ())))
        for index, op in enumerate(ops[:-1])
    )
    return CompiledBlock(arguments, steps, tuple(ops[-1].operands))


RANKS = 31
"""The most dimensions of a tensor: numpy arrays have at most 64, one for the devices and up to two for each of a tensor's."""


def _check_ranks(op: ir.Operation) -> None:
    """Raises OpError for a result with too many dimensions."""
    for result in op.results:
        if isinstance(result.type, ir.RankedTensorType) and result.type.rank > RANKS:
            raise OpError(
                op,
                f"has a result of {result.type.rank} dimensions, expected at most {RANKS} for exact evaluation",
                "join dimensions by a reshape",
            )


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The static shape of a tensor, () for a scalar. Raises MeshError for other values."""
    if is_scalar(value.type):
        return ()
    if not isinstance(value.type, ir.RankedTensorType):
        raise MeshError(f"<module>: error: a value of type {value.type} has no exact evaluation")
    kind = value.type
    if not kind.has_static_shape:
        raise MeshError(f"<module>: error: a value of type {kind} has no static shape; give sizes by --dims")
    return tuple(kind.shape)


def element_of(value: ir.Value) -> ir.Type:
    """The element type of a tensor; the type of a scalar."""
    return value.type if is_scalar(value.type) else ir.RankedTensorType(value.type).element_type


def is_scalar(kind: ir.Type) -> bool:
    """Whether a value of this type is one number."""
    return isinstance(kind, (ir.IndexType, ir.IntegerType, ir.FloatType))


def is_float(element: ir.Type) -> bool:
    """Whether elements are field elements: real floating-point numbers."""
    return isinstance(element, ir.FloatType) or str(element).startswith("f")


def is_complex(element: ir.Type) -> bool:
    return isinstance(element, ir.ComplexType)


def width_of(element: ir.Type) -> int:
    """Bits of an integer or a floating-point type."""
    return int(element.width) if isinstance(element, (ir.IntegerType, ir.FloatType)) else 64


def dtype_of(element: ir.Type) -> np.dtype[np.generic]:
    """The numpy type in which values of an element type are stored."""
    if is_complex(element):
        return np.dtype(np.complex128)
    if isinstance(element, ir.IndexType):
        return np.dtype(np.int64)
    if isinstance(element, ir.IntegerType):
        if element.width == 1:
            return np.dtype(np.bool_)
        size = max(8, element.width) // 8
        return np.dtype(f"{'u' if element.is_unsigned else 'i'}{size}")
    return np.dtype(np.float64)


class Attributed(Protocol):
    """Has attributes by name: an op, or the attributes of a composite."""

    @property
    def attributes(self) -> Any: ...


def integers(op: Attributed, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """An attribute that lists integers, dense or as an array; `default` where the op has none."""
    if name not in op.attributes:
        return tuple(default)
    attribute = op.attributes[name]
    if isinstance(attribute, ir.DenseElementsAttr):
        return tuple(int(entry) for entry in np.array(attribute).reshape(-1))
    return tuple(int(entry) for entry in cast("Iterable[int]", attribute))


def integer(op: Attributed, name: str, default: int = 0) -> int:
    """An integer attribute; `default` where the op has none."""
    return int(ir.IntegerAttr(op.attributes[name]).value) if name in op.attributes else default


def boolean(op: Attributed, name: str) -> bool:
    """A boolean or unit attribute; False where the op has none."""
    return name in op.attributes and str(op.attributes[name]) in ("unit", "true")


def same_numbers(op: ir.Operation, value: Array, name: str) -> tuple[int, ...]:
    """The integers of an operand. Raises OpError if they differ between devices; `name` is the operand's."""
    if (value != value[:1]).any():
        raise OpError(op, f"has a {name} that differs between devices")
    return tuple(int(entry) for entry in value[0].reshape(-1))


def index(*parts: Any) -> Any:
    """An index of a tensor, one part for each dimension."""
    return parts


def align(*values: Array) -> list[Array]:
    """The values with first dimensions of one length."""
    count = max(value.shape[0] for value in values)
    return [value if value.shape[0] == count else np.broadcast_to(value, (count, *value.shape[1:])) for value in values]
