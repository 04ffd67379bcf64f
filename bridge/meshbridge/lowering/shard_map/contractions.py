"""Products: `@`, `jnp.einsum`, `lax.dot_general`, and convolutions."""

from __future__ import annotations

from itertools import count
from string import ascii_letters

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.lowering.shard_map.code import Code, call, infix, keywords, literal
from meshbridge.lowering.shard_map.scope import Scope
from meshbridge.lowering.shard_map.shapes import integer
from meshbridge.lowering.shard_map.table import writes
from meshbridge.text import quoted

Dims = tuple[int, ...]


@writes("dot_general")
def dot_general(op: ir.Operation, scope: Scope) -> Code:
    """`x @ y` and `jnp.einsum` where operands have one type, `lax.dot_general` elsewhere."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions))
    contracted = (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions))
    left, right = scope.operands(op)
    how = keywords({"precision": _precision(op, scope), "preferred_element_type": _preferred(op, scope)})
    if element_of(op.operands[0]) != element_of(op.operands[1]):
        dims = (contracted, batch)
        how.setdefault("preferred_element_type", scope.dtype(op.results[0], op))
        return call("lax.dot_general", left, right, literal(dims), **how)
    ranks = [len(shape_of(operand)) for operand in op.operands]
    if not how and not batch[0] and contracted == ((ranks[0] - 1,), (0,)) and ranks[0] in (1, 2) and ranks[1] in (1, 2):
        return infix(left, "@", right)
    return call("jnp.einsum", quoted(_subscripts(ranks, batch, contracted)), left, right, **how)


def _subscripts(ranks: list[int], batch: tuple[Dims, Dims], contracted: tuple[Dims, Dims]) -> str:
    """`abc,cd->abd`: the result has batch dimensions first, then those of the left operand, then those of the right one."""
    letters = iter(ascii_letters)
    left = [next(letters) for _ in range(ranks[0])]
    right = [""] * ranks[1]
    for mine, theirs in ((batch[0], batch[1]), (contracted[0], contracted[1])):
        for first, second in zip(mine, theirs, strict=True):
            right[second] = left[first]
    right = [letter or next(letters) for letter in right]
    kept = [left[dim] for dim in batch[0]]
    for side, letters_of in ((0, left), (1, right)):
        kept += [letter for dim, letter in enumerate(letters_of) if dim not in (*batch[side], *contracted[side])]
    return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


def _precision(op: ir.Operation, scope: Scope) -> Code | None:
    """The precision of both operands, where it is not the default."""
    if "algorithm" in op.attributes:
        raise scope.error(op, f"has {op.attributes['algorithm']}, expected a precision", "leave out the algorithm of the product")
    if "precision_config" not in op.attributes:
        return None
    asked = [str(each).rsplit(" ", 1)[-1].rstrip(">") for each in ir.ArrayAttr(op.attributes["precision_config"])]
    if set(asked) <= {"DEFAULT"}:
        return None
    named = [Code(f"lax.Precision.{each}") for each in asked]
    return named[0] if len(set(asked)) == 1 else literal(tuple(named))


def _preferred(op: ir.Operation, scope: Scope) -> Code | None:
    """The element type of the result, where it is not that of the operands."""
    if element_of(op.results[0]) == element_of(op.operands[0]):
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
        "precision": _precision(op, scope),
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
    """`NHWC`: the letter of each dimension in order; spatial ones are numbers beyond three."""
    spatial = "HW" if len(spec) == 4 else "HWD" if len(spec) == 5 else "".join(str(index) for index, _ in zip(count(), spec[2:]))
    named = dict(zip(spec, f"{letters}{spatial}", strict=True))
    return "".join(named[dim] for dim in range(len(spec)))
