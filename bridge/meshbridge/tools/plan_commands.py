"""The commands `meshbridge explain` and `meshbridge diff`."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Mapping

from meshbridge import pipeline, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.reports import PlannedProgram, difference_of, partition_and_explain
from meshbridge.reports.explanation import TRIES
from meshbridge.tools import console

PLANNED = ("resharding", "machine", "memory_limit", "layout", "collectives", "inside")
"""The pipeline options of both commands."""

_PARTITIONING_OPTIONS = ("resharding", "memory_limit", "inside")
"""The options without effect on a partitioned program."""


def add_explain(parser: console.Parser) -> None:
    """The options of `meshbridge explain` beside its input and those of the plan."""
    parser.mix()
    help_ = "paths of arguments and results, or patterns, e.g. params/**/kernel (default: all)"
    parser.add_argument("paths", nargs="*", metavar="ARGUMENT", help=help_)
    help_ = (
        "how many other shardings to try for each match of ARGUMENT, or in all without one, each by partitioning the program "
        f"again (default: {TRIES})"
    )
    parser.add_argument("--tries", type=_tries, default=TRIES, metavar="N", help=help_)
    parser.add_argument("--alone", action="store_true", help="change each array alone, not with those that are sharded with it")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.set_defaults(command=explain)


def add_diff(parser: console.Parser) -> None:
    """The options of `meshbridge diff` beside its first plan and those of both."""
    parser.mix()
    help_ = "the other plan of the same program: partitioned, or to be partitioned (default: that of the first, with --but)"
    parser.add_argument("second", nargs="?", metavar="SECOND", help=help_)
    help_ = f"an option of the second plan alone: {', '.join(map(_dashed, PLANNED))}; may be given several times"
    parser.add_argument("--but", action="append", default=[], type=_option, metavar="NAME=VALUE", help=help_)
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.set_defaults(command=diff)


def _tries(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected how many, 0 or more, found '{text}'")
    return int(text)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name.replace("-", "_") not in PLANNED:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, NAME one of {', '.join(map(_dashed, PLANNED))}, found '{text}'")
    return name.replace("-", "_"), value


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_READING, _PARTITIONING, _SECOND, _TRYING = "reading", "partitioning", "partitioning the second", "trying other shardings"


def explain(options: argparse.Namespace) -> int:
    """`meshbridge explain IN [ARGUMENT …]`."""
    how = _planned("explain", options, {})
    with progress.shown((_READING, _PARTITIONING, _TRYING), quiet=options.quiet) as steps:
        program = _read(options.input, options)
        steps.done(_READING)

        def observe(stage: str, _: object) -> None:
            if stage == "optimised":
                steps.done(_PARTITIONING)

        with files.about(files.display_name(options.input), program.format.wording):
            explanation = partition_and_explain(
                program.module,
                how,
                options.paths,
                tries=options.tries,
                alone=options.alone,
                on_stage=observe,
                on_progress=steps.part,
            )
    console.say(explanation.to_json() if options.json else explanation.table())
    return 0


def diff(options: argparse.Namespace) -> int:
    """`meshbridge diff IN [SECOND]`."""
    but = dict(options.but)
    if options.second is None and not but:
        raise console.UsageError(
            "meshbridge diff: error: there is nothing to compare, expected a second plan, or --but NAME=VALUE"
        )
    paths = (options.input, options.second or options.input)
    if paths == ("-", "-"):
        raise console.UsageError("meshbridge diff: error: both plans are standard input, which is read once")
    plans = (_planned("diff", options, {}), _planned("diff", options, but))
    with progress.shown((_READING, _PARTITIONING, _SECOND), quiet=options.quiet) as steps:
        programs = [_read(path, options) for path in paths]
        _refuse_late(programs, plans, but)
        steps.done(_READING)
        waiting = deque((_PARTITIONING, _SECOND))
        plan, second = (_to_compare(*source) for source in zip(paths, programs, plans, strict=True))
        difference = difference_of(plan, second, lambda: steps.done(waiting.popleft()))
    console.say(difference.to_json() if options.json else difference.table())
    return 0


def _planned(command: str, options: argparse.Namespace, but: Mapping[str, str]) -> pipeline.Options:
    """The options of a plan. Raises UsageError for invalid ones."""
    try:
        return pipeline.Options.of(emit="mesh", **{name: getattr(options, name) for name in PLANNED}).but(**but)
    except MeshError as error:
        raise console.UsageError(f"meshbridge {command}: {error}") from None


def _read(path: str, options: argparse.Namespace) -> Program:
    """Reads a program, for the platform in the options."""
    program = console.read_program(path, options.dims)
    with files.about(files.display_name(path), program.format.wording):
        return formats.choose_platform(program, options.platform)


def _to_compare(path: str, program: Program, how: pipeline.Options) -> PlannedProgram:
    return PlannedProgram(program.module, how, lambda: files.about(files.display_name(path), program.format.wording))


def _refuse_late(programs: list[Program], plans: tuple[pipeline.Options, pipeline.Options], but: Mapping[str, str]) -> None:
    """Raises MeshError for options without effect, because the program is partitioned."""
    first_done, second = (is_partitioned(program.module) for program in programs)
    if first_done and second and (late := _options_without_effect(plans[0])):
        raise MeshError(f"error: --{_dashed(late[0])} has no effect on plans that are partitioned already")
    if second and (late := [name for name in _options_without_effect(plans[1]) if name in but]):
        raise MeshError(f"error: --but {_dashed(late[0])} has no effect on a plan that is partitioned already")


def _options_without_effect(how: pipeline.Options) -> list[str]:
    names = _PARTITIONING_OPTIONS if how.target.devices is not None else (*_PARTITIONING_OPTIONS, "machine")
    return [name for name in names if how.written(name) != pipeline.DEFAULTS.written(name)]
