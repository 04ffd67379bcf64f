"""Scalars that follow from a device's number: their values, and the axes that they number."""

from __future__ import annotations

import numpy as np
import pytest

from meshbridge.analysis.device_numbers import DeviceNumbers, axes_numbered
from meshbridge.ir import mlir
from meshbridge.ir.mlir import find, main_function
from meshbridge.ir.sharding import Mesh

MESH = Mesh("m", (2, 3, 4), ("a", "b", "c"))
EVERY = np.arange(24)


def numbers(text: str, mesh: Mesh = MESH) -> list[int] | None:
    """Of the value `%r` that `text` computes from the number `%d` of the device."""
    module = mlir.parse(
        "func.func @main(%x: tensor<i32>) -> () {\n  %d = stablehlo.partition_id : tensor<ui32>\n" + text + "\n  return\n}",
        "scalars.mlir",
        mlir.context(),
    )
    *_, last = [op for op in find(main_function(module), OPS) if op.results]
    found = DeviceNumbers(mesh).of(last.results[0])
    return None if found is None else found.tolist()


OPS = [
    f"stablehlo.{name}" for name in ("partition_id", "divide", "remainder", "add", "subtract", "multiply", "select", "convert")
] + ["stablehlo.clamp", "stablehlo.maximum"]

CASES: dict[str, tuple[str, list[int] | None]] = {
    "itself": ("", EVERY.tolist()),
    "along the last axis": (
        "%c = stablehlo.constant dense<4> : tensor<ui32>\n %r = stablehlo.remainder %d, %c : tensor<ui32>",
        (EVERY % 4).tolist(),
    ),
    "below zero, rounded towards it": (
        "%i = stablehlo.convert %d : (tensor<ui32>) -> tensor<i32>\n %c = stablehlo.constant dense<7> : tensor<i32>\n"
        "%n = stablehlo.subtract %i, %c : tensor<i32>\n %two = stablehlo.constant dense<2> : tensor<i32>\n"
        "%r = stablehlo.divide %n, %two : tensor<i32>",
        [int((number - 7) / 2) for number in range(24)],
    ),
    "of the sign of what is divided": (
        "%i = stablehlo.convert %d : (tensor<ui32>) -> tensor<i32>\n %c = stablehlo.constant dense<7> : tensor<i32>\n"
        "%n = stablehlo.subtract %i, %c : tensor<i32>\n %two = stablehlo.constant dense<3> : tensor<i32>\n"
        "%r = stablehlo.remainder %n, %two : tensor<i32>",
        [int(np.fmod(number - 7, 3)) for number in range(24)],
    ),
    "chosen": (
        "%c = stablehlo.constant dense<5> : tensor<ui32>\n %p = stablehlo.compare LT, %d, %c : (tensor<ui32>, tensor<ui32>) -> "
        "tensor<i1>\n %r = stablehlo.select %p, %c, %d : tensor<i1>, tensor<ui32>",
        [max(5, number) for number in range(24)],
    ),
    "below what the type holds": (
        "%c = stablehlo.constant dense<1> : tensor<ui32>\n %r = stablehlo.subtract %d, %c : tensor<ui32>",
        None,
    ),
    "above what the type holds": (
        "%i = stablehlo.convert %d : (tensor<ui32>) -> tensor<i8>\n %c = stablehlo.constant dense<100> : tensor<i8>\n"
        "%r = stablehlo.multiply %i, %c : tensor<i8>",
        None,
    ),
    "divided by zero": (
        "%c = stablehlo.constant dense<0> : tensor<ui32>\n %r = stablehlo.divide %d, %c : tensor<ui32>",
        None,
    ),
    "with an argument": (
        "%i = stablehlo.convert %d : (tensor<ui32>) -> tensor<i32>\n %r = stablehlo.add %i, %x : tensor<i32>",
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_all_devices(name: str) -> None:
    text, expected = CASES[name]
    assert numbers(text) == expected


def test_devices_in_another_order() -> None:
    assert numbers("", Mesh("m", (2, 2), ("a", "b"), device_ids=(0, 2, 1, 3))) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("found", "axes"),
    [
        (EVERY, (0, 1, 2)),
        (EVERY % 4, (2,)),
        (EVERY // 4 % 3, (1,)),
        (EVERY // 4, (0, 1)),
        (EVERY % 4 * 2 + EVERY // 12, (2, 0)),
        (EVERY * 2, ()),
        (EVERY % 2, ()),
        (3 - EVERY % 4, ()),
        (EVERY * 0, ()),
    ],
)
def test_axes_that_are_numbered(found: np.ndarray, axes: tuple[int, ...]) -> None:
    assert axes_numbered(found, MESH) == axes
