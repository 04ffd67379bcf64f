"""`keep-schedule`: pins collectives to the predicted order with optimization barriers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count, pairwise
from math import inf
from operator import or_
from typing import ClassVar

from meshbridge.cost.collective_ops import issued_kind
from meshbridge.cost.objective import COMBINED_BYTES
from meshbridge.cost.step import OpRun, StepSchedule, schedule
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.block_index import BlockIndex
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, MeshError, ancestor_in, ir
from meshbridge.ir.passes import Analyses, Pass, register
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
    keeps_step: ClassVar[bool] = True
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
            large: dict[ir.Block, set[ir.Operation]] = {}
            for op in step.times:
                if op in step.runs and issued_kind(op) in machine.async_collectives and _size(op) >= self.least:
                    large.setdefault(op.block, set()).add(op)
            blocks = [
                _ScheduledBlock(BlockIndex.of(block, analyses), step, collectives, machine.late_scheduled)
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
    awaited: int
    "The number of the operation whose result they wait for."
    collective: int
    "The number of the collective that waits, or whose readers wait."
    after_barrier: tuple[tuple[ir.Operation, int], ...] = ()
    "Uses of the awaited value that move after the barrier: XLA:TPU removes unread values from one."


class _ScheduledBlock:
    """The operations of a block by number, with their dependences and their predicted runs."""

    def __init__(self, index: BlockIndex, step: StepSchedule, large: Container[ir.Operation], late_scheduled: str) -> None:
        self.index = index
        self.block = block = index.block
        self.late_scheduled = late_scheduled
        self._is_body = block.owner.operation.name == "stablehlo.while"
        self.operations = self.index.operations
        self._sources = [
            list(dict.fromkeys([self.index.makers[value] for value in block_op.read if value in self.index.makers]))
            for block_op in self.operations
        ]
        "The numbers of the operations of the block that compute the operands of each."
        self.runs = {
            number: run
            for number, block_op in enumerate(self.operations)
            if block_op.name != BARRIER and (run := step.runs.get(block_op.op)) is not None
        }
        self._computing = [
            number for number in self.runs if self._op(number) not in step.times and self._name(number) not in REGION_OPS
        ]
        self.large = sorted((number for number in self.runs if self._op(number) in large), key=self._start)
        self._awaited = self._awaited_by_products()
        self._from_products = self._computed_from_products()
        self._products = [number for number in self.runs if self._name(number) in CONTRACTIONS]
        self._late_products = sorted(filter(self._late, self._products), key=self._start)
        self._bits = {number: 1 << position for position, number in enumerate((*self.large, *self._late_products))}
        self._before = self._awaited_by_each()
        self._ready = self._all_is_there()
        self._tied: dict[int, int] = {}
        "By a collective's bit, the bits that it, or its readers, wait for because of ties so far."

    def _op(self, number: int) -> ir.Operation:
        return self.operations[number].op

    def _name(self, number: int) -> str:
        return self.operations[number].name

    def _result(self, number: int) -> ir.Value:
        """The first result of an operation."""
        return self.index.values.all[self.operations[number].results[0]]

    def _start(self, number: int) -> float:
        return self.runs[number].start

    def _uses(self, number: int) -> Iterator[tuple[ir.Operation, int]]:
        """The uses of the first result of an operation: users, in the block or in regions, and numbers of operands."""
        return ((use.owner.operation, use.operand_number) for use in self._result(number).uses)

    def _number(self, user: ir.Operation) -> int | None:
        """The number of an operation of the block that is, or contains, `user`."""
        ancestor = ancestor_in(self.block, user)
        return None if ancestor is None else self._numbers[ancestor]

    @cached_property
    def _numbers(self) -> dict[ir.Operation, int]:
        return {block_op.op: number for number, block_op in enumerate(self.operations)}

    def tie(self) -> int:
        """Inserts the barriers, and returns their number."""
        ties = self._gathered() if self.late_scheduled == "gathers" else (*self._in_order(), *self._beside_collectives())
        together: dict[tuple[tuple[ir.Operation, int], ...], list[_Tie]] = {}
        for tie in ties:
            if self._may_wait(tie):
                together.setdefault(tie.uses, []).append(tie)
        for uses, shared in together.items():
            (user, number), *_ = uses
            values = [user.operands[number], *(self._result(tie.awaited) for tie in shared)]
            at = Builder.after(self._op(shared[-1].awaited))
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
        bit, awaited = self._bits[tie.collective], self._with_ties(self._before[tie.awaited])
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
        late: int | None = None
        for collective in self.large:
            if late is not None and not self._early(collective) and not self._waits(collective, late):
                is_free = not self._is_body and _span(self.runs[late])[1] <= self._ready[collective]
                if is_free or self._late(collective):
                    yield _Tie(((self._op(collective), 0),), late, collective)
            if self._late(collective):
                late = collective

    def _beside_collectives(self) -> Iterator[_Tie]:
        """Readers of collectives, neither late nor early, that wait for late products beside them."""
        needed = self._needed()
        for collective in self.large if not self._is_body else ():
            if self._late(collective) or self._early(collective):
                continue
            uses: dict[int, list[tuple[ir.Operation, int]]] = {}
            for user, place in self._uses(collective):
                reader = self._number(user)
                until = inf if reader is None else needed[reader]
                product = self._last_beside(collective, until) if until < inf else None
                if reader is not None and product is not None and not self._waits(reader, product):
                    uses.setdefault(product, []).append((user, place))
            yield from (_Tie(tuple(tied), self._end(product), collective) for product, tied in uses.items())

    def _gathered(self) -> Iterator[_Tie]:
        """Exchanges, collectives of values that products compute, that wait for early gathers. If a product reads both, the
        exchange waits, or the previous one if more is computed before that. A gathered value is held until it is read, so gathers
        move no further up."""
        exchanges = [number for number in self.large if not self._early(number)]
        computing = dict(zip(exchanges, self._computed_before(exchanges), strict=True))
        earlier = dict(pairwise(reversed(exchanges)))
        tied: set[int] = set()
        for last, gather in (*self._read_beside(exchanges), *self._ahead(exchanges)):
            near = (last, earlier[last]) if last in earlier and self._waits(last, earlier[last]) else (last,)
            begun = [exchange for exchange in near if gather not in tied and self._may_follow(exchange, gather)]
            if begun:
                chosen = max(begun, key=computing.__getitem__)
                computing[chosen] -= self.runs[gather].seconds
                tied.add(gather)
                after_barrier = ((user, place) for user, place in self._uses(gather) if self._depends_on(user, chosen))
                yield _Tie(((self._op(chosen), 0),), gather, chosen, tuple(after_barrier))

    def _may_follow(self, exchange: int, gather: int) -> bool:
        """True if, by the schedule, the gather ends before the exchange, does not wait for it, and no product that runs before
        the exchange reads it."""
        begins = self._start(exchange)
        readers = self.index.readers_of(self.operations[gather].results[0])
        is_read = any(
            reader in self.runs and self._name(reader) in CONTRACTIONS and self._start(reader) < begins for reader in readers
        )
        return _span(self.runs[gather])[1] <= begins and not self._waits(gather, exchange) and not is_read

    def _computed_before(self, exchanges: Sequence[int]) -> list[float]:
        """The seconds of computation before each exchange, and after the previous one, except loops."""
        starts = [self._start(exchange) for exchange in exchanges]
        seconds = [0.0] * (len(exchanges) + 1)
        for number in self._computing:
            seconds[bisect_right(starts, self._start(number))] += self.runs[number].seconds
        return seconds[:-1]

    def _read_beside(self, exchanges: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The early gathers that products read beside the result of an exchange, perhaps rearranged, in the order of the
        products, each with the last such exchange: a residual stream contains many."""
        large = {number: self._bits[number] for number in self.large}
        arranged: dict[int, int] = {}
        "The bits of the large collectives whose results a value contains."
        for number, block_op in enumerate(self.operations):
            if number in large:
                arranged[block_op.results[0]] = large[number]
            elif block_op.name == BARRIER:
                arranged.update(zip(block_op.results, (arranged.get(value, 0) for value in block_op.operands), strict=True))
            elif block_op.name in _FUSED:
                arranged.update(dict.fromkeys(block_op.results, _union(arranged.get(value, 0) for value in block_op.operands)))
        gathers = _union(large[number] for number in self._early_gathers())
        exchanged = _union(large[number] for number in exchanges)
        for product in sorted(self._products, key=self._start):
            read = _union(arranged.get(value, 0) for value in self.operations[product].operands)
            if position := (read & exchanged).bit_length():
                yield from ((self.large[position - 1], gather) for gather in self._of(read & gathers))

    def _ahead(self, exchanges: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The early gathers of a loop's body that only the next iteration reads, each with the last exchange of the iteration,
        after which little computation is left."""
        if self._is_body and exchanges:
            for gather in self._early_gathers():
                if all(user == self.operations[-1].op for user, _ in self._uses(gather)):
                    yield exchanges[-1], gather

    def _early_gathers(self) -> list[int]:
        return [number for number in self.large if self._name(number) == AllGatherOp.OPERATION_NAME and self._early(number)]

    def _of(self, bits: int) -> Iterator[int]:
        """The large collectives of these bits."""
        while bits:
            yield self.large[(bits & -bits).bit_length() - 1]
            bits &= bits - 1

    def _all_is_there(self) -> list[float]:
        """The time at which all operands of each operation exist."""
        ready: list[float] = []
        for sources in self._sources:
            ready.append(max((self._done(source, ready) for source in sources), default=0.0))
        return ready

    def _done(self, number: int, ready: Sequence[float]) -> float:
        """The time at which the result of an operation exists."""
        run = self.runs.get(number)
        return ready[number] if run is None else run.start + run.seconds

    def _needed(self) -> list[float]:
        """The time by which each operation must have run: its start, or for a fused one the start of its readers."""
        starts = [inf] * len(self.operations)
        for number in reversed(range(len(starts))):
            if number in self.runs:
                starts[number] = self._start(number)
            for source in self._sources[number]:
                if source not in self.runs:
                    starts[source] = min(starts[source], starts[number])
        return starts

    def _last_beside(self, collective: int, until: float) -> int | None:
        """The last of the late products that run beside a collective and end before `until`."""
        begin, end = _span(self.runs[collective])
        started = bisect_left(self._late_products, end, key=self._start)
        for product in reversed(self._late_products[:started]):  # products run one after the other
            ended = _span(self.runs[product])[1]
            if ended <= begin:
                break
            if ended <= until:
                return product
        return None

    def _end(self, product: int) -> int:
        """A product, or the last of the operations that compilers may fuse with it, whose other operands exist before the product
        starts."""
        last, computed = product, {product}
        while len(users := self.index.readers_of(self.operations[last].results[0])) == 1:
            (user,) = users
            if self._name(user) == BARRIER or self._name(user) not in _FUSED:
                break
            other_sources = (source for source in self._sources[user] if source not in computed)
            if any(self._done(source, self._ready) > self._start(product) for source in other_sources):
                break
            computed.add(user)
            last = user
        return last

    def _awaited_by_each(self) -> list[int]:
        """The bits of the large collectives and late products that each operation waits for, itself included."""
        awaited_bits: list[int] = []
        for number, sources in enumerate(self._sources):
            awaited = self._bits.get(number, 0)
            for source in sources:
                awaited |= awaited_bits[source]
            awaited_bits.append(awaited)
        return awaited_bits

    def _waits(self, number: int, source: int) -> bool:
        return bool(self._before[number] & self._bits[source])

    def _depends_on(self, op: ir.Operation, source: int) -> bool:
        """True if `op`, of the block or of an inner one, waits for `source`."""
        return (number := self._number(op)) is not None and self._waits(number, source)

    def _awaited_by_products(self) -> set[int]:
        """The operations whose results products wait for, in a loop including those of the next iteration."""
        awaited: set[int] = set()
        carried: set[int] = set()
        "The numbers of loop-carried values that products wait for."
        arguments: dict[int, int] = {}
        if self._is_body:
            arguments.update(zip(map(self.index.values.__getitem__, self.block.arguments), count(), strict=False))
        last = len(self.operations) - 1
        while True:
            known = len(carried)
            for number in range(last, -1, -1):
                block_op = self.operations[number]
                values: Iterable[int] = ()
                if self._is_body and number == last:
                    values = [block_op.operands[place] for place in carried]
                elif number in awaited or _is_product(block_op.name):
                    values = block_op.read
                for value in values:
                    if (maker := self.index.makers.get(value)) is not None:
                        awaited.add(maker)
                    elif value in arguments:
                        carried.add(arguments[value])
            if len(carried) == known:
                return awaited

    def _computed_from_products(self) -> set[int]:
        """The values computed from results of products; a barrier passes each operand on, as a checkpoint passes a parameter."""
        computed: set[int] = set()
        for block_op in self.operations:
            if block_op.name == BARRIER:
                passed = zip(block_op.results, block_op.operands, strict=True)
                computed.update(result for result, operand in passed if operand in computed)
            elif _is_product(block_op.name) or not computed.isdisjoint(block_op.read):
                computed.update(block_op.results)
        return computed

    def _late(self, number: int) -> bool:
        return number not in self._awaited

    def _early(self, number: int) -> bool:
        return self._from_products.isdisjoint(self.operations[number].operands)


def _is_product(name: str) -> bool:
    return name in CONTRACTIONS or name in REGION_OPS


def _union(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _span(run: OpRun) -> tuple[float, float]:
    return run.start, run.start + run.seconds


def _sort(block: ir.Block) -> None:
    """Moves operations after their operands, and no further up than necessary."""
    index = BlockIndex(block)
    *operations, _ = [block_op.op for block_op in index.operations]
    waiting = set(range(len(operations)))
    order: list[int] = []
    for root in range(len(operations)):
        stack = [root]
        while stack:
            number = stack[-1]
            makers = [index.makers.get(value) for value in index.operations[number].read] if number in waiting else []
            missing = [maker for maker in makers if maker is not None and maker in waiting and maker != number]
            stack += reversed(missing)
            if not missing:
                stack.pop()
                if number in waiting:
                    waiting.remove(number)
                    order.append(number)
    position, moved = 0, set[int]()
    for number in order:
        while position in moved:
            position += 1
        if number == position:
            position += 1
        else:
            operations[number].move_before(operations[position])
            moved.add(number)
