"""The commands of `meshbridge`: their options and their functions. `tools/cli.py` finds them by name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

from meshbridge import conversion, partitioning, pipeline, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.emit.python import program as python_file
from meshbridge.ir.mlir import MeshError
from meshbridge.lowering.plain_stablehlo import check_version
from meshbridge.machines.compile_target import NO_DEVICE
from meshbridge.machines.target import has_topology
from meshbridge.pipelines.mpmd_reader import is_mapped
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.reports import By, Report, partition_and_report, partition_and_suggest
from meshbridge.reports.symbolic import formulas
from meshbridge.resharding.notation import parse_mesh
from meshbridge.resharding.plan import DEFAULTS, PlanOptions
from meshbridge.tools import (
    arguments,
    compare_commands,
    console,
    model_explorer,
    pipeline_commands,
    plan_commands,
    run_script_command,
    search_command,
    verify_command,
)
from meshbridge.tools.reshard import reshard as plan_between

TOLERANCE = 1e-4
"""Relative difference that `run --check` allows: the programs of the README differ by at most 3e-6, in float32."""


def _add_partition(parser: console.Parser) -> None:
    arguments.add_input(parser)
    arguments.add_local(parser)
    _add_platform(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file; its suffix may ask for another format (default: -)")
    _add_options(parser, "emit", "resharding", "collectives", "inside", "replica_groups", "compiler_options")
    _add_machine(parser)
    arguments.add_layout(parser)
    arguments.add_memory_limit(parser)
    text = "with --emit local: plain StableHLO of that version, for other compilers than XLA, e.g. 1.9.0"
    parser.add_argument(_VERSION, type=_version, metavar="V", help=text)
    parser.add_argument("--ops", metavar="FILE", help="with --stablehlo-version: the ops that may be used, one on each line")
    parser.add_argument("--timing", action="store_true", help="print on standard error how long each pass took")
    parser.add_argument("--report", action="store_true", help="say what the program communicates, and why, beside the output")
    parser.add_argument("--json", action="store_true", help="the report for programs instead of people")
    pipeline_commands.add_options(parser)
    parser.set_defaults(command=partition)


def _add_run(parser: console.Parser) -> None:
    arguments.add_input(parser)
    arguments.add_local(parser)
    arguments.add_run_inputs(parser)
    parser.add_argument("--outputs", metavar="Y.npz", help="write the outputs there, named in the same way")
    parser.add_argument("--check", action="store_true", help="compare with the unsharded program on one device")
    parser.add_argument("--tolerance", type=float, help=f"relative error that --check lets pass (default: {TOLERANCE})")
    parser.set_defaults(command=run)


def _add_convert(parser: console.Parser) -> None:
    kinds = conversion.names()
    arguments.add_input(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file (default: -)")
    parser.add_argument("--from", dest="source", choices=["auto", *kinds], default="auto", help="kind of input (default: auto)")
    parser.add_argument("--to", dest="target", choices=kinds, required=True, help="what to write")
    parser.add_argument("--closed", action="store_true", help="decide every sharding first and write it as final")
    parser.add_argument("--plain", action="store_true", help="with --to gspmd: tilings by device numbers, without names of axes")
    parser.add_argument("--binary", action="store_true", help="write MLIR bytecode where text would be written")
    parser.set_defaults(command=convert)


def _add_report(parser: console.Parser) -> None:
    arguments.add_input(parser)
    arguments.add_local(parser)
    _add_platform(parser)
    _add_options(parser, "resharding", "collectives", "inside", "compiler_options")
    _add_machine(parser)
    arguments.add_memory_limit(parser)
    arguments.add_layout(parser)
    parser.add_argument("--by", choices=get_args(By), help="what the table has rows for (default: collective)")
    text = "say up to N changes of shardings with which it communicates less; takes 4 N + 4 partitionings"
    parser.add_argument("--suggest", type=arguments.count, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    text = "tokens that a step processes on all devices, of which tokens per second follow: with --machine DEVICE:TOPOLOGY"
    parser.add_argument("--tokens", type=arguments.amount, metavar="N", help=text)
    text = "write the predicted step there, as a Chrome trace: with --machine DEVICE:TOPOLOGY"
    parser.add_argument("--perfetto", metavar="STEP.json", help=text)
    parser.add_argument("--html", metavar="OUT.html", help="write the report as a page, one file that needs no network")
    text = "write wire bytes by operation, as node data for the graph that Model Explorer draws of the input"
    parser.add_argument("--model-explorer", metavar="OUT.json", help=text)
    text = "give wire bytes as formulas of symbolic dimensions and of the sizes of mesh axes, of the plan for the sizes in --dims"
    parser.add_argument("--symbolic", action="store_true", help=text)
    pipeline_commands.add_options(parser)
    parser.set_defaults(command=report)


def _add_reshard(parser: console.Parser) -> None:
    parser.add_argument("--shape", required=True, help="shape and element type, e.g. 96x192xf32")
    parser.add_argument("--mesh", required=True, help="mesh shape, e.g. 2x3")
    parser.add_argument(
        "--from", dest="source", required=True, help="sharding, e.g. '[[0], [1]]' or '[[0], []] partial = sum [1]'"
    )
    parser.add_argument("--to", dest="target", required=True, help="sharding")
    parser.add_argument("--run", action="store_true", help="execute the plan on virtual devices and compare the data")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.add_argument(
        "--resharding", choices=["cheapest", "exact"], default="cheapest", help="exact insists on the lower bound"
    )
    parser.add_argument("--alpha", type=float, help=f"seconds per collective (default: {DEFAULTS.alpha})")
    parser.add_argument("--beta", type=float, help=f"seconds per byte received (default: {DEFAULTS.beta})")
    parser.set_defaults(command=reshard)


_HELP = {
    "emit": "how far to go",
    "resharding": "exact: the fewest bytes, always",
    "collectives": "make collectives fewer and smaller, and hide them behind computation",
    "inside": "with a topology: whether values inside may be split along more axes than the constraints on them name",
    "replica_groups": "how to write device groups",
    "compiler_options": "which of XLA's options the program will be compiled under: of best ones the plan makes use",
}


def _add_options(parser: console.Parser, *names: str) -> None:
    """Adds options of the pipeline, with the pipeline's values and defaults."""
    choices = pipeline.option_choices()
    for name in names:
        flag, default = _flag(name), pipeline.DEFAULTS.written(name)
        written = (*choices[name], pipeline_commands.MPMD) if name == "emit" else choices[name]
        parser.add_argument(flag, choices=written, default=default, help=f"{_HELP[name]} (default: {default})")


def _add_machine(parser: console.Parser) -> None:
    """Adds the machine of the plan, as `--machine` or `--target`."""
    group = parser.add_mutually_exclusive_group()
    arguments.add_machine(group, pipeline.DEFAULTS.target.name)
    arguments.add_target(group)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add_platform(parser: console.Parser) -> None:
    text = "choose one platform of a jax.export artifact that is for several, e.g. tpu"
    parser.add_argument("--platform", metavar="NAME", help=text)


def _version(text: str) -> str:
    with arguments.refusing():
        return check_version(text)


_NOT_PARTITIONED = "with --emit annotated, which says nothing of communication yet"

_VERSION = "--stablehlo-version"

_USELESS: dict[str, dict[str, str]] = {
    "annotated": dict.fromkeys(("--resharding", "--collectives", "--replica-groups", "--report"), _NOT_PARTITIONED),
    "mesh": {"--replica-groups": "with --emit mesh, whose collectives name mesh axes"},
    "local": {},
    "exported": {},
    "shard_map": {"--replica-groups": "with --emit shard_map, whose collectives name mesh axes"},
}
for _form, _options in _USELESS.items():
    _options |= {} if _form == "local" else {_VERSION: f"with --emit {_form}, expected --emit local"}
"""By form: the options of `meshbridge partition` without effect on it."""

_DONE = "on a program that is partitioned already"


def partition(options: argparse.Namespace) -> int:
    """`meshbridge partition IN -o OUT`."""
    if pipeline_commands.is_asked("meshbridge partition", options) or options.emit == pipeline_commands.MPMD:
        return pipeline_commands.partition(options)
    useless = _USELESS[options.emit] | ({} if options.report else {"--json": "without --report"})
    is_plain = options.stablehlo_version is not None
    useless |= {"--replica-groups": f"with {_VERSION}, which lists devices"} if is_plain else {"--ops": f"without {_VERSION}"}
    useless |= _without_device(options.machine) | arguments.without_local(options)
    console.refuse_ignored("meshbridge partition", useless, _changed_options(options))
    choices = {name: value for name, value in vars(options).items() if name in (*_HELP, "machine", "layout", "memory_limit")}
    how = pipeline.Options.of(**choices, stablehlo_version=options.stablehlo_version, ops=_ops(options.ops))
    with progress.shown((_READING, *_stage_steps(how), _WRITING), quiet=options.quiet) as steps:
        program = _read_for_platform(options).planned(how)
        steps.done(_READING)
        with files.about(files.display_name(options.input), program.format.wording):
            program = arguments.local_program(program, options)
            _refuse_partitioned(program, options, "resharding", "machine", "layout", "memory_limit", "inside", "compiler_options")
            if options.report:
                traffic, timings = partition_and_report(program.module, how, on_stage=_on_stage(steps))
            else:
                traffic, timings = None, partitioning.partition_module(program.module, how, on_stage=_on_stage(steps))
            data = _content(program, how, options.output)
    files.write_bytes(options.output, data)
    if traffic is not None:  # standard output may have the program
        console.say(traffic.to_json() if options.json else traffic.table(), sys.stderr if options.output == "-" else sys.stdout)
    if options.timing:
        for timing in timings:
            console.say(f"{timing.seconds:9.4f} s {timing.verify_seconds:9.4f} s verify  {timing.name}", sys.stderr)
    return 0


_READING, _CONVERTING, _WRITING, _TRYING, _FITTING = "reading", "converting", "writing", "trying changes", "fitting formulas"

_STAGES = {
    "source": "checking",
    "annotated": "importing shardings",
    "legal": "legalizing",
    "decided": "deciding shardings",
    "partitioned": "partitioning",
    "optimised": "optimising collectives",
    "lowered": "lowering",
}
"""By stage: progress's name of the work up to it."""


def _stage_steps(how: pipeline.Options) -> list[str]:
    """Progress's names of the stages of the pipeline."""
    return [_STAGES[stage.name] for stage in pipeline.build(how).stages]


def _on_stage(steps: progress.WorkSteps) -> pipeline.OnStage:
    """Ends a step of a command when its stage is reached."""
    return lambda stage, _: steps.done(_STAGES[stage])


def _changed_options(options: argparse.Namespace) -> dict[str, object]:
    """The options of a command by name; False for those with their default value."""
    defaults = pipeline.DEFAULTS.all_written()
    return {_flag(name): value != defaults.get(name) and value for name, value in vars(options).items()}


def _without_device(machine: str) -> dict[str, str]:
    """The options that have no effect if the machine is no device."""
    return {"--compiler-options": f"on machine '{machine}', which is no device"} if machine in NO_DEVICE else {}


def _refuse_partitioned(program: Program, options: argparse.Namespace, *names: str) -> None:
    """Raises MeshError for options of these names if the program is partitioned, so that they have no effect."""
    is_set = {name: getattr(options, name) != pipeline.DEFAULTS.written(name) for name in names}
    if is_partitioned(program.module) and (late := [name for name, is_given in is_set.items() if is_given]):
        raise MeshError(f"error: {_flag(late[0])} has no effect {_DONE}")


def _read_for_platform(options: argparse.Namespace) -> Program:
    """Reads the program for the platform in the options. Raises MeshError if the program does not support it."""
    program = console.read_program(options.input, options.dims)
    with files.about(files.display_name(options.input), program.format.wording):
        return formats.choose_platform(program, options.platform)


def _ops(path: str | None) -> tuple[str, ...]:
    """The names of ops in a file, one on each line; empty without a file. Raises MeshError if a line is no name."""
    if path is None:
        return ()
    lines = [line.strip() for line in files.read_bytes(path).decode(errors="replace").splitlines()]
    if not (names := tuple(line for line in lines if line)) or any(not _OP.fullmatch(name) for name in names):
        raise MeshError(f"{path}: error: expected the name of an op on each line, e.g. stablehlo.add")
    return names


_OP = re.compile(r"\w+(\.\w+)+")


def _content(program: Program, how: pipeline.Options, output: str) -> bytes:
    """The bytes of a program in the requested form."""
    if how.emit == "shard_map":
        return python_file.write(program).encode()
    return formats.choose(_presentable(program, how), output).serialize()


def _presentable(program: Program, how: pipeline.Options) -> Program:
    """Chooses the format of a program: mesh IR and local programs do not fit their input's format, and become text; plain
    StableHLO becomes a portable artifact."""
    if how.stablehlo_version is not None:
        return formats.in_version(program, how.stablehlo_version)
    return program if how.emit == "exported" else replace(program, format=formats.TEXT)


def run(options: argparse.Namespace) -> int:
    """`meshbridge run IN`."""
    useless = arguments.without_local(options) | ({} if options.check else {"--tolerance": "without --check"})
    useless |= {"--check": "with --local: one device's program has no unsharded form"} if options.local else {}
    console.refuse_ignored("meshbridge run", useless, _changed_options(options) | {"--tolerance": options.tolerance is not None})
    console.refuse_outputs("meshbridge run", {"--outputs": options.outputs})
    arguments.set_defaults(options, seed=0, tolerance=TOLERANCE, devices=arguments.DEVICES)
    arguments.make_devices(options.devices)
    program = arguments.read_for_cpu(options)
    from meshbridge.tools import inputs, mapped_trial, trial  # import JAX, which reads the number of devices at its start

    if is_mapped(program.module):
        return mapped_trial.run(options, program)
    with (
        files.about(files.display_name(options.input), program.format.wording),
        inputs.for_module(program, options.inputs) as options.inputs,
    ):
        module = arguments.local_program(program, options).module
        arrays = None if options.inputs is None else trial.load_arrays(options.inputs)

        def show(ran: trial.RunResult) -> None:
            console.say(ran.table())
            if options.outputs is not None:
                trial.save_arrays(options.outputs, [result.value for result in ran.results])

        ran = trial.run(module, arrays, seed=options.seed, check=options.check, on_results=show, quiet=options.quiet)
        if options.check:
            console.say(ran.error_text)
            ran.require(options.tolerance)
    return 0


def convert(options: argparse.Namespace) -> int:
    """`meshbridge convert --to KIND IN -o OUT`."""
    kind = formats.formats().get(options.target)
    if kind is not None:
        _check_format(kind, options)
    if options.target not in conversion.with_plain_form():
        console.refuse_ignored("meshbridge convert", {"--plain": f"with --to {options.target}"}, _changed_options(options))
    with progress.shown((_READING, _CONVERTING, _WRITING), quiet=options.quiet) as steps:
        program = console.read_program(options.input, options.dims, options.source)
        steps.done(_READING)
        with files.about(files.display_name(options.input), program.format.wording):
            converted = conversion.convert(program, options.target, closed=options.closed, plain=options.plain)
            steps.done(_CONVERTING)
            chosen = formats.choose(converted, options.output) if kind is None else converted
            data = (_binary(chosen) if options.binary else chosen).serialize()
    files.write_bytes(options.output, data)
    return 0


def _check_format(kind: formats.Format, options: argparse.Namespace) -> None:
    """Raises UsageError for options that contradict the format of `--to`."""
    named = formats.by_suffix(options.output)
    if named not in (None, kind) and not (kind.is_spelling and named is formats.TEXT):
        message = f"--to {kind.name} asks for {kind.summary}, but the name {options.output} for {named.summary}"
        raise console.UsageError(f"meshbridge convert: error: {message}")
    useless = {"--closed": f"with --to {kind.name}, which is a format", "--binary": f"with --to {kind.name}"}
    if kind.is_spelling:
        useless.pop("--closed")
    if kind is formats.BYTECODE:
        useless.pop("--binary")
    console.refuse_ignored("meshbridge convert", useless, _changed_options(options))


def _binary(program: Program) -> Program:
    """`program` as MLIR bytecode instead of text. Raises MeshError if its format is neither."""
    if program.format not in (formats.TEXT, formats.BYTECODE):
        hint = f"name the output *{formats.BYTECODE.suffixes[0]}, or leave out --binary"
        raise MeshError(f"error: --binary has no effect on {program.format.summary}\n  hint: {hint}")
    return replace(program, format=formats.BYTECODE)


_NOT_SYMBOLIC = ("local", "by", "suggest", "tokens", "perfetto", "html", "model_explorer", "memory_limit", "layout")
"""Options of `meshbridge report` that need one choice of sizes."""


def symbolic(options: argparse.Namespace) -> int:
    """`meshbridge report IN --symbolic`."""
    useless = dict.fromkeys(map(_flag, _NOT_SYMBOLIC), "with --symbolic, which has formulas of wire bytes alone")
    console.refuse_ignored("meshbridge report", useless, _changed_options(options))
    how = pipeline.Options.of(
        emit="mesh", resharding=options.resharding, machine=options.machine, collectives=options.collectives
    )
    with progress.shown((_READING, _FITTING), quiet=options.quiet) as steps:
        program = _read_for_platform(options)  # also reports errors in the input and in --dims
        steps.done(_READING)
        name, data = files.display_name(options.input), b"" if options.dims is None else files.read_bytes(options.input)

        def at(dims: Mapping[str, int]) -> Program:
            if not dims:
                return replace(program, module=formats.copy_module(program.module))
            return formats.choose_platform(files.parse_program(data, name, dims), options.platform)

        with files.about(name, program.format.wording):
            volume = formulas(at, options.dims or {}, how)
        steps.done(_FITTING)
    console.say(volume.to_json() if options.json else volume.table())
    return 0


def report(options: argparse.Namespace) -> int:
    """`meshbridge report IN`."""
    if pipeline_commands.is_asked("meshbridge report", options):
        return pipeline_commands.report(options, _read_for_platform(options))
    if options.symbolic:
        return symbolic(options)
    is_placed = has_topology(options.machine)
    needs_topology = {"--perfetto": options.perfetto, "--layout": options.layout, "--tokens": options.tokens}
    useless = {} if is_placed else dict.fromkeys(needs_topology, "without --machine DEVICE:TOPOLOGY, as in h100:1x1x8")
    useless |= {"--by": "with --json, which has all of it"} if options.json else {}
    useless |= _without_device(options.machine) | arguments.without_local(options)
    console.refuse_ignored("meshbridge report", useless, _changed_options(options) | needs_topology | {"--by": options.by})
    written = {flag: getattr(options, flag.strip("-").replace("-", "_")) for flag in ("--perfetto", "--html", "--model-explorer")}
    console.refuse_outputs("meshbridge report", written)
    names = ("resharding", "machine", "memory_limit", "layout", "collectives", "inside", "compiler_options")
    how = pipeline.Options.of(emit="mesh", **{name: getattr(options, name) for name in names})
    trying = () if options.suggest is None else (_TRYING,)
    with progress.shown((_READING, *_stage_steps(how), *trying), quiet=options.quiet) as steps:
        program = _read_for_platform(options)
        steps.done(_READING)
        reported = None if is_mapped(program.module) else _report_on_one(program, options, how, steps)
    if reported is None:
        return pipeline_commands.report(options, program)
    figures, graph = reported
    if options.perfetto is not None:
        files.write_bytes(options.perfetto, figures.perfetto().encode())
    if options.html is not None:
        console.write_page(options.html, figures.to_html(files.display_name(options.input)))
    if graph is not None:
        files.write_bytes(options.model_explorer, model_explorer.node_data(graph, figures.collectives).encode())
    console.say(figures.to_json() if options.json else figures.table(options.by or "collective"))
    return 0


def _report_on_one(
    program: Program, options: argparse.Namespace, how: pipeline.Options, steps: progress.WorkSteps
) -> tuple[Report, model_explorer.ExplorerGraph | None]:
    """The report on a program for one mesh, and its graph if node data are asked for."""
    with files.about(files.display_name(options.input), program.format.wording):
        program = arguments.local_program(program, options)
        is_placed = has_topology(options.machine)
        _refuse_partitioned(
            program, options, "resharding", "memory_limit", "inside", *(() if is_placed else ("machine", "compiler_options"))
        )
        graph = None if options.model_explorer is None else model_explorer.ExplorerGraph.read(program.module)
        observe, tokens = _on_stage(steps), options.tokens
        if options.suggest is None:
            figures, _ = partition_and_report(program.module, how, tokens=tokens, on_stage=observe)
        else:
            figures, _ = partition_and_suggest(
                program.module, how, options.suggest, tokens=tokens, on_stage=observe, on_progress=steps.part
            )
    return figures, graph


def reshard(options: argparse.Namespace) -> int:
    """`meshbridge reshard --shape SHAPE --mesh MESH --from SHARDING --to SHARDING`."""
    exact = options.resharding == "exact"
    useless = dict.fromkeys(("--alpha", "--beta"), "with --resharding exact, which counts bytes first, then collectives")
    is_given = {name: getattr(options, name.strip("-")) is not None for name in useless}
    console.refuse_ignored("meshbridge reshard", useless if exact else {}, is_given)
    arguments.set_defaults(options, alpha=DEFAULTS.alpha, beta=DEFAULTS.beta)
    if options.run:
        arguments.make_devices(parse_mesh(options.mesh).size)
    costs = PlanOptions(alpha=options.alpha, beta=options.beta, exact=exact)
    planned = plan_between(options.shape, options.mesh, options.source, options.target, costs, run=options.run)
    console.say(planned.to_json() if options.json else planned.table())
    return 0


def _add_verify(parser: console.Parser) -> None:
    arguments.add_input(parser)
    verify_command.add_options(parser)


def _add_explain(parser: console.Parser) -> None:
    _add_plan(parser)
    plan_commands.add_explain(parser)


def _add_diff(parser: console.Parser) -> None:
    _add_plan(parser)
    plan_commands.add_diff(parser)


def _add_plan(parser: console.Parser) -> None:
    """Adds a program and the options to partition it."""
    arguments.add_input(parser)
    _add_platform(parser)
    _add_options(parser, "resharding", "collectives", "inside")
    _add_machine(parser)
    arguments.add_memory_limit(parser)
    arguments.add_layout(parser)


OPTIONS: dict[str, Callable[[console.Parser], None]] = {
    "partition": _add_partition,
    "run": _add_run,
    "run-script": run_script_command.add_options,
    "convert": _add_convert,
    "report": _add_report,
    "explain": _add_explain,
    "diff": _add_diff,
    "compare": compare_commands.add_compare,
    "compile": compare_commands.add_compile,
    "reshard": _add_reshard,
    "verify": _add_verify,
    "search": search_command.add_options,
}
"""By command, the function that adds its options and sets the function to run."""
