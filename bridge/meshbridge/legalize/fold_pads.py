"""Pads as part of the windows or slices that read them: a tensor of another size would lie in shards of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.passes import RewritePass, register
from meshbridge.ops import padded_selections
from meshbridge.ops.convolutions import convolution_padding, per_dim
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.rule import shape_of
from meshbridge.ops.selections import selected_kind
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims


@register
@dataclass(frozen=True)
class FoldPads(RewritePass):
    """Folds pads into what reads them: convolutions, pooling and its gradient, and slices of what was padded.

    Input:   %0 = stablehlo.pad %x, %lowest, low = [0], high = [1] : tensor<9xf32>
             %1 = stablehlo.reduce_window(%0, %lowest) {window_dimensions = [3], window_strides = [2]} : tensor<4xf32>
    Output:  %1 = stablehlo.reduce_window(%x, %lowest) {…, padding = [[0, 1]]} : tensor<4xf32>

    Nine elements on four devices do not lie as eight do. JAX pads the operand of the gradient of pooling like that.
    """

    name: ClassVar[str] = "fold-pads"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.pad"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        dead: list[ir.Operation] = []
        folded: list[ir.Operation] = []
        bodies = _Bodies(module)
        for op in ops:
            if padded_selections.is_body(_function(op)):
                continue
            pad = _Pad(op, bodies)
            readers = [use.owner.operation for use in op.results[0].uses if use.operand_number == 0]
            left = [_FOLDS[reader.name](reader, pad) for reader in readers if reader.name in _FOLDS]
            dead += [other for others in left if others is not None for other in others]
            if any(others is not None for others in left):
                folded.append(op)
        for op in dead:
            op.erase()
        for op in folded:
            if next(iter(op.results[0].uses), None) is None:
                op.erase()
        return bool(folded)


def _function(op: ir.Operation) -> ir.Operation:
    """The function that an op stands in."""
    while op.name != "func.func":
        parent = op.parent
        assert parent is not None, "ops stand in functions"
        op = parent.operation
    return op


class _Pad:
    """One pad: its operand, the value that it pads with, and how much along each dimension."""

    def __init__(self, op: ir.Operation, bodies: _Bodies) -> None:
        self.bodies = bodies
        self.operand, self.value = op.operands
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        self.low, self.high, self.interior = (integers(op.attributes[name]) for name in names)

    def touches(self, dim: int) -> bool:
        """Whether it changes a dimension."""
        return bool(self.low[dim] or self.high[dim] or self.interior[dim])

    def reads(self, value: float) -> bool:
        """Whether it pads with that number."""
        return is_splat(self.value, value)


_Left = list[ir.Operation] | None
"""Ops that nobody reads any more once a pad is folded; None if it cannot be."""


def _into_slice(op: ir.Operation, pad: _Pad) -> _Left:
    """A slice of what was padded is a pad that adds less."""
    starts, limits = integers(op.attributes["start_indices"]), integers(op.attributes["limit_indices"])
    if set(integers(op.attributes["strides"])) != {1} or any(pad.interior):
        return None
    padded, shape = shape_of(op.operands[0]), shape_of(pad.operand)
    low = [low - start for low, start in zip(pad.low, starts, strict=True)]
    high = [high - (size - limit) for high, size, limit in zip(pad.high, padded, limits, strict=True)]
    if any(min(ends) <= -size for *ends, size in zip(low, high, shape, strict=True)):
        return None  # nothing of the operand is left
    with ir.InsertionPoint(op), op.location:
        op.results[0].replace_all_uses_with(stablehlo.pad(pad.operand, pad.value, low, high, [0] * len(shape)))
    return [op]


def _into_reduce_window(op: ir.Operation, pad: _Pad) -> _Left:
    kind = body_kind(op)
    element = ir.RankedTensorType(op.results[0].type).element_type
    if len(op.results) != 1 or not kind or not pad.reads(neutral(kind, element)):
        return None
    windows = _widened(window_dims(op, len(pad.low)), pad)
    if not windows:
        return None
    op.operands[0] = pad.operand
    set_window_dims(op, windows)
    return []


def _widened(windows: list[WindowDim], pad: _Pad) -> list[WindowDim]:
    """Windows with the pad as their padding; none if they cannot say that."""
    wider = [
        replace(window, low=window.low + low, high=window.high + high, base=window.base * (interior + 1))
        for window, low, high, interior in zip(windows, pad.low, pad.high, pad.interior, strict=True)
    ]
    mixed = any(window.base > 1 and pad.touches(dim) for dim, window in enumerate(windows))
    return [] if mixed or any(min(window.low, window.high) < 0 for window in wider) else wider


def _into_select_and_scatter(op: ir.Operation, pad: _Pad) -> _Left:
    """The gradient of pooling, if what it scatters into the padding is cut off again: a composite of all three."""
    kind = selected_kind(op)
    element = ir.RankedTensorType(op.results[0].type).element_type
    if not kind or any(pad.interior) or not pad.reads(neutral(kind, element)):
        return None
    users = [use.owner for use in op.results[0].uses]
    has_padding = any(window.low or window.high for window in window_dims(op, len(pad.low)))
    if has_padding or min((*pad.low, *pad.high), default=0) < 0 or len(users) != 1 or not _cuts(users[0].operation, pad):
        return None
    with ir.InsertionPoint(op), op.location:
        operands = (pad.operand, op.operands[1], op.operands[2])
        made = padded_selections.make(pad.bodies.body(op, pad), operands)
    users[0].operation.results[0].replace_all_uses_with(made)
    return [users[0].operation, op]


class _Bodies:
    """The functions behind composites, one for all that do the same."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._made: dict[str, ir.Operation] = {}

    def body(self, selection: ir.Operation, pad: _Pad) -> ir.Operation:
        """The function that does what a pad and its reader do."""
        made = padded_selections.make_body(self._module, selection, pad.operand.type, pad.low, pad.high)
        known = self._made.setdefault(str(made), made)
        if known == made:
            made.attributes["sym_name"] = ir.StringAttr.get(self._free_name())
        else:
            made.erase()
        return known

    def _free_name(self) -> str:
        taken = [view.operation.attributes for view in self._module.body.operations]
        names = {str(ir.StringAttr(attributes["sym_name"]).value) for attributes in taken if "sym_name" in attributes}
        wanted = (f"{padded_selections.SYMBOL}_{number}" for number in count())
        return next(name for name in wanted if name not in names)


def _cuts(user: ir.Operation, pad: _Pad) -> bool:
    """Whether an op takes away what the pad added, and nothing else."""
    if user.name == "stablehlo.pad":
        other = _Pad(user, pad.bodies)
        added = [[-size for size in edge] for edge in (pad.low, pad.high)]
        return [list(other.low), list(other.high)] == added and not any(other.interior)
    if user.name != "stablehlo.slice" or set(integers(user.attributes["strides"])) != {1}:
        return False
    return integers(user.attributes["start_indices"]) == pad.low and shape_of(user.results[0]) == shape_of(pad.operand)


def _into_convolution(op: ir.Operation, pad: _Pad) -> _Left:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    space = list(numbers.input_spatial_dimensions)
    padding, dilations = convolution_padding(op, len(space)), per_dim(op, "lhs_dilation", 1, len(space))
    others = (numbers.input_batch_dimension, numbers.input_feature_dimension)
    mixed = any(dilation > 1 and pad.touches(dim) for dim, dilation in zip(space, dilations, strict=True))
    if not pad.reads(0) or mixed or any(pad.touches(dim) for dim in others):
        return None
    wider = [(low + pad.low[dim], high + pad.high[dim]) for dim, (low, high) in zip(space, padding, strict=True)]
    if min(map(min, wider), default=0) < 0:  # XLA on CPU misreads some
        return None
    op.operands[0] = pad.operand
    pairs: Any = np.array(wider, np.int64).reshape(len(space), 2)
    op.attributes["padding"] = ir.DenseIntElementsAttr.get(pairs)
    op.attributes["lhs_dilation"] = integers_attr(
        [dilation * (pad.interior[dim] + 1) for dim, dilation in zip(space, dilations, strict=True)]
    )
    return []


_FOLDS: dict[str, Callable[[ir.Operation, _Pad], _Left]] = {
    "stablehlo.slice": _into_slice,
    "stablehlo.reduce_window": _into_reduce_window,
    "stablehlo.select_and_scatter": _into_select_and_scatter,
    "stablehlo.convolution": _into_convolution,
}
"""The ops that can do what a pad of their first operand does; each function changes its op if that is so."""
