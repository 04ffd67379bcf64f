"""What the collective passes share: a module while collectives move in it, and passes that are sets of patterns.

Such a pass ends, because each pattern lowers the bytes on the wire, or keeps them and lowers the number of collectives, or keeps
both and moves a collective down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

from meshbridge.analysis.device_numbers import DeviceNumbers
from meshbridge.analysis.known_values import Splat, known
from meshbridge.analysis.trip_count import trip_count
from meshbridge.dialect.attributes import axis_array, integers
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import (
    BOUNDARY_MESH,
    BOUNDARY_PARTIAL,
    BOUNDARY_SPLIT,
    OPERATION_NAMES,
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    CollectiveOpView,
    MeshOpView,
)
from meshbridge.dialect.signature import shape_of
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import resized
from meshbridge.ir.mlir import BARRIER, find, ir, terminator
from meshbridge.ir.passes import Pass
from meshbridge.ir.rewrite import Pattern, Rewriter, rewriting
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.ops.traits import Trait, ops_with

ViewT = TypeVar("ViewT", bound=CollectiveOpView)

CONSTANTS = ops_with(Trait.CONSTANT)

ELEMENTWISE = ops_with(Trait.ELEMENTWISE) - ops_with(Trait.SCALAR_REGION)
"""Those that are nothing but their name and attributes, by which patterns write them for other sizes."""

_UNIFORM = ops_with(Trait.PURE) & ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""Operations whose result is the same on two devices if their operands are. Products, reductions and the like are so too, but
are not looked through: plans would change, and nothing says by how much."""

_DISPENSABLE = ops_with(Trait.PURE) - CONSTANTS
"""Constants that nothing uses stay: they take no time."""


_SPREADING = frozenset((AllReduceOp.OPERATION_NAME, AllGatherOp.OPERATION_NAME))
"""Collectives that leave all devices of a group with the same."""

_COLLECTIVES = (ops_with(Trait.COLLECTIVE, dialect="mesh") - ops_with(Trait.ROOTED)) | {AllSliceOp.OPERATION_NAME}
"""Those that, over other axes, give devices the same that hold the same."""

_MOST = 32
"""How many values `is_uniform` looks at: more would cost time in proportion to the size of what computes a value. Not
measured."""

_MOST_DEEP = 256
"""The same where it goes on through loops: as much as the residual stream of many layers. Not measured."""


class MeshRewriter(Rewriter):
    """A module while collectives move in it."""

    names = OPERATION_NAMES
    """Mesh operations: patterns go on from these to what reads them."""

    def __init__(self, module: ir.Module) -> None:
        self.meshes = declared_meshes(module.body)
        ops = find(module.operation, ["stablehlo.while", "stablehlo.partition_id"])
        self.loops = [op for op in ops if op.name == "stablehlo.while"]
        """Its loops, outer ones first."""
        self._asks_for_number = len(ops) > len(self.loops)
        "Whether devices compute anything of their number: of most programs they do not, and nothing is to be looked for."
        super().__init__(module)

    def is_dispensable(self, name: str) -> bool:
        return name in _DISPENSABLE or (name.startswith("mesh.") and name not in ("mesh.send", "mesh.recv"))

    def collective(self, value: ir.Value, kind: type[ViewT], user: ir.Operation) -> ViewT | None:
        """The collective of class `kind` that defines `value` in the block of `user`.

        A collective must not move into a loop or a branch, so both have to stand in the same block.
        """
        op = defining_op(value)
        return kind(op) if op is not None and op.name == kind.OPERATION_NAME and op.block == user.block else None

    def is_uniform(self, value: ir.Value, mesh: str, axes: Axes, *, deep: bool = False) -> bool:
        """Whether all devices of a group along `axes` surely hold the same: constants, what is reduced or gathered over them,
        arguments that are not split along them, numbers of devices along other axes, what is computed from these alone, and what
        loops carry of such. `deep` also looks through barriers, other collectives, results of loops, and tensors that iterations
        change. Without it these count as different, since `delay-reductions` may reduce them after the loop."""
        numbers = DeviceNumbers(self.meshes[mesh]) if self._asks_for_number else None
        seen, waiting = {value}, [value]
        while waiting:
            needed = self._same_if(waiting.pop(), mesh, axes, numbers, deep=deep)
            if needed is None or len(seen) > (_MOST_DEEP if deep else _MOST):
                return False
            waiting.extend(new := set(needed) - seen)
            seen |= new
        return True

    def _same_if(
        self, value: ir.Value, mesh: str, axes: Axes, numbers: DeviceNumbers | None, *, deep: bool
    ) -> Iterable[ir.Value] | None:
        """What all devices of a group must hold the same of if they are to hold the same `value`; None where nothing says so."""
        op = defining_op(value)
        if op is None:
            return () if is_replicated_argument(value, mesh, axes) else _carried(value, deep=deep)
        if numbers is not None and numbers.is_same(value, axes):
            return ()
        if op.name in _UNIFORM:
            return op.operands
        if deep and op.name == BARRIER:
            return (op.operands[ir.OpResult(value).result_number],)
        if deep and op.name == "stablehlo.while" and trip_count(op) is not None:
            return _through_loop(op, ir.OpResult(value).result_number)
        if op.name not in (_COLLECTIVES if deep else _SPREADING) or (collective := CollectiveOpView(op)).mesh != mesh:
            return None
        over = set(collective.mesh_axes)
        if over.isdisjoint(axes):
            return op.operands
        return () if op.name in _SPREADING and over.issuperset(axes) else None

    @staticmethod
    def can_be_uniform(name: str) -> bool:
        """Whether `is_uniform` may hold for what an operation of that name gives."""
        return name in _UNIFORM or name in _SPREADING


def sharing_key(op: ir.Operation) -> tuple[object, ...]:
    """What a collective does with its operand, dimensions aside: what collectives share of which one may stand for all. The order
    of axes means nothing to an all-reduce."""
    view = CollectiveOpView(op)
    axes = frozenset(view.mesh_axes) if op.name == AllReduceOp.OPERATION_NAME else view.mesh_axes
    return op.name, view.mesh, axes, view.reduction


PIECES = ("gather_axis", "scatter_axis", "split_axis", "concat_axis")
"""Attributes that name the dimensions along which a collective puts pieces together or takes them apart."""


def piece_dims(op: ir.Operation) -> list[int]:
    """Those dimensions."""
    return [int(ir.IntegerAttr(op.attributes[name]).value) for name in PIECES if name in op.attributes]


def in_size(value: ir.Value, dim: int, *, multiply: int = 1, divide: int = 1) -> Callable[[Builder], ir.Value] | None:
    """How to make `value` with dimension `dim` multiplied or divided, where it is the same at every index of that; None where
    nothing says so. A scalar stays one."""
    type_ = ir.RankedTensorType(value.type)
    if not type_.rank:
        return lambda emit: value
    type_ = resized(type_, dim, multiply=multiply, divide=divide)
    if isinstance(found := known(value), Splat):
        held = ir.DenseElementsAttr.get_splat(type_, found.element)
        return lambda emit: emit.constant(type_, held)
    if defining_name(value) != "stablehlo.broadcast_in_dim":
        return None
    op = op_of(value)
    dims, shape = integers(op.attributes["broadcast_dimensions"]), ir.RankedTensorType(op.operands[0].type).shape
    varies = dim in dims and shape[dims.index(dim)] != 1
    return None if varies else lambda emit: emit.again(op, type_, list(op.operands))


def is_replicated_argument(value: ir.Value, mesh: str, axes: Axes) -> bool:
    """Whether `value` is a function's argument that its `meshbridge` attributes say is the same along `axes`."""
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
    """What must be the same on all devices for `value` to be that, which the body of a loop is given: what the loop starts with,
    if each trip hands that on, or for a scalar, as a counter, or if `deep`, also what it hands on. None for any other argument of
    a block."""
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
    """What a loop carries at that number: what it starts with, and what each trip hands on."""
    last = terminator(loop.regions[1].blocks[0])
    assert last is not None
    return loop.operands[number], last.operands[number]


MeshPattern = Pattern[MeshRewriter]


def on(
    kind: type[MeshOpView], rewrite: Callable[[ir.Operation, MeshRewriter], bool], readers: frozenset[str] | None = None
) -> MeshPattern:
    """The pattern that tries `rewrite` on operations of that class, or on those named in `readers` that read what one gives."""
    return MeshPattern((kind.OPERATION_NAME,), rewrite, readers)


class PatternPass(Pass):
    """A pass that is a set of patterns."""

    patterns: ClassVar[tuple[MeshPattern, ...]]

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            return rewriter.apply(self.patterns)
