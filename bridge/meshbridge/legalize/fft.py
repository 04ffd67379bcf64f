"""Splits Fourier transforms over several dimensions into transforms over one, during which the others may be sharded."""

from __future__ import annotations

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.table import replaces


@replaces("stablehlo.fft")
def split_transforms(op: ir.Operation) -> list[ir.Value] | None:
    """Turns a transform over k dimensions into k transforms over one.

    Input:   %0 = stablehlo.fft %x, type = FFT, length = [8, 16] : tensor<8x16xcomplex<f32>>
    Output:  %0 = stablehlo.fft %x, type = FFT, length = [16] : tensor<8x16xcomplex<f32>>
             %1 = stablehlo.transpose %0, dims = [1, 0] …
             %2 = stablehlo.fft %1, type = FFT, length = [8] : tensor<16x8xcomplex<f32>>
             %3 = stablehlo.transpose %2, dims = [1, 0] …

    A transform needs its dimension replicated; one over all dimensions at once would need the tensor replicated.
    """
    return [_split(op)] if len(integers(op.attributes["fft_length"])) > 1 else None


def _split(op: ir.Operation) -> ir.Value:
    """Transforms one dimension after the other. The last dimension is the real one: it is first in a real transform, and last in
    the inverse."""
    lengths = integers(op.attributes["fft_length"])
    kind = str(stablehlo.FftTypeAttr(op.attributes["fft_type"]).value)
    value = op.operands[0]
    rank = ir.RankedTensorType(value.type).rank
    last_dim = rank - 1
    outer_dims = range(last_dim - 1, last_dim - len(lengths), -1)
    result = ir.RankedTensorType(op.results[0].type)
    if kind == "IRFFT":
        for dim in outer_dims:
            value = _along(value, dim, "IFFT")
        return _transform(value, kind, lengths[-1], result)
    shape = list(ir.RankedTensorType(value.type).shape)
    shape[last_dim] = result.shape[last_dim]
    value = _transform(value, kind, lengths[-1], ir.RankedTensorType.get(shape, result.element_type))
    for dim in outer_dims:
        value = _along(value, dim, "FFT" if kind == "RFFT" else kind)
    return value


def _along(value: ir.Value, dim: int, kind: str) -> ir.Value:
    """A complex transform along `dim`, between swaps with the last dimension."""
    builder, swapped = Builder.current(), list(range(len(shape_of(value))))
    swapped[dim], swapped[-1] = swapped[-1], swapped[dim]
    swapped_value = builder.transpose(value, swapped)
    return builder.transpose(_transform(swapped_value, kind, shape_of(value)[dim], swapped_value.type), swapped)


def _transform(value: ir.Value, kind: str, length: int, result: ir.Type) -> ir.Value:
    attributes = {"fft_type": ir.Attribute.parse(f"#stablehlo<fft_type {kind}>"), "fft_length": integers_attr([length])}
    return Builder.current().value("fft", result, [value], attributes)
