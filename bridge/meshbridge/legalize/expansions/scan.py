"""Expands `chlo.scan` to a loop: StableHLO has no op for a scan with an arbitrary body."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.legalize.table import replaces


@replaces("chlo.scan")
def expand_scan(op: ir.Operation) -> list[ir.Value]:
    """A `stablehlo.while` that carries a counter, the inputs, the outputs and the scan's own state. Each iteration reads one
    slice of each input, and writes one of each output."""
    count, _ = integers(op.attributes["operandSegmentSizes"])
    output_count, _ = integers(op.attributes["resultSegmentSizes"])
    builder, along = Builder.before(op), ir.IntegerAttr(op.attributes["dimension"]).value
    inputs, carried = list(op.operands)[:count], list(op.operands)[count:]
    outputs = [builder.splat(result.type, 0) for result in list(op.results)[:output_count]]
    length = ir.IntegerAttr(op.attributes["scan_dim_size"]).value if not inputs else shape_of(inputs[0])[along]

    start = [builder.scalar(0), *inputs, *outputs, *carried]
    types = [value.type for value in start]
    loop = builder.op("while", types, start, regions=2)
    condition, body = (region.blocks.append(*types, arg_locs=[op.location] * len(types)) for region in loop.regions)
    builder = Builder(op.location, ir.InsertionPoint(condition))
    builder.op("return", [], [builder.compare("LT", condition.arguments[0], length)])
    counter, *loop_values = body.arguments
    sources, written, state = loop_values[:count], loop_values[count : count + output_count], loop_values[count + output_count :]
    builder = Builder(op.location, ir.InsertionPoint(body))
    index = builder.subtract(builder.scalar(length - 1), counter) if _is_reverse(op) else counter
    slices = [_drop_dim(builder.dynamic_slice(source, along, index, 1), along, builder) for source in sources]
    yielded = _move_body(op.regions[0].blocks[0], [*slices, *state], body)
    puts = [_update_row(*pair, index, along, builder) for pair in zip(written, yielded[:output_count], strict=True)]
    builder.op("return", [], [builder.add(counter, 1), *sources, *puts, *yielded[output_count:]])
    results: list[ir.Value] = [*loop.results]
    return results[1 + count :]


def _is_reverse(op: ir.Operation) -> bool:
    return "is_reverse" in op.attributes and ir.BoolAttr(op.attributes["is_reverse"]).value


def _move_body(scanned: ir.Block, arguments: Sequence[ir.Value], into: ir.Block) -> list[ir.Value]:
    """Moves the ops of the scan's body to the end of `into`, with `arguments` for its arguments; returns the yielded values."""
    for argument, value in zip(scanned.arguments, arguments, strict=True):
        argument.replace_all_uses_with(value)
    *ops, terminator = [view.operation for view in scanned.operations]
    for inner in ops:
        into.append(inner)
    return list(terminator.operands)


def _drop_dim(row: ir.Value, along: int, builder: Builder) -> ir.Value:
    """Drops dimension `along`, of size 1, from a slice."""
    return builder.reshape(row, [size for dim, size in enumerate(shape_of(row)) if dim != along])


def _update_row(target: ir.Value, value: ir.Value, index: ir.Value, along: int, builder: Builder) -> ir.Value:
    """`target` with `value` at `index` of dimension `along`."""
    sizes = [1 if dim == along else size for dim, size in enumerate(shape_of(target))]
    return builder.dynamic_update(target, builder.reshape(value, sizes), along, index)
