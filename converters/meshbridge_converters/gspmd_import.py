"""StableHLO + GSPMD's annotations -> StableHLO + sdy, in place; `sdy_import` goes on from there.

    func.func @main(%arg0: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) … {
      %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[1]",
                                                   mhlo.sharding = "{devices=[2,4]<=[8]}"} …
==>
    sdy.mesh @mesh = <["0"=2, "1"=4]>
    func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"0"}, {}]>}) … {
      %0 = sdy.sharding_constraint %arg0 <@mesh, [{"0"}, {"1", ?}]> : tensor<8x4xf32>

GSPMD numbers devices and has no mesh; `mesh_inference` finds the coarsest, whose axes are called by their number. Shardings of
version 3 name the mesh and its axes.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

from meshbridge.ir.builder import Builder, integer
from meshbridge.ir.errors import ShardingWarning
from meshbridge.ir.mlir import SHARDING_GROUP, OpError, function_type, ir, source_location
from meshbridge_converters import carriers, gspmd_manual
from meshbridge_converters.carriers import MHLO_SHARDING, SHARDING
from meshbridge_converters.gspmd_annotations import CONSTRAINT, Survey, open_dims, rank, string, tiling, tilings
from meshbridge_converters.gspmd_writer import Writer
from meshbridge_converters.hlo_shardings import Tiling, has_metadata
from meshbridge_converters.manual_contexts import ManualContexts

Value: TypeAlias = "ir.Value[Any]"

SHARD_LIKE = "meshbridge.shard_like"
"""Discardable attribute of `sdy.sharding_group`: GSPMD says `shard_like`, not `shard_as`."""

IN_SHARDING = "meshbridge.in_sharding"
"""Discardable attribute of `sdy.sharding_group`: GSPMD says it in the sharding of the value, not in a call of its own."""

UNKNOWN = "meshbridge.unknown"
"""Discardable attribute of `sdy.sharding_constraint`: GSPMD says `{unknown}`, not that every dimension is unspecified."""


def to_sdy(module: ir.Module) -> None:
    """Turns every GSPMD annotation of `module` into the sdy one that means the same, in place.

    Raises OpError with the location of an annotation that is not an HloSharding, that does not fit its value, that no mesh of
    axes expresses together with those before it, or that says of a value that it is manual where it is not. Warns of metadata,
    which is dropped.
    """
    with module.context, ir.Location.unknown():
        survey = Survey.of(module)
        if next(survey.strings(), None) is None:
            return
        writer = Writer.of(module, survey)
        _warn_of_metadata(survey)
        gspmd_manual.fold(survey, writer)
        importer = _Importer(writer, ManualContexts.of(module))
        for function in survey.functions:
            importer.arguments(function)
            importer.results(function)
        for op in survey.others:
            importer.operation(op)
        for op in survey.calls[CONSTRAINT]:
            importer.constraint(op)


def _warn_of_metadata(survey: Survey) -> None:
    """One ShardingWarning, at the first annotation with metadata."""
    annotated = [op for op, text in survey.strings() if has_metadata(text)]
    if annotated:
        others = f" (and so do {len(annotated) - 1} more annotations)" if annotated[1:] else ""
        found = f"'{annotated[0].name}' op carries metadata in {MHLO_SHARDING}{others}"
        meaning = "which no other notation of shardings can say: it is dropped, and the shardings stay as they are"
        warnings.warn(f"{source_location(annotated[0])}: warning: {found}, {meaning}", ShardingWarning, stacklevel=2)


class _Importer:
    """Rewrites one annotation after the other."""

    def __init__(self, writer: Writer, contexts: ManualContexts) -> None:
        self.writer = writer
        self.contexts = contexts

    def sharding(self, op: ir.Operation, one: Tiling, rank: int, opened: tuple[int, ...] = ()) -> ir.Attribute:
        """The `#sdy.sharding<…>` of a value at `op`. Raises OpError where it is said to be local along other axes than it is."""
        manual = self.writer.manual_axes(one)
        if manual and self.contexts.around(op) != {manual}:
            axes = ", ".join(self.writer.in_order(manual))
            raise OpError(
                op,
                f"carries a sharding that is manual along the mesh axes {axes}, but stands in no manual region along just these",
                hint="a manual region is between custom calls of SPMDFullToShardShape and SPMDShardToFullShape",
            )
        return self.writer.sharding(op, one, rank, opened)

    def arguments(self, function: ir.Operation) -> None:
        found = {}
        kinds = function_type(function).inputs
        for index, one in _taken(function, "arg_attrs").items():
            found[index] = self.sharding(function, one, rank(kinds[index]))
            if one.group is not None:
                if not len(function.regions[0].blocks):
                    raise OpError(function, "is a declaration, expected no shard_as or shard_like on its arguments")
                block = function.regions[0].blocks[0]
                _group(function, one, block.arguments[index], ir.InsertionPoint.at_block_begin(block), IN_SHARDING)
        carriers.give(function, "arg_attrs", found)

    def results(self, function: ir.Operation) -> None:
        found = {}
        kinds = function_type(function).results
        for index, one in _taken(function, "res_attrs").items():
            if one.group is not None:
                raise OpError(function, f"has shard_as or shard_like on result {index}, expected it on a @{CONSTRAINT} call")
            found[index] = self.sharding(function, one, rank(kinds[index]))
        carriers.give(function, "res_attrs", found)

    def operation(self, op: ir.Operation) -> None:
        """One sharding per result. An operation without results has one, as in sdy."""
        found = tilings(op, string(op, op.attributes[MHLO_SHARDING]))
        ranks = [rank(result.type) for result in op.results] or [0]
        if len(found) != len(ranks):
            raise OpError(op, f"carries {len(found)} shardings for {len(ranks)} results")
        shardings = [self.sharding(op, one, rank) for one, rank in zip(found, ranks, strict=True)]
        for index, one in enumerate(found):
            if one.group is not None:
                if not len(op.results):
                    raise OpError(op, "has no results, expected no shard_as or shard_like")
                _group(op, one, op.results[index], ir.InsertionPoint.after(op), IN_SHARDING)
        del op.attributes[MHLO_SHARDING]
        op.attributes[SHARDING] = carriers.per_value_attr(shardings)

    def constraint(self, op: ir.Operation) -> None:
        """`@Sharding`: a constraint, and perhaps a member of a group. One that only names a group constrains nothing."""
        one, value = tiling(op), op.operands[0]
        attrs = {"sharding": self.sharding(op, one, rank(value.type), open_dims(op))}
        if one.kind != "unknown" or one.group is None:
            if one.kind == "unknown":
                attrs[UNKNOWN] = ir.UnitAttr.get()
            value = Builder.before(op).value("sdy.sharding_constraint", value.type, [value], attrs)
        if one.group is not None:
            _group(op, one, value, ir.InsertionPoint(op), *(() if one.kind == "unknown" else (IN_SHARDING,)))
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _taken(function: ir.Operation, side: str) -> dict[int, Tiling]:
    """Removes the annotations from a function's arguments or results, and returns them by index."""
    found = {}
    for index, attr in enumerate(carriers.take(function, side, MHLO_SHARDING)):
        if attr is not None:
            (one, *more) = tilings(function, string(function, attr))
            if more:
                raise OpError(function, "carries a tuple of shardings on one argument or result")
            found[index] = one
    return found


def _group(op: ir.Operation, one: Tiling, value: Value, ip: ir.InsertionPoint, *marks: str) -> None:
    """Makes `value` a member of the group that a sharding at `op` names."""
    assert one.group is not None
    attrs: dict[str, ir.Attribute] = {"group_id": integer(one.group.number)}
    attrs |= dict.fromkeys((*marks, *((SHARD_LIKE,) if one.group.like else ())), ir.UnitAttr.get())
    ir.Operation.create(SHARDING_GROUP, [], [value], attrs, loc=op.location, ip=ip)
