"""Causal attention as a ring in which all devices compute equally many scores: half as many as without the mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import result_dim
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.overlap.attention.block_trace import ValueDim
from meshbridge.overlap.attention.linear_reductions import LinearReduction
from meshbridge.overlap.attention.masked_blocks import hides_later_keys
from meshbridge.overlap.attention.online_softmax import OnlineSoftmax, OnlineState, Ring
from meshbridge.overlap.attention.zigzag_layout import Half, QueryRows, ZigzagExchange


@dataclass(frozen=True)
class Queries:
    """The dimensions of queries of a softmax."""

    dims: Mapping[ir.Value, int]
    "The dimension of queries of the exponentials, the values on the path to their sums, the sums and the maxima."
    sources: tuple[ValueDim, ...]
    "Values with one element per query, which are read whole for any key."


def causal_dims(scores: ir.Value, keys: int, axis: int, count: int, *, own: bool = False) -> Iterator[int]:
    """The dimensions of scores, split over `count` devices along a mesh axis, that may be queries under a causal mask: no query
    sees a key of a later half shard, so half of the scores along `keys` are not needed. With `own`, each sees its own key."""
    shape = shape_of(scores)
    for dim, size in enumerate(shape):
        shared = dim != keys and size % 2 == 0 and size * count == shape[keys]
        if shared and hides_later_keys(scores, dim, keys, axis, count, own=own):
            yield dim


def causal_queries(softmax: OnlineSoftmax) -> Queries | None:
    """The queries of a softmax for which `causal_dims` holds, if halves of them can be computed separately."""
    if len(softmax.largest_scores) != len(softmax.largest) or (softmax.largest and softmax.subtracted_maximum is None):
        return None
    dims = causal_dims(softmax.scores, softmax.keys, softmax.axis, softmax.count)
    return next((queries for dim in dims if (queries := _queries(softmax, dim)) is not None), None)


def ring_of(softmax: OnlineSoftmax, *, balance: bool) -> type[Ring]:
    """The kind of ring for a softmax: balanced if `balance` is set and it is possible."""
    return BalancedRing if balance and causal_queries(softmax) is not None else Ring


def _queries(softmax: OnlineSoftmax, dim: int) -> Queries | None:
    """The queries along dimension `dim` of the scores."""
    dims: dict[ir.Value, int] = {softmax.exponential.results[0]: dim}
    summands = []
    for op, along in softmax.largest:
        dims[op.results[0]] = dim - (dim > along)
    for reduction in softmax.sums:
        row: int | None = dim
        for step in reduction.steps:
            row = result_dim(step.op, step.side, row) if row is not None else None
            if row is not None:
                dims[step.op.results[0]] = row
        moved_dim = None if row is None else of_result(reduction, row)
        if row is None or moved_dim is None:
            return None
        dims[reduction.op.results[0]] = moved_dim
        summands.append((reduction.op.operands[reduction.side], row, reduction.read))
    # by results, because the hash of an operation changes with its operands
    ends = {op.results[0] for op in (*(op for op, _ in softmax.largest), *(reduction.op for reduction in softmax.sums))}
    inside = {result for op in (*softmax.dead, *softmax.late) for result in op.results}
    rows = QueryRows(softmax.home, softmax.mesh.name, softmax.axis, inside, ends)
    return Queries(dims, tuple(rows.sources)) if all(rows.trace(*summand) for summand in summands) else None


def of_result(reduction: LinearReduction, row: int) -> int | None:
    """The dimension of the sum that corresponds to dimension `row` of its operand; None if a factor has that dimension too."""
    if reduction.op.name != DOT:
        return row - (row > reduction.read)
    product = Einsum(reduction.op)
    loop = product.loops[reduction.side][row]
    return product.result_dim(loop) if product.dim(1 - reduction.side, loop) is None else None


class BalancedRing(Ring):
    """The steps of a softmax under a causal mask. The sequence has two halves per device. Two permutes each way give device i the
    queries and keys of halves i and 2n - 1 - i. For the keys of device j, the later queries see the earlier half; if j < i the
    earlier queries see it too, and if j > i the later queries see the later half: two products of halves, instead of four."""

    def __init__(self, softmax: OnlineSoftmax, builder: Builder) -> None:
        super().__init__(softmax, builder)
        queries = causal_queries(softmax)
        assert queries is not None
        self.queries = queries
        size = shape_of(softmax.scores)[softmax.keys] // (2 * softmax.count)
        self.halves = ZigzagExchange(builder, softmax.mesh, softmax.axis, size)

    def run(self) -> OnlineState:
        """All steps, and the results for the own queries."""
        builder, halves, gathers = self.builder, self.halves, self.softmax.gathers
        early, late = halves.exchanged(self.queries.sources)
        dims = [AllGatherOp(op).gather_axis for op in gathers]
        keys = halves.exchanged([(op.operands[0], dim) for op, dim in zip(gathers, dims, strict=True)])
        pairs = zip(keys[0].parts, keys[1].parts, dims, strict=True)
        shards = [builder.concatenate([early_keys, late_keys], dim) for early_keys, late_keys, dim in pairs]
        states: list[tuple[OnlineState, OnlineState]] = []
        for keeper, blocks in self.visits(halves.device, shards, lambda step: states[step][1].totals):
            early_keys, late_keys = halves.halves_of(keeper, blocks, dims)
            if states:
                states.append(self._stepped(*states[-1], keeper, (early, late), (early_keys, late_keys)))
            else:
                states.append(
                    (self._with(None, early, early_keys), self._with(self._with(None, late, early_keys), late, late_keys))
                )
        return self._returned(*states[-1])

    def _stepped(
        self,
        early: OnlineState,
        late: OnlineState,
        keeper: ir.Value,
        queries: tuple[Half, Half],
        keys: tuple[Half, Half],
    ) -> tuple[OnlineState, OnlineState]:
        """The state after the shard of another device."""
        late = self._with(late, queries[1], keys[0])
        before = self.builder.compare("LT", keeper, self.halves.device)
        chosen = (self.halves.select(before, *choices) for choices in (queries, keys))
        state = self._with(self._either(before, early, late), *chosen)
        return self._either(before, state, early), self._either(before, late, state)

    def _either(self, condition: ir.Value, state: OnlineState, alternative: OnlineState) -> OnlineState:
        maxima, totals = (
            {op: self.builder.select(condition, value, alternatives[op]) for op, value in values.items()}
            for values, alternatives in ((state.maxima, alternative.maxima), (state.totals, alternative.totals))
        )
        keeps_any = {
            op: tuple(self.builder.select(condition, *pair) for pair in zip(values, alternative.keeps_any[op], strict=True))
            for op, values in state.keeps_any.items()
        }
        largest, centre = (
            self.builder.select(condition, *pair)
            for pair in ((state.largest, alternative.largest), (state.centre, alternative.centre))
        )
        return OnlineState(largest, centre, maxima, totals, keeps_any)

    def _returned(self, early: OnlineState, late: OnlineState) -> OnlineState:
        """The results for the queries of this device. All maxima are maxima of scores."""
        dims = self.queries.dims
        largest = self.halves.sent_back(early.largest, late.largest, dims[self.softmax.exponential.results[0]])
        maxima = {op: self.builder.reshape(largest, shape_of(op.results[0])) for op in early.maxima}
        totals = {op: self.halves.sent_back(value, late.totals[op], dims[op.results[0]]) for op, value in early.totals.items()}
        keeps_any = {
            op: tuple(
                self.halves.sent_back(*pair, self._rows_of_terms(op)) for pair in zip(values, late.keeps_any[op], strict=True)
            )
            for op, values in early.keeps_any.items()
        }
        return OnlineState(largest, self.centred(largest), maxima, totals, keeps_any)

    def _rows_of_terms(self, op: ir.Operation) -> int:
        """The dimension of queries of the operand of the sum `op`."""
        (reduction,) = (reduction for reduction in self.softmax.sums if reduction.op == op)
        return self.queries.dims[reduction.op.operands[reduction.side]]

    def _with(self, before: OnlineState | None, queries: Half, keys: Half) -> OnlineState:
        """The state after half of a shard of keys, for half of the queries."""
        builder, softmax, halves = self.builder, self.softmax, self.halves
        rows = halves.rows(softmax.home, self.queries.sources, queries)

        def written(op: ir.Operation) -> ir.Operation:
            return op_of(rows.of(op.results[0], self.queries.dims[op.results[0]]))

        sums = {
            reduction.op: replace(
                reduction, op=written(reduction.op), steps=tuple(replace(step, op=written(step.op)) for step in reduction.steps)
            )
            for reduction in softmax.sums
        }
        maxima = {op: written(op) for op, _ in softmax.largest}
        part = replace(
            softmax,
            exponential=written(softmax.exponential),
            sums=tuple(sums.values()),
            largest=tuple((maxima[op], dim) for op, dim in softmax.largest),
            dead=frozenset(),
        )
        if before is not None:
            before = replace(
                before,
                maxima={maxima[op]: value for op, value in before.maxima.items()},
                totals={sums[op].op: value for op, value in before.totals.items()},
                keeps_any={sums[op].op: value for op, value in before.keeps_any.items()},
            )
        state = Ring(part, builder).added(before, halves.start(keys), halves.size, keys.parts)
        return replace(
            state,
            maxima={op: state.maxima[copy] for op, copy in maxima.items()},
            totals={op: state.totals[reduction.op] for op, reduction in sums.items()},
            keeps_any={op: state.keeps_any[reduction.op] for op, reduction in sums.items()},
        )
