"""Expands einsums and `dot` to reductions, one `dot_general` and a transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import OpError, ir, stablehlo
from meshbridge.legalize.table import replaces


@dataclass(frozen=True)
class Labelled:
    """A tensor and a letter per dimension."""

    value: ir.Value
    labels: str


@replaces("stablehlo.dot")
def expand_dot(op: ir.Operation) -> list[ir.Value]:
    """`stablehlo.dot` of vectors and matrices contracts the last dimension with the first."""
    lhs, rhs = op.operands
    letters = "ab"[: len(shape_of(lhs)) - 1] + "k", "k" + "cd"[: len(shape_of(rhs)) - 1]
    product = _product(op, Labelled(lhs, letters[0]), Labelled(rhs, letters[1]), letters[0][:-1] + letters[1][1:])
    return [product.value]


@replaces("stablehlo.einsum", "stablehlo.unary_einsum")
def expand_einsum(op: ir.Operation) -> list[ir.Value]:
    """`stablehlo.einsum` and `stablehlo.unary_einsum`, with ellipses and repeated letters.

    Raises OpError for a notation that does not fit the operands.
    """
    config = ir.StringAttr(op.attributes["einsum_config"]).value.replace(" ", "")
    inputs, arrow, output = config.partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != len(op.operands):
        raise OpError(op, f"has the notation '{config}', expected {len(op.operands)} terms and '->'")
    operands = [_read(op, value, term) for value, term in zip(op.operands, terms, strict=True)]
    output = output.replace("...", _ELLIPSIS[-_ellipsis_rank(op, terms) :] if "..." in output else "")
    reduced = [
        _sum_out(_diagonal(operand), output + "".join(factor.labels for factor in operands if factor is not operand))
        for operand in operands
    ]
    result = reduced[0] if len(reduced) == 1 else _product(op, reduced[0], reduced[1], output)
    return [_transposed(op, result, output)]


_ELLIPSIS = "0123456789"
"""The letters of `...`; the last ones are the minor dimensions."""


def _ellipsis_rank(op: ir.Operation, terms: Sequence[str]) -> int:
    ranks = [
        len(shape_of(value)) - len(term.replace("...", ""))
        for value, term in zip(op.operands, terms, strict=True)
        if "..." in term
    ]
    return max(ranks, default=0)


def _read(op: ir.Operation, value: ir.Value, term: str) -> Labelled:
    rank = len(shape_of(value))
    extra = rank - len(term.replace("...", ""))
    labels = term.replace("...", _ELLIPSIS[len(_ELLIPSIS) - extra :] if extra else "")
    if len(labels) != rank:
        raise OpError(op, f"names {len(labels)} dimensions in '{term}' of a tensor of rank {rank}")
    return Labelled(value, labels)


def _diagonal(tensor: Labelled) -> Labelled:
    """The diagonal for a repeated letter: zeroes all other elements, then sums over the second dimension."""
    repeated = next((dim for dim, label in enumerate(tensor.labels) if label in tensor.labels[:dim]), None)
    if repeated is None:
        return tensor
    builder, original = Builder.current(), tensor.labels.index(tensor.labels[repeated])
    row, column = (builder.iota(shape_of(tensor.value), dim) for dim in (original, repeated))
    diagonal = builder.select(builder.compare("EQ", row, column), tensor.value, 0)
    labels = tensor.labels[:repeated] + tensor.labels[repeated + 1 :]
    return _diagonal(Labelled(sum_over(diagonal, [repeated]), labels))


def _sum_out(tensor: Labelled, wanted: str) -> Labelled:
    """Sums over the letters that are not `wanted`."""
    alone = [dim for dim, label in enumerate(tensor.labels) if label not in wanted]
    if not alone:
        return tensor
    return Labelled(sum_over(tensor.value, alone), "".join(label for label in tensor.labels if label in wanted))


def sum_over(value: ir.Value, dims: Sequence[int]) -> ir.Value:
    """`value` summed over `dims`."""
    return Builder.current().reduce(value, 0, dims, "add")


def _product(op: ir.Operation, lhs: Labelled, rhs: Labelled, output: str) -> Labelled:
    shared = [label for label in lhs.labels if label in rhs.labels]
    batch = [label for label in shared if label in output]
    contracted = [label for label in shared if label not in output]
    numbers = stablehlo.DotDimensionNumbers.get(
        [lhs.labels.index(label) for label in batch],
        [rhs.labels.index(label) for label in batch],
        [lhs.labels.index(label) for label in contracted],
        [rhs.labels.index(label) for label in contracted],
    )
    sizes = dict(zip(lhs.labels + rhs.labels, shape_of(lhs.value) + shape_of(rhs.value), strict=True))
    free = [label for label in lhs.labels + rhs.labels if label not in shared]
    labels = "".join(batch + free)
    element = ir.RankedTensorType(op.results[0].type).element_type
    kind = ir.RankedTensorType.get([sizes[label] for label in labels], element)
    attributes: dict[str, ir.Attribute] = {"dot_dimension_numbers": numbers}
    if "precision_config" in op.attributes:
        attributes["precision_config"] = op.attributes["precision_config"]
    product = ir.Operation.create("stablehlo.dot_general", [kind], [lhs.value, rhs.value], attributes)
    return Labelled(product.results[0], labels)


def _transposed(op: ir.Operation, tensor: Labelled, output: str) -> ir.Value:
    if sorted(tensor.labels) != sorted(output):
        raise OpError(op, f"names the dimensions '{output}' of the result, but the operands have '{tensor.labels}'")
    order = [tensor.labels.index(label) for label in output]
    return tensor.value if order == sorted(order) else Builder.current().transpose(tensor.value, order)
