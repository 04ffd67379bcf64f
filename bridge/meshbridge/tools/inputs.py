"""Archives of inputs, by the positions that a function's caller counts: a module lacks the arguments that nothing reads."""

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
    """The path of an archive that holds what the module of `program` takes, out of the one at `path`; None without one.

    Raises MeshError unless there is one array for each argument of the function.
    """
    if path is None or program.calling is None or len(program.calling.kept) == program.calling.count:
        yield path
        return
    arrays = trial.load_arrays(path)
    if len(arrays) != program.calling.count:
        raise MeshError(f"error: the program takes {program.calling.count} arguments, {len(arrays)} given")
    with tempfile.TemporaryDirectory() as folder:
        kept = str(Path(folder) / "kept.npz")
        trial.save_arrays(kept, [arrays[position] for position in program.calling.kept])
        yield kept
