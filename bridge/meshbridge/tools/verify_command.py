"""The command `meshbridge verify`."""

from __future__ import annotations

import argparse

from meshbridge import partitioning, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import ir
from meshbridge.lowering.local_program import annotate_local_program, shardings_between, speaks_of_devices
from meshbridge.pipelines.mpmd_reader import is_mapped
from meshbridge.read import files, formats
from meshbridge.tools import arguments, console, pass_verdicts, pipeline_commands
from meshbridge.verification.verdict import MEMORY, Verdict, verify


def add_options(parser: console.Parser) -> None:
    """The options of `meshbridge verify` beside its input."""
    parser.add_argument("partitioned", nargs="?", metavar="PARTITIONED", help="the program to verify (default: partition SOURCE)")
    arguments.add_local(parser, "PARTITIONED, or SOURCE where it stands alone,")
    parser.add_argument(
        "--after-each-pass", action="store_true", help="partition, and name the first pass that changes the meaning"
    )
    parser.add_argument(
        "--memory", type=arguments.amount, default=MEMORY, metavar="GB", help=f"values held at once (default: {MEMORY:g})"
    )
    parser.add_argument("--seed", type=console.seed, default=0, help="seed of the random inputs (default: 0)")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    pipeline_commands.add_options(parser)
    parser.set_defaults(command=run)


_READING, _PARTITIONING, _VERIFYING = "reading", "partitioning", "verifying"


def run(options: argparse.Namespace) -> int:
    """The body of `meshbridge verify`; returns 0 if the programs are equal, 1 if they differ."""
    if pipeline_commands.is_asked("meshbridge verify", options):
        return pipeline_commands.verify(options, console.read_program(options.input, options.dims))
    if options.after_each_pass and options.partitioned is not None:
        raise console.UsageError("meshbridge verify: error: --after-each-pass partitions SOURCE itself, but PARTITIONED is given")
    console.refuse_ignored("meshbridge verify", arguments.without_local(options), _shardings(options))
    if options.after_each_pass:
        return _after_each_pass(_read_source(options), options)
    with progress.shown((_READING, _PARTITIONING, _VERIFYING), quiet=options.quiet) as steps:
        source = _read_source(options)
        steps.done(_READING)
        given = source if options.partitioned is None else _read_partitioned(source, options)
        verdict = None if is_mapped(given) else _verify_one(source, given, options, steps)
    if verdict is None:
        alone = options.partitioned is None
        return pipeline_commands.verify(options, formats.Program(given, formats.TEXT), None if alone else source)
    console.say(verdict.to_json() if options.json else verdict.table())
    return 0 if verdict.equal else 1


def _verify_one(source: ir.Module, given: ir.Module, options: argparse.Namespace, steps: progress.WorkSteps) -> Verdict:
    """Compares a program for one mesh with its source; with one that is partitioned here if both are the same."""
    partitioned = given
    if options.partitioned is None:
        partitioned = formats.copy_module(source)
        with files.about(files.display_name(options.input)):
            partitioning.partition_module(partitioned)
    steps.done(_PARTITIONING)
    with files.about(files.display_name(options.partitioned or options.input)):
        return verify(source, partitioned, seed=options.seed, memory=options.memory, on_progress=steps.part)


def _shardings(options: argparse.Namespace) -> dict[str, str | None]:
    return {"--in-shardings": options.in_shardings, "--out-shardings": options.out_shardings}


def _read_source(options: argparse.Namespace) -> ir.Module:
    """Reads the source, which is one device's program with `--local` if it is alone, or beside another such program."""
    program = console.read_program(options.input, options.dims)
    if options.partitioned is None or speaks_of_devices(program.module):
        with files.about(files.display_name(options.input), program.format.wording):
            arguments.local_program(program, options)
    return program.module


def _read_partitioned(source: ir.Module, options: argparse.Namespace) -> ir.Module:
    """Reads the program to verify. The shardings of one device's program follow from the source's types, unless given."""
    program = console.read_program(options.partitioned)
    with files.about(files.display_name(options.partitioned), program.format.wording):
        if options.local and not is_partitioned(source) and not any(_shardings(options).values()):
            annotate_local_program(program.module, *shardings_between(source, program.module))
            return program.module
        return arguments.local_program(program, options).module


def _after_each_pass(source: ir.Module, options: argparse.Namespace) -> int:
    """Partitions, and verifies after each pass that changes the program, up to the first that changes its meaning."""

    def show(name: str, verdict: Verdict) -> None:
        if not options.json:
            console.say(pass_verdicts.text(name, verdict))

    with files.about(files.display_name(options.input)):
        verdicts = pass_verdicts.verify_passes(source, seed=options.seed, memory=options.memory, on_verdict=show)
    if options.json:
        console.say(verdicts.to_json())
    return 0 if verdicts.equal else 1
