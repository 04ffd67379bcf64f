"""StableHLO + GSPMD's annotations -> StableHLO + sdy, in place; `sdy_import` goes on from there.

    func.func @main(%arg0: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) … {
      %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[1]",
                                                   mhlo.sharding = "{devices=[2,4]<=[8]}"} …
==>
    sdy.mesh @mesh = <["0"=2, "1"=4]>
    func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"0"}, {}]>}) … {
      %0 = sdy.sharding_constraint %arg0 <@mesh, [{"0"}, {"1", ?}]> : tensor<8x4xf32>

GSPMD numbers devices and has no mesh; `mesh_inference` finds the coarsest. Axes are called by their number.
"""

from __future__ import annotations

from meshbridge.mlir import OpError, ir
from meshbridge_converters import carriers, gspmd_manual
from meshbridge_converters.carriers import FUNCTION, SHARDING
from meshbridge_converters.gspmd_annotations import CONSTRAINT, MHLO_SHARDING, Survey, Writer, open_dims, tiling, tilings
from meshbridge_converters.invariants import GROUP


def to_sdy(module: ir.Module) -> None:
    """Turns every GSPMD annotation of `module` into the sdy one that means the same, in place.

    Raises OpError with the location of an annotation that is not an HloSharding, that does not fit its value, or that no mesh of
    axes expresses together with those before it.
    """
    with module.context, ir.Location.unknown():
        survey = Survey.of(module)
        if next(survey.carriers(), None) is None:
            return
        writer = Writer.of(module, survey)
        gspmd_manual.fold(survey, writer)
        for function in survey.functions:
            for side in FUNCTION:
                _function_side(function, side, writer)
        for op in survey.others:
            _operation(op, writer)
        for op in survey.calls[CONSTRAINT]:
            _constraint(op, writer)


def _function_side(function: ir.Operation, side: str, writer: Writer) -> None:
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    types = kind.inputs if side == "arg_attrs" else kind.results
    found = {}
    for index, text in enumerate(carriers.take(function, side, MHLO_SHARDING)):
        if text is not None:
            (one, *more) = tilings(function, ir.StringAttr(text).value)
            if more:
                raise OpError(function, "carries a tuple of shardings on one argument or result")
            if one.kind != "unknown":
                found[index] = writer.sharding(function, one, _rank(types[index]))
    carriers.give(function, side, found)


def _operation(op: ir.Operation, writer: Writer) -> None:
    """One sharding per result. An operation without results has one, as in sdy."""
    found = tilings(op, ir.StringAttr(op.attributes[MHLO_SHARDING]).value)
    ranks = [_rank(result.type) for result in op.results] or [0]
    if len(found) != len(ranks):
        raise OpError(op, f"carries {len(found)} shardings for {len(ranks)} results")
    del op.attributes[MHLO_SHARDING]
    shardings = [writer.sharding(op, one, rank) for one, rank in zip(found, ranks, strict=True)]
    op.attributes[SHARDING] = carriers.per_value_attr(shardings)


def _constraint(op: ir.Operation, writer: Writer) -> None:
    """`@Sharding`: a member of a group, a constraint, or nothing that is not said already."""
    one, value, ip = tiling(op), op.operands[0], ir.InsertionPoint(op)
    if one.group is not None:
        group: dict[str, ir.Attribute] = {"group_id": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), one.group)}
        ir.Operation.create(GROUP, [], [value], group, loc=op.location, ip=ip)
    if one.kind not in ("manual", "unknown"):
        attrs = {"sharding": writer.sharding(op, one, _rank(value.type), open_dims(op))}
        value = ir.Operation.create("sdy.sharding_constraint", [value.type], [value], attrs, loc=op.location, ip=ip).results[0]
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _rank(kind: ir.Type) -> int:
    return ir.RankedTensorType(kind).rank if isinstance(kind, ir.RankedTensorType) else 0
