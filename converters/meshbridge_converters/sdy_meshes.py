"""The meshes of a module that comes from sdy, and what its shardings say over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.sharding import AxisRef
from meshbridge_converters import carriers, meshes, sdy_attributes
from meshbridge_converters.sdy_attributes import Annotation, SdyMesh, SdySharding


@dataclass
class Meshes:
    """The meshes of a module, by symbol and, for those that sdy has inlined, by contents; memoised readings of shardings."""

    by_key: dict[str | ir.Attribute, SdyMesh]
    used: list[str | ir.Attribute] = field(default_factory=list)
    read: dict[tuple[ir.Attribute, int], Annotation] = field(default_factory=dict)
    rewritten: dict[ir.Attribute, ir.Attribute] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module, carrying: Iterable[tuple[ir.Operation, str]]) -> Meshes:
        """Declares each mesh of `module` as `mesh.mesh`, its axes factored for the sub-axes in use; erases the `sdy.mesh`.

        `carrying` are the operations that carry shardings, with their names. Raises OpError where an axis cannot be factored.
        """
        used = _references(carrying)
        in_use = list(used)
        taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations if "sym_name" in op.attributes}
        free = (name for name in (f"inlined_mesh_{number}" for number in count()) if name not in taken)
        by_key: dict[str | ir.Attribute, SdyMesh] = {}
        for symbol, op in sdy_attributes.declared_meshes(module).items():
            by_key[symbol] = _located(op, symbol, op.attributes["mesh"], used.pop(symbol, ({}, op))[0])
            others = {name: op.attributes[name] for name in op.attributes if name not in ("sym_name", "mesh")}
            meshes.declare(by_key[symbol], others, op.location, ir.InsertionPoint(op))
            op.erase()
        top = ir.InsertionPoint.at_block_begin(module.body)
        for attr, (refs, op) in used.items():
            if isinstance(attr, str):  # sdy's verifier finds a mesh in any module around, we only look in this one
                raise OpError(op, f"names the mesh @{attr}, which stands in another module")
            by_key[attr] = _located(op, next(free), attr, refs, inlined=True)
            meshes.declare(by_key[attr], {}, op.location, top)
        return cls(by_key, in_use)

    def with_axes(self, names: Sequence[str]) -> SdyMesh | None:
        """The mesh of something that names only axes: the first that is in use, or else declared, and has them all."""
        found = [self.by_key[key] for key in (*self.used, *self.by_key)]
        return next((mesh for mesh in found if mesh.value.runs.keys() >= set(names)), None)

    def of_sharding(self, attr: ir.Attribute) -> SdyMesh:
        """The mesh of a sharding."""
        return self.by_key[sdy_attributes.mesh_of(attr)]

    def annotation(self, attr: ir.Attribute, rank: int) -> Annotation:
        """What a sharding says of a tensor of `rank` dimensions."""
        found = self.read.get((attr, rank))
        if found is None:
            found = self.read[attr, rank] = sdy_attributes.read(attr, self.of_sharding(attr), rank)
        return found

    def without_symbols(self, attr: ir.Attribute) -> ir.Attribute:
        """A sharding that names its mesh by its contents."""
        found = self.rewritten.get(attr)
        if found is None:
            found = self.rewritten[attr] = sdy_attributes.on_mesh(attr, self.of_sharding(attr).attr)
        return found


Used = dict[AxisRef, ir.Operation]
"""The axis references that a module makes, and where it makes each first."""


def _references(carrying: Iterable[tuple[ir.Operation, str]]) -> dict[str | ir.Attribute, tuple[Used, ir.Operation]]:
    """Per mesh, the axis references in use and the first operation that uses the mesh."""
    seen: set[ir.Attribute] = set()
    used: dict[str | ir.Attribute, tuple[Used, ir.Operation]] = {}
    for op, name in carrying:
        for attr in carriers.shardings(op, name):
            if attr not in seen:
                seen.add(attr)
                refs, _ = used.setdefault(sdy_attributes.mesh_of(attr), ({}, op))
                for ref in SdySharding.of(attr).axes:
                    refs.setdefault(ref, op)
    return used


def _located(op: ir.Operation, symbol: str, attr: ir.Attribute, refs: Used, inlined: bool = False) -> SdyMesh:
    """The mesh, or a diagnostic at the first operation whose axis references do not go with those before it."""
    culprit = op
    try:
        return sdy_attributes.sdy_mesh(symbol, attr, refs, inlined)
    except MeshError as error:
        in_order = list(refs)
        for number in range(1, len(in_order)):
            try:
                sdy_attributes.sdy_mesh(symbol, attr, in_order[:number], inlined)
            except MeshError:
                break
            culprit = refs[in_order[number]]
        raise OpError(culprit, str(error)) from None
