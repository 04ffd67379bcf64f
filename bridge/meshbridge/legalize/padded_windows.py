"""Merges pads into the windows that read them: a tensor of another size would have different shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from meshbridge.analysis.known_values import is_splat
from meshbridge.ir.builder import shape_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ancestors, ir, stablehlo
from meshbridge.legalize.reads import Read, read_of
from meshbridge.legalize.table import Legalizer, rewrites
from meshbridge.ops import padded_selections
from meshbridge.ops.affine_access import AffineAccess
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.selections import selected_kind
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims

_Padding = tuple[int, int, int]
"""Low and high padding, and the distance from one element to the next."""


def _pad_of(value: ir.Value, fill: float) -> Read | None:
    """The pad that defines `value`, if it pads with `fill`."""
    read = read_of(value)
    return read if isinstance(read.fill, ir.Value) and is_splat(read.fill, fill) else None


def _padding(access: AffineAccess) -> _Padding:
    return access.low, access.size - access.low - access.dilation * (access.source - 1) - 1, access.dilation


def _merge_padding(windows: Sequence[WindowDim], pads: Sequence[AffineAccess]) -> list[WindowDim] | None:
    """The windows with the pad's padding added to their own; None if it is negative, which windows cannot express."""
    padded = [
        replace(window, low=window.low + window.base * low, high=window.high + window.base * high, base=window.base * apart)
        for window, (low, high, apart) in zip(windows, map(_padding, pads), strict=True)
    ]
    crops = any(min(window.low, window.high) < 0 for window in padded)  # XLA on CPU misreads some negative padding
    return None if crops else padded


@rewrites("stablehlo.reduce_window", "stablehlo.convolution")
def pad_windows(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Merges a pad with the neutral element into a windowed reduction, and a pad with zeros into a convolution.

    Input:   %0 = stablehlo.pad %x, %lowest, low = [0], high = [1] : tensor<9xf32>
             %1 = stablehlo.reduce_window(%0, %lowest) {window_dimensions = [3], window_strides = [2]} : tensor<4xf32>
    Output:  %1 = stablehlo.reduce_window(%x, %lowest) {…, padding = [[0, 1]]} : tensor<4xf32>
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"]) if op.name == "stablehlo.convolution" else None
    kind = "sum" if numbers is not None else body_kind(op)
    ignored = neutral(kind, ir.RankedTensorType(op.results[0].type).element_type)
    pad = _pad_of(op.operands[0], ignored) if kind and len(op.results) == 1 else None
    if pad is None:
        return False
    dims = list(range(len(pad.accesses)) if numbers is None else numbers.input_spatial_dimensions)
    kernel = shape_of(op.operands[1])
    sizes = None if numbers is None else [kernel[dim] for dim in numbers.kernel_spatial_dimensions]
    windows = _merge_padding(window_dims(op, sizes), [pad.accesses[dim] for dim in dims])
    if windows is None or any(_padding(access) != (0, 0, 1) for dim, access in enumerate(pad.accesses) if dim not in dims):
        return False
    set_window_dims(op, windows)
    rewriter.set_operand(op, 0, pad.source)
    return True


@rewrites("stablehlo.select_and_scatter")
def pad_selections(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Wraps JAX's gradient of pooling into a composite: a pad, a select_and_scatter, and a slice that removes the padding.

    Input:   %0 = stablehlo.pad %x, %lowest, low = [0], high = [1] : tensor<9xf32>
             %1 = stablehlo.select_and_scatter(%0, %source, %zero) : tensor<9xf32>
             %2 = stablehlo.slice %1 [0:8] : tensor<8xf32>
    Output:  %2 = stablehlo.composite "meshbridge.padded_selection" %x, %source, %zero : tensor<8xf32>
    """
    kind, readers = selected_kind(op), rewriter.users(op.results[0])
    ignored = neutral(kind, ir.RankedTensorType(op.results[0].type).element_type)
    pad = _pad_of(op.operands[0], ignored) if kind and len(readers) == 1 else None
    if pad is None or any(window.low or window.high for window in window_dims(op)):
        return False
    low, high, apart = zip(*map(_padding, pad.accesses), strict=True)
    slice_read = read_of(readers[0].results[0]) if readers[0].name in ("stablehlo.pad", "stablehlo.slice") else None
    takes_back = tuple(AffineAccess(access.source, access.size, low=-access.low) for access in pad.accesses)
    *_, function = ancestors(op)
    if (
        min((*low, *high)) < 0
        or set(apart) != {1}
        or slice_read is None
        or slice_read.accesses != takes_back
        or padded_selections.is_body(function)
    ):
        return False
    body = _shared_body(padded_selections.make_body(rewriter.module, op, pad.source.type, low, high), rewriter.module)
    composite = padded_selections.make(body, (pad.source, op.operands[1], op.operands[2]))
    rewriter.replace(readers[0], composite)
    rewriter.retire(op)
    return True


def _shared_body(new_function: ir.Operation, module: ir.Module) -> ir.Operation:
    """An existing function of the module with the body of `new_function`, else `new_function` under a unique name."""
    symbol, text = padded_selections.SYMBOL, str(new_function)
    named = [view.operation for view in module.body.operations if "sym_name" in view.operation.attributes]
    functions = {ir.StringAttr(function.attributes["sym_name"]).value: function for function in named if function != new_function}
    for name, function in functions.items():
        if name.startswith(symbol) and str(function).replace(f"@{name}(", f"@{symbol}(") == text:
            new_function.erase()
            return function
    free = next(name for number in count() if (name := f"{symbol}_{number}") not in functions)
    new_function.attributes["sym_name"] = ir.StringAttr.get(free)
    return new_function
