"""Converts programs to other formats, and their shardings to other notations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, ParseError, context
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.text import did_you_mean

MESH = "mesh"
"""The name of the mesh dialect itself among the notations: all of them convert to it."""


def names() -> list[str]:
    """The kinds that can be converted from and to: the mesh dialect, notations, formats."""
    return [MESH, *formats.notations(), *formats.formats()]


def with_plain_form() -> list[str]:
    """The notations with an older form."""
    return [name for name, notation in formats.notations().items() if notation.from_mesh_plain is not None]


def read(data: bytes, name: str, kind: str = "auto", dims: Mapping[str, int] | None = None) -> Program:
    """Reads a program of `kind`, one of `names()` or `auto`, with the sizes `dims` of its symbolic dimensions.

    `name` is its name in diagnostics. Raises ParseError for a program of another kind.
    """
    if kind in formats.formats():
        with files.about(name):
            return formats.formats()[kind].open(data, name, context(), dims)
    program = files.parse_program(data, name, dims)
    if kind == "auto":
        return program
    notation = formats.find_notation(program.module)
    if kind != (notation.name if notation is not None else MESH):
        actual = (
            f"it carries {notation.summary}" if notation is not None else "it carries no other shardings than the mesh dialect's"
        )
        raise ParseError(f"{name}: error: expected a program of kind '{kind}', but {actual}")
    return program


def convert(program: Program, kind: str, *, closed: bool = False, plain: bool = False) -> Program:
    """`program` as `kind`, one of `names()`; its module is changed in place.

    `closed` decides every tensor's sharding first and writes it as final. `plain` writes the older form of a notation that has
    one: GSPMD's tilings by device numbers, without axis names. Artifacts, which XLA compiles, get that form. Raises MeshError for
    an unknown `kind`, and for a program that `kind` cannot express.
    """
    if kind not in names():
        raise MeshError(f"error: unknown kind '{kind}', expected one of {', '.join(names())}{did_you_mean(kind, names())}")
    if plain and kind not in with_plain_form():
        raise MeshError(f"error: '{kind}' has no plain form, expected one of {', '.join(with_plain_form())} with plain")
    chosen = formats.formats().get(kind)
    if chosen is not None and not chosen.is_spelling:
        return replace(program, format=chosen)
    # Other partitioners decide nothing inside composites.
    annotated = pipeline.build(pipeline.Options(emit="annotated")).passes
    pipeline.run((*annotated, InlineCalls()) if closed else (ImportShardings(),), program.module)
    if chosen is not None:
        return replace(program, format=chosen)
    if kind == MESH:
        return replace(program, format=formats.TEXT)
    notation = formats.notations()[kind]
    is_plain = plain or (program.envelope is not None and kind in with_plain_form())
    write = notation.from_mesh_plain if is_plain else notation.from_mesh
    if write is None:
        raise MeshError(f"error: shardings cannot be written as {notation.summary}")
    write(program.module, closed)
    return program if program.envelope is not None else replace(program, format=formats.TEXT)
