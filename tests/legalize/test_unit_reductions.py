"""Reductions over dimensions of size 1 are reshapes once legalized, if their initial value changes nothing."""

from __future__ import annotations

import pytest

import meshbridge
from meshbridge.ir.mlir import context, parse, walk_all
from meshbridge.legalize.legalize import Legalize
from testdata.realistic.catalogue import build as build_realistic


def _names(body: str, initial: str, element: str = "f32", shape: str = "1x8x1x") -> list[str]:
    """The ops of the legalized program that reduces the dimensions of size 1 of its argument."""
    source = f"""func.func @main(%x: tensor<{shape}{element}>) -> tensor<8x{element}> {{
  %init = stablehlo.constant dense<{initial}> : tensor<{element}>
  %0 = stablehlo.reduce(%x init: %init) applies stablehlo.{body} across dimensions = [0, 2]
    : (tensor<{shape}{element}>, tensor<{element}>) -> tensor<8x{element}>
  return %0 : tensor<8x{element}>
}}"""
    module = parse(source, "program.mlir", context())
    Legalize(only="reshape-unit-reductions").run(module)
    return [op.name.removeprefix("stablehlo.") for op in walk_all(module) if op.name.startswith("stablehlo.")]


@pytest.mark.parametrize(
    ("body", "initial", "element"),
    [
        ("add", "0.0", "f32"),
        ("add", "0", "i32"),
        ("multiply", "1.0", "bf16"),
        ("maximum", "0xFF800000", "f32"),
        ("minimum", "2147483647", "i32"),
        ("and", "true", "i1"),
        ("or", "false", "i1"),
    ],
)
def test_a_neutral_initial_value(body: str, initial: str, element: str) -> None:
    assert _names(body, initial, element) == ["reshape"]


@pytest.mark.parametrize(("body", "initial"), [("add", "1.0"), ("maximum", "0.0"), ("multiply", "0.0")])
def test_an_initial_value_that_counts(body: str, initial: str) -> None:
    assert "reduce" in _names(body, initial)


def test_a_dimension_of_several_elements_is_reduced() -> None:
    assert "reduce" in _names("add", "0.0", shape="1x8x2x")


def test_a_table_that_all_layers_read_is_reduced_once() -> None:
    """The gradient of T5's table of position biases: a loop adds it up over its layers before it is sent."""
    report = meshbridge.report(build_realistic("t5_scan_fsdp_tp", "constrained", 8).export_for("cpu"), machine="bytes")
    heads, length = 32, 2048
    largest = max(collective.total_bytes for collective in report.collectives if collective.kind == "reduce_scatter")
    assert largest <= heads / 4 * length * length * 4 / 2
