"""What the builder writes, by StableHLO's interpreter, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from meshbridge.ir.builder import Builder
from meshbridge.ir.digits import axis_digits, groups_along
from meshbridge.ir.mlir import context, func, ir
from meshbridge.ir.positions import number_along
from meshbridge.ir.sharding import Mesh
from meshbridge.runtime.interpreter import interpreted

X = np.arange(1, 13, dtype=np.int32).reshape(3, 4)


def evaluated(write: Callable[[Builder, ir.Value], ir.Value], argument: np.ndarray) -> np.ndarray:
    """What `write` makes of an argument."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        type_ = ir.RankedTensorType.get(argument.shape, ir.IntegerType.get_signless(32))
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ([type_], []))
        block = main.add_entry_block()
        emit = Builder(ir.Location.unknown(), ir.InsertionPoint(block))
        result = write(emit, block.arguments[0])
        emit.op("func.return", [], [result])
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([type_], [result.type]))
        assert module.operation.verify()
        return interpreted(module, [argument])[0]


def masked(emit: Builder, x: ir.Value) -> ir.Value:
    """Columns 1 and 2 of a window that begins one column before the tensor."""
    inside = emit.within(emit.count_from(emit.scalar(-1), 4), 2)
    return emit.select_along(1, inside, x, 7)


CASES: list[tuple[Callable[[Builder, ir.Value], ir.Value], np.ndarray]] = [
    (masked, np.where([[False, True, True, False]], X, 7)),
    (lambda emit, x: emit.slice(x, 1, 0, 2, 3), X[:, ::3]),
    (lambda emit, x: emit.cut(x, [1, 1], [3, 4], [1, 2]), X[1:3, 1:4:2]),
    (lambda emit, x: emit.pad(x, 5, [0, -1], [1, 0]), np.pad(X[:, 1:], [(0, 1), (0, 0)], constant_values=5)),
    (lambda emit, x: emit.slice(emit.pad_along(x, 0, 9, 0, 0, 1), 0, 1, 1), np.full((1, 4), 9, np.int32)),
    (lambda emit, x: emit.dynamic_slice(x, 0, emit.scalar(1), 2), X[1:3]),
    (lambda emit, x: emit.dynamic_update(x, emit.slice(x, 1, 0, 1), 1, emit.scalar(3)), np.c_[X[:, :3], X[:, :1]]),
    (lambda emit, x: emit.reduce(x, 0, [1, 0], "add"), np.array(X.sum(), np.int32)),
    (lambda emit, x: emit.reduce(x, emit.scalar(3), [0], "maximum"), np.maximum(X.max(0), 3)),
    (lambda emit, x: emit.clamp(4, emit.subtract(emit.multiply(x, 2), emit.corner(x)), 15), np.clip(2 * X - 1, 4, 15)),
    (lambda emit, x: emit.transpose(emit.broadcast(emit.corner(x), [2, 3]), [1, 0]), np.ones((3, 2), np.int32)),
    (lambda emit, x: emit.entry(emit.reshape(x, [12]), emit.scalar(6)), np.array(7, np.int32)),
]


@pytest.mark.parametrize(("write", "expected"), CASES)
def test_what_is_written(write: Callable[[Builder, ir.Value], ir.Value], expected: np.ndarray) -> None:
    found = evaluated(write, X)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axes", [axes for count in range(4) for axes in permutations(range(3), count)])
def test_numbers_in_groups(axes: tuple[int, ...]) -> None:
    """The device that stands at place k of a row of `groups_along` computes k."""
    mesh = Mesh("m", (2, 3, 4))
    digits = axis_digits(mesh, axes)
    for row in groups_along(mesh, digits)[:3]:
        for number, device in enumerate(row.tolist()):
            found = evaluated(lambda emit, linear: number_along(linear, mesh, digits, emit), np.array(device, np.int32))
            assert found == number
