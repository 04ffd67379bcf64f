"""Recipes write again what was derived once; free values are written once in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import context, ir, parse, verify
from meshbridge.ir.recipes import FreeValues, Recipes, SharingBuilder

TEXT = """
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<true> : tensor<i1>
  %r = "stablehlo.if"(%c) ({ stablehlo.return %x : tensor<4xf32> }, { stablehlo.return %y : tensor<4xf32> })
      : (tensor<i1>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    made = parse(TEXT, "recipes.mlir", context())
    with made.context, ir.Location.unknown():
        yield made
        verify(made)


def _block(module: ir.Module) -> ir.Block:
    return module.body.operations[0].regions[0].blocks[0]


def _end(block: ir.Block, free: FreeValues) -> SharingBuilder:
    return SharingBuilder(ir.Location.unknown(), ir.InsertionPoint(list(block.operations)[-1]), free)


def _names(block: ir.Block) -> list[str]:
    return [op.operation.name.removeprefix("stablehlo.") for op in block.operations]


def _double_plus_seven(value: ir.Value) -> Callable[[Builder], ir.Value]:
    return lambda emit: emit.add(emit.multiply(value, 2), emit.multiply(emit.splat(value.type, 7), 1))


def test_a_recipe_writes_the_same_ops_of_another_input(module: ir.Module) -> None:
    free, block = FreeValues(), _block(module)
    recipes, emit = Recipes(free), _end(_block(module), free)
    x, y = block.arguments
    first = recipes.value("key", [x], emit, _double_plus_seven(x))
    again = recipes.value("key", [y], emit, lambda emit: pytest.fail("derived twice"))
    assert _names(block)[2:-1] == ["constant", "multiply", "constant", "add", "multiply", "add"]
    made, other = first.owner, again.owner
    assert made.operands[1] == other.operands[1], "the constant is shared"
    assert made.operands[0].owner.operands[0] == x
    assert other.operands[0].owner.operands[0] == y


def test_what_a_note_cannot_tell_is_derived_again(module: ir.Module) -> None:
    """A region, and a value that is no input."""
    free, block = FreeValues(), _block(module)
    recipes, emit, derived = Recipes(free), _end(_block(module), free), list[str]()
    x, y = block.arguments

    def around(emit: Builder) -> ir.Value:
        derived.append("around")
        made: ir.Value = emit.op("test.around", [x.type], [x], regions=1).results[0]
        return made

    def added(emit: Builder) -> ir.Value:
        derived.append("added")
        return emit.add(x, y)

    for _ in range(2):
        recipes.value("region", [x], emit, around)
        recipes.value("foreign", [x], emit, added)
    assert derived == ["around", "added"] * 2


def test_bodies_that_join_two_scalars_are_written_again(module: ir.Module) -> None:
    free, block = FreeValues(), _block(module)
    recipes, emit = Recipes(free), _end(_block(module), free)
    x, y = block.arguments
    first = recipes.value("sum", [x], emit, lambda emit: emit.reduce(x, 0, [0], "add"))
    again = recipes.value("sum", [y], emit, lambda emit: pytest.fail("derived twice"))
    assert again.owner.operands[0] == y
    assert str(first.owner).partition("(%arg0")[2] == str(again.owner).partition("(%arg1")[2]


def test_free_values_are_seen_below_their_block_alone(module: ir.Module) -> None:
    free, block = FreeValues(), _block(module)
    branches = [region.blocks[0] for region in block.operations[1].regions]
    scalar = ir.RankedTensorType.get([], ir.F32Type.get())

    def nine(block: ir.Block) -> ir.Value:
        return _end(block, free).elementwise("add", _end(block, free).splat(scalar, 4), 5)

    inside = []
    for branch in branches:
        free.enter_block()
        inside.append(nine(branch))
        assert nine(branch) == inside[-1]
        assert _names(branch) == ["constant", "constant", "add", "return"]
        free.leave_block()
    assert inside[0] != inside[1]
    outside = nine(block)
    free.enter_block()
    assert nine(block) == outside
    free.leave_block()


def test_a_claimed_value_is_nobody_elses(module: ir.Module) -> None:
    free, block = FreeValues(), _block(module)
    emit = _end(block, free)
    first = emit.scalar(3)
    assert emit.scalar(3) == first
    free.claim(first)
    second = emit.scalar(3)
    assert second != first
    assert emit.scalar(3) == second
    assert emit.add(first, 1).owner != emit.add(first, 1).owner, "what follows from a claimed value is not free"


def test_what_follows_from_an_added_value_is_written_once(module: ir.Module) -> None:
    """Also where the value itself was claimed: what it has led to is written again from it."""
    free, block = FreeValues(), _block(module)
    branches = [region.blocks[0] for region in block.operations[1].regions]
    start = Builder(ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block))
    number = free.add(start.scalar(7))
    inside = []
    for branch in branches:
        free.enter_block()
        inside.append(_end(branch, free).add(number, number))
        assert _end(branch, free).add(number, number) == inside[-1]
        free.leave_block()
    assert inside[0] != inside[1]
    free.claim(number)
    assert _end(block, free).add(number, number) != _end(block, free).add(number, number)
