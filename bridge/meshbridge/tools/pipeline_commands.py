"""Programs that are cut into pipelines (`--stages` of `partition`, `report`, `verify` and `search`), or are pipelines already."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from meshbridge import pipeline, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.pipelines import forms
from meshbridge.pipelines.candidates import BatchSymbols, StageRequest
from meshbridge.pipelines.mapped import read_mapped
from meshbridge.pipelines.mpmd_reader import is_mapped
from meshbridge.pipelines.schedules import FORMS
from meshbridge.pipelines.stage_search import OWN_COUNT, search_stages
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.tools import arguments, console

_PLANNED = ("resharding", "machine", "memory_limit", "layout", "collectives", "inside", "compiler_options")
_REPORT_OF_ONE = ("by", "suggest", "tokens", "perfetto", "model_explorer", "symbolic", "local")
"""The options of `meshbridge report` that need one program."""


def add_options(parser: console.Parser) -> None:
    """The options that cut a program into a pipeline."""
    text = "cut the program into a pipeline over N groups of devices (docs/pipelines.md)"
    parser.add_argument("--stages", type=arguments.count, metavar="N", help=text)
    parser.add_argument("--schedule", choices=FORMS, help="with --stages: the order of microbatches (default: 1f1b)")


def is_asked(command: str, options: argparse.Namespace) -> bool:
    """Whether the program is to be cut into a pipeline. Raises UsageError for a schedule without stages."""
    if options.stages is None:
        console.refuse_ignored(command, {"--schedule": "without --stages"}, {"--schedule": options.schedule})
    return options.stages is not None


MPMD = "mpmd"
"""The form of `meshbridge partition` for pipelines: a program of Shardy's MPMD dialect that is mapped to meshes."""

_PARTITION_OF_ONE = ("replica_groups", "stablehlo_version", "ops", "timing", "report", "json", "local")
"""The options of `meshbridge partition` that need one program."""


def partition(options: argparse.Namespace) -> int:
    """`meshbridge partition IN --stages N --emit mpmd -o OUT`."""
    command = "meshbridge partition"
    if options.stages is None:
        raise console.UsageError(f"{command}: error: --emit {MPMD} needs --stages N, the number of groups of devices")
    if options.emit != MPMD:
        raise console.UsageError(f"{command}: error: --stages has no effect with --emit {options.emit}, expected --emit {MPMD}")
    defaults = pipeline.DEFAULTS.all_written()
    given = {_flag(name): getattr(options, name) not in (defaults.get(name), None, False) for name in _PARTITION_OF_ONE}
    console.refuse_ignored(command, dict.fromkeys(given, "with --stages"), given)
    how = pipeline.Options.of(emit="local", **{name: getattr(options, name) for name in _PLANNED})
    program = console.read_program(options.input, options.dims)
    with files.about(files.display_name(options.input), program.format.wording):
        program = formats.choose_platform(program, options.platform)
        written = Program(forms.mapped(_built(program, how, options)), formats.TEXT)
    files.write_bytes(options.output, formats.choose(written, options.output).serialize())
    return 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def report(options: argparse.Namespace, program: Program) -> int:
    """`meshbridge report IN` of a program that is cut, or mapped to meshes."""
    given = {_flag(name): getattr(options, name) for name in _REPORT_OF_ONE}
    console.refuse_ignored("meshbridge report", dict.fromkeys(given, _of_one(options)), given)
    console.refuse_outputs("meshbridge report", {"--html": options.html})
    how = pipeline.Options.of(emit="mesh", **{name: getattr(options, name) for name in _PLANNED})
    with files.about(files.display_name(options.input), program.format.wording):
        reported = forms.report(_built(program, how, options))
    if options.html is not None:
        console.write_page(options.html, reported.to_html(files.display_name(options.input)))
    console.say(reported.to_json() if options.json else reported.table())
    return 0


def _of_one(options: argparse.Namespace) -> str:
    """Why an option that needs one program has no effect."""
    return "on a program that is mapped to meshes" if options.stages is None else "with --stages"


def verify(options: argparse.Namespace, program: Program, source: ir.Module | None = None) -> int:
    """`meshbridge verify IN` of a program that is cut, or that is mapped to meshes, perhaps beside its `source`; returns 0 if the
    pipeline is equal to the source, 1 if they differ."""
    given = {"--after-each-pass": options.after_each_pass, "--local": options.local}
    given |= {} if options.stages is None else {"PARTITIONED": options.partitioned}
    console.refuse_ignored("meshbridge verify", dict.fromkeys(given, _of_one(options)), given)
    with files.about(files.display_name(options.partitioned or options.input), program.format.wording):
        how = pipeline.Options.of(emit="local")
        built = _built(program, how, options)
        if source is not None and is_mapped(source):
            source = read_mapped(replace(program, module=source), how).source.module
        found = forms.verify(built, source=source, seed=options.seed, memory=options.memory)
    console.say(found.to_json() if options.json else found.table())
    return 0 if found.equal else 1


_SEARCH_OF_ONE = (
    "mesh",
    "fix",
    "ignore_annotations",
    "data_axis",
    "sub_axes",
    "whole_axes",
    "constraints",
    "output",
    "annotated",
)
"""The options of `meshbridge search` that search for the shardings of one program."""

ANY = "any"


def add_search_options(parser: console.Parser) -> None:
    """The options that search for a pipeline."""
    text = "search for a pipeline over so many groups of devices, as in 2,4 or any, instead of shardings (docs/pipelines.md)"
    parser.add_argument("--stages", type=_stage_counts, metavar="N,…", help=text)
    text = "with --stages: orders of microbatches, separated by commas (default: all)"
    parser.add_argument("--schedules", type=_schedules, metavar="NAME,…", help=text)
    text = (
        "with --stages: the symbolic dimensions of a jax.export artifact that are the number of microbatches and the rows of one"
    )
    parser.add_argument("--microbatches", type=_symbols, metavar="M*B=BATCH", help=text)


def _stage_counts(text: str) -> tuple[int, ...]:
    return () if text == ANY else tuple(map(arguments.count, text.split(",")))


def _schedules(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in FORMS]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(FORMS)}, found '{unknown[0]}'")
    return names


def _symbols(text: str) -> BatchSymbols:
    with arguments.refusing():
        return BatchSymbols.parse(text)


def is_search_asked(options: argparse.Namespace) -> bool:
    """Whether a pipeline is to be searched. Raises UsageError for options of such a search without stages."""
    if options.stages is None:
        given = {"--schedules": options.schedules, "--microbatches": options.microbatches}
        console.refuse_ignored("meshbridge search", dict.fromkeys(given, "without --stages"), given)
    return options.stages is not None


def search(options: argparse.Namespace) -> int:
    """`meshbridge search IN --stages N,…`."""
    flags = {name: "-o" if name == "output" else f"--{name.replace('_', '-')}" for name in _SEARCH_OF_ONE}
    given = {flag: getattr(options, name) or None for name, flag in flags.items()}
    console.refuse_ignored("meshbridge search", dict.fromkeys(given, "with --stages"), given)
    how = pipeline.Options.of(emit="mesh", machine=options.machine, layout=options.layout, memory_limit=options.memory_limit)
    request = StageRequest(how, options.stages, options.schedules or FORMS, options.seconds)
    symbols, dims = options.microbatches, options.dims or {}

    def read(sizes: Mapping[str, int]) -> Program:
        return console.read_program(options.input, {**dims, **sizes} or None)

    steps_of = ("searching",)
    with progress.shown(steps_of, quiet=options.quiet) as steps, files.about(files.display_name(options.input)):
        if symbols is None:
            found = search_stages(lambda _: read({}), OWN_COUNT, request, on_progress=steps.part)
        else:
            found = search_stages(lambda count: read(symbols.sizes(count)), symbols.counts(), request, symbols.sizes, steps.part)
    console.say(found.to_json() if options.json else found.table())
    return 0


def _built(program: Program, how: pipeline.Options, options: argparse.Namespace) -> forms.Pipeline:
    if is_mapped(program.module):
        if options.stages is not None:
            raise MeshError("error: --stages has no effect on a program that is mapped to meshes already")
        return read_mapped(program, how)
    if is_partitioned(program.module):
        raise MeshError("error: --stages has no effect on a program that is partitioned already")
    return forms.build(program, how, options.stages, options.schedule or "1f1b")
