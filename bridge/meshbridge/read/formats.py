"""The registry of file formats and sharding notations: the only place where meshbridge meets its converters.

A *format* is how a program is written in a file (MLIR text, bytecode, a `jax.export` artifact); it is recognised by content.
A *notation* is how a StableHLO module carries shardings (`sdy`, `mhlo.sharding`); it is converted into mesh IR and back.

Both come from the entry-point group `meshbridge.converters`: an entry point names a Format or a Notation, so anyone can add one
without meshbridge importing it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from typing import Any, Protocol, TypeVar

from meshbridge.dialect import assembly, carried
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.dialect.ops import OPERATION_NAMES
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ParseError, VerifyError, ir
from meshbridge.ir.registry import Registry
from meshbridge.read import bytecode
from meshbridge.text import public

ENTRY_POINTS = "meshbridge.converters"


def deferred(name: str) -> Callable[..., Any]:
    """The function `module:name`. Its module is imported at the first call: a program needs few of the converters."""
    module, _, function = name.partition(":")

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(module), function)(*arguments, **named)

    return call


class Calling(Protocol):
    """How Python calls a program whose arguments and results are not one array each: trees, typed keys, unused arguments."""

    @property
    def count(self) -> int:
        """The number of arrays in the arguments: leaves of their trees."""

    @property
    def kept(self) -> Sequence[int]:
        """The positions of the arrays that the module's entry point takes; it does not read the others."""

    def labels(self) -> Sequence[str]:
        """The names of the entry point's arguments in diagnostics, in order: `args[0]['weights']`."""

    def flatten(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The arrays that the entry point takes. Raises MeshError for arguments of another structure."""

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The caller's results, from the arrays that the entry point returns."""

    def in_place(self, arguments: Sequence[Any], results: Sequence[Any], other: Any) -> tuple[Any, Mapping[str, Any], Any]:
        """The trees of positional arguments, keyword arguments and results, with these values in place of the arrays that the
        entry point takes and returns, and `other` in place of those that it does not take."""

    def planned(self, how: object) -> Calling:
        """The calling of a program that is partitioned with these options (`pipeline.Options`)."""

    def trace(self, arguments: Sequence[Any], named: Mapping[str, Any], shardings: Sequence[Any]) -> Any:
        """The call as a part of a larger function that JAX traces; `shardings` are those of the entry point's arguments.

        Raises MeshError where the program cannot be part of one.
        """


@public
@dataclass(frozen=True)
class Program:
    """A module and its origin. `envelope` is what its format needs to write it again, e.g. a `jax.export.Exported`; `calling` is
    how Python calls it, if not with one array for each argument and result. `version` is the StableHLO version to write it in, if
    its format has versions; None leaves it to the format. `platforms` are its platforms by jax.export's names; empty if unknown.
    `how` are the options that it is partitioned with, once known (`planned`).
    """

    module: ir.Module
    format: Format
    envelope: object = None
    calling: Calling | None = None
    version: str | None = None
    platforms: tuple[str, ...] = ()
    how: object = None

    def __repr__(self) -> str:
        return f"<Program: {self.format.summary}>"

    def planned(self, how: object) -> Program:
        """The program to be partitioned with these options (`pipeline.Options`), and with it what is derived from it: its
        gradient, and what a larger function calls."""
        return replace(self, how=how, calling=self.calling and self.calling.planned(how))

    def serialize(self) -> bytes:
        """The content of a file with the program in its format. Raises MeshError for what the format cannot express."""
        return self.format.write(self)


@dataclass(frozen=True)
class Format:
    """How a program is written in a file.

    `detect` looks at the content. `read(data, filename, context)` raises ParseError. `write` gives the file's content;
    `suffixes` are the file names that ask for it where the input's own format does not decide. `is_spelling`: it is text of
    the mesh dialect as another version spells it, and can only say mesh IR. `read_sized`, where shapes may be symbolic, reads
    a program with these sizes of its symbols. `wording` puts diagnostics of the mesh dialect into the spelling's own terms.
    Where programs also exist as Python values, `holds` recognises one, `unpack(value, arguments, named, platform, context)` opens
    it (a function is traced with these arguments, for that platform), `pack` makes the format's own kind of value, and `dump`
    gives the content of a file with such a value, also of one with symbolic shapes.
    `for_platform`, where one program may be for several platforms, makes one for a single platform of it.
    """

    name: str
    summary: str
    detect: Callable[[bytes], bool]
    read: Callable[[bytes, str, ir.Context], Program]
    write: Callable[[Program], bytes]
    suffixes: tuple[str, ...] = ()
    is_spelling: bool = False
    read_sized: Callable[[bytes, str, ir.Context, Mapping[str, int]], Program] | None = None
    holds: Callable[[object], bool] = field(default=lambda value: False)
    unpack: Callable[[object, Sequence[Any], Mapping[str, Any], str | None, ir.Context], Program] | None = None
    pack: Callable[[Program], object] | None = None
    dump: Callable[[object], bytes] | None = None
    for_platform: Callable[[Program, str], Program] | None = None
    wording: Callable[[str], str] = field(default=lambda diagnostics: diagnostics)

    def open(self, data: bytes, filename: str, ctx: ir.Context, dims: Mapping[str, int] | None = None) -> Program:
        """Reads a program; `dims` are the sizes of its symbolic dimensions by name, if it has any.

        Raises MeshError where the format has no such dimensions, or for other sizes than the program needs.
        """
        if not dims:
            return self.read(data, filename, ctx)
        if self.read_sized is None:
            raise MeshError(f"{filename}: error: expected a program with symbolic dimensions to give sizes, found {self.summary}")
        return self.read_sized(data, filename, ctx, dims)


@dataclass(frozen=True)
class Notation:
    """How a StableHLO module carries shardings.

    `detect` says whether a module uses it, `to_mesh` makes it annotated mesh IR in place, `from_mesh(module, closed)` goes back;
    `closed` writes every sharding as final, so that nobody decides further. `from_mesh_plain`, where the notation has an older
    form, writes that one, for readers who know no other, and in artifacts that XLA compiles.
    `wrap_local`, where the notation has the means, makes one callable program on global shapes out of a lowered local one.
    """

    name: str
    summary: str
    detect: Callable[[ir.Module], bool]
    to_mesh: Callable[[ir.Module], None]
    from_mesh: Callable[[ir.Module, bool], None] | None = None
    from_mesh_plain: Callable[[ir.Module, bool], None] | None = None
    wrap_local: Callable[[ir.Module], None] | None = None


def _is_text(data: bytes) -> bool:
    """Whether `data` is text, a few damaged bytes aside: the reader reports their position."""
    if b"\0" in data:
        return False
    return data.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}") * 16 <= len(data)


def copy_module(module: ir.Module) -> ir.Module:
    """A copy of `module` in the same context."""
    with module.context:
        copy = ir.Module.create(module.operation.location)
        for name, attr in module.operation.attributes.items():
            copy.operation.attributes[name] = attr
        at_end = ir.InsertionPoint(copy.body)
        for view in module.body.operations:
            view.operation.clone(ip=at_end)
    return copy


def replace_content(module: ir.Module, other: ir.Module) -> None:
    """Replaces the content of `module` by that of `other`, a module of the same context, which becomes empty."""
    for name in list(module.operation.attributes.keys()):
        del module.operation.attributes[name]
    for name, attr in other.operation.attributes.items():
        module.operation.attributes[name] = attr
    for view in list(module.body.operations):
        view.operation.erase()
    for view in list(other.body.operations):
        module.body.append(view.operation)


def _read_text(data: bytes, filename: str, ctx: ir.Context) -> Program:
    return Program(assembly.read(data, filename, ctx), TEXT)


def _read_bytecode(data: bytes, filename: str, ctx: ir.Context) -> Program:
    module = mlir.parse(data, filename, ctx)
    refuse_unknown(module, filename)
    return Program(module, BYTECODE)


def refuse_unknown(module: ir.Module, filename: str) -> None:
    """Raises ParseError for an op of VHLO that could not be converted: bytecode of a damaged portable artifact. Raises
    VerifyError for an op that the mesh dialect does not have: MLIR takes any, the reader of text does not."""
    names = mlir.op_names(module)
    if unconverted := next((name for name in names if name.startswith("vhlo.")), ""):
        raise ParseError(
            f"{filename}: error: '{unconverted}' is an op of a StableHLO portable artifact, which this is not, or is damaged"
        )
    if any(name.startswith("mesh.") and name not in OPERATION_NAMES for name in names):
        unknown = (op for op in mlir.walk_all(module) if op.name.startswith("mesh.") and op.name not in OPERATION_NAMES)
        raise VerifyError(next(unknown), "is not an operation of the mesh dialect.")


TEXT = Format(
    name="mlir",
    summary="MLIR text, the mesh dialect's own syntax included",
    detect=_is_text,
    read=_read_text,
    write=lambda program: assembly.write(program.module).encode(),
    suffixes=(".mlir",),
)

_TEXT_WITH_LOCATIONS = replace(TEXT, write=lambda program: assembly.write(program.module, debuginfo=True).encode())

BYTECODE = Format(
    name="bytecode",
    summary="MLIR bytecode",
    detect=lambda data: not (bytecode.producer(data) or b"StableHLO").startswith(b"StableHLO"),
    read=_read_bytecode,
    write=lambda program: mlir.to_bytecode(program.module),
    suffixes=(".mlirbc",),
)

EntryT = TypeVar("EntryT", Format, Notation)


def collect(entries: list[EntryT]) -> Registry[str, EntryT]:
    """The entries by name, in this order."""
    table: Registry[str, EntryT] = Registry("converter", lambda entry: entry.summary)
    for entry in entries:
        table.add(entry.name, entry)
    return table


@cache
def _entries() -> tuple[EntryPoint, ...]:
    offering = [package for package in distributions() if ENTRY_POINTS in (package.read_text("entry_points.txt") or "")]
    entries = {entry for package in offering for entry in package.entry_points if entry.group == ENTRY_POINTS}
    return tuple(sorted(entries, key=lambda entry: entry.name))


@cache
def _installed() -> tuple[object, ...]:
    return tuple(entry.load() for entry in _entries())


def packages() -> tuple[str, ...]:
    """The names of the packages that formats and notations come from."""
    return tuple(sorted({entry.module.partition(".")[0] for entry in _entries()}))


@cache
def formats() -> dict[str, Format]:
    """Every format by name. Text comes last: anything that decodes could be text."""
    converters = [entry for entry in _installed() if isinstance(entry, Format)]
    return collect([*converters, BYTECODE, TEXT])


@cache
def notations() -> dict[str, Notation]:
    """Every notation by name."""
    return collect([entry for entry in _installed() if isinstance(entry, Notation)])


def recognise(data: bytes, filename: str) -> Format:
    """The format of `data`, by content alone.

    Raises ParseError if no format recognises it.
    """
    if not data.strip():
        raise ParseError(f"{filename}: error: the input is empty, expected one of: {_known()}")
    for candidate in formats().values():
        if candidate.detect(data):
            return candidate
    raise ParseError(f"{filename}: error: unknown kind of input, expected one of: {_known()}")


def _known() -> str:
    return "; ".join(entry.summary for entry in formats().values())


def read(data: bytes, filename: str, ctx: ir.Context) -> Program:
    """Reads a program in any known format. `filename` is for diagnostics.

    Raises ParseError.
    """
    return recognise(data, filename).read(data, filename, ctx)


def unpack(
    value: object,
    ctx: ir.Context,
    arguments: Sequence[Any] = (),
    named: Mapping[str, Any] | None = None,
    platform: str | None = None,
) -> Program:
    """Opens a Python value that holds a program; the value itself is not changed.

    An MLIR module is copied, and so is that of a Program. JAX's values (`jax.export.Exported`, `jax.stages.Lowered`, a jitted
    function, which is traced with `arguments` and `named`) are opened by their converter in `ctx`. A function is traced for
    `platform`; from a program for several platforms, `platform` is chosen. Raises VerifyError for mesh IR whose discardable
    attributes do not have the form of their names, MeshError if no format knows such values, for arguments to anything but a
    function, and for a platform if there is no choice.
    """
    if isinstance(value, (ir.Module, Program)):
        refuse_arguments(value, arguments, named)
        program = Program(value, TEXT) if isinstance(value, ir.Module) else value
        mlir.verify(program.module)  # what was not read, no verifier has met yet
        refuse_unknown(program.module, "<module>")
        if mesh_ops(program.module.body):
            carried.check(program.module)
        return choose_platform(replace(program, module=copy_module(program.module)), platform)
    for candidate in formats().values():
        if candidate.unpack is not None and candidate.holds(value):
            return candidate.unpack(value, arguments, named or {}, platform, ctx)
    hint = ""
    if inspect.isroutine(value):
        hint = "\n  hint: compile it with jax.jit first"
    elif isinstance(value, (str, os.PathLike)):
        hint = "\n  hint: meshbridge.load reads a program from a file"
    kinds = "a jax.export.Exported, a meshbridge.Program, an MLIR module, a jax.stages.Lowered, or a jitted function"
    raise MeshError(f"error: expected {kinds}, found {type(value).__name__}{hint}")


def refuse_calling(program: Program) -> None:
    """Raises MeshError for a program that JAX calls on global arrays, where one device's program is needed."""
    if program.calling is not None:
        hint = "leave out --local"
        raise MeshError(
            f"error: {program.format.summary} computes on global arrays, expected one device's program\n  hint: {hint}"
        )


def refuse_arguments(value: object, arguments: Sequence[Any], named: Mapping[str, Any] | None) -> None:
    """Raises MeshError if there are arguments: only a jitted function is traced with arguments."""
    if arguments or named:
        raise MeshError(f"error: expected arguments with a jitted function alone, found some with {type(value).__name__}")


def pack(program: Program) -> object:
    """The Python value of a program that `unpack` opened: of the format's own kind, or the module."""
    return program.module if program.format.pack is None else program.format.pack(program)


def for_platform(program: Program, platform: str) -> Program:
    """`program` for one platform, `cpu`, `cuda`, `rocm` or `tpu`; unchanged unless it is for several.

    Its module may be changed in place. Raises MeshError if that platform is not one of several.
    """
    return program if program.format.for_platform is None else program.format.for_platform(program, platform)


def choose_platform(program: Program, platform: str | None) -> Program:
    """`program` for one platform of several. Raises MeshError for a program for one platform, and for an unknown platform."""
    if platform is None:
        return program
    chosen = for_platform(program, platform)
    if chosen is program:
        raise MeshError("error: a platform has no effect on a program that is not for several platforms")
    return chosen


PORTABLE = "portable"
"""The name of the format of programs in plain StableHLO, which has versions."""


def in_version(program: Program, version: str) -> Program:
    """`program`, in plain StableHLO of that version, in the format that writes it."""
    return Program(program.module, formats()[PORTABLE], version=version)


def choose(program: Program, filename: str) -> Program:
    """`program` in the format that the output's name asks for, or in its own."""
    requested = by_suffix(filename)
    return program if requested is None else replace(program, format=requested)


def with_locations(program: Program) -> Program:
    """`program` in a format that keeps the paths of arguments, source lines and name stacks: text drops them unless asked."""
    return replace(program, format=_TEXT_WITH_LOCATIONS) if program.format is TEXT else program


def dumped(value: object) -> bytes:
    """The content of a file with a Python value that holds a program. Raises MeshError for one that no format writes."""
    for candidate in formats().values():
        if candidate.dump is not None and candidate.holds(value):
            return candidate.dump(value)
    raise MeshError(f"error: no format writes {type(value).__name__}")


def by_suffix(filename: str) -> Format | None:
    """The format that the name of an output asks for, or None."""
    return next((entry for entry in formats().values() if filename.endswith(entry.suffixes)), None)


def find_notation(module: ir.Module) -> Notation | None:
    """The notation of the shardings of `module`, None if it carries none (or is mesh IR already)."""
    return next((notation for notation in notations().values() if notation.detect(module)), None)


def wrapping_notation() -> Notation:
    """The notation that can make a callable program from a local one.

    Raises MeshError if none is installed.
    """
    for notation in notations().values():
        if notation.wrap_local is not None:
            return notation
    raise MeshError("error: no installed converter can wrap a local program (entry-point group meshbridge.converters)")
