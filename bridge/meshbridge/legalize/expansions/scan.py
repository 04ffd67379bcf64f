"""`chlo.scan` as the loop that it is: StableHLO has no op for a scan with any body."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.legalize.table import replaces


@replaces("chlo.scan")
def expand_scan(op: ir.Operation) -> list[ir.Value]:
    """A `stablehlo.while` that carries a counter, the inputs, the outputs so far and the scan's own carried values; per iteration
    one slice of each input goes in, and one of each output comes out."""
    count, _ = integers(op.attributes["operandSegmentSizes"])
    made, _ = integers(op.attributes["resultSegmentSizes"])
    emit, along = Builder.before(op), ir.IntegerAttr(op.attributes["dimension"]).value
    inputs, carried = list(op.operands)[:count], list(op.operands)[count:]
    outputs = [emit.splat(result.type, 0) for result in list(op.results)[:made]]
    length = ir.IntegerAttr(op.attributes["scan_dim_size"]).value if not inputs else shape_of(inputs[0])[along]

    start = [emit.scalar(0), *inputs, *outputs, *carried]
    types = [value.type for value in start]
    loop = emit.op("while", types, start, regions=2)
    condition, body = (region.blocks.append(*types, arg_locs=[op.location] * len(types)) for region in loop.regions)
    emit = Builder(op.location, ir.InsertionPoint(condition))
    emit.op("return", [], [emit.compare("LT", condition.arguments[0], length)])
    counter, *rest = body.arguments
    sources, written, state = rest[:count], rest[count : count + made], rest[count + made :]
    emit = Builder(op.location, ir.InsertionPoint(body))
    index = emit.subtract(emit.scalar(length - 1), counter) if _is_reverse(op) else counter
    slices = [_without(emit.dynamic_slice(source, along, index, 1), along, emit) for source in sources]
    yielded = _moved(op.regions[0].blocks[0], [*slices, *state], body)
    puts = [_put(*pair, index, along, emit) for pair in zip(written, yielded[:made], strict=True)]
    emit.op("return", [], [emit.add(counter, 1), *sources, *puts, *yielded[made:]])
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


def _without(row: ir.Value, along: int, emit: Builder) -> ir.Value:
    """A slice of one element along `along`, without that dimension."""
    return emit.reshape(row, [size for dim, size in enumerate(shape_of(row)) if dim != along])


def _put(target: ir.Value, value: ir.Value, index: ir.Value, along: int, emit: Builder) -> ir.Value:
    """`target` with `value` at `index` of dimension `along`."""
    sizes = [1 if dim == along else size for dim, size in enumerate(shape_of(target))]
    return emit.dynamic_update(target, emit.reshape(value, sizes), along, index)
