"""Fourier transforms over several dimensions, one dimension at a time, so that the others may be sharded meanwhile."""

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
    """The last dimension holds the real side of a real transform: it comes first going forward, last coming back."""
    lengths = integers(op.attributes["fft_length"])
    kind = str(stablehlo.FftTypeAttr(op.attributes["fft_type"]).value)
    value = op.operands[0]
    rank = ir.RankedTensorType(value.type).rank
    last = rank - 1
    others = range(last - 1, last - len(lengths), -1)
    result = ir.RankedTensorType(op.results[0].type)
    if kind == "IRFFT":
        for dim in others:
            value = _along(value, dim, "IFFT")
        return _transform(value, kind, lengths[-1], result)
    shape = list(ir.RankedTensorType(value.type).shape)
    shape[last] = result.shape[last]
    value = _transform(value, kind, lengths[-1], ir.RankedTensorType.get(shape, result.element_type))
    for dim in others:
        value = _along(value, dim, "FFT" if kind == "RFFT" else kind)
    return value


def _along(value: ir.Value, dim: int, kind: str) -> ir.Value:
    """A complex transform along `dim`, which is swapped with the last dimension meanwhile."""
    emit, swapped = Builder.current(), list(range(len(shape_of(value))))
    swapped[dim], swapped[-1] = swapped[-1], swapped[dim]
    moved = emit.transpose(value, swapped)
    return emit.transpose(_transform(moved, kind, shape_of(value)[dim], moved.type), swapped)


def _transform(value: ir.Value, kind: str, length: int, result: ir.Type) -> ir.Value:
    attributes = {"fft_type": ir.Attribute.parse(f"#stablehlo<fft_type {kind}>"), "fft_length": integers_attr([length])}
    return Builder.current().value("fft", result, [value], attributes)
