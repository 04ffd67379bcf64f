"""Writes products as `@`, `jnp.einsum` or `lax.dot_general`, and convolutions."""

from __future__ import annotations

from itertools import count
from string import ascii_letters

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.emit.python.code import Code, call, infix, keywords, literal
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import integer
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.text import quoted

Dims = tuple[int, ...]


@writes("dot_general")
def dot_general(op: ir.Operation, scope: Scope) -> Code:
    """`x @ y` or `jnp.einsum` if the operands have the same element type, else `lax.dot_general`."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions))
    contracted = (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions))
    lhs, rhs = scope.operands(op)
    how = keywords({"precision": _algorithm(op, scope) or _precision(op), "preferred_element_type": _preferred(op, scope)})
    if element_of(op.operands[0]) != element_of(op.operands[1]):
        dims = (contracted, batch)
        how.setdefault("preferred_element_type", scope.dtype(op.results[0], op))
        return call("lax.dot_general", lhs, rhs, literal(dims), **how)
    ranks = [len(shape_of(operand)) for operand in op.operands]
    if not how and not batch[0] and contracted == ((ranks[0] - 1,), (0,)) and ranks[0] in (1, 2) and ranks[1] in (1, 2):
        return infix(lhs, "@", rhs)
    return call("jnp.einsum", quoted(_subscripts(ranks, batch, contracted)), lhs, rhs, **how)


def _subscripts(ranks: list[int], batch: tuple[Dims, Dims], contracted: tuple[Dims, Dims]) -> str:
    """`abc,cd->abd`: the result has the batch dimensions, then those of the left operand, then those of the right one."""
    letters = iter(ascii_letters)
    lhs_letters = [next(letters) for _ in range(ranks[0])]
    rhs_letters = [""] * ranks[1]
    for mine, theirs in ((batch[0], batch[1]), (contracted[0], contracted[1])):
        for lhs_dim, rhs_dim in zip(mine, theirs, strict=True):
            rhs_letters[rhs_dim] = lhs_letters[lhs_dim]
    rhs_letters = [letter or next(letters) for letter in rhs_letters]
    result_letters = [lhs_letters[dim] for dim in batch[0]]
    for side, letters_of in ((0, lhs_letters), (1, rhs_letters)):
        result_letters += [letter for dim, letter in enumerate(letters_of) if dim not in (*batch[side], *contracted[side])]
    return f"{''.join(lhs_letters)},{''.join(rhs_letters)}->{''.join(result_letters)}"


_PRESETS = frozenset(
    (
        *("F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6"),
        *("BF16_BF16_F32_X9", "TF32_TF32_F32", "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64"),
    )
)
"""The entries of `lax.DotAlgorithmPreset` that name one algorithm: operand types, accumulator type, number of products."""


def _algorithm(op: ir.Operation, scope: Scope) -> Code | None:
    """The algorithm of a product, or None if it names none."""
    if "algorithm" not in op.attributes:
        return None
    algorithm = stablehlo.DotAlgorithm(op.attributes["algorithm"])
    types = algorithm.lhs_precision_type, algorithm.rhs_precision_type, algorithm.accumulation_type
    products = algorithm.num_primitive_operations
    name = "_".join([*(str(type_).upper() for type_ in types), *([f"X{products}"] if products > 1 else [])])
    if name in _PRESETS and not algorithm.allow_imprecise_accumulation:
        return Code(f"lax.DotAlgorithmPreset.{name}")
    names = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
    return call(
        "lax.DotAlgorithm",
        **{parameter: scope.dtype(kind, op) for parameter, kind in zip(names, types, strict=True)},
        num_primitive_operations=literal(products),
        allow_imprecise_accumulation=literal(algorithm.allow_imprecise_accumulation),
    )


def _precision(op: ir.Operation) -> Code | None:
    """The precision of both operands, or None if it is the default."""
    if "precision_config" not in op.attributes:
        return None
    precisions = [str(precision).rsplit(" ", 1)[-1].rstrip(">") for precision in ir.ArrayAttr(op.attributes["precision_config"])]
    if set(precisions) <= {"DEFAULT"}:
        return None
    named = [Code(f"lax.Precision.{precision}") for precision in precisions]
    return named[0] if len(set(precisions)) == 1 else literal(tuple(named))


def _preferred(op: ir.Operation, scope: Scope) -> Code | None:
    """The element type of the result, if JAX would not give it by default; else None."""
    if element_of(op.results[0]) == element_of(op.operands[0]) and "algorithm" not in op.attributes:
        return None
    return scope.dtype(op.results[0], op)


@writes("convolution")
def convolution(op: ir.Operation, scope: Scope) -> Code:
    """`lax.conv_general_dilated`."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = scope.operands(op)
    spatial = len(numbers.input_spatial_dimensions)
    if "window_reversal" in op.attributes and any(flips := _bits(op.attributes["window_reversal"])):
        dims = tuple(dim for dim, flipped in zip(numbers.kernel_spatial_dimensions, flips, strict=True) if flipped)
        kernel = call("lax.rev", kernel, literal(dims))
    specs = (
        (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        (numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension, *numbers.kernel_spatial_dimensions),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions),
    )
    layouts = tuple(_layout(spec, letters) for spec, letters in zip(specs, ("NC", "OI", "NC"), strict=True))
    order = sorted(range(spatial), key=lambda index: numbers.kernel_spatial_dimensions[index])  # as JAX reads the lists

    def ordered(name: str) -> tuple[int, ...]:
        listed = integers(op.attributes[name]) if name in op.attributes else (1,) * spatial
        return tuple(listed[index] for index in order)

    padding = np.array(op.attributes["padding"]).reshape(-1, 2).tolist() if "padding" in op.attributes else [[0, 0]] * spatial
    optional = {
        "lhs_dilation": _unless(ordered("lhs_dilation"), (1,) * spatial),
        "rhs_dilation": _unless(ordered("rhs_dilation"), (1,) * spatial),
        "feature_group_count": _unless(integer(op, "feature_group_count"), 1),
        "batch_group_count": _unless(integer(op, "batch_group_count"), 1),
        "precision": _precision(op),
        "preferred_element_type": _preferred(op, scope),
    }
    return call(
        "lax.conv_general_dilated",
        image,
        kernel,
        window_strides=literal(ordered("window_strides")),
        padding=literal([tuple(padding[index]) for index in order]),
        dimension_numbers=literal(layouts),
        **keywords(optional),
    )


def _unless(value: object, default: object) -> Code | None:
    return None if value == default else literal(value)


def _bits(attr: ir.Attribute) -> list[bool]:
    return [bool(ir.DenseBoolArrayAttr(attr)[index]) for index in range(len(ir.DenseBoolArrayAttr(attr)))]


def _layout(spec: tuple[int, ...], letters: str) -> str:
    """`NHWC`: the letter of each dimension in order; more than three spatial dimensions have numbers."""
    spatial = "HW" if len(spec) == 4 else "HWD" if len(spec) == 5 else "".join(str(index) for index, _ in zip(count(), spec[2:]))
    named = dict(zip(spec, f"{letters}{spatial}", strict=True))
    return "".join(named[dim] for dim in range(len(spec)))
