"""The sum over keys of weights times their gradients (FlashAttention's D), from the result of the forward pass and its gradient.

weights = exponentials * a;  result = dot_general(weights, v);  gradients = dot_general(g, v)
sum over keys (exponentials * b * gradients)  =  sum over features (g * result) * b / a

Masks and factors per key, as dropout has them, must be those of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op
from meshbridge.ops.dimensions import TRANSPOSE, varies_along
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.overlap.attention.block_trace import BlockWriter
from meshbridge.overlap.attention.linear_reductions import is_zero, reduces
from meshbridge.overlap.attention.online_softmax import sum_type
from meshbridge.overlap.attention.value_numbering import ValueNumbering

_CONVERT = "stablehlo.convert"
_MULTIPLY = "stablehlo.multiply"
_DIVIDE = "stablehlo.divide"
_SELECT = "stablehlo.select"
_INVERSE = {"multiply": "divide", "divide": "multiply"}

Factor = tuple[str, ir.Value]
""""multiply" or "divide", and one number per query."""


@dataclass(frozen=True)
class _Product:
    """The factors of a value with one element per key."""

    by_key: tuple[ir.Value, ...]
    by_query: tuple[Factor, ...] = ()
    "Factors that are the same for all keys."
    masks: tuple[ir.Value, ...] = ()
    "The conditions under which it is not zero."
    masked: tuple[ir.Value, ...] = ()
    "The factors in `by_key` that masks replace by zeros; the others are multiplied by zeros."
    masked_factors: bool = False
    "True if a mask also replaces factors in `by_query`."

    def times(self, product: _Product) -> _Product:
        """The product of both."""
        return _Product(
            (*self.by_key, *product.by_key),
            (*self.by_query, *product.by_query),
            (*self.masks, *product.masks),
            (*self.masked, *product.masked),
            self.masked_factors or product.masked_factors,
        )

    def kind(self, numbering: ValueNumbering, *excluded: ir.Value) -> object:
        """Equal for products that can replace each other for all keys, apart from the factors `excluded`."""
        factors = sorted(numbering.number(value) for value in self.by_key if value not in excluded)
        return factors, {numbering.number(mask) for mask in self.masks}


@dataclass(frozen=True)
class _Viewed:
    """A value whose dimension `dims[n]` is dimension `n` of another."""

    value: ir.Value
    dims: tuple[int, ...]


def softmax_grad_delta(op: ir.Operation, exponential: ir.Operation, keys: int, numbering: ValueNumbering) -> ir.Value | None:
    """A value equal to the sum `op` over keys, computed from an earlier result; None if there is none."""
    if not reduces(op, keys, "stablehlo.add") or not is_splat(op.operands[1], 0):
        return None
    product = _product(op.operands[0], keys)
    number = numbering.number(exponential.results[0])
    if number not in map(numbering.number, product.by_key):
        return None
    for gradients in product.by_key:
        for pair in _pairs(_viewed(gradients), op, numbering, product.kind(numbering, gradients), keys):
            order = _order(pair, keys)
            if order is not None:
                factors = _quotient(product.by_query, pair.by_query, numbering)
                if factors and (product.masked_factors or number in map(numbering.number, product.masked)):
                    continue  # without terms the sum is zero, which a factor of NaN, as 0 / 0, would turn to NaN
                _widen(gradients, pair.gradients)
                return _written(op, keys, pair, order, factors)
    return None


def _quotient(factors: Sequence[Factor], divisors: Sequence[Factor], numbering: ValueNumbering) -> list[Factor]:
    """The factors that remain of `factors` after dividing by `divisors`. Common ones cancel, as they may be zero or NaN."""
    remaining = list(factors)
    undone = []
    for by, factor in divisors:
        number = numbering.number(factor)
        common = next((pair for pair in remaining if pair[0] == by and numbering.number(pair[1]) == number), None)
        if common is None:
            undone.append((_INVERSE[by], factor))
        else:
            remaining.remove(common)
    return [*remaining, *undone]


def _product(value: ir.Value, keys: int) -> _Product:
    op = defining_op(value)
    if op is not None and op.name == _CONVERT:
        return _product(op.operands[0], keys)
    if op is not None and op.name == _SELECT and is_zero(op.operands[2]):
        inner = _product(op.operands[1], keys)
        masks = (op.operands[0], *inner.masks)
        return replace(inner, masks=masks, masked=inner.by_key, masked_factors=bool(inner.by_query))
    if op is None or op.name not in (_MULTIPLY, _DIVIDE) or (op.name == _DIVIDE and varies_along(op.operands[1], keys)):
        return _Product((value,))
    by = op.name.removeprefix("stablehlo.")
    product = _Product(())
    for side, operand in enumerate(op.operands):
        if varies_along(operand, keys):
            product = product.times(_product(operand, keys))
        else:
            product = product.times(_Product((), ((by if side else "multiply", operand),)))
    return product


def _viewed(value: ir.Value) -> _Viewed:
    """The value of which `value` is a conversion or transpose."""
    dims = tuple(range(len(shape_of(value))))
    while (op := defining_op(value)) is not None and op.name in (_CONVERT, TRANSPOSE):
        if op.name == TRANSPOSE:
            order = integers(op.attributes["permutation"])
            dims = tuple(order[dim] for dim in dims)
        value = op.operands[0]
    return _Viewed(value, dims)


@dataclass(frozen=True)
class _ProductPair:
    """The product that computes the gradients of weights, and the one that computes the weighted values."""

    gradients: ir.Operation
    gradient_dims: tuple[int, ...]
    "For each dimension of the exponentials, the dimension of the gradients."
    values: int
    "The operand of `gradients` that is the values."
    result: ir.Operation
    weights: _Viewed
    side: int
    "The operand of `result` that is the weights."
    by_query: tuple[Factor, ...]
    "The factors from exponentials to weights."


def _pairs(view: _Viewed, before: ir.Operation, numbering: ValueNumbering, kind: object, keys: int) -> Iterator[_ProductPair]:
    """The results before an operation whose values are those of the gradients."""
    product = defining_op(view.value)
    if product is None or product.name != DOT:
        return
    einsum = Einsum(product)
    loop = einsum.result_loops[view.dims[keys]]
    values = 0 if einsum.dim(0, loop) is not None else 1
    if einsum.dim(1 - values, loop) is not None:
        return
    wanted = numbering.number(product.operands[values])
    for op in (view.operation for view in before.block.operations):
        if op == before:
            return
        for side in (0, 1):
            if op.name == DOT and numbering.number(op.operands[1 - side]) == wanted:
                weights = _viewed(op.operands[side])
                factors = _product(weights.value, keys) if len(weights.dims) == len(view.dims) else _Product(())
                if factors.by_key and factors.kind(numbering) == kind:
                    yield _ProductPair(product, view.dims, values, op, weights, side, factors.by_query)


def _order(pair: _ProductPair, keys: int) -> list[int] | None:
    """For each dimension of the gradient, the dimension of the result; None if they do not correspond, or if the gradient lacks a
    dimension of the sum: a learned matrix that mixes the weights of heads has no queries."""
    back, forth = Einsum(pair.gradients), Einsum(pair.result)
    result_dims = {back.result_dim(loop) for loop in back.loops[1 - pair.values]}
    if not result_dims.issuperset(dim for number, dim in enumerate(pair.gradient_dims) if number != keys):
        return None
    order_by_dim: dict[int, int | None] = {}
    for dim, loop in enumerate(back.loops[1 - pair.values]):
        along_values = back.dim(pair.values, loop)
        result = back.result_dim(loop)
        loops = set()
        if along_values is not None:
            loops.add(forth.loops[1 - pair.side][along_values])
        if result is not None:
            loops.add(forth.loops[pair.side][pair.weights.dims.index(pair.gradient_dims.index(result))])
        order_by_dim[dim] = forth.result_dim(loops.pop()) if len(loops) == 1 else None
    own = back.loops[pair.values].index(back.result_loops[pair.gradient_dims[keys]])
    summed = forth.loops[1 - pair.side][own]
    order = [dim for dim in order_by_dim.values() if dim is not None]
    if sorted(order) != list(range(len(order_by_dim))) or forth.result_dim(summed) is not None:
        return None
    if summed != forth.loops[pair.side][pair.weights.dims.index(keys)] or len(forth.result_loops) != len(order):
        return None
    return order


def _unrounded(product: ir.Operation) -> ir.Value:
    """The result of `product` before rounding: the difference from gradients of weights is small."""
    builder, (rounded,) = Builder.before(product), product.results
    if sum_type(element_of(rounded)) == element_of(rounded):
        return rounded
    whole = builder.again(product, tensor(shape_of(rounded), sum_type(element_of(rounded))), list(product.operands))
    rounded.replace_all_uses_with(builder.convert(whole, element_of(rounded)))
    return whole


def _widen(value: ir.Value, product: ir.Operation) -> None:
    """Makes readers of `value`, a view of the result of `product`, in a wider element type read the unrounded result. If a query
    has one key, the sum is its only term, and a rounded term minus an exact sum would not be zero."""
    element = element_of(value)
    conversions = [
        op
        for use in value.uses
        if (op := use.owner.operation).name == _CONVERT and element_of(op.results[0]) == sum_type(element)
    ]
    if sum_type(element) == element or not conversions:
        return
    orders: list[list[int]] = []
    while (op := op_of(value)) != product:
        if op.name == TRANSPOSE:
            orders.insert(0, list(integers(op.attributes["permutation"])))
        value = op.operands[0]
    builder = Builder.after(product)
    whole = builder.again(product, tensor(shape_of(value), sum_type(element)), list(product.operands))
    for order in orders:
        whole = builder.transpose(whole, order)
    for op in conversions:
        op.results[0].replace_all_uses_with(whole)


def _written(op: ir.Operation, keys: int, pair: _ProductPair, order: list[int], factors: Sequence[Factor]) -> ir.Value:
    builder, back = Builder.before(op), Einsum(pair.gradients)
    gradient = pair.gradients.operands[1 - pair.values]
    element = sum_type(element_of(gradient))
    result = builder.transpose(builder.convert(_unrounded(pair.result), element), order)
    loops = back.loops[1 - pair.values]
    features = [dim for dim, loop in enumerate(loops) if back.result_dim(loop) is None]
    total = builder.reduce(builder.multiply(builder.convert(gradient, element), result), 0, features, "add")
    remaining_dims = [back.result_dim(loop) for dim, loop in enumerate(loops) if dim not in features]
    total = builder.transpose(
        total, [remaining_dims.index(dim) for number, dim in enumerate(pair.gradient_dims) if number != keys]
    )
    for by, factor in factors:
        row = BlockWriter(builder, op.block, 0, 1, {}).of(factor, keys)
        total = builder.elementwise(by, total, builder.convert(builder.reshape(row, shape_of(total)), element))
    return builder.convert(total, element_of(op.results[0]))
