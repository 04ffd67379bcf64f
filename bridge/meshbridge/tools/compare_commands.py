"""The commands `meshbridge compare` and `meshbridge compile`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, get_args

from meshbridge import pipeline, progress
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import EXAMPLES
from meshbridge.read import files
from meshbridge.read.formats import Program
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.tools import arguments, console
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.compare.process import Limits

if TYPE_CHECKING:
    from meshbridge.pages.report_page import Versus  # loads templates

TIMEOUT = 600.0
"""The default time limit of compiling for a target, in seconds: on two cores realistic programs took 10 to 260 s."""


def add_compare(parser: console.Parser) -> None:
    """The options of `meshbridge compare`."""
    arguments.add_input(parser)
    arguments.add_run_inputs(parser)
    help_ = "compile for an accelerator that need not be there, and run nothing; may be given several times"
    parser.add_argument("--target", action="append", default=[], dest="targets", metavar=_TARGET, help=help_)
    help_ = "with --target, leave out one of XLA's partitioners; may be given twice"
    parser.add_argument("--without", action="append", default=[], choices=PEERS, help=help_)
    _add_machine(parser)
    _add_compiler_options(parser, None, "with --target, ", "default")
    _add_limits(parser)
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    help_ = "write our report as a page, one file that needs no network, with the comparison; of one --target at most"
    parser.add_argument("--html", metavar="OUT.html", help=help_)
    parser.set_defaults(command=compare)


def add_compile(parser: console.Parser) -> None:
    """The options of `meshbridge compile`."""
    arguments.add_input(parser)
    parser.add_argument("--target", required=True, metavar=_TARGET, help=f"what to compile for: {EXAMPLES}")
    _add_machine(parser)
    _add_compiler_options(parser, "best")
    _add_limits(parser)
    parser.add_argument("-o", dest="output", default="-", help="output file, as the target's runtime serializes executables")
    parser.set_defaults(command=compile)


_TARGET = "PLATFORM:DEVICE:TOPOLOGY"


def _add_machine(parser: console.Parser) -> None:
    arguments.add_machine(parser, None, f"the target's own, or {pipeline.DEFAULTS.target.name} without one")


def _add_limits(parser: console.Parser) -> None:
    """Adds the limits of a compiling process."""
    help_ = f"seconds that each process may take (for a target {TIMEOUT:g} by default, else any number)"
    parser.add_argument("--timeout", type=arguments.amount, metavar="SECONDS", help=help_)
    parser.add_argument(
        "--process-memory", type=arguments.amount, metavar="GB", help="memory that each process may use (default: any amount)"
    )


def _add_compiler_options(parser: console.Parser, default: str | None, where: str = "", default_text: str = "") -> None:
    help_ = (
        f"{where}XLA's options: those under which collectives overlap, or its own defaults (default: {default_text or default})"
    )
    parser.add_argument("--compiler-options", choices=get_args(OptionSet), default=default, help=help_)
    help_ = f"{where}an option of XLA beside those; may be given several times"
    parser.add_argument(
        "--compiler-option", action="append", default=[], type=arguments.compiler_option, metavar="NAME=VALUE", help=help_
    )


def _compiler_options(options: argparse.Namespace) -> CompilerOptions:
    return CompilerOptions(options.compiler_options, dict(options.compiler_option))


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(options.timeout, options.process_memory)


def compare(options: argparse.Namespace) -> int:
    """`meshbridge compare IN`; fails if our own partitioner fails."""
    console.refuse_outputs("meshbridge compare", {"--html": options.html})
    if options.targets:
        return _compare_for_targets(options)
    names = ("--without", "--compiler-options", "--compiler-option")
    values = {name: getattr(options, name.strip("-").replace("-", "_")) for name in names}
    console.refuse_ignored("meshbridge compare", dict.fromkeys(names, "without --target"), values)
    arguments.set_defaults(options, seed=0, devices=arguments.DEVICES)
    arguments.make_devices(options.devices)
    program = arguments.read_for_cpu(options)
    from meshbridge.tools import inputs  # imports JAX, as do these
    from meshbridge.tools.compare import command, text

    machine = options.machine or pipeline.DEFAULTS.target.name
    with (
        files.about(files.display_name(options.input), program.format.wording),
        inputs.for_module(program, options.inputs) as archive,
    ):
        comparison = command.compare(
            program.module,
            devices=options.devices,
            machine=machine,
            seed=options.seed,
            inputs=archive or "",
            limits=_limits(options),
            quiet=options.quiet,
        )
    if options.html is not None and not comparison.figures[OURS].error:
        _write_page(options, program, machine, text.versus(comparison))
    console.say(comparison.to_json() if options.json else comparison.table())
    return 1 if comparison.figures[OURS].error else 0


def _compare_for_targets(options: argparse.Namespace) -> int:
    useless = dict.fromkeys(("--devices", "--seed", "--inputs"), "with --target, for which nothing runs")
    is_given = {name: getattr(options, name.strip("-")) is not None for name in useless}
    console.refuse_ignored("meshbridge compare", useless, is_given)
    arguments.set_defaults(options, compiler_options="default")
    targets = [arguments.target("compare", text) for text in options.targets]
    if options.html is not None and len(targets) > 1:
        raise console.UsageError(f"meshbridge compare: error: --html draws one --target, found {len(targets)}")
    program = _read_ahead_of_time(options)
    from meshbridge.tools.compare import command, text

    with files.about(files.display_name(options.input), program.format.wording):
        comparisons = command.compare_for(
            program,
            targets,
            machine=options.machine,
            without=options.without,
            compiler_options=_compiler_options(options),
            limits=_limits(options),
            quiet=options.quiet,
        )
    if options.html is not None and not (only := comparisons[0]).figures[OURS].error:
        chosen = options.machine or command.machine_of(only.target, only.used)
        _write_page(options, command.for_target(program, only.target), chosen, text.target_versus(only))
    if options.json:
        console.say(text.targets_as_json(comparisons))
    else:
        console.say("\n\n".join(comparison.table() for comparison in comparisons))
    return 1 if any(comparison.figures[OURS].error for comparison in comparisons) else 0


def _write_page(options: argparse.Namespace, program: Program, machine: str, versus: Versus) -> None:
    """Writes the page of `--html`. Raises MeshError."""
    from meshbridge.tools.compare import page

    name = files.display_name(options.input)
    with files.about(name, program.format.wording):
        chosen = options.compiler_options or pipeline.DEFAULTS.target.compiler_options
        drawn = page.page(program, CompileTarget.of(machine, compiler_options=chosen), versus, name)
    console.write_page(options.html, drawn)


_READING, _COMPILING, _WRITING = "reading", "compiling", "writing"


def compile(options: argparse.Namespace) -> int:
    """`meshbridge compile IN --target T -o FILE`."""
    target = arguments.target("compile", options.target)
    with progress.shown((_READING, _COMPILING, _WRITING), quiet=options.quiet) as steps:
        program = _read_ahead_of_time(options)
        steps.done(_READING)
        from meshbridge.tools.compare import command

        with files.about(files.display_name(options.input), program.format.wording):
            under, limits = _compiler_options(options), _limits(options)
            data = command.executable_for(program, target, machine=options.machine, compiler_options=under, limits=limits)
        steps.done(_COMPILING)
    files.write_bytes(options.output, data)
    return 0


def _read_ahead_of_time(options: argparse.Namespace) -> Program:
    """Reads the program in a process that has only CPU devices, and compiles nothing itself."""
    arguments.set_defaults(options, timeout=TIMEOUT)
    os.environ["JAX_PLATFORMS"] = "cpu"
    return console.read_program(options.input, options.dims)
