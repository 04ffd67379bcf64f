"""The gradient of pooling (select_and_scatter): every window selects one position, which receives its source value.

Each device selects in all windows that touch its shard of the operand, and scatters only into its shard. The windowed reduction
carries a number for each position beside its element. The number tells whether the position is in the shard, in another one, or
outside of the global tensor; the element cannot, because equal elements may occur in all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

from meshbridge.ir.builder import Builder, element_of, integers, tensor
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import comparison_direction, ir, stablehlo
from meshbridge.ir.per_device import PerDevice, members
from meshbridge.ir.sharding import Axes
from meshbridge.ops.affine_access import AffineAccess, CoveredAccess
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of, unsplittable
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replace_result, spmd_lowering
from meshbridge.ops.traits import Trait
from meshbridge.ops.window_attributes import WindowDim, window_dims
from meshbridge.ops.window_exchange import device_entry, read_window

_LOSES = {"GE": "max", "GT": "max", "LE": "min", "LT": "min"}
"""By direction, the reduction whose neutral element never wins the comparison."""


@sharding_rule_of("stablehlo.select_and_scatter", traits=(Trait.PURE, Trait.SCALAR_REGION))
def select_and_scatter(op: ir.Operation) -> ShardingRule:
    """Operand, source and result share every dimension; one with a single window has a loop only if the window is one element."""
    return selection_rule(op, window_dims(op))


def selection_rule(op: ir.Operation, windows: list[WindowDim]) -> ShardingRule:
    """The rule of an op on an operand, a source and an initial value that selects in these windows."""
    operand, source = shape_of(op.operands[0]), shape_of(op.operands[1])
    if 0 in (*operand, *source):
        return ShardingRule((), unsplittable(op.operands), unsplittable(op.results))
    build = RuleBuilder()
    dims: list[tuple[int, ...]] = []
    for dim, window in enumerate(windows):
        dims.append(build.loop(operand[dim]) if window.is_single or source[dim] > 1 else ())
        if not window.is_single:
            touching, covered = _accesses(window, operand[dim], source[dim])
            build.exchange(dims[dim], op, 0, dim, covered)
            build.exchange(dims[dim], op, 1, dim, touching)
    return build.rule([tuple(dims), tuple(dims), ()], [tuple(dims)])


def _accesses(window: WindowDim, operand: int, source: int) -> tuple[AffineAccess, CoveredAccess]:
    """The access to the windows that touch an element of the operand, and to the elements under those windows."""
    windows = AffineAccess(operand, source, low=window.size - 1 - window.low, extent=window.size, dilation=window.stride)
    return windows, CoveredAccess(windows, operand, window.stride, window.low, window.size)


def selected_kind(op: ir.Operation) -> str:
    """The reduction that the selecting body computes, `max` or `min`; "" if it is no plain comparison."""
    block = op.regions[0].blocks[0]
    comparison = block.operations[0].operation
    if len(block.operations) != 2 or comparison.name != "stablehlo.compare" or list(comparison.operands) != list(block.arguments):
        return ""
    if isinstance(ir.RankedTensorType(comparison.operands[0].type).element_type, ir.ComplexType):
        return ""
    direction = comparison_direction(comparison)
    return _LOSES.get(direction, "")


@spmd_lowering("stablehlo.select_and_scatter")
def local_select_and_scatter(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Selects positions, and scatters into the shard."""
    windows = window_dims(op)
    split = split_windows(rule, option, windows)
    if not split:
        default_lowering(op, rule, option, at)
        return
    replace_result(op, rule, option, scattered_shard(op, windows, split, at), at)


def split_windows(rule: ShardingRule, option: Option, windows: list[WindowDim]) -> dict[int, Axes]:
    """The dimensions with windows across shards, and their mesh axes."""
    split = enumerate(tensor_split(rule.operands[0], option))
    return {dim: axes for dim, axes in split if axes and not windows[dim].is_single}


def scattered_shard(
    op: ir.Operation, windows: list[WindowDim], split: dict[int, Axes], at: SpmdProgram, *, selects_padding: bool = False
) -> ir.Value:
    """This device's shard of the result of a `select_and_scatter`, whose bodies are moved; `split` are its `split_windows`.

    With `selects_padding` a window may select padding, whose value never wins against an element. StableHLO's padding is never
    selected.
    """
    builder, (operand, source, initial) = at.builder, op.operands
    sizes, counts = at.global_shape(operand), at.global_shape(source)
    numbering = _Numbering(shape_of(operand), selects_padding, at)
    fill = builder.splat(initial.type, neutral(selected_kind(op), element_of(operand)) if selects_padding else 0)
    lines, strays = [], {}
    for dim, window in enumerate(windows):
        if dim not in split:
            operand = builder.pad_along(operand, dim, fill, window.low, window.high)
            lines.append(
                numbering.line(dim, _ReadRun((), members(1) + -window.low, shape_of(operand)[dim], numbering.shard[dim]))
            )
            continue
        axes, count = split[dim], at.mesh.group_size(split[dim])
        devices, (access, covered) = members(count), _accesses(window, sizes[dim], counts[dim])
        operand = read_window(operand, dim, axes, covered, fill if selects_padding else None, at)
        source = read_window(source, dim, axes, access, None, at)
        lines.append(
            numbering.line(dim, _ReadRun(axes, covered.window(count).starts(devices), shape_of(operand)[dim], sizes[dim]))
        )
        rows = _ReadRun(axes, access.window(count).starts(devices), shape_of(source)[dim], counts[dim])
        if rows.leaves:
            strays[dim] = numbering.strays(rows)
    extents, strides = [window.size for window in windows], [window.stride for window in windows]
    numbers = _selected(op, operand, numbering.joined(lines), extents, strides, builder)
    for dim, line in strays.items():
        numbers = builder.elementwise("maximum", numbers, builder.broadcast(line, shape_of(numbers), [dim]))
    return _scatter(op, numbers, source, initial, numbering.shard, builder)


@dataclass(frozen=True)
class _ReadRun:
    """The positions of one dimension, of `size` elements, that a device reads: `length` of them from its entry of `begins` on."""

    axes: Axes
    begins: PerDevice
    length: int
    size: int

    @property
    def leaves(self) -> bool:
        """True if some device reads positions outside of the tensor."""
        return bool(self.begins.values.min() < 0 or self.begins.values.max() + self.length > self.size)

    def places(self, at: SpmdProgram) -> ir.Value:
        """The positions' indices in the global tensor."""
        return at.builder.count_from(device_entry(self.begins, self.axes, at), self.length)


@dataclass(frozen=True)
class _Numbering:
    """Numbers positions: in the shard by row-major index, in another shard by at least the shard's number of elements, and
    negative if no window may select it. A number is the sum of one term per dimension."""

    shard: tuple[int, ...]
    selects_padding: bool
    at: SpmdProgram

    @property
    def element(self) -> ir.Type:
        """An integer type that holds the largest sum."""
        return ir.IntegerType.get_signless(32 if len(self.shard) * prod(self.shard) < 1 << 31 else 64)

    def line(self, dim: int, run: _ReadRun) -> ir.Value:
        """The term of one dimension for each of its positions."""
        builder, own, places = self.at.builder, self.shard[dim], run.places(self.at)
        index = builder.subtract(places, self.at.offset(run.axes, own)) if run.axes else places
        line = builder.multiply(builder.convert(index, self.element), prod(self.shard[dim + 1 :]))
        line = builder.select(builder.within(index, own), line, prod(self.shard))
        if self.selects_padding or not run.leaves:
            return line
        return builder.select(builder.within(places, run.size), line, -len(self.shard) * prod(self.shard))

    def strays(self, rows: _ReadRun) -> ir.Value:
        """A number outside the shard for windows that the program does not have, -1 for the others."""
        builder = self.at.builder
        none = builder.splat(tensor([rows.length], self.element), -1)
        return builder.select(builder.within(rows.places(self.at), rows.size), none, prod(self.shard))

    def joined(self, lines: list[ir.Value]) -> ir.Value:
        """The number of every position."""
        shape = tuple(shape_of(line)[0] for line in lines)
        total, *terms = (self.at.builder.broadcast(line, shape, [dim]) for dim, line in enumerate(lines))
        return reduce(self.at.builder.add, terms, total)


def _selected(
    op: ir.Operation, operand: ir.Value, numbers: ir.Value, sizes: list[int], strides: list[int], builder: Builder
) -> ir.Value:
    """The number of the position that each window selects, by the body that is moved from `op`; negative if it has none to
    select."""
    scalars = [tensor([], element_of(value)) for value in (operand, numbers)]
    counts = [(length - size) // stride + 1 for length, size, stride in zip(shape_of(operand), sizes, strides, strict=True)]
    pooled = builder.op(
        "reduce_window",
        [tensor(counts, scalar.element_type) for scalar in scalars],
        [operand, numbers, builder.splat(scalars[0], 0), builder.splat(scalars[1], -1)],
        {"window_dimensions": integers(sizes), "window_strides": integers(strides)},
        regions=1,
    )
    _number_selection(op.regions[0].blocks[0], pooled.regions[0], scalars)
    numbered: ir.Value = pooled.results[1]
    return numbered


def _number_selection(block: ir.Block, region: ir.Region, scalars: list[ir.RankedTensorType]) -> None:
    """Moves a body that selects one of two elements, and makes it return the chosen element with its number. A position with a
    negative number is never chosen."""
    block.append_to(region)
    lhs, rhs = block.arguments
    end = list(block.operations)[-1].operation
    lhs_number, rhs_element, rhs_number = (block.add_argument(kind, end.location) for kind in (scalars[1], *scalars))
    rhs.replace_all_uses_with(rhs_element)
    block.erase_argument(1)
    builder = Builder.before(end)
    selectable = [builder.compare("GE", number, 0) for number in (lhs_number, rhs_number)]
    beaten = builder.elementwise("or", end.operands[0], builder.elementwise("not", selectable[1]))
    chosen = builder.elementwise("and", selectable[0], beaten)
    builder.op("return", [], [builder.select(chosen, *pair) for pair in ((lhs, rhs_element), (lhs_number, rhs_number))])
    end.erase()


def _scatter(
    op: ir.Operation, numbers: ir.Value, source: ir.Value, initial: ir.Value, shard: tuple[int, ...], builder: Builder
) -> ir.Value:
    """Scatters source values to the numbered positions of the shard with the body of `op`; StableHLO skips numbers out of
    bounds."""
    count = prod(shape_of(numbers))
    flat = builder.broadcast(initial, [prod(shard)])
    dimensions = stablehlo.ScatterDimensionNumbers.get(
        update_window_dims=[],
        inserted_window_dims=[0],
        input_batching_dims=[],
        scatter_indices_batching_dims=[],
        scattered_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
    operands = [flat, builder.reshape(numbers, [count, 1]), builder.reshape(source, [count])]
    scattered = builder.op("scatter", flat.type, operands, {"scatter_dimension_numbers": dimensions}, regions=1)
    op.regions[1].blocks[0].append_to(scattered.regions[0])
    return builder.reshape(scattered.results[0], shard)
