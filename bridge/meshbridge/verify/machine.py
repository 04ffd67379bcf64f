"""Evaluates the ops of a module on simulated devices.

The value of a tensor is one numpy array whose first dimension is the device: of length 1 where all devices hold the same, of
length `Grid.count` otherwise. Floating-point tensors are arrays of field elements (see `field`), integers and booleans are what
they are. A program on global tensors is one on a grid of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, Protocol, cast

import numpy as np

from meshbridge.ir.mlir import MeshError, OpError, ir, walk
from meshbridge.verify.field import Array, Field
from meshbridge.verify.narrow_bits import of_one_kind

Rule = Callable[["Evaluator", ir.Operation, list[Array]], Sequence[Array]]
"""Gives the results of an op whose operands have these values."""

RULES: dict[str, Rule] = {}
"""Op name to its rule."""


def evaluates(*names: str) -> Callable[[Rule], Rule]:
    """Enters a rule in RULES; refuses a second one for an op and one without documentation."""

    def register(rule: Rule) -> Rule:
        if not (rule.__doc__ or "").strip():
            raise ValueError(f"the rule of {', '.join(names)} has no docstring")
        for name in names:
            if RULES.setdefault(name, rule) is not rule:
                raise ValueError(f"{name} has two rules")
        return rule

    return register


CALLS = 100_000
"""Calls of functions after which a run is taken to be one without an end: functions that call each other twice double with each
level."""

TRIPS = 100_000
"""Iterations after which a loop is taken to be one without an end."""


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
    last: tuple[ir.Value, ...]


@dataclass(frozen=True)
class CompiledBlock:
    """A block ready to run: its arguments, its ops, and the operands of its terminator."""

    arguments: tuple[ir.Value, ...]
    steps: tuple[CompiledOp, ...]
    yields: tuple[ir.Value, ...]


Observer = Callable[[ir.Operation, Sequence[Array], Sequence[Array]], None]
"""Sees every op that was evaluated, with its operands and results."""


@dataclass
class Evaluator:
    """Evaluates functions of one module. `memory` bounds the bytes that live at once, `trips` the iterations of a loop."""

    module: ir.Module
    field: Field
    grid: Grid = member(default_factory=Grid)
    memory: int = 8 * 10**9
    trips: int = TRIPS
    observe: Observer | None = None
    joined: dict[ir.Value, Array] | None = None
    """What the devices hold of results of manual computations, where it is asked for."""
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
        """The results of a function of the module, which an op calls. Raises OpError after CALLS calls in a run."""
        self._calls += 1
        if self._calls > CALLS:
            raise OpError(op, f"calls @{name} after {CALLS:,} calls in one run, expected at most that many")
        return self.run(self.functions[name], 0, arguments)

    def run(self, owner: ir.Operation, region: int, arguments: Sequence[Array]) -> list[Array]:
        """What a region's block yields for these arguments."""
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
        """What a value of an op above holds."""
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
        for name in step.last:
            self._live -= _own_bytes(values.pop(name))

    def _code(self, owner: ir.Operation, region: int) -> CompiledBlock:
        if (owner, region) not in self._codes:
            self._codes[owner, region] = _compile(owner, region)
        return self._codes[owner, region]

    def everywhere(self, value: Array) -> Array:
        """`value` with one entry for each device."""
        return np.broadcast_to(value, (self.grid.count, *value.shape[1:]))


def _own_bytes(value: Array) -> int:
    """What a value takes beside the one that it is a view of."""
    return value.nbytes if value.base is None else 0


def _compile(owner: ir.Operation, region: int) -> CompiledBlock:
    blocks = list(owner.regions[region].blocks)
    if len(blocks) != 1:
        raise OpError(owner, f"has {len(blocks)} blocks in a region, expected one")
    ops = [view.operation for view in blocks[0].operations]
    arguments = tuple(blocks[0].arguments)
    last: dict[ir.Value, int] = dict.fromkeys(arguments, -1)
    for index, op in enumerate(ops):
        last.update(dict.fromkeys(op.results, index))
        for below in walk(op):
            last.update({value: index for value in below.operands if value in last})
    dying: dict[int, list[ir.Value]] = {}
    for value, index in last.items():
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
"""Dimensions of a tensor at most: an array of numpy has 64, one for the devices and perhaps two for each of a tensor's."""


def _check_ranks(op: ir.Operation) -> None:
    """Raises OpError for a result of more dimensions than arrays have."""
    for result in op.results:
        if isinstance(result.type, ir.RankedTensorType) and result.type.rank > RANKS:
            raise OpError(
                op,
                f"has a result of {result.type.rank} dimensions, expected at most {RANKS} for exact evaluation",
                "join dimensions by a reshape",
            )


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The static shape of a tensor, () of a scalar. Raises MeshError for values that have none."""
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
    """Whether elements are those of the field: floating-point numbers, not complex ones."""
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
    """What has attributes by name: an op, or what a composite says of one."""

    @property
    def attributes(self) -> Any: ...


def integers(op: Attributed, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """An attribute that lists integers, dense or as an array; `default` where the op has none."""
    if name not in op.attributes:
        return tuple(default)
    found = op.attributes[name]
    if isinstance(found, ir.DenseElementsAttr):
        return tuple(int(each) for each in np.array(found).reshape(-1))
    return tuple(int(each) for each in cast("Iterable[int]", found))


def integer(op: Attributed, name: str, default: int = 0) -> int:
    """An integer attribute; `default` where the op has none."""
    return int(ir.IntegerAttr(op.attributes[name]).value) if name in op.attributes else default


def boolean(op: Attributed, name: str) -> bool:
    """A boolean or unit attribute; False where the op has none."""
    return name in op.attributes and str(op.attributes[name]) in ("unit", "true")


def same_numbers(op: ir.Operation, value: Array, what: str) -> tuple[int, ...]:
    """The integers that an operand holds. Raises OpError where devices hold different ones; `what` names one of them."""
    if (value != value[:1]).any():
        raise OpError(op, f"has a {what} that differs between devices")
    return tuple(int(each) for each in value[0].reshape(-1))


def index(*parts: Any) -> Any:
    """What a tensor is indexed with, one part for each dimension."""
    return parts


def align(*values: Array) -> list[Array]:
    """The values with first dimensions of one length."""
    count = max(value.shape[0] for value in values)
    return [value if value.shape[0] == count else np.broadcast_to(value, (count, *value.shape[1:])) for value in values]
