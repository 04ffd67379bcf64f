"""When the ops of a microbatch run in a program whose stages run at the same time: phases, each of which all microbatches pass.

Phase `2 j` is what runs before scan `j` over layers, one microbatch after the other, and phase `2 j + 1` is that scan, which
microbatches pass in ticks, at each stage another one:

    0: embedding      1: layers forward      2: head, and its gradients      3: layers backward      4: gradient of the embedding

An op is in the first phase in which all that it reads is known. What computes with stacks of layers, such as sums of their
gradients, is in the phase of the scan, on the layers of each stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from meshbridge.analysis.trip_count import CountedLoop, counted_loop
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import BARRIER, OpError, ir, terminator_operands
from meshbridge.ir.uses import block_of, defining_op, has_one_use, look_through
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.layer_scans import Family, LayerLoop, LayerScan
from meshbridge.pipelines.leading_split import joins_rows, parts_together
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.reads import external_operands
from meshbridge.pipelines.stacks import Division

SHARDING = "mesh.sharding"

Kind = Literal["outside", "counter", "layers", "repeated", "counted", "fixed", "computed"]
"""How phases get a value: from outside of the loop; as the number of the microbatch, or of layers; by computing it where it is
read, since that is cheap, without the number of the microbatch or with it; once before the loop; or in one phase, which keeps the
values of all microbatches for later ones."""


class SpreadSum(NamedTuple):
    """A carried value that is what it was plus `addends`. The ops of the values `within` add them, and `annotations` annotate the
    total."""

    addends: list[ir.Value]
    within: list[ir.Value]
    annotations: list[ir.Operation]


@dataclass(eq=False)
class Phases:
    """The phases of the values and ops in the body of a loop of microbatches. `split` are the values in parts along layers.

    Raises OpError for an op that needs a result of the microbatch before too early."""

    layers: LayerLoop
    family: Family
    division: Division
    "The layers of each stage, equally many."
    split: Container[ir.Value]
    _of_carried: dict[int, int] = field(default_factory=dict)
    _known: dict[ir.Value, int] = field(default_factory=dict)
    _kinds: dict[ir.Value, Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scans = {scan.op.results[0]: number for number, scan in enumerate(self.family.scans)}
        self._of_carried = dict.fromkeys(self.carried, 0)
        changed = True
        while changed:
            self._known = {}
            for op in self.ops:
                self._check(op)
            found = {number: max(before, self.of(self.yielded[number])) for number, before in self._of_carried.items()}
            changed = found != self._of_carried
            self._of_carried = found

    @property
    def count(self) -> int:
        """The number of phases."""
        return 2 * len(self.family.scans) + 1

    @property
    def loop(self) -> ir.Operation:
        """The loop of microbatches."""
        return self.layers.loop

    @cached_property
    def body(self) -> ir.Block:
        """What each microbatch computes."""
        block: ir.Block = self.loop.regions[1].blocks[0]
        return block

    @cached_property
    def counted(self) -> CountedLoop:
        """How the loop counts microbatches. Raises OpError for a loop that does not."""
        counted = counted_loop(self.loop)
        if counted is None:
            raise OpError(self.loop, "has no known number of microbatches", "scan over microbatches with jax.lax.scan")
        return counted

    @cached_property
    def yielded(self) -> list[ir.Value]:
        """What the loop carries to the next microbatch, by number."""
        return terminator_operands(self.body)

    @cached_property
    def carried(self) -> list[int]:
        """The numbers of the carried values that change, without the counter."""
        arguments = enumerate(self.body.arguments)
        return [
            number
            for number, argument in arguments
            if number != self.counted.counter and look_through(self.yielded[number], (SHARD,)) != argument
        ]

    @cached_property
    def ops(self) -> list[ir.Operation]:
        """The ops of a microbatch that are in one phase, in program order."""
        ops = (view.operation for view in self.body.operations)
        return [op for op in ops if len(op.results) and op.name != BARRIER and self.kind(op.results[0]) == "computed"]

    def origin(self, value: ir.Value) -> ir.Value:
        """The value that `value` is: barriers return their operands, loops what they leave unchanged."""
        while True:
            op = defining_op(value)
            if op is None:
                if value.owner != self.body:
                    return value
                number = ir.BlockArgument(value).arg_number
                if number in self.carried or number == self.counted.counter:
                    return value
                value = self.loop.operands[number]
            elif self._passes_on(op, number := ir.OpResult(value).result_number):
                value = op.operands[number]
            else:
                return value

    def _passes_on(self, op: ir.Operation, number: int) -> bool:
        """Whether a result of an op of the body is its operand of the same number."""
        if op.block != self.body:
            return False
        scan = self.scan_of(op)
        return op.name == BARRIER if scan is None else number in self._unchanged(scan)

    def scan_of(self, op: ir.Operation) -> LayerScan | None:
        """The scan over layers that an op is."""
        number = self.scans.get(op.results[0]) if len(op.results) else None
        return None if number is None else self.family.scans[number]

    def _unchanged(self, scan: LayerScan) -> list[int]:
        changed = {*scan.carried(), *scan.stacks, scan.counted.counter}
        return [number for number in range(len(scan.op.operands)) if number not in changed]

    def kind(self, value: ir.Value) -> Kind:
        """How phases get a value."""
        value = self.origin(value)
        if value not in self._kinds:
            self._kinds[value] = self._kind(value)
        return self._kinds[value]

    def _kind(self, value: ir.Value) -> Kind:
        if block_of(value) != self.body:
            return "outside"
        op = defining_op(value)
        if op is None:
            return "counter" if value == self.body.arguments[self.counted.counter] else "computed"
        if (scan := self.scan_of(op)) is not None:
            return "layers" if value == op.results[scan.counted.counter] else "computed"
        read = {self.kind(operand) for operand in external_operands(op)}
        if "computed" in read:
            return "computed"
        counts = not read.isdisjoint(("counter", "counted"))
        if _is_cheap(op):
            return "counted" if counts else "repeated"
        return "fixed" if has(op.name, Trait.PURE) and not counts else "computed"

    def of(self, value: ir.Value) -> int:
        """The first phase in which a value can be read. One that is in parts is in the phase of a scan only for what computes
        on parts."""
        value = self.origin(value)
        if self.kind(value) != "computed":
            return 0
        op = defining_op(value)
        if op is None:
            return self._of_carried[ir.BlockArgument(value).arg_number]
        if value not in self._known:
            phase = self.of_op(op)
            is_final = self.scan_of(op) is not None and value not in self.split
            self._known[value] = phase + 1 if is_final else phase
        return self._known[value]

    def made_in(self, value: ir.Value) -> int:
        """The phase that computes a value."""
        op = defining_op(value)
        return self.of(value) if op is None else self.of_op(op)

    def of_op(self, op: ir.Operation) -> int:
        """The phase of an op."""
        if (number := self.scans.get(op.results[0])) is not None:
            return 2 * number + 1
        on_parts = self.is_on_parts(op)
        phases = [(self.of(value), self.origin(value) in self.split) for value in external_operands(op)]
        return max((phase if on_parts and split else phase + phase % 2 for phase, split in phases), default=0)

    def is_on_parts(self, op: ir.Operation) -> bool:
        """Whether an op can be computed on the layers of each stage."""
        result = op.results[0]
        return result in self.split and not joins_rows(op) and any(result in group for group in parts_together(op))

    def _check(self, op: ir.Operation) -> None:
        """Raises OpError for a scan over layers that needs what is only known after it."""
        scan = self.scan_of(op)
        if scan is None:
            return
        own = 2 * self.scans[op.results[0]] + 1
        parts = {op.operands[number] for number in scan.stacks}
        for value in external_operands(op):
            if self.of(value) > (own if value in parts else own - 1):
                message = "needs a result of the microbatch before, so that stages could not run at the same time"
                raise OpError(op, message, "add up gradients in the loop, and update parameters after it")

    @cached_property
    def spread(self) -> dict[int, SpreadSum]:
        """The carried sums to which several phases add, by number: each adds its own. Kept for all microbatches, what an earlier
        phase adds would take as much memory as all gradients."""
        found = {number: _sum_of(self, number) for number in self.carried}
        return {number: each for number, each in found.items() if each is not None and len(set(map(self.of, each.addends))) > 1}

    @cached_property
    def in_phase(self) -> dict[int, list[ir.Operation]]:
        """The ops of each phase, in program order."""
        found: dict[int, list[ir.Operation]] = defaultdict(list)
        adding = {value for each in self.spread.values() for value in each.within}
        for op in self.ops:
            if op.results[0] not in adding:
                found[self.of_op(op)].append(op)
        return found

    @cached_property
    def carried_in(self) -> dict[int, list[int]]:
        """The numbers of the carried values that each phase computes."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, last in self._of_carried.items():
            each = self.spread.get(number)
            for phase in [last] if each is None else sorted(set(map(self.of, each.addends))):
                found[phase].append(number)
        return found

    def carried_on(self, number: int, phase: int) -> list[ir.Value]:
        """What a phase computes a carried value from: what it adds to a sum that is spread, or else the next value."""
        each = self.spread.get(number)
        return [self.yielded[number]] if each is None else [value for value in each.addends if self.of(value) == phase]

    @cached_property
    def kept(self) -> dict[int, list[ir.Value]]:
        """By phase, the values of each microbatch that later phases read."""
        found: dict[int, dict[ir.Value, None]] = defaultdict(dict)
        for phase in range(self.count):
            read = [value for op in self.in_phase[phase] for value in external_operands(op)]
            read += [value for number in self.carried_in[phase] for value in self.carried_on(number, phase)]
            for value in self._computed(read):
                if (source := self.made_in(value)) != phase:
                    found[source][value] = None
        return {phase: list(values) for phase, values in found.items()}

    def _computed(self, values: list[ir.Value]) -> Iterator[ir.Value]:
        """The values computed in one phase among `values`."""
        return (value for value in map(self.origin, values) if self.kind(value) == "computed")


def _sum_of(phases: Phases, number: int) -> SpreadSum | None:
    """A carried value as a sum of what it was and of values that nothing else reads; None for any other value."""
    argument, total = phases.body.arguments[number], phases.yielded[number]
    found = SpreadSum([], [], [])
    while (op := defining_op(total)) is not None and op.name == SHARD and has_one_use(total):
        found.annotations.append(op)
        found.within.append(total)
        total = op.operands[0]
    waiting, is_total = [total], False
    while waiting:
        value = waiting.pop()
        op = defining_op(value)
        if value == argument:
            is_total = True
        elif op is None or op.block != phases.body or not has_one_use(value) or not _is_of_sum(op):
            found.addends.append(value)
        else:
            found.within.append(value)
            waiting += [op.operands[0]] if op.name == SHARD else list(op.operands)
    return found if is_total and has_one_use(argument) else None


def _is_of_sum(op: ir.Operation) -> bool:
    """Whether an op passes on a sum: adds, annotates it, or gives it a wider type."""
    if op.name == "stablehlo.convert":
        before, after = element_of(op.operands[0]), element_of(op.results[0])
        return isinstance(before, ir.FloatType) and isinstance(after, ir.FloatType) and before.width < after.width
    return op.name in ("stablehlo.add", SHARD)


def _is_cheap(op: ir.Operation) -> bool:
    """Whether each phase that reads the results of an op may compute it."""
    if op.name in (SHARD, SHARDING):
        return True
    if not has(op.name, Trait.PURE) or len(op.regions):
        return False
    return not any(has(op.name, trait) for trait in (Trait.CONTRACTION, Trait.CONTROL_FLOW, Trait.EXPENSIVE)) and op.name not in (
        "stablehlo.gather",
        "stablehlo.rng_bit_generator",
    )
