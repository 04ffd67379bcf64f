"""What the commands share: one diagnostic and exit status 1 for bad input, `-` for standard streams, whole outputs or none."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from meshbridge import formats
from meshbridge.formats import Program
from meshbridge.mlir import MeshError, context, diagnostics_text, ir

TRACEBACK = "MESHBRIDGE_TRACEBACK"
"""Environment variable that lets an internal error end in a traceback, for a bug report."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are diagnostics like any other."""

    def error(self, message: str) -> NoReturn:
        raise MeshError(f"{self.prog}: error: {message}")


def run(command: str, body: Callable[[], int]) -> int:
    """Runs a command's body and returns the exit status: 0 if all is well, 1 after one diagnostic on standard error."""
    try:
        return body()
    except MeshError as error:
        return _fail(str(error))
    except ir.MLIRError as error:
        return _fail(diagnostics_text(error, "<module>"))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if TRACEBACK in os.environ:
            raise
        hint = f"this is a bug in {command}; run with {TRACEBACK}=1 for a traceback to report"
        return _fail(f"{command}: internal error: {type(error).__name__}: {error}\n  hint: {hint}")


def _fail(diagnostic: str) -> int:
    sys.stdout.flush()
    print(diagnostic, file=sys.stderr)
    return 1


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


def read_program(path: str) -> Program:
    """The program in a file of any known format, in a new context. Raises MeshError."""
    return formats.read(read_bytes(path), display_name(path), context())


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file whole or not at all: beside its place first, then renamed. `-` is standard output.

    Raises MeshError.
    """
    if path == "-":
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
