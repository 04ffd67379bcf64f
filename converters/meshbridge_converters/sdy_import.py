"""StableHLO + sdy -> annotated mesh IR (stage 0 -> stage 1), in place.

    sdy.mesh @m = <["x"=2]>
    func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}) -> tensor<8x4xf32> {
      %0 = stablehlo.tanh %arg0 : tensor<8x4xf32>
      %1 = sdy.sharding_constraint %0 <@m, [{}, {}]> : tensor<8x4xf32>
      return %1 : tensor<8x4xf32>
==>
    mesh.mesh @m(shape = 2) {meshbridge.axis_names = ["x"]}
    func.func @main(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
      %s = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
      %0 = mesh.shard %arg0 to %s {meshbridge.open_dims = array<i64: 1>} : tensor<8x4xf32>
      %1 = stablehlo.tanh %0 : tensor<8x4xf32>
      %t = mesh.sharding @m split_axes = [[], []] : !mesh.sharding
      %2 = mesh.shard %1 to %t annotate_for_users {meshbridge.source = "sdy.sharding_constraint"} : tensor<8x4xf32>
      return %2 : tensor<8x4xf32>

A `mesh.shard` without `meshbridge.source` was an `sdy.sharding` attribute: on a function argument where it annotates one,
on a function result where it annotates for the users and feeds the `return`, on an operation otherwise.

Each distinct sharding is one `mesh.sharding` at the top of the function. Operations that sdy alone has stay as they are; the
shardings they must carry name the mesh by its contents, because its symbol now belongs to `mesh.mesh`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from meshbridge.dialect import attributes, build
from meshbridge.dialect.ops import MANUAL_AXES, REPLICATED_AXES, SOURCE, SOURCE_ATTRIBUTES, UNSAID
from meshbridge.ir import mlir
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MANUAL, SHARDING_GROUP, SIDES, OpError, ancestor_in, function_type, has_no_regions, ir, tensor_type
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.unsupported import DEVICE, has_effect
from meshbridge_converters import carriers, group_meshes, invariants, meshes, sdy_attributes, sdy_frontend
from meshbridge_converters.carriers import CONSTRAINING, NAMED, OUR_PROPAGATION_EDGES, PROPAGATION_EDGES, SHARDING
from meshbridge_converters.invariants import Groups
from meshbridge_converters.sdy_frontend import FRONTEND
from meshbridge_converters.sdy_meshes import Meshes

SHARDING_OF_EDGE = CONSTRAINING["sdy.data_flow_edge"]

REDUCING = frozenset(
    f"stablehlo.{name}"
    for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_window", "scatter", "select_and_scatter", "sort")
)
"""Operations whose body combines scalars, where a sharding says nothing: JAX writes such constraints inside `shard_map`."""

ISOLATED = frozenset({"func.func", MANUAL, NAMED})
"""Operations whose regions cannot use values from outside."""

Value: TypeAlias = "ir.Value[Any]"

Extras = dict[str, ir.Attribute]
"""Discardable attributes of a `mesh.shard`."""


def import_module(module: ir.Module) -> None:
    """Turns every sdy sharding of `module` into mesh annotations, in place. A module without any is left as it is.

    Raises MeshError, with the location of the offender, where a sharding is malformed: wrong rank, an axis used twice, an unknown
    mesh or axis, overlapping sub-axes, sub-axes that no factorisation of their axis has.
    """
    with module.context, ir.Location.unknown():
        sites = list(_sites(module.body, None, {}))
        if sdy_frontend.is_said_by(module, [site.op for site in sites]):
            _erase_marks(sites)
            sdy_frontend.to_operations(module)
            mlir.verify(module)  # what strings say, no verifier has seen yet
            sites = list(_sites(module.body, None, {}))
        sites = [site for site in sites if site.name in _IMPORTERS or SHARDING in site.op.attributes]
        _put_on_one_mesh(module, sites)
        group_meshes.write_in_place(module)
        _Import(Meshes.of(module, [(site.op, site.name) for site in sites])).run(sites)


def _put_on_one_mesh(module: ir.Module, sites: Iterable[_Site]) -> None:
    """Settles for every manual computation which mesh it speaks of."""
    declared = {symbol: op.attributes["mesh"] for symbol, op in sdy_attributes.declared_meshes(module).items()}
    for site in sites:
        if site.name == MANUAL:
            invariants.put_on_one_mesh(site.op, declared)


@dataclass(eq=False)
class _Scope:
    """A region that is isolated from above: its `mesh.sharding` values, one per sharding, stand at the `top` of its entry, before
    `mark` and so before everything that was there. `manual` are the names of the axes along which it is local already.
    """

    block: ir.Block
    mark: ir.Operation
    manual: frozenset[str]
    values: dict[Sharding, Value] = field(default_factory=dict)

    @property
    def top(self) -> ir.InsertionPoint:
        return ir.InsertionPoint(self.mark)


@dataclass(eq=False)
class _Site:
    """An operation that carries shardings, the scope that it stands in and, where it is isolated, the scope inside.

    `in_reducer`: it works on the scalars of a reducer or comparator.
    """

    op: ir.Operation
    name: str
    scope: _Scope | None
    inner: _Scope | None
    in_reducer: bool


def _sites(block: ir.Block, scope: _Scope | None, plain: dict[type[ir.OpView], str], reducer: bool = False) -> Iterator[_Site]:
    """Operations below `block` that the import changes, and those that may carry sdy in strings, outer ones first. `reducer`: it
    is the body of one of REDUCING.

    `plain` are the names of classes whose operations have no regions and are none of those: most, of which it asks one thing.
    """
    for child in block.operations:
        kind = type(child)
        if kind in plain:
            if SHARDING in (attrs := child.attributes) or FRONTEND in attrs:
                yield _Site(child.operation, plain[kind], scope, None, reducer)
            continue
        op = child.operation
        name = op.name
        inner = None
        if name in ISOLATED and len(op.regions[0].blocks):
            inner = _inside(op, name, scope)
        if name in _IMPORTERS or SHARDING in (attrs := op.attributes) or FRONTEND in attrs:
            yield _Site(op, name, scope, inner, reducer)
        if has_no_regions(child):
            if name not in _IMPORTERS:
                plain[kind] = name
            continue
        for region in op.regions:
            for nested in region.blocks:
                yield from _sites(nested, inner or scope, plain, name in REDUCING)


def _inside(op: ir.Operation, name: str, scope: _Scope | None) -> _Scope:
    entry = op.regions[0].blocks[0]
    manual = scope.manual if scope else frozenset()
    if name == MANUAL:
        manual |= set(invariants.manual_axes(op))
    mark = ir.Operation.create("mesh.top", ip=ir.InsertionPoint.at_block_begin(entry))
    return _Scope(entry, mark, manual)


def _erase_marks(sites: Iterable[_Site]) -> None:
    for site in sites:
        if site.inner is not None:
            site.inner.mark.erase()


@dataclass
class _Import:
    """Rewrites one site after the other. Operations that a `mesh.shard` replaces go at the end, as they may mark a place."""

    meshes: Meshes
    groups: Groups = field(default_factory=Groups)
    replaced: list[ir.Operation] = field(default_factory=list)

    def run(self, sites: list[_Site]) -> None:
        for site in sites:
            carriers.rename(site.op, PROPAGATION_EDGES, OUR_PROPAGATION_EDGES)
            _IMPORTERS.get(site.name, _Import.op_attribute)(self, site)
        for op in self.replaced:
            op.erase()
        _erase_marks(sites)

    def sharding(self, value: Value, attr: ir.Attribute, op: ir.Operation, scope: _Scope | None) -> tuple[Value, Extras]:
        """The `mesh.sharding` of what `attr` says of `value`, and the attributes for what that has no word for."""
        if scope is None:
            raise OpError(op, "carries a sharding outside of every function")
        tensor = tensor_type(value)
        sharding, extras = self.meshes.annotation(attr, tensor.rank if tensor else 0)
        found = scope.values.get(sharding)
        if found is None:
            found = scope.values[sharding] = build.sharding(sharding, at=Builder(op.location, scope.top))
        return found, extras

    def annotate_use(self, value: Value, attr: ir.Attribute, site: _Site, ip: ir.InsertionPoint, source: Extras) -> Value:
        """`value` as it is sharded for the use that takes the returned value."""
        sharding, extras = self.sharding(value, attr, site.op, site.scope)
        return build.shard(value, sharding, annotate_for_users=True, extras=extras | source, at=Builder(site.op.location, ip))

    def annotate(self, value: Value, attr: ir.Attribute, site: _Site, ip: ir.InsertionPoint, source: Extras) -> None:
        """Annotates the definition of `value`."""
        sharding, extras = self.sharding(value, attr, site.op, site.scope)
        build.shard_definition(value, sharding, extras=extras | source, at=Builder(site.op.location, ip))

    def annotate_arguments(self, attrs: Sequence[ir.Attribute | None], site: _Site, source: Extras) -> None:
        """Annotates the arguments of the region of an isolated operation."""
        assert site.inner is not None
        inside = replace(site, scope=site.inner)
        for argument, attr in zip(site.inner.block.arguments, attrs, strict=False):  # a function may have none at all
            if attr is not None and tensor_type(argument):
                self.annotate(argument, attr, inside, site.inner.top, source)

    def function(self, site: _Site) -> None:
        """Arguments at the top of the body, results before each `return`; a declaration keeps its attributes."""
        op = site.op
        if site.inner is None:
            self.stays(site)
            return
        arguments, results = (self._take(op, side) for side in SIDES)
        self.annotate_arguments(arguments, site, {})
        if any(results):
            for block in op.regions[0].blocks:
                self._annotate_results(block.operations[-1].operation, results, replace(site, scope=site.inner))

    def _take(self, function: ir.Operation, side: str) -> list[ir.Attribute | None]:
        """The shardings of a function's arguments or results, which lose them; tokens cannot be annotated and keep theirs."""
        kind = function_type(function)
        types = kind.inputs if side == "arg_attrs" else kind.results
        taken = carriers.take(function, side)
        kept = {
            index: self.meshes.without_symbols(attr)
            for index, attr in enumerate(taken)
            if attr is not None and not isinstance(types[index], ir.RankedTensorType)
        }
        carriers.give(function, side, kept)
        return [None if index in kept else attr for index, attr in enumerate(taken)]

    def _annotate_results(self, terminator: ir.Operation, results: Sequence[ir.Attribute | None], inside: _Site) -> None:
        if terminator.name != "func.return":
            return
        ip = ir.InsertionPoint(terminator)
        for index, attr in enumerate(results):
            if attr is not None and tensor_type(terminator.operands[index]):
                terminator.operands[index] = self.annotate_use(terminator.operands[index], attr, inside, ip, {})

    def op_attribute(self, site: _Site) -> None:
        """`sdy.sharding` on an operation: one annotation per tensor result. Other values (tokens, none at all) keep theirs."""
        op = site.op
        attrs = carriers.per_value(op.attributes[SHARDING])
        if site.name == mlir.CUSTOM_CALL and attrs and has_effect(op):
            self._keep_device(op, attrs[0])
        ip = ir.InsertionPoint.after(op)
        for result, attr in zip(list(op.results), attrs, strict=False):  # sdy gives one without results one sharding
            if tensor_type(result):
                self.annotate(result, attr, site, ip, {})
        if len(op.results) and _all_tensors(op.results):
            del op.attributes[SHARDING]
        else:
            self.stays(site)

    def _keep_device(self, op: ir.Operation, attr: ir.Attribute) -> None:
        """The device on which alone an effect happens, where that is another one than the first: results carry shardings, and a
        call may have none."""
        mesh = self.meshes.of_sharding(attr)
        if mesh.is_maximal and (device := mesh.value.device_ids[0]):
            op.attributes[DEVICE] = attributes.index_attr(device)

    def constraint(self, site: _Site) -> None:
        """An operation that says how its operand's uses are sharded or, if it has no uses itself, its operand's definition."""
        op, name = site.op, CONSTRAINING[site.name]
        value, result = op.operands[0], op.results[0]
        if site.in_reducer or not tensor_type(value) or name not in op.attributes:
            self.stays(site)
            return
        source = _source(op, name)
        if next(iter(result.uses), None) is None and site.name == "sdy.sharding_constraint":
            self.annotate(value, op.attributes[name], site, _place_for_definition(op, value, site.scope), source)
        else:
            result.replace_all_uses_with(self.annotate_use(value, op.attributes[name], site, ir.InsertionPoint(op), source))
        self.replaced.append(op)

    def edge(self, site: _Site) -> None:
        """An edge without a sharding says nothing: every dimension is open. sdy's own operation would not stand after a
        `mesh.shard`, which annotates what it marks.
        """
        op = site.op
        tensor = tensor_type(op.operands[0])
        if SHARDING_OF_EDGE in op.attributes:
            self.constraint(site)
            return
        mesh = self.meshes.with_axes(())
        if tensor is None or mesh is None or site.in_reducer:
            return
        attr = sdy_attributes.open_sharding(mesh, tensor.rank)
        source = _source(op, SHARDING_OF_EDGE) | {UNSAID: ir.UnitAttr.get()}
        op.results[0].replace_all_uses_with(self.annotate_use(op.operands[0], attr, site, ir.InsertionPoint(op), source))
        self.replaced.append(op)

    def manual_computation(self, site: _Site) -> None:
        """Operands and results annotated around the operation, which stays and says which mesh axes are manual."""
        op = site.op
        ins, outs = (carriers.per_value(op.attributes[name]) for name in ("in_shardings", "out_shardings"))
        names = invariants.manual_axes(op)
        mesh = self.meshes.of_sharding((ins + outs)[0]) if ins or outs else self.meshes.with_axes(names)
        if mesh is None:
            if names:
                raise OpError(op, f"is manual along {', '.join(names)}, which no mesh of the module has")
            return
        invariants.check_manual_axes(op, mesh)
        manual = [axis for name in names for axis in mesh.value.runs[name]]
        op.attributes[MANUAL_AXES] = attributes.axes_attr(manual)
        op.attributes[meshes.MESH] = ir.FlatSymbolRefAttr.get(mesh.value.name)
        before, after = ir.InsertionPoint(op), ir.InsertionPoint.after(op)
        for index, attr in enumerate(ins):
            value = op.operands[index]
            if tensor_type(value):
                source = self._manual_source(value, attr, manual)
                op.operands[index] = self.annotate_use(value, attr, site, before, source)
        for result, attr in zip(list(op.results), outs, strict=True):
            if tensor_type(result):
                self.annotate(result, attr, site, after, self._manual_source(result, attr, manual))
        self.stays(site)

    def _manual_source(self, value: Value, attr: ir.Attribute, manual: Sequence[int]) -> Extras:
        """Manual axes that a sharding does not name are replicated, which must be said where its dimensions are open."""
        tensor = tensor_type(value)
        sharding, extras = self.meshes.annotation(attr, tensor.rank if tensor else 0)
        replicated = attributes.integers(extras[REPLICATED_AXES]) if REPLICATED_AXES in extras else ()
        implied = [axis for axis in manual if axis not in (*sharding.used_axes, *replicated)]
        source: Extras = {SOURCE: ir.StringAttr.get(MANUAL)}
        if implied:
            source[REPLICATED_AXES] = attributes.axes_attr(sorted((*replicated, *implied)))
            source[SOURCE_ATTRIBUTES] = ir.DictAttr.get({REPLICATED_AXES: attributes.axes_attr(implied)})
        return source

    def named_computation(self, site: _Site) -> None:
        """Its arguments inside and its results outside; both lists of shardings are optional in sdy and go."""
        op = site.op
        source: Extras = {SOURCE: ir.StringAttr.get(NAMED)}
        if _all_tensors(op.regions[0].blocks[0].arguments) and "in_shardings" in op.attributes:
            self.annotate_arguments(carriers.per_value(op.attributes["in_shardings"]), site, source)
            del op.attributes["in_shardings"]
        if _all_tensors(op.results) and "out_shardings" in op.attributes:
            for result, attr in zip(list(op.results), carriers.per_value(op.attributes["out_shardings"]), strict=True):
                self.annotate(result, attr, site, ir.InsertionPoint.after(op), source)
            del op.attributes["out_shardings"]
        self.stays(site)

    def group(self, site: _Site) -> None:
        """A group stays; the annotations of its members are tied by its number."""
        self.groups.check(site.op, site.scope.manual if site.scope else frozenset())

    def stays(self, site: _Site) -> None:
        """An operation that only sdy has, or values that the mesh dialect cannot annotate: the symbol of the mesh goes."""
        carriers.rewrite(site.op, site.name, self.meshes.without_symbols)


def _all_tensors(values: Iterable[Value]) -> bool:
    return all(tensor_type(value) is not None for value in values)


def _source(op: ir.Operation, sharding: str) -> Extras:
    """Name of `op`, and what it says besides the attribute `sharding`."""
    others = {name: op.attributes[name] for name in op.attributes if name != sharding}
    source: Extras = {SOURCE: ir.StringAttr.get(op.name)}
    return {**source, SOURCE_ATTRIBUTES: ir.DictAttr.get(others)} if others else source


def _place_for_definition(op: ir.Operation, value: Value, scope: _Scope | None) -> ir.InsertionPoint:
    """Where `op` stands if that comes before all other uses of its operand, otherwise right after the operand's definition."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    if op.block == block:
        users = [ancestor_in(block, use.owner.operation) for use in value.uses]
        if all(user is None or user == op or op.is_before_in_block(user) for user in users):
            return ir.InsertionPoint(op)
    if not isinstance(owner, ir.Block):
        of_argument = owner.operation.name == "mesh.shard" and isinstance(owner.operation.operands[0].owner, ir.Block)
        if of_argument and scope and block == scope.block:  # it stands at the top, and this one's sharding may come after it
            return scope.top
        return ir.InsertionPoint.after(owner.operation)
    return scope.top if scope and owner == scope.block else ir.InsertionPoint.at_block_begin(owner)


_IMPORTERS: dict[str, Callable[[_Import, _Site], None]] = {
    "func.func": _Import.function,
    MANUAL: _Import.manual_computation,
    NAMED: _Import.named_computation,
    SHARDING_GROUP: _Import.group,
    **dict.fromkeys(CONSTRAINING, _Import.constraint),
    **dict.fromkeys(carriers.EDGES, _Import.edge),
}
