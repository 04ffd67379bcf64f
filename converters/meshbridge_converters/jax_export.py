"""`jax.export` artifacts: `jax.export.Exported` values and the files that `Exported.serialize` writes.

`pack` gives back what `unpack` opened with another module inside: same calling convention, pytrees, names, platforms and effects.
Shardings that the caller left open come back filled in with those of the module's `main`. An artifact that can give its vjp
gives a partitioned vjp.

JAX is imported where it is needed only: recognising a file must not cost its start-up time.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from meshbridge import partitioning, pipeline
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError, ParseError, context, ir, main_function
from meshbridge.read.formats import Format, Program, choose_platform, refuse_arguments
from meshbridge_converters import jax_partitioner, jax_platforms, jax_shardings, jax_values, nnx_names, portable

if TYPE_CHECKING:
    from jax.export import Exported

    from meshbridge_converters.jax_calling import TreeCalling

MODULE_SLOT = 13
"""Where a serialized artifact's table keeps `mlir_module_serialized`; the schema only ever grows at its end."""


class _Whole(bytes):
    """Bytes that refuse to be read past their end: a slice of plain bytes would silently come out shorter."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and (key.stop or 0) > len(self):
            raise ValueError(f"expected {key.stop} bytes, found {len(self)}")
        return super().__getitem__(key)


def detect(data: bytes) -> bool:
    """Whether `data` starts like the flatbuffer of an artifact: a root table with a format version and a module in it.

    The table stands at the front, so that this also recognises an artifact that is truncated later on.
    """
    try:
        (table,) = struct.unpack_from("<I", data, 0)
        vtable = table - struct.unpack_from("<i", data, table)[0]
        vtable_size, table_size = struct.unpack_from("<HH", data, vtable)
        version, *_, module = struct.unpack_from(f"<{MODULE_SLOT + 1}H", data, vtable + 4)
    except struct.error:
        return False
    return bool(vtable_size > 4 + 2 * MODULE_SLOT and 0 < version < table_size and 0 < module < table_size)


def deserialize(data: bytes, filename: str) -> Exported:
    """The artifact that `data` holds.

    Raises ParseError for one that is damaged or truncated.
    """
    from jax import export

    from meshbridge_converters import jax_trees

    if len(data) % 4:
        raise ParseError(f"{filename}: error: not a readable jax.export artifact: {len(data)} bytes, expected a multiple of 4")
    try:
        return jax_trees.read(lambda: export.deserialize(_Whole(data)))
    except Exception as error:  # whatever flatbuffers, numpy and jax raise over bytes that make no sense
        raise ParseError(f"{filename}: error: not a readable jax.export artifact: {error}") from None


def unpack(value: object, arguments: Sequence[Any], named: Mapping[str, Any], platform: str | None, ctx: ir.Context) -> Program:
    """Opens an Exported, a Lowered, or a jitted function, which is exported for these arguments and for `platform`, if given.

    Raises MeshError for an artifact with symbolic dimensions, for arguments to anything else than a function, and for a platform
    where there is no choice.
    """
    if jax_values.is_function(value) and jax_values.is_lowered_only(value):
        return choose_platform(jax_values.lowered(jax_values.lower(value, arguments, named), ctx), platform)
    if jax_values.is_function(value):
        exported = jax_values.export(value, arguments, named, platform)
        return _open(exported, exported.fun_name, ctx)
    refuse_arguments(value, arguments, named)
    if jax_values.is_lowered(value):
        return choose_platform(jax_values.lowered(value, ctx), platform)
    held: Any = value
    return choose_platform(_open(held, held.fun_name, ctx), platform)


def _vjp_order(exported: Any) -> int:
    """How many vjps a deserialized artifact holds. One made by `jax.export.export` could go on for ever and counts as 0."""
    from meshbridge_converters.jax_dims import RefinedVjp

    order = 0
    while isinstance(exported._get_vjp, RefinedVjp):
        exported = exported._get_vjp.original
    while exported._get_vjp is not None and exported._get_vjp.__module__ == "jax._src.export.serialization":
        order, exported = order + 1, exported.vjp()
    return order


def _open(exported: Any, name: str, ctx: ir.Context) -> Program:
    """Raises MeshError for an artifact with symbolic dimensions."""
    for aval in (*exported.in_avals, *exported.out_avals):
        if not all(isinstance(size, int) for size in aval.shape):
            hint = "give every symbol a size with --dims, or dims of meshbridge.load"
            raise MeshError(
                f"{name}: error: the artifact has the symbolic shape {aval.shape}, expected fixed sizes\n  hint: {hint}"
            )
    module, calling = portable.deserialize(exported.mlir_module_serialized, name, ctx), _calling(exported)
    nnx_names.rename(module, calling)
    return Program(module, FORMAT, exported, calling, platforms=tuple(exported.platforms))


def _calling(exported: Any) -> TreeCalling:
    from meshbridge_converters.jax_calling import TreeCalling

    @cache
    def whole(how: pipeline.Options | None) -> Callable[..., Any]:
        found: Callable[..., Any] = partition(exported, how).call
        return found

    trees = exported.in_tree, exported.in_avals, exported.out_tree, exported.out_avals
    return TreeCalling(exported.fun_name, *trees, exported.module_kept_var_idx, whole)


def for_platform(program: Program, platform: str) -> Program:
    """The artifact for one of its platforms, its module changed in place; one that is for a single platform as it is.

    Raises MeshError where `platform` is not one of several.
    """
    exported: Any = program.envelope
    if exported is None or len(exported.platforms) < 2:
        return program
    if platform not in exported.platforms:
        known = ", ".join(exported.platforms)
        hint = "name it among the platforms of jax.export.export"
        raise MeshError(f"<module>: error: the artifact is for the platforms {known}, not for {platform}\n  hint: {hint}")
    jax_platforms.choose(program.module, exported.platforms.index(platform))
    single = dataclasses.replace(exported, platforms=(platform,), uses_global_constants=False)
    return dataclasses.replace(program, envelope=single, platforms=(platform,))


def pack(program: Program) -> Exported:
    """The Exported that `program` came in, with its present module inside and with the shardings of the module's `main` where
    none were specified. One that is partitioned while JAX has Shardy off is for callers that have it off (`jax_partitioner`).

    Raises MeshError for a program that came in something else.
    """
    return _packed(program, _is_for_gspmd(program))


def _is_for_gspmd(program: Program) -> bool:
    """Whether the form follows JAX's flag, not what the user converts to, and Shardy is off."""
    return program.how is not None and not jax_partitioner.is_shardy_on()


def _packed(program: Program, for_gspmd: bool) -> Exported:
    exported: Any = program.envelope
    if exported is None or program.format is not FORMAT:
        raise MeshError(
            "<module>: error: a jax.export artifact is only made from one: a module does not hold pytrees and types"
            "\n  hint: a name that ends in .mlir asks for text"
        )
    if is_partitioned(program.module) or portable.holds_mesh_ops(program.module):
        raise MeshError(
            "<module>: error: a jax.export artifact holds StableHLO on global shapes, found mesh IR or the program of one device"
            "\n  hint: --emit exported and --to sdy keep the artifact; mesh IR and local programs are MLIR text or bytecode"
        )
    main = main_function(program.module)
    meshes = jax_shardings.abstract_meshes(program.module, [*_named(exported, "in"), *_named(exported, "out")])
    # A platform index and tokens come before the arrays, on both sides; arguments that nothing reads are not in the module.
    kept: Sequence[int] = exported.module_kept_var_idx
    arguments = jax_shardings.boundary(main, "arg_attrs", meshes)
    inside = dict(zip(kept, arguments[len(arguments) - len(kept) :], strict=True))
    results = jax_shardings.boundary(main, "res_attrs", meshes)
    if meshes and for_gspmd:
        module, shardings = jax_partitioner.for_gspmd(program.module), jax_partitioner.without_shardings(exported)
    else:
        module = program.module
        shardings = _filled(exported, "in", [inside.get(index) for index in range(len(exported.in_avals))])
        shardings |= _filled(exported, "out", results[len(results) - len(exported.out_avals) :])
    return dataclasses.replace(
        exported,
        mlir_module_serialized=portable.serialize(module),
        nr_devices=max([exported.nr_devices, *(mesh.size for mesh in meshes.values())]),
        _get_vjp=None if exported._get_vjp is None else _PartitionedVjp(exported._get_vjp, program.how, for_gspmd),
        **shardings,
    )


def _named(exported: Any, side: str) -> Sequence[Any]:
    """The NamedShardings that the artifact carries; older JAX kept HloShardings alone."""
    return getattr(exported, f"_{side}_named_shardings", ())


def _filled(exported: Any, side: str, found: Sequence[Any]) -> dict[str, object]:
    """The dataclass fields that say how `side` is sharded: what was specified stays, what was open becomes `found`."""
    if hasattr(exported, f"_{side}_named_shardings"):
        named = [new if given is None else given for given, new in zip(_named(exported, side), found, strict=True)]
        # The releases that have both kinds say which one counts; those that came later have this one alone.
        counts = {"_has_named_shardings": True} if hasattr(exported, "_has_named_shardings") else {}
        return {f"_{side}_named_shardings": tuple(named), **counts}
    given = getattr(exported, f"{side}_shardings_hlo")
    ranks = [len(aval.shape) for aval in getattr(exported, f"{side}_avals")]
    hlo = [None if new is None else new._to_xla_hlo_sharding(rank) for new, rank in zip(found, ranks, strict=True)]
    return {f"{side}_shardings_hlo": tuple(new if old is None else old for old, new in zip(given, hlo, strict=True))}


@dataclasses.dataclass(frozen=True)
class _PartitionedVjp:
    """What `Exported._get_vjp` calls: the vjp of the original, partitioned when somebody asks for it, for the same callers."""

    original: Any
    how: Any
    for_gspmd: bool

    def __call__(self, primal: Exported) -> Exported:
        return _partitioned(self.original(primal), self.how, self.for_gspmd)


def partition(exported: Exported, how: pipeline.Options | None = None) -> Exported:
    """`exported` with every collective explicit: the same function for JAX, and nothing left for XLA's partitioner to decide.
    Of the options the form has no effect.

    Raises MeshError with a located diagnostic where the program cannot be partitioned.
    """
    return _partitioned(exported, how, not jax_partitioner.is_shardy_on())


def _partitioned(exported: Exported, how: pipeline.Options | None, for_gspmd: bool) -> Exported:
    options = dataclasses.replace(how or pipeline.DEFAULTS, emit="exported", stablehlo_version=None, ops=())
    program = _open(exported, exported.fun_name, context()).planned(options)
    partitioning.partition_module(program.module, options)
    return _packed(program, for_gspmd)


def _read(data: bytes, filename: str, ctx: ir.Context) -> Program:
    return _open(deserialize(data, filename), filename, ctx)


def _read_sized(data: bytes, filename: str, ctx: ir.Context, dims: Mapping[str, int]) -> Program:
    from meshbridge_converters.jax_dims import refined

    return _open(refined(deserialize(data, filename), dims, filename), filename, ctx)


def _write(program: Program) -> bytes:
    """The artifact's bytes, with as many vjps as the file had that it came from. Warns where it can no longer be called with
    Shardy off."""
    packed = pack(program)
    if program.how is not None and not _is_for_gspmd(program):
        jax_partitioner.warn_of_callers(program.envelope)
    return dump(packed, _vjp_order(program.envelope))


def dump(value: object, vjp_order: int = 0) -> bytes:
    """The artifact's bytes of an Exported, whose trees may be of any classes."""
    from meshbridge_converters import jax_trees

    return jax_trees.serialized(value, vjp_order)


FORMAT = Format(
    name="jax-export",
    summary="a serialized jax.export artifact",
    detect=detect,
    read=_read,
    read_sized=_read_sized,
    write=_write,
    suffixes=(".jax_export",),
    holds=jax_values.holds,
    unpack=unpack,
    pack=pack,
    dump=dump,
    for_platform=for_platform,
)
