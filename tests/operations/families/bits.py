"""Arithmetic on `i1`, which StableHLO has and JAX does not: `add` and `maximum` are "or", `multiply` and `minimum` are "and"."""

from __future__ import annotations

from typing import Any

from tests.operations.cases import Case
from tests.operations.drawing import Drawer, family
from tests.operations.families.windows import window_attributes
from tests.operations.raw import raw, tensor

COMBINERS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
_BIT = tensor((), "bool")


def body(combiner: str) -> str:
    """The region that combines two bits."""
    return f"""({{ ^bb0(%a: {_BIT}, %b: {_BIT}):
      %s = stablehlo.{combiner} %a, %b : {_BIT}
      stablehlo.return %s : {_BIT} }})"""


@family
def bits_elementwise(d: Drawer) -> Case:
    """Two operands."""
    shape, combiner = d.shape(), d.pick(COMBINERS)
    kind = tensor(shape, "bool")
    function = raw(f"%r = stablehlo.{combiner} %0, %1 : {kind}", [(shape, "bool")] * 2, [(shape, "bool")])
    return d.case(f"{combiner} of bits", function, [d.operand(shape, "bool"), d.operand(shape, "bool")], [len(shape)])


@family
def bits_reduce(d: Drawer) -> Case:
    """Any combiner from any initial value, and what is reduced again or combined with another reduction."""
    shape, combiner = d.shape(1, 4), d.pick(COMBINERS)
    dims = d.dims(len(shape))
    left = [size for dim, size in enumerate(shape) if dim not in dims]
    kind, result = tensor(shape, "bool"), tensor(left, "bool")
    attributes = f"{{dimensions = array<i64{':' if dims else ''} {', '.join(map(str, dims))}>}}"
    text = f"""%p = "stablehlo.reduce"(%0, %1) {body(combiner)} {attributes} : ({kind}, {_BIT}) -> {result}
      %q = "stablehlo.reduce"(%0, %1) {body(d.pick(COMBINERS))} {attributes} : ({kind}, {_BIT}) -> {result}
      %r = stablehlo.{d.pick(COMBINERS)} %p, %q : {result}"""
    function = raw(text, [(shape, "bool"), ((), "bool")], [(left, "bool")])
    return d.case(f"reduce bits by {combiner} {dims}", function, [d.operand(shape, "bool"), d.operand((), "bool")], [len(left)])


def _attributes(windows: dict[str, Any]) -> str:
    lists = {name: entries for name, entries in windows.items() if name != "padding"}
    listed = {"base_dilation": "base_dilations", "window_dilation": "window_dilations"}
    text = [f"{listed.get(name, name)} = array<i64: {', '.join(map(str, entries))}>" for name, entries in lists.items()]
    edges = [list(edge) for edge in windows["padding"]]
    return f"{{{', '.join(text)}, padding = dense<{edges}> : tensor<{len(edges)}x2xi64>}}"


@family
def bits_window(d: Drawer) -> Case:
    """Windows of bits from the value that the combiner ignores: others differ between XLA and StableHLO (see exclusions)."""
    shape, combiner = d.shape(1, 3, 512), d.pick(COMBINERS)
    windows = window_attributes(d, shape)
    if d.flag():
        axis = d.integer(0, len(shape) - 1)
        ends = [(shape[axis] - 1, 0), (0, shape[axis] - 1)]
        ones = [1] * len(shape)
        windows = {
            "window_dimensions": [size if dim == axis else 1 for dim, size in enumerate(shape)],
            "window_strides": ones,
            "padding": [d.pick(ends) if dim == axis else (0, 0) for dim in range(len(shape))],
            "base_dilation": ones,
            "window_dilation": ones,
        }
    counts = []
    for dim, size in enumerate(shape):
        low, high = windows["padding"][dim]
        reach = (windows["window_dimensions"][dim] - 1) * windows["window_dilation"][dim] + 1
        padded = (size - 1) * windows["base_dilation"][dim] + 1 + low + high
        counts.append((padded - reach) // windows["window_strides"][dim] + 1)
    start = "true" if combiner in ("multiply", "minimum", "and") else "false"
    kind, result = tensor(shape, "bool"), tensor(counts, "bool")
    text = f"""%c = stablehlo.constant dense<{start}> : {_BIT}
      %r = "stablehlo.reduce_window"(%0, %c) {body(combiner)} {_attributes(windows)} : ({kind}, {_BIT}) -> {result}"""
    function = raw(text, [(shape, "bool")], [(counts, "bool")])
    return d.case(f"windows of bits by {combiner} {windows}", function, [d.operand(shape, "bool")], [len(counts)])


@family
def bits_dot(d: Drawer) -> Case:
    """Products of matrices of bits, whose sums are "or"."""
    rows, inner, columns = (d.pick((8, 4, 3, 6, 1)) for _ in range(3))
    shapes = [(rows, inner), (inner, columns)]
    types = ", ".join(tensor(shape, "bool") for shape in shapes)
    text = f"%r = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({types}) -> {tensor((rows, columns), 'bool')}"
    function = raw(text, [(shape, "bool") for shape in shapes], [((rows, columns), "bool")])
    return d.case(f"dot of bits {shapes}", function, [d.operand(shape, "bool") for shape in shapes], [2])
