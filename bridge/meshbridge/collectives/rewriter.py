"""The base of the collective passes: a rewriter that knows meshes and loops, and passes that are sets of patterns.

Such a pass terminates, because each pattern lowers the wire bytes, or keeps them and lowers the number of collectives, or keeps
both and moves a collective down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from meshbridge.analysis.device_numbers import DeviceNumbers
from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import (
    OPERATION_NAMES,
    AllReduceOp,
    CollectiveOpView,
    MeshOpView,
)
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import resized
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.passes import Pass
from meshbridge.ir.rewrite import Pattern, Rewriter, rewriting
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.ops import replication
from meshbridge.ops.traits import Trait, ops_with

ViewT = TypeVar("ViewT", bound=CollectiveOpView)

CONSTANTS = ops_with(Trait.CONSTANT)

ELEMENTWISE = ops_with(Trait.ELEMENTWISE) - ops_with(Trait.SCALAR_REGION)
"""Elementwise ops that are determined by name and attributes, so that patterns can build them in other sizes."""

_DISPENSABLE = ops_with(Trait.PURE) - CONSTANTS
"""Unused constants stay: they take no time."""


class MeshRewriter(Rewriter):
    """A rewriter with the meshes and loops of a module."""

    names = OPERATION_NAMES
    """Mesh operations: patterns continue at their users."""

    def __init__(self, module: ir.Module) -> None:
        self.meshes = declared_meshes(module.body)
        ops = find(module.operation, ["stablehlo.while", "stablehlo.partition_id"])
        self.loops = [op for op in ops if op.name == "stablehlo.while"]
        """The loops of the module, outer ones first."""
        self._asks_for_number = len(ops) > len(self.loops)
        "True if the program computes anything from device numbers, which is rare."
        super().__init__(module)

    def is_erasable(self, name: str) -> bool:
        return name in _DISPENSABLE or (name.startswith("mesh.") and name not in ("mesh.send", "mesh.recv"))

    def collective(self, value: ir.Value, kind: type[ViewT], user: ir.Operation) -> ViewT | None:
        """The collective of class `kind` that defines `value` in the block of `user`.

        A collective must not move into a loop or a branch, so both must be in the same block.
        """
        op = defining_op(value)
        return kind(op) if op is not None and op.name == kind.OPERATION_NAME and op.block == user.block else None

    def is_replicated(self, value: ir.Value, mesh: str, axes: Axes, *, deep: bool = False) -> bool:
        """`replication.is_replicated` in this module."""
        numbers = DeviceNumbers(self.meshes[mesh]) if self._asks_for_number else None
        return replication.is_replicated(value, mesh, axes, numbers=numbers, deep=deep)


def sharing_key(op: ir.Operation) -> tuple[object, ...]:
    """Equal for collectives that do the same with their operands, apart from dimensions, so that one may replace several. An
    all-reduce ignores the order of axes."""
    view = CollectiveOpView(op)
    axes = frozenset(view.mesh_axes) if op.name == AllReduceOp.OPERATION_NAME else view.mesh_axes
    return op.name, view.mesh, axes, view.reduction


DIM_ATTRIBUTES = ("gather_axis", "scatter_axis", "split_axis", "concat_axis")
"""Attributes that name the dimensions that a collective splits or concatenates."""


def collective_dims(op: ir.Operation) -> list[int]:
    """The dimensions that a collective splits or concatenates."""
    return [int(ir.IntegerAttr(op.attributes[name]).value) for name in DIM_ATTRIBUTES if name in op.attributes]


def resize_uniform(value: ir.Value, dim: int, *, multiply: int = 1, divide: int = 1) -> Callable[[Builder], ir.Value] | None:
    """A builder of `value` with dimension `dim` multiplied or divided, if it is the same at every index of that; None if that is
    not certain. A scalar does not change."""
    type_ = ir.RankedTensorType(value.type)
    if not type_.rank:
        return lambda builder: value
    type_ = resized(type_, dim, multiply=multiply, divide=divide)
    if isinstance(splat := known(value), Splat):
        constant = ir.DenseElementsAttr.get_splat(type_, splat.element)
        return lambda builder: builder.constant(type_, constant)
    if defining_name(value) != "stablehlo.broadcast_in_dim":
        return None
    op = op_of(value)
    dims, shape = integers(op.attributes["broadcast_dimensions"]), ir.RankedTensorType(op.operands[0].type).shape
    varies = dim in dims and shape[dims.index(dim)] != 1
    return None if varies else lambda builder: builder.again(op, type_, list(op.operands))


MeshPattern = Pattern[MeshRewriter]


def on(
    kind: type[MeshOpView], rewrite: Callable[[ir.Operation, MeshRewriter], bool], readers: frozenset[str] | None = None
) -> MeshPattern:
    """A pattern that tries `rewrite` on operations of that class, or on their users named in `readers`."""
    return MeshPattern((kind.OPERATION_NAME,), rewrite, readers)


class PatternPass(Pass):
    """A pass that is a set of patterns."""

    patterns: ClassVar[tuple[MeshPattern, ...]]

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            return rewriter.apply(self.patterns)
