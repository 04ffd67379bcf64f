"""The sum over keys of weights times their gradients (FlashAttention's D), from the result of the forward pass and its gradient.

weights = exponentials * a;  result = dot_general(weights, v);  gradients = dot_general(g, v)
sum over keys (exponentials * b * gradients)  =  sum over features (g * result) * b / a

Masks and factors for each key, as dropout has them, must be those of the weights.
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
from meshbridge.overlap.attention.online_softmax import wider
from meshbridge.overlap.attention.value_numbering import ValueNumbering

_CONVERT = "stablehlo.convert"
_MULTIPLY = "stablehlo.multiply"
_DIVIDE = "stablehlo.divide"
_SELECT = "stablehlo.select"
_INVERSE = {"multiply": "divide", "divide": "multiply"}

Factor = tuple[str, ir.Value]
"""Whether a number for each query multiplies or divides, and that number."""


@dataclass(frozen=True)
class _Product:
    """Factors of a value that has one element for each key."""

    by_key: tuple[ir.Value, ...]
    by_query: tuple[Factor, ...] = ()
    "What multiplies or divides alike for all keys."
    masks: tuple[ir.Value, ...] = ()
    "Where it is not zero."
    masked: tuple[ir.Value, ...] = ()
    "Those of `by_key` that are replaced by zeros elsewhere; of the others zeros are multiplied."
    masked_factors: bool = False
    "Whether any of `by_query` is replaced likewise."

    def times(self, other: _Product) -> _Product:
        """The product of both."""
        return _Product(
            (*self.by_key, *other.by_key),
            (*self.by_query, *other.by_query),
            (*self.masks, *other.masks),
            (*self.masked, *other.masked),
            self.masked_factors or other.masked_factors,
        )

    def kind(self, twins: ValueNumbering, *but: ir.Value) -> object:
        """What products have in common of which one may stand for the other for all keys, factors `but` aside."""
        factors = sorted(twins.number(value) for value in self.by_key if value not in but)
        return factors, {twins.number(mask) for mask in self.masks}


@dataclass(frozen=True)
class _Viewed:
    """A value whose dimension `dims[n]` is dimension `n` of another."""

    value: ir.Value
    dims: tuple[int, ...]


def row_sum(op: ir.Operation, exponential: ir.Operation, keys: int, twins: ValueNumbering) -> ir.Value | None:
    """What equals the sum `op` over keys, of a result that is there before it; None where there is no such result."""
    if not reduces(op, keys, "stablehlo.add") or not is_splat(op.operands[1], 0):
        return None
    product = _product(op.operands[0], keys)
    number = twins.number(exponential.results[0])
    if number not in map(twins.number, product.by_key):
        return None
    for gradients in product.by_key:
        for pair in _pairs(_behind(gradients), op, twins, product.kind(twins, gradients), keys):
            order = _order(pair, keys)
            if order is not None:
                factors = _quotient(product.by_query, pair.by_query, twins)
                if factors and (product.masked_factors or number in map(twins.number, product.masked)):
                    continue  # where no term is kept the sum is zero, and a factor of NaN, as 0 / 0, would turn it to NaN
                _widen(gradients, pair.gradients)
                return _written(op, keys, pair, order, factors)
    return None


def _quotient(factors: Sequence[Factor], others: Sequence[Factor], twins: ValueNumbering) -> list[Factor]:
    """What is left of `factors` once it is divided by `others`. Those on both sides cancel: they may be zero or NaN."""
    left = list(factors)
    undone = []
    for by, factor in others:
        same = next((each for each in left if each[0] == by and twins.number(each[1]) == twins.number(factor)), None)
        if same is None:
            undone.append((_INVERSE[by], factor))
        else:
            left.remove(same)
    return [*left, *undone]


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


def _behind(value: ir.Value) -> _Viewed:
    """What `value` shows in another element type, or with its dimensions in another order."""
    dims = tuple(range(len(shape_of(value))))
    while (op := defining_op(value)) is not None and op.name in (_CONVERT, TRANSPOSE):
        if op.name == TRANSPOSE:
            order = integers(op.attributes["permutation"])
            dims = tuple(order[dim] for dim in dims)
        value = op.operands[0]
    return _Viewed(value, dims)


@dataclass(frozen=True)
class _ProductPair:
    """A product that gives gradients of weights, and one that gives the weighted values."""

    gradients: ir.Operation
    gradient_dims: tuple[int, ...]
    "The dimension of the gradients that is each dimension of the exponentials."
    values: int
    "Which operand of `gradients` the values are."
    result: ir.Operation
    weights: _Viewed
    side: int
    "Which operand of `result` the weights are."
    by_query: tuple[Factor, ...]
    "What the exponentials are multiplied with or divided by to be weights."


def _pairs(view: _Viewed, before: ir.Operation, twins: ValueNumbering, kind: object, keys: int) -> Iterator[_ProductPair]:
    """The results that stand before an operation, of the same values as the gradients."""
    product = defining_op(view.value)
    if product is None or product.name != DOT:
        return
    einsum = Einsum(product)
    loop = einsum.result_loops[view.dims[keys]]
    values = 0 if einsum.dim(0, loop) is not None else 1
    if einsum.dim(1 - values, loop) is not None:
        return
    wanted = twins.number(product.operands[values])
    for op in (each.operation for each in before.block.operations):
        if op == before:
            return
        for side in (0, 1):
            if op.name == DOT and twins.number(op.operands[1 - side]) == wanted:
                weights = _behind(op.operands[side])
                factors = _product(weights.value, keys) if len(weights.dims) == len(view.dims) else _Product(())
                if factors.by_key and factors.kind(twins) == kind:
                    yield _ProductPair(product, view.dims, values, op, weights, side, factors.by_query)


def _order(pair: _ProductPair, keys: int) -> list[int] | None:
    """The dimension of the result that is each dimension of its gradient; None where they are not of one kind, or the gradient
    lacks a dimension of the sum, as a learned matrix by which heads mix their weights does: it has no queries."""
    back, forth = Einsum(pair.gradients), Einsum(pair.result)
    held = {back.result_dim(loop) for loop in back.loops[1 - pair.values]}
    if not held.issuperset(dim for number, dim in enumerate(pair.gradient_dims) if number != keys):
        return None
    found: dict[int, int | None] = {}
    for dim, loop in enumerate(back.loops[1 - pair.values]):
        along_values = back.dim(pair.values, loop)
        result = back.result_dim(loop)
        loops = set()
        if along_values is not None:
            loops.add(forth.loops[1 - pair.side][along_values])
        if result is not None:
            loops.add(forth.loops[pair.side][pair.weights.dims.index(pair.gradient_dims.index(result))])
        found[dim] = forth.result_dim(loops.pop()) if len(loops) == 1 else None
    own = back.loops[pair.values].index(back.result_loops[pair.gradient_dims[keys]])
    summed = forth.loops[1 - pair.side][own]
    order = [each for each in found.values() if each is not None]
    if sorted(order) != list(range(len(found))) or forth.result_dim(summed) is not None:
        return None
    if summed != forth.loops[pair.side][pair.weights.dims.index(keys)] or len(forth.result_loops) != len(order):
        return None
    return order


def _unrounded(product: ir.Operation) -> ir.Value:
    """The result of `product` as it is added up: what is subtracted from gradients of weights is larger than what is left."""
    emit, (rounded,) = Builder.before(product), product.results
    if wider(element_of(rounded)) == element_of(rounded):
        return rounded
    whole = emit.again(product, tensor(shape_of(rounded), wider(element_of(rounded))), list(product.operands))
    rounded.replace_all_uses_with(emit.convert(whole, element_of(rounded)))
    return whole


def _widen(value: ir.Value, product: ir.Operation) -> None:
    """Lets what reads `value`, which shows the result of `product`, in a wider element type read it as it is added up. Where a
    query has one key the sum is its only term, and of rounded terms and an exact sum something would be left."""
    element = element_of(value)
    wide = [
        op for use in value.uses if (op := use.owner.operation).name == _CONVERT and element_of(op.results[0]) == wider(element)
    ]
    if wider(element) == element or not wide:
        return
    orders: list[list[int]] = []
    while (op := op_of(value)) != product:
        if op.name == TRANSPOSE:
            orders.insert(0, list(integers(op.attributes["permutation"])))
        value = op.operands[0]
    emit = Builder.after(product)
    whole = emit.again(product, tensor(shape_of(value), wider(element)), list(product.operands))
    for order in orders:
        whole = emit.transpose(whole, order)
    for op in wide:
        op.results[0].replace_all_uses_with(whole)


def _written(op: ir.Operation, keys: int, pair: _ProductPair, order: list[int], factors: Sequence[Factor]) -> ir.Value:
    emit, back = Builder.before(op), Einsum(pair.gradients)
    gradient = pair.gradients.operands[1 - pair.values]
    element = wider(element_of(gradient))
    result = emit.transpose(emit.convert(_unrounded(pair.result), element), order)
    loops = back.loops[1 - pair.values]
    features = [dim for dim, loop in enumerate(loops) if back.result_dim(loop) is None]
    total = emit.reduce(emit.multiply(emit.convert(gradient, element), result), 0, features, "add")
    kept = [back.result_dim(loop) for dim, loop in enumerate(loops) if dim not in features]
    total = emit.transpose(total, [kept.index(dim) for number, dim in enumerate(pair.gradient_dims) if number != keys])
    for by, factor in factors:
        one = BlockWriter(emit, op.block, 0, 1, {}).of(factor, keys)
        total = emit.elementwise(by, total, emit.convert(emit.reshape(one, shape_of(total)), element))
    return emit.convert(total, element_of(op.results[0]))
