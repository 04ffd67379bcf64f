"""Annotated mesh IR -> StableHLO + sdy (stage 1 or 2 -> stage 0), in place: the inverse of `sdy_import`.

What a `mesh.shard` becomes follows from where it stands, unless `meshbridge.source` names the operation that it came from:

| annotates | becomes |
|---|---|
| a function argument | `sdy.sharding` on the argument |
| a result of an operation | `sdy.sharding` on the operation |
| another definition (an argument of a region) | an `sdy.sharding_constraint` without uses |
| a use by `return`, and no other | `sdy.sharding` on the function's result |
| an operand or result of `sdy.manual_computation` | its `in_shardings` or `out_shardings` |
| another use | an `sdy.sharding_constraint` |

A *closed* export leaves Shardy nothing to decide: no open dimension, no priority, and no constraint that says of a use what its
definition says already, or of an argument of a region what the operation around it says. It also takes the `meshbridge.*`
attributes off, which the way back to stage 2 would need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.dialect.ops import (
    MANUAL_AXES,
    OPEN_DIMS,
    PRIORITIES,
    REPLICATED_AXES,
    SOURCE,
    SOURCE_ATTRIBUTES,
    UNSAID,
    MeshOp,
    ShardingOp,
    ShardOp,
)
from meshbridge.ir import mlir
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MANUAL, OpError, dictionary, ir, tensor_type, walk_all
from meshbridge.ir.sharding import DYNAMIC, Sharding
from meshbridge.ops.unsupported import DEVICE
from meshbridge_converters import carriers, group_meshes, meshes, sdy_attributes
from meshbridge_converters.carriers import (
    CONSTRAINING,
    EDGES,
    NAMED,
    OUR_PROPAGATION_EDGES,
    PROPAGATION_EDGES,
    SHARDING,
)
from meshbridge_converters.sdy_attributes import SdyMesh

Value: TypeAlias = "ir.Value[Any]"

CONSTRAINT = "sdy.sharding_constraint"

CONTROL_FLOW = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
"""A closed export constrains the uses of their results. XLA drops results that are dead or invariant, but not their entries in
the operation's attribute.
"""

Place = tuple[int, int]
"""The number of an operation in `_Survey.operations`, and the index of one of its arguments or results."""


def export_module(module: ir.Module, *, closed: bool = False) -> None:
    """Turns every mesh annotation of `module` into sdy shardings, in place. A module without a mesh is left as it is.

    `closed` writes what the annotations say as final. Raises OpError for what sdy cannot say (halos, offsets, partial values of a
    kind other than sum, sharding values that are only known at run time, mesh collectives), MeshError where the result breaks a
    rule of sdy.
    """
    with module.context, ir.Location.unknown():
        if not mesh_ops(module.body):
            return
        survey = _Survey.of(module)
        named_by_groups = group_meshes.named(module)
        restored = meshes.restore(module)
        _Export(survey, restored, closed).run()
        group_meshes.write_symbols(module, {name: restored[name].attr for name in named_by_groups})
        _strip(survey.operations, "meshbridge." if closed else DEVICE)
    mlir.verify(module)


def _strip(operations: Iterable[ir.Operation], beginning: str) -> None:
    """Takes discardable attributes of ours off the operations: those whose names begin so."""
    for op in operations:
        for name in [name for name in op.attributes if name.startswith(beginning)]:
            del op.attributes[name]


@dataclass(eq=False)
class _Shard:
    """One `mesh.shard`."""

    op: ir.Operation
    sharding: Sharding
    for_users: bool
    source: str

    @property
    def value(self) -> Value:
        source: Value = self.op.operands[0]
        return source


@dataclass
class _Survey:
    """What one walk over the module finds."""

    operations: list[ir.Operation] = field(default_factory=list)  # an operation's own hash changes with its contents
    shards: dict[Value, _Shard] = field(default_factory=dict)  # by result, in order
    sharding_ops: list[ir.Operation] = field(default_factory=list)
    functions: list[ir.Operation] = field(default_factory=list)
    returns: list[tuple[ir.Operation, int]] = field(default_factory=list)  # with the number of their function
    function: int = 0  # the number of the function that the walk is in
    leftovers: list[ir.Operation] = field(default_factory=list)  # operations that still carry sdy shardings
    definitions: dict[Value, Place] = field(default_factory=dict)
    arguments: dict[Value, Place] = field(default_factory=dict)  # of functions and named computations

    @classmethod
    def of(cls, module: ir.Module) -> _Survey:
        survey = cls()
        values: dict[Value, Sharding] = {}
        for op in walk_all(module):
            survey._visit(op, op.name, values)
        return survey

    def _visit(self, op: ir.Operation, name: str, values: dict[Value, Sharding]) -> None:
        if name == ShardOp.OPERATION_NAME:
            self._visit_shard(op, values)
        elif name == ShardingOp.OPERATION_NAME:
            values[op.results[0]] = _static(op)
            self.sharding_ops.append(op)
        elif name == "func.func":
            self.functions.append(op)
            self._visit_arguments(op)
            self.function = len(self.operations) - 1
        elif name == "func.return":
            self.returns.append((op, self.function))
        elif name.startswith("mesh."):
            if name != MeshOp.OPERATION_NAME:
                raise OpError(op, "has no counterpart in sdy", hint="only a program that is not partitioned can go back to sdy")
        else:
            number = len(self.operations)
            for index, result in enumerate(op.results):
                self.definitions[result] = number, index
            if name == NAMED:
                self._visit_arguments(op)
            else:
                self.operations.append(op)
            if name.startswith("sdy.") or SHARDING in op.attributes:
                self.leftovers.append(op)

    def _visit_arguments(self, op: ir.Operation) -> None:
        if len(op.regions[0].blocks):
            arguments = op.regions[0].blocks[0].arguments
            self.arguments |= {value: (len(self.operations), index) for index, value in enumerate(arguments)}
        self.operations.append(op)

    def _visit_shard(self, op: ir.Operation, values: dict[Value, Sharding]) -> None:
        sharding = values.get(op.operands[1])
        if sharding is None:
            raise OpError(op, "takes a sharding that is not a mesh.sharding, which sdy cannot say")
        attrs = op.attributes
        source = ir.StringAttr(attrs[SOURCE]).value if SOURCE in attrs else ""
        self.shards[op.results[0]] = _Shard(op, sharding, "annotate_for_users" in attrs, source)


def _static(op: ir.Operation) -> Sharding:
    sharding = ShardingOp(op).value
    if DYNAMIC in (*sharding.halo_sizes, *sharding.offsets):
        raise OpError(op, "depends on values that are only known at run time, which sdy cannot say")
    return sharding


Pending = defaultdict[int, dict[int, ir.Attribute]]
"""Per number of an operation, the shardings of its arguments or results by index."""


@dataclass
class _Export:
    """Rewrites one annotation after the other; what ends up in an attribute is collected and written once, at the end."""

    survey: _Survey
    meshes: dict[str, SdyMesh]
    closed: bool
    on_arguments: Pending = field(default_factory=lambda: defaultdict(dict))
    on_results: Pending = field(default_factory=lambda: defaultdict(dict))
    said: dict[Value, Sharding] = field(default_factory=dict)  # of definitions
    written: dict[object, ir.Attribute] = field(default_factory=dict)

    def run(self) -> None:
        self._relink()
        for terminator, function in self.survey.returns:
            self._results(terminator, function)
        for op in self.survey.leftovers:
            if op.name == MANUAL:
                self._manual_computation(op)
        for shard in list(self.survey.shards.values()):
            self._place(shard)
        for op in self.survey.sharding_ops:
            op.erase()
        for number, found in self.on_arguments.items():
            self._write_arguments(self.survey.operations[number], found)
        for number, found in self.on_results.items():
            self._write_results(self.survey.operations[number], found)
        for op in self.survey.operations:
            carriers.rename(op, OUR_PROPAGATION_EDGES, PROPAGATION_EDGES)

    def attribute(self, shard: _Shard) -> ir.Attribute:
        """The `#sdy.sharding<…>` that `shard` means."""
        attrs = shard.op.attributes
        kept = (REPLICATED_AXES,) if self.closed else (OPEN_DIMS, PRIORITIES, REPLICATED_AXES)
        extras = {name: attrs[name] for name in kept if name in attrs}
        if shard.source == MANUAL and SOURCE_ATTRIBUTES in attrs:
            implied = attributes.integers(ir.DictAttr(attrs[SOURCE_ATTRIBUTES])[REPLICATED_AXES])
            said = set(attributes.integers(extras[REPLICATED_AXES])) - set(implied)
            extras[REPLICATED_AXES] = attributes.axes_attr(sorted(said))
        tensor = tensor_type(shard.value)
        rank = tensor.rank if tensor else 0
        key = (shard.sharding, rank, *extras.items())
        if key not in self.written:
            self.written[key] = self._write(shard, rank, extras)
        return self.written[key]

    def _write(self, shard: _Shard, rank: int, extras: dict[str, ir.Attribute]) -> ir.Attribute:
        mesh = self.meshes.get(shard.sharding.mesh)
        if mesh is None:
            raise OpError(shard.op, f"names the unknown mesh @{shard.sharding.mesh}")
        try:
            return sdy_attributes.write(shard.sharding, rank, extras, mesh)
        except ValueError as error:
            raise OpError(shard.op, str(error)) from None

    def _relink(self) -> None:
        """Shardings that stayed in sdy name their mesh by its symbol again."""
        symbols: dict[object, str] = {mesh.attr: name for name, mesh in reversed(self.meshes.items()) if not mesh.inlined}

        def relinked(attr: ir.Attribute) -> ir.Attribute:
            symbol = symbols.get(sdy_attributes.mesh_of(attr))
            return attr if symbol is None else sdy_attributes.on_mesh(attr, symbol)

        for op in (*self.survey.functions, *self.survey.leftovers):
            carriers.rewrite(op, op.name, relinked)

    def _results(self, terminator: ir.Operation, function: int) -> None:
        """Uses by `return` alone become the function's result shardings."""
        operands = list(terminator.operands)
        for index, operand in enumerate(operands):
            shard = self.survey.shards.get(operand)
            if shard is None or not shard.for_users or shard.source or len(list(operand.uses)) != operands.count(operand):
                continue
            self.on_results[function][index] = self.attribute(shard)
            terminator.operands[index] = shard.value

    def _manual_computation(self, op: ir.Operation) -> None:
        ins = carriers.per_value(op.attributes["in_shardings"])
        for index, operand in enumerate(list(op.operands)):
            shard = self._passed_in(operand)
            if shard is not None:
                ins[index] = self.attribute(shard)
                op.operands[index] = shard.value
        op.attributes["in_shardings"] = carriers.per_value_attr(ins)
        for name in (MANUAL_AXES, meshes.MESH):
            if name in op.attributes:
                del op.attributes[name]

    def _passed_in(self, operand: Value) -> _Shard | None:
        """The annotation made of an entry of `in_shardings`. Others of the same use may follow it."""
        shard = self.survey.shards.get(operand)
        while shard is not None and shard.for_users and shard.source != MANUAL:
            shard = self.survey.shards.get(shard.value)
        return shard if shard is not None and shard.source == MANUAL and shard.for_users else None

    def _place(self, shard: _Shard) -> None:
        """Writes what `shard` says where sdy says it, and takes the operation out."""
        value, result = shard.value, shard.op.results[0]
        used = next(iter(result.uses), None) is not None
        if shard.for_users:
            is_stated = shard.source in (*CONSTRAINING, *EDGES) and shard.source != CONSTRAINT and not self.closed
            if (used or is_stated) and shard.source != MANUAL and not self._is_redundant(shard):
                result.replace_all_uses_with(self._operation(shard))
        elif shard.source in CONSTRAINING:
            self._operation(shard)
        elif value in self.survey.arguments:
            number, index = self.survey.arguments[value]
            self.on_arguments[number][index] = self.attribute(shard)
        elif value in self.survey.definitions:
            self._place_on_operation(shard, used)
        elif not self.closed:
            self._operation(shard)
        if not shard.for_users:
            self.said[value] = shard.sharding
        result.replace_all_uses_with(value)
        shard.op.erase()

    def _place_on_operation(self, shard: _Shard, used: bool) -> None:
        number, index = self.survey.definitions[shard.value]
        if not (self.closed and self.survey.operations[number].name in CONTROL_FLOW):
            self.on_results[number][index] = self.attribute(shard)
        elif used:
            shard.op.results[0].replace_all_uses_with(self._operation(shard))

    def _is_redundant(self, shard: _Shard) -> bool:
        """Whether a closed export says the same of the definition already."""
        if not self.closed:
            return False
        return UNSAID in shard.op.attributes or self.said.get(shard.value) == shard.sharding

    def _operation(self, shard: _Shard) -> Value:
        """What the sdy operation gives that `shard` was made of, where it is."""
        name = shard.source if shard.source in (*CONSTRAINING, *EDGES) else CONSTRAINT
        attrs = {} if UNSAID in shard.op.attributes else {CONSTRAINING[name]: self.attribute(shard)}
        if SOURCE_ATTRIBUTES in shard.op.attributes:
            attrs |= dictionary(shard.op.attributes[SOURCE_ATTRIBUTES])
        return Builder.before(shard.op).value(name, shard.value.type, [shard.value], attrs)

    def _write_arguments(self, op: ir.Operation, found: dict[int, ir.Attribute]) -> None:
        if op.name == "func.func":
            carriers.give(op, "arg_attrs", found)
        else:
            self._write_per_value(op, "in_shardings", list(op.regions[0].blocks[0].arguments), found)

    def _write_results(self, op: ir.Operation, found: dict[int, ir.Attribute]) -> None:
        if op.name == "func.func":
            carriers.give(op, "res_attrs", found)
        else:
            self._write_per_value(op, "out_shardings" if op.name in (MANUAL, NAMED) else SHARDING, list(op.results), found)

    def _write_per_value(self, op: ir.Operation, listed: str, values: list[Value], found: dict[int, ir.Attribute]) -> None:
        """What was `found` in place of what the attribute says; a value that nothing is said of is open in every dimension."""
        if listed in op.attributes:
            entries = carriers.per_value(op.attributes[listed])
        else:
            mesh = self._mesh_of(next(iter(found.values())))
            ranks = [tensor.rank if (tensor := tensor_type(value)) else 0 for value in values]
            entries = [sdy_attributes.open_sharding(mesh, rank) for rank in ranks]
        for index, attr in found.items():
            entries[index] = attr
        op.attributes[listed] = carriers.per_value_attr(entries)

    def _mesh_of(self, attr: ir.Attribute) -> SdyMesh:
        return next(mesh for mesh in self.meshes.values() if mesh.reference == sdy_attributes.mesh_of(attr))
