"""Options that several commands share: the input, the machine, devices and inputs of a run, numbers, defaults."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import OptionValue
from meshbridge.machines.target import EXAMPLES, Target, parse, parse_layout
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.runtime import targets
from meshbridge.tools import console

DEVICES = 8
"""The default number of virtual devices."""

_INPUT_HELP = (
    "MLIR text or bytecode, a StableHLO portable artifact or a jax.export artifact, told by content; - is standard input"
)


def add_input(parser: console.Parser) -> None:
    """Adds the input program and its options."""
    parser.add_argument("input", help=_INPUT_HELP)
    parser.add_argument("--dims", type=_dims, metavar="B=8,S=16", help="sizes of a jax.export artifact's symbolic dimensions")
    parser.add_argument("--quiet", action="store_true", help="show no progress on a terminal")


def add_machine(parser: argparse._ActionsContainer, default: str | None, default_text: str = "") -> None:
    """Adds `--machine`, which the plan is optimised for; `default_text` describes the `default` in the help."""
    help_ = (
        f"what to minimise time on: a device of docs/machines.md or a file of one, perhaps with a topology, as in "
        f"v5p:4x4x4 or h100:1x1x8, which must be that of the mesh; neutral, or bytes (default: {default_text or default})"
    )
    parser.add_argument("--machine", type=_machine, default=default, metavar="NAME", help=help_)


def add_target(parser: argparse._ActionsContainer) -> None:
    """Adds `--target`, the machine in the notation of targets."""
    help_ = f"the same, as a target: {EXAMPLES}"
    parser.add_argument("--target", type=_device, dest="machine", metavar="PLATFORM:DEVICE:TOPOLOGY", help=help_)


def _device(text: str) -> str:
    """The machine of a target, with its topology."""
    with refusing():
        parse(text)
    return text.partition(":")[2]


def add_memory_limit(parser: console.Parser, *also: str) -> None:
    """Adds `--memory-limit`, also under other names."""
    help_ = "the most memory that the program may need on a device, e.g. 80GB: what fits is taken, though it may send more "
    help_ += "(default: what the named machine has, which only warns; none: no limit)"
    parser.add_argument("--memory-limit", *also, type=_memory, metavar="SIZE", help=help_)


def _memory(text: str) -> str:
    with refusing("memory-limit is "):
        CompileTarget.of(memory_limit=text)
    return text


def _machine(name: str) -> str:
    with refusing():
        CompileTarget.of(name)
    return name


def add_layout(parser: argparse._ActionsContainer) -> None:
    """Adds `--layout`, the links of mesh axes on a machine with a topology."""
    help_ = "with --machine DEVICE:TOPOLOGY: the links that mesh axes are on, as in data=dcn,model=ici; others take what is left"
    parser.add_argument("--layout", type=_layout, default="", metavar="AXIS=LINK,…", help=help_)


def _layout(text: str) -> str:
    with refusing():
        parse_layout(text)
    return text


@contextmanager
def refusing(prefix: str = "") -> Iterator[None]:
    """Raises errors of an option's value as argparse's, which names the option; `prefix` is removed from their text."""
    try:
        yield
    except MeshError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(f"error: {prefix}")) from None


def target(command: str, text: str) -> Target:
    """The target of `--target`. Raises UsageError if no target has that name."""
    try:
        return parse(text)
    except MeshError as error:
        raise console.UsageError(f"meshbridge {command}: {error}") from None


def add_local(parser: console.Parser, subject: str = "the input") -> None:
    """Adds `--local`, and the shardings of one device's program."""
    help_ = f"{subject} is one device's program, with collectives of the mesh dialect or of StableHLO"
    parser.add_argument("--local", action="store_true", help=help_)
    for side, named in (("in", "argument"), ("out", "result")):
        help_ = f"with --local: the sharding of each {named}, separated by ';' (default: a shard of its own on each device)"
        parser.add_argument(f"--{side}-shardings", metavar="'[[0], []]; …'", help=help_)


def without_local(options: argparse.Namespace) -> dict[str, str]:
    """The options that have no effect without `--local`."""
    return {} if options.local else dict.fromkeys(("--in-shardings", "--out-shardings"), "without --local")


def local_program(program: Program, options: argparse.Namespace) -> Program:
    """With `--local`, makes one device's program a partitioned one, in place. Raises MeshError."""
    if options.local:
        from meshbridge.lowering.local_program import annotate_local_program, split_texts
        from meshbridge.pipelines.mpmd_reader import is_mapped

        if is_mapped(program.module):
            raise MeshError("error: --local has no effect on a program that is mapped to meshes")
        formats.refuse_calling(program)
        annotate_local_program(program.module, split_texts(options.in_shardings), split_texts(options.out_shardings))
    return program


def add_run_inputs(parser: console.Parser) -> None:
    """Adds the number of devices of a run, and its inputs."""
    parser.add_argument("--devices", type=count, help=f"virtual CPU devices (default: {DEVICES})")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--seed", type=console.seed, help="seed of the random inputs (default: 0)")
    source.add_argument("--inputs", metavar="X.npz", help="inputs by position: arr_0, arr_1, … as numpy.savez names them")


def _dims(text: str) -> dict[str, int]:
    sizes = [re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d+)\s*", part) for part in text.split(",")]
    sizes_by_name = {size[1]: int(size[2]) for size in sizes if size}
    if len(sizes_by_name) < len(sizes):
        raise argparse.ArgumentTypeError(f"expected a size for each of different names, as in b=8,s=16, found '{text}'")
    return sizes_by_name


def count(text: str) -> int:
    """Parses a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return int(text)


def amount(text: str) -> float:
    """Parses a positive number."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return number


def compiler_option(text: str) -> tuple[str, OptionValue]:
    """Parses NAME=VALUE, an option of XLA; true, false and numbers are converted."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found '{text}'")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return name, kind(value)
    return name, value


def set_defaults(options: argparse.Namespace, **defaults: object) -> None:
    """Sets the defaults of omitted options; with argparse's own defaults, omitted and given options would look the same."""
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def read_for_cpu(options: argparse.Namespace) -> Program:
    """Reads the program for the platform `cpu`, that of virtual devices."""
    program = console.read_program(options.input, options.dims)
    with files.about(files.display_name(options.input), program.format.wording):
        return formats.for_platform(program, "cpu")


def make_devices(count: int) -> None:
    """Asks XLA for `count` virtual CPU devices, before JAX first looks for devices."""
    os.environ.update(targets.virtual_devices(count))
