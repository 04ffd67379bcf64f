"""The RFC's spelling of the mesh dialect (the RFC): `mesh.cluster`, `mesh.annotate`, tensor encodings, mhlo payload.

    mesh.cluster @mesh0(rank = 1, dim_sizes = [2])
    func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @mesh0 } {
      %0 = mesh.annotate %arg0 {required = true, sharding = [[0]]} : tensor<8xf32> -> tensor<8xf32>

reads as, and is written from,

    mesh.mesh @mesh0(shape = 2)
    func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> {
      %sharding = mesh.sharding @mesh0 split_axes = [[0]] : !mesh.sharding
      %0 = mesh.shard %arg0 to %sharding : tensor<8xf32>

A function whose tensors carry `#mesh.shard` encodings is the RFC's materialized form: it is read as one on local shapes, and
written from one that says how its values are sharded (see `rfc_materialized`).
"""

from __future__ import annotations

import re

from meshbridge.dialect.assembly import printer, reader
from meshbridge.dialect.assembly.formats import Element, Literal, OperandClause, OpFormat, Symbol, Types, ValueClause
from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.dialect.assembly.spelling import Spelling
from meshbridge.dialect.assembly.values import Mismatch, Syntax, read_integers
from meshbridge.ir.mlir import ir
from meshbridge.read.formats import Format as FileFormat
from meshbridge.read.formats import Program, deferred
from meshbridge_converters.llvm import text_matches


class _Rank(Syntax):
    """`3` for `3 : i64`."""

    constraint = "64-bit signless integer attribute"

    def read(self, scanner: Scanner) -> str:
        return f"{scanner.integer(64)} : i64"

    def write(self, generic: str) -> str:
        return generic.removesuffix(" : i64")


class _Sizes(Syntax):
    """`[4, 8]` for an array of integers."""

    constraint = "64-bit integer array attribute"

    def read(self, scanner: Scanner) -> str:
        return str(read_integers(scanner, 64))

    def write(self, generic: str) -> str:
        if not re.fullmatch(r"\[[-\d, ]*\]", generic):
            raise Mismatch(f"expected a list of integers, found {generic}")
        return generic


class _SizesClause(_Sizes):
    """`, dim_sizes = [4, 8]`, left out where there are none."""

    def read(self, scanner: Scanner) -> str:
        if not scanner.accept(","):
            return "[]"
        scanner.expect("dim_sizes")
        scanner.expect("=")
        return super().read(scanner)


def _form(*elements: Element, types: Types = Types.ONE_TO_ONE) -> tuple[OpFormat, ...]:
    return (OpFormat(elements, types),)


_ON_TENSOR = _form(OperandClause())
"""`mesh.x %src {attributes} : type -> type`: whatever an RFC operation says stands in its attribute dictionary."""

_CLUSTER = _form(
    Symbol("sym_name", declares=True),
    Literal("(", spaced=False),
    ValueClause("rank", "rank", _Rank(), lead="rank = "),
    ValueClause("", "dim_sizes", _SizesClause(), default="[]", lead=", dim_sizes = "),
    Literal(")", spaced=False),
    types=Types.NONE,
)

SPELLING = Spelling(
    "mesh",
    {
        "cluster": _CLUSTER,
        "idx": _form(types=Types.RESULTS),
        "size": _form(types=Types.RESULTS),
        **dict.fromkeys(("annotate", "all_gather", "all_reduce", "all_to_all", "local_split", "reduce_scatter"), _ON_TENSOR),
    },
)


def read(text: str, filename: str, ctx: ir.Context) -> ir.Module:
    """Reads a program in the RFC's spelling into the canonical dialect with StableHLO payload.

    Raises ParseError, or OpError at an operation that contradicts itself.
    """
    module = reader.read(text, filename, ctx, SPELLING)
    _to_canonical(module)
    return module


def write(module: ir.Module) -> str:
    """`module` in the RFC's spelling with mhlo payload. Leaves `module` as it is.

    Raises OpError at the first operation that the RFC has no word for.
    """
    return printer.write(_from_canonical(module), spelling=SPELLING)


_to_canonical = deferred("meshbridge_converters.rfc_import:to_canonical")
_from_canonical = deferred("meshbridge_converters.rfc_export:from_canonical")

_DETECT = r"mesh\.(?:cluster\s*@|annotate\s*%|local_split\s*%)"

FORMAT: FileFormat = FileFormat(
    name="rfc",
    summary="MLIR text in the spelling of the mesh dialect's RFC",
    detect=lambda data: text_matches(data, _DETECT, b"mesh."),
    read=lambda data, filename, ctx: Program(read(data.decode(), filename, ctx), FORMAT),
    write=lambda program: write(program.module).encode(),
    is_spelling=True,
)
