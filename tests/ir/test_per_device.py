"""Lists of numbers as runs, and as arithmetic in a program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.mlir import context, func, ir, stablehlo
from meshbridge.ir.per_device import LISTED, PerDevice, Run, entry, members, runs


def program(numbers: np.ndarray | PerDevice) -> ir.Module:
    """A function from an index to the entry."""
    with ir.Location.unknown():
        module = ir.Module.create()
        scalar = tensor([], ir.IntegerType.get_signless(32))
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ([scalar], [scalar]))
            block = main.add_entry_block()
        with ir.InsertionPoint(block):
            func.ReturnOp([entry(Builder.current(), numbers, block.arguments[0])])
    return module


def evaluated(module: ir.Module, index: int) -> int:
    i32 = ir.IntegerType.get_signless(32)
    (found,) = stablehlo.eval_module(module, [ir.DenseElementsAttr.get(np.array(index, np.int32), type=i32)])
    return int(np.array(found))


def spelled(found: list[Run]) -> list[int]:
    ends = [run.start for run in found[1:]]
    listed: list[int] = []
    for run, end in zip(found, [*ends, None], strict=True):
        count = 300 if end is None else end - run.start
        listed += [run.pattern[k % len(run.pattern)] + k // len(run.pattern) * run.step for k in range(count)]
    return listed


COUNT = np.arange(300)
LISTS = {
    "a line": COUNT * 7 - 3,
    "ends at a bound": np.minimum(COUNT, 70),
    "within two bounds": np.clip(200 - COUNT, 10, 150),
    "every number twice": COUNT // 2,
    "alternates": COUNT % 2,
    "shards of 12 in shards of 16": COUNT * 12 % 16 + COUNT * 12 // 16 * 3,
    "one of all": (COUNT == 77).astype(np.int64),
}


@pytest.mark.parametrize("numbers", LISTS.values(), ids=LISTS)
def test_regular_lists_are_computed(numbers: np.ndarray) -> None:
    with context():
        module = program(numbers)
        assert len(str(module)) < 5000
        for index in (0, 1, 2, 69, 70, 71, 76, 77, 78, 150, 299):
            assert evaluated(module, index) == numbers[index]


OWN = members(300)
COMPUTED = {
    "divided below zero": (OWN * 7 - 900) // 11,
    "remainder below zero": (OWN * -3 + 5) % 7,
    "two of the devices' numbers": OWN // 3 - OWN * 5 % 13,
    "bounds": (OWN // 17).at_least(OWN % 5).at_most(abs(OWN - 200) + 1),
    "bounds that matter on some devices": (OWN % 64).at_most(20, np.arange(16)),
    "less than 32 bits": (OWN * (1 << 22) + 3) // 1000,
}


@pytest.mark.parametrize("numbers", COMPUTED.values(), ids=COMPUTED)
def test_arithmetic_is_written(numbers: PerDevice) -> None:
    with context():
        module = program(numbers)
        assert "dense<[" not in str(module)
        assert 'dense<"' not in str(module)
        for index in (0, 1, 16, 77, 127, 128, 200, 298, 299):
            assert evaluated(module, index) == numbers.values[index]


def test_arithmetic_of_more_bits_is_a_table() -> None:
    numbers = OWN * (1 << 30) // 1000003
    with context():
        module = program(numbers)
        assert str(module).count("stablehlo.constant") == 1
        assert "stablehlo.multiply" not in str(module)
        assert [evaluated(module, index) for index in (0, 150, 299)] == numbers.values[[0, 150, 299]].tolist()


def test_short_and_irregular_lists_are_tables() -> None:
    with context():
        for numbers in (np.array([3, 1, 2, 0]), np.random.default_rng(1).permutation(LISTED + 1)):
            assert str(program(numbers)).count("stablehlo.constant") == 1


@given(
    st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-3, 3)), max_size=6)
)
def test_runs_spell_their_list(parts: list[tuple[int, list[int], int]]) -> None:
    numbers = [first[k % len(first)] + k // len(first) * step for count, first, step in parts for k in range(count)]
    numbers += [0] * 65
    found = runs(np.array(numbers))
    if found is not None:
        assert spelled(found)[: len(numbers)] == numbers
