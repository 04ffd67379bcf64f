"""The gradient of pooling on a padded operand as one op, a composite with a StableHLO body.

    %r = stablehlo.composite "meshbridge.padded_selection" %x, %source, %initial {decomposition = @padded_selection}
    func.func private @padded_selection(%x, %source, %initial) {
      %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %0 = stablehlo.pad %x, %lowest, low = [0], high = [1]
      %1 = "stablehlo.select_and_scatter"(%0, %source, %initial) …
      %2 = stablehlo.slice %1 [0:8]
      return %2 }

The padded tensor is internal to the op, so its size does not constrain shardings. A `select_and_scatter` with padding differs: a
window never selects padding, even where the pad would have won.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import COMPOSITE, ir
from meshbridge.ops.composites import COMPOSITES, composite_body
from meshbridge.ops.option import Option
from meshbridge.ops.rule import ShardingRule, shape_of
from meshbridge.ops.selections import scattered_shard, selected_kind, selection_rule, split_windows
from meshbridge.ops.spmd import SpmdProgram, replace_result
from meshbridge.ops.window_attributes import WindowDim, window_dims

NAME = "meshbridge.padded_selection"
"""The name of the composite."""

SYMBOL = "padded_selection"
"""The name of its body, to which a number is appended if there are several."""


@dataclass(frozen=True)
class PaddedSelection:
    """The padding of each dimension, and the `select_and_scatter` of the body."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    selection: ir.Operation

    @classmethod
    def of(cls, op: ir.Operation) -> PaddedSelection:
        """Reads the body of a composite of this name."""
        inside = {view.operation.name: view.operation for view in composite_body(op).regions[0].blocks[0].operations}
        low, high = (integers(inside["stablehlo.pad"].attributes[f"edge_padding_{end}"]) for end in ("low", "high"))
        return cls(low, high, inside["stablehlo.select_and_scatter"])

    @property
    def windows(self) -> list[WindowDim]:
        """The windows, on the operand without padding."""
        windows = zip(window_dims(self.selection), self.low, self.high, strict=True)
        return [replace(window, low=low, high=high) for window, low, high in windows]


def make_body(
    module: ir.Module, selection: ir.Operation, operand: ir.Type, low: Sequence[int], high: Sequence[int]
) -> ir.Operation:
    """Builds a function that pads, selects and scatters as `selection` does, and slices the padding off. Its operand has type
    `operand`.

    `selection` has no padding, and its body is a plain comparison.
    """
    types = [operand, selection.operands[1].type, selection.operands[2].type]
    attributes = {
        "sym_name": ir.StringAttr.get(SYMBOL),
        "sym_visibility": ir.StringAttr.get("private"),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [operand])),
    }
    insertion_point = ir.InsertionPoint(module.body)
    function = ir.Operation.create("func.func", [], [], attributes, regions=1, loc=selection.location, ip=insertion_point)
    block = function.regions[0].blocks.append(*types, arg_locs=[selection.location] * 3)
    builder = Builder(selection.location, ir.InsertionPoint(block))
    builder.op("func.return", [], [_padded_and_cut(block.arguments, selection, low, high, builder)])
    return function


def is_body(function: ir.Operation) -> bool:
    """True for a function that `make_body` has built, which must not be folded again."""
    return "sym_visibility" in function.attributes and sorted(op.operation.name for op in function.regions[0].blocks[0]) == _OPS


_OPS = sorted(("stablehlo.constant", "stablehlo.pad", "stablehlo.select_and_scatter", "stablehlo.slice", "func.return"))


def make(body: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value:
    """The composite that calls `body`, at the current insertion point."""
    attributes = {
        "name": ir.StringAttr.get(NAME),
        "decomposition": ir.FlatSymbolRefAttr.get(ir.StringAttr(body.attributes["sym_name"]).value),
    }
    result: ir.Value = ir.Operation.create(COMPOSITE, [operands[0].type], list(operands), attributes).results[0]
    return result


def _loops(op: ir.Operation) -> ShardingRule:
    """The loops of the selection in the composite's body."""
    return selection_rule(op, PaddedSelection.of(op).windows)


def _local(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Selects position numbers, including those of padding, along split dimensions; replicated dimensions are padded and
    sliced."""
    padded = PaddedSelection.of(op)
    split = split_windows(rule, option, padded.windows)
    if split:
        selection = _with_operands(padded.selection, op.operands, at.builder)
        shard = scattered_shard(selection, padded.windows, split, at, selects_padding=True)
        selection.erase()
    else:
        shard = _padded_and_cut(op.operands, padded.selection, padded.low, padded.high, at.builder)
    replace_result(op, rule, option, shard, at)


def _with_operands(op: ir.Operation, operands: Sequence[ir.Value], builder: Builder) -> ir.Operation:
    """A copy of `op` on other operands."""
    copy = op.clone(builder.ip).operation
    for index, operand in enumerate(operands):
        copy.operands[index] = operand
    return copy


def _padded_and_cut(
    operands: Sequence[ir.Value], selection: ir.Operation, low: Sequence[int], high: Sequence[int], builder: Builder
) -> ir.Value:
    """The composite's computation on operands of any size: global tensors or shards."""
    operand, source, initial = operands
    padded = builder.pad(operand, neutral(selected_kind(selection), element_of(operand)), low, high)
    selected = _with_operands(selection, (padded, source, initial), builder).results[0]
    selected.set_type(padded.type)
    return builder.cut(selected, low, [sum(entry) for entry in zip(low, shape_of(operand), strict=True)])


COMPOSITES.add(NAME, (_loops, _local))
