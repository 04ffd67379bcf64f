"""What meshbridge does for Python callers; `meshbridge` itself has all of it by name.

Options are keywords, named as those of the commands. A function that `jax.jit` made gets the arguments that it is traced with by
position; those that it takes by name are in `kwargs`, where no option can be meant.

Each function imports what it needs as it is called: `import meshbridge` alone loads neither MLIR nor numpy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, overload

from meshbridge.ir.errors import MeshError

if TYPE_CHECKING:
    from jax.export import Exported
    from jax.stages import Lowered, Wrapped

    from meshbridge.decide.mutations import Mutation, Operation
    from meshbridge.ir.groups import Spelling
    from meshbridge.ir.mlir import ir
    from meshbridge.jitted.function import Jitted
    from meshbridge.jitted.plans import Planned, Planning
    from meshbridge.lowering.local_program import Shardings
    from meshbridge.machines.machine import OptionSet
    from meshbridge.partition.mesh_spmdization import Resharding
    from meshbridge.pipeline import Collectives, Emit, Inside
    from meshbridge.read.formats import Program
    from meshbridge.reports import Difference, Explanation, Report
    from meshbridge.reports.symbolic import Formulas
    from meshbridge.runtime.compiler_options import Given
    from meshbridge.runtime.pjrt import Executable
    from meshbridge.search.mesh_search import OnTrial
    from meshbridge.search.plan import SearchedPlan

    Source: TypeAlias = Program | Exported | Lowered | ir.Module
    Named: TypeAlias = Mapping[str, Any] | None
    Local: TypeAlias = bool | tuple[Shardings | None, Shardings | None]

P = ParamSpec("P")
R = TypeVar("R")


class Keywords(TypedDict, total=False):
    """How programs are partitioned; `meshbridge.pipeline.Options` says what each option means. Where no machine is named, that of
    the devices is meant which JAX runs on already, if the program may run on them."""

    resharding: Resharding
    machine: str
    layout: str
    memory_limit: float | str | None
    collectives: Collectives
    inside: Inside
    replica_groups: Spelling


class PartitionKeywords(Keywords, total=False):
    """What `partition` takes beside: what it gives is compiled by others, under XLA's defaults unless they say otherwise."""

    compiler_options: OptionSet


@overload
def partition(
    program: Any,
    *arguments: Any,
    kwargs: Named = ...,
    emit: Literal["local"],
    stablehlo_version: str,
    ops: Sequence[str] = ...,
    platform: str | None = ...,
    local: Local = ...,
    **options: Unpack[PartitionKeywords],
) -> Program: ...
@overload
def partition(
    program: Program,
    *,
    emit: Emit = ...,
    platform: str | None = ...,
    local: Local = ...,
    **options: Unpack[PartitionKeywords],
) -> Program: ...
@overload
def partition(
    program: Exported, *, emit: Literal["exported"] = ..., platform: str | None = ..., **options: Unpack[PartitionKeywords]
) -> Exported: ...
@overload
def partition(
    program: Wrapped,
    *arguments: Any,
    kwargs: Named = ...,
    emit: Literal["exported"] = ...,
    platform: str | None = ...,
    **options: Unpack[PartitionKeywords],
) -> Exported: ...
@overload
def partition(
    program: Any,
    *arguments: Any,
    kwargs: Named = ...,
    emit: Literal["shard_map"],
    platform: str | None = ...,
    local: Local = ...,
    **options: Unpack[PartitionKeywords],
) -> str: ...
@overload
def partition(
    program: ir.Module | Lowered | Exported,
    *,
    emit: Emit = ...,
    platform: str | None = ...,
    local: Local = ...,
    **options: Unpack[PartitionKeywords],
) -> ir.Module: ...
@overload
def partition(
    program: Wrapped,
    *arguments: Any,
    kwargs: Named = ...,
    emit: Emit,
    platform: str | None = ...,
    **options: Unpack[PartitionKeywords],
) -> ir.Module: ...
def partition(
    program: Any,
    *arguments: Any,
    kwargs: Named = None,
    emit: Emit = "exported",
    stablehlo_version: str | None = None,
    ops: Sequence[str] = (),
    platform: str | None = None,
    local: Local = False,
    **options: Unpack[PartitionKeywords],
) -> Any:
    """Partitions a program: the same function for its caller, every collective explicit inside.

    What is given is left as it is. An Exported or a Program gives a new one of its kind, an MLIR module or a
    `jax.stages.Lowered` a new module (global shapes outside, one manual computation over all mesh axes inside). A function that
    `jax.jit` made is exported for `arguments` and `kwargs`, which may be `jax.ShapeDtypeStruct`s, and gives an Exported.
    Shardings of an Exported's arguments and results that were open are filled in with what was decided.

    With another form to `emit`, an Exported or a function gives a module, and a Program one of MLIR text.
    With `stablehlo_version` the form `local` is a Program in plain StableHLO of that version, for compilers other than XLA, whose
    `serialize()` gives a portable artifact. `ops` are the names of the ops that it may have, empty for all.
    With the form `shard_map` it is the text of a Python file (docs/shard-map.md).
    `platform` chooses one of several that an Exported is for; a function is exported for it, whatever devices there are.
    `compiler_options` is the set of XLA's options that what it gives will be compiled under: the plan is made for that.
    With `local=True`, what is given is one device's program, with collectives of the mesh dialect or StableHLO, and each device
    has shards of its own, along dimension 0. `local=(in_shardings, out_shardings)` says of what arguments and results are shards:
    one sharding for each, `[[0], []]`, or a text, `"[[0], []] partial = sum [1]"`; None for shards of their own.

    Raises MeshError with a located diagnostic, also for an option that cannot have its value.
    """
    from meshbridge import partitioning, pipeline
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.runtime.devices import implied

    opened = _handed_in(formats.unpack(program, context(), arguments, kwargs, platform), local)
    options.setdefault("machine", implied(opened.platforms).name)
    how = pipeline.Options.of(emit=emit, stablehlo_version=stablehlo_version, ops=tuple(ops), **options)
    opened = opened.planned(how)
    partitioning.partition_module(opened.module, how)
    if emit == "shard_map":
        from meshbridge.emit.python.program import write

        return write(opened)
    if stablehlo_version is not None:
        return formats.in_version(opened, stablehlo_version)
    if isinstance(program, formats.Program):
        return opened if emit == "exported" else replace(opened, format=formats.TEXT)
    return formats.pack(opened) if emit == "exported" else opened.module


def _handed_in(program: Program, local: Local) -> Program:
    """A program that was opened, in place a partitioned one where it is one device's."""
    if local:
        from meshbridge.lowering.local_program import annotate_local_program, sharding_texts
        from meshbridge.read import formats

        formats.refuse_calling(program)
        ins, outs = (None, None) if isinstance(local, bool) else local
        annotate_local_program(program.module, sharding_texts(ins), sharding_texts(outs))
    return program


def report(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    platform: str | None = None,
    resharding: Resharding = "cheapest",
    machine: str | None = None,
    memory_limit: float | str | None = None,
    layout: str = "",
    compiler_options: OptionSet = "default",
    collectives: Collectives = "on",
    inside: Inside = "open",
    tokens: float | None = None,
    suggest: int = 0,
    local: Local = False,
) -> Report:
    """What `program` communicates once it is partitioned, and why; what it computes twice, and how much memory it needs. On a
    machine with a topology, the time of a step, which is compiled under `compiler_options` and processes so many `tokens`. Where
    no machine is named, it is as for `partition`. With `suggest`, up to so many changes of its shardings with which it
    communicates less, each tried: that takes as long as partitioning it four times for each, and four times more.

    It takes what `partition` takes, one device's program too, and leaves it as it is. Raises MeshError.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.reports import partition_and_report, partition_and_suggest
    from meshbridge.runtime.devices import Chosen, implied

    opened = _handed_in(formats.unpack(program, context(), arguments, kwargs, platform), local)
    chosen = implied(opened.platforms) if machine is None else Chosen(machine)
    options = Options.of(
        emit="mesh",
        resharding=resharding,
        machine=chosen.name,
        layout=layout,
        compiler_options=compiler_options,
        memory_limit=memory_limit,
        collectives=collectives,
        inside=inside,
    )
    if suggest:
        found, _ = partition_and_suggest(opened.module, options, suggest, tokens=tokens)
    else:
        found, _ = partition_and_report(opened.module, options, tokens=tokens)
    return replace(found, why_machine=chosen.why)


def search(
    program: Source | Wrapped,
    *arguments: Any,
    mesh: str | Mapping[str, int] | None = None,
    machine: str | None = None,
    layout: str = "",
    memory_limit: float | str | None = None,
    fixed: Mapping[str, Any] | None = None,
    keep_annotations: bool = True,
    seconds: float = 60.0,
    constraints: int = 0,
    data_axis: str | None = None,
    sub_axes: Mapping[str, Sequence[int]] | None = None,
    kwargs: Named = None,
    platform: str | None = None,
    on_trial: OnTrial | None = None,
) -> SearchedPlan:
    """The shardings of a program's arguments and results under which its predicted step takes least time and fits in memory.

    `mesh` is one of devices, `{"data": 4, "model": 2}` or `"4x2"`, or a number of devices as a text, `"8"`: then meshes of one
    and two axes are tried. Left out, it is the one that the program is sharded on. `machine` is a device of docs/machines.md;
    without a topology, one of so many devices is taken; left out, it is JAX's. By default a plan may need the memory that the
    machine has. What the program is annotated with stays, unless `keep_annotations` is False; `fixed` are PartitionSpecs by
    patterns of paths, `{"params/**/kernel": P(None, "model")}`. After so many `seconds` nothing more is tried: the same program
    gives the same plan if they suffice.

    Along the `data_axis` arguments are split as what is fixed or annotated propagates, and not otherwise: no parameter is.
    `sub_axes`, `{"data": (2, 4)}`, are parts of axes, `data_0` and `data_1`, each of which may split a dimension alone, such as
    the experts of a mixture. Left out, parts are tried where no axis divides such a dimension and there is time: a faster plan
    along them is on a mesh that has these as axes (`plan.mesh`); `{}` keeps to the axes as they are.

    At most so many `constraints` are named that are worth writing into the model; looking for them may take as long again.

    It takes what `partition` takes, and leaves it as it is. Raises MeshError, also where nothing fits in memory.
    """
    from meshbridge import conversion
    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.read import formats
    from meshbridge.runtime.devices import implied
    from meshbridge.search import mesh_notation
    from meshbridge.search.plan import plan_of
    from meshbridge.search.request import Fixed, SearchRequest
    from meshbridge.search.search import best_of

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    name = implied(opened.platforms).name if machine is None else machine
    request = SearchRequest(
        mesh_notation.timed(CompileTarget.of(name, layout, memory_limit=memory_limit)),
        tuple(Fixed.of(pattern, spec) for pattern, spec in (fixed or {}).items()),
        keep_annotations,
        seconds,
        () if data_axis is None else (data_axis,),
        constraints,
        divides=sub_axes is None,
    )
    meshes, request = request.on(mesh_notation.meshes(mesh) if mesh is not None else [], sub_axes or {})
    found = best_of(opened.module, meshes, request, on_trial)
    opened = replace(opened, module=found.annotated)
    return plan_of(found, conversion.convert(opened, "sdy"))


def explain(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    of: str | Sequence[str] = (),
    tries: int = 16,
    alone: bool = False,
    platform: str | None = None,
    resharding: Resharding = "cheapest",
    machine: str | None = None,
    memory_limit: float | str | None = None,
    layout: str = "",
    collectives: Collectives = "on",
    inside: Inside = "open",
) -> Explanation:
    """Why arguments and results of `program` are sharded as they are: who has said so, and what other shardings of them would
    cost, each found by partitioning the program so.

    `of` is a path or a pattern of paths, or several: `params['head']`, `params/**/kernel`; all arguments and results without any.
    At most so many other shardings are tried: first those of what most communication is about. What is sharded together, such
    as a weight, its moments and the weight that is returned, is changed together, unless `alone`. Other options are those of
    `report`.

    It takes what `partition` takes, and leaves it as it is. Raises MeshError, also for a pattern that nothing matches.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.reports import partition_and_explain
    from meshbridge.runtime.devices import implied

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    name = implied(opened.platforms).name if machine is None else machine
    target = CompileTarget.of(name, layout, memory_limit=memory_limit)
    options = Options("mesh", resharding, target, collectives=collectives, inside=inside)
    return partition_and_explain(opened.module, options, (of,) if isinstance(of, str) else of, tries=tries, alone=alone)


def diff(
    first: Report | Source,
    second: Report | Source,
    *,
    platform: str | None = None,
    resharding: Resharding = "cheapest",
    machine: str | None = None,
    memory_limit: float | str | None = None,
    layout: str = "",
    collectives: Collectives = "on",
    inside: Inside = "open",
) -> Difference:
    """What the second of two plans of one program does otherwise than the first: shardings, and collectives by module of the
    model. Each is a report, or a program, partitioned or to be partitioned, of which one is made with these options of `report`.

    Leaves both as they are. Raises MeshError, also for plans of different programs.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.reports import PlannedProgram, Report, difference_of
    from meshbridge.runtime.devices import implied

    def planned(plan: Report | Source) -> Report | PlannedProgram:
        if isinstance(plan, Report):
            return plan
        opened = formats.unpack(plan, context(), (), None, platform)
        name = implied(opened.platforms).name if machine is None else machine
        target = CompileTarget.of(name, layout, memory_limit=memory_limit)
        options = Options("mesh", resharding, target, collectives=collectives, inside=inside)
        return PlannedProgram(opened.module, options)

    return difference_of(planned(first), planned(second))


def symbolic_report(
    program: Source,
    *,
    dims: Mapping[str, int] | None = None,
    machine: str | None = None,
    resharding: Resharding = "cheapest",
    collectives: Collectives = "on",
) -> Formulas:
    """What `program` communicates as formulas of its symbolic dimensions and of the sizes of its mesh's axes.

    The formulas are those of the plan that is made for the sizes `dims`, which a `jax.export.Exported` with symbolic dimensions
    needs, and for the mesh that the program has. They hold at sizes that the axes divide. Where no machine is named, the plan is
    made for the default one.
    Raises MeshError as `report` does; where sympy is not installed; for a machine with a topology; and where the bytes of a
    collective are no polynomial of the dimensions.
    """
    from jax.export import Exported

    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.pipeline import DEFAULTS, Options
    from meshbridge.read import files, formats
    from meshbridge.reports import symbolic

    def at(sizes: Mapping[str, int]) -> Program:
        if sizes and isinstance(program, Exported):
            return files.parse_program(serialized, program.fun_name, sizes)
        if sizes:
            raise MeshError(f"error: expected a jax.export.Exported to give sizes, found {type(program).__name__}")
        return formats.unpack(program, context())

    serialized = bytes(program.serialize()) if dims and isinstance(program, Exported) else b""
    options = Options("mesh", resharding, CompileTarget.of(machine or DEFAULTS.target.name), collectives=collectives)
    return symbolic.formulas(at, dims or {}, options)


def operations(
    program: Source | Wrapped, *arguments: Any, kwargs: Named = None, platform: str | None = None
) -> tuple[Operation, ...]:
    """The operations that a `Mutation` can name, in program order: their loops, and the options that they can take.

    It takes what `partition` takes, and leaves it as it is. Raises MeshError, also for a program without a mesh.
    """
    from meshbridge.decide import mutations
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.reports.measured import to_legal

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    to_legal(opened.module)
    return mutations.operations(opened.module)


def mutate(
    program: Source | Wrapped, *arguments: Any, mutations: Iterable[Mutation], kwargs: Named = None, platform: str | None = None
) -> Program:
    """The same program with new sharding options for operations of it, the RFC's `transform.mesh.mutate`: `report`, `partition`,
    `compile`, `operations` and `mutate` itself take it. What has no option is decided around those that have one.

    It takes what `partition` takes, and leaves it as it is. Raises MeshError for a mutation that names no operation of the
    program, and for an option that an operation cannot take.
    """
    from meshbridge.decide import mutations as mutating
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.reports.measured import to_legal

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    to_legal(opened.module)
    mutating.mutate(opened.module, mutations)
    return opened


def convert(
    program: Source | Wrapped, *arguments: Any, to: str, kwargs: Named = None, closed: bool = False, plain: bool = False
) -> Program:
    """The same program in the format `to`, or with its shardings in that notation: one of `meshbridge.conversion.names()`.

    It takes what `partition` takes, and leaves it as it is. `closed` decides every sharding first and writes it as final.
    `plain` writes GSPMD's tilings without the names of axes, for readers that know no names; so does `closed`, and a
    `jax.export.Exported`, which are for XLA.
    Raises MeshError for what `to` cannot say.
    """
    from meshbridge import conversion
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats

    return conversion.convert(formats.unpack(program, context(), arguments, kwargs), to, closed=closed, plain=plain)


def load(path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None) -> Program:
    """Reads a program from a file of any known format, told by content; `-` is standard input.

    `dims` are the sizes of its symbolic dimensions by name, which a `jax.export` artifact may have.
    Warns of annotations that contradict each other by a ShardingWarning.
    Raises ParseError, and MeshError for other sizes than the program needs. On a damaged binary MLIR's reader may crash, and the
    process with it: check files that nobody vouches for with the command `meshbridge convert`, which answers with a diagnostic.
    """
    from meshbridge.read import files

    name = os.fspath(path)
    program = files.parse_program(files.read_bytes(name), files.display_name(name), dims)
    files.warn(program)
    return program


def save(program: Program | Exported | ir.Module, path: str | os.PathLike[str]) -> None:
    """Writes a program in the format that the suffix of `path` asks for, else in its own. Files are complete or absent.

    Raises MeshError.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.read import files, formats

    name = os.fspath(path)
    files.write_bytes(name, formats.choose(formats.unpack(program, context()), name).serialize())


def compile(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    devices: Sequence[Any] | None = None,
    compiler_options: Given = "best",
    local: Local = False,
    **options: Unpack[Keywords],
) -> Executable:
    """Compiles what `partition` takes, at any stage up to `local`, for PJRT devices: by default those that the arguments are on,
    in the order of their mesh, else all of JAX's.

    As many are used as the mesh has; where no machine is named, theirs is meant. What is given is left as it is. A jitted
    function is traced with `arguments` and `kwargs`; an artifact for several platforms is compiled for the devices' own.
    XLA compiles under its defaults with `compiler_options="default"`, or under its options that are given by name; else under
    those that the devices' machine names, under which collectives overlap. The plan is made for the same set.
    One device's program is `local`, as for `partition`.
    Where the devices are of several processes, each of them has to compile the same program, and waits for the others.
    Raises MeshError for a program that cannot be partitioned, or that needs more devices than there are, and for an option that
    XLA does not take; in every process where one of several fails, is missing, or has another plan.
    """
    import jax

    from meshbridge import partitioning, pipeline
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.runtime import devices as jax_devices
    from meshbridge.runtime import pjrt, processes
    from meshbridge.runtime.compiler_options import CompilerOptions

    request = CompilerOptions.of(compiler_options)
    available = tuple(devices if devices is not None else jax.devices())
    with processes.Agreement(available) as agreement:
        opened = _handed_in(formats.unpack(program, context(), arguments, kwargs), local)
        if available:
            opened = formats.for_platform(opened, jax_devices.platform(available[0]))
        taken = processes.signature(opened.module)
        options.setdefault("machine", jax_devices.of(available).name)
        how = pipeline.Options.of(emit="local", compiler_options=request.chosen, **options)
        partitioning.partition_module(opened.module, how)
        under = request.on(jax_devices.machine_of(available, how.target.machine), explicit=True)
        used = pjrt.devices_for(opened.module, None if devices is None else available, (arguments, kwargs))
        agreement.require(used, opened.module, {"signature": taken, **how.all_written(), "compiler options": under})
        executable = pjrt.load(opened.planned(how), used, under)
        agreement.require(used)
    return executable


class JitKeywords(Keywords, total=False):
    """What `jit` takes beside a function: how it is partitioned, and what `jax.jit` takes by these names."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    keep_unused: bool


@overload
def jit(function: Callable[P, R], /, *, compiler_options: Given = ..., **options: Unpack[JitKeywords]) -> Jitted[P, R]: ...
@overload
def jit(*, compiler_options: Given = ..., **options: Unpack[JitKeywords]) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(function: Any = None, /, *, compiler_options: Given = "best", **options: Unpack[JitKeywords]) -> Any:
    """`jax.jit`, partitioned by meshbridge: what it gives is called as the function itself.

    As a decorator it stands with or without options. A function that `jax.jit` has made keeps the options that it was made
    with. For each kind of arguments that the function is called with it is traced, partitioned and compiled once; it runs on the
    devices that its shardings, its arguments or `jax.set_mesh` name. With the environment variable MESHBRIDGE_CACHE_DIR,
    partitioned programs are kept in that folder. XLA's options are as for `compile`.
    Raises MeshError for options that cannot have their value. What it gives raises MeshError where the function cannot be
    partitioned.
    """
    if function is None:
        return partial(jit, compiler_options=compiler_options, **options)
    from meshbridge.jitted.function import jitted

    ours = {name: value for name, value in options.items() if name in Keywords.__annotations__}
    theirs: dict[str, Any] = {name: value for name, value in options.items() if name not in ours}
    return jitted(function, theirs, _planning(ours, compiler_options))


def install(*, compiler_options: Given = "best", **options: Unpack[Keywords]) -> None:
    """From now on and in all threads, partitions every function that JAX compiles for several devices, as `jit` does with these
    options: also those that were jitted before, in libraries that know nothing of meshbridge.

    Raises MeshError for options that cannot have their value; calls then raise it where a function cannot be partitioned.
    """
    from meshbridge.jitted import everywhere

    everywhere.install(_planning(options, compiler_options))


def patch(*, compiler_options: Given = "best", **options: Unpack[Keywords]) -> AbstractContextManager[Sequence[Planned]]:
    """A context that does meanwhile what `install` does from now on: `with meshbridge.patch() as planned:`.

    Gives a sequence that grows by each function that is partitioned, with its `name`, and `report()`, its `Report`.
    """
    from meshbridge.jitted import everywhere

    return everywhere.patched(_planning(options, compiler_options))


def _planning(options: Mapping[str, Any], compiler_options: Given) -> Planning:
    from meshbridge.jitted.plans import Planning
    from meshbridge.runtime.compiler_options import CompilerOptions

    return Planning(options, CompilerOptions.of(compiler_options))


def assert_same_plan(program: Source, devices: Sequence[Any] | None = None) -> None:
    """Raises MeshError, in each process, unless all processes that have some of `devices`, by default all of JAX's, come here
    with the same program, source locations aside.

    `compile` does this by itself; of what `partition` gives, no process knows what the others have. Each process has to call it,
    and waits for the others; within one process it does nothing.
    """
    import jax

    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.runtime import processes

    used = tuple(devices if devices is not None else jax.devices())
    with processes.Agreement(used) as agreement:
        opened = formats.unpack(program, context())
        agreement.require(used, opened.module, {"signature": processes.signature(opened.module)})
