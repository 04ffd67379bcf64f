"""The programs of a pipeline's sites, each a module of its own on global shapes, in the form 'annotated'.

A fragment reads arguments of the program, carried values of the loop, and values of other fragments, and returns what others
read. What crosses between two fragments has the sharding that was decided for the value in the whole program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from meshbridge.dialect import build
from meshbridge.dialect.donation import ALIASED, aliased
from meshbridge.dialect.ops import ShardingOp
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.mlir import copy_named_functions, ir, set_entries, walk
from meshbridge.ir.sharding import Sharding, even_split
from meshbridge.ir.uses import defining_name, is_argument
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.placement import Placement
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.sites import ORDER, Site


class Source(NamedTuple):
    """What a fragment reads or returns: an argument or a result of the program by its number, a carried value of the loop by its
    number, or any other value by a number of its own, with the site that computes it."""

    kind: Literal["argument", "state", "value", "result"]
    number: int
    site: Site | None = None


@dataclass(frozen=True, eq=False)
class Fragment:
    """The program of a site. A carried value that it reads and returns is one that it owns."""

    site: Site
    group: int
    "The group of devices that runs it."
    inputs: tuple[Source, ...]
    outputs: tuple[Source, ...]
    module: ir.Module
    name: str = ""
    "In reports, in place of its site."

    @property
    def label(self) -> str:
        """The name of the fragment in reports."""
        return self.name or str(self.site)


def fragments_of(placement: Placement, terms: frozenset[int] = frozenset()) -> list[Fragment]:
    """The fragments of all sites with ops, in the order of sites. `terms` are the numbers of carried values of which devices keep
    terms of a sum."""
    return _Fragments(placement, terms).build()


@dataclass(eq=False)
class _Fragments:
    placement: Placement
    terms: frozenset[int]
    _values: dict[int, ir.Value] = field(default_factory=dict)
    _numbers: dict[ir.Value, int] = field(default_factory=dict)

    @property
    def program(self) -> LoopProgram:
        """The program that is cut."""
        return self.placement.program

    def build(self) -> list[Fragment]:
        returned: dict[Site, dict[Source, ir.Value]] = defaultdict(dict)
        for source, value in self._results():
            returned[source.site or Site("post", 0)][source] = value
        for source, value, pre in self._states():
            returned[pre][source] = value
        sites = dict.fromkeys((*self._ops, *returned))
        inputs: dict[Site, dict[Source, list[ir.Value]]] = {}
        # What a fragment returns may be a carried value that it has not read before, so needs are collected until none is new.
        waiting = list(sites)
        while waiting:
            site = waiting.pop()
            inputs[site] = self._inputs(site, returned[site])
            for source, values in inputs[site].items():
                if source.kind == "value" and source.site is not None and source not in returned[source.site]:
                    returned[source.site][source] = values[0]
                    waiting.append(source.site)
        return [self._fragment(site, inputs[site], returned[site]) for site in sorted(inputs, key=self._order)]

    def _order(self, site: Site) -> tuple[int, int, int]:
        return ORDER.index(site.kind), site.level, site.number

    @cached_property
    def _ops(self) -> dict[Site, list[ir.Operation]]:
        """The ops of each site, in program order."""
        program = self.program
        ops: dict[Site, list[ir.Operation]] = defaultdict(list)
        for op in (*program.before, *program.inside, *program.after):
            for site in self.placement.sites_of(op.results[0]):
                ops[site].append(op)
        return ops

    def _results(self) -> Iterable[tuple[Source, ir.Value]]:
        """The results of the program, with the sites that return them."""
        for number, value in enumerate(self.program.loop.returned()):
            yield Source("result", number, self.placement.after.result_site(value)), value

    def _states(self) -> Iterable[tuple[Source, ir.Value, Site]]:
        """The carried values: before the loop, and after each microbatch."""
        for number, owners in self.placement.owners.items():
            for site in owners:
                source = Source("state", number, site)
                yield source, self.program.loop.op.operands[number], Site("pre", self.placement.chunks.group(site))
                yield source, self.program.yielded[number], site

    def _inputs(self, site: Site, returned: dict[Source, ir.Value]) -> dict[Source, list[ir.Value]]:
        """What a fragment reads, with the values that it stands for."""
        inputs: dict[Source, list[ir.Value]] = defaultdict(list)
        reads = self.program.reads
        read = [leaf for op in self._ops[site] for leaf in reads.of(op)]
        for leaf in dict.fromkeys((*read, *reads.of_values(returned.values()))):
            entering = self.program.entering(leaf)
            for each in reads.leaves(entering):
                if (source := self._source(site, each)) is not None:
                    inputs[source].append(leaf if each == entering else each)
        return inputs

    def _source(self, site: Site, leaf: ir.Value) -> Source | None:
        """From where a site gets a value; None if it computes it."""
        placement, program = self.placement, self.program
        if leaf in program.final:
            number = program.final[leaf]
            return Source("state", number, placement.nearest(site, placement.owners[number]))
        if leaf in program.carried:
            number = program.carried[leaf]
            owners = placement.owners[number]
            return Source("state", number, site) if site in owners else self._value(leaf, placement.nearest(site, owners))
        if is_argument(leaf):
            return Source("argument", ir.BlockArgument(leaf).arg_number)
        sites = placement.sites_of(leaf)
        return None if site in sites else self._value(leaf, placement.nearest(site, sites))

    def _value(self, value: ir.Value, site: Site) -> Source:
        number = self._numbers.setdefault(value, len(self._numbers))
        self._values[number] = value
        return Source("value", number, site)

    def _fragment(self, site: Site, inputs: dict[Source, list[ir.Value]], returned: dict[Source, ir.Value]) -> Fragment:
        module = _Writer(self.program, site, inputs, returned, self.terms).write(self._ops[site])
        return Fragment(site, self.placement.chunks.group(site), tuple(inputs), tuple(returned), module)


@dataclass(eq=False)
class _Writer:
    """Writes the module of a site."""

    program: LoopProgram
    site: Site
    inputs: dict[Source, list[ir.Value]]
    returned: dict[Source, ir.Value]
    terms: frozenset[int]
    _written: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "By value of the program, the value of the fragment."
    _shardings: dict[Sharding, ir.Value] = field(default_factory=dict)

    def write(self, ops: Iterable[ir.Operation]) -> ir.Module:
        loop = self.program.loop
        with loop.module.context, loop.op.location:
            module = ir.Module.create()
            for view in loop.module.body.operations:
                if view.operation.name == "mesh.mesh":
                    view.operation.clone(ip=ir.InsertionPoint(module.body))
            types = [values[0].type for values in self.inputs.values()]
            results = [value.type for value in self.returned.values()]
            kind = ir.TypeAttr.get(ir.FunctionType.get(types, results))
            named = {"sym_name": ir.StringAttr.get("main"), "function_type": kind}
            function = ir.Operation.create("func.func", [], [], named, regions=1, ip=ir.InsertionPoint(module.body))
            block = function.regions[0].blocks.append(*types)
            self._body(ops, block)
            self._donate(function)
            copy_named_functions(loop.module, module)
        return module

    def _body(self, ops: Iterable[ir.Operation], block: ir.Block) -> None:
        end = Builder(ir.Location.current, ir.InsertionPoint(block))
        for argument, (source, values) in zip(block.arguments, self.inputs.items(), strict=True):
            written = self._received(argument, source, values[0], end)
            self._written |= dict.fromkeys(values, written)
        for op in ops:
            self._clone(op, end)
        returned = [self._returned(source, value, end) for source, value in self.returned.items()]
        ir.Operation.create("func.return", [], returned, ip=end.ip)

    def _clone(self, op: ir.Operation, end: Builder) -> None:
        for value in self.program.reads.operands(op):
            self._value(value, end)
        clone = op.clone(ip=end.ip)
        for inner in walk(clone):
            for index, operand in enumerate(inner.operands):
                if operand in self._written:
                    inner.operands[index] = self._written[operand]
        for result, own in zip(op.results, clone.results, strict=True):
            self._written[result] = self._define(own, result, Builder(op.location, end.ip))

    def _value(self, value: ir.Value, end: Builder) -> ir.Value:
        """A value of the program in the fragment; clones ops that are copied to their readers."""
        if value not in self._written:
            entering = self.program.entering(value)
            if entering != value:
                self._written[value] = self._value(entering, end)
            else:
                self._clone(op_of(value), end)
        return self._written[value]

    def _define(self, own: ir.Value, value: ir.Value, end: Builder) -> ir.Value:
        """The fragment's value with the annotation of its definition, if it has one."""
        sharding = self.program.loop.shardings.get(value)
        return own if sharding is None else build.shard(own, self._value(sharding, end), at=end)

    def _received(self, own: ir.Value, source: Source, value: ir.Value, end: Builder) -> ir.Value:
        """An argument of the fragment, with the sharding that the value has where it is computed."""
        sharding = self._crossing_sharding(source, value, end)
        return own if sharding is None else build.shard(own, sharding, at=end)

    def _sharding_of(self, value: ir.Value) -> ir.Value | None:
        """The annotation of a value, be it of its definition or of a use."""
        sharding = self.program.loop.shardings.get(value)
        return op_of(value).operands[1] if sharding is None and defining_name(value) == SHARD else sharding

    def _returned(self, source: Source, value: ir.Value, end: Builder) -> ir.Value:
        own, sharding = self._value(value, end), self._crossing_sharding(source, value, end)
        return own if sharding is None else build.shard(own, sharding, annotate_for_users=True, at=end)

    def _crossing_sharding(self, source: Source, value: ir.Value, end: Builder) -> ir.Value | None:
        """The sharding of a value in the fragment: in equal shards, and without the axes along which devices hold terms of a sum,
        as what crosses is summed up, but the carried values that are `terms`. None if it has no annotation."""
        sharding = self._sharding_of(value)
        if sharding is None or (source.kind == "state" and source.number in self.terms):
            return sharding and self._value(sharding, end)
        crossing = ShardingOp(op_of(sharding)).value.without_partial()
        if crossing.is_plain:
            split = even_split(tuple(shape_of(value)), self.program.loop.meshes[crossing.mesh], crossing.split_axes)
            crossing = replace(crossing, split_axes=split)
        if crossing not in self._shardings:
            self._shardings[crossing] = build.sharding(crossing, at=end)
        return self._shardings[crossing]

    def _donate(self, function: ir.Operation) -> None:
        """A carried value is replaced by the next one in its own memory."""
        numbers = {source: number for number, source in enumerate(self.returned) if source.kind == "state"}
        own = [source in numbers and source.site == self.site for source in self.inputs]
        attribute = [
            {ALIASED: aliased(numbers[source])} if is_own else {} for source, is_own in zip(self.inputs, own, strict=True)
        ]
        set_entries(function, "arg_attrs", attribute)
