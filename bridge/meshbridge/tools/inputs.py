"""Archives of inputs, by the caller's positions of arguments: a module lacks the arguments that nothing reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshbridge.ir.mlir import MeshError
from meshbridge.read.formats import Program
from meshbridge.tools import trial


@contextmanager
def for_module(program: Program, path: str | None) -> Iterator[str | None]:
    """The path of an archive with the arguments of the module of `program`, taken from the archive at `path`; None without one.

    Raises MeshError unless there is one array for each argument of the function.
    """
    if path is None or program.calling is None or len(program.calling.kept) == program.calling.count:
        yield path
        return
    arrays = trial.load_arrays(path)
    if len(arrays) != program.calling.count:
        raise MeshError(f"error: the program takes {program.calling.count} arguments, {len(arrays)} given")
    with tempfile.TemporaryDirectory() as folder:
        archive = str(Path(folder) / "kept.npz")
        trial.save_arrays(archive, [arrays[position] for position in program.calling.kept])
        yield archive
