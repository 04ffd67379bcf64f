"""`chlo.scan` as the loop that it is: StableHLO has no op for a scan with any body."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.table import replaces
from meshbridge.ops.rule import shape_of


@replaces("chlo.scan")
def expand_scan(op: ir.Operation) -> list[ir.Value]:
    """A `stablehlo.while` that carries a counter, the inputs, the outputs so far and the scan's own carried values; per iteration
    one slice of each input goes in, and one of each output comes out."""
    count, _ = integers(op.attributes["operandSegmentSizes"])
    made, _ = integers(op.attributes["resultSegmentSizes"])
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    inputs, carried = list(op.operands)[:count], list(op.operands)[count:]
    outputs = [Builder.current().splat(result.type, 0) for result in list(op.results)[:made]]
    length = ir.IntegerAttr(op.attributes["scan_dim_size"]).value if not inputs else shape_of(inputs[0])[along]
    number = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))

    start = [Builder.current().splat(number, 0), *inputs, *outputs, *carried]
    types = [value.type for value in start]
    loop = ir.Operation.create("stablehlo.while", types, start, regions=2)
    condition, body = (region.blocks.append(*types, arg_locs=[op.location] * len(types)) for region in loop.regions)
    with ir.InsertionPoint(condition):
        stablehlo.return_([Builder.current().compare("LT", condition.arguments[0], Builder.current().splat(number, length))])
    counter, *rest = body.arguments
    sources, written, state = rest[:count], rest[count : count + made], rest[count + made :]
    with ir.InsertionPoint(body):
        place = stablehlo.subtract(Builder.current().splat(number, length - 1), counter) if _is_reverse(op) else counter
        slices = [_taken(source, place, along) for source in sources]
        yielded = _moved(op.regions[0].blocks[0], [*slices, *state], body)
        puts = [_put(*pair, place, along) for pair in zip(written, yielded[:made], strict=True)]
        following = stablehlo.add(counter, Builder.current().splat(number, 1))
        stablehlo.return_([following, *sources, *puts, *yielded[made:]])
    results: list[ir.Value] = [*loop.results]
    return results[1 + count :]


def _is_reverse(op: ir.Operation) -> bool:
    return "is_reverse" in op.attributes and ir.BoolAttr(op.attributes["is_reverse"]).value


def _moved(scanned: ir.Block, arguments: Sequence[ir.Value], into: ir.Block) -> list[ir.Value]:
    """Moves the ops of the scan's body to the end of `into`, where they work on `arguments`; returns what they yield."""
    for argument, value in zip(scanned.arguments, arguments, strict=True):
        argument.replace_all_uses_with(value)
    *ops, last = [view.operation for view in scanned.operations]
    for inner in ops:
        into.append(inner)
    return list(last.operands)


def _starts(place: ir.Value, along: int, rank: int) -> list[ir.Value]:
    zero = Builder.current().splat(place.type, 0)
    return [place if dim == along else zero for dim in range(rank)]


def _taken(source: ir.Value, place: ir.Value, along: int) -> ir.Value:
    """The slice of `source` at index `place` of dimension `along`, without that dimension."""
    tensor = ir.RankedTensorType(source.type)
    sizes = [1 if dim == along else size for dim, size in enumerate(tensor.shape)]
    row = stablehlo.dynamic_slice(source, _starts(place, along, tensor.rank), sizes)
    kept = [size for dim, size in enumerate(tensor.shape) if dim != along]
    return stablehlo.reshape(ir.RankedTensorType.get(kept, tensor.element_type), row)


def _put(target: ir.Value, value: ir.Value, place: ir.Value, along: int) -> ir.Value:
    """`target` with `value` at index `place` of dimension `along`."""
    tensor = ir.RankedTensorType(target.type)
    sizes = [1 if dim == along else size for dim, size in enumerate(tensor.shape)]
    row = stablehlo.reshape(ir.RankedTensorType.get(sizes, tensor.element_type), value)
    return stablehlo.dynamic_update_slice(target, row, _starts(place, along, tensor.rank))
