"""Causal attention as a ring in which all devices compute equally many scores: half as many as without the mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import result_dim
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.overlap.attention.block_trace import Place
from meshbridge.overlap.attention.linear_reductions import LinearReduction
from meshbridge.overlap.attention.masked_blocks import hides_later_keys
from meshbridge.overlap.attention.online_softmax import OnlineSoftmax, Ring, SoFar
from meshbridge.overlap.attention.zigzag_layout import Half, Halves, QueryRows


@dataclass(frozen=True)
class Queries:
    """Where the queries of a softmax run along."""

    dims: Mapping[ir.Value, int]
    "That dimension of the exponentials, of what leads to their sums, of the sums and of the maxima."
    sources: tuple[Place, ...]
    "What holds something for each query, and is read whole for any key."


def causal_dims(scores: ir.Value, keys: int, axis: int, count: int, *, own: bool = False) -> Iterator[int]:
    """The dimensions of scores that `count` devices share along an axis of the mesh, and that may run over queries of which none
    sees a key of a later half of a device's share: half of the scores along `keys` need not be computed. With `own`, each
    sees its own key."""
    shape = shape_of(scores)
    for dim, size in enumerate(shape):
        shared = dim != keys and size % 2 == 0 and size * count == shape[keys]
        if shared and hides_later_keys(scores, dim, keys, axis, count, own=own):
            yield dim


def causal_queries(softmax: OnlineSoftmax) -> Queries | None:
    """The queries of a softmax of which `causal_dims` holds, if halves of them can be computed by themselves."""
    if len(softmax.largest_scores) != len(softmax.largest) or (softmax.largest and softmax.subtracted_maximum is None):
        return None
    dims = causal_dims(softmax.scores, softmax.keys, softmax.axis, softmax.count)
    return next((found for dim in dims if (found := _queries(softmax, dim)) is not None), None)


def ring_of(softmax: OnlineSoftmax, *, balance: bool) -> type[Ring]:
    """The kind of ring that a softmax becomes: a balanced one if that is asked for and can be."""
    return BalancedRing if balance and causal_queries(softmax) is not None else Ring


def _queries(softmax: OnlineSoftmax, dim: int) -> Queries | None:
    """They run along dimension `dim` of the scores."""
    dims: dict[ir.Value, int] = {softmax.exponential.results[0]: dim}
    places = []
    for op, along in softmax.largest:
        dims[op.results[0]] = dim - (dim > along)
    for each in softmax.sums:
        row: int | None = dim
        for step in each.steps:
            row = result_dim(step.op, step.side, row) if row is not None else None
            if row is not None:
                dims[step.op.results[0]] = row
        made = None if row is None else of_result(each, row)
        if row is None or made is None:
            return None
        dims[each.op.results[0]] = made
        places.append((each.op.operands[each.side], row, each.read))
    # By results: the hash of an operation changes with its operands.
    ends = {op.results[0] for op in (*(op for op, _ in softmax.largest), *(each.op for each in softmax.sums))}
    inside = {result for op in (*softmax.dead, *softmax.late) for result in op.results}
    rows = QueryRows(softmax.home, softmax.mesh.name, softmax.axis, inside, ends)
    return Queries(dims, tuple(rows.sources)) if all(rows.reach(*place) for place in places) else None


def of_result(each: LinearReduction, row: int) -> int | None:
    """The dimension of the sum that is dimension `row` of what it adds up, and of nothing that is multiplied with that."""
    if each.op.name != DOT:
        return row - (row > each.read)
    product = Einsum(each.op)
    loop = product.loops[each.side][row]
    return product.result_dim(loop) if product.dim(1 - each.side, loop) is None else None


class BalancedRing(Ring):
    """The steps of a softmax under a causal mask. The sequence has two halves for each device. By two permutes each way device i
    has the queries of half i and of half 2n - 1 - i instead of those of its own halves, and so with keys. Of the keys of device j
    the later queries see the earlier half; and the earlier queries do where j is before i, else the later queries see the later
    half: two products of halves, instead of four."""

    def __init__(self, softmax: OnlineSoftmax, emit: Builder) -> None:
        super().__init__(softmax, emit)
        queries = causal_queries(softmax)
        assert queries is not None
        self.queries = queries
        size = shape_of(softmax.scores)[softmax.keys] // (2 * softmax.count)
        self.halves = Halves(emit, softmax.mesh, softmax.axis, size)

    def run(self) -> SoFar:
        """All steps, and the results of the own queries."""
        emit, halves, gathers = self.emit, self.halves, self.softmax.gathers
        early, late = halves.dealt(self.queries.sources)
        dims = [AllGatherOp(op).gather_axis for op in gathers]
        keys = halves.dealt([(op.operands[0], dim) for op, dim in zip(gathers, dims, strict=True)])
        pairs = zip(keys[0].parts, keys[1].parts, dims, strict=True)
        shards = [emit.concatenate([first, last], dim) for first, last, dim in pairs]
        found: list[tuple[SoFar, SoFar]] = []
        for keeper, here in self.visits(halves.device, shards, lambda step: found[step][1].totals):
            first, last = halves.kept(keeper, here, dims)
            if found:
                found.append(self._stepped(*found[-1], keeper, (early, late), (first, last)))
            else:
                found.append((self._with(None, early, first), self._with(self._with(None, late, first), late, last)))
        return self._returned(*found[-1])

    def _stepped(
        self, early: SoFar, late: SoFar, keeper: ir.Value, queries: tuple[Half, Half], keys: tuple[Half, Half]
    ) -> tuple[SoFar, SoFar]:
        """With the shard of another device."""
        late = self._with(late, queries[1], keys[0])
        before = self.emit.compare("LT", keeper, self.halves.device)
        chosen = (self.halves.chosen(before, *each) for each in (queries, keys))
        found = self._with(self._either(before, early, late), *chosen)
        return self._either(before, found, early), self._either(before, late, found)

    def _either(self, condition: ir.Value, first: SoFar, last: SoFar) -> SoFar:
        maxima, totals = (
            {op: self.emit.select(condition, value, there[op]) for op, value in here.items()}
            for here, there in ((first.maxima, last.maxima), (first.totals, last.totals))
        )
        kept = {
            op: tuple(self.emit.select(condition, *pair) for pair in zip(values, last.kept[op], strict=True))
            for op, values in first.kept.items()
        }
        largest, centre = (
            self.emit.select(condition, *each) for each in ((first.largest, last.largest), (first.centre, last.centre))
        )
        return SoFar(largest, centre, maxima, totals, kept)

    def _returned(self, early: SoFar, late: SoFar) -> SoFar:
        """What was found for the queries of this device. All maxima are those of scores."""
        dims = self.queries.dims
        largest = self.halves.returned(early.largest, late.largest, dims[self.softmax.exponential.results[0]])
        maxima = {op: self.emit.reshape(largest, shape_of(op.results[0])) for op in early.maxima}
        totals = {op: self.halves.returned(value, late.totals[op], dims[op.results[0]]) for op, value in early.totals.items()}
        kept = {
            op: tuple(self.halves.returned(*pair, self._rows_of_terms(op)) for pair in zip(values, late.kept[op], strict=True))
            for op, values in early.kept.items()
        }
        return SoFar(largest, self.centred(largest), maxima, totals, kept)

    def _rows_of_terms(self, op: ir.Operation) -> int:
        """The dimension of what the sum `op` adds up that runs over queries."""
        (each,) = (each for each in self.softmax.sums if each.op == op)
        return self.queries.dims[each.op.operands[each.side]]

    def _with(self, before: SoFar | None, queries: Half, keys: Half) -> SoFar:
        """With what half of a shard of keys contributes to half of the queries."""
        emit, softmax, halves = self.emit, self.softmax, self.halves
        rows = halves.rows(softmax.home, self.queries.sources, queries)

        def written(op: ir.Operation) -> ir.Operation:
            return op_of(rows.of(op.results[0], self.queries.dims[op.results[0]]))

        sums = {
            each.op: replace(each, op=written(each.op), steps=tuple(replace(step, op=written(step.op)) for step in each.steps))
            for each in softmax.sums
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
                kept={sums[op].op: value for op, value in before.kept.items()},
            )
        found = Ring(part, emit).added(before, halves.start(keys), halves.size, keys.parts)
        return replace(
            found,
            maxima={op: found.maxima[copy] for op, copy in maxima.items()},
            totals={op: found.totals[each.op] for op, each in sums.items()},
            kept={op: found.kept[each.op] for op, each in sums.items()},
        )
