"""Files that programs are read from and written to: `-` for standard streams, complete outputs or none."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meshbridge.dialect import carried
from meshbridge.dialect.chains import undefined_chains
from meshbridge.ir.mlir import MeshError, ParseError, ShardingWarning, context
from meshbridge.read import formats, readable
from meshbridge.read.formats import Program


def read_bytes(path: str) -> bytes:
    """The content of a file, or of standard input for `-`. Raises MeshError."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MeshError(f"{path}: error: {error.strerror}") from None


def display_name(path: str) -> str:
    """The name of an input in diagnostics."""
    return "<stdin>" if path == "-" else path


def parse_program(data: bytes, name: str, dims: Mapping[str, int] | None = None) -> Program:
    """The program in `data`, in a new context, with these sizes of its symbols; diagnostics call it `name`.

    Raises MeshError.
    """
    chosen = formats.recognise(data, name)
    with about(name):
        with _bindings_errors(name), _hint_at_scripts(name):
            program = chosen.open(data, name, context(), dims)
        if chosen is not formats.TEXT or readable.is_suspect(data):
            readable.check(program.module, name)
        if carried.PREFIX in data:
            carried.check(program.module)
        return program


@contextmanager
def _hint_at_scripts(name: str) -> Iterator[None]:
    """Says what to do with a Python script, which is no program."""
    try:
        yield
    except ParseError as error:
        if not name.endswith(".py"):
            raise
        hint = "meshbridge run-script runs a Python script; meshbridge.save in it writes a function to a file for this command"
        raise ParseError(f"{error}\n  hint: {hint}") from None


@contextmanager
def _bindings_errors(name: str) -> Iterator[None]:
    """Turns the errors of MLIR's bindings for a damaged binary into diagnostics."""
    try:
        yield
    except MeshError:
        raise
    except UnicodeDecodeError as error:
        raise ParseError(f"{name}: error: damaged input: a name in it is not UTF-8: {error.reason}") from None
    except (ValueError, IndexError, OverflowError, MemoryError):
        raise ParseError(f"{name}: error: damaged input: a number in it asks for more memory than there is") from None


def warn(program: Program) -> None:
    """Warns of annotations that contradict each other, with a ShardingWarning for each."""
    for text in undefined_chains(program.module):
        warnings.warn(ShardingWarning(program.format.wording(text)), stacklevel=3)


@contextmanager
def about(name: str, wording: Callable[[str], str] = str) -> Iterator[None]:
    """Names the input in diagnostics about the module that have no line; `wording` puts them into the terms of the input's
    spelling (see `formats.Format`). Also turns a lack of memory into a diagnostic."""
    try:
        yield
    except MemoryError as error:
        raise MeshError(f"{name}: error: the program needs more memory than there is here: {error}".removesuffix(": ")) from None
    except MeshError as error:
        text = wording(str(error))
        for nowhere in ("<module>: ", "<unknown>: "):
            text = text.removeprefix(nowhere)
        if text.startswith("error: "):
            text = f"{name}: {text}"
        if text != str(error):
            raise MeshError(text) from error
        raise


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file completely or not at all: under another name first, then renamed. `-` is standard output.

    Raises MeshError, also for binary data if standard output is a terminal.
    """
    if path == "-":
        if sys.stdout.isatty() and not formats.TEXT.detect(data):
            raise MeshError("<stdout>: error: the output is binary, which a terminal cannot show\n  hint: name a file with -o")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    with _writing(path):
        if is_special(target):  # it cannot be replaced
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


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Writes a program with its source locations, in the format of the suffix of `path`, or else in its own. Raises MeshError."""
    name = os.fspath(path)
    write_bytes(name, formats.with_locations(formats.choose(program, name)).serialize())


def refuse_unwritable(path: str) -> None:
    """Raises MeshError as `write_bytes` would, before there is anything to write; leaves devices and pipes to that."""
    target = Path(path)
    with _writing(path):
        if target.is_dir():
            raise _os_error(errno.EISDIR)
        if is_special(target):
            return
        if not stat.S_ISDIR(os.stat(target.parent).st_mode):
            raise _os_error(errno.ENOTDIR)
        if not os.access(target.parent, os.W_OK):
            raise _os_error(errno.EACCES)


def is_special(path: Path) -> bool:
    """Whether there is something at `path` that is not a regular file: a folder, a device or a pipe. Raises OSError.

    It asks the system once: another process may delete the file between two questions.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _umask() -> int:
    """The process's umask, which can only be read by setting it; mkstemp creates files that only the owner can read."""
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
