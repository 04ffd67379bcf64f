"""`keep-schedule`: pins collectives to the predicted order with optimization barriers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import inf
from operator import or_
from typing import ClassVar

from meshbridge.cost.collective_ops import issued_kind
from meshbridge.cost.objective import COMBINED_BYTES
from meshbridge.cost.step import OpRun, collective_times, runs
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, MeshError, ancestor_in, ir, walk
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.ops.composites import CONTRACTIONS
from meshbridge.ops.traits import Trait, ops_with

_FUSED = ops_with(Trait.FUSIBLE, Trait.ALIASING)
"""What compilers may compute with a product."""


@register
@dataclass(frozen=True)
class KeepSchedule(Pass):
    """Lets what the predicted schedule begins after a reduction of gradients wait for it, and what reads an awaited reduction for
    the gradients' products that run beside it; or, of TPUs, an exchange for the gather that its reader waits for, too.

    Input:   %1 = stablehlo.dot_general %cotangent, %w                    // the layer before waits for it
             %2 = mesh.all_reduce %1 on @m mesh_axes = [0]
             %3 = stablehlo.dot_general %x, %cotangent                    // nothing but the update waits for it
             %4 = mesh.all_reduce %3 on @m mesh_axes = [1]
    Output:  %1 = stablehlo.dot_general %cotangent, %w
             %3 = stablehlo.dot_general %x, %cotangent
             %4 = mesh.all_reduce %3 on @m mesh_axes = [1]
             %begun, %_ = stablehlo.optimization_barrier %1, %4           // where the schedule begins %4 before %2
             %2 = mesh.all_reduce %begun on @m mesh_axes = [0]

    or       %2 = mesh.all_reduce %1 on @m mesh_axes = [0]
             %awaited, %_ = stablehlo.optimization_barrier %2, %3         // where it runs %3 beside %2
             %4 = mesh.all_reduce %3 on @m mesh_axes = [1]

    Input:   %1 = mesh.all_to_all (what products compute)
             %2 = mesh.all_gather %shard
             %3 = stablehlo.dot_general %1, %2
    Output:  %2 = mesh.all_gather %shard
             %begun, %gathered = stablehlo.optimization_barrier (what products compute), %2
             %1 = mesh.all_to_all %begun                                  // where the schedule ends %2 before it
             %3 = stablehlo.dot_general %1, %gathered

    XLA:GPU schedules backwards from the end, so that it begins as late as it can what no product waits for, *late* collectives,
    and runs late products, those of gradients, beside whichever of these comes last. Gathers of what no product computes, *early*
    ones, are best begun so, and stay free. Within loops only late collectives wait, for one another: what a trip awaits XLA:GPU
    runs beside what it moves there from another trip. What is tied has a size at which no compiler joins it with another.

    XLA:TPU gathers on the SparseCores, one value after the other, and begins that as late as it can, within loops and without:
    beside the exchange whose result the same product reads, with nothing else beside both. So that exchange, a collective of what
    products compute, waits for the early gather, which has the products before to hide behind; or, where there is little, the
    exchange before it does, if it has more computation before it. What is gathered for the next trip of a loop ends before the
    last exchange of this one.
    """

    name: ClassVar[str] = "keep-schedule"
    target: CompileTarget | None = None
    "The device whose schedule is predicted; without one nothing is."
    least: int = int(COMBINED_BYTES / 2)
    "Bytes of the smallest collective that is tied: compilers join smaller ones, which must not need one another."

    def run(self, module: ir.Module) -> bool:
        if self.target is None:
            return False
        with module.context:
            machine = self.target.device
            try:
                times = collective_times(module, self.target)
                scheduled = runs(module, self.target, times)
            except MeshError:  # nothing says when what runs; the report says what its prediction stumbles over
                return False
            large: dict[ir.Block, list[ir.Operation]] = {}
            for op in times:
                if op in scheduled and issued_kind(op) in machine.async_collectives and _size(op) >= self.least:
                    large.setdefault(op.block, []).append(op)
            blocks = [_ScheduledBlock(block, scheduled, found, machine.late_scheduled, times) for block, found in large.items()]
            return sum(block.tie() for block in blocks) > 0


def _size(collective: ir.Operation) -> float:
    return max(map(tensor_bytes, (*collective.operands, *collective.results)))


@dataclass(frozen=True)
class _Tie:
    """Uses of a value that are to wait for another one."""

    uses: tuple[tuple[ir.Operation, int], ...]
    "Operations, and the numbers of their operands."
    awaited: ir.Value
    collective: ir.Operation
    "What waits, or what is read there."
    behind: tuple[tuple[ir.Operation, int], ...] = ()
    "Uses of the awaited value that are to stand behind the barrier: XLA:TPU takes out of one what nothing reads."


class _ScheduledBlock:
    """The operations of a block, what waits for what among them, and when they run."""

    def __init__(
        self,
        block: ir.Block,
        scheduled: Mapping[ir.Operation, OpRun],
        large: Sequence[ir.Operation],
        late_scheduled: str,
        collectives: Container[ir.Operation],
    ) -> None:
        self.block = block
        self.collectives = collectives
        self.late_scheduled = late_scheduled
        self._is_body = block.owner.operation.name == "stablehlo.while"
        self.operations = [view.operation for view in block.operations]
        self.runs = {op: scheduled[op] for op in self.operations if op in scheduled and op.name != BARRIER}
        self.large = sorted(large, key=lambda op: self.runs[op].start)
        self._awaited = self._awaited_by_products()
        self._behind_products = self._computed_behind_products()
        late = (op for op in self.runs if op.name in CONTRACTIONS and self._late(op))
        self._late_products = sorted(late, key=lambda op: self.runs[op].start)
        self._bits = {op: 1 << number for number, op in enumerate((*self.large, *self._late_products))}
        self._before = self._awaited_by_each()
        self._ready = self._all_is_there()
        self._tied: dict[int, int] = {}
        "By a collective's bit, what its readers wait for by the ties so far, or it itself."

    def tie(self) -> int:
        """Puts in the barriers, and says how many."""
        found = self._gathered() if self.late_scheduled == "gathers" else (*self._in_order(), *self._beside())
        together: dict[tuple[tuple[ir.Operation, int], ...], list[_Tie]] = {}
        for tie in found:
            if self._may_wait(tie):
                together.setdefault(tie.uses, []).append(tie)
        for uses, ties in together.items():
            (first, number), *_ = uses
            values = [first.operands[number], *(tie.awaited for tie in ties)]
            at = Builder.after(op_of(ties[-1].awaited))
            handed_on = at.op(BARRIER, [value.type for value in values], values).results
            for tie, gathered in zip(ties, [*handed_on][1:], strict=True):
                for user, place in tie.behind:
                    user.operands[place] = gathered
            for user, place in uses:
                user.operands[place] = handed_on[0]
        if together:
            _sort(self.block)
        return len(together)

    def _may_wait(self, tie: _Tie) -> bool:
        """Whether what is awaited does not wait for the collective, by earlier ties neither; notes the tie if so. Otherwise some
        ties, or one and the barriers that are there already, may be a circle."""
        bit, awaited = self._bits[tie.collective], self._with_ties(self._before[op_of(tie.awaited)])
        if awaited & bit:
            return False
        self._tied[bit] = self._with_ties(self._tied.pop(bit, 0) | awaited)
        return True

    def _with_ties(self, left: int) -> int:
        """Those bits, and those of what they wait for by ties: at most these, as if all that reads a tied collective waited.
        What was noted last mostly holds all that was noted before."""
        found, tied = left, sum(self._tied)
        while left := left & tied:
            later = 0
            for bit in reversed(self._tied):
                if bit & left:
                    break
                later |= bit
            awaited = self._tied[bit]
            left = (left & ~awaited & ~bit) | (awaited & later & ~found)
            found |= awaited
        return found

    def _in_order(self) -> Iterator[_Tie]:
        """Collectives that wait for a late one before them: another late one, or one that could not begin before that ends."""
        first: ir.Operation | None = None
        for second in self.large:
            if first is not None and not self._early(second) and not self._waits(second, first):
                is_free = not self._is_body and _span(self.runs[first])[1] <= self._ready[second]
                if is_free or self._late(second):
                    yield _Tie(((second, 0),), first.results[0], second)
            if self._late(second):
                first = second

    def _beside(self) -> Iterator[_Tie]:
        """Readers of collectives, neither late nor early, that wait for late products beside them."""
        needed = self._needed()
        for op in self.large if not self._is_body else ():
            if self._late(op) or self._early(op):
                continue
            uses: dict[ir.Operation, list[tuple[ir.Operation, int]]] = {}
            for use in op.results[0].uses:
                reader = ancestor_in(self.block, use.owner.operation)
                until = inf if reader is None else needed[reader]
                product = self._last_beside(op, until) if until < inf else None
                if reader is not None and product is not None and not self._waits(reader, product):
                    uses.setdefault(product, []).append((use.owner.operation, use.operand_number))
            yield from (_Tie(tuple(found), self._end(product), op) for product, found in uses.items())

    def _gathered(self) -> Iterator[_Tie]:
        """Exchanges, collectives of what products compute, that wait for early gathers: for one that a product reads beside what
        an exchange gives, this waits, or the one before it, if more is computed before that. What is gathered is held until it is
        read, so that gathers go no further up."""
        exchanges = [op for op in self.large if not self._early(op)]
        left = dict(zip(exchanges, self._computed_before(exchanges), strict=True))
        earlier = dict(pairwise(reversed(exchanges)))
        tied: set[ir.Operation] = set()
        for op, gather in (*self._read_beside(exchanges), *self._ahead(exchanges)):
            near = (op, earlier[op]) if op in earlier and self._waits(op, earlier[op]) else (op,)
            begun = [each for each in near if gather not in tied and self._may_follow(each, gather)]
            if begun:
                chosen = max(begun, key=left.__getitem__)
                left[chosen] -= self.runs[gather].seconds
                tied.add(gather)
                uses = ((use.owner.operation, use.operand_number) for use in gather.results[0].uses)
                behind = ((user, place) for user, place in uses if self._is_behind(user, chosen))
                yield _Tie(((chosen, 0),), gather.results[0], chosen, tuple(behind))

    def _may_follow(self, exchange: ir.Operation, gather: ir.Operation) -> bool:
        """Whether, by the schedule, the gather ends before the exchange, and does not wait for it, nor a product for the gather
        that runs before."""
        begins = self.runs[exchange].start
        readers = (ancestor_in(self.block, use.owner.operation) for use in gather.results[0].uses)
        is_read = any(op in self.runs and op.name in CONTRACTIONS and self.runs[op].start < begins for op in readers)
        return _span(self.runs[gather])[1] <= begins and not self._waits(gather, exchange) and not is_read

    def _computed_before(self, exchanges: Sequence[ir.Operation]) -> list[float]:
        """The seconds of what is computed before each of them, and not before another of them; loops apart."""
        starts = [self.runs[op].start for op in exchanges]
        found = [0.0] * (len(exchanges) + 1)
        for op, run in self.runs.items():
            if op not in self.collectives and op.name not in REGION_OPS:
                found[bisect_right(starts, run.start)] += run.seconds
        return found[:-1]

    def _read_beside(self, exchanges: Sequence[ir.Operation]) -> Iterator[tuple[ir.Operation, ir.Operation]]:
        """The early gathers whose results, arranged anyhow, products read beside that of an exchange, as the products run; each
        with the last such exchange: a residual stream is made of many."""
        large = {op: self._bits[op] for op in self.large}
        arranged: dict[ir.Value, int] = {}
        "The bits of the large collectives whose results make up a value."
        for op in self.operations:
            if op in large:
                arranged[op.results[0]] = large[op]
            elif op.name == BARRIER:
                arranged.update(zip(op.results, (arranged.get(value, 0) for value in op.operands), strict=True))
            elif op.name in _FUSED:
                arranged.update(dict.fromkeys(op.results, _union(arranged.get(value, 0) for value in op.operands)))
        gathers = _union(large[op] for op in self._early_gathers())
        exchanged = _union(large[op] for op in exchanges)
        for product in sorted((op for op in self.runs if op.name in CONTRACTIONS), key=lambda op: self.runs[op].start):
            read = _union(arranged.get(value, 0) for value in product.operands)
            if last := (read & exchanged).bit_length():
                yield from ((self.large[last - 1], gather) for gather in self._of(read & gathers))

    def _ahead(self, exchanges: Sequence[ir.Operation]) -> Iterator[tuple[ir.Operation, ir.Operation]]:
        """The early gathers of a loop's body that nothing but the next trip reads, each with the last exchange of the trip:
        behind that there is little left to hide anything."""
        if self._is_body and exchanges:
            for op in self._early_gathers():
                if all(use.owner.operation == self.operations[-1] for use in op.results[0].uses):
                    yield exchanges[-1], op

    def _early_gathers(self) -> list[ir.Operation]:
        return [op for op in self.large if op.name == AllGatherOp.OPERATION_NAME and self._early(op)]

    def _of(self, bits: int) -> Iterator[ir.Operation]:
        """The large collectives of these bits."""
        while bits:
            yield self.large[(bits & -bits).bit_length() - 1]
            bits &= bits - 1

    def _all_is_there(self) -> dict[ir.Operation, float]:
        """When all is there that each operation reads."""
        found: dict[ir.Operation, float] = {}
        for op in self.operations:
            found[op] = max((self._done(each, found) for each in self._sources(op)), default=0.0)
        return found

    def _done(self, op: ir.Operation, ready: Mapping[ir.Operation, float]) -> float:
        """When the result of an operation is there."""
        return _span(self.runs[op])[1] if op in self.runs else ready[op]

    def _needed(self) -> dict[ir.Operation, float]:
        """When each operation is to have run: when it starts, or of those that readers compute on the way, these."""
        found: dict[ir.Operation, float] = {}
        for op in reversed(self.operations):
            readers = (ancestor_in(self.block, use.owner.operation) for result in op.results for use in result.uses)
            run = self.runs.get(op)
            found[op] = min((found[each] for each in readers if each is not None), default=inf) if run is None else run.start
        return found

    def _last_beside(self, collective: ir.Operation, until: float) -> ir.Operation | None:
        """The last of the late products that run beside a collective and end before something starts."""
        begin, end = _span(self.runs[collective])
        behind = bisect_left(self._late_products, end, key=lambda op: self.runs[op].start)
        for op in reversed(self._late_products[:behind]):  # products run one after the other
            ended = _span(self.runs[op])[1]
            if ended <= begin:
                break
            if ended <= until:
                return op
        return None

    def _end(self, product: ir.Operation) -> ir.Value:
        """What a product gives, or what is computed of that and of what is there before it: compilers may compute it with the
        product."""
        value: ir.Value = product.results[0]
        computed = {product}
        while len(users := {use.owner.operation for use in value.uses}) == 1:
            (user,) = users
            if user.name == BARRIER or user.name not in _FUSED or user.block != self.block:
                break
            others = (each for each in self._sources(user) if each not in computed)
            if any(self._done(each, self._ready) > self.runs[product].start for each in others):
                break
            computed.add(user)
            value = user.results[0]
        return value

    def _awaited_by_each(self) -> dict[ir.Operation, int]:
        """The large collectives and late products that each operation waits for, itself included, by their bits."""
        found: dict[ir.Operation, int] = {}
        for op in self.operations:
            awaited = self._bits.get(op, 0)
            for source in self._sources(op):
                awaited |= found[source]
            found[op] = awaited
        return found

    def _waits(self, op: ir.Operation, other: ir.Operation) -> bool:
        return bool(self._before[op] & self._bits[other])

    def _is_behind(self, op: ir.Operation, other: ir.Operation) -> bool:
        """Whether `op`, of the block or of one in it, waits for `other`."""
        return (ancestor := ancestor_in(self.block, op)) is not None and self._waits(ancestor, other)

    def _awaited_by_products(self) -> set[ir.Operation]:
        """The operations whose results products wait for, in a loop those of the next trip, too."""
        found: set[ir.Operation] = set()
        carried: set[int] = set()
        "The numbers of what a loop carries that products wait for."
        while True:
            known = len(carried)
            for op in reversed(self.operations):
                ends = self._is_body and op == self.operations[-1]
                values = [op.operands[number] for number in carried] if ends else _read(op)
                for value in values if ends or _is_product(op) or op in found else ():
                    if not is_argument(value):
                        found.add(op_of(value))
                    elif self._is_body and value.owner == self.block:
                        carried.add(ir.BlockArgument(value).arg_number)
            if len(carried) == known:
                return found

    def _computed_behind_products(self) -> set[ir.Value]:
        """What is computed of results of products: a barrier hands on each operand as it is, as a checkpoint's a parameter."""
        found: set[ir.Value] = set()
        for op in self.operations:
            if op.name == BARRIER:
                found.update(result for result, operand in zip(op.results, op.operands, strict=True) if operand in found)
            elif _is_product(op) or not found.isdisjoint(_read(op)):
                found.update(op.results)
        return found

    def _late(self, op: ir.Operation) -> bool:
        return op not in self._awaited

    def _early(self, op: ir.Operation) -> bool:
        return self._behind_products.isdisjoint(op.operands)

    def _sources(self, op: ir.Operation) -> list[ir.Operation]:
        """The operations of the block that give what `op` reads."""
        return [maker for maker in _makers(op) if maker.block == self.block]


def _is_product(op: ir.Operation) -> bool:
    return op.name in CONTRACTIONS or op.name in REGION_OPS


def _union(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _span(run: OpRun) -> tuple[float, float]:
    return run.start, run.start + run.seconds


def _read(op: ir.Operation) -> Iterable[ir.Value]:
    return (value for inner in walk(op) for value in inner.operands) if len(op.regions) else op.operands


def _sort(block: ir.Block) -> None:
    """Moves operations behind what they read, and no further up than that takes."""
    *operations, end = [view.operation for view in block.operations]
    waiting = set(operations)
    for root in operations:
        stack = [root]
        while stack:
            op = stack[-1]
            missing = [each for each in _makers(op) if each in waiting and each != op] if op in waiting else []
            stack += reversed(missing)
            if not missing:
                stack.pop()
                if op in waiting:
                    waiting.remove(op)
                    op.move_before(end)


def _makers(op: ir.Operation) -> list[ir.Operation]:
    """The operations that give what `op` reads."""
    return [op_of(value) for value in _read(op) if not is_argument(value)]
