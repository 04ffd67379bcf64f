"""The command `meshbridge`: partitions programs and runs them.

This file lists the commands. `tools/commands.py` implements them, and takes half a second to import.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from meshbridge.tools import console

COMMANDS = {
    "partition": "partition a program",
    "run": "partition a program and run it on virtual devices",
    "run-script": "run a Python script, every function that it compiles for several devices partitioned",
    "convert": "write a program in another format or notation of shardings",
    "report": "say what a partitioned program communicates, and why",
    "explain": "say why arguments and results are sharded as they are, and what other shardings would cost",
    "diff": "say what two plans of one program do differently",
    "compare": "partition a program beside XLA's partitioners, and run it or compile it for accelerators",
    "compile": "partition a program and compile it for an accelerator that need not be there",
    "reshard": "show the plan between two shardings of a tensor",
    "verify": "prove that a partitioned program is its source",
    "search": "find the shardings under which a program is fastest and fits in memory",
}
"""What each command does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `meshbridge`; returns the exit status."""
    return console.run("meshbridge", lambda: _run(argv))


def mesh_opt(argv: Sequence[str] | None = None) -> int:
    """Runs `mesh-opt`; Ctrl-C also ends its imports cleanly."""
    return console.run("mesh-opt", lambda: _mesh_opt(argv))


def _mesh_opt(argv: Sequence[str] | None) -> int:
    from meshbridge.tools import mesh_opt

    return mesh_opt.main(argv)


def _run(argv: Sequence[str] | None) -> int:
    options = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def parser() -> console.Parser:
    """The parser of the command line. A subcommand gets its options when it is used."""
    root = console.Parser(prog="meshbridge", description="Partitions sharded StableHLO programs with explicit collectives.")
    root.add_version()
    root.add_completion()
    commands = root.add_subparsers(required=True, metavar="COMMAND", parser_class=console.Parser)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, allow_abbrev=False, help=summary, fill=partial(_fill, name))
    return root


def _fill(name: str, command: console.Parser) -> None:
    from meshbridge.tools import commands

    commands.OPTIONS[name](command)


if __name__ == "__main__":
    sys.exit(main())
