"""The good programs that mutants are made of: MLIR files, as text and as bytecode, and binary artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from meshbridge.dialect import assembly, verifier
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError
from meshbridge.read import formats
from meshbridge.read.formats import Format, Program
from tests.fuzz.mutators import Source

BINARY = (".jax_export", ".mlirbc", ".stablehlo")


def collect(paths: Iterable[Path], kinds: Iterable[str], written_as: Sequence[str] = ()) -> list[Source]:
    """Every program in `paths`, files or folders, as each of `kinds` of input that it can be; or, where `written_as` names
    formats, as each of these that can say it.
    """
    wanted = set(kinds)
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    every = (_written(file, [formats.formats()[name] for name in written_as]) if written_as else _of_file(file) for file in files)
    found = [source for sources in every for source in sources if source.kind in wanted]
    if not found:
        raise ValueError("no programs to make mutants of")
    return found


def _of_file(file: Path) -> Iterator[Source]:
    if file.suffix in BINARY:
        yield Source(file.name, "bytes", file.read_bytes())
    if file.suffix != ".mlir":
        return
    for number, chunk in enumerate(assembly.split_input(file.read_text())):
        if chunk.strip():
            yield Source(f"{file.name}#{number}", "text", chunk.encode())
            yield from _as_bytecode(f"{file.name}#{number}", chunk)


def _written(file: Path, wanted: Sequence[Format]) -> Iterator[Source]:
    """The programs of a file in formats that others write: spellings of the mesh dialect, portable artifacts."""
    if file.suffix != ".mlir":
        return
    for number, chunk in enumerate(assembly.split_input(file.read_text())):
        for chosen in wanted:
            name = f"{file.name}#{number} as {chosen.name}"
            with suppress(MeshError):  # a test of what is refused, or what that format cannot say
                module = assembly.read(chunk, name, mlir.context())
                verifier.verify(module)
                data = chosen.write(Program(module, chosen))
                yield Source(name, "text" if chosen.is_spelling else "bytes", data)


def _as_bytecode(name: str, chunk: str) -> Iterator[Source]:
    """Bytecode of a chunk, unless the chunk is a test of what is refused."""
    try:
        module = assembly.read(chunk, name, mlir.context())
    except MeshError:
        return
    yield Source(name, "bytes", mlir.to_bytecode(module))
