"""meshbridge's functions for Python callers, which `meshbridge` exports.

Options are keywords with the names of the commands' options. A `jax.jit` function gets its positional arguments by position, and
its keyword arguments in `kwargs`, so that these cannot be mistaken for options.

Each function imports its modules when it is called: `import meshbridge` alone loads neither MLIR nor numpy.
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
    from meshbridge.partitioner.mesh_spmdization import Resharding
    from meshbridge.pipeline import Collectives, Emit, Inside
    from meshbridge.pipelines.function import Pipelined
    from meshbridge.pipelines.mapped_function import MappedPipeline
    from meshbridge.pipelines.schedules import Schedule
    from meshbridge.pipelines.searched import SearchedPipeline
    from meshbridge.read.formats import Program
    from meshbridge.reports import Difference, Explanation, Report
    from meshbridge.reports.symbolic import Formulas
    from meshbridge.runtime.compiler_options import Given
    from meshbridge.runtime.pjrt import Executable
    from meshbridge.sharding_search.mesh_search import OnTrial
    from meshbridge.sharding_search.plan import SearchedPlan

    Source: TypeAlias = Program | Exported | Lowered | ir.Module
    Named: TypeAlias = Mapping[str, Any] | None
    Local: TypeAlias = bool | tuple[Shardings | None, Shardings | None]

P = ParamSpec("P")
R = TypeVar("R")


class Keywords(TypedDict, total=False):
    """How to partition, see `meshbridge.pipeline.Options`. The default machine is JAX's, if the program may run there."""

    resharding: Resharding
    machine: str
    layout: str
    memory_limit: float | str | None
    collectives: Collectives
    inside: Inside
    replica_groups: Spelling


class PartitionKeywords(Keywords, total=False):
    """Further options of `partition`: others compile its result, under XLA's defaults unless told otherwise."""

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
@overload  # keywords one by one: most editors complete no others
def partition(
    program: Wrapped,
    *arguments: Any,
    kwargs: Named = ...,
    emit: Literal["exported"] = ...,
    platform: str | None = ...,
    compiler_options: OptionSet = ...,
    resharding: Resharding = ...,
    machine: str = ...,
    layout: str = ...,
    memory_limit: float | str | None = ...,
    collectives: Collectives = ...,
    inside: Inside = ...,
    replica_groups: Spelling = ...,
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
    """Partitions a program: the same function for its caller, with every collective explicit inside.

    The given program is not changed. An Exported or a Program gives a new one of its kind, an MLIR module or a
    `jax.stages.Lowered` a new module (global shapes outside, one manual computation over all mesh axes inside). A `jax.jit`
    function is exported for `arguments` and `kwargs`, which may be `jax.ShapeDtypeStruct`s, and gives an Exported. Open shardings
    of an Exported's arguments and results get the decided axes.

    With another form to `emit`, an Exported or a function gives a module, and a Program one of MLIR text. With
    `stablehlo_version` the form `local` is a Program in plain StableHLO of that version, for compilers other than XLA, whose
    `serialize()` returns a portable artifact. `ops` are the names of the permitted ops, empty for all. The form `shard_map` is
    the text of a Python file (docs/shard-map.md). `platform` chooses one of several that an Exported is for; a function is
    exported for it, whatever devices there are. `compiler_options` is the set of XLA's options under which the result will be
    compiled, and for which it is planned. With `local=True`, the program is one device's, with collectives of the mesh dialect or
    StableHLO, and each device has its own shards along dimension 0. `local=(in_shardings, out_shardings)` gives the shardings of
    arguments and results: one for each, `[[0], []]`, or a text, `"[[0], []] partial = sum [1]"`; None for each device's own
    shards.

    Raises MeshError with a source location, also for an invalid value of an option.
    """
    from meshbridge import partitioning, pipeline
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.runtime.devices import implied

    opened = annotated_if_local(formats.unpack(program, context(), arguments, kwargs, platform), local)
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


def annotated_if_local(program: Program, local: Local) -> Program:
    """The program; if it is one device's, annotates it in place as a partitioned one."""
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
    """Reports what `program` communicates once it is partitioned, and why; what it computes several times, and its memory. On a
    machine with a topology, also the time of a step, which is compiled under `compiler_options` and processes that many `tokens`.
    The default machine is that of `partition`. `suggest` is the most changes of its shardings to suggest, each of which is tried
    and communicates less: each takes as long as partitioning four times, and all four times more.

    It accepts the same programs as `partition`, also one device's, and does not change them. Raises MeshError.
    """
    from meshbridge import progress
    from meshbridge.ir.mlir import context
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.reports import partition_and_report, partition_and_suggest
    from meshbridge.runtime.devices import Chosen, implied

    opened = annotated_if_local(formats.unpack(program, context(), arguments, kwargs, platform), local)
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
        with progress.in_session("trying changes") as steps:
            reported, _ = partition_and_suggest(opened.module, options, suggest, tokens=tokens, on_progress=steps.part)
    else:
        reported, _ = partition_and_report(opened.module, options, tokens=tokens)
    return replace(reported, why_machine=chosen.why)


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
    """The shardings of a program's arguments and results with the shortest predicted step that fits in memory.

    `mesh` is a mesh, `{"data": 4, "model": 2}` or `"4x2"`, or a number of devices as a text, `"8"`, for which meshes of one and
    two axes are tried; by default it is the program's. `machine` is a device of docs/machines.md; without a topology, one of as
    many devices is taken; the default is JAX's. By default a plan may use the machine's memory. The program's annotations stay,
    unless `keep_annotations` is False; `fixed` are PartitionSpecs by patterns of paths, `{"params/**/kernel": P(None, "model")}`.
    The search ends after that many `seconds`: if they suffice, the same program gives the same plan.

    Along the `data_axis`, arguments are only split as fixed or annotated shardings propagate: no parameter is. `sub_axes`,
    `{"data": (2, 4)}`, are sub-axes, `data_0` and `data_1`, each of which may split a dimension alone, such as the experts of a
    mixture. By default sub-axes are tried if no axis divides such a dimension and there is time: a faster plan along them is on a
    mesh that has these as axes (`plan.mesh`); `{}` tries none.

    At most that many `constraints` worth writing into the model are named; finding them may take as long again.

    It accepts the same programs as `partition`, and does not change them. Raises MeshError, also if nothing fits in memory.
    """
    from meshbridge import conversion, progress
    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.read import formats
    from meshbridge.runtime.devices import implied
    from meshbridge.sharding_search import mesh_notation
    from meshbridge.sharding_search.plan import plan_of
    from meshbridge.sharding_search.request import Fixed, SearchRequest
    from meshbridge.sharding_search.search import best_of

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
    with progress.in_session("searching") as steps:
        best = best_of(opened.module, meshes, request, on_trial, steps.part)
    opened = replace(opened, module=best.annotated)
    return plan_of(best, conversion.convert(opened, "sdy"))


def search_pipeline(
    program: Source | Wrapped,
    *arguments: Any,
    stages: Sequence[int] = (),
    schedules: Sequence[str] | None = None,
    microbatches: str | Mapping[str, Sequence[int]] | None = None,
    seconds: float = 60.0,
    kwargs: Named = None,
    platform: str | None = None,
    **options: Unpack[Keywords],
) -> SearchedPipeline:
    """The pipeline of a training step with the shortest predicted step that fits in memory (docs/pipelines.md).

    `machine` has the devices of all stages, as in `v5p:4x2x4`; numbers of `stages` are by default all that divide them. The
    devices of a stage form any mesh with the axes of the step's mesh. `schedules` are by default all. `microbatches` names a
    static keyword argument of the step and its values, `{"microbatches": (4, 8, 16)}`, or, for a `jax.export.Exported`, symbolic
    dimensions and their product, the batch: `"m*b=32"`; by default the step keeps its own number. After that many `seconds` no
    further candidate is begun. Other options are those of `partition`.

    Raises MeshError for invalid values, if no candidate can be built, and if none fits in memory.
    """
    from jax.export import Exported

    from meshbridge import progress
    from meshbridge.ir.mlir import context
    from meshbridge.pipeline import Options
    from meshbridge.pipelines.candidates import BatchSymbols, StageRequest
    from meshbridge.pipelines.schedules import FORMS
    from meshbridge.pipelines.stage_search import OWN_COUNT, search_stages
    from meshbridge.read import files, formats

    how = Options.of(emit="mesh", **options)
    request = StageRequest(how, tuple(stages), FORMS if schedules is None else tuple(schedules), seconds)

    def unpacked(**static: int) -> Program:
        return formats.unpack(program, context(), arguments, {**(kwargs or {}), **static}, platform)

    with progress.in_session("searching") as steps:
        if isinstance(microbatches, str):
            if not isinstance(program, Exported):
                raise MeshError(f"error: expected a jax.export.Exported to give sizes, found {type(program).__name__}")
            symbols, data, name = BatchSymbols.parse(microbatches), formats.dumped(program), program.fun_name

            def sized(count: int) -> Program:
                return files.parse_program(data, name, symbols.sizes(count))

            return search_stages(sized, symbols.counts(), request, symbols.sizes, steps.part)
        if microbatches is None:
            return search_stages(lambda _: unpacked(), OWN_COUNT, request, on_progress=steps.part)
        if len(microbatches) != 1:
            raise MeshError(f"error: microbatches names {len(microbatches)} arguments of the step, expected one")
        ((argument, counts),) = microbatches.items()
        return search_stages(
            lambda count: unpacked(**{argument: count}), counts, request, lambda count: {argument: count}, steps.part
        )


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
    """Explains why arguments and results of `program` are sharded as they are, and what alternatives cost, each found by
    partitioning the program again.

    `of` is a path or a pattern of paths, or several: `params['head']`, `params/**/kernel`; by default all arguments and results.
    At most that many alternatives are tried for each match, or for all arrays together without `of`, where those with most
    communication come first. Arguments that are sharded together, such as a weight, its moments and the returned weight, are one
    match: they are changed together, unless `alone`. Other options are those of `report`.

    It accepts the same programs as `partition`, and does not change them. Raises MeshError, also for a pattern without a match.
    """
    from meshbridge import progress
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
    paths = (of,) if isinstance(of, str) else of
    with progress.in_session("trying other shardings") as steps:
        return partition_and_explain(opened.module, options, paths, tries=tries, alone=alone, on_progress=steps.part)


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
    """How two plans of one program differ: in shardings, and in collectives by module of the model. Each is a report or a
    program, partitioned or not, which is then reported with these options of `report`.

    Does not change them. Raises MeshError, also for plans of different programs.
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
    """The communication of `program` as formulas of its symbolic dimensions and its mesh's axis sizes.

    The formulas are those of the plan for the sizes `dims`, which a `jax.export.Exported` with symbolic dimensions needs, and for
    the program's mesh. They hold for sizes that the axes divide. The default machine is that of the options. Raises MeshError
    like `report`, if sympy is not installed, for a machine with a topology, and if the bytes of a collective are no polynomial of
    the dimensions.
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

    serialized = formats.dumped(program) if dims and isinstance(program, Exported) else b""
    options = Options("mesh", resharding, CompileTarget.of(machine or DEFAULTS.target.name), collectives=collectives)
    return symbolic.formulas(at, dims or {}, options)


def operations(
    program: Source | Wrapped, *arguments: Any, kwargs: Named = None, platform: str | None = None
) -> tuple[Operation, ...]:
    """The operations that a `Mutation` can name, in program order: their loops, and the options that they can take.

    It accepts the same programs as `partition`, and does not change them. Raises MeshError, also for a program without a mesh.
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
    """The program with new sharding options for some operations, the RFC's `transform.mesh.mutate`: `report`, `partition`,
    `compile`, `operations` and `mutate` itself accept it. Shardings of the other operations are decided accordingly.

    It accepts the same programs as `partition`, and does not change them. Raises MeshError for a mutation that names no operation
    of the program, and for an option that is illegal for an operation.
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
    """The program in the format `to`, or with its shardings in that notation: one of `meshbridge.conversion.names()`.

    It accepts the same programs as `partition`, and does not change them. `closed` decides every sharding first and writes it as
    final. `plain` writes GSPMD's tilings without axis names, for readers that know no names; `closed` and a
    `jax.export.Exported`, which are for XLA, do so too. Raises MeshError for a program that `to` cannot express.
    """
    from meshbridge import conversion
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats

    return conversion.convert(formats.unpack(program, context(), arguments, kwargs), to, closed=closed, plain=plain)


def load(path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None) -> Program:
    """Reads a program from a file of any known format, recognized by content; `-` is standard input.

    `dims` are the sizes of symbolic dimensions by name, which a `jax.export` artifact may have. Warns of contradicting
    annotations with a ShardingWarning. Raises ParseError, and MeshError for other sizes than the program needs. MLIR's reader may
    crash on a damaged binary, and the process with it: check untrusted files with the command `meshbridge convert`, which prints
    a diagnostic.
    """
    from meshbridge.read import files

    name = os.fspath(path)
    program = files.parse_program(files.read_bytes(name), files.display_name(name), dims)
    files.warn(program)
    return program


def save(
    program: Source | Wrapped,
    path: str | os.PathLike[str],
    *arguments: Any,
    kwargs: Named = None,
    platform: str | None = None,
) -> None:
    """Writes a program in the format of the suffix of `path`, or else in its own, for `load` and every command. Files are
    complete or absent.

    A `jax.jit` function is exported for `arguments` and `kwargs`, which may be `jax.ShapeDtypeStruct`s, and for `platform`: its
    own format is a `jax.export` artifact, `.jax_export`; `.mlir` is text. Both have the paths of arguments and results, source
    lines and name stacks. Arguments may be trees of any classes that JAX takes. `load` gives the trees of classes that the
    reading process has not registered by their keys, which `compile` accepts in their place.

    Raises MeshError, also for a function with Python callbacks, which no file holds.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.read import files, formats

    files.save(formats.unpack(program, context(), arguments, kwargs, platform), path)


def compile(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    devices: Sequence[Any] | None = None,
    compiler_options: Given = "best",
    local: Local = False,
    **options: Unpack[Keywords],
) -> Executable:
    """Compiles a program, accepted at any stage up to `local`, for PJRT devices: by default those of the arguments, in the order
    of their mesh, or else all of JAX's.

    It uses as many devices as the mesh has; the default machine is theirs. The given program is not changed. A jitted function is
    traced with `arguments` and `kwargs`; an artifact for several platforms is compiled for that of the devices. XLA compiles
    under its defaults with `compiler_options="default"`, or under options given by name; by default under those of the devices'
    machine, with which collectives overlap. The plan is made for the same set. `local` is as for `partition`, for one device's
    program. If the devices belong to several processes, each of them must compile the same program, and waits for the others.
    Raises MeshError for a program that cannot be partitioned, or that needs more devices than there are, and for an option that
    XLA refuses; in every process if one of several fails, is missing, or has another plan.
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
        opened = annotated_if_local(formats.unpack(program, context(), arguments, kwargs), local)
        if available:
            opened = formats.for_platform(opened, jax_devices.platform(available[0]))
        signature = processes.signature(opened.module)
        options.setdefault("machine", jax_devices.of(available).name)
        how = pipeline.Options.of(emit="local", compiler_options=request.chosen, **options)
        partitioning.partition_module(opened.module, how)
        under = request.on(jax_devices.machine_of(available, how.target.machine), explicit=True)
        used = pjrt.devices_for(opened.module, None if devices is None else available, (arguments, kwargs))
        agreement.require(used, opened.module, {"signature": signature, **how.all_written(), "compiler options": under})
        executable = pjrt.load(opened.planned(how), used, under)
        agreement.require(used)
    return executable


class JitKeywords(Keywords, total=False):
    """Options of `jit`: how to partition, and `jax.jit`'s options of these names."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    keep_unused: bool


@overload  # keywords one by one: most editors complete no others
def jit(
    function: Callable[P, R],
    /,
    *,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Sequence[str] | None = ...,
    donate_argnums: int | Sequence[int] | None = ...,
    donate_argnames: str | Sequence[str] | None = ...,
    keep_unused: bool = ...,
    compiler_options: Given = ...,
    resharding: Resharding = ...,
    machine: str = ...,
    layout: str = ...,
    memory_limit: float | str | None = ...,
    collectives: Collectives = ...,
    inside: Inside = ...,
    replica_groups: Spelling = ...,
) -> Jitted[P, R]: ...
@overload
def jit(*, compiler_options: Given = ..., **options: Unpack[JitKeywords]) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(function: Any = None, /, *, compiler_options: Given = "best", **options: Unpack[JitKeywords]) -> Any:
    """`jax.jit`, partitioned by meshbridge: the result is called like the function itself.

    As a decorator it accepts options or none. A function from `jax.jit` keeps its options; so does one from the `jit` of a
    library, such as `nnx.jit`, which still updates its objects. The function is traced, partitioned and compiled once for each
    kind of arguments; it runs on the devices of its shardings, its arguments or `jax.set_mesh`. The environment variable
    MESHBRIDGE_CACHE_DIR names a folder in which partitioned programs are cached. XLA's options are as for `compile`. Raises
    MeshError for invalid values of options. The result raises MeshError if the function cannot be partitioned.
    """
    if function is None:
        return partial(jit, compiler_options=compiler_options, **options)
    from meshbridge.jitted.function import jitted

    ours = {name: value for name, value in options.items() if name in Keywords.__annotations__}
    theirs: dict[str, Any] = {name: value for name, value in options.items() if name not in ours}
    return jitted(function, theirs, _planning(ours, compiler_options))


@overload
def pipelined(
    function: Callable[..., Any],
    /,
    *,
    stages: int,
    schedule: str | Schedule = ...,
    devices: Sequence[Any] | None = ...,
    compiler_options: Given = ...,
    **options: Unpack[JitKeywords],
) -> Pipelined: ...
@overload
def pipelined(
    function: Program | ir.Module,
    /,
    *,
    devices: Sequence[Any] | None = ...,
    compiler_options: Given = ...,
    **options: Unpack[Keywords],
) -> MappedPipeline: ...
def pipelined(
    function: Any,
    /,
    *,
    stages: int | None = None,
    schedule: str | Schedule | None = None,
    devices: Sequence[Any] | None = None,
    compiler_options: Given = "best",
    **options: Unpack[JitKeywords],
) -> Pipelined | MappedPipeline:
    """A training step as a pipeline over `stages` groups of devices, called like the step itself (docs/pipelines.md).

    The step computes gradients in a loop of microbatches, in which `stage` marks where stages begin. Its shardings are on the
    mesh of one stage; the first group consists of the first of the `devices`, by default all of JAX's, and so on. `schedule` is
    `gpipe`, `1f1b` (the default), `interleaved`, `zero-bubble`, a `Schedule`, or `stacked`, one SPMD program for layers under one
    scan. Other options are those of `jit`. The step is traced, cut and compiled once for each kind of arguments. A program of
    Shardy's MPMD dialect that is mapped to meshes has its stages and its schedule: it is called with arrays, in the order of its
    arguments.

    Raises MeshError for invalid values of options. The result raises MeshError for a step that cannot be cut: no loop of
    microbatches, stages out of order or of another number, too few devices, a schedule that does not fit.
    """
    from meshbridge.pipelines.function import pipelined as as_pipeline
    from meshbridge.pipelines.mapped_function import mapped
    from meshbridge.runtime.compiler_options import CompilerOptions

    ours = {name: value for name, value in options.items() if name in Keywords.__annotations__}
    theirs = {name: value for name, value in options.items() if name not in ours}
    request = CompilerOptions.of(compiler_options)
    if not callable(function):
        given = {**theirs, "stages": stages, "schedule": schedule}
        if useless := [name for name, value in given.items() if value is not None]:
            raise MeshError(f"error: {useless[0]} has no effect on a program, which is mapped to meshes already")
        return mapped(function, devices, ours, request)
    if stages is None:
        raise MeshError("error: expected stages, the number of groups of devices, found none")
    return as_pipeline(function, stages, schedule or "1f1b", devices, theirs, ours, request)


def install(*, leave_to_xla: Sequence[str] = (), compiler_options: Given = "best", **options: Unpack[Keywords]) -> None:
    """From now on, in all threads, partitions every function that JAX compiles for several devices, like `jit` with these
    options: also functions that were jitted before, and in libraries that do not know meshbridge.

    XLA's partitioner compiles the functions that `leave_to_xla` names, `train_step` or with wildcards `evaluate*`; a function of
    `jit` is partitioned whatever its name is.

    Raises MeshError for invalid values of options; calls then raise it if a function cannot be partitioned.
    """
    from meshbridge.jitted import everywhere

    everywhere.install(_planning(options, compiler_options, leave_to_xla))


def patch(
    *, leave_to_xla: Sequence[str] = (), compiler_options: Given = "best", **options: Unpack[Keywords]
) -> AbstractContextManager[Sequence[Planned]]:
    """A context in which `install` is in effect: `with meshbridge.patch() as planned:`.

    Returns a sequence that grows by each partitioned function, with its `name`, and `report()`, its `Report`.
    """
    from meshbridge.jitted import everywhere

    return everywhere.patched(_planning(options, compiler_options, leave_to_xla))


def _planning(options: Mapping[str, Any], compiler_options: Given, leave_to_xla: Sequence[str] = ()) -> Planning:
    from meshbridge.jitted.plans import Planning
    from meshbridge.runtime.compiler_options import CompilerOptions

    if isinstance(leave_to_xla, str):
        raise MeshError(f"error: leave_to_xla: expected a sequence of names of functions, found the string {leave_to_xla!r}")
    return Planning(options, CompilerOptions.of(compiler_options), tuple(leave_to_xla))


def assert_same_plan(program: Source, devices: Sequence[Any] | None = None) -> None:
    """Raises MeshError, in each process, unless all processes with some of `devices`, by default all of JAX's, call this function
    with the same program; source locations may differ.

    `compile` does this itself; for results of `partition`, no process knows those of the others. Each process must call it, and
    waits for the others; within one process it does nothing.
    """
    import jax

    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.runtime import processes

    used = tuple(devices if devices is not None else jax.devices())
    with processes.Agreement(used) as agreement:
        opened = formats.unpack(program, context())
        agreement.require(used, opened.module, {"signature": processes.signature(opened.module)})
