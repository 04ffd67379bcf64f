"""Attributes and types of the mesh dialect as Python values: axis arrays, reduction kinds, integer lists, `!mesh.sharding`.

The bindings see `#mesh.axisarray<…>` and `#mesh.partial<…>` as opaque attributes: they are unique per context, so reading one is
one dictionary look-up after the first time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast

from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.sharding import Axes, Split

SHARDING_TYPE = "!mesh.sharding"


def axes_attr(axes: Iterable[int]) -> ir.Attribute:
    """`array<i16: …>`, the dialect's list of mesh axes."""
    return _dense_array("i16", axes)


def integers_attr(values: Iterable[int]) -> ir.Attribute:
    """`array<i64: …>`: roots, halo sizes, offsets, mesh shapes."""
    return _dense_array("i64", values)


def _dense_array(element: str, values: Iterable[int]) -> ir.Attribute:
    listed = list(values)
    return ir.DenseI16ArrayAttr.get(listed) if element == "i16" else ir.DenseI64ArrayAttr.get(listed)


def integers(attr: ir.Attribute) -> tuple[int, ...]:
    """The entries of a dense integer array attribute. Indexing takes a fifth of the time of the bindings' iterators."""
    dense = cast("Sequence[int]", attr)
    return tuple([dense[index] for index in range(len(dense))])


def string(attr: ir.Attribute) -> str:
    """The value of a string attribute."""
    return str(ir.StringAttr(attr).value)


def symbol(attr: ir.Attribute) -> str:
    """The name that `@name` refers to."""
    return str(ir.FlatSymbolRefAttr(attr).value)


def index_attr(value: int) -> ir.Attribute:
    """`value : index`."""
    return ir.IntegerAttr.get(ir.IndexType.get(), value)


def kind_attr(kind: str) -> ir.Attribute:
    """`#mesh.partial<kind>`."""
    return ir.Attribute.parse(f"#mesh.partial<{kind}>")


_KIND = re.compile(r"#mesh(?:\.partial<\s*|<partial\s+)(\w+)\s*>")
_AXES = r"\[\s*(?:-?\d+\s*(?:,\s*-?\d+\s*)*)?\]\s*"
_AXIS_LISTS = re.compile(rf"\[\s*(?:{_AXES}(?:,\s*{_AXES})*)?\]")
_AXIS_ARRAY = re.compile(r"#mesh(?:\.axisarray<|<axisarray)\s*(.*?)>$", re.S)


def kind(attr: ir.Attribute) -> str:
    """The reduction kind that `#mesh.partial<kind>` (or LLVM 21's `#mesh<partial kind>`) names."""
    match = _KIND.fullmatch(str(attr))
    if match is None:
        raise MeshError(f"error: expected #mesh.partial<kind>, found {attr}")
    return match.group(1)


def axis_array_attr(split: Split) -> ir.Attribute:
    """`#mesh.axisarray<[[0, 1], []]>`."""
    return ir.Attribute.parse(f"#mesh.axisarray<{[list(axes) for axes in split]}>")


def axis_array(attr: ir.Attribute) -> Split:
    """The sub-lists of `#mesh.axisarray<…>` (or LLVM 21's `#mesh<axisarray…>`)."""
    return _parse_axis_array(str(attr))


@lru_cache(maxsize=4096)
def _parse_axis_array(text: str) -> Split:
    match = _AXIS_ARRAY.fullmatch(text)
    if match is None or not _AXIS_LISTS.fullmatch(match.group(1)):
        raise MeshError(f"error: expected #mesh.axisarray<[[…], …]>, found {text}")
    return tuple(tuple(axes) for axes in ast.literal_eval(match.group(1)))


def axis_lists(axes: Iterable[Axes]) -> list[list[int]]:
    """Tuples as lists, which print in the dialect's syntax."""
    return [list(entry) for entry in axes]
