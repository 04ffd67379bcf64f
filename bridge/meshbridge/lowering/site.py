"""The context in which one operation is lowered, and the table of lowerings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from meshbridge.dialect.ops import MeshOpView
from meshbridge.ir.builder import Builder
from meshbridge.ir.digits import Digits, axis_digits
from meshbridge.ir.groups import Groups, Steps
from meshbridge.ir.mlir import OpError, ir
from meshbridge.ir.positions import Positions
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ir.shifts import shift


@dataclass(frozen=True)
class Site:
    """An operation to be lowered: its mesh and axes, and the builder of its replacement."""

    op: ir.Operation
    mesh: Mesh
    axes: Axes
    """The axes of the device group from outer to inner."""
    builder: Builder
    groups: Groups
    positions: Positions
    constants: dict[ir.Value, int]
    """The numbers of constant scalars."""

    @property
    def group_size(self) -> int:
        return self.mesh.group_size(self.axes)

    @property
    def digits(self) -> Digits:
        """The axes as digits."""
        return axis_digits(self.mesh, self.axes)

    @property
    def result_type(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.op.results[0].type)

    def stages(self, kind: str, size: float) -> tuple[Digits, ...]:
        """The stages into which a collective of this kind over `size` bytes is divided, outer digits first."""
        return self.groups.forms.stages(kind, self.mesh, self.digits, size)

    def in_group(self) -> ir.Value:
        """This device's number in its group, `tensor<i32>`."""
        return self.positions.along(self.mesh, self.digits, self.builder)

    def known(self, entry: int | ir.Value) -> int | ir.Value:
        """An entry of a dynamic index list, as an integer if it is constant."""
        return entry if isinstance(entry, int) else self.constants.get(entry, entry)

    def permute(self, value: ir.Value, steps: Steps) -> ir.Value:
        """Permutes `value` within each group by `steps`, which are not empty; members that receive nothing get zeros."""
        attrs = self.groups.permute(self.mesh, self.digits, steps)
        return self.builder.value("collective_permute", value.type, [value], attrs)

    def shifted(self, value: ir.Value, offset: int, *, rotate: bool = False) -> ir.Value:
        """Shifts `value` by `offset` members within each group (`shifts.shift`)."""
        return shift(self.builder, value, self.mesh, self.digits, offset, self.groups, self.positions, rotate=rotate)

    def error(self, message: str, hint: str = "") -> OpError:
        """A diagnostic about this operation."""
        return OpError(self.op, message, hint)


OpT = TypeVar("OpT", bound=MeshOpView)
Lowering = Callable[[OpT, Site], Sequence[ir.Value]]

LOWERINGS: Registry[str, Lowering[Any]] = Registry("lowering")
"""By operation name: the function that builds the replacement and returns the values for its results."""


def lowers(cls: type[OpT]) -> Callable[[Lowering[OpT]], Lowering[OpT]]:
    """Enters a lowering in LOWERINGS."""
    return LOWERINGS.register(str(cls.OPERATION_NAME))
