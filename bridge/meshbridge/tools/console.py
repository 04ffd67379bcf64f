"""The frame of all commands: one diagnostic for an error, `-` for standard streams, complete outputs or none.

The exit status is 1 for bad input, 2 for an invalid command line, 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from meshbridge.ir.errors import MeshError, ShardingWarning
from meshbridge.ir.garbage import rare_collections
from meshbridge.text import did_you_mean, visible

if TYPE_CHECKING:
    from meshbridge.read.formats import Program

TRACEBACK = "MESHBRIDGE_TRACEBACK"
"""The environment variable that makes internal errors end in a traceback, for a bug report."""

USAGE = 2
"""The exit status of a UsageError."""

INTERRUPTED = 130
"""The exit status of a command that the user stops: 128 plus the number of the signal, as in shells."""


class UsageError(MeshError):
    """An invalid command line: options that are unknown, missing, or useless together."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors as diagnostics. `fill` adds its arguments before the first parse."""

    def __init__(self, *arguments: Any, fill: Callable[[Parser], None] | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._fill = fill
        self._is_command = fill is not None
        self._is_mixed = False
        self._further_flags: Mapping[str, str] = {}
        "Flags that are taken from the command line before it is parsed, and their help."

    def mix(self) -> None:
        """Allows positional arguments between options, also for arguments of variable number."""
        self._is_mixed = True

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:  # argparse calls it for subcommands, too
        self.fill()
        if not self._is_mixed:
            namespace, unknown = super().parse_known_args(*arguments, **named)
            if self._is_command and any(map(_is_flag, unknown)):  # the parser above does not know this one's flags
                self._refuse(unknown)
            return namespace, unknown
        self._is_mixed = False  # before Python 3.12 it recurses, for the options and for the positional arguments
        try:
            return super().parse_known_intermixed_args(*arguments, **named)
        finally:
            self._is_mixed = True

    def parse_args(self, *arguments: Any, **named: Any) -> Any:
        """argparse's own. Raises UsageError for arguments that are not known."""
        namespace, unknown = self.parse_known_args(*arguments, **named)
        if unknown:
            self._refuse(unknown)
        return namespace

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raises UsageError for arguments that are not known, the first flag of which may be close to one that is."""
        flag = next(filter(_is_flag, unknown), "").partition("=")[0]
        near = did_you_mean(flag, (*self._option_string_actions, *self._further_flags))
        self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's own check that a value is one of the choices, with the choice that is close to it."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: error: {message}")

    def fill(self) -> None:
        """Adds the arguments that `fill` adds, once."""
        if self._fill is not None:
            self._fill(self)
            self._fill = None

    def add_version(self) -> None:
        """Adds `--version`."""
        self.add_argument("--version", action="version", version=f"meshbridge {version('meshbridge')}", help="print the version")

    def add_completion(self, flags: Mapping[str, str] | None = None) -> None:
        """Adds `--print-completion`; `flags` are further flags and their help."""
        self._further_flags = flags or {}
        help_ = "print what makes a shell complete this command's line"
        self.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, const=self._further_flags, help=help_)


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and argument != "-"


SHELLS = ("bash", "zsh", "tcsh")
"""The shells with completion."""


class _PrintCompletion(argparse.Action):
    """Prints the completion script of a parser for a shell, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        from meshbridge.tools.completion import completion

        _, shell, _ = arguments
        print(completion(parser, shell, self.const))
        parser.exit()


def seed(text: str) -> int:
    """Parses the value of `--seed`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a non-negative number, found '{text}'")
    return int(text)


def refuse_ignored(command: str, useless: Mapping[str, str], options: Mapping[str, object]) -> None:
    """Raises UsageError if an option would be ignored.

    `useless` explains why options have no effect; `options` are those that differ from their default.
    """
    for option, why in useless.items():
        if options.get(option):
            raise UsageError(f"{command}: error: {option} has no effect {why}")


def refuse_outputs(command: str, outputs: Mapping[str, str | None]) -> None:
    """Checks the output files of options before any work is done.

    Raises UsageError if a file is standard output or that of another option, and MeshError if it cannot be written.
    """
    from meshbridge.read import files

    option_of: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path == "-":
            raise UsageError(f"{command}: error: {option} needs a file: what is printed goes to standard output")
        if path in option_of:
            raise UsageError(f"{command}: error: {option_of[path]} and {option} name the same file, '{path}'")
        option_of[path] = option
        files.refuse_unwritable(path)


def write_page(path: str, page: str) -> None:
    """Writes HTML to a file; lone surrogates, which names in a program may have, become references. Raises MeshError."""
    from meshbridge.read import files

    files.write_bytes(path, page.encode("utf-8", "xmlcharrefreplace"))


def read_program(path: str, dims: Mapping[str, int] | None = None, kind: str = "auto") -> Program:
    """Reads a program of some `kind` (see `conversion.read`) from a file, with sizes of its symbols. Raises MeshError."""
    from meshbridge import conversion
    from meshbridge.read import files
    from meshbridge.tools.crash_guard import guarded

    data, name = files.read_bytes(path), files.display_name(path)
    with guarded(name, len(data)):
        program = conversion.read(data, name, kind, dims)
    files.warn(program)
    return program


def run(command: str, body: Callable[[], int]) -> int:
    """Runs a command's body and returns the exit status: 0, or after a diagnostic on standard error 1, USAGE or INTERRUPTED."""
    try:
        with _warnings_as_diagnostics(), rare_collections():
            return body()
    except UsageError as error:
        return _fail(str(error), USAGE)
    except MeshError as error:
        return _fail(str(error))
    except RecursionError:
        if TRACEBACK in os.environ:
            raise
        return _fail(f"{command}: error: the program's regions nest more deeply than the 256 levels that are supported")
    except KeyboardInterrupt:
        return _fail(f"{command}: interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if (diagnostic := _of_bindings(error)) is not None:
            return _fail(diagnostic)
        if TRACEBACK in os.environ:
            raise
        hint = f"this is a bug in {command}; run with {TRACEBACK}=1 for a traceback to report"
        return _fail(f"{command}: internal error: {type(error).__name__}: {error}\n  hint: {hint}")


def _of_bindings(error: Exception) -> str | None:
    """The diagnostic of an error from MLIR's bindings, or None."""
    from meshbridge.ir.mlir import diagnostics_text, ir

    return diagnostics_text(error, "<module>") if isinstance(error, ir.MLIRError) else None


@contextmanager
def _warnings_as_diagnostics() -> Iterator[None]:
    """Prints each ShardingWarning on standard error as a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ShardingWarning)
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ShardingWarning):
                say(str(message), sys.stderr)
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Prints text, with visible control characters, on a stream, by default standard output. Commands print everything but
    programs by it."""
    print(visible(text), file=sys.stdout if stream is None else stream, flush=True)


def _fail(diagnostic: str, status: int = 1) -> int:
    sys.stdout.flush()
    say(diagnostic, sys.stderr)
    return status
