"""The command `meshbridge search`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from meshbridge import conversion, partitioning, pipeline, progress
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.read import files, formats
from meshbridge.sharding_search import mesh_notation
from meshbridge.sharding_search.plan import plan_of
from meshbridge.sharding_search.request import Fixed, SearchRequest
from meshbridge.sharding_search.search import best_of
from meshbridge.tools import arguments, console, pipeline_commands

SECONDS = 60.0
"""The default time limit of a search."""


def add_options(parser: console.Parser) -> None:
    """The options of `meshbridge search`."""
    arguments.add_input(parser)
    help_ = "the devices: 16x16, data=16,model=16, or 8 for meshes of one and two axes (default: the mesh that IN is sharded on)"
    parser.add_argument("--mesh", type=_meshes, help=help_)
    help_ = "whose time is minimised: a device of docs/machines.md or a file of one, perhaps with a topology, as in v5p:4x4x4"
    parser.add_argument("--machine", type=_machine, required=True, metavar="NAME", help=help_)
    arguments.add_layout(parser)
    arguments.add_memory_limit(parser, "--memory")
    help_ = "how what has such a path is sharded, as in \"params/**/kernel=P(None,'model')\"; may be given several times"
    parser.add_argument("--fix", type=_fixed, action="append", default=[], metavar="PATTERN=P(…)", help=help_)
    parser.add_argument("--ignore-annotations", action="store_true", help="search as if nothing were sharded")
    help_ = "an axis along which arguments are split as those that are fixed or annotated imply: the batch, and no parameter"
    parser.add_argument("--data-axis", metavar="AXIS", help=help_)
    help_ = "parts of an axis, as in data=2x4, each of which may split a dimension alone; may be given several times"
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--sub-axes", type=_sub_axes, action="append", default=[], metavar="AXIS=NxM", help=help_)
    help_ = "keep to the axes as they are, also where a part of one divides what they do not"
    parts.add_argument("--whole-axes", action="store_true", help=help_)
    help_ = "name at most N constraints that are worth writing into the model; takes as long again at most (default: none)"
    parser.add_argument("--constraints", type=arguments.count, default=0, metavar="N", help=help_)
    help_ = f"what the search is to take (default: {SECONDS:g}); Ctrl-C ends the search before"
    parser.add_argument("--seconds", type=arguments.amount, default=SECONDS, help=help_)
    pipeline_commands.add_search_options(parser)
    parser.add_argument("-o", dest="output", metavar="OUT", help="write the program there, partitioned with what was found")
    parser.add_argument("--annotated", metavar="OUT", help="write the program there, sharded so and not partitioned")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.set_defaults(command=run)


def _meshes(text: str) -> str:
    with arguments.refusing():
        mesh_notation.meshes(text)
    return text


def _machine(text: str) -> str:
    with arguments.refusing():
        return mesh_notation.timed(CompileTarget.of(text)).name


def _sub_axes(text: str) -> tuple[str, tuple[int, ...]]:
    with arguments.refusing():
        return mesh_notation.sub_axes(text)


def _fixed(text: str) -> Fixed:
    with arguments.refusing():
        return Fixed.parse(text)


_READING, _SEARCHING, _WRITING = "reading", "searching", "writing"


def run(options: argparse.Namespace) -> int:
    """`meshbridge search IN`."""
    if pipeline_commands.is_search_asked(options):
        return pipeline_commands.search(options)
    written = {"-o": options.output, "--annotated": options.annotated}
    console.refuse_outputs("meshbridge search", written)
    name = files.display_name(options.input)
    request = SearchRequest(
        CompileTarget.of(options.machine, options.layout, memory_limit=options.memory_limit),
        tuple(options.fix),
        not options.ignore_annotations,
        options.seconds,
        () if options.data_axis is None else (options.data_axis,),
        options.constraints,
        divides=not options.whole_axes,
    )
    with progress.shown((_READING, _SEARCHING, _WRITING), quiet=options.quiet) as steps, files.about(name):
        program = console.read_program(options.input, options.dims)
        steps.done(_READING)
        meshes, request = request.on([] if options.mesh is None else mesh_notation.meshes(options.mesh), dict(options.sub_axes))
        outcome = best_of(program.module, meshes, request, on_progress=steps.part)
        steps.done(_SEARCHING)
        sharded = conversion.convert(replace(program, module=outcome.annotated), "sdy")
        plan = plan_of(outcome, sharded)
        data = {}
        if options.annotated is not None:
            data[options.annotated] = formats.choose(sharded, options.annotated).serialize()
        if options.output is not None:
            how = pipeline.Options(target=request.target.but(machine=plan.machine))
            partitioning.partition_module(sharded.module, how)
            data[options.output] = formats.choose(sharded.planned(how), options.output).serialize()
    for path, content in data.items():
        files.write_bytes(path, content)
    console.say(plan.to_json() if options.json else plan.table())
    return 0
