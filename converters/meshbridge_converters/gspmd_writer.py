"""GSPMD's annotations as sdy shardings: the meshes that they are on, and what each says over its mesh (`Writer`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from meshbridge.ir.mlir import OpError, ir, sdy
from meshbridge.ir.sharding import AxisRef, Mesh
from meshbridge_converters import mesh_inference
from meshbridge_converters.carriers import NAMED_IN_HLO
from meshbridge_converters.gspmd_annotations import NUM_PARTITIONS, Survey, tilings
from meshbridge_converters.hlo_shardings import Tiling
from meshbridge_converters.mesh_inference import InferredMesh
from meshbridge_converters.sdy_attributes import Refs, SdySharding


@dataclass
class Writer:
    """Writes tilings as sdy shardings: named ones over the meshes that they name, all others over one that is inferred.

    `symbol` is the mesh of what names none, with the axes `axes`.
    """

    top: ir.InsertionPoint
    taken: set[str]
    devices: int | None
    inferred: InferredMesh | None = None
    symbol: str = ""
    axes: Sequence[tuple[str, int]] = ()
    named: dict[Mesh, str] = field(default_factory=dict)
    maximal: dict[int, str] = field(default_factory=dict)
    written: dict[object, ir.Attribute] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module, survey: Survey) -> Writer:
        """Declares every mesh as an `sdy.mesh`.

        Raises OpError at the first annotation that has no mesh together with those before it.
        """
        taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations if "sym_name" in op.attributes}
        found = {one: op for op, text in reversed(list(survey.strings())) for one in tilings(op, text)}
        attrs = module.operation.attributes
        devices = int(ir.IntegerAttr(attrs[NUM_PARTITIONS]).value) if NUM_PARTITIONS in attrs else None
        writer = cls(ir.InsertionPoint.at_block_begin(module.body), taken, devices)
        writer._check_one_kind(found)
        for one in reversed(found):
            if one.mesh is not None:
                writer._declare_named(one.mesh, found[one])
        if not any(mesh.rank for mesh in writer.named):
            writer._declare_inferred(found)
        return writer

    def _check_one_kind(self, found: dict[Tiling, ir.Operation]) -> None:
        tiled = next((op for one, op in found.items() if one.kind == "tiled"), None)
        named = next((one for one in found if one.mesh is not None and one.mesh.rank), None)
        if tiled is not None and named is not None:
            raise OpError(tiled, "carries a tiling by device numbers, while other shardings of the module name mesh axes")

    def _declare_inferred(self, found: dict[Tiling, ir.Operation]) -> None:
        """What names no mesh is tiled over one whose axes are called by their number, as GSPMD has no names."""
        self.inferred = _infer(found, self.devices)
        self.axes = tuple((str(axis), size) for axis, size in enumerate(self.inferred.shape))
        self.symbol = self._declare("mesh", self.axes, self.inferred.device_ids)

    def _declare_named(self, mesh: Mesh, op: ir.Operation) -> None:
        if mesh in self.named:
            return
        if mesh.rank and self.devices not in (None, mesh.size):
            raise OpError(op, f"carries a sharding over a mesh of {mesh.size} devices, expected {self.devices}")
        wanted = "mesh" if mesh.rank else "empty_mesh"
        self.named[mesh] = self._declare(wanted, mesh.named_axes, mesh.device_ids, {NAMED_IN_HLO: ir.UnitAttr.get()})
        if mesh.rank and not self.symbol:
            self.symbol, self.axes = self.named[mesh], mesh.named_axes

    def _declare(
        self,
        wanted: str,
        axes: Iterable[tuple[str, int]],
        device_ids: Iterable[int],
        others: dict[str, ir.Attribute] | None = None,
    ) -> str:
        names = (wanted, *(f"{wanted}_{number}" for number in range(len(self.taken) + 1)))
        name = next(name for name in names if name not in self.taken)
        self.taken.add(name)
        attr = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in axes], list(device_ids))
        attrs = {"sym_name": ir.StringAttr.get(name), "mesh": attr, **(others or {})}
        ir.Operation.create("sdy.mesh", [], [], attrs, ip=self.top)
        return name

    def _mesh(self, tiling: Tiling) -> tuple[str, Sequence[tuple[str, int]]]:
        """The symbol and the axes of the mesh that `tiling` is on."""
        return (self.symbol, self.axes) if tiling.mesh is None else (self.named[tiling.mesh], tiling.mesh.named_axes)

    def manual_axes(self, tiling: Tiling) -> frozenset[str]:
        """The names of the mesh axes along which a value is local already."""
        if tiling.kind == "manual":
            return frozenset(name for name, _ in self._mesh(tiling)[1])
        if tiling.kind == "named":
            return frozenset(ref.name for ref in tiling.axes_of("manual"))
        return frozenset(ref.name for ref in self._placed(tiling, "manual")) if tiling.kind == "tiled" else frozenset()

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names of axes as they stand in their mesh."""
        order = [name for axes in (self.axes, *(mesh.named_axes for mesh in self.named)) for name, _ in axes]
        return sorted(names, key=order.index)

    def _placed(self, tiling: Tiling, wanted: str) -> Refs:
        assert self.inferred is not None
        return _refs(axis for kind, axes in self.inferred.place(tiling).subgroups if kind == wanted for axis in axes)

    def sharding(self, op: ir.Operation, tiling: Tiling, rank: int, opened: Sequence[int] = ()) -> ir.Attribute:
        """The `#sdy.sharding<…>` of `tiling` for a value of `rank` dimensions; what it says of manual axes is left out.

        Raises OpError, at `op`, where the ranks differ, and for words that say nothing over the mesh.
        """
        key = (tiling, rank, opened)
        if key not in self.written:
            self.written[key] = self._write(op, tiling, rank, opened)
        return self.written[key]

    def _write(self, op: ir.Operation, tiling: Tiling, rank: int, opened: Sequence[int]) -> ir.Attribute:
        if tiling.kind == "maximal":
            return SdySharding(self._maximal(op, tiling.devices[0]), ()).attr
        said = self._said(tiling, rank)
        if len(said.dims) != rank:
            raise OpError(op, f"carries a tiling of {len(said.dims)} dimensions for a value of rank {rank}")
        if tiling.kind == "unreduced" and prod(size for _, size in self._mesh(tiling)[1]) == 1:
            hint = f"{NUM_PARTITIONS} of the module says for how many devices it is"
            raise OpError(op, "carries {unreduced}, but nothing says over which devices", hint=hint)
        return replace(said, open_dims=(*said.open_dims, *opened)).attr

    def _said(self, tiling: Tiling, rank: int) -> SdySharding:
        symbol, axes = self._mesh(tiling)
        if tiling.kind == "named":
            return SdySharding(symbol, tiling.dims, tiling.open_dims, tiling.axes_of("replicated"), tiling.axes_of("unreduced"))
        if tiling.kind == "tiled":
            assert self.inferred is not None
            dims = tuple(map(_refs, self.inferred.place(tiling).split))
            unreduced = sorted(self._placed(tiling, "unreduced"), key=lambda ref: int(ref.name))
            return SdySharding(symbol, dims, unreduced=tuple(unreduced))
        whole = tuple(AxisRef(name) for name, _ in axes) if tiling.kind == "unreduced" else ()
        return SdySharding(symbol, ((),) * rank, tuple(range(rank)) if tiling.kind == "unknown" else (), unreduced=whole)

    def _maximal(self, op: ir.Operation, device: int) -> str:
        if self.devices is not None and device >= self.devices:
            raise OpError(op, f"carries a sharding on device {device}, expected one of 0 to {self.devices - 1}")
        if device not in self.maximal:
            self.maximal[device] = self._declare(f"maximal_mesh_{device}", [], [device])
        return self.maximal[device]


def _refs(axes: Iterable[int]) -> Refs:
    """Axes of an inferred mesh: they are called by their number."""
    return tuple(AxisRef(str(axis)) for axis in axes)


def _infer(found: dict[Tiling, ir.Operation], declared: int | None) -> InferredMesh:
    """The mesh of all tilings; on failure, blames the first operation whose tiling does not go with those before.

    It is for as many devices as the module declares, or else as its tilings have.
    """
    in_order = list(reversed(found))
    devices = declared or max((len(tiling.devices) for tiling in found if tiling.kind == "tiled"), default=1)
    try:
        return mesh_inference.infer(in_order, devices)
    except ValueError:
        for count, last in enumerate(in_order, 1):
            try:
                mesh_inference.infer(in_order[:count], devices)
            except ValueError as error:
                raise OpError(found[last], str(error)) from None
        raise
