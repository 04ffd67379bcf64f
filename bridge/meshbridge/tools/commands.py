"""The commands of `meshbridge`: the options of each, and what it does. `tools/cli.py` finds them by name."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import get_args, get_type_hints

from meshbridge import conversion, pipeline
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError
from meshbridge.lowering.plain_stablehlo import check_version
from meshbridge.machines.target import EXAMPLES, Target
from meshbridge.machines.target import parse as parse_target
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.reports import partition_and_report
from meshbridge.resharding.notation import parse_mesh
from meshbridge.resharding.plan import DEFAULTS, Options
from meshbridge.tools import console, progress, verify_command
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.reshard import run as plan_text

TOLERANCE = 1e-4
"""Relative difference that `run --check` allows: the programs of the README differ by at most 3e-6, in float32."""

DEVICES = 8
"""Virtual devices that a program runs on, unless the command says otherwise."""

TIMEOUT = 600.0
"""Seconds that a program may take to compile for a target, unless the command says otherwise: on two cores realistic ones took 10
to 260 s.
"""

_INPUT_HELP = (
    "MLIR text or bytecode, a StableHLO portable artifact or a jax.export artifact, told by content; - is standard input"
)


def _add_partition(parser: console.Parser) -> None:
    _add_input(parser)
    _add_platform(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file; its suffix may ask for another format (default: -)")
    _add_options(parser, "emit", "resharding", "collectives", "replica_groups")
    text = "with --emit local: plain StableHLO of that version, for other compilers than XLA, e.g. 1.9.0"
    parser.add_argument(_VERSION, type=_version, metavar="V", help=text)
    parser.add_argument("--ops", metavar="FILE", help="with --stablehlo-version: the ops that may be used, one on each line")
    parser.add_argument("--timing", action="store_true", help="print on standard error how long each pass took")
    parser.add_argument("--report", action="store_true", help="say what the program communicates, and why, beside the output")
    parser.add_argument("--json", action="store_true", help="the report for programs instead of people")
    parser.set_defaults(command=partition)


def _add_run(parser: console.Parser) -> None:
    _add_input(parser)
    _add_run_inputs(parser)
    parser.add_argument("--outputs", metavar="Y.npz", help="write the outputs there, named in the same way")
    parser.add_argument("--check", action="store_true", help="compare with the unsharded program on one device")
    parser.add_argument("--tolerance", type=float, help=f"relative error that --check lets pass (default: {TOLERANCE})")
    parser.set_defaults(command=run)


def _add_convert(parser: console.Parser) -> None:
    kinds = conversion.names()
    _add_input(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file (default: -)")
    parser.add_argument("--from", dest="source", choices=["auto", *kinds], default="auto", help="kind of input (default: auto)")
    parser.add_argument("--to", dest="target", choices=kinds, required=True, help="what to write")
    parser.add_argument("--closed", action="store_true", help="decide every sharding first and write it as final")
    parser.add_argument("--binary", action="store_true", help="write MLIR bytecode where text would be written")
    parser.set_defaults(command=convert)


def _add_report(parser: console.Parser) -> None:
    _add_input(parser)
    _add_platform(parser)
    _add_options(parser, "resharding", "collectives")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.set_defaults(command=report)


def _add_compare(parser: console.Parser) -> None:
    _add_input(parser)
    _add_run_inputs(parser)
    help_ = "compile for an accelerator that need not be there, and run nothing; may be given several times"
    parser.add_argument("--target", action="append", default=[], dest="targets", metavar=_TARGET, help=help_)
    help_ = "with --target, leave out one of XLA's partitioners; may be given twice"
    parser.add_argument("--without", action="append", default=[], choices=PEERS, help=help_)
    _add_limits(parser)
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.set_defaults(command=compare)


def _add_compile(parser: console.Parser) -> None:
    _add_input(parser)
    parser.add_argument("--target", required=True, metavar=_TARGET, help=f"what to compile for: {EXAMPLES}")
    _add_limits(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file, as the target's runtime serializes executables")
    parser.set_defaults(command=compile)


_TARGET = "PLATFORM:DEVICE:TOPOLOGY"


def _add_limits(parser: console.Parser) -> None:
    """What a process that compiles may take."""
    help_ = f"seconds that each process may take (for a target {TIMEOUT:g} by default, else any number)"
    parser.add_argument("--timeout", type=_amount, metavar="SECONDS", help=help_)
    parser.add_argument(
        "--memory-limit", type=_amount, metavar="GB", help="memory that each process may use (default: any amount)"
    )


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


def _add_input(parser: console.Parser) -> None:
    parser.add_argument("input", help=_INPUT_HELP)
    parser.add_argument("--dims", type=_dims, metavar="B=8,S=16", help="sizes of a jax.export artifact's symbolic dimensions")
    parser.add_argument("--quiet", action="store_true", help="show no progress on a terminal")


def _add_run_inputs(parser: console.Parser) -> None:
    """On how many devices to run, and on what."""
    parser.add_argument("--devices", type=_count, help="virtual CPU devices (default: 8)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--seed", type=console.seed, help="seed of the random inputs (default: 0)")
    source.add_argument("--inputs", metavar="X.npz", help="inputs by position: arr_0, arr_1, … as numpy.savez names them")


_HELP = {
    "emit": "how far to go",
    "resharding": "exact: the fewest bytes, always",
    "collectives": "make collectives fewer and smaller; ring: multiply shards as they come around, instead of gathering them",
    "replica_groups": "how to write device groups",
}


def _add_options(parser: console.Parser, *names: str) -> None:
    """Options of the pipeline by their names there, with the values and defaults that they have there."""
    kinds = get_type_hints(pipeline.Options)
    for name in names:
        flag, default = _flag(name), getattr(pipeline.DEFAULTS, name)
        parser.add_argument(flag, choices=get_args(kinds[name]), default=default, help=f"{_HELP[name]} (default: {default})")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add_platform(parser: console.Parser) -> None:
    text = "choose one platform of a jax.export artifact that is for several, e.g. tpu"
    parser.add_argument("--platform", metavar="NAME", help=text)


def _dims(text: str) -> dict[str, int]:
    sizes = [re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d+)\s*", part) for part in text.split(",")]
    found = {size[1]: int(size[2]) for size in sizes if size}
    if len(found) < len(sizes):
        raise argparse.ArgumentTypeError(f"expected a size for each of different names, as in b=8,s=16, found '{text}'")
    return found


def _version(text: str) -> str:
    try:
        return check_version(text)
    except MeshError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("error: ")) from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return int(text)


def _amount(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return found


_EARLY = "with --emit annotated, which says nothing of communication yet"

_VERSION = "--stablehlo-version"

_USELESS: dict[str, dict[str, str]] = {
    "annotated": {"--resharding": _EARLY, "--collectives": _EARLY, "--replica-groups": _EARLY, "--report": _EARLY},
    "mesh": {"--replica-groups": "with --emit mesh, whose collectives name mesh axes"},
    "local": {},
    "exported": {},
}
for _form, _options in _USELESS.items():
    _options |= {} if _form == "local" else {_VERSION: f"with --emit {_form}, expected --emit local"}
"""By form: the options of `meshbridge partition` that do nothing to it."""

_DONE = "on a program that is partitioned already"


def partition(options: argparse.Namespace) -> int:
    """`meshbridge partition IN -o OUT`."""
    useless = _USELESS[options.emit] | ({} if options.report else {"--json": "without --report"})
    is_plain = options.stablehlo_version is not None
    useless |= {"--replica-groups": f"with {_VERSION}, which lists devices"} if is_plain else {"--ops": f"without {_VERSION}"}
    console.refuse_ignored("meshbridge partition", useless, _given(options))
    given = {name: value for name, value in vars(options).items() if name in _HELP}
    how = pipeline.Options(**given, stablehlo_version=options.stablehlo_version, ops=_ops(options.ops))
    with progress.shown((_READING, *_work(how), _WRITING), quiet=options.quiet) as steps:
        program = _read_for_platform(options)
        steps.done(_READING)
        with files.about(files.display_name(options.input), program.format.wording):
            _refuse_done(program, options)
            if options.report:
                found, timings = partition_and_report(program.module, how, on_stage=_reached(steps))
            else:
                found, timings = None, pipeline.partition_module(program.module, how, on_stage=_reached(steps))
            chosen = formats.choose(_presentable(program, how), options.output)
            data = chosen.serialize()
    files.write_bytes(options.output, data)
    if found is not None:  # beside a program on standard output, the report would spoil it
        print(found.to_json() if options.json else found.table(), file=sys.stderr if options.output == "-" else sys.stdout)
    if options.timing:
        for timing in timings:
            print(f"{timing.seconds:9.4f} s {timing.verify_seconds:9.4f} s verify  {timing.name}", file=sys.stderr)
    return 0


_READING, _CONVERTING, _COMPILING, _WRITING = "reading", "converting", "compiling", "writing"

_STAGES = {
    "source": "checking",
    "annotated": "importing shardings",
    "legal": "legalizing",
    "decided": "deciding shardings",
    "partitioned": "partitioning",
    "optimised": "optimising collectives",
    "lowered": "lowering",
}
"""What runs until a stage of the pipeline is reached, as progress calls it."""


def _work(how: pipeline.Options) -> list[str]:
    """What runs until each stage of the pipeline is reached."""
    return [_STAGES[stage.name] for stage in pipeline.build(how).stages]


def _reached(steps: progress.Steps) -> pipeline.OnStage:
    """Tells the steps of a command which stages are reached."""
    return lambda stage, _: steps.done(_STAGES[stage])


def _given(options: argparse.Namespace) -> dict[str, object]:
    """The options of a command by name, those that stand at their default as False."""
    return {_flag(name): value != getattr(pipeline.DEFAULTS, name, None) and value for name, value in vars(options).items()}


def _refuse_done(program: Program, options: argparse.Namespace) -> None:
    """Raises MeshError for options that a program which is partitioned already comes too late for."""
    if is_partitioned(program.module) and options.resharding != "cheapest":
        raise MeshError(f"error: --resharding has no effect {_DONE}")


def _read_for_platform(options: argparse.Namespace) -> Program:
    """The program, for the platform that the options name. Raises MeshError for one that it is not for."""
    program = console.read_program(options.input, options.dims)
    with files.about(files.display_name(options.input), program.format.wording):
        return formats.choose_platform(program, options.platform)


def _ops(path: str | None) -> tuple[str, ...]:
    """The names of ops in a file, one on each line; none without a file. Raises MeshError for one that names none."""
    if path is None:
        return ()
    lines = [line.strip() for line in files.read_bytes(path).decode(errors="replace").splitlines()]
    if not (names := tuple(line for line in lines if line)) or any(not _OP.fullmatch(name) for name in names):
        raise MeshError(f"{path}: error: expected the name of an op on each line, e.g. stablehlo.add")
    return names


_OP = re.compile(r"\w+(\.\w+)+")


def _presentable(program: Program, how: pipeline.Options) -> Program:
    """Mesh IR and local programs do not fit what they came in, and are text unless the output asks for something else; those in
    plain StableHLO are portable artifacts."""
    if how.stablehlo_version is not None:
        return formats.in_version(program, how.stablehlo_version)
    return program if how.emit == "exported" else replace(program, format=formats.TEXT)


def run(options: argparse.Namespace) -> int:
    """`meshbridge run IN`."""
    useless = {} if options.check else {"--tolerance": "without --check"}
    console.refuse_ignored("meshbridge run", useless, {"--tolerance": options.tolerance is not None})
    if options.outputs == "-":
        raise console.UsageError("meshbridge run: error: --outputs needs a file: what is printed goes to standard output")
    _set_defaults(options, seed=0, tolerance=TOLERANCE, devices=DEVICES)
    _make_devices(options.devices)
    program = _read_for_cpu(options)
    from meshbridge.tools import inputs, trial  # import JAX, which reads the number of devices as it starts

    with (
        files.about(files.display_name(options.input), program.format.wording),
        inputs.for_module(program, options.inputs) as options.inputs,
    ):
        return trial.run(program.module, options)


def _set_defaults(options: argparse.Namespace, **defaults: object) -> None:
    """Gives options that were left out their values; argparse would not tell those from ones that were given."""
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def _read_for_cpu(options: argparse.Namespace) -> Program:
    """The program for virtual devices, which are of the platform `cpu`."""
    program = console.read_program(options.input, options.dims)
    with files.about(files.display_name(options.input), program.format.wording):
        return formats.for_platform(program, "cpu")


def convert(options: argparse.Namespace) -> int:
    """`meshbridge convert --to KIND IN -o OUT`."""
    kind = formats.formats().get(options.target)
    if kind is not None:
        _check_format(kind, options)
    with progress.shown((_READING, _CONVERTING, _WRITING), quiet=options.quiet) as steps:
        program = console.read_program(options.input, options.dims, options.source)
        steps.done(_READING)
        with files.about(files.display_name(options.input), program.format.wording):
            converted = conversion.convert(program, options.target, closed=options.closed)
            steps.done(_CONVERTING)
            chosen = formats.choose(converted, options.output) if kind is None else converted
            data = (_binary(chosen) if options.binary else chosen).serialize()
    files.write_bytes(options.output, data)
    return 0


def _check_format(kind: formats.Format, options: argparse.Namespace) -> None:
    """Raises UsageError for options that ask for something else than the format that `--to` names."""
    asked = formats.by_suffix(options.output)
    if asked not in (None, kind) and not (kind.is_spelling and asked is formats.TEXT):
        found = f"--to {kind.name} asks for {kind.summary}, but the name {options.output} for {asked.summary}"
        raise console.UsageError(f"meshbridge convert: error: {found}")
    useless = {"--closed": f"with --to {kind.name}, which is a format", "--binary": f"with --to {kind.name}"}
    if kind.is_spelling:
        useless.pop("--closed")
    if kind is formats.BYTECODE:
        useless.pop("--binary")
    console.refuse_ignored("meshbridge convert", useless, _given(options))


def _binary(program: Program) -> Program:
    """`program` as MLIR bytecode where it would be text. Raises MeshError where it would be something else."""
    if program.format not in (formats.TEXT, formats.BYTECODE):
        hint = f"name the output *{formats.BYTECODE.suffixes[0]}, or leave out --binary"
        raise MeshError(f"error: --binary has no effect on {program.format.summary}\n  hint: {hint}")
    return replace(program, format=formats.BYTECODE)


def report(options: argparse.Namespace) -> int:
    """`meshbridge report IN`."""
    how = pipeline.Options(emit="mesh", resharding=options.resharding, collectives=options.collectives)
    with progress.shown((_READING, *_work(how)), quiet=options.quiet) as steps:
        program = _read_for_platform(options)
        steps.done(_READING)
        with files.about(files.display_name(options.input), program.format.wording):
            _refuse_done(program, options)
            found, _ = partition_and_report(program.module, how, on_stage=_reached(steps))
    print(found.to_json() if options.json else found.table())
    return 0


def compare(options: argparse.Namespace) -> int:
    """`meshbridge compare IN`: fails if our own partitioner does."""
    if options.targets:
        return _compare_for_targets(options)
    console.refuse_ignored("meshbridge compare", {"--without": "without --target"}, {"--without": options.without})
    _set_defaults(options, seed=0, devices=DEVICES)
    _make_devices(options.devices)
    program = _read_for_cpu(options)
    from meshbridge.tools import inputs  # imports JAX, as do these
    from meshbridge.tools.compare import command, text
    from meshbridge.tools.compare.process import Limits

    limits = Limits(options.timeout, options.memory_limit)
    with (
        files.about(files.display_name(options.input), program.format.wording),
        inputs.for_module(program, options.inputs) as archive,
    ):
        found = command.compare(
            program.module,
            devices=options.devices,
            seed=options.seed,
            inputs=archive or "",
            limits=limits,
            quiet=options.quiet,
        )
    if options.json:
        print(text.as_json(found))
    else:
        text.print_table(found)
    return 1 if found.figures[OURS].error else 0


def _compare_for_targets(options: argparse.Namespace) -> int:
    useless = dict.fromkeys(("--devices", "--seed", "--inputs"), "with --target, for which nothing runs")
    given = {name: getattr(options, name.strip("-")) is not None for name in useless}
    console.refuse_ignored("meshbridge compare", useless, given)
    targets = [_target("compare", text) for text in options.targets]
    program = _read_ahead_of_time(options)
    from meshbridge.tools.compare import command, text
    from meshbridge.tools.compare.process import Limits

    limits = Limits(options.timeout, options.memory_limit)
    with files.about(files.display_name(options.input), program.format.wording):
        found = command.compare_for(program, targets, without=options.without, limits=limits, quiet=options.quiet)
    if options.json:
        print(text.targets_as_json(found))
    else:
        for index, comparison in enumerate(found):
            print(end="\n" if index else "")
            text.print_target_table(comparison)
    return 1 if any(comparison.figures[OURS].error for comparison in found) else 0


def compile(options: argparse.Namespace) -> int:
    """`meshbridge compile IN --target T -o FILE`."""
    target = _target("compile", options.target)
    with progress.shown((_READING, _COMPILING, _WRITING), quiet=options.quiet) as steps:
        program = _read_ahead_of_time(options)
        steps.done(_READING)
        from meshbridge.tools.compare import command
        from meshbridge.tools.compare.process import Limits

        limits = Limits(options.timeout, options.memory_limit)
        with files.about(files.display_name(options.input), program.format.wording):
            data = command.executable_for(program, target, limits=limits)
        steps.done(_COMPILING)
    files.write_bytes(options.output, data)
    return 0


def _target(command: str, text: str) -> Target:
    """What `--target` says. Raises UsageError where it says nothing that can be compiled for."""
    try:
        return parse_target(text)
    except MeshError as error:
        raise console.UsageError(f"meshbridge {command}: {error}") from None


def _read_ahead_of_time(options: argparse.Namespace) -> Program:
    """The program, in a process that has no devices but the CPU's and compiles nothing itself."""
    _set_defaults(options, timeout=TIMEOUT)
    os.environ["JAX_PLATFORMS"] = "cpu"
    return console.read_program(options.input, options.dims)


def reshard(options: argparse.Namespace) -> int:
    """`meshbridge reshard --shape SHAPE --mesh MESH --from SHARDING --to SHARDING`."""
    exact = options.resharding == "exact"
    useless = dict.fromkeys(("--alpha", "--beta"), "with --resharding exact, which counts bytes first, then collectives")
    given = {name: getattr(options, name.strip("-")) is not None for name in useless}
    console.refuse_ignored("meshbridge reshard", useless if exact else {}, given)
    _set_defaults(options, alpha=DEFAULTS.alpha, beta=DEFAULTS.beta)
    if options.run:
        _make_devices(parse_mesh(options.mesh).size)
    costs = Options(alpha=options.alpha, beta=options.beta, exact=exact)
    print(plan_text(options.shape, options.mesh, options.source, options.target, options.run, options.json, costs))
    return 0


def _make_devices(count: int) -> None:
    """Asks XLA for `count` virtual CPU devices. It reads its flags when JAX first looks for devices."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"


def _add_verify(parser: console.Parser) -> None:
    _add_input(parser)
    verify_command.add_options(parser)


OPTIONS: dict[str, Callable[[console.Parser], None]] = {
    "partition": _add_partition,
    "run": _add_run,
    "convert": _add_convert,
    "report": _add_report,
    "compare": _add_compare,
    "compile": _add_compile,
    "reshard": _add_reshard,
    "verify": _add_verify,
}
"""What gives a command its options, and the function that follows them, by the command's name."""
