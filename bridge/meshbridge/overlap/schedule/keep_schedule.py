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
from meshbridge.cost.step import OpRun, schedule
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, MeshError, ancestor_in, ir, walk
from meshbridge.ir.passes import Analyses, Pass, register
from meshbridge.ir.uses import is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.ops.composites import CONTRACTIONS
from meshbridge.ops.traits import Trait, ops_with

_FUSED = ops_with(Trait.FUSIBLE, Trait.ALIASING)
"""Operations that compilers may fuse with a product."""


@register
@dataclass(frozen=True)
class KeepSchedule(Pass):
    """Makes operations that the predicted schedule starts after a reduction of gradients wait for it, and readers of an awaited
    reduction wait for the gradients' products that run beside it; on TPUs, makes an all-to-all or reduction wait for the gather
    that its reader also waits for.

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

    XLA:GPU schedules backwards from the end. It starts collectives that no product waits for, *late* collectives, as late as
    possible, and runs late products, those of gradients, beside the last of these. Gathers of values that no product computes,
    *early* gathers, are best started that way, and stay free. In loops only late collectives wait, for one another, because
    XLA:GPU overlaps awaited ones with other iterations. Tied collectives are too large for compilers to combine them.

    XLA:TPU gathers on the SparseCores, one value after the other, and starts that as late as possible, in loops too: beside the
    exchange whose result the same product reads, with nothing else beside both. Therefore that exchange, a collective of values
    that products compute, waits for the early gather, which overlaps with the products before it; if these are short, the
    previous exchange waits, if it has more computation before it. A gather for the next iteration of a loop ends before the last
    exchange of this one.
    """

    name: ClassVar[str] = "keep-schedule"
    target: CompileTarget | None = None
    "The device whose schedule is predicted; without one the pass does nothing."
    least: int = int(COMBINED_BYTES / 2)
    "Bytes of the smallest collective that is tied: compilers combine smaller ones, which must stay independent."

    def run(self, module: ir.Module) -> bool:
        return self.run_with(module, {})

    def run_with(self, module: ir.Module, analyses: Analyses) -> bool:
        if self.target is None:
            return False
        with module.context:
            machine = self.target.device
            try:
                step = schedule(module, self.target, analyses=analyses)
            except MeshError:  # no step can be predicted; the report says why
                return False
            large: dict[ir.Block, list[ir.Operation]] = {}
            for op in step.times:
                if op in step.runs and issued_kind(op) in machine.async_collectives and _size(op) >= self.least:
                    large.setdefault(op.block, []).append(op)
            blocks = [
                _ScheduledBlock(block, step.runs, collectives, machine.late_scheduled, step.times)
                for block, collectives in large.items()
            ]
            return sum(block.tie() for block in blocks) > 0


def _size(collective: ir.Operation) -> float:
    return max(map(tensor_bytes, (*collective.operands, *collective.results)))


@dataclass(frozen=True)
class _Tie:
    """Uses of a value that must wait for another value."""

    uses: tuple[tuple[ir.Operation, int], ...]
    "Operations with operand numbers."
    awaited: ir.Value
    collective: ir.Operation
    "The collective that waits, or whose readers wait."
    after_barrier: tuple[tuple[ir.Operation, int], ...] = ()
    "Uses of the awaited value that move after the barrier: XLA:TPU removes unread values from one."


class _ScheduledBlock:
    """The operations of a block, with their dependences and their predicted runs."""

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
        self._from_products = self._computed_from_products()
        late = (op for op in self.runs if op.name in CONTRACTIONS and self._late(op))
        self._late_products = sorted(late, key=lambda op: self.runs[op].start)
        self._bits = {op: 1 << number for number, op in enumerate((*self.large, *self._late_products))}
        self._before = self._awaited_by_each()
        self._ready = self._all_is_there()
        self._tied: dict[int, int] = {}
        "By a collective's bit, the bits that it, or its readers, wait for because of ties so far."

    def tie(self) -> int:
        """Inserts the barriers, and returns their number."""
        ties = self._gathered() if self.late_scheduled == "gathers" else (*self._in_order(), *self._beside_collectives())
        together: dict[tuple[tuple[ir.Operation, int], ...], list[_Tie]] = {}
        for tie in ties:
            if self._may_wait(tie):
                together.setdefault(tie.uses, []).append(tie)
        for uses, shared in together.items():
            (user, number), *_ = uses
            values = [user.operands[number], *(tie.awaited for tie in shared)]
            at = Builder.after(op_of(shared[-1].awaited))
            handed_on = at.op(BARRIER, [value.type for value in values], values).results
            for tie, gathered in zip(shared, [*handed_on][1:], strict=True):
                for user, place in tie.after_barrier:
                    user.operands[place] = gathered
            for user, place in uses:
                user.operands[place] = handed_on[0]
        if together:
            _sort(self.block)
        return len(together)

    def _may_wait(self, tie: _Tie) -> bool:
        """True if adding the tie creates no cycle, given the earlier ties; records the tie if so."""
        bit, awaited = self._bits[tie.collective], self._with_ties(self._before[op_of(tie.awaited)])
        if awaited & bit:
            return False
        self._tied[bit] = self._with_ties(self._tied.pop(bit, 0) | awaited)
        return True

    def _with_ties(self, unresolved: int) -> int:
        """The bits, and those that they wait for because of ties: an upper bound, as if all readers of a tied collective waited.
        The last recorded entry mostly contains all earlier ones."""
        bits, tied = unresolved, sum(self._tied)
        while unresolved := unresolved & tied:
            later = 0
            for bit in reversed(self._tied):
                if bit & unresolved:
                    break
                later |= bit
            awaited = self._tied[bit]
            unresolved = (unresolved & ~awaited & ~bit) | (awaited & later & ~bits)
            bits |= awaited
        return bits

    def _in_order(self) -> Iterator[_Tie]:
        """Collectives that wait for a preceding late one: other late ones, and those that cannot start before it ends."""
        late: ir.Operation | None = None
        for collective in self.large:
            if late is not None and not self._early(collective) and not self._waits(collective, late):
                is_free = not self._is_body and _span(self.runs[late])[1] <= self._ready[collective]
                if is_free or self._late(collective):
                    yield _Tie(((collective, 0),), late.results[0], collective)
            if self._late(collective):
                late = collective

    def _beside_collectives(self) -> Iterator[_Tie]:
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
            yield from (_Tie(tuple(tied_uses), self._end(product), op) for product, tied_uses in uses.items())

    def _gathered(self) -> Iterator[_Tie]:
        """Exchanges, collectives of values that products compute, that wait for early gathers. If a product reads both, the
        exchange waits, or the previous one if more is computed before that. A gathered value is held until it is read, so gathers
        move no further up."""
        exchanges = [op for op in self.large if not self._early(op)]
        computing = dict(zip(exchanges, self._computed_before(exchanges), strict=True))
        earlier = dict(pairwise(reversed(exchanges)))
        tied: set[ir.Operation] = set()
        for op, gather in (*self._read_beside(exchanges), *self._ahead(exchanges)):
            near = (op, earlier[op]) if op in earlier and self._waits(op, earlier[op]) else (op,)
            begun = [exchange for exchange in near if gather not in tied and self._may_follow(exchange, gather)]
            if begun:
                chosen = max(begun, key=computing.__getitem__)
                computing[chosen] -= self.runs[gather].seconds
                tied.add(gather)
                uses = ((use.owner.operation, use.operand_number) for use in gather.results[0].uses)
                after_barrier = ((user, place) for user, place in uses if self._depends_on(user, chosen))
                yield _Tie(((chosen, 0),), gather.results[0], chosen, tuple(after_barrier))

    def _may_follow(self, exchange: ir.Operation, gather: ir.Operation) -> bool:
        """True if, by the schedule, the gather ends before the exchange, does not wait for it, and no product that runs before
        the exchange reads it."""
        begins = self.runs[exchange].start
        readers = (ancestor_in(self.block, use.owner.operation) for use in gather.results[0].uses)
        is_read = any(op in self.runs and op.name in CONTRACTIONS and self.runs[op].start < begins for op in readers)
        return _span(self.runs[gather])[1] <= begins and not self._waits(gather, exchange) and not is_read

    def _computed_before(self, exchanges: Sequence[ir.Operation]) -> list[float]:
        """The seconds of computation before each exchange, and after the previous one, except loops."""
        starts = [self.runs[op].start for op in exchanges]
        seconds = [0.0] * (len(exchanges) + 1)
        for op, run in self.runs.items():
            if op not in self.collectives and op.name not in REGION_OPS:
                seconds[bisect_right(starts, run.start)] += run.seconds
        return seconds[:-1]

    def _read_beside(self, exchanges: Sequence[ir.Operation]) -> Iterator[tuple[ir.Operation, ir.Operation]]:
        """The early gathers that products read beside the result of an exchange, perhaps rearranged, in the order of the
        products, each with the last such exchange: a residual stream contains many."""
        large = {op: self._bits[op] for op in self.large}
        arranged: dict[ir.Value, int] = {}
        "The bits of the large collectives whose results a value contains."
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
            if position := (read & exchanged).bit_length():
                yield from ((self.large[position - 1], gather) for gather in self._of(read & gathers))

    def _ahead(self, exchanges: Sequence[ir.Operation]) -> Iterator[tuple[ir.Operation, ir.Operation]]:
        """The early gathers of a loop's body that only the next iteration reads, each with the last exchange of the iteration,
        after which little computation is left."""
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
        """The time at which all operands of each operation exist."""
        ready: dict[ir.Operation, float] = {}
        for op in self.operations:
            ready[op] = max((self._done(source, ready) for source in self._sources(op)), default=0.0)
        return ready

    def _done(self, op: ir.Operation, ready: Mapping[ir.Operation, float]) -> float:
        """The time at which the result of an operation exists."""
        return _span(self.runs[op])[1] if op in self.runs else ready[op]

    def _needed(self) -> dict[ir.Operation, float]:
        """The time by which each operation must have run: its start, or for a fused one the start of its readers."""
        starts: dict[ir.Operation, float] = {}
        for op in reversed(self.operations):
            readers = (ancestor_in(self.block, use.owner.operation) for result in op.results for use in result.uses)
            run = self.runs.get(op)
            starts[op] = (
                min((starts[reader] for reader in readers if reader is not None), default=inf) if run is None else run.start
            )
        return starts

    def _last_beside(self, collective: ir.Operation, until: float) -> ir.Operation | None:
        """The last of the late products that run beside a collective and end before `until`."""
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
        """The result of a product, or of operations that compilers may fuse with it, whose other operands exist before the
        product starts."""
        value: ir.Value = product.results[0]
        computed = {product}
        while len(users := {use.owner.operation for use in value.uses}) == 1:
            (user,) = users
            if user.name == BARRIER or user.name not in _FUSED or user.block != self.block:
                break
            other_sources = (source for source in self._sources(user) if source not in computed)
            if any(self._done(source, self._ready) > self.runs[product].start for source in other_sources):
                break
            computed.add(user)
            value = user.results[0]
        return value

    def _awaited_by_each(self) -> dict[ir.Operation, int]:
        """The bits of the large collectives and late products that each operation waits for, itself included."""
        awaited_bits: dict[ir.Operation, int] = {}
        for op in self.operations:
            awaited = self._bits.get(op, 0)
            for source in self._sources(op):
                awaited |= awaited_bits[source]
            awaited_bits[op] = awaited
        return awaited_bits

    def _waits(self, op: ir.Operation, source: ir.Operation) -> bool:
        return bool(self._before[op] & self._bits[source])

    def _depends_on(self, op: ir.Operation, source: ir.Operation) -> bool:
        """True if `op`, of the block or of an inner one, waits for `source`."""
        return (ancestor := ancestor_in(self.block, op)) is not None and self._waits(ancestor, source)

    def _awaited_by_products(self) -> set[ir.Operation]:
        """The operations whose results products wait for, in a loop including those of the next iteration."""
        awaited: set[ir.Operation] = set()
        carried: set[int] = set()
        "The numbers of loop-carried values that products wait for."
        while True:
            count = len(carried)
            for op in reversed(self.operations):
                ends = self._is_body and op == self.operations[-1]
                values = [op.operands[number] for number in carried] if ends else _read(op)
                for value in values if ends or _is_product(op) or op in awaited else ():
                    if not is_argument(value):
                        awaited.add(op_of(value))
                    elif self._is_body and value.owner == self.block:
                        carried.add(ir.BlockArgument(value).arg_number)
            if len(carried) == count:
                return awaited

    def _computed_from_products(self) -> set[ir.Value]:
        """The values computed from results of products; a barrier passes each operand on, as a checkpoint passes a parameter."""
        computed: set[ir.Value] = set()
        for op in self.operations:
            if op.name == BARRIER:
                computed.update(result for result, operand in zip(op.results, op.operands, strict=True) if operand in computed)
            elif _is_product(op) or not computed.isdisjoint(_read(op)):
                computed.update(op.results)
        return computed

    def _late(self, op: ir.Operation) -> bool:
        return op not in self._awaited

    def _early(self, op: ir.Operation) -> bool:
        return self._from_products.isdisjoint(op.operands)

    def _sources(self, op: ir.Operation) -> list[ir.Operation]:
        """The operations of the block that compute the operands of `op`."""
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
    """Moves operations after their operands, and no further up than necessary."""
    *operations, end = [view.operation for view in block.operations]
    waiting = set(operations)
    for root in operations:
        stack = [root]
        while stack:
            op = stack[-1]
            missing = [maker for maker in _makers(op) if maker in waiting and maker != op] if op in waiting else []
            stack += reversed(missing)
            if not missing:
                stack.pop()
                if op in waiting:
                    waiting.remove(op)
                    op.move_before(end)


def _makers(op: ir.Operation) -> list[ir.Operation]:
    """The operations that compute the operands of `op`."""
    return [op_of(value) for value in _read(op) if not is_argument(value)]
