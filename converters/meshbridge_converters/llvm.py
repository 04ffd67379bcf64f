"""How LLVM 19, 21 and 22 spell the mesh dialect: as formats that are read by content and written with `--emit-spelling`.

LLVM 20's spelling is our own. 21 writes reduction kinds bare; 22 calls the dialect `shard`, a mesh `grid`, and has no partial
shardings; 19 writes a sharding as an attribute of `mesh.shard`:

    19:  %1 = mesh.shard %0 to <@m, [[0]], partial = sum[1]> annotate_for_users : tensor<4x8xf32>
    20:  %s = mesh.sharding @m split_axes = [[0]] partial = sum[1] : !mesh.sharding
         %1 = mesh.shard %0 to %s annotate_for_users : tensor<4x8xf32>
    21:  %s = mesh.sharding @m split_axes = [[0]] partial =  sum [1] : !mesh.sharding
    22:  %s = shard.sharding @m split_axes = [[0]] : !shard.sharding
         %1 = shard.shard %0 to %s annotate_for_users : tensor<4x8xf32>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from meshbridge.dialect import attributes, build
from meshbridge.dialect.assembly import reader
from meshbridge.dialect.assembly.formats import (
    FORMATS,
    Element,
    Flag,
    Literal,
    OperandClause,
    OpFormat,
    PartialClause,
    Types,
    ValueClause,
)
from meshbridge.dialect.assembly.printer import write
from meshbridge.dialect.assembly.scanner import Scanner, location_at
from meshbridge.dialect.assembly.spelling import Spelling
from meshbridge.dialect.assembly.values import AXES, AXIS_ARRAY, KIND, KindSyntax, Mismatch, Syntax, read_kind
from meshbridge.dialect.ops import MeshOp, PermuteOp, ShardingOp, ShardOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import OpError, ParseError, ir, walk, walk_all
from meshbridge.ir.sharding import Sharding
from meshbridge.read.formats import Format as FileFormat
from meshbridge.read.formats import Program


def _respelled(
    keywords: Mapping[str, str], kind: KindSyntax, partial: str, hints: Mapping[str, str]
) -> dict[str, tuple[OpFormat, ...]]:
    """Our table with other keywords, reduction kinds and result names."""

    def element(ours: Element) -> Element:
        if isinstance(ours, PartialClause):
            return replace(ours, template=partial)
        if isinstance(ours, ValueClause):
            return replace(
                ours, keyword=keywords.get(ours.keyword, ours.keyword), syntax=kind if ours.syntax is KIND else ours.syntax
            )
        return ours

    return {
        name: tuple(
            replace(
                form,
                elements=tuple(element(each) for each in form.elements if partial or not isinstance(each, PartialClause)),
                hints=tuple(hints.get(hint, hint) for hint in form.hints),
            )
            for form in forms
        )
        for name, forms in FORMATS.items()
    }


_BARE_KIND = KindSyntax(" {}")
"""LLVM 21 prints two blanks before a kind: `reduction =  max`."""


def _without_ours(table: dict[str, tuple[OpFormat, ...]]) -> dict[str, tuple[OpFormat, ...]]:
    """What LLVM 21 and later know: no `permute`, and of `shard_shape` the form with a multi-index alone."""
    return {name: forms[-1:] if name == "shard_shape" else forms for name, forms in table.items() if name != "permute"}


_ATTRIBUTE_19 = r"#mesh\.shard<@(?P<mesh>[^,]+), (?P<split>\[.*?\])(?:, partial = (?P<kind>\w+)(?P<axes>\[[^\]]*\]))?>"
_SYMBOL = re.compile(r'@(?:[A-Za-z_][\w$.]*|"[^"\n]*")')


class _Sharding19(Syntax):
    """`<@m, [[0]], partial = sum[1]>` for `#mesh.shard<@m, [[0]], partial = sum[1]>`."""

    constraint = "mesh sharding attribute"

    def read(self, scanner: Scanner) -> str:
        scanner.expect("<")
        start, end = scanner.match(_SYMBOL, "a mesh symbol such as @mesh0")
        mesh = scanner.text[start:end]
        if scanner.at("::"):
            parameter = "failed to parse MeshSharding parameter 'mesh' which is to be a `::mlir::FlatSymbolRefAttr`"
            there = f"{location_at(scanner.text, start, scanner.filename)}: error: custom op '{scanner.operation}' "
            raise ParseError(f"{there}invalid kind of attribute specified\n{there}{parameter}")
        scanner.expect(",")
        split = AXIS_ARRAY.write(AXIS_ARRAY.read(scanner))
        partial = ""
        if scanner.accept(","):
            scanner.expect("partial")
            scanner.expect("=")
            partial = f", partial = {read_kind(scanner)}{AXES.write(AXES.read(scanner))}"
        scanner.expect(">")
        return f"#mesh.shard<{mesh}, {split}{partial}>"

    def write(self, generic: str) -> str:
        if re.fullmatch(_ATTRIBUTE_19, generic) is None:
            raise Mismatch(f"expected #mesh.shard<…>, found {generic}")
        return generic.removeprefix("#mesh.shard")


_SHARD_19 = OpFormat(
    (OperandClause(), Literal("to"), ValueClause("", "shard", _Sharding19()), Flag("annotate_for_users")),
    Types.RESULTS,
    ("sharding_annotated",),
)
_ABSENT_IN_19 = {"sharding", "get_sharding", "shard_shape", "neighbors_linear_indices", "update_halo", "permute"}


@cache
def _spelling_19() -> Spelling:
    table = {name: forms for name, forms in FORMATS.items() if name not in _ABSENT_IN_19} | {"shard": (_SHARD_19,)}
    return Spelling("mesh", table)


@cache
def _spelling_21() -> Spelling:
    return Spelling("mesh", _without_ours(_respelled({}, _BARE_KIND, "partial =  {} {}", {})))


_OPERATIONS_22 = {"grid": "mesh", "grid_shape": "mesh_shape"}


@cache
def _spelling_22() -> Spelling:
    ours = _without_ours(_respelled({"mesh_axes": "grid_axes"}, _BARE_KIND, "", {"mesh_shape": "grid_shape"}))
    renamed = _OPERATIONS_22.values()
    table = {name: ours[_OPERATIONS_22.get(name, name)] for name in [*_OPERATIONS_22, *ours] if name not in renamed}
    return Spelling("shard", table, operations=_OPERATIONS_22, keys={"grid": "mesh", "grid_axes": "mesh_axes"})


def _refuse_partial(module: ir.Module) -> None:
    """LLVM 22 has no partial shardings; in generic form it passes over what it does not know."""
    for op in walk_all(module):
        if op.name == ShardingOp.OPERATION_NAME and "partial_axes" in op.attributes:
            raise OpError(op, "has partial_axes, but LLVM 22 has no partial shardings")


def _refuse(op: ir.Operation, version: int, what: str) -> None:
    raise OpError(op, f"cannot be written for LLVM {version}, which has no {what}")


def _check_sayable(module: ir.Operation, version: int, spelling: Spelling) -> None:
    """Raises OpError at the first mesh operation that the spelling has no word for."""
    for op in walk(module):
        if not op.name.startswith("mesh."):
            continue
        if op.name not in spelling.spelled:
            _refuse(op, version, f"{op.name}")
        if op.name == "mesh.shard_shape" and "shape" in op.attributes:
            _refuse(op, version, "linear device number in shard_shape")
        if version == 22 and op.name == ShardingOp.OPERATION_NAME and "partial_axes" in op.attributes:
            _refuse(op, version, "partial shardings")


def _permutes_as_gathers(module: ir.Operation) -> None:
    """Writes each `mesh.permute`, which LLVM does not have, as an all-gather along its axes and a slice along its target axes."""
    with module.context:
        meshes = {mesh.name: mesh for op in walk(module) if op.name == MeshOp.OPERATION_NAME for mesh in [MeshOp(op).value]}
        for op in [op for op in walk(module) if op.name == PermuteOp.OPERATION_NAME]:
            view, mesh = PermuteOp(op), meshes[PermuteOp(op).mesh]
            if not ir.RankedTensorType(view.input.type).rank:
                raise OpError(op, "of a scalar cannot be written for LLVM, whose collectives have dimensions")
            at = Builder.before(op)
            whole = build.all_gather(view.input, mesh, mesh_axes=view.mesh_axes, gather_axis=0, at=at)
            own = build.all_slice(whole, mesh, mesh_axes=view.target_axes, slice_axis=0, at=at)
            op.results[0].replace_all_uses_with(own)
            op.erase()


def _shardings_as_attributes(module: ir.Operation) -> None:
    """Writes the shardings of a module into its `mesh.shard` operations, as LLVM 19 has them."""
    shardings: dict[ir.Value[Any], ShardingOp] = {}
    with module.context:
        for op in list(walk(module)):
            if op.name == ShardingOp.OPERATION_NAME:
                shardings[op.results[0]] = _checked_for_19(op)
            elif op.name == ShardOp.OPERATION_NAME:
                sharding = shardings.get(op.operands[1])
                if sharding is None:
                    _refuse(op, 19, "sharding that is not given by a mesh.sharding")
                else:
                    _shard_19(op, sharding)
        for sharding in shardings.values():
            if any(True for _ in sharding.operation.results[0].uses):
                _refuse(sharding.operation, 19, "use of a sharding outside of mesh.shard")
            sharding.operation.erase()


def _checked_for_19(op: ir.Operation) -> ShardingOp:
    sharding = ShardingOp(op)
    if sharding.halo_sizes:
        _refuse(op, 19, "halo sizes")
    if sharding.sharded_dims_offsets:
        _refuse(op, 19, "sharded dims offsets")
    return sharding


def _shard_19(op: ir.Operation, sharding: ShardingOp) -> None:
    split = attributes.axis_lists(sharding.split_axes) or [[]]
    partial = f", partial = {sharding.partial_type}{list(sharding.partial_axes)}" if sharding.partial_axes else ""
    attrs = dict(op.attributes.items()) | {"shard": ir.Attribute.parse(f"#mesh.shard<@{sharding.mesh}, {split}{partial}>")}
    op.results[0].replace_all_uses_with(Builder.before(op).value(op.name, op.results[0].type, [op.operands[0]], attrs))
    op.erase()


def _shardings_as_values(module: ir.Module) -> None:
    """Gives every `mesh.shard` of LLVM 19 the `mesh.sharding` that its attribute describes."""
    with module.context:
        for op in walk_all(module):
            if op.name == ShardOp.OPERATION_NAME and "shard" in op.attributes:
                at = Builder.before(op)
                sharding = build.sharding(_sharding_of(op), at=at)
                extras = {name: value for name, value in op.attributes.items() if name != "shard"}
                op.results[0].replace_all_uses_with(build.shard(op.operands[0], sharding, extras=extras, at=at))
                op.erase()


def _sharding_of(op: ir.Operation) -> Sharding:
    found = re.fullmatch(_ATTRIBUTE_19, str(op.attributes["shard"]))
    if found is None:
        raise OpError(
            op, f"attribute 'shard' failed to satisfy constraint: mesh sharding attribute, found {op.attributes['shard']}"
        )
    split = attributes.axis_array(ir.Attribute.parse(f"#mesh.axisarray<{found['split']}>"))
    axes = tuple(int(axis) for axis in found["axes"].strip("[]").split(",") if axis.strip()) if found["axes"] else ()
    return Sharding(found["mesh"].strip('"'), split, axes, found["kind"] or "sum")


class _Version(NamedTuple):
    """One LLVM release's spelling, with what must be done to the IR around reading and writing it."""

    number: int
    made: Callable[[], Spelling]
    """Its table, which is written from ours when it is first needed."""
    after_reading: Callable[[ir.Module], None] = lambda module: None
    before_writing: Callable[[ir.Operation], None] = lambda operation: None
    wording: Callable[[str], str] = lambda diagnostics: diagnostics

    @property
    def spelling(self) -> Spelling:
        return self.made()

    def read(self, text: str, filename: str, ctx: ir.Context) -> ir.Module:
        """Reads `text` into the canonical dialect. Raises ParseError."""
        module = reader.read(text, filename, ctx, self.spelling)
        try:
            self.after_reading(module)
        except OpError as error:
            raise ParseError(self.wording(str(error))) from None
        return module

    def write(self, module: ir.Module) -> str:
        """`module` in this spelling. Raises OpError at the first operation that it has no word for. Leaves `module` as it is."""
        with module.context:
            copy = module.operation.clone().operation
            _permutes_as_gathers(copy)
            self.before_writing(copy)
            _check_sayable(copy, self.number, self.spelling)
            return write(copy, spelling=self.spelling)

    def format(self, detect: str, *literals: bytes) -> FileFormat:
        """This spelling as a file format, recognised by what `detect` finds in a text that holds one of `literals`."""
        return FileFormat(
            name=f"llvm{self.number}",
            summary=f"MLIR text in the spelling of LLVM {self.number}",
            detect=lambda data: text_matches(data, detect, *literals),
            read=lambda data, filename, ctx: Program(self.read(data.decode(), filename, ctx), FORMATS_BY_VERSION[self.number]),
            write=lambda program: self.write(program.module).encode(),
            is_spelling=True,
            wording=self.wording,
        )


def text_matches(data: bytes, pattern: str, *literals: bytes) -> bool:
    """Whether `data` is text in which `pattern` is found outside of comments and strings. What `pattern` matches holds one of
    `literals`, which are found much faster: few texts are searched for a pattern, or have one compiled."""
    if not any(literal in data for literal in literals) or b"\0" in data:
        return False
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return any(_is_code(text[text.rfind("\n", 0, found.start()) + 1 : found.start()]) for found in re.finditer(pattern, text))


def _is_code(before: str) -> bool:
    """Whether what follows `before` on its line is neither commented out nor quoted."""
    return "//" not in before and (before.endswith('"') or before.count('"') % 2 == 0)


_NAMES_OR_TERMS = (
    r"""(?m)(?P<kept>"[^"\n]*"|@[\w.$-]+|^.*?: (?:error|note|warning): |\bmesh-[\w-]+)|\bmesh\.(?P<operation>\w+)"""
    r"""|\bmesh_(?P<attribute>axes|shape)\b|devices? meshes|[Mm]esh\b"""
)
"""What diagnostics say: names that the user gave, places, and passes, which stay; and the dialect's own terms."""


def _wording_22(diagnostics: str) -> str:
    """Diagnostics in the words of LLVM 22: `grid` for `mesh`, and the operations' names there."""

    def term(found: re.Match[str]) -> str:
        if found["kept"]:
            return found.group()
        if found["operation"]:
            return _spelling_22().spelled.get(found.group(), found.group())
        if found["attribute"]:
            return f"grid_{found['attribute']}"
        return {"mesh": "grid", "Mesh": "Grid"}.get(found.group(), "device grids")

    return re.sub(_NAMES_OR_TERMS, term, diagnostics)


LLVM_19 = _Version(19, _spelling_19, _shardings_as_values, _shardings_as_attributes)
LLVM_21 = _Version(21, _spelling_21)
LLVM_22 = _Version(22, _spelling_22, _refuse_partial, wording=_wording_22)

_DETECT_19 = r"mesh\.shard\s+%[\w$.#-]+\s+to\s*<@|shard = #mesh\.shard<@"
_DETECT_21 = r"\bmesh\.\w+ [^\n]*(?:reduction|partial) =  \w|#mesh<(?:partial|axisarray)"
_OPERATION_22 = "|".join([*_OPERATIONS_22, *sorted(FORMATS.keys() - _OPERATIONS_22.values() - {"permute"})])
_DETECT_22 = rf'(?<![\w.$@%#!-])shard\.(?:{_OPERATION_22})(?: |"\()|!shard\.sharding\b'

FORMATS_BY_VERSION: dict[int, FileFormat] = {}
FORMATS_BY_VERSION |= {
    version.number: version.format(detect, *literals)
    for version, detect, *literals in (
        (LLVM_19, _DETECT_19, b"mesh.shard"),
        (LLVM_21, _DETECT_21, b"mesh.", b"#mesh<"),
        (LLVM_22, _DETECT_22, b"shard."),
    )
}
FORMAT_19, FORMAT_21, FORMAT_22 = (FORMATS_BY_VERSION[number] for number in (19, 21, 22))
