"""What the commands share: one diagnostic for what goes wrong, `-` for standard streams, whole outputs or none.

Exit status 1 is for bad input, 2 for a command line that does not say what to do.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, TextIO

from meshbridge import encoding, formats
from meshbridge.dialect import carried
from meshbridge.dialect.chains import undefined_chains
from meshbridge.formats import Program
from meshbridge.mlir import MeshError, ParseError, ShardingWarning, context, diagnostics_text, ir, walk

TRACEBACK = "MESHBRIDGE_TRACEBACK"
"""Environment variable that lets an internal error end in a traceback, for a bug report."""

VERSION = version("meshbridge")

USAGE = 2
"""Exit status for a UsageError."""

READING_SECONDS = 6
"""How long a binary input may take to read, and a second more for each MiB. A thousand operations take 4 ms."""


class UsageError(MeshError):
    """A command line that cannot be followed, whatever the input holds: options unknown, missing, or of no use together."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are diagnostics like any other."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: error: {message}")

    def add_version(self) -> None:
        """Adds `--version`."""
        self.add_argument("--version", action="version", version=f"meshbridge {VERSION}", help="print the version")


def refuse_ignored(command: str, useless: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Raises UsageError if an option is given that would be ignored.

    `useless` explains every option that the others make useless, `given` holds those that differ from their default.
    """
    for option, why in useless.items():
        if given.get(option):
            raise UsageError(f"{command}: error: {option} has no effect {why}")


def run(command: str, body: Callable[[], int]) -> int:
    """Runs a command's body and returns the exit status: 0 if all is well, 1 or USAGE after one diagnostic on standard error."""
    try:
        with _warnings_as_diagnostics():
            return body()
    except UsageError as error:
        return _fail(str(error), USAGE)
    except MeshError as error:
        return _fail(str(error))
    except ir.MLIRError as error:
        return _fail(diagnostics_text(error, "<module>"))
    except RecursionError:
        if TRACEBACK in os.environ:
            raise
        return _fail(f"{command}: error: the program's regions nest more deeply than the 256 levels that are supported")
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if TRACEBACK in os.environ:
            raise
        hint = f"this is a bug in {command}; run with {TRACEBACK}=1 for a traceback to report"
        return _fail(f"{command}: internal error: {type(error).__name__}: {error}\n  hint: {hint}")


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
                print(message, file=sys.stderr)
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _fail(diagnostic: str, status: int = 1) -> int:
    sys.stdout.flush()
    print(diagnostic, file=sys.stderr)
    return status


def read_bytes(path: str) -> bytes:
    """The content of a file, or of standard input for `-`. Raises MeshError."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MeshError(f"{path}: error: {error.strerror}") from None


def display_name(path: str) -> str:
    """What diagnostics call an input."""
    return "<stdin>" if path == "-" else path


def read_program(path: str, dims: Mapping[str, int] | None = None) -> Program:
    """The program in a file of any known format, in a new context, with these sizes of its symbols. Warnings are printed.

    Raises MeshError.
    """
    program = parse_program(read_bytes(path), display_name(path), dims)
    for warning in undefined_chains(program.module):
        print(program.format.wording(warning), file=sys.stderr)
    return program


def parse_program(data: bytes, name: str, dims: Mapping[str, int] | None = None) -> Program:
    """The program that `data` holds, in a new context; diagnostics call it `name`. Raises MeshError."""
    chosen = formats.recognise(data, name)
    with about(name):
        is_binary = chosen is not formats.TEXT

        def read() -> Program:
            program = chosen.open(data, name, context(), dims)
            if is_binary or encoding.ESCAPED.search(data.decode()):
                encoding.check(program.module, name)
            if carried.PREFIX in data:
                carried.check(program.module)
            return program

        if is_binary or _LOCATION_ATTRIBUTE.search(data):
            _rehearse(lambda: read().module, name, READING_SECONDS + len(data) // 2**20)
        return read()


@contextmanager
def about(name: str, wording: Callable[[str], str] = str) -> Iterator[None]:
    """Names the input in diagnostics that speak of the module as a whole and so have no place in it; `wording` puts them into
    the terms of the input's spelling (see `formats.Format`)."""
    try:
        yield
    except MeshError as error:
        text = wording(str(error))
        for nowhere in ("<module>: ", "<unknown>: "):
            text = text.removeprefix(nowhere)
        if text.startswith("error: "):
            text = f"{name}: {text}"
        if text != str(error):
            raise MeshError(text) from error
        raise


_LOCATION_ATTRIBUTE = re.compile(rb"^[^#\n].*= *(?:loc\(|#loc)", re.MULTILINE)
"""Text with a source location as an attribute, over which the bindings end the process."""


def _rehearse(read: Callable[[], ir.Module], name: str, seconds: int) -> None:
    """Reads a file in a child process first: MLIR's bytecode reader can crash on a damaged one, or never come back, and the
    bindings end the process over attributes that they cannot read.

    A child is only safe while nothing has started threads, which is so until JAX is loaded: always, in a command.
    Raises ParseError if the child died; whatever else the child found wrong, reading again will find.
    """
    if "jax" in sys.modules:
        return
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)  # ends the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        os._exit(_readable(read))
    if os.waitpid(child, 0)[1] != 0:
        raise ParseError(f"{name}: error: damaged input: MLIR's reader crashes or hangs on it, or reads what is not MLIR")


def _readable(read: Callable[[], ir.Module]) -> int:
    """0 where the names and attributes of every op can be read, or a diagnostic says why not."""
    try:
        for op in walk(read().operation):
            _ = op.name, op.location, tuple(op.attributes.items()), [result.type for result in op.results]
    except (MeshError, ir.MLIRError):
        return 0
    except Exception:  # of C++: a length or a string that makes no sense
        return 1
    return 0


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file whole or not at all: beside its place first, then renamed. `-` is standard output.

    Raises MeshError, also for data that is no text where standard output is a terminal.
    """
    if path == "-":
        if sys.stdout.isatty() and not formats.TEXT.detect(data):
            raise MeshError("<stdout>: error: the output is binary, which a terminal cannot show\n  hint: name a file with -o")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    with _writing(path):
        if target.exists() and not target.is_file():  # a device or a pipe cannot be replaced
            target.write_bytes(data)
            return
        handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(beside, 0o666 & ~_umask())
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise


def _umask() -> int:
    """The process's umask, which can only be read by setting it; mkstemp makes files that nobody else can read."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Turns an OSError into a diagnostic about the output."""
    try:
        yield
    except OSError as error:
        raise MeshError(f"{path}: error: {error.strerror}") from None
