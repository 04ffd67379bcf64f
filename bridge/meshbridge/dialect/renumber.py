"""Divides mesh axes into sub-axes, wherever a program names them.

Before:  mesh.mesh @m(shape = 4)
         %1 = mesh.broadcast %0 on @m mesh_axes = [0] root = [3] : (tensor<8xf32>) -> tensor<8xf32>
After:   mesh.mesh @m(shape = 2x2) {meshbridge.axis_digits = array<i64: 2>}
         %1 = mesh.broadcast %0 on @m mesh_axes = [0, 1] root = [1, 1] : (tensor<8xf32>) -> tensor<8xf32>

The program does the same on each device. A coordinate along an axis, constant or not, becomes one along each sub-axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from meshbridge.dialect import attributes
from meshbridge.dialect.carried import OF_AXES, mesh_of
from meshbridge.dialect.module_mesh import named_meshes
from meshbridge.dialect.ops import (
    AXIS_DIGITS,
    BOUNDARY_MESH,
    SOURCE_ATTRIBUTES,
    MeshOp,
    ShiftOp,
)
from meshbridge.ir.digits import axis_digits
from meshbridge.ir.groups import Groups, rotated, shifted
from meshbridge.ir.index_arithmetic import Arithmetic, Index
from meshbridge.ir.mlir import inside, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.subaxes import parts_of

_OF_MESH_OPS = frozenset({"mesh_axes", "target_axes", "axes", "split_axes", "partial_axes"})
_CARRIED = OF_AXES | {SOURCE_ATTRIBUTES}
"""Discardable attributes that list mesh axes."""

_OF_OTHER_OPS = _CARRIED | {"arg_attrs", "res_attrs"}
"""Attributes of other operations that list mesh axes."""

_NAMING = _OF_MESH_OPS | _OF_OTHER_OPS | {"mesh"}
"""Every operation that names an axis or a mesh has one of these attributes."""

_DEVICES = ("root", "source", "destination", "device")
"""Attributes that list coordinates. Dynamic coordinates are the last operands."""


def renumber(
    module: ir.Module,
    before: Mesh,
    after: Mesh,
    *,
    ops_below: Iterable[tuple[ir.Operation, list[ir.Operation]]] = (),
    parts: Sequence[Axes] | None = None,
) -> bool:
    """Declares `after`, in which axes of `before` are divided (see `subaxes.cut`), and replaces the axes of `before` by its axes.

    `parts` gives the new axes of each old one, if `after` is another view of the same devices. `ops_below` gives, for some
    functions, the operations that may name axes. Returns False if an operation was replaced, because it has an operand or result
    per axis.
    """
    renumbering = _Renumbering(before, tuple(parts_of(before, after) if parts is None else parts), after)
    with module.context, ir.Location.unknown():
        for view in list(module.body.operations):
            if isinstance(view, MeshOp):
                if view.sym_name == before.name:
                    view.attributes["shape"] = attributes.integers_attr(after.shape)
                    view.attributes[AXIS_DIGITS] = attributes.integers_attr(after.digits)
                continue
            function = view.operation
            inner_ops = next((ops for known_function, ops in ops_below if known_function == function), None)
            naming = [op for op in (function, *(inside(function) if inner_ops is None else inner_ops)) if may_name_axes(op)]
            if before.name in named_meshes(naming):
                for op in naming:
                    renumbering.operation(op)
    return not renumbering.has_replaced


def may_name_axes(op: ir.Operation) -> bool:
    """True if an operation has an attribute that names an axis or a mesh."""
    attrs = op.attributes
    return len(attrs) > 0 and not _NAMING.isdisjoint(attrs.keys())


@dataclass
class _Renumbering:
    before: Mesh
    parts: tuple[Axes, ...]
    after: Mesh
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    groups: Groups = field(default_factory=Groups)
    has_replaced: bool = False

    def operation(self, op: ir.Operation) -> None:
        """Renumbers the axes of one operation; replaces it if its operands or results change."""
        if not op.name.startswith("mesh."):
            if not _OF_OTHER_OPS.isdisjoint(op.attributes.keys()) and mesh_of(op) in (None, self.before.name):
                self._set(op, _OF_OTHER_OPS)
            return
        if mesh_of(op) not in (None, self.before.name):
            return
        with ir.InsertionPoint(op), op.location:
            if op.name in ("mesh.process_multi_index", "mesh.mesh_shape"):
                self._coordinates(op)
            elif op.name == ShiftOp.OPERATION_NAME:
                self._shift(ShiftOp(op))
            else:
                self._mesh_operation(op)

    def _set(self, op: ir.Operation, names: Iterable[str]) -> None:
        for name in names:
            if name in op.attributes:
                op.attributes[name] = self._attribute(op.attributes[name])

    def _attribute(self, attr: ir.Attribute) -> ir.Attribute:
        """Renumbers a list of axes, lists of axes per dimension or result, or the attributes of arguments and results."""
        if isinstance(attr, ir.ArrayAttr):
            return ir.ArrayAttr.get([self._attribute(entry) for entry in attr])
        if isinstance(attr, ir.DictAttr):
            entries = {attr[index].name: attr[index].attr for index in range(len(attr))}
            if entries.get(BOUNDARY_MESH, self._symbol) != self._symbol:
                return attr
            return ir.DictAttr.get({name: self._attribute(e) if name in _CARRIED else e for name, e in entries.items()})
        if isinstance(attr, ir.DenseI16ArrayAttr | ir.DenseI64ArrayAttr):
            return attributes.axes_attr(self._axes(attributes.integers(attr)))
        return attributes.axis_array_attr(tuple(map(self._axes, attributes.axis_array(attr))))

    @property
    def _symbol(self) -> ir.Attribute:
        return ir.FlatSymbolRefAttr.get(self.before.name)

    def _axes(self, axes: Iterable[int]) -> Axes:
        return tuple(chain.from_iterable(self.parts[axis] for axis in axes))

    def _sizes(self, axis: int) -> list[int]:
        return [self.after.shape[part] for part in self.parts[axis]]

    def _mesh_operation(self, op: ir.Operation) -> None:
        """Renumbers an operation whose results do not change."""
        listed = next((name for name in _DEVICES if name in op.attributes), None)
        if listed is not None or op.name == "mesh.neighbors_linear_indices":
            self._device(op, listed)
        else:
            self._set(op, _OF_MESH_OPS | _CARRIED)

    def _device(self, op: ir.Operation, listed: str | None) -> None:
        """Renumbers an operation that names a device by coordinates in its group or on the mesh."""
        every = tuple(range(self.before.rank))
        axes = attributes.integers(op.attributes["mesh_axes"]) if "mesh_axes" in op.attributes else every
        entries = attributes.integers(op.attributes[listed]) if listed else (DYNAMIC,) * len(every)
        first_index = len(op.operands) - entries.count(DYNAMIC)
        leading, unknown = list(op.operands)[:first_index], iter(list(op.operands)[first_index:])
        device: list[Index] = []
        for axis, entry in zip(axes, entries, strict=True):
            digits = self.arithmetic.delinearize(next(unknown) if entry == DYNAMIC else entry, self._sizes(axis), 0)
            device += [digits[place] for place in sorted(digits)]
        values = [digit for digit in device if not isinstance(digit, int)]
        self._set(op, _OF_MESH_OPS)
        attrs = {name: op.attributes[name] for name in op.attributes}
        if listed:
            attrs[listed] = attributes.integers_attr(digit if isinstance(digit, int) else DYNAMIC for digit in device)
        if "operandSegmentSizes" in attrs:
            segments = [*attributes.integers(attrs["operandSegmentSizes"])[:-1], len(values)]
            attrs["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(segments)
        self._replace(op, op.name, [*leading, *values], attrs)

    def _coordinates(self, op: ir.Operation) -> None:
        """Renumbers an operation with one result per axis, which now has one per sub-axis."""
        axes = attributes.integers(op.attributes["axes"]) or tuple(range(self.before.rank))
        parts = self._axes(axes)
        attrs = {"mesh": self._symbol, "axes": attributes.axes_attr(parts)}
        results = iter(ir.Operation.create(op.name, [ir.IndexType.get()] * len(parts), [], attrs).results)
        for result, axis in zip(op.results, axes, strict=True):
            digits: Sequence[Index] = [next(results) for _ in self.parts[axis]]
            is_size = op.name == "mesh.mesh_shape"
            index = self.arithmetic.product(digits) if is_size else self.arithmetic.linearize(digits, self._sizes(axis))
            result.replace_all_uses_with(self.arithmetic.value(index))
        op.erase()
        self.has_replaced = True

    def _shift(self, op: ShiftOp) -> None:
        """Renumbers a shift. Neighbours along a divided axis are none along a sub-axis: such a shift becomes a permute."""
        axis, size = op.shift_axis, self.before.shape[op.shift_axis]
        if len(self.parts[axis]) == 1:
            op.operation.attributes["shift_axis"] = attributes.index_attr(self.parts[axis][0])
            self._set(op.operation, _OF_MESH_OPS)
            return
        steps = rotated(size, op.offset) if op.rotate else shifted(size, op.offset)
        if len(steps):
            attrs = self.groups.permute(self.before, axis_digits(self.before, (axis,)), steps)
            self._replace(op.operation, "stablehlo.collective_permute", list(op.operation.operands), attrs)
        else:  # no device receives anything, so the result is undefined
            op.operation.results[0].replace_all_uses_with(op.input)
            op.operation.erase()
            self.has_replaced = True

    def _replace(self, op: ir.Operation, name: str, operands: Sequence[ir.Value], attrs: Mapping[str, ir.Attribute]) -> None:
        replacement = ir.Operation.create(name, [result.type for result in op.results], operands, dict(attrs))
        for old_result, new_result in zip(op.results, replacement.results, strict=True):
            old_result.replace_all_uses_with(new_result)
        op.erase()
        self.has_replaced = True
