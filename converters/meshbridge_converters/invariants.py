"""Rules of Shardy's compiler API that sdy's own verifier does not check.

Of "every manual axis is explicitly used in all in/out shardings" no check is left: JAX writes shardings that leave replicated
manual axes out, and Shardy reads them as replicated, as we do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meshbridge.ir.mlir import MANUAL, OpError, ir, sdy, source_location, tensor_type
from meshbridge_converters import carriers, sdy_attributes
from meshbridge_converters.sdy_attributes import SdyMesh


def manual_axes(op: ir.Operation) -> list[str]:
    """The names in a manual computation's `manual_axes`."""
    attr = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return [str(attr[index]) for index in range(len(attr))]


def put_on_one_mesh(op: ir.Operation, declared: Mapping[str, ir.Attribute]) -> None:
    """All in/out shardings of a manual computation refer to the same mesh.

    One that refers to an equal mesh in place gets the name; so does one over a mesh without axes, which says that its value is
    replicated. `declared` are the meshes by symbol. Raises OpError.
    """
    found = [attr for name in ("in_shardings", "out_shardings") for attr in carriers.per_value(op.attributes[name])]
    meshes = dict.fromkeys(map(sdy_attributes.mesh_of, found))
    contents = {mesh: declared.get(mesh) if isinstance(mesh, str) else mesh for mesh in meshes}
    with_axes = [mesh for mesh in meshes if not _says_nothing(contents[mesh])] or list(meshes)
    if len(meshes) < 2:
        return
    symbols = [mesh for mesh in with_axes if isinstance(mesh, str)]
    if len(symbols) > 1 or len({contents[mesh] for mesh in with_axes}) > 1:
        named = " and ".join(f"@{mesh}" if isinstance(mesh, str) else str(mesh) for mesh in with_axes)
        raise OpError(op, f"expected in_shardings and out_shardings on one mesh, found {named}")
    chosen = (symbols or with_axes)[0]
    carriers.rewrite(op, MANUAL, lambda attr: sdy_attributes.on_mesh(attr, chosen))


def _says_nothing(mesh: ir.Attribute | None) -> bool:
    return mesh is not None and not sdy_attributes.mesh_axes(mesh) and not list(sdy.MeshAttr(mesh).device_ids)


def check_manual_axes(op: ir.Operation, mesh: SdyMesh) -> None:
    """The manual axes of a computation stand in the order of the mesh, each once.

    Raises OpError.
    """
    axes = manual_axes(op)
    expected = [name for name in mesh.value.runs if name in axes]
    if axes != expected:
        raise OpError(op, f"expected manual_axes in the order of the mesh, {_listed(expected)}, found {_listed(axes)}")


def _listed(axes: list[str]) -> str:
    return "{" + ", ".join(f'"{axis}"' for axis in axes) + "}"


class _Member(NamedTuple):
    op: ir.Operation
    rank: int
    manual: frozenset[str]


@dataclass
class Groups:
    """The sharding groups of a module: members share one sharding, so they agree in rank and stand under the same manual axes."""

    first: dict[int, _Member] = field(default_factory=dict)

    def check(self, op: ir.Operation, manual: frozenset[str]) -> None:
        """Takes in the member `op`, which stands under the axes `manual`.

        Raises OpError where it cannot be sharded as the group's first member is.
        """
        group = int(ir.IntegerAttr(op.attributes["group_id"]).value)
        tensor = tensor_type(op.operands[0])
        member = _Member(op, tensor.rank if tensor else 0, manual)
        first = self.first.setdefault(group, member)
        where = f"the group's first member at {source_location(first.op)}"
        if member.rank != first.rank:
            raise OpError(op, f"in group {group} has rank {member.rank}, expected {first.rank} like {where}")
        if member.manual != first.manual:
            raise OpError(
                op,
                f"in group {group} stands under the manual axes {_listed(sorted(manual))}, "
                f"expected {_listed(sorted(first.manual))} like {where}",
            )
