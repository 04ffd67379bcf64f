"""GSPMD's annotations of a module: where they are (`Survey`), and what they are in sdy (`Writer`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from meshbridge.mlir import MeshError, OpError, ir, sdy, walk_all
from meshbridge_converters import hlo_shardings, mesh_inference
from meshbridge_converters.carriers import FUNCTION
from meshbridge_converters.hlo_shardings import Tiling
from meshbridge_converters.mesh_inference import InferredMesh

MHLO_SHARDING = "mhlo.sharding"
"""The attribute that carries an HloSharding string."""

NUM_PARTITIONS = "mhlo.num_partitions"
"""The attribute of a module that says how many devices it is for."""

CONSTRAINT = "Sharding"
FULL_TO_SHARD, SHARD_TO_FULL = "SPMDFullToShardShape", "SPMDShardToFullShape"
"""Targets of the custom calls in which GSPMD says what sdy has operations for."""


@dataclass
class Survey:
    """The operations of a module that carry annotations: functions, GSPMD's custom calls by target, and all others."""

    functions: list[ir.Operation] = field(default_factory=list)
    calls: dict[str, list[ir.Operation]] = field(default_factory=lambda: {CONSTRAINT: [], FULL_TO_SHARD: [], SHARD_TO_FULL: []})
    others: list[ir.Operation] = field(default_factory=list)

    @classmethod
    def of(cls, module: ir.Module) -> Survey:
        survey = cls()
        for op in walk_all(module):
            name = op.name
            if name == "func.func":
                if any(_strings(op)):
                    survey.functions.append(op)
            elif MHLO_SHARDING in op.attributes:
                target = ir.StringAttr(op.attributes["call_target_name"]).value if name == "stablehlo.custom_call" else ""
                survey.calls.get(str(target), survey.others).append(op)
        return survey

    def carriers(self) -> Iterator[ir.Operation]:
        """Every operation that carries an annotation."""
        yield from self.functions
        for calls in self.calls.values():
            yield from calls
        yield from self.others


def _strings(op: ir.Operation) -> Iterator[str]:
    """Every HloSharding string that `op` carries."""
    if MHLO_SHARDING in op.attributes:
        yield ir.StringAttr(op.attributes[MHLO_SHARDING]).value
    for side in FUNCTION:
        if side in op.attributes:
            for entry in map(ir.DictAttr, ir.ArrayAttr(op.attributes[side])):
                if MHLO_SHARDING in entry:
                    yield ir.StringAttr(entry[MHLO_SHARDING]).value


def tilings(op: ir.Operation, text: str) -> tuple[Tiling, ...]:
    """What an HloSharding string on `op` says, per element of a tuple.

    Raises OpError.
    """
    try:
        return hlo_shardings.parse(text)
    except ValueError as error:
        raise OpError(op, f"carries {MHLO_SHARDING} {text!r}: {error}") from None


def tiling(op: ir.Operation) -> Tiling:
    """The one tiling that `op` carries.

    Raises OpError where it carries a tuple.
    """
    text = ir.StringAttr(op.attributes[MHLO_SHARDING]).value
    found = tilings(op, text)
    if len(found) != 1:
        raise OpError(op, f"carries a tuple of {len(found)} shardings, expected one")
    return found[0]


_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d, ]*)\]")


def open_dims(op: ir.Operation) -> tuple[int, ...]:
    """The dimensions that `backend_config = "unspecified_dims=[…]"` leaves to propagation."""
    config = op.attributes.get("backend_config")
    found = _UNSPECIFIED.search(ir.StringAttr(config).value) if isinstance(config, ir.StringAttr) else None
    return tuple(int(number) for number in found[1].replace(" ", "").split(",") if number) if found else ()


@dataclass
class Writer:
    """Writes tilings as sdy shardings over the one mesh that they all lie on."""

    top: ir.InsertionPoint
    mesh: InferredMesh
    symbol: str
    taken: set[str]
    maximal: dict[int, str] = field(default_factory=dict)
    written: dict[object, ir.Attribute] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module, survey: Survey) -> Writer:
        """Infers the mesh and declares it as an `sdy.mesh`.

        Raises OpError at the first annotation that has no mesh together with those before it.
        """
        taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations if "sym_name" in op.attributes}
        found = {one: op for op in reversed(list(survey.carriers())) for text in _strings(op) for one in tilings(op, text)}
        top = ir.InsertionPoint.at_block_begin(module.body)
        writer = cls(top, _infer(found, _devices(module, found)), "", taken)
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in zip(writer.axis_names, writer.mesh.shape, strict=True)]
        writer.symbol = writer._declare("mesh", sdy.MeshAttr.get(axes, list(writer.mesh.device_ids)))
        return writer

    @property
    def axis_names(self) -> list[str]:
        """GSPMD has no names: axes are called by their number."""
        return [str(axis) for axis in range(len(self.mesh.shape))]

    def _declare(self, wanted: str, attr: ir.Attribute) -> str:
        names = (wanted, *(f"{wanted}_{number}" for number in range(len(self.taken))))
        name = next(name for name in names if name not in self.taken)
        self.taken.add(name)
        attrs = {"sym_name": ir.StringAttr.get(name), "mesh": attr}
        ir.Operation.create("sdy.mesh", [], [], attrs, ip=self.top)
        return name

    def manual_axes(self, tiling: Tiling) -> frozenset[int]:
        """The mesh axes along which a value is local already."""
        if tiling.kind == "manual":
            return frozenset(range(len(self.mesh.shape)))
        if tiling.kind != "tiled":
            return frozenset()
        return frozenset(axis for kind, axes in self.mesh.place(tiling).subgroups if kind == "manual" for axis in axes)

    def sharding(self, op: ir.Operation, tiling: Tiling, rank: int, opened: Sequence[int] = ()) -> ir.Attribute:
        """The `#sdy.sharding<…>` of `tiling` for a value of `rank` dimensions; what it says of manual axes is left out.

        Raises OpError, at `op`, where the ranks differ.
        """
        key = (tiling, rank, opened)
        if key not in self.written:
            self.written[key] = self._write(op, tiling, rank, opened)
        return self.written[key]

    def _write(self, op: ir.Operation, tiling: Tiling, rank: int, opened: Sequence[int]) -> ir.Attribute:
        if tiling.kind == "maximal":
            return sdy.TensorShardingAttr.get(self._maximal(tiling.devices[0]), [])
        split: Sequence[Iterable[int]] = [()] * rank
        unreduced: Iterable[int] = range(len(self.mesh.shape)) if tiling.kind == "unreduced" else ()
        if tiling.kind == "tiled":
            if len(tiling.tiles) != rank:
                raise OpError(op, f"carries a tiling of {len(tiling.tiles)} dimensions for a value of rank {rank}")
            placed = self.mesh.place(tiling)
            split = placed.split
            unreduced = sorted(axis for kind, axes in placed.subgroups if kind == "unreduced" for axis in axes)
        is_open = set(range(rank)) if tiling.kind == "unknown" else set(opened)
        dims = [sdy.DimensionShardingAttr.get(self._refs(axes), dim not in is_open) for dim, axes in enumerate(split)]
        return sdy.TensorShardingAttr.get(self.symbol, dims, [], self._refs(unreduced))

    def _refs(self, axes: Iterable[int]) -> list[ir.Attribute]:
        return [sdy.AxisRefAttr.get(str(axis)) for axis in axes]

    def _maximal(self, device: int) -> str:
        if device not in self.maximal:
            self.maximal[device] = self._declare(f"maximal_mesh_{device}", sdy.MeshAttr.get([], [device]))
        return self.maximal[device]


def _devices(module: ir.Module, found: Iterable[Tiling]) -> int:
    """For how many devices the module is: what it says, or else what its tilings say."""
    attrs = module.operation.attributes
    if NUM_PARTITIONS in attrs:
        return int(ir.IntegerAttr(attrs[NUM_PARTITIONS]).value)
    return max((len(tiling.devices) for tiling in found if tiling.kind == "tiled"), default=1)


def _infer(found: dict[Tiling, ir.Operation], devices: int) -> InferredMesh:
    """The mesh of all tilings; on failure, blames the first operation whose tiling does not go with those before."""
    in_order = list(reversed(found))
    try:
        return mesh_inference.infer(in_order, devices)
    except ValueError:
        pass
    for count in range(1, len(in_order) + 1):
        try:
            mesh_inference.infer(in_order[:count], devices)
        except ValueError as error:
            raise OpError(found[in_order[count - 1]], str(error)) from None
    raise MeshError("<module>: error: the tilings of the module cannot all be expressed by axes of one mesh")
