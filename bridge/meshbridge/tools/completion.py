"""Completion of command lines by shells, as shtab writes it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import shtab

from meshbridge.text import visible
from meshbridge.tools.console import Parser

FILES = ("input", "partitioned", "second", "output", "inputs", "outputs", "ops", "perfetto")
"""What arguments that are names of files are called in the options of a command."""


def completion(parser: argparse.ArgumentParser, shell: str, flags: Mapping[str, str]) -> str:
    """What makes a shell complete the command that `parser` reads; `flags` are its flags by help that `parser` does not know."""
    for flag, summary in flags.items():
        parser.add_argument(flag, nargs="?", help=visible(summary, keep="").replace("%", "%%"))  # argparse reads its own signs
    for each in _with_commands(parser):
        for action in each._actions:
            if action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands, with all their options."""
    if isinstance(parser, Parser):
        parser.fill()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _with_commands(command)
