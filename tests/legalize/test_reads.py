"""Chains of pads, slices, reversals and concatenations read the same once legalized; what is known of a value is what it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge.analysis.known_values import Constant, Iota, Splat, known
from meshbridge.ir.mlir import context, ir, parse, walk_all
from meshbridge.legalize.legalize import Legalize
from tests.operations.interpreter import evaluate

CONTEXT = context()


def _pad(draw: st.DrawFn, size: int, fill: str) -> tuple[str, int]:
    low, high, interior = draw(st.integers(-1, 3)), draw(st.integers(-3, 3)), draw(st.sampled_from((0, 0, 1)))
    result = low + size + (size - 1) * interior + high
    if result < 1 or low < -size or high < -size:
        return "", size
    lists = f"low = [{low}], high = [{high}], interior = [{interior}]"
    types = f"(tensor<{size}xi32>, tensor<i32>) -> tensor<{result}xi32>"
    return f"stablehlo.pad %VALUE, {fill}, {lists} : {types}", result


def _slice(draw: st.DrawFn, size: int, fill: str) -> tuple[str, int]:
    start, stride = draw(st.integers(0, size - 1)), draw(st.sampled_from((1, 1, 2)))
    limit = draw(st.integers(start + 1, size))
    result = -((start - limit) // stride)
    return f"stablehlo.slice %VALUE [{start}:{limit}:{stride}] : (tensor<{size}xi32>) -> tensor<{result}xi32>", result


def _reverse(draw: st.DrawFn, size: int, fill: str) -> tuple[str, int]:
    return f"stablehlo.reverse %VALUE, dims = [0] : tensor<{size}xi32>", size


@st.composite
def chains(draw: st.DrawFn) -> str:
    """A program of such ops, each of one or two of the values before it, whose operand is `SOURCE`."""
    lines = ["%zero = stablehlo.constant dense<0> : tensor<i32>", "%seven = stablehlo.constant dense<7> : tensor<i32>"]
    values = [("%x", 6)]
    for number in range(draw(st.integers(3, 7))):
        value, size = draw(st.sampled_from(values[-2:]))
        if draw(st.integers(0, 5)) == 5:
            other, more = draw(st.sampled_from(values))
            types = f"(tensor<{size}xi32>, tensor<{more}xi32>) -> tensor<{size + more}xi32>"
            line, result = f"stablehlo.concatenate {value}, {other}, dim = 0 : {types}", size + more
        else:
            write = draw(st.sampled_from((_pad, _slice, _slice, _reverse)))
            line, result = write(draw, size, draw(st.sampled_from(("%zero", "%zero", "%seven"))))
        if line and result < 40:
            lines.append(f"%v{number} = {line.replace('%VALUE', value)}")
            values.append((f"%v{number}", result))
    names, types = ", ".join(name for name, _ in values), ", ".join(f"tensor<{size}xi32>" for _, size in values)
    body = "\n  ".join([*lines, f"return {names} : {types}"])
    return f"func.func @main(%x: tensor<6xi32>) -> ({types}) {{\n  {body}\n}}"


def _results(module: ir.Module, *operands: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(result) for result in evaluate(str(module), list(operands))]


@settings(max_examples=300, deadline=None)
@given(chains())
def test_legalized_reads_read_the_same(text: str) -> None:
    operand = np.arange(1, 7, dtype=np.int32)
    module = parse(text, "chain.mlir", CONTEXT)
    wanted = _results(module, operand)
    Legalize().run(module)
    assert module.operation.verify()
    for found, expected in zip(_results(module, operand), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=300, deadline=None)
@given(chains(), st.sampled_from(("stablehlo.iota dim = 0", "stablehlo.constant dense<3>")))
def test_what_is_known_is_so(text: str, source: str) -> None:
    """The same chains of a value that is known: each result that the analysis knows is what the interpreter gives."""
    text = text.replace("%x: tensor<6xi32>", "").replace("{\n", f"{{\n  %x = {source} : tensor<6xi32>\n", 1)
    module = parse(text, "chain.mlir", CONTEXT)
    (returned,) = [op for op in walk_all(module) if op.name == "func.return"]
    for value, expected in zip(returned.operands, _results(module), strict=True):
        found = known(value)
        if isinstance(found, Splat):
            assert (expected == found.number).all()
        elif isinstance(found, Iota):
            np.testing.assert_array_equal(expected, found.start + found.step * np.arange(len(expected)))
        elif isinstance(found, Constant):
            np.testing.assert_array_equal(expected, found.elements)
    assert known(returned.operands[0]) == (Iota(0) if "iota" in source else Splat(ir.Attribute.parse("3 : i32", CONTEXT)))
