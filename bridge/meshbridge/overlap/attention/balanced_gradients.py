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
from meshbridge.overlap.attention.block_trace import BlockWriter, Place, producer
from meshbridge.overlap.attention.online_softmax import scores_of
from meshbridge.overlap.attention.zigzag_layout import Half, Halves, QueryRows

_PASSED = (RESHAPE, TRANSPOSE, "stablehlo.convert", "stablehlo.negate", REDUCE)
_ADD = "stablehlo.add"


@dataclass(frozen=True)
class _Contraction:
    """An operation that adds up over queries, of what is computed of exponentials."""

    op: ir.Operation
    key: int
    "The dimension of its result that runs over keys."
    places: tuple[tuple[int | None, int | None], ...]
    "The dimensions of each operand that run over queries and over keys."


@dataclass(frozen=True)
class GradientQueries:
    """Where the queries of a backward pass run along."""

    contractions: tuple[_Contraction, ...]
    sums: Mapping[ir.Operation, int]
    "That dimension of the gradients of queries."
    sources: tuple[Place, ...]
    "What holds something for each query, and is read whole for any key."


def causal_gradients(found: AttentionGradients) -> GradientQueries | None:
    """The queries of a backward pass, if half of the scores of a device need not be computed."""
    scores = scores_of(found.exponential, found.keys)[0]
    dims = causal_dims(scores, found.keys, found.axis, found.count, own=True)
    return next((queries for dim in dims if (queries := _queries(found, dim)) is not None), None)


def gradient_ring_of(found: AttentionGradients, *, balance: bool) -> type[GradientRing]:
    """The kind of ring that a backward pass becomes: a balanced one if that is asked for and can be."""
    return BalancedGradients if balance and causal_gradients(found) is not None else GradientRing


def _queries(found: AttentionGradients, dim: int) -> GradientQueries | None:
    """They run along dimension `dim` of the scores."""
    sums = {each.op: each for each in found.ends.sums}
    rows_of_sums: dict[ir.Operation, int] = {}
    contractions: dict[ir.Operation, _Contraction] = {}
    reached = reached_from(found.home, found.ends)
    inside = {result for op, _ in reached.moving for result in op.results}
    rows = QueryRows(found.home, found.mesh.name, found.axis, inside)
    seen: set[tuple[ir.Value, int, int]] = set()
    waiting = [(found.exponential.results[0], dim, found.keys)]
    while waiting:
        value, row, key = waiting.pop()
        if (value, row, key) in seen:
            continue
        seen.add((value, row, key))
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op.block != found.home:
                continue
            if op in sums and side == sums[op].side:
                made = of_result(sums[op], row)
                if made is None or not rows.reach(value, row, key):
                    return None
                rows_of_sums[op] = made
            elif _adds_over(op, side, row):
                contraction = _contraction(op, side, row, key)
                if contraction is not None:
                    contractions[op] = contraction
            else:
                along = result_dim(op, side, row), result_dim(op, side, key)
                if along[0] is not None and along[1] is not None:
                    waiting.append((op.results[0], along[0], along[1]))
    used = [_contracted(end.op.operands[0], end.keys, contractions, found.home) for end in found.ends.partial]
    if any(each is None for each in used) or rows_of_sums.keys() != sums.keys():
        return None
    chosen = tuple(contractions[op] for op in dict.fromkeys(op for each in used for op in each or ()))
    for each in chosen:
        for operand, (row_of, key_of) in zip(each.op.operands, each.places, strict=True):
            if row_of is not None and not rows.reach(operand, row_of, key_of):
                return None
    return GradientQueries(chosen, rows_of_sums, tuple(rows.sources))


def _adds_over(op: ir.Operation, side: int, dim: int) -> bool:
    """Whether `op` adds up its operand `side` along `dim`, and perhaps along others."""
    if op.name == DOT:
        product = Einsum(op)
        return product.result_dim(product.loops[side][dim]) is None
    return is_sum(op) and side == 0 and dim in integers(op.attributes["dimensions"])


def _contraction(op: ir.Operation, side: int, row: int, key: int) -> _Contraction | None:
    made = result_dim(op, side, key)
    if made is None:
        return None
    if op.name == REDUCE:
        return _Contraction(op, made, ((row, key), (None, None)))
    product = Einsum(op)
    loops = product.loops[side][row], product.loops[side][key]
    return _Contraction(op, made, tuple((product.dim(each, loops[0]), product.dim(each, loops[1])) for each in (0, 1)))


def _contracted(
    value: ir.Value, dim: int, contractions: Mapping[ir.Operation, _Contraction], home: ir.Block
) -> list[ir.Operation] | None:
    """The contractions of which `value` is a linear function, its dimension `dim` running over keys; None where it is none."""
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
        return None if any(part is None for part in parts) else [each for part in parts for each in part or ()]
    if op.name in SCALE and isinstance(known(op.operands[1]), Splat):
        return _contracted(op.operands[0], dim, contractions, home)
    if op.name not in _PASSED or along[0] is None:
        return None
    if op.name == REDUCE and not is_sum(op):
        return None
    return _contracted(op.operands[0], along[0], contractions, home)


@dataclass(frozen=True)
class _HalfBlock:
    """What half of the queries and half of a shard of keys contribute."""

    partial: Mapping[ir.Operation, ir.Value]
    sums: Mapping[ir.Operation, ir.Value]


class BalancedGradients(GradientRing):
    """The steps of a backward pass under a causal mask, of halves as those of `BalancedRing`."""

    def __init__(self, found: AttentionGradients, travelling: Sequence[ir.Operation], emit: Builder) -> None:
        super().__init__(found, travelling, emit)
        queries = causal_gradients(found)
        assert queries is not None
        self.queries = queries
        size = shape_of(found.exponential.results[0])[found.keys] // (2 * found.count)
        self.halves = Halves(emit, found.mesh, found.axis, size)
        self.dims = [AllGatherOp(op).gather_axis for op in travelling]

    def run(self) -> dict[ir.Operation, ir.Value]:
        """What each end gives."""
        found, emit, halves = self.found, self.emit, self.halves
        queries = halves.dealt(self.queries.sources)
        dealt = halves.dealt([(op.operands[0], dim) for op, dim in zip(self.travelling, self.dims, strict=True)])
        pairs = zip(dealt[0].parts, dealt[1].parts, self.dims, strict=True)
        home = [emit.concatenate([first, last], dim) for first, last, dim in pairs]
        shards, partial = home, dict[ir.Operation, ir.Value]()
        sums: tuple[Mapping[ir.Operation, ir.Value], ...] = ({}, {})
        for step in range(found.count):
            own = step == found.count - 1
            if own:
                shards = home
            else:
                held = self.until({**partial, **sums[1]}, shards)
                shards = [self.shifted(each, op) for each, op in zip(held, self.travelling, strict=True)]
            keeper = emit.elementwise("remainder", emit.add(halves.device, found.count - 1 - step), found.count)
            keys = halves.kept(keeper, shards, self.dims)
            parts, added = self._own(queries, keys) if own else self._other(keeper, queries, keys)
            for each in found.ends.partial:
                part = emit.concatenate([parts[0][each.op], parts[1][each.op]], each.keys)
                partial[each.op] = emit.add(self.shifted(partial[each.op], each.op), part) if each.op in partial else part
            sums = tuple(self._sum(before, more) for before, more in zip(sums, added, strict=True))
        return self._returned(partial, *sums)

    def _own(
        self, queries: tuple[Half, Half], keys: tuple[Half, Half]
    ) -> tuple[tuple[Mapping[ir.Operation, ir.Value], ...], tuple[Mapping[ir.Operation, ir.Value], ...]]:
        """Of the own keys: gradients of both halves of keys, and of both halves of queries."""
        first, last, early = self._part(queries[1], keys[0]), self._part(queries[1], keys[1]), self._part(queries[0], keys[0])
        return (self._sum(first.partial, early.partial), last.partial), (early.sums, self._sum(first.sums, last.sums))

    def _other(
        self, keeper: ir.Value, queries: tuple[Half, Half], keys: tuple[Half, Half]
    ) -> tuple[tuple[Mapping[ir.Operation, ir.Value], ...], tuple[Mapping[ir.Operation, ir.Value], ...]]:
        """Of those of another device."""
        halves = self.halves
        before = self.emit.compare("LT", keeper, halves.device)
        always = self._part(queries[1], keys[0])
        chosen = self._part(halves.chosen(before, *queries), halves.chosen(before, *keys))
        partial, sums = (self._where(before, each) for each in (chosen.partial, chosen.sums))
        return (self._sum(always.partial, partial[0]), partial[1]), (sums[0], self._sum(always.sums, sums[1]))

    def _where(
        self, condition: ir.Value, values: Mapping[ir.Operation, ir.Value]
    ) -> tuple[Mapping[ir.Operation, ir.Value], Mapping[ir.Operation, ir.Value]]:
        """Where the condition holds, and where it does not; zeros elsewhere."""
        emit = self.emit
        zeros = {op: emit.splat(value.type, 0) for op, value in values.items()}
        holds = {op: emit.select(condition, value, zeros[op]) for op, value in values.items()}
        return holds, {op: emit.select(condition, zeros[op], value) for op, value in values.items()}

    def _sum(
        self, first: Mapping[ir.Operation, ir.Value], last: Mapping[ir.Operation, ir.Value]
    ) -> Mapping[ir.Operation, ir.Value]:
        return {op: self.emit.add(first[op], value) if op in first else value for op, value in last.items()}

    def _part(self, queries: Half, keys: Half) -> _HalfBlock:
        emit, found, halves = self.emit, self.found, self.halves
        rows = halves.rows(found.home, self.queries.sources, queries)
        moved = zip(self.travelling, self.dims, keys.parts, strict=True)
        given = {(op.results[0], dim): part for op, dim, part in moved}
        blocks = BlockWriter(emit, found.home, halves.start(keys), halves.size, given)
        contracted = {(each.op.results[0], each.key): self._contracted(each, rows, blocks) for each in self.queries.contractions}
        inner = blocks.knowing(contracted)
        partial = {
            each.op: emit.convert(inner.of(each.op.operands[0], each.keys), element_of(each.op.results[0]))
            for each in found.ends.partial
        }
        sums = {}
        for each in found.ends.sums:
            half = replace(each, op=op_of(rows.of(each.op.results[0], self.queries.sums[each.op])))
            sums[each.op] = part_of(emit, half, blocks)
        return _HalfBlock(partial, sums)

    def _contracted(self, each: _Contraction, rows: BlockWriter, blocks: BlockWriter) -> ir.Value:
        """What the rows and the block contribute to what adds up over queries."""
        operands = []
        for operand, (row, key) in zip(each.op.operands, each.places, strict=True):
            value = operand if row is None else rows.of(operand, row)
            operands.append(value if key is None else blocks.of(value, key))
        if each.op.name == REDUCE:
            return self.emit.reduce(operands[0], operands[1], list(integers(each.op.attributes["dimensions"])), "add")
        shape = shape_of(each.op.results[0])
        shape[each.key] = self.halves.size
        return self.emit.again(each.op, tensor(shape, element_of(each.op.results[0])), operands)

    def _returned(
        self,
        partial: Mapping[ir.Operation, ir.Value],
        early: Mapping[ir.Operation, ir.Value],
        late: Mapping[ir.Operation, ir.Value],
    ) -> dict[ir.Operation, ir.Value]:
        """Of the own keys and queries, as the ends give it."""
        found, emit, halves = self.found, self.emit, self.halves
        result = {}
        for op, value in early.items():
            whole = halves.returned(value, late[op], self.queries.sums[op])
            result[op] = emit.convert(whole, element_of(op.results[0]))
        for each in found.ends.partial:
            first, last = (emit.slice(partial[each.op], each.keys, at * halves.size, halves.size) for at in (0, 1))
            whole = halves.returned(first, last, each.keys)
            result[each.op] = each.of_own_keys(whole, found.mesh, found.axis, Builder(each.op.location, emit.ip))
        return result
