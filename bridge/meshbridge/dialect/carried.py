"""Checks the discardable attributes in which programs carry what the mesh dialect cannot express.

MLIR allows any attribute under any name. A program from outside is checked once, when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.dialect.ops import (
    AXIS_DIGITS,
    AXIS_NAMES,
    BOUNDARY_GLOBAL,
    BOUNDARY_MESH,
    BOUNDARY_PARTIAL,
    BOUNDARY_SPLIT,
    DEVICE_IDS,
    MANUAL_AXES,
    NAN_FOLLOWS,
    OPEN_DIMS,
    OPTION,
    PRIORITIES,
    REPLICATED_AXES,
    REQUIRED,
    RESULT_SPLIT,
    SOURCE,
    SOURCE_ATTRIBUTES,
    MeshOp,
    ShardOp,
)
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import MeshError, VerifyError, ir, walk
from meshbridge.ir.uses import defining_name

PREFIX = b"meshbridge."
"""The text that a program with any of these attributes contains."""


def check(module: ir.Module) -> None:
    """Raises VerifyError if an attribute has another kind than its name requires, or names an axis that no mesh has."""
    ranks = {view.sym_name: len(view.shape) for view in mesh_ops(module.body) if _has_shape(view)}
    for op in walk(module.operation):
        for name, attr in _attributes(op):
            if name in _KINDS:
                expected, is_kind = _KINDS[name]
                if not is_kind(attr):
                    raise VerifyError(op, f"attribute '{name}' is expected to be {expected}, found {attr}")
                if not _fits(name, attr, op):
                    raise VerifyError(op, f"attribute '{name}' does not fit the operation: {attr}")
            if name in OF_AXES and ranks:
                rank = ranks.get(mesh_of(op) or "", max(ranks.values()))
                if unknown := [axis for axis in _axes(attr) if not 0 <= axis < rank]:
                    raise VerifyError(op, f"attribute '{name}' names axis {unknown[0]} of a mesh of {rank} axes")


OF_AXES = frozenset({REPLICATED_AXES, MANUAL_AXES, OPTION, BOUNDARY_SPLIT, BOUNDARY_PARTIAL, RESULT_SPLIT})
"""The attributes that list mesh axes."""


def mesh_of(op: ir.Operation) -> str | None:
    """The mesh that an operation names, directly or by its sharding; None if it names none."""
    for value in op.operands if op.name in ("mesh.shard", "mesh.shard_shape") else ():
        if defining_name(value) == "mesh.sharding":
            return mesh_of(op_of(value))
    name = "mesh" if op.name.startswith("mesh.") else BOUNDARY_MESH
    return str(ir.FlatSymbolRefAttr(op.attributes[name]).value) if name in op.attributes else None


def _axes(attr: ir.Attribute) -> Iterable[int]:
    if isinstance(attr, ir.ArrayAttr):
        return chain.from_iterable(map(_axes, attr))
    return attributes.integers(attr) if _is_integers(attr) else chain.from_iterable(attributes.axis_array(attr))


def _attributes(op: ir.Operation) -> Iterator[tuple[str, ir.Attribute]]:
    """The attributes of an op, and those of a function's arguments and results."""
    for name, attr in op.attributes.items():
        yield name, attr
        if name in ("arg_attrs", "res_attrs") and isinstance(attr, ir.ArrayAttr):
            for entry in attr:
                if isinstance(entry, ir.DictAttr):
                    yield from ((entry[index].name, entry[index].attr) for index in range(len(entry)))


def _is_integers(attr: ir.Attribute) -> bool:
    return isinstance(attr, (ir.DenseI16ArrayAttr, ir.DenseI64ArrayAttr))


def _is_axis_array(attr: ir.Attribute) -> bool:
    try:
        attributes.axis_array(attr)
    except MeshError:
        return False
    return True


def _is_strings(attr: ir.Attribute) -> bool:
    return isinstance(attr, ir.ArrayAttr) and all(isinstance(entry, ir.StringAttr) for entry in attr)


def _are_axis_arrays(attr: ir.Attribute) -> bool:
    return isinstance(attr, ir.ArrayAttr) and all(_is_axis_array(entry) for entry in attr)


def _is_tensor_type(attr: ir.Attribute) -> bool:
    return isinstance(attr, ir.TypeAttr) and isinstance(attr.value, ir.RankedTensorType)


_INTEGERS = ("an array of integers", _is_integers)
_AXES = ("an array of axis lists", _is_axis_array)

_KINDS: dict[str, tuple[str, Callable[[ir.Attribute], bool]]] = {
    AXIS_NAMES: ("an array of strings", _is_strings),
    AXIS_DIGITS: _INTEGERS,
    DEVICE_IDS: _INTEGERS,
    OPEN_DIMS: _INTEGERS,
    PRIORITIES: _INTEGERS,
    REPLICATED_AXES: _INTEGERS,
    MANUAL_AXES: _INTEGERS,
    OPTION: _AXES,
    BOUNDARY_SPLIT: _AXES,
    BOUNDARY_PARTIAL: _INTEGERS,
    RESULT_SPLIT: ("an array of arrays of axis lists", _are_axis_arrays),
    BOUNDARY_GLOBAL: ("the type of a ranked tensor", _is_tensor_type),
    BOUNDARY_MESH: ("a symbol", lambda attr: isinstance(attr, ir.FlatSymbolRefAttr)),
    SOURCE: ("a string", lambda attr: isinstance(attr, ir.StringAttr)),
    SOURCE_ATTRIBUTES: ("a dictionary", lambda attr: isinstance(attr, ir.DictAttr)),
    NAN_FOLLOWS: ("a unit", lambda attr: isinstance(attr, ir.UnitAttr)),
    REQUIRED: ("true or false", lambda attr: isinstance(attr, ir.BoolAttr)),
}
"""By attribute: its kind in words, and the test for it."""


def _has_shape(mesh: MeshOp) -> bool:
    return isinstance(mesh.operation.attributes.get("shape"), ir.DenseI64ArrayAttr)


def _fits(name: str, attr: ir.Attribute, op: ir.Operation) -> bool:
    """True if the entries of `attr` fit the axes or dimensions of `op`."""
    if op.name == MeshOp.OPERATION_NAME and name in (AXIS_NAMES, AXIS_DIGITS, DEVICE_IDS):
        mesh = MeshOp(op)
        if not _has_shape(mesh):  # which the verifier refuses
            return True
        digits = op.attributes.get(AXIS_DIGITS)
        counts = attributes.integers(digits) if digits is not None and _is_integers(digits) else (1,) * len(mesh.shape)
        if name == AXIS_NAMES:
            names = [str(entry) for entry in ir.ArrayAttr(attr)]
            return len(names) in (0, len(counts)) and len(names) == len(set(names))
        if name == AXIS_DIGITS:
            return min(counts, default=1) > 0 and sum(counts) == len(mesh.shape)
        ids = attributes.integers(attr)
        return len(ids) == mesh.value.size and (len(ids) == 1 or sorted(ids) == list(range(len(ids))))
    if op.name == ShardOp.OPERATION_NAME and name in (OPEN_DIMS, PRIORITIES):
        type_ = op.operands[0].type
        rank = type_.rank if isinstance(type_, ir.RankedTensorType) else 0
        entries = attributes.integers(attr)
        return len(entries) == rank if name == PRIORITIES else all(0 <= entry < rank for entry in entries)
    return True
