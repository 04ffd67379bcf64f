"""HLO text, as XLA writes it with `--xla_dump_to`: what XLA's own partitioner has made of a program.

    HloModule jit_f, num_partitions=8 …
    ENTRY %main_spmd (param: f32[4,4]) -> f32[4,4] {
      %param = f32[4,4] parameter(0), sharding={devices=[2,4]<=[8]}
==>
    mesh.mesh @devices(shape = 2x4)
    func.func @main(%arg0: tensor<4x4xf32> {meshbridge.mesh = @devices, meshbridge.split_axes = [[0], [1]]}) -> …

HLO of one device does not say global shapes: `meshbridge.global` is left out, and `meshbridge verify` takes those of the source.
Text may say the shardings of parameters and never says those of results: what it does not say is as the source declares it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array_attr
from meshbridge.dialect.ops import BOUNDARY_MESH, BOUNDARY_SPLIT
from meshbridge.ir.digits import axis_digits, groups_along
from meshbridge.ir.mlir import (
    MeshError,
    OpError,
    ParseError,
    artifacts,
    entries,
    function_type,
    hlo,
    ir,
    main_function,
    set_entries,
)
from meshbridge.ir.sharding import Mesh
from meshbridge.read.formats import Format, Program
from meshbridge_converters.carriers import MHLO_SHARDING

if TYPE_CHECKING:
    from meshbridge_converters.hlo_shardings import Tiling
    from meshbridge_converters.mesh_inference import InferredMesh

MAGIC = b"HloModule "
NAME = "devices"

PARAMETERS, RESULTS = "mhlo.spmd_parameters_shardings", "mhlo.spmd_output_sharding"


def read(data: bytes, filename: str, ctx: ir.Context, parameters: Sequence[str] = (), results: str = "") -> ir.Module:
    """The module in StableHLO; `parameters` and `results` are HloSharding strings, where text does not say them.

    Raises ParseError for text that is not HLO, OpError for shardings that no mesh expresses.
    """
    try:
        text = data.decode()
        proto = hlo.hlo_module_from_text(re.sub(_GROUPS, _listed_groups, text)).as_serialized_hlo_module_proto()
        module = ir.Module.parse(artifacts.hlo_to_stablehlo(proto), ctx)
    except (ValueError, KeyError, RuntimeError, ir.MLIRError) as error:  # RuntimeError is XLA's
        raise ParseError(f"{filename}: error: not readable HLO text: {str(error).splitlines()[0]}") from None
    with ctx:
        if parameters:
            module.operation.attributes[PARAMETERS] = ir.ArrayAttr.get([ir.StringAttr.get(each) for each in parameters])
        if results:
            module.operation.attributes[RESULTS] = ir.StringAttr.get(results)
    if (devices := _partitions(text)) > 1:
        name_shards(module, devices)
    return module


_GROUPS = r"replica_groups=(mesh\[[^\]]*\](?:, device_ids=\((?:[^()]|\([^()]*\))*\))? \{[^}]*\})"


def _listed_groups(found: re.Match[str]) -> str:
    """Groups along mesh axes as lists of devices: jaxlib's conversion to StableHLO forgets the order of a mesh's devices."""
    from meshbridge_converters import hlo_shardings

    mesh, axes = hlo_shardings.parse_axes(found[1])
    groups = np.array(mesh.ordered_devices())[groups_along(mesh, axis_digits(mesh, axes))]
    return "replica_groups={" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups.tolist()) + "}"


def _partitions(text: str) -> int:
    """How many devices run the program, as its first line says."""
    _, _, after = text.split("\n", 1)[0].partition("num_partitions=")
    digits = after.split(",")[0].strip()
    return int(digits) if digits.isdecimal() else 1


def name_shards(module: ir.Module, devices: int) -> None:
    """Writes on the arguments and results of a partitioned program of XLA how they are sharded, in place.

    Raises OpError for shardings that no mesh of `devices` devices expresses.
    """
    from meshbridge_converters import mesh_inference

    main = main_function(module)
    kind = function_type(main)
    with module.context, ir.Location.unknown():
        sides = {
            "arg_attrs": _tilings(main, "arg_attrs", len(kind.inputs), module.operation, PARAMETERS),
            "res_attrs": _tilings(main, "res_attrs", len(kind.results), module.operation, RESULTS),
        }
        try:
            inferred = mesh_inference.infer([one for found in sides.values() for one in found if one is not None], devices)
        except ValueError as error:
            raise OpError(main, f"has shardings that no mesh expresses: {error}") from None
        with ir.InsertionPoint.at_block_begin(module.body):
            build.mesh(Mesh(NAME, inferred.shape, device_ids=inferred.device_ids))
        for side, found in sides.items():
            set_entries(main, side, [_entry(inferred, one) for one in found])


def _tilings(main: ir.Operation, side: str, count: int, module: ir.Operation, name: str) -> list[Tiling | None]:
    """The sharding of each argument or result: on itself, or in an attribute of the module. None where nothing says it."""
    found: list[Tiling | None] = [None] * count
    if name in module.attributes:
        attr = module.attributes[name]
        texts = list(ir.ArrayAttr(attr)) if isinstance(attr, ir.ArrayAttr) else [attr]
        listed = [one for text in texts for one in _parse(main, text)]
        if len(listed) == count:
            found = list(listed)
    for index, entry in enumerate(entries(main, side)):
        if MHLO_SHARDING in entry:
            (found[index],) = _parse(main, entry[MHLO_SHARDING])
    return found


def _parse(main: ir.Operation, attr: ir.Attribute) -> tuple[Tiling, ...]:
    from meshbridge_converters import hlo_shardings

    text = ir.StringAttr(attr).value
    try:
        tilings = hlo_shardings.parse(text)
    except ValueError as error:
        raise OpError(main, f"has the sharding '{text}': {error}") from None
    for one in tilings:
        if one.kind not in ("tiled", "replicated") or any(kind != "replicated" for kind, _ in one.subgroups):
            raise OpError(main, f"has the sharding '{text}', expected a tiled or a replicated one")
    return tilings


def _entry(inferred: InferredMesh, tiling: Tiling | None) -> dict[str, ir.Attribute]:
    entry: dict[str, ir.Attribute] = {BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(NAME)}
    if tiling is not None:
        entry[BOUNDARY_SPLIT] = axis_array_attr(inferred.place(tiling).split if tiling.kind == "tiled" else ())
    return entry


def _program(data: bytes, filename: str, ctx: ir.Context) -> Program:
    return Program(read(data, filename, ctx), FORMAT)


def _refuse(program: Program) -> bytes:
    raise MeshError("error: HLO text is read only; write .mlir or .mlirbc")


FORMAT = Format(
    name="hlo",
    summary="HLO text",
    detect=lambda data: data.startswith(MAGIC),
    read=_program,
    write=_refuse,
)
