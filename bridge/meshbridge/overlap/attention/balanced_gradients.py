"""The backward pass of causal attention as a ring in which all devices compute equally many scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import REDUCE, RESHAPE, TRANSPOSE, operand_dims, result_dim
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.ops.linear import SCALE
from meshbridge.ops.reductions import is_sum
from meshbridge.overlap.attention.attention_gradients import AttentionGradients, GradientRing, part_of, reached_from
from meshbridge.overlap.attention.balanced_ring import causal_dims, of_result
from meshbridge.overlap.attention.block_trace import BlockWriter, ValueDim, producer
from meshbridge.overlap.attention.online_softmax import scores_of
from meshbridge.overlap.attention.zigzag_layout import Half, QueryRows, ZigzagExchange

_PASSED = (RESHAPE, TRANSPOSE, "stablehlo.convert", "stablehlo.negate", REDUCE)
_ADD = "stablehlo.add"


@dataclass(frozen=True)
class _Contraction:
    """An operation that sums over queries values computed from exponentials."""

    op: ir.Operation
    key: int
    "The dimension of keys of its result."
    rows_and_keys: tuple[tuple[int | None, int | None], ...]
    "The dimensions of queries and of keys of each operand."


@dataclass(frozen=True)
class GradientQueries:
    """The dimensions of queries in a backward pass."""

    contractions: tuple[_Contraction, ...]
    sums: Mapping[ir.Operation, int]
    "The dimension of queries of each gradient of queries."
    sources: tuple[ValueDim, ...]
    "Values with one element per query, which are read whole for any key."


def causal_gradients(attention: AttentionGradients) -> GradientQueries | None:
    """The queries of a backward pass, if a mask hides half of the scores of each device."""
    scores = scores_of(attention.exponential, attention.keys)[0]
    dims = causal_dims(scores, attention.keys, attention.axis, attention.count, own=True)
    return next((queries for dim in dims if (queries := _queries(attention, dim)) is not None), None)


def gradient_ring_of(attention: AttentionGradients, *, balance: bool) -> type[GradientRing]:
    """The kind of ring for a backward pass: balanced if `balance` is set and it is possible."""
    return BalancedGradients if balance and causal_gradients(attention) is not None else GradientRing


def _queries(attention: AttentionGradients, dim: int) -> GradientQueries | None:
    """The queries along dimension `dim` of the scores."""
    sums = {reduction.op: reduction for reduction in attention.ends.sums}
    rows_of_sums: dict[ir.Operation, int] = {}
    contractions: dict[ir.Operation, _Contraction] = {}
    trace = reached_from(attention.home, attention.ends)
    inside = {result for op, _ in trace.moving for result in op.results}
    rows = QueryRows(attention.home, attention.mesh.name, attention.axis, inside)
    visited: set[tuple[ir.Value, int, int]] = set()
    worklist = [(attention.exponential.results[0], dim, attention.keys)]
    while worklist:
        value, row, key = worklist.pop()
        if (value, row, key) in visited:
            continue
        visited.add((value, row, key))
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op.block != attention.home:
                continue
            if op in sums and side == sums[op].side:
                moved_dim = of_result(sums[op], row)
                if moved_dim is None or not rows.trace(value, row, key):
                    return None
                rows_of_sums[op] = moved_dim
            elif _adds_over(op, side, row):
                contraction = _contraction(op, side, row, key)
                if contraction is not None:
                    contractions[op] = contraction
            else:
                along = result_dim(op, side, row), result_dim(op, side, key)
                if along[0] is not None and along[1] is not None:
                    worklist.append((op.results[0], along[0], along[1]))
    used = [_contracted(end.op.operands[0], end.keys, contractions, attention.home) for end in attention.ends.partial]
    if None in used or rows_of_sums.keys() != sums.keys():
        return None
    chosen = tuple(contractions[op] for op in dict.fromkeys(op for ops in used for op in ops or ()))
    for contraction in chosen:
        for operand, (row_of, key_of) in zip(contraction.op.operands, contraction.rows_and_keys, strict=True):
            if row_of is not None and not rows.trace(operand, row_of, key_of):
                return None
    return GradientQueries(chosen, rows_of_sums, tuple(rows.sources))


def _adds_over(op: ir.Operation, side: int, dim: int) -> bool:
    """True if `op` sums its operand `side` along `dim`, and perhaps along others."""
    if op.name == DOT:
        product = Einsum(op)
        return product.result_dim(product.loops[side][dim]) is None
    return is_sum(op) and side == 0 and dim in integers(op.attributes["dimensions"])


def _contraction(op: ir.Operation, side: int, row: int, key: int) -> _Contraction | None:
    key_dim = result_dim(op, side, key)
    if key_dim is None:
        return None
    if op.name == REDUCE:
        return _Contraction(op, key_dim, ((row, key), (None, None)))
    product = Einsum(op)
    loops = product.loops[side][row], product.loops[side][key]
    return _Contraction(
        op, key_dim, tuple((product.dim(operand, loops[0]), product.dim(operand, loops[1])) for operand in (0, 1))
    )


def _contracted(
    value: ir.Value, dim: int, contractions: Mapping[ir.Operation, _Contraction], home: ir.Block
) -> list[ir.Operation] | None:
    """The contractions of which `value` is a linear function, with keys along dimension `dim`; None if there are others."""
    op = producer(value, home)
    if op is None:
        return None
    if op in contractions:
        return [op] if contractions[op].key == dim else None
    along = operand_dims(op, dim)
    if along is None:
        return None
    if op.name == _ADD:
        parts = [_contracted(operand, dim, contractions, home) for operand in op.operands]
        return None if any(part is None for part in parts) else [contraction for part in parts for contraction in part or ()]
    if op.name in SCALE and isinstance(known(op.operands[1]), Splat):
        return _contracted(op.operands[0], dim, contractions, home)
    if op.name not in _PASSED or along[0] is None:
        return None
    if op.name == REDUCE and not is_sum(op):
        return None
    return _contracted(op.operands[0], along[0], contractions, home)


@dataclass(frozen=True)
class _HalfBlock:
    """The contribution of half of the queries and half of a shard of keys."""

    partial: Mapping[ir.Operation, ir.Value]
    sums: Mapping[ir.Operation, ir.Value]


class BalancedGradients(GradientRing):
    """The steps of a backward pass under a causal mask, on halves as in `BalancedRing`."""

    def __init__(self, attention: AttentionGradients, travelling: Sequence[ir.Operation], builder: Builder) -> None:
        super().__init__(attention, travelling, builder)
        queries = causal_gradients(attention)
        assert queries is not None
        self.queries = queries
        size = shape_of(attention.exponential.results[0])[attention.keys] // (2 * attention.count)
        self.halves = ZigzagExchange(builder, attention.mesh, attention.axis, size)
        self.dims = [AllGatherOp(op).gather_axis for op in travelling]

    def run(self) -> dict[ir.Operation, ir.Value]:
        """The value of each end."""
        attention, builder, halves = self.attention, self.builder, self.halves
        queries = halves.exchanged(self.queries.sources)
        exchanged = halves.exchanged([(op.operands[0], dim) for op, dim in zip(self.travelling, self.dims, strict=True)])
        pairs = zip(exchanged[0].parts, exchanged[1].parts, self.dims, strict=True)
        home = [builder.concatenate([early, late], dim) for early, late, dim in pairs]
        shards, partial = home, dict[ir.Operation, ir.Value]()
        sums: tuple[Mapping[ir.Operation, ir.Value], ...] = ({}, {})
        for step in range(attention.count):
            own = step == attention.count - 1
            if own:
                shards = home
            else:
                waited = self.until({**partial, **sums[1]}, shards)
                shards = [self.shifted(value, op) for value, op in zip(waited, self.travelling, strict=True)]
            keeper = builder.elementwise("remainder", builder.add(halves.device, attention.count - 1 - step), attention.count)
            keys = halves.halves_of(keeper, shards, self.dims)
            parts, added = self._own(queries, keys) if own else self._other(keeper, queries, keys)
            for end in attention.ends.partial:
                part = builder.concatenate([parts[0][end.op], parts[1][end.op]], end.keys)
                partial[end.op] = builder.add(self.shifted(partial[end.op], end.op), part) if end.op in partial else part
            sums = tuple(self._sum(before, added_part) for before, added_part in zip(sums, added, strict=True))
        return self._returned(partial, *sums)

    def _own(
        self, queries: tuple[Half, Half], keys: tuple[Half, Half]
    ) -> tuple[tuple[Mapping[ir.Operation, ir.Value], ...], tuple[Mapping[ir.Operation, ir.Value], ...]]:
        """For the own keys: gradients of both halves of keys, and of both halves of queries."""
        pairs = ((1, 0), (1, 1), (0, 0))
        cross, late, early = (self._part(queries[row], keys[column]) for row, column in pairs)
        return (self._sum(cross.partial, early.partial), late.partial), (early.sums, self._sum(cross.sums, late.sums))

    def _other(
        self, keeper: ir.Value, queries: tuple[Half, Half], keys: tuple[Half, Half]
    ) -> tuple[tuple[Mapping[ir.Operation, ir.Value], ...], tuple[Mapping[ir.Operation, ir.Value], ...]]:
        """The same for the keys of another device."""
        halves = self.halves
        before = self.builder.compare("LT", keeper, halves.device)
        always = self._part(queries[1], keys[0])
        chosen = self._part(halves.select(before, *queries), halves.select(before, *keys))
        partial, sums = (self._where(before, values) for values in (chosen.partial, chosen.sums))
        return (self._sum(always.partial, partial[0]), partial[1]), (sums[0], self._sum(always.sums, sums[1]))

    def _where(
        self, condition: ir.Value, values: Mapping[ir.Operation, ir.Value]
    ) -> tuple[Mapping[ir.Operation, ir.Value], Mapping[ir.Operation, ir.Value]]:
        """The values where the condition holds, and where it does not, with zeros elsewhere."""
        builder = self.builder
        zeros = {op: builder.splat(value.type, 0) for op, value in values.items()}
        holds = {op: builder.select(condition, value, zeros[op]) for op, value in values.items()}
        return holds, {op: builder.select(condition, zeros[op], value) for op, value in values.items()}

    def _sum(
        self, totals: Mapping[ir.Operation, ir.Value], terms: Mapping[ir.Operation, ir.Value]
    ) -> Mapping[ir.Operation, ir.Value]:
        return {op: self.builder.add(totals[op], value) if op in totals else value for op, value in terms.items()}

    def _part(self, queries: Half, keys: Half) -> _HalfBlock:
        builder, attention, halves = self.builder, self.attention, self.halves
        rows = halves.rows(attention.home, self.queries.sources, queries)
        travelled = zip(self.travelling, self.dims, keys.parts, strict=True)
        blocks_at = {(op.results[0], dim): part for op, dim, part in travelled}
        blocks = BlockWriter(builder, attention.home, halves.start(keys), halves.size, blocks_at)
        contracted = {(end.op.results[0], end.key): self._contracted(end, rows, blocks) for end in self.queries.contractions}
        inner = blocks.knowing(contracted)
        partial = {
            end.op: builder.convert(inner.of(end.op.operands[0], end.keys), element_of(end.op.results[0]))
            for end in attention.ends.partial
        }
        sums = {}
        for end in attention.ends.sums:
            half = replace(end, op=op_of(rows.of(end.op.results[0], self.queries.sums[end.op])))
            sums[end.op] = part_of(builder, half, blocks)
        return _HalfBlock(partial, sums)

    def _contracted(self, contraction: _Contraction, rows: BlockWriter, blocks: BlockWriter) -> ir.Value:
        """The contribution of a block of queries and keys to a sum over queries."""
        operands = []
        for operand, (row, key) in zip(contraction.op.operands, contraction.rows_and_keys, strict=True):
            value = operand if row is None else rows.of(operand, row)
            operands.append(value if key is None else blocks.of(value, key))
        if contraction.op.name == REDUCE:
            return self.builder.reduce(operands[0], operands[1], list(integers(contraction.op.attributes["dimensions"])), "add")
        shape = shape_of(contraction.op.results[0])
        shape[contraction.key] = self.halves.size
        return self.builder.again(contraction.op, tensor(shape, element_of(contraction.op.results[0])), operands)

    def _returned(
        self,
        partial: Mapping[ir.Operation, ir.Value],
        early: Mapping[ir.Operation, ir.Value],
        late: Mapping[ir.Operation, ir.Value],
    ) -> dict[ir.Operation, ir.Value]:
        """The values of the ends, for the device's own keys and queries."""
        attention, builder, halves = self.attention, self.builder, self.halves
        result = {}
        for op, value in early.items():
            whole = halves.sent_back(value, late[op], self.queries.sums[op])
            result[op] = builder.convert(whole, element_of(op.results[0]))
        for gradient in attention.ends.partial:
            early_part, late_part = (
                builder.slice(partial[gradient.op], gradient.keys, at * halves.size, halves.size) for at in (0, 1)
            )
            whole = halves.sent_back(early_part, late_part, gradient.keys)
            result[gradient.op] = gradient.of_own_keys(
                whole, attention.mesh, attention.axis, Builder(gradient.op.location, builder.ip)
            )
        return result
