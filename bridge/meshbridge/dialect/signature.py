"""The signature of an operation, which is all that the verifier's rules see, and the check of its attributes.

A signature has attributes, operand and result types, and the meshes. No rule sees the operation itself, so that operations of one
signature share the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from meshbridge.dialect import attributes
from meshbridge.dialect.assembly.formats import FORMATS, Flag, IndexList, OpFormat, PartialClause, Symbol, ValueClause
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Mesh

Shape = tuple[int, ...]


class Broken(Exception):
    """A rule is broken; the text is the diagnostic."""


@dataclass(frozen=True)
class Signature:
    """The input of the verifier's rules."""

    name: str
    attributes: Mapping[str, ir.Attribute]
    operands: tuple[ir.Type, ...]
    results: tuple[ir.Type, ...]
    meshes: Mapping[str, Mesh]

    @property
    def mnemonic(self) -> str:
        return self.name.removeprefix("mesh.")

    @property
    def mesh_name(self) -> str:
        return str(ir.FlatSymbolRefAttr(self.attributes["mesh"]).value)

    @property
    def mesh(self) -> Mesh:
        """The mesh that the operation names."""
        mesh = self.meshes.get(self.mesh_name)
        if mesh is None:
            raise Broken(f'Undefined required mesh symbol "{self.mesh_name}".')
        return mesh

    def integers(self, name: str) -> tuple[int, ...]:
        return attributes.integers(self.attributes[name]) if name in self.attributes else ()

    def index(self, name: str) -> int:
        return int(ir.IntegerAttr(self.attributes[name]).value)

    def operand_shape(self) -> Shape:
        return shape_of(self.operands[0])

    def result_shape(self) -> Shape:
        return shape_of(self.results[0])

    def group_size(self) -> int:
        """The devices in one group; DYNAMIC if the size of a mesh axis is."""
        return group_size(self.mesh, self.integers("mesh_axes"))


def shape_of(type_: ir.Type) -> Shape:
    """The shape of a ranked type; unknown sizes are DYNAMIC."""
    return tuple(ir.ShapedType(type_).shape)


def element_of(type_: ir.Type) -> ir.Type:
    return ir.ShapedType(type_).element_type


def group_size(mesh: Mesh, axes: Iterable[int]) -> int:
    """The devices along `axes`, 1 for no axes; DYNAMIC if the size of an axis is."""
    sizes = [mesh.shape[axis] for axis in axes]
    return DYNAMIC if DYNAMIC in sizes else prod(sizes)


def check_attributes(signature: Signature) -> None:
    """Checks that every attribute of the operation's form is present and of its kind (upstream: ODS)."""
    forms = FORMATS[signature.mnemonic]
    form = next((form for form in forms if form.attributes & signature.attributes.keys()), forms[0])
    for element in form.elements:
        match element:
            case Symbol(name, declares):
                kind = ir.StringAttr if declares else ir.FlatSymbolRefAttr
                _require(signature, name, kind, "string attribute" if declares else "flat symbol reference attribute")
            case ValueClause():
                _require(signature, element.attribute, None, element.syntax.constraint)
                if not element.syntax.fits(str(signature.attributes[element.attribute])):
                    _unsatisfied(element.attribute, element.syntax.constraint)
            case IndexList(_, name, _, default):
                if name in signature.attributes or default != "":
                    _require(signature, name, ir.DenseI64ArrayAttr, "i64 dense array attribute")
            case Flag(name):
                if name in signature.attributes and not isinstance(signature.attributes[name], ir.UnitAttr):
                    _unsatisfied(name, "unit attribute")
            case PartialClause():
                _check_partial(signature)
    _check_segments(signature, form)


def _require(signature: Signature, name: str, kind: type[ir.Attribute] | None, constraint: str) -> None:
    if name not in signature.attributes:
        raise Broken(f"requires attribute '{name}'")
    if kind is not None and not isinstance(signature.attributes[name], kind):
        _unsatisfied(name, constraint)


def _unsatisfied(name: str, constraint: str) -> None:
    raise Broken(f"attribute '{name}' failed to satisfy constraint: {constraint}")


def _check_partial(signature: Signature) -> None:
    """Closed holes: an axis list without a kind or the reverse, no axes, and the kind that the spec forbids."""
    present = {name for name in ("partial_axes", "partial_type") if name in signature.attributes}
    if len(present) == 1:
        raise Broken("partial axes and partial type are expected together")
    if not present:
        return
    if not isinstance(signature.attributes["partial_axes"], ir.DenseI16ArrayAttr):
        _unsatisfied("partial_axes", "i16 dense array attribute")
    try:
        kind = attributes.kind(signature.attributes["partial_type"])
    except ValueError:
        _unsatisfied("partial_type", "Reduction of an iterator/mesh dimension.")
    if not signature.integers("partial_axes"):
        raise Broken("partial axes are expected to be non-empty")
    if kind == "generic":
        raise Broken("partial type generic is not allowed in a sharding")


def _check_segments(signature: Signature, form: OpFormat) -> None:
    """Checks that each segment has as many operands as its static list has dynamic entries (closed hole)."""
    if not form.segments:
        return
    sizes = signature.attributes.get("operandSegmentSizes")
    if not isinstance(sizes, ir.DenseI32ArrayAttr):
        raise Broken("requires attribute 'operandSegmentSizes'")
    if sum(sizes) != len(signature.operands) or len(sizes) != form.segments:
        raise Broken(f"operand count ({len(signature.operands)}) does not match with the total size ({sum(sizes)})")
    for element in form.elements:
        if isinstance(element, IndexList):
            check_dynamic_count(signature, element.attribute, sizes[element.segment])


def check_dynamic_count(signature: Signature, name: str, operands: int) -> None:
    """Raises Broken if the number of dynamic entries of the list `name` is not `operands` (closed hole)."""
    entries = signature.integers(name).count(DYNAMIC)
    if entries != operands:
        raise Broken(f'"{name}" has {entries} dynamic entries, but {operands} operands for them.')
