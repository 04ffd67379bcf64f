"""Pads as part of the windows that read them: a tensor of another size would have shards of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from meshbridge.analysis.known_values import is_splat
from meshbridge.ir.builder import shape_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import around, ir, stablehlo
from meshbridge.legalize.reads import Read, read_of
from meshbridge.legalize.table import Legalizer, rewrites
from meshbridge.ops import padded_selections
from meshbridge.ops.reach import Reach
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.selections import selected_kind
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims

_Padding = tuple[int, int, int]
"""Places before the first element and behind the last, and from one element to the next."""


def _pad_behind(value: ir.Value, fill: float) -> Read | None:
    """The pad that gives `value`, if it pads with that number."""
    read = read_of(value)
    return read if isinstance(read.fill, ir.Value) and is_splat(read.fill, fill) else None


def _padding(reach: Reach) -> _Padding:
    return reach.low, reach.size - reach.low - reach.dilation * (reach.source - 1) - 1, reach.dilation


def _together(windows: Sequence[WindowDim], pads: Sequence[Reach]) -> list[WindowDim] | None:
    """The windows with the pad's padding beside their own; None if windows cannot say it, as they crop nothing."""
    both = [
        replace(window, low=window.low + window.base * low, high=window.high + window.base * high, base=window.base * apart)
        for window, (low, high, apart) in zip(windows, map(_padding, pads), strict=True)
    ]
    return None if any(min(window.low, window.high) < 0 for window in both) else both  # XLA on CPU misreads some negative ones


@rewrites("stablehlo.reduce_window", "stablehlo.convolution")
def pad_windows(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Lets the windows of a reduction pad, where the pad adds what the reduction ignores; those of a convolution with zeros.

    Input:   %0 = stablehlo.pad %x, %lowest, low = [0], high = [1] : tensor<9xf32>
             %1 = stablehlo.reduce_window(%0, %lowest) {window_dimensions = [3], window_strides = [2]} : tensor<4xf32>
    Output:  %1 = stablehlo.reduce_window(%x, %lowest) {…, padding = [[0, 1]]} : tensor<4xf32>
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"]) if op.name == "stablehlo.convolution" else None
    kind = "sum" if numbers is not None else body_kind(op)
    ignored = neutral(kind, ir.RankedTensorType(op.results[0].type).element_type)
    pad = _pad_behind(op.operands[0], ignored) if kind and len(op.results) == 1 else None
    if pad is None:
        return False
    dims = list(range(len(pad.reaches)) if numbers is None else numbers.input_spatial_dimensions)
    kernel = shape_of(op.operands[1])
    sizes = None if numbers is None else [kernel[dim] for dim in numbers.kernel_spatial_dimensions]
    windows = _together(window_dims(op, sizes), [pad.reaches[dim] for dim in dims])
    if windows is None or any(_padding(reach) != (0, 0, 1) for dim, reach in enumerate(pad.reaches) if dim not in dims):
        return False
    set_window_dims(op, windows)
    rewriter.feed(op, 0, pad.source)
    return True


@rewrites("stablehlo.select_and_scatter")
def pad_selections(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Makes a composite of the gradient of pooling, as JAX writes it: what is scattered into the padding is sliced off again.

    Input:   %0 = stablehlo.pad %x, %lowest, low = [0], high = [1] : tensor<9xf32>
             %1 = stablehlo.select_and_scatter(%0, %source, %zero) : tensor<9xf32>
             %2 = stablehlo.slice %1 [0:8] : tensor<8xf32>
    Output:  %2 = stablehlo.composite "meshbridge.padded_selection" %x, %source, %zero : tensor<8xf32>
    """
    kind, readers = selected_kind(op), rewriter.users(op.results[0])
    ignored = neutral(kind, ir.RankedTensorType(op.results[0].type).element_type)
    pad = _pad_behind(op.operands[0], ignored) if kind and len(readers) == 1 else None
    if pad is None or any(window.low or window.high for window in window_dims(op)):
        return False
    low, high, apart = zip(*map(_padding, pad.reaches), strict=True)
    cut = read_of(readers[0].results[0]) if readers[0].name in ("stablehlo.pad", "stablehlo.slice") else None
    takes_back = tuple(Reach(reach.source, reach.size, low=-reach.low) for reach in pad.reaches)
    *_, function = around(op)
    if (
        min((*low, *high)) < 0
        or set(apart) != {1}
        or cut is None
        or cut.reaches != takes_back
        or padded_selections.is_body(function)
    ):
        return False
    body = _body(padded_selections.make_body(rewriter.module, op, pad.source.type, low, high), rewriter.module)
    made = padded_selections.make(body, (pad.source, op.operands[1], op.operands[2]))
    rewriter.replace(readers[0], made)
    rewriter.retire(op)
    return True


def _body(made: ir.Operation, module: ir.Module) -> ir.Operation:
    """A function that does what `made` does, which is one of the module's: an older one, or `made` under a name of its own."""
    symbol, text = padded_selections.SYMBOL, str(made)
    others = [view.operation for view in module.body.operations if "sym_name" in view.operation.attributes]
    functions = {ir.StringAttr(other.attributes["sym_name"]).value: other for other in others if other != made}
    for name, function in functions.items():
        if name.startswith(symbol) and str(function).replace(f"@{name}(", f"@{symbol}(") == text:
            made.erase()
            return function
    free = next(name for number in count() if (name := f"{symbol}_{number}") not in functions)
    made.attributes["sym_name"] = ir.StringAttr.get(free)
    return made
