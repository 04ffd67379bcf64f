"""Whether the devices of a group hold the same value.

    %0 = mesh.all_reduce %x on @m mesh_axes = [0]        replicated along axis 0
    %1 = stablehlo.tanh %0                               so is this, and
    %2 = stablehlo.multiply %1, %argument                this, if the argument's boundary says so
    %3 = mesh.all_slice %2 on @m mesh_axes = [0] …       divided along axis 0

`is_replicated` is True only if all devices certainly hold the same value, `is_divided` only if an op on the way divides it. Both
are False for unknown values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshbridge.analysis.device_numbers import DeviceNumbers
from meshbridge.analysis.trip_count import trip_count
from meshbridge.dialect.attributes import axis_array, integers
from meshbridge.dialect.ops import (
    BOUNDARY_MESH,
    BOUNDARY_PARTIAL,
    BOUNDARY_SPLIT,
    OPERATION_NAMES,
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    CollectiveOpView,
    ProcessLinearIndexOp,
    ProcessMultiIndexOp,
    ReduceScatterOp,
)
from meshbridge.dialect.signature import shape_of
from meshbridge.ir.mlir import BARRIER, ir, terminator_operands
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import LOOK_THROUGH, block_of, defining_op
from meshbridge.ops.traits import Trait, ops_with

_PASSED = ops_with(Trait.PURE) & ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""Operations whose result is the same on two devices if their operands are. Products and reductions are too, but looking through
them would change plans, with unmeasured effects."""

_REPLICATING = frozenset((AllReduceOp.OPERATION_NAME, AllGatherOp.OPERATION_NAME))
"""Collectives whose result is the same on all devices of a group."""

_COLLECTIVES = (ops_with(Trait.COLLECTIVE, dialect="mesh") - ops_with(Trait.ROOTED)) | {AllSliceOp.OPERATION_NAME}
"""Collectives that, over other axes, return the same value on devices that hold the same."""

_DIVIDING = frozenset((AllSliceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME))
_DEVICE_IDS = frozenset(("stablehlo.partition_id", "stablehlo.replica_id"))
_POSITIONS = frozenset((ProcessMultiIndexOp.OPERATION_NAME, ProcessLinearIndexOp.OPERATION_NAME))

_DEEP_LIMIT = 256
"""The most values that `is_replicated` visits if it looks through loops: enough for the residual stream of many layers. Not
measured."""


def is_replicated(value: ir.Value, mesh: str, axes: Axes, *, numbers: DeviceNumbers | None = None, deep: bool = False) -> bool:
    """True if all devices of a group along `axes` certainly hold the same value: a constant, a result of an all-reduce or
    all-gather over them, an argument that is not split along them, a device number along other axes, or a value computed or
    carried from these alone.

    `deep` also looks through barriers, other collectives, results of loops, and tensors that iterations change. By default these
    count as different, because `delay-reductions` may reduce them after the loop. `numbers` are None in a program that computes
    nothing from device numbers.
    """
    visited, worklist = {value}, [value]
    while worklist:
        needed = _same_if(worklist.pop(), mesh, axes, numbers, deep=deep)
        if needed is None or len(visited) > (_DEEP_LIMIT if deep else LOOK_THROUGH):
            return False
        worklist.extend(news := set(needed) - visited)
        visited |= news
    return True


def can_be_replicated(name: str) -> bool:
    """True if `is_replicated` may hold for a result of an operation of that name."""
    return name in _PASSED or name in _REPLICATING


def is_divided(value: ir.Value, mesh: str, axis: int) -> bool:
    """True if `value` is computed from something that differs along `axis`: a split argument, a slice, a reduce-scatter, or a
    device position."""
    return any(_divides(source, mesh, axis) for source in _sources(value, mesh, axis, defining_op))


def is_replicated_within(value: ir.Value, home: ir.Block, mesh: str, axis: int) -> bool:
    """True if all devices along `axis` certainly hold the same `value`, considering only the operations of the block `home`."""

    def producer(source: ir.Value) -> ir.Operation | None:
        op = defining_op(source)
        return op if op is not None and op.block == home else None

    for source in _sources(value, mesh, axis, producer):
        op = producer(source)
        if op is None and not (defining_op(source) is None and is_replicated_argument(source, mesh, (axis,))):
            return False
        if op is not None and _asks_devices(op):
            return False
    return True


def _sources(value: ir.Value, mesh: str, axis: int, producer: Callable[[ir.Value], ir.Operation | None]) -> Iterable[ir.Value]:
    """`value` and all values that it is computed from, up to those that a collective replicates along `axis`."""
    visited, worklist = {value}, [value]
    while worklist:
        source = worklist.pop()
        op = producer(source)
        if op is not None and op.name in _REPLICATING and _is_along(op, mesh, axis):
            continue
        yield source
        if op is not None:
            operands: Iterable[ir.Value] = op.operands
        else:
            parent = block_of(source).owner.operation
            operands = () if defining_op(source) is not None or parent.name == "func.func" else parent.operands
        worklist.extend(news := set(operands) - visited)
        visited |= news


def _divides(value: ir.Value, mesh: str, axis: int) -> bool:
    op = defining_op(value)
    if op is None:
        is_argument = block_of(value).owner.operation.name == "func.func"
        return is_argument and not is_replicated_argument(value, mesh, (axis,))
    return op.name in _POSITIONS or (op.name in _DIVIDING and _is_along(op, mesh, axis))


def _asks_devices(op: ir.Operation) -> bool:
    """True if the results of `op` depend on the device, or on other devices."""
    return op.name in OPERATION_NAMES or "replica_groups" in op.attributes or op.name in _DEVICE_IDS


def _is_along(op: ir.Operation, mesh: str, axis: int) -> bool:
    view = CollectiveOpView(op)
    return view.mesh == mesh and axis in view.mesh_axes


def _same_if(value: ir.Value, mesh: str, axes: Axes, numbers: DeviceNumbers | None, *, deep: bool) -> Iterable[ir.Value] | None:
    """The values that must be replicated for `value` to be replicated; None if it may differ in any case."""
    op = defining_op(value)
    if op is None:
        return () if is_replicated_argument(value, mesh, axes) else _carried(value, deep=deep)
    if numbers is not None and numbers.is_same(value, axes):
        return ()
    if op.name in _PASSED:
        return op.operands
    if deep and op.name == BARRIER:
        return (op.operands[ir.OpResult(value).result_number],)
    if deep and op.name == "stablehlo.while" and trip_count(op) is not None:
        return _through_loop(op, ir.OpResult(value).result_number)
    if op.name not in (_COLLECTIVES if deep else _REPLICATING) or (collective := CollectiveOpView(op)).mesh != mesh:
        return None
    over = set(collective.mesh_axes)
    if over.isdisjoint(axes):
        return op.operands
    return () if op.name in _REPLICATING and over.issuperset(axes) else None


def is_replicated_argument(value: ir.Value, mesh: str, axes: Axes) -> bool:
    """True if `value` is a function argument whose `meshbridge` attributes say that it is the same along `axes`."""
    block = value.owner
    assert isinstance(block, ir.Block)
    function = block.owner.operation
    if function.name != "func.func" or "arg_attrs" not in function.attributes:
        return False
    attrs = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
    if BOUNDARY_MESH not in attrs or ir.FlatSymbolRefAttr(attrs[BOUNDARY_MESH]).value != mesh:
        return False
    terms = integers(attrs[BOUNDARY_PARTIAL]) if BOUNDARY_PARTIAL in attrs else ()
    return not any(set(axes) & set(along) for along in (terms, *axis_array(attrs[BOUNDARY_SPLIT])))


def _carried(value: ir.Value, *, deep: bool) -> tuple[ir.Value, ...] | None:
    """The values that must be replicated for `value`, a loop-carried argument, to be: its initial value, if every iteration
    passes it on unchanged; for a scalar, as a counter, and if `deep`, also the value that an iteration passes on. None for any
    other block argument."""
    block, number = value.owner, ir.BlockArgument(value).arg_number
    assert isinstance(block, ir.Block)
    loop = block.owner.operation
    if loop.name != "stablehlo.while" or block != loop.regions[1].blocks[0]:
        return None
    start, handed_on = _through_loop(loop, number)
    if handed_on == value:
        return (start,)
    return (start, handed_on) if deep or not shape_of(value.type) else None


def _through_loop(loop: ir.Operation, number: int) -> tuple[ir.Value, ir.Value]:
    """The initial value of a loop-carried argument, and the value that each iteration passes on."""
    return loop.operands[number], terminator_operands(loop.regions[1].blocks[0])[number]
