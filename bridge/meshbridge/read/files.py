"""Files that programs are read from and written to: `-` for standard streams, whole outputs or none."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meshbridge.dialect import carried
from meshbridge.dialect.chains import undefined_chains
from meshbridge.ir.mlir import MeshError, ParseError, context, ir, walk
from meshbridge.read import encoding, formats
from meshbridge.read.formats import Program

READING_SECONDS = 6
"""How long a binary input may take to read, and a second more for each MiB. A thousand operations take 4 ms."""


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
