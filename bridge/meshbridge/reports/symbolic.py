"""Communication volume as formulas in a program's symbolic dimensions and the sizes of its mesh axes.

The plan is made for one choice of sizes, the base. Its decisions are transferred to other sizes, and the program is partitioned
there. The wire bytes of each collective, at a few sizes of each symbol, determine its formula.

    all_gather over model, model.py:42      4*b*s*64*(model - 1)/(data*model)

A formula is a polynomial in the symbolic dimensions and the reciprocals of axis sizes, which is exact if axes divide the
dimensions that they split. Each formula is checked at the base and at sizes from which it was not made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

from meshbridge.analysis.executions import executed, is_unknown_loop
from meshbridge.cost.communication import communicating, wire_bytes_on
from meshbridge.decide.decisions import Decisions
from meshbridge.decide.transfer_decisions import ProgramMismatchError, transfer_decisions, uneven_values
from meshbridge.dialect.mesh_sizes import fixed_axes, resize
from meshbridge.dialect.module_mesh import declared_meshes, find_mesh, is_partitioned
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.locations import SourceLocation, members, user_line
from meshbridge.ir.mlir import MeshError, ir, stablehlo, walk_all
from meshbridge.ir.passes import Analyses
from meshbridge.ir.sharding import MAX_DEVICES
from meshbridge.pipeline import Options, build, run
from meshbridge.read.formats import Program
from meshbridge.text import Tabular, joined, public, table

Read = Callable[[Mapping[str, int]], Program]
"""Returns the program at sizes of its symbolic dimensions. Raises MeshError for impossible sizes."""

Point = tuple[int, ...]
"""A size for each symbol."""


class FormulaRow(NamedTuple):
    """The attributes of collectives that share a formula: those of one source line, also if they are combined with others."""

    kind: str
    axes: tuple[str, ...]
    location: SourceLocation


@dataclass(frozen=True)
class Formula:
    """The wire bytes of the collectives of a row, over all executions, of one device and one run."""

    kind: str
    axes: tuple[str, ...]
    location: SourceLocation
    wire_bytes: Any
    "A sympy expression."


@public
@dataclass(frozen=True, repr=False)
class Formulas(Tabular):
    """The communication of one plan. Expressions are sympy's; symbols have the names of dimensions and axes."""

    collectives: tuple[Formula, ...]
    base: Mapping[str, int]
    "The sizes that the plan is made for: first of the symbolic dimensions, then of the axes that are symbols."
    dims: tuple[str, ...]
    "The symbols that are dimensions of the program."
    fixed: Mapping[str, tuple[int, str]]
    "Axes that are no symbols: their size, and why."
    unknown_loops: tuple[SourceLocation, ...]
    "Loops without a known trip count: their bodies are counted once."

    @cached_property
    def wire_bytes(self) -> Any:
        """The wire bytes of all collectives, of one device and one run."""
        return _pretty(sum((row.wire_bytes for row in self.collectives), _sympy().Integer(0)))

    @property
    def headline(self) -> str:
        """The wire bytes."""
        return f"{self.wire_bytes} bytes on the wire per device and step"

    def by_kind(self) -> dict[str, Any]:
        """The wire bytes of each kind of collective."""
        kinds = dict.fromkeys(row.kind for row in self.collectives)
        return {kind: _pretty(sum(row.wire_bytes for row in self.collectives if row.kind == kind)) for kind in kinds}

    def at(self, **sizes: int) -> float:
        """The wire bytes at these sizes; other symbols have the sizes of the base. Raises MeshError for an unknown symbol."""
        if unknown := sorted(set(sizes) - set(self.base)):
            raise MeshError(f"error: found the symbol '{unknown[0]}', expected {', '.join(self.base) or 'none'}")
        values = {symbol: dict(self.base, **sizes)[symbol.name] for symbol in self.wire_bytes.free_symbols}
        return float(self.wire_bytes.subs(values))

    def table(self) -> str:
        """The formulas as text: a line for each row, then totals, then the assumptions."""
        rows = [(row.kind, ",".join(row.axes) or "-", str(row.wire_bytes), str(row.location)) for row in self.collectives]
        text = table([("collective", "axes", "wire bytes per device", "where"), *rows], left={0, 1, 2, 3}).splitlines()
        text += [f"total {kind}: {expression}" for kind, expression in self.by_kind().items()]
        text.append(f"total: {self.wire_bytes} bytes on the wire per device and step")
        chosen = ", ".join(f"{name}={size}" for name, size in self.base.items())
        text.append(f"of the plan for {chosen or 'these sizes'}; they hold where axes divide what they split")
        text += [f"{name} is taken as {size}: {why}" for name, (size, why) in self.fixed.items()]
        text += [f"counted once, for want of a trip count: the loop at {at}" for at in self.unknown_loops]
        return joined(text)

    def to_json(self) -> str:
        """The formulas as JSON; expressions are text in Python's syntax."""
        whole = {
            "base": dict(self.base),
            "dims": list(self.dims),
            "fixed": {name: {"size": size, "why": why} for name, (size, why) in self.fixed.items()},
            "wire_bytes": str(self.wire_bytes),
            "by_kind": {kind: str(expression) for kind, expression in self.by_kind().items()},
            "collectives": [
                {"kind": row.kind, "axes": list(row.axes), "location": asdict(row.location), "wire_bytes": str(row.wire_bytes)}
                for row in self.collectives
            ],
            "unknown_loops": list(map(asdict, self.unknown_loops)),
        }
        return json.dumps(whole, indent=2)


def formulas(read: Read, dims: Mapping[str, int], options: Options) -> Formulas:
    """The formulas of the plan for these sizes of the symbolic dimensions and the program's mesh.

    Raises MeshError like partitioning; without sympy; for a machine with a topology or a memory limit, for which several plans
    are compared; and for a symbol of which no other size has this plan, or of which the bytes have no formula.
    """
    _sympy()
    if options.target.devices is not None or options.target.written_limit < inf:
        raise MeshError("error: formulas are of one plan, expected a machine without a topology, and no limit of memory")
    plan = _BasePlan(read, dict(dims), options.limited(inf))
    errors: list[MeshError] = []
    best: Formulas | None = None
    for factor in _FACTORS if dims else (1,):
        try:
            attempt = _formulas_around(plan, factor)
        except MeshError as error:
            errors.append(error)
            continue
        if best is None or len(attempt.fixed) < len(best.fixed):
            best = attempt
        if not set(best.fixed) - set(plan.fixed):
            break
    if best is None:
        raise errors[0]
    return best


def _formulas_around(plan: _BasePlan, factor: int) -> Formulas:
    """The formulas from sizes around `factor` times the base. Axes without a formula keep their sizes."""
    fixed = dict(plan.fixed)
    while True:
        try:
            return _FormulaFit(plan, factor, fixed).formulas()
        except _NoFormulaError as error:
            free = [name for name in plan.axes if name not in fixed]
            fixable = [name for name in free if name in error.row.axes] or free
            if not fixable:
                raise
            fixed |= {
                name: (plan.axes[name], f"the {error.row.kind} at {error.row.location.short} has no formula of it")
                for name in fixable
            }


_FACTORS = (1, 4, 12)
"""Multiples of the base around which sizes vary, tried in order until every axis has another size that divides: a batch of 2
cannot be split along 4 devices."""

_TIMES = tuple(Fraction(multiple) for multiple in ("2", "3", "4", "1/2", "5", "6", "8", "1/4", "3/2"))
"""The multiples of a symbol's size that are tried."""

_DEGREE = 3
"""The highest degree of a formula in one symbol."""

_POINTS = {False: _DEGREE + 3, True: 4}
"""How many sizes of a symbol are measured, by whether it is an axis: more than a polynomial needs, so that some check it."""

_MOST = 81
"""The most combinations of sizes for one formula."""

_RING = {
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "broadcast", "collective_broadcast"), 1),
    **dict.fromkeys(("all_reduce", "reduce"), 2),
}
"""Kinds of collectives of n devices that send their operand this many times (n - 1) / n."""


@dataclass
class _BasePlan:
    """A program, and its plan for the base."""

    read: Read
    dims: dict[str, int]
    options: Options

    def __post_init__(self) -> None:
        module = self._legal(tuple(self.dims.values()))
        before = find_mesh(module)
        if before is None:
            raise MeshError("error: the program has no mesh, expected one on which it communicates")
        results: Analyses = {}
        run(self._stages("legal", "decided"), module, analyses=results, verified="none")
        self.decisions: Decisions = results[Decisions]
        after = find_mesh(module)
        assert after is not None
        self.before, self.mesh = before, after
        alone = {name: (1, "it has one device, along which nothing is sent") for name, size in self.mesh.named_axes if size == 1}
        self.fixed = fixed_axes(module, self.mesh) | alone
        self.axes = {name: self.mesh.group_size(run) for name, run in self.mesh.runs.items() if name not in self.fixed}
        if clash := sorted(set(self.axes) & set(self.dims)):
            raise MeshError(f"error: '{clash[0]}' is a symbolic dimension and an axis of the mesh, expected different names")
        self.base = self.dims | self.axes
        self.uneven = uneven_values(self.decisions)
        self.unknown_loops = tuple(user_line(op.location) for op, _ in executed(module) if is_unknown_loop(op))
        self._rows: dict[Point, dict[FormulaRow, Fraction] | MeshError] = {}

    def _stages(self, after: str, until: str) -> tuple[Any, ...]:
        options = replace(self.options, emit="mesh", explain=True)
        return build(options).until(until).starting_at(after).passes

    def _legal(self, sizes: Point) -> ir.Module:
        module = self.read(dict(zip(self.dims, sizes, strict=True))).module
        if is_partitioned(module):
            raise MeshError("error: the program is partitioned already, expected one of which a plan is made")
        run(build(replace(self.options, emit="mesh")).until("legal").passes, module, verified="dialect")
        _separate_constants(module)
        return module

    def rows(self, point: Point) -> dict[FormulaRow, Fraction]:
        """The wire bytes by row of the plan at `point`. Raises MeshError if the plan does not apply there."""
        if point not in self._rows:
            try:
                self._rows[point] = self._measure(point)
            except MeshError as error:
                self._rows[point] = error
        measured = self._rows[point]
        if isinstance(measured, MeshError):
            raise measured
        return measured

    def _measure(self, point: Point) -> dict[FormulaRow, Fraction]:
        count = len(self.dims)
        module = self._legal(point[:count])
        with module.context, ir.Location.unknown():
            if self.mesh != self.before:
                renumber(module, self.before, self.mesh)
            resize(module, self.mesh, dict(zip(self.axes, point[count:], strict=True)))
        decisions = transfer_decisions(self.decisions, module)
        if not uneven_values(decisions) <= self.uneven:
            raise ProgramMismatchError("error: shards are uneven at other sizes")
        results: Analyses = {Decisions: decisions}
        run(self._stages("decided", "optimised"), module, analyses=results, verified="none")
        return _by_row(module)

    def devices(self, row: FormulaRow, point: Point) -> int:
        """The number of devices in a group of a row."""
        sizes = dict(zip(self.base, point, strict=True)) | {name: size for name, (size, _) in self.fixed.items()}
        return prod(sizes[axis] if axis in sizes else _sub_axis_size(axis) for axis in row.axes)


def _sub_axis_size(label: str) -> int:
    """The size of the sub-axis `x:(2)4`."""
    return int(label.rpartition(")")[2])


def _separate_constants(module: ir.Module) -> None:
    """Gives every use of a constant its own copy, and folds broadcasts of constants. When a program gets its sizes, XLA merges
    equal constants and folds small broadcasts, so that the program would have different operations at different sizes."""
    for op in [op for op in walk_all(module) if op.name == "stablehlo.broadcast_in_dim"]:
        value = _constant(op.operands[0])
        if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
            with module.context, op.location, ir.InsertionPoint(op):
                splat = ir.DenseElementsAttr.get_splat(op.results[0].type, value.get_splat_value())
                op.results[0].replace_all_uses_with(stablehlo.ConstantOp(splat).result)
            op.erase()
    shared = [op for op in walk_all(module) if op.name == _CONSTANT]
    for op in list(walk_all(module)):
        for number, operand in enumerate(op.operands):
            if _constant(operand) is not None:
                definition: Any = operand.owner
                op.operands[number] = definition.operation.clone(ip=ir.InsertionPoint(op)).results[0]
    for op in shared:
        op.erase()


_CONSTANT = "stablehlo.constant"


def _constant(value: ir.Value) -> ir.Attribute | None:
    """The value of a constant; None for any other value."""
    definition: Any = value.owner
    return (
        definition.operation.attributes["value"]
        if not isinstance(definition, ir.Block) and definition.name == _CONSTANT
        else None
    )


def _by_row(module: ir.Module) -> dict[FormulaRow, Fraction]:
    """The wire bytes of a partitioned program by row; a combined collective counts for each of its parts."""
    meshes = declared_meshes(module.body)
    wire_bytes: dict[FormulaRow, Fraction] = {}
    for op, _, _, collective in communicating(executed(module, weigh=wire_bytes_on(meshes)), meshes):
        for location, share in members(op.location):
            if wire := _exact(collective.total_bytes * share):
                row = FormulaRow(collective.kind, collective.axes, user_line(location))
                wire_bytes[row] = wire_bytes.get(row, Fraction(0)) + wire
    return wire_bytes


def _exact(figure: float) -> Fraction:
    """The fraction that a float approximates: bytes are fractions with small denominators."""
    return Fraction(figure).limit_denominator(MAX_DEVICES if figure < 1 << 20 else 1 << 12)


Line = dict[int, Fraction]
"""Bytes by the size of one symbol."""


class _NoFormulaError(MeshError):
    """The bytes of a row are no polynomial in the symbols."""

    def __init__(self, row: FormulaRow, message: str) -> None:
        super().__init__(message)
        self.row = row


class _FormulaFit:
    """Fits formulas to sizes around a reference point, the base with dimensions `factor` times larger. The axes `fixed` keep
    their sizes."""

    def __init__(self, plan: _BasePlan, factor: int, fixed: Mapping[str, tuple[int, str]]) -> None:
        self.plan = plan
        count = len(plan.dims)
        self.names = list(plan.base)
        self.is_axis = [number >= count for number in range(len(self.names))]
        sizes = list(plan.base.values())
        self.reference: Point = tuple([factor * size for size in sizes[:count]] + sizes[count:])
        self.rows = plan.rows(self.reference)
        self.fixed = dict(fixed)
        self.refused: list[str] = []
        self.sizes = [self._sizes(number) for number in range(len(self.names))]
        self.symbols = [_sympy().Symbol(name, integer=True, positive=True) for name in self.names]

    def _sizes(self, number: int) -> list[int]:
        """Sizes of one symbol, the reference first, with the same plan; an axis without another such size is fixed."""
        sizes = [self.reference[number]]
        if self.names[number] in self.fixed:
            return sizes
        wanted = _POINTS[self.is_axis[number]]
        for times in _TIMES:
            size = times * self.reference[number]
            if len(sizes) < wanted and size.denominator == 1 and size >= 2 and self._has_plan(self._with({number: int(size)})):
                sizes.append(int(size))
        if len(sizes) > 1:
            return sizes
        name = self.names[number]
        if not self.is_axis[number]:
            text = f"error: no other size of the symbolic dimension '{name}' than {sizes[0]} has the same plan"
            raise MeshError("\n  hint: ".join([text, *self.refused[-1:]]))
        self.fixed[name] = (sizes[0], "no other size that was tried divides what it splits")
        return sizes

    def _with(self, changed: Mapping[int, int]) -> Point:
        return tuple(changed.get(number, size) for number, size in enumerate(self.reference))

    def _has_plan(self, point: Point) -> bool:
        """True if the program has the same collectives at `point`."""
        try:
            return set(self.plan.rows(point)) == set(self.rows)
        except MeshError as error:
            self.refused.append(str(error).removeprefix("error: "))
            return False

    def formulas(self) -> Formulas:
        """The formulas of all rows. Raises MeshError for a row without one."""
        rows = []
        for row in self.rows:
            expression = self._expression(row)
            if expression is None:
                where = f"{row.kind} over {','.join(row.axes) or 'no axes'} at {row.location}"
                hint = "choose other sizes for the plan, with --dims, that the axes of the mesh divide"
                symbols = ", ".join(name for name in self.names if name not in self.fixed) or "sizes"
                raise _NoFormulaError(row, f"error: the bytes of the {where} are no polynomial of {symbols}\n  hint: {hint}")
            rows.append(Formula(*row, _pretty(expression)))
        free = [name for name in self.names if name not in self.fixed]
        base = {name: size for name, size in self.plan.base.items() if name in free}
        return Formulas(tuple(rows), base, tuple(self.plan.dims), self.fixed, self.plan.unknown_loops)

    def _expression(self, row: FormulaRow) -> Any:
        """The formula of a row; None if it has none."""
        lines = []
        for number in range(len(self.names)):
            line = self._line(row, number)
            if line is None:
                return None
            lines.append(line)
        separable = self._separable(row, lines)
        return self._sum_of_products(row, lines) if separable is None else separable

    def _bytes_without_ring(self, row: FormulaRow, point: Point) -> Fraction:
        """The bytes of a row, divided by the ring factor of its collective."""
        ring = Fraction(1)
        if row.kind in _RING:
            devices = self.plan.devices(row, point)
            ring = Fraction(_RING[row.kind] * (devices - 1), devices)
        return self.plan.rows(point)[row] / ring

    def _ring(self, row: FormulaRow) -> Any:
        if row.kind not in _RING:
            return _sympy().Integer(1)
        sizes: list[Any] = []
        for axis in row.axes:
            if axis in self.names and axis not in self.fixed:
                sizes.append(self.symbols[self.names.index(axis)])
            else:
                sizes.append(_sympy().Integer(self.fixed[axis][0] if axis in self.fixed else _sub_axis_size(axis)))
        devices = prod(sizes, start=_sympy().Integer(1))
        return _RING[row.kind] * (devices - 1) / devices

    def _separable(self, row: FormulaRow, lines: Sequence[list[Fraction]]) -> Any:
        """The product of one factor for each symbol; None if the bytes are no such product."""
        middle = self._bytes_without_ring(row, self.reference)
        factors = [
            sum(_rational(coefficient / middle) * self._variable(number) ** power for power, coefficient in enumerate(line))
            for number, line in enumerate(lines)
        ]
        return self._check(row, prod(factors, start=_rational(middle)) * self._ring(row))

    def _line(self, row: FormulaRow, number: int) -> list[Fraction] | None:
        """The coefficients of the polynomial in one symbol, through its first sizes; None if the other sizes disagree."""
        points = [
            (self._coordinate(number, size), self._bytes_without_ring(row, self._with({number: size})))
            for size in self.sizes[number]
        ]
        is_known = self.is_axis[number] and row.kind in _RING  # an axis splits the operand once, or not at all
        degree = min(1, len(points) - 1) if is_known else max(min(_DEGREE, len(points) - 2), 0)
        coefficients = _interpolate(points[: degree + 1])
        return coefficients if all(_value(coefficients, at) == value for at, value in points) else None

    def _coordinate(self, number: int, size: int) -> Fraction:
        """The variable of a polynomial: the size of a dimension, the reciprocal size of an axis."""
        return Fraction(1, size) if self.is_axis[number] else Fraction(size)

    def _variable(self, number: int) -> Any:
        return 1 / self.symbols[number] if self.is_axis[number] else self.symbols[number]

    def _sum_of_products(self, row: FormulaRow, lines: Sequence[list[Fraction]]) -> Any:
        """The polynomial in all symbols through a grid: for each symbol, as many sizes as its polynomial has terms."""
        counts = [len(line) for line in lines]
        if prod(counts) > _MOST:
            return None
        grid = {}
        for chosen in product(*(sizes[:count] for sizes, count in zip(self.sizes, counts, strict=True))):
            if not self._has_plan(chosen):
                return None
            grid[chosen] = self._bytes_without_ring(row, chosen)
        return self._check(row, self._grid_polynomial(grid, counts) * self._ring(row))

    def _grid_polynomial(self, grid: Mapping[Point, Fraction], counts: Sequence[int]) -> Any:
        """The polynomial through a grid of sizes, by one symbol after the other."""
        if not counts:
            return _rational(grid[()])
        number = len(counts) - 1
        lines: dict[Point, list[tuple[Fraction, Any]]] = {}
        for point, value in grid.items():
            lines.setdefault(point[:-1], []).append((self._coordinate(number, point[-1]), value))
        solved = {point: _interpolate(line, short=False) for point, line in lines.items()}
        return sum(
            self._grid_polynomial({point: coefficients[power] for point, coefficients in solved.items()}, counts[:-1])
            * self._variable(number) ** power
            for power in range(counts[-1])
        )

    def _check(self, row: FormulaRow, expression: Any) -> Any:
        """`expression` if it is right at the base and at the check points, else None."""
        base = tuple(self.plan.base.values())
        points = [point for point in (base, *self._check_points()) if self._has_plan(point)]
        right = all(self._at(expression, point) == self.plan.rows(point)[row] for point in points)
        return expression if right and base in points else None

    def _check_points(self) -> Iterator[Point]:
        """Points at which no symbol has its reference size."""
        for place in (1, 2, -1):
            yield tuple(sizes[place] if len(sizes) > max(place, 1) else sizes[-1] for sizes in self.sizes)

    def _at(self, expression: Any, point: Point) -> Fraction:
        value = expression.subs(dict(zip(self.symbols, map(_sympy().Integer, point), strict=True)))
        return Fraction(int(value.p), int(value.q))


def _interpolate(points: Sequence[tuple[Fraction, Fraction]], *, short: bool = True) -> list[Fraction]:
    """The coefficients of the polynomial through `points`, lowest first; if `short`, without zeros at the end."""
    coefficients = [Fraction(0)] * len(points)
    for number, (at, value) in enumerate(points):
        basis = [value]
        for index, (root, _) in enumerate(points):
            if index != number:
                scaled = [coefficient / (at - root) for coefficient in basis]
                basis = [a - root * b for a, b in zip([Fraction(0), *scaled], [*scaled, Fraction(0)], strict=True)]
        coefficients = [a + b for a, b in zip(coefficients, basis, strict=True)]
    while short and len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def _value(coefficients: Sequence[Fraction], at: Fraction) -> Fraction:
    return sum((coefficient * at**power for power, coefficient in enumerate(coefficients)), Fraction(0))


def _rational(value: Any) -> Any:
    return _sympy().Rational(value.numerator, value.denominator) if isinstance(value, Fraction) else value


def _pretty(expression: Any) -> Any:
    """Factors an expression: `64*b*(model - 1)/model`."""
    return _sympy().factor(expression)


def _sympy() -> Any:
    """The library sympy. Raises MeshError if it is not installed."""
    try:
        import sympy
    except ImportError:
        raise MeshError("error: formulas need sympy, which is not installed\n  hint: pip install meshbridge[symbolic]") from None
    return sympy
