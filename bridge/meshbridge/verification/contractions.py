"""Sums of products: dot_general, convolution, and the Fourier transform as a product with its matrix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from meshbridge.ir.mlir import OpError, ir, stablehlo
from meshbridge.verification.elementwise import wrap
from meshbridge.verification.field import SMOOTH, Array, Field
from meshbridge.verification.machine import (
    Evaluator,
    align,
    dtype_of,
    element_of,
    evaluates,
    integer,
    integers,
    is_complex,
    is_float,
    shape_of,
)
from meshbridge.verification.windows import Window1D, window_dims, windows_of


def product(machine: Evaluator, left: Array, right: Array, element: ir.Type) -> Array:
    """The matrix product of (…, m, k) and (…, k, n), integers in the result's type."""
    if left.dtype.kind in "fc":
        return machine.field.matmul(left, right)
    dtype = dtype_of(element)
    if dtype == np.bool_:
        return np.asarray(np.matmul(left, right))
    return wrap(np.asarray(np.matmul(left.astype(dtype), right.astype(dtype))), element)


def _accumulated(machine: Evaluator, op: ir.Operation, x: Array) -> Array:
    """Float operands are unchanged; integers that enter a sum of floats become elements."""
    element = element_of(op.results[0])
    return machine.field.from_integers(x) if is_float(element) and x.dtype.kind in "iub" else x


@evaluates("stablehlo.dot_general")
def dot_general(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Batch dimensions first, then the free dimensions of the left operand, then those of the right."""
    dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs = arranged(operands[0], dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions, contracted_last=True)
    rhs = arranged(operands[1], dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions, contracted_last=False)
    total = product(machine, _accumulated(machine, op, lhs), _accumulated(machine, op, rhs), element_of(op.results[0]))
    return [total.reshape(total.shape[0], *shape_of(op.results[0]))]


def arranged(x: Array, batch: list[int], contracted: list[int], *, contracted_last: bool) -> Array:
    """A stack of matrices: devices, batch (one dimension), and the two remaining dimensions."""
    free = [dim for dim in range(x.ndim - 1) if dim not in (*batch, *contracted)]
    order = [*batch, *free, *contracted] if contracted_last else [*batch, *contracted, *free]
    transposed = x.transpose(0, *(dim + 1 for dim in order))
    sizes = [int(np.prod([x.shape[dim + 1] for dim in dims], dtype=np.int64)) for dims in (batch, free, contracted)]
    rows = (sizes[1], sizes[2]) if contracted_last else (sizes[2], sizes[1])
    return np.ascontiguousarray(transposed).reshape(x.shape[0], sizes[0], *rows)


@evaluates("stablehlo.dot")
def dot(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A product of vectors and matrices."""
    lhs, rhs = (_accumulated(machine, op, x) for x in operands)
    rows = lhs[:, None] if lhs.ndim == 2 else lhs
    columns = rhs[..., None] if rhs.ndim == 2 else rhs
    total = product(machine, rows, columns, element_of(op.results[0]))
    return [total.reshape(total.shape[0], *shape_of(op.results[0]))]


@evaluates("stablehlo.convolution", "stablehlo.dynamic_conv")
def convolution(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A product of windows with kernels, group by group."""
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    x, kernel = (_accumulated(machine, op, operand) for operand in align(*operands[:2]))
    x = x.transpose(0, *(dim + 1 for dim in _order(dims, "input", "batch", "feature")))
    kernel = kernel.transpose(
        0, dims.kernel_output_feature_dimension + 1, dims.kernel_input_feature_dimension + 1,
        *(dim + 1 for dim in dims.kernel_spatial_dimensions),
    )  # fmt: skip
    count = len(dims.input_spatial_dimensions)
    turned = [axis + 3 for axis, flag in enumerate(integers(op, "window_reversal", (0,) * count)) if flag]
    kernel = np.flip(kernel, tuple(turned))
    amounts = operands[2][0].reshape(-1).tolist() if len(operands) > 2 else integers(op, "padding", (0,) * 2 * count)
    patches = _patches(op, x, kernel.shape[3:], amounts)  # devices, batch, features, places…, window…
    groups, batches = integer(op, "feature_group_count", 1), integer(op, "batch_group_count", 1)
    result = _grouped(machine, patches, kernel, groups, batches, element_of(op.results[0]))
    order = [0, *(dim + 1 for dim in _order(dims, "output", "batch", "feature"))]
    return [result.transpose(np.argsort(order))]


def _order(dims: stablehlo.ConvDimensionNumbers, side: str, *names: str) -> list[int]:
    leading = [getattr(dims, f"{side}_{name}_dimension") for name in names]
    return [*leading, *getattr(dims, f"{side}_spatial_dimensions")]


def _patches(op: ir.Operation, x: Array, sizes: tuple[int, ...], padding: Sequence[int]) -> Array:
    dims = window_dims(op, sizes, padding, "lhs_dilation", "rhs_dilation")
    views = windows_of(x, np.zeros(x.shape[0], x.dtype), [Window1D(1), Window1D(1), *dims])
    return views.reshape(*views.shape[: x.ndim], *views.shape[x.ndim + 2 :])


def _grouped(machine: Evaluator, patches: Array, kernel: Array, groups: int, batches: int, element: ir.Type) -> Array:
    """The result with dimensions devices, batch, features, places… ."""
    devices, batch, features = patches.shape[:3]
    places = patches.shape[3 : 3 + kernel.ndim - 3]
    split = max(groups, batches)
    outputs = kernel.shape[1] // split
    if batches > 1:
        patches = patches.reshape(devices, batches, batch // batches, features, *patches.shape[3:])
        batch //= batches
    else:
        patches = np.moveaxis(patches.reshape(devices, batch, groups, features // groups, *patches.shape[3:]), 2, 1)
    rank = len(places)  # devices, group, batch, features, places…, window…
    rows = np.moveaxis(patches, 3, 3 + rank)
    inner = int(np.prod(kernel.shape[2:], dtype=np.int64))
    rows = rows.reshape(devices, split, batch * int(np.prod(places, dtype=np.int64)), inner)
    columns = kernel.reshape(devices, split, outputs, inner).swapaxes(2, 3)
    result = product(machine, rows, columns, element).reshape(devices, split, batch, *places, outputs)
    result = np.moveaxis(result, -1, 2).swapaxes(2, 3)  # devices, group, batch, outputs, places…
    return np.moveaxis(result, 1, 2).reshape(devices, batch, split * outputs, *places)


@evaluates("stablehlo.fft")
def fft(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A product with the matrix of the transform, one dimension after the other."""
    kind = str(op.attributes["fft_type"]).split(" ")[-1].rstrip(">")
    lengths = integers(op, "fft_length")
    x, field = operands[0], machine.field
    dims = list(range(x.ndim - len(lengths), x.ndim))
    if kind == "RFFT":
        x = _along(field, x.astype(np.complex128), dims[-1], _forward(field, lengths[-1])[:, : lengths[-1] // 2 + 1])
        dims, lengths = dims[:-1], lengths[:-1]
    for dim, length in zip(dims, lengths, strict=True):
        if kind == "IRFFT" and dim == dims[-1]:
            x = _to_real(field, x, dim, length)
        else:
            x = _along(field, x, dim, _backward(field, length) if kind in ("IFFT", "IRFFT") else _forward(field, length))
    if is_complex(element_of(op.results[0])) != (x.dtype.kind == "c"):
        raise OpError(op, f"of kind {kind} cannot have results of type {element_of(op.results[0])}")
    return [x]


def _along(field: Field, x: Array, dim: int, matrix: Array) -> Array:
    dim_last = np.moveaxis(x, dim, -1)
    rows = np.ascontiguousarray(dim_last).reshape(-1, dim_last.shape[-1])
    return np.moveaxis(field.matmul(rows, matrix).reshape(*dim_last.shape[:-1], matrix.shape[1]), -1, dim)


def _to_real(field: Field, x: Array, dim: int, length: int) -> Array:
    """The real part of the inverse transform of a spectrum whose conjugate half is not given."""
    dim_last = np.moveaxis(x, dim, -1)
    mirrored = dim_last[..., 1 : (length + 1) // 2].conj()[..., ::-1]
    whole = np.concatenate([dim_last[..., : length // 2 + 1], mirrored], axis=-1)
    return np.moveaxis(_along(field, whole, whole.ndim - 1, _backward(field, length)).real, -1, dim)


@lru_cache(maxsize=64)
def _forward(field: Field, length: int) -> Array:
    """The matrix of the discrete Fourier transform of this length; a random one if the field has no such root of unity."""
    root = root_of_unity(field, length)
    if root is None:
        return field.random(f"fft {length}", (length, length), "c")
    powers = np.ones(length, np.complex128)
    for index in range(1, length):
        powers[index : index + 1] = field.multiply(powers[index - 1 : index], root)
    return powers[np.outer(np.arange(length), np.arange(length)) % length]


@lru_cache(maxsize=64)
def _backward(field: Field, length: int) -> Array:
    if root_of_unity(field, length) is None:
        return field.random(f"ifft {length}", (length, length), "c")
    scale = field.inverse(np.full((1, 1), field.integer(length)))
    return field.multiply(_forward(field, length).conj(), scale)


@lru_cache(maxsize=64)
def root_of_unity(field: Field, order: int) -> Array | None:
    """An element of this order with its conjugate as inverse, the same power of one generator for all orders.

    None if the order does not divide `prime` + 1.
    """
    if SMOOTH % order:
        return None
    for number in range(2, field.prime):
        x = np.array([1 + 1j * number])
        unit = field.divide(x.conj(), x)  # of norm 1: an element of the group of order prime + 1
        generator = field.power(unit, (field.prime + 1) // SMOOTH)
        if all(field.power(generator, SMOOTH // factor)[0] != 1 for factor in (2, 3, 5, 7)):
            return field.power(generator, SMOOTH // order)
    raise AssertionError("a cyclic group has a generator")
