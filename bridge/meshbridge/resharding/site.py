"""Where the steps of a plan are written, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshbridge.ir.builder import Builder, element_of, tensor
from meshbridge.ir.digits import Digits, whole_axes
from meshbridge.ir.groups import Attributes, Groups
from meshbridge.ir.mlir import ir
from meshbridge.ir.positions import Positions
from meshbridge.ir.sharding import Axes, Mesh


@dataclass
class StepSite:
    """Where steps are written, and what they share."""

    mesh: Mesh
    emit: Builder
    groups: Groups = field(default_factory=Groups)
    positions: Positions = field(default_factory=Positions)

    def number(self, digits: Digits) -> ir.Value:
        """This device's number in its group along `digits`."""
        return self.positions.along(self.mesh, digits, self.emit)

    def permute(self, value: ir.Value, attrs: Attributes) -> ir.Value:
        """Permutes `value` as the groups' `attrs` say; zeros on devices that are no target."""
        return self.emit.value("collective_permute", value.type, [value], attrs)

    def after(self, index: ir.Value, value: ir.Value) -> ir.Value:
        """`index`, with a dependence on `value`.

        XLA drops optimization barriers before it schedules, and then starts all rounds of an exchange at once, each with its own
        buffers. It keeps a number that is added on devices that do not exist.
        """
        emit, element = self.emit, self.emit.corner(value)
        if isinstance(element_of(element), ir.ComplexType):
            element = emit.value("real", tensor([], ir.ComplexType(element_of(element)).element_type), [element])
        never = emit.compare("GE", self.positions.logical(emit), self.mesh.size)
        return emit.add(index, emit.select(never, emit.convert(element, element_of(index)), 0))

    def axes(self, digits: Digits) -> Axes | None:
        """The mesh axes that `digits` spell, if any."""
        return whole_axes(self.mesh, digits)
