"""What the commands share: one diagnostic for what goes wrong, `-` for standard streams, complete outputs or none.

Exit status 1 is for bad input, 2 for a command line that does not say what to do, 130 for work that was interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from meshbridge import __version__
from meshbridge.ir.errors import MeshError, ShardingWarning
from meshbridge.ir.garbage import rare_collections
from meshbridge.text import visible

if TYPE_CHECKING:
    from meshbridge.read.formats import Program

TRACEBACK = "MESHBRIDGE_TRACEBACK"
"""Environment variable that lets an internal error end in a traceback, for a bug report."""

USAGE = 2
"""Exit status for a UsageError."""

INTERRUPTED = 130
"""Exit status where the user stops a command, as shells have it: 128 and the number of the signal."""


class UsageError(MeshError):
    """A command line that cannot be followed, whatever the input holds: options unknown, missing, or of no use together."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are diagnostics like any other. `fill` adds its arguments before it first parses."""

    def __init__(self, *arguments: Any, fill: Callable[[Parser], None] | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._fill = fill
        self._is_mixed = False

    def mix(self) -> None:
        """Lets positional arguments stand between options, also where there may be any number of them."""
        self._is_mixed = True

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:  # also what a parser of commands asks of a command's
        self.fill()
        if not self._is_mixed:
            return super().parse_known_args(*arguments, **named)
        self._is_mixed = False  # before Python 3.12 it comes here again, for the options and for the rest
        try:
            return super().parse_known_intermixed_args(*arguments, **named)
        finally:
            self._is_mixed = True

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: error: {message}")

    def fill(self) -> None:
        """Adds the arguments that wait for the first parse."""
        if self._fill is not None:
            self._fill(self)
            self._fill = None

    def add_version(self) -> None:
        """Adds `--version`."""
        self.add_argument("--version", action="version", version=f"meshbridge {__version__}", help="print the version")

    def add_completion(self, flags: Mapping[str, str] | None = None) -> None:
        """Adds `--print-completion`; `flags` are those that are no arguments of this parser, with their help."""
        help_ = "print what makes a shell complete this command's line"
        self.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, const=flags or {}, help=help_)


SHELLS = ("bash", "zsh", "tcsh")
"""Those whose command lines can be completed."""


class _PrintCompletion(argparse.Action):
    """Prints the completion of a parser for a shell, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        from meshbridge.tools.completion import completion

        _, shell, _ = arguments
        print(completion(parser, shell, self.const))
        parser.exit()


def seed(text: str) -> int:
    """The value of `--seed`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a non-negative number, found '{text}'")
    return int(text)


def refuse_ignored(command: str, useless: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Raises UsageError if an option is given that would be ignored.

    `useless` explains every option that the others make useless, `given` holds those that differ from their default.
    """
    for option, why in useless.items():
        if given.get(option):
            raise UsageError(f"{command}: error: {option} has no effect {why}")


def refuse_outputs(command: str, given: Mapping[str, str | None]) -> None:
    """Raises UsageError for the options, beside what is printed, whose file is standard output, or that of another one, and
    MeshError for a file that cannot be written: before work is done whose result would be lost."""
    from meshbridge.read import files

    taken: dict[str, str] = {}
    for option, path in given.items():
        if path is None:
            continue
        if path == "-":
            raise UsageError(f"{command}: error: {option} needs a file: what is printed goes to standard output")
        if path in taken:
            raise UsageError(f"{command}: error: {taken[path]} and {option} name the same file, '{path}'")
        taken[path] = option
        files.refuse_unwritable(path)


def write_page(path: str, page: str) -> None:
    """Writes HTML to a file; halves of surrogate pairs, which names in a program may hold, as references. Raises MeshError."""
    from meshbridge.read import files

    files.write_bytes(path, page.encode("utf-8", "xmlcharrefreplace"))


def read_program(path: str, dims: Mapping[str, int] | None = None, kind: str = "auto") -> Program:
    """The program of some `kind` (see `conversion.read`) in a file, with these sizes of its symbols. Raises MeshError."""
    from meshbridge import conversion
    from meshbridge.read import files
    from meshbridge.tools.crash_guard import guarded

    data, name = files.read_bytes(path), files.display_name(path)
    with guarded(name, len(data)):
        program = conversion.read(data, name, kind, dims)
    files.warn(program)
    return program


def run(command: str, body: Callable[[], int]) -> int:
    """Runs a command's body and returns the exit status: 0 if all is well, 1 USAGE or INTERRUPTED after one diagnostic on
    standard error."""
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
    except BrokenPipeError:  # whoever read our output has seen enough
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
    """The diagnostic of an error that MLIR's bindings raise."""
    from meshbridge.ir.mlir import diagnostics_text, ir

    return diagnostics_text(error, "<module>") if isinstance(error, ir.MLIRError) else None


@contextmanager
def _warnings_as_diagnostics() -> Iterator[None]:
    """Prints each ShardingWarning on standard error as the line that it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ShardingWarning)
        others = warnings.showwarning

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
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Prints a line, or several, on a stream, by default standard output: all that a command prints but programs. It is
    `visible`, since it may name what a program names."""
    print(visible(text), file=sys.stdout if stream is None else stream, flush=True)


def _fail(diagnostic: str, status: int = 1) -> int:
    sys.stdout.flush()
    say(diagnostic, sys.stderr)
    return status
