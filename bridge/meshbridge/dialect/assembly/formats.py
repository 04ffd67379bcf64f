"""The table of the operations' formats, which reader and printer share (the spec's `Syntax:` lines as values).

A format is a tuple of elements. An element converts between custom text and the attribute text of the generic form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from meshbridge.dialect.assembly.values import AXES, AXIS_ARRAY, DIMENSIONS, INDEX, KIND, OFFSET, Syntax


@dataclass(frozen=True)
class Literal:
    """A fixed word or bracket. `spaced`: print a blank before it."""

    text: str
    spaced: bool = True


@dataclass(frozen=True)
class OperandClause:
    """One operand. `type` is its type, which the text does not give; None means the type of the result."""

    type: str | None = None
    segment: int = 0


@dataclass(frozen=True)
class Operands:
    """Operands of one type with commas between them."""

    type: str
    segment: int = 0


@dataclass(frozen=True)
class Symbol:
    """`@name`. `declares`: it is the operation's own name, a string attribute."""

    attribute: str
    declares: bool = False


@dataclass(frozen=True)
class ValueClause:
    """`keyword = value`, or the bare value if `keyword` is empty. `default` is the value if the clause is left out.

    `lead` is the printed text before the value, if it is not ` keyword = `.
    """

    keyword: str
    attribute: str
    syntax: Syntax
    default: str | None = None
    lead: str | None = None


@dataclass(frozen=True)
class Flag:
    """A unit attribute."""

    attribute: str


@dataclass(frozen=True)
class IndexList:
    """`keyword = [1, %d]`: static entries in a list attribute, dynamic ones as operands.

    `default` is the list's text if the clause is left out; None: the clause is required; "": the attribute is absent.
    """

    keyword: str
    attribute: str
    type: str
    default: str | None = None
    segment: int = 0


@dataclass(frozen=True)
class PartialClause:
    """`partial = sum[1]`: two attributes, absent together. `template` has the spelling's form of kind and axes."""

    keyword: str = "partial"
    template: str = "partial = {}{}"


Element = Literal | OperandClause | Operands | Symbol | ValueClause | Flag | IndexList | PartialClause


class Types(Enum):
    """The types after the colon."""

    NONE = "nothing"
    RESULTS = "the result types; the operands' follow from the elements"
    ONE_TO_ONE = "operand type `->` result type"
    FUNCTIONAL = "`(` operand types `)` `->` result type"


@dataclass(frozen=True)
class OpFormat:
    """An operation's custom form. `segments`: the number of operand segments, if the operation records their sizes."""

    elements: tuple[Element, ...]
    types: Types
    hints: tuple[str, ...] = ()
    segments: int = 0
    attributes: frozenset[str] = field(init=False)
    """The attributes of the elements; all others are discardable."""

    def __post_init__(self) -> None:
        names = {getattr(element, "attribute", None) for element in self.elements} - {None}
        if any(isinstance(element, PartialClause) for element in self.elements):
            names |= {"partial_axes", "partial_type"}
        if self.segments:
            names.add("operandSegmentSizes")
        object.__setattr__(self, "attributes", frozenset(names))

    @property
    def leading(self) -> str:
        """The first word of the form; "" if it begins with a value."""
        first_element = self.elements[0]
        return getattr(first_element, "keyword", "") or getattr(first_element, "text", "")


ON_MESH = (Literal("on"), Symbol("mesh"))
MESH_AXES = ValueClause("mesh_axes", "mesh_axes", AXES, default="array<i16>")
AXES_OF_MESH = ValueClause("axes", "axes", AXES, default="array<i16>")
REDUCTION = ValueClause("reduction", "reduction", KIND, default="#mesh.partial<sum>")
SPLIT_AXES = ValueClause("split_axes", "split_axes", AXIS_ARRAY)
NO_INTEGERS = "array<i64>"


def _collective(hint: str, *elements: Element, types: Types = Types.ONE_TO_ONE) -> tuple[OpFormat, ...]:
    return (OpFormat((OperandClause(), *ON_MESH, MESH_AXES, *elements), types, (hint,)),)


def _axis(name: str) -> ValueClause:
    return ValueClause(name, name, INDEX)


ROOT = IndexList("root", "root", "index")

FORMATS: dict[str, tuple[OpFormat, ...]] = {
    "mesh": (
        OpFormat(
            (
                Symbol("sym_name", declares=True),
                Literal("(", spaced=False),
                ValueClause("shape", "shape", DIMENSIONS, lead="shape = "),
                Literal(")", spaced=False),
            ),
            Types.NONE,
        ),
    ),
    "mesh_shape": (OpFormat((Symbol("mesh"), AXES_OF_MESH), Types.RESULTS, ("mesh_shape",)),),
    "process_multi_index": (OpFormat((*ON_MESH, AXES_OF_MESH), Types.RESULTS, ("proc_linear_idx",)),),
    "process_linear_index": (OpFormat(ON_MESH, Types.RESULTS, ("proc_linear_idx",)),),
    "neighbors_linear_indices": (
        OpFormat(
            (
                *ON_MESH,
                Literal("[", spaced=False),
                Operands("index"),
                Literal("]", spaced=False),
                ValueClause("split_axes", "split_axes", AXES),
            ),
            Types.RESULTS,
            ("down_linear_idx", "up_linear_idx"),
        ),
    ),
    "sharding": (
        OpFormat(
            (
                Symbol("mesh"),
                SPLIT_AXES,
                PartialClause(),
                IndexList("halo_sizes", "static_halo_sizes", "i64", NO_INTEGERS, segment=1),
                IndexList("sharded_dims_offsets", "static_sharded_dims_offsets", "i64", NO_INTEGERS),
            ),
            Types.RESULTS,
            ("sharding",),
            segments=2,
        ),
    ),
    "shard": (
        OpFormat(
            (OperandClause(), Literal("to"), OperandClause("!mesh.sharding"), Flag("annotate_for_users")),
            Types.RESULTS,
            ("sharding_annotated",),
        ),
    ),
    "get_sharding": (OpFormat((OperandClause(),), Types.ONE_TO_ONE),),
    "shard_shape": (
        OpFormat(
            (ValueClause("", "shape", DIMENSIONS), OperandClause("!mesh.sharding"), OperandClause("index")),
            Types.RESULTS,
            ("shard_shape",),
        ),
        # LLVM 21's form, which takes a multi-index for the device and dynamic dimensions as operands.
        OpFormat(
            (
                IndexList("dims", "dims", "index"),
                Literal("sharding"),
                Literal("="),
                OperandClause("!mesh.sharding", segment=1),
                IndexList("device", "device", "index", segment=2),
            ),
            Types.RESULTS,
            ("shard_shape",),
            segments=3,
        ),
    ),
    "all_gather": _collective("all_gather", _axis("gather_axis")),
    "all_reduce": _collective("all_reduce", REDUCTION),
    "all_slice": _collective("all_slice", _axis("slice_axis")),
    "all_to_all": _collective("all_to_all", _axis("split_axis"), _axis("concat_axis")),
    "broadcast": _collective("broadcast", ROOT, types=Types.FUNCTIONAL),
    "gather": _collective("gather", _axis("gather_axis"), ROOT, types=Types.FUNCTIONAL),
    "recv": _collective("recv", IndexList("source", "source", "index", default=""), types=Types.FUNCTIONAL),
    "reduce": _collective("reduce", REDUCTION, ROOT, types=Types.FUNCTIONAL),
    "reduce_scatter": _collective("reduce_scatter", REDUCTION, _axis("scatter_axis")),
    "scatter": _collective("scatter", _axis("scatter_axis"), ROOT, types=Types.FUNCTIONAL),
    "send": _collective("send", IndexList("destination", "destination", "index"), types=Types.FUNCTIONAL),
    "shift": _collective("shift", _axis("shift_axis"), ValueClause("offset", "offset", OFFSET), Flag("rotate")),
    "permute": _collective("permute", ValueClause("target_axes", "target_axes", AXES)),
    "update_halo": (
        OpFormat(
            (OperandClause(), *ON_MESH, SPLIT_AXES, IndexList("halo_sizes", "static_halo_sizes", "i64", NO_INTEGERS)),
            Types.RESULTS,
        ),
    ),
}
"""By operation, its possible forms; the first that fits is printed."""
