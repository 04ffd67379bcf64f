"""`meshbridge report --stages` and `meshbridge verify --stages`: programs that are cut into pipelines."""

from __future__ import annotations

import argparse

from meshbridge import pipeline
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError
from meshbridge.pipelines import prediction, proof
from meshbridge.pipelines.build import StagedPipeline, build
from meshbridge.pipelines.schedules import NAMES
from meshbridge.read import files
from meshbridge.read.formats import Program
from meshbridge.tools import arguments, console

_PLANNED = ("resharding", "machine", "memory_limit", "layout", "collectives", "inside", "compiler_options")
_REPORT_OF_ONE = ("by", "suggest", "tokens", "perfetto", "model_explorer", "symbolic", "local")
"""The options of `meshbridge report` that need one program."""


def add_options(parser: console.Parser) -> None:
    """The options that cut a program into a pipeline."""
    text = "cut the program into a pipeline over N groups of devices (docs/pipelines.md)"
    parser.add_argument("--stages", type=arguments.count, metavar="N", help=text)
    parser.add_argument("--schedule", choices=NAMES, help="with --stages: the order of microbatches (default: 1f1b)")


def is_asked(command: str, options: argparse.Namespace) -> bool:
    """Whether the program is to be cut into a pipeline. Raises UsageError for a schedule without stages."""
    if options.stages is None:
        console.refuse_ignored(command, {"--schedule": "without --stages"}, {"--schedule": options.schedule})
    return options.stages is not None


def report(options: argparse.Namespace, program: Program) -> int:
    """`meshbridge report IN --stages N`."""
    given = {f"--{name.replace('_', '-')}": getattr(options, name) for name in _REPORT_OF_ONE}
    console.refuse_ignored("meshbridge report", dict.fromkeys(given, "with --stages"), given)
    console.refuse_outputs("meshbridge report", {"--html": options.html})
    how = pipeline.Options.of(emit="mesh", **{name: getattr(options, name) for name in _PLANNED})
    with files.about(files.display_name(options.input), program.format.wording):
        reported = prediction.report(_built(program, how, options))
    if options.html is not None:
        console.write_page(options.html, reported.to_html(files.display_name(options.input)))
    console.say(reported.to_json() if options.json else reported.table())
    return 0


def verify(options: argparse.Namespace, program: Program) -> int:
    """`meshbridge verify IN --stages N`; returns 0 if the pipeline is equal to the program, 1 if they differ."""
    given = {"PARTITIONED": options.partitioned, "--after-each-pass": options.after_each_pass, "--local": options.local}
    console.refuse_ignored("meshbridge verify", dict.fromkeys(given, "with --stages"), given)
    with files.about(files.display_name(options.input), program.format.wording):
        found = proof.verify(
            _built(program, pipeline.Options.of(emit="local"), options), seed=options.seed, memory=options.memory
        )
    console.say(found.to_json() if options.json else found.table())
    return 0 if found.equal else 1


def _built(program: Program, how: pipeline.Options, options: argparse.Namespace) -> StagedPipeline:
    if is_partitioned(program.module):
        raise MeshError("error: --stages has no effect on a program that is partitioned already")
    return build(program, how, options.stages, options.schedule or "1f1b")
