"""Shell completion of command lines, by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import shtab

from meshbridge.text import visible
from meshbridge.tools.console import Parser

FILES = ("input", "partitioned", "second", "output", "inputs", "outputs", "ops", "perfetto")
"""The destinations of arguments that name files."""


def completion(parser: argparse.ArgumentParser, shell: str, flags: Mapping[str, str]) -> str:
    """The completion script of a shell for the command of `parser`; `flags` are further flags and their help."""
    for flag, summary in flags.items():
        parser.add_argument(flag, nargs="?", help=visible(summary, keep="").replace("%", "%%"))  # argparse expands %
    for command in _with_commands(parser):
        for action in command._actions:
            if action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands, with all their options."""
    if isinstance(parser, Parser):
        parser.fill()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _with_commands(command)
