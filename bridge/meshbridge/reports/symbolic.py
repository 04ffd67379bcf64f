"""Communication volume as formulas: of a program's symbolic dimensions, and of the sizes of its mesh's axes.

The plan is made for one choice of sizes, the base. It is then carried over to other sizes, decision by decision, and partitioned
there: the wire bytes of each collective, at a few sizes of each symbol, determine its formula.

    all_gather over model, model.py:42      4*b*s*64*(model - 1)/(data*model)

A formula is a polynomial of the symbolic dimensions, and of the reciprocals of the sizes of axes: that is what bytes are where
axes divide what they split. Each formula is checked at sizes that it was not made from, and at the base.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

from meshbridge.analysis.executions import executed, is_unknown_loop
from meshbridge.cost.communication import communicating, wire_bytes_on
from meshbridge.cost.memory_limit import UNLIMITED
from meshbridge.decide.decisions import Decisions
from meshbridge.decide.transplant import UnlikeProgramError, transplanted, uneven_places
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.module_mesh import declared_meshes, find_mesh, is_partitioned, mesh_ops
from meshbridge.dialect.ops import DEVICE_IDS, MANUAL_AXES
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.locations import SourceLocation, members, user_line
from meshbridge.ir.mlir import MANUAL, MeshError, ir, stablehlo, walk_all
from meshbridge.ir.passes import Known
from meshbridge.ir.sharding import MAX_DEVICES, Mesh
from meshbridge.machines.target import has_topology
from meshbridge.pipeline import Options, build, run
from meshbridge.read.formats import Program
from meshbridge.text import joined, table

Read = Callable[[Mapping[str, int]], Program]
"""The program at sizes of its symbolic dimensions. Raises MeshError for sizes that it cannot have."""

Point = tuple[int, ...]
"""A size for each symbol."""


class FormulaRow(NamedTuple):
    """What collectives share that have one formula: those of one source line together, also where they travel with others."""

    kind: str
    axes: tuple[str, ...]
    location: SourceLocation


@dataclass(frozen=True)
class Formula:
    """Wire bytes of one device and one run, of the collectives of a row, all executions together."""

    kind: str
    axes: tuple[str, ...]
    location: SourceLocation
    wire_bytes: Any
    "A sympy expression."


@dataclass(frozen=True)
class Formulas:
    """The communication of one plan. Expressions are sympy's; their symbols go by the names of dimensions and axes."""

    collectives: tuple[Formula, ...]
    base: Mapping[str, int]
    "The sizes that the plan is made for, by symbol: of the symbolic dimensions, then of the axes that are symbols."
    dims: tuple[str, ...]
    "The symbols that are dimensions of the program."
    held: Mapping[str, tuple[int, str]]
    "Axes that are numbers in the formulas: their size, and why."
    unknown_loops: tuple[SourceLocation, ...]
    "Loops without a known trip count: their bodies are counted once."

    @cached_property
    def wire_bytes(self) -> Any:
        """Of all collectives, bytes that one device puts on the wire in one run."""
        return _pretty(sum((each.wire_bytes for each in self.collectives), _sympy().Integer(0)))

    def by_kind(self) -> dict[str, Any]:
        """The same for each kind of collective."""
        kinds = dict.fromkeys(each.kind for each in self.collectives)
        return {kind: _pretty(sum(each.wire_bytes for each in self.collectives if each.kind == kind)) for kind in kinds}

    def at(self, **sizes: int) -> float:
        """Wire bytes at these sizes; a symbol without one has that of the base. Raises MeshError for a name that is no symbol."""
        if unknown := sorted(set(sizes) - set(self.base)):
            raise MeshError(f"error: found the symbol '{unknown[0]}', expected {', '.join(self.base) or 'none'}")
        values = {symbol: dict(self.base, **sizes)[symbol.name] for symbol in self.wire_bytes.free_symbols}
        return float(self.wire_bytes.subs(values))

    def table(self) -> str:
        """For people: a line for each row, then totals, then what the formulas hold for."""
        rows = [(each.kind, ",".join(each.axes) or "-", str(each.wire_bytes), str(each.location)) for each in self.collectives]
        text = table([("collective", "axes", "wire bytes per device", "where"), *rows], left={0, 1, 2, 3}).splitlines()
        text += [f"total {kind}: {expression}" for kind, expression in self.by_kind().items()]
        text.append(f"total: {self.wire_bytes} bytes on the wire per device and step")
        chosen = ", ".join(f"{name}={size}" for name, size in self.base.items())
        text.append(f"of the plan for {chosen or 'these sizes'}; they hold where axes divide what they split")
        text += [f"{name} is taken as {size}: {why}" for name, (size, why) in self.held.items()]
        text += [f"counted once, for want of a trip count: the loop at {at}" for at in self.unknown_loops]
        return joined(text)

    def to_json(self) -> str:
        """For programs: expressions as text that sympy, and Python, read."""
        whole = {
            "base": dict(self.base),
            "dims": list(self.dims),
            "held": {name: {"size": size, "why": why} for name, (size, why) in self.held.items()},
            "wire_bytes": str(self.wire_bytes),
            "by_kind": {kind: str(expression) for kind, expression in self.by_kind().items()},
            "collectives": [
                {
                    "kind": each.kind,
                    "axes": list(each.axes),
                    "location": asdict(each.location),
                    "wire_bytes": str(each.wire_bytes),
                }
                for each in self.collectives
            ],
            "unknown_loops": list(map(asdict, self.unknown_loops)),
        }
        return json.dumps(whole, indent=2)


def formulas(read: Read, dims: Mapping[str, int], options: Options) -> Formulas:
    """The formulas of the plan that is made for these sizes of the symbolic dimensions and the mesh that the program has.

    Raises MeshError as partitioning does; without sympy; for a machine with a topology or a limit of memory, for which plans are
    compared; and for a symbol of which no other size has this plan, or of which the bytes have no formula.
    """
    _sympy()
    if has_topology(options.machine) or options.written_limit < inf:
        raise MeshError("error: formulas are of one plan, expected a machine without a topology, and no limit of memory")
    plan = _BasePlan(read, dict(dims), replace(options, memory_limit=UNLIMITED))
    found: list[MeshError] = []
    best: Formulas | None = None
    for factor in _FACTORS if dims else (1,):
        try:
            made = _formulas_around(plan, factor)
        except MeshError as error:
            found.append(error)
            continue
        if best is None or len(made.held) < len(best.held):
            best = made
        if not set(best.held) - set(plan.held):
            break
    if best is None:
        raise found[0]
    return best


def _formulas_around(plan: _BasePlan, factor: int) -> Formulas:
    """The formulas from sizes around so many times the base. Axes are held along which a row has no formula."""
    held = dict(plan.held)
    while True:
        try:
            return _Fit(plan, factor, held).formulas()
        except _NoFormulaError as error:
            free = [name for name in plan.axes if name not in held]
            more = [name for name in free if name in error.row.axes] or free
            if not more:
                raise
            held |= {
                name: (plan.axes[name], f"the {error.row.kind} at {error.row.location.short} has no formula of it")
                for name in more
            }


_FACTORS = (1, 4, 12)
"""How many times the base the dimensions are around which sizes vary, tried in order until every axis has another size that
divides: a batch of 2 on 2 devices cannot be split along 4."""

_TIMES = tuple(Fraction(each) for each in ("2", "3", "4", "1/2", "5", "6", "8", "1/4", "3/2"))
"""How many times larger a symbol is tried to be."""

_DEGREE = 3
"""The highest degree that a formula has in one symbol."""

_POINTS = {False: _DEGREE + 3, True: 4}
"""Sizes of a symbol that are taken, of dimensions and of axes: more than a polynomial needs, so that the others check it."""

_MOST = 81
"""Combinations of sizes that one formula may take."""

_RING = {
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "broadcast", "collective_broadcast"), 1),
    **dict.fromkeys(("all_reduce", "reduce"), 2),
}
"""Kinds of collectives of n devices that send their operand this many times (n - 1) / n."""


@dataclass
class _BasePlan:
    """A program, and the plan that is made for its base."""

    read: Read
    dims: dict[str, int]
    options: Options

    def __post_init__(self) -> None:
        module = self._legal(tuple(self.dims.values()))
        before = find_mesh(module)
        if before is None:
            raise MeshError("error: the program has no mesh, expected one on which it communicates")
        known: Known = {}
        run(self._stages("legal", "decided"), module, known=known, verified="none")
        self.decisions: Decisions = known[Decisions]
        after = find_mesh(module)
        assert after is not None
        self.before, self.mesh = before, after
        self.held = _held(module, self.mesh)
        self.axes = {name: self.mesh.group_size(run) for name, run in self.mesh.runs.items() if name not in self.held}
        if clash := sorted(set(self.axes) & set(self.dims)):
            raise MeshError(f"error: '{clash[0]}' is a symbolic dimension and an axis of the mesh, expected different names")
        self.base = self.dims | self.axes
        self.uneven = uneven_places(self.decisions)
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
        """Wire bytes by row under the plan, at a size for each symbol of the base. Raises MeshError where it has none."""
        if point not in self._rows:
            try:
                self._rows[point] = self._measured(point)
            except MeshError as error:
                self._rows[point] = error
        found = self._rows[point]
        if isinstance(found, MeshError):
            raise found
        return found

    def _measured(self, point: Point) -> dict[FormulaRow, Fraction]:
        count = len(self.dims)
        module = self._legal(point[:count])
        with module.context, ir.Location.unknown():
            if self.mesh != self.before:
                renumber(module, self.before, self.mesh)
            _resize(module, self.mesh, dict(zip(self.axes, point[count:], strict=True)))
        decisions = transplanted(self.decisions, module)
        if not uneven_places(decisions) <= self.uneven:
            raise UnlikeProgramError("error: shards are uneven at other sizes")
        known: Known = {Decisions: decisions}
        run(self._stages("decided", "optimised"), module, known=known, verified="none")
        return _by_row(module)

    def devices(self, row: FormulaRow, point: Point) -> int:
        """How many devices the groups of a row have."""
        sizes = dict(zip(self.base, point, strict=True)) | {name: size for name, (size, _) in self.held.items()}
        return prod(sizes[axis] if axis in sizes else _part(axis) for axis in row.axes)


def _part(label: str) -> int:
    """The size of a sub-axis, `x:(2)4`, whose axis is held."""
    return int(label.rpartition(")")[2])


def _separate_constants(module: ir.Module) -> None:
    """Gives every use of a constant one of its own, and makes broadcasts of constants constants. Where a program is given sizes,
    XLA merges constants that are equal there, and folds such broadcasts if they are small: it would have other operations at
    other sizes."""
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
                made: Any = operand.owner
                op.operands[number] = made.operation.clone(ip=ir.InsertionPoint(op)).results[0]
    for op in shared:
        op.erase()


_CONSTANT = "stablehlo.constant"


def _constant(value: ir.Value) -> ir.Attribute | None:
    """The content of a constant; None for any other value."""
    made: Any = value.owner
    return made.operation.attributes["value"] if not isinstance(made, ir.Block) and made.name == _CONSTANT else None


def _held(module: ir.Module, mesh: Mesh) -> dict[str, tuple[int, str]]:
    """The axes that stay numbers whatever sizes are tried, and why."""
    manual = {axis for op in walk_all(module) if op.name == MANUAL for axis in _manual_axes(op, mesh)}
    found = {}
    for name, axes in mesh.runs.items():
        size = mesh.group_size(axes)
        if size == 1:
            found[name] = (size, "it has one device, along which nothing is sent")
        elif manual & set(axes):
            found[name] = (size, "the program has manual computations along it")
        elif len(axes) > 1:
            found[name] = (size, "parts of it split tensors")
    return found


def _manual_axes(op: ir.Operation, mesh: Mesh) -> Iterable[int]:
    return integers(op.attributes[MANUAL_AXES]) if MANUAL_AXES in op.attributes else range(mesh.rank)


def _resize(module: ir.Module, mesh: Mesh, sizes: Mapping[str, int]) -> None:
    """Gives axes of the mesh other sizes; devices are then in the order of their numbers."""
    shape = list(mesh.shape)
    for name, size in sizes.items():
        shape[mesh.runs[name][0]] = size
    if prod(shape) > MAX_DEVICES:
        raise MeshError(f"error: a mesh of {prod(shape)} devices, expected at most {MAX_DEVICES}")
    if tuple(shape) == mesh.shape:
        return
    for view in mesh_ops(module.body):
        if view.sym_name == mesh.name:
            view.operation.attributes["shape"] = integers_attr(shape)
            for name in (DEVICE_IDS, "stablehlo.mesh"):
                if name in view.operation.attributes:
                    del view.operation.attributes[name]


def _by_row(module: ir.Module) -> dict[FormulaRow, Fraction]:
    """What a partitioned program sends; what travels together counts for each of its parts."""
    meshes = declared_meshes(module.body)
    found: dict[FormulaRow, Fraction] = {}
    for op, _, _, each in communicating(executed(module, weigh=wire_bytes_on(meshes)), meshes):
        for location, share in members(op.location):
            if wire := _exact(each.total_bytes * share):
                row = FormulaRow(each.kind, each.axes, user_line(location))
                found[row] = found.get(row, Fraction(0)) + wire
    return found


def _exact(figure: float) -> Fraction:
    """Bytes are fractions of few devices, which floats come close to."""
    return Fraction(figure).limit_denominator(MAX_DEVICES if figure < 1 << 20 else 1 << 12)


Line = dict[int, Fraction]
"""Sizes of one symbol, and bytes there."""


class _NoFormulaError(MeshError):
    """The bytes of a row are no polynomial of the symbols."""

    def __init__(self, row: FormulaRow, message: str) -> None:
        super().__init__(message)
        self.row = row


class _Fit:
    """Formulas from sizes around a reference point, which is the base with the dimensions so many times larger. Axes that are
    `held` stay as they are."""

    def __init__(self, plan: _BasePlan, factor: int, held: Mapping[str, tuple[int, str]]) -> None:
        self.plan = plan
        count = len(plan.dims)
        self.names = list(plan.base)
        self.is_axis = [number >= count for number in range(len(self.names))]
        sizes = list(plan.base.values())
        self.reference: Point = tuple([factor * size for size in sizes[:count]] + sizes[count:])
        self.rows = plan.rows(self.reference)
        self.held = dict(held)
        self.refused: list[str] = []
        self.sizes = [self._sizes(number) for number in range(len(self.names))]
        self.symbols = [_sympy().Symbol(name, integer=True, positive=True) for name in self.names]

    def _sizes(self, number: int) -> list[int]:
        """Sizes of one symbol, the reference first, at which the plan is the same; an axis without another one is held."""
        found = [self.reference[number]]
        if self.names[number] in self.held:
            return found
        wanted = _POINTS[self.is_axis[number]]
        for times in _TIMES:
            size = times * self.reference[number]
            if len(found) < wanted and size.denominator == 1 and size >= 2 and self._has_plan(self._with({number: int(size)})):
                found.append(int(size))
        if len(found) > 1:
            return found
        name = self.names[number]
        if not self.is_axis[number]:
            text = f"error: no other size of the symbolic dimension '{name}' than {found[0]} has the same plan"
            raise MeshError("\n  hint: ".join([text, *self.refused[-1:]]))
        self.held[name] = (found[0], "no other size that was tried divides what it splits")
        return found

    def _with(self, changed: Mapping[int, int]) -> Point:
        return tuple(changed.get(number, size) for number, size in enumerate(self.reference))

    def _has_plan(self, point: Point) -> bool:
        """Whether the program has the same collectives there."""
        try:
            return set(self.plan.rows(point)) == set(self.rows)
        except MeshError as error:
            self.refused.append(str(error).removeprefix("error: "))
            return False

    def formulas(self) -> Formulas:
        """Those of all rows. Raises MeshError where a row has none."""
        made = []
        for row in self.rows:
            expression = self._expression(row)
            if expression is None:
                where = f"{row.kind} over {','.join(row.axes) or 'no axes'} at {row.location}"
                hint = "choose other sizes for the plan, with --dims, that the axes of the mesh divide"
                symbols = ", ".join(name for name in self.names if name not in self.held) or "sizes"
                raise _NoFormulaError(row, f"error: the bytes of the {where} are no polynomial of {symbols}\n  hint: {hint}")
            made.append(Formula(*row, _pretty(expression)))
        free = [name for name in self.names if name not in self.held]
        base = {name: size for name, size in self.plan.base.items() if name in free}
        return Formulas(tuple(made), base, tuple(self.plan.dims), self.held, self.plan.unknown_loops)

    def _expression(self, row: FormulaRow) -> Any:
        """The formula of a row; None where it has none."""
        lines = []
        for number in range(len(self.names)):
            line = self._line(row, number)
            if line is None:
                return None
            lines.append(line)
        found = self._separable(row, lines)
        return self._whole(row, lines) if found is None else found

    def _sent(self, row: FormulaRow, point: Point) -> Fraction:
        """What a row sends in one collective, less the factor of its ring."""
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
            if axis in self.names and axis not in self.held:
                sizes.append(self.symbols[self.names.index(axis)])
            else:
                sizes.append(_sympy().Integer(self.held[axis][0] if axis in self.held else _part(axis)))
        devices = prod(sizes, start=_sympy().Integer(1))
        return _RING[row.kind] * (devices - 1) / devices

    def _separable(self, row: FormulaRow, lines: Sequence[list[Fraction]]) -> Any:
        """The product of one factor for each symbol; None where the bytes are no such product."""
        middle = self._sent(row, self.reference)
        factors = [
            sum(_rational(each / middle) * self._variable(number) ** power for power, each in enumerate(line))
            for number, line in enumerate(lines)
        ]
        return self._checked(row, prod(factors, start=_rational(middle)) * self._ring(row))

    def _line(self, row: FormulaRow, number: int) -> list[Fraction] | None:
        """The polynomial of one symbol, by its coefficients, through the first of its sizes; None if the others do not agree."""
        points = [(self._place(number, size), self._sent(row, self._with({number: size}))) for size in self.sizes[number]]
        is_known = self.is_axis[number] and row.kind in _RING  # an axis splits what is sent once, or not at all
        degree = min(1, len(points) - 1) if is_known else max(min(_DEGREE, len(points) - 2), 0)
        coefficients = _interpolated(points[: degree + 1])
        return coefficients if all(_value(coefficients, at) == value for at, value in points) else None

    def _place(self, number: int, size: int) -> Fraction:
        """What a polynomial is of: the size of a dimension, the reciprocal of that of an axis."""
        return Fraction(1, size) if self.is_axis[number] else Fraction(size)

    def _variable(self, number: int) -> Any:
        return 1 / self.symbols[number] if self.is_axis[number] else self.symbols[number]

    def _whole(self, row: FormulaRow, lines: Sequence[list[Fraction]]) -> Any:
        """A sum of products: of all combinations of as many sizes as the polynomial of each symbol has terms."""
        counts = [len(line) for line in lines]
        if prod(counts) > _MOST:
            return None
        grid = {}
        for chosen in product(*(sizes[:count] for sizes, count in zip(self.sizes, counts, strict=True))):
            if not self._has_plan(chosen):
                return None
            grid[chosen] = self._sent(row, chosen)
        return self._checked(row, self._summed(grid, counts) * self._ring(row))

    def _summed(self, grid: Mapping[Point, Fraction], counts: Sequence[int]) -> Any:
        """The polynomial through a grid of sizes, one symbol after the other."""
        if not counts:
            return _rational(grid[()])
        number = len(counts) - 1
        known: dict[Point, list[tuple[Fraction, Any]]] = {}
        for point, value in grid.items():
            known.setdefault(point[:-1], []).append((self._place(number, point[-1]), value))
        solved = {point: _interpolated(line, short=False) for point, line in known.items()}
        return sum(
            self._summed({point: each[power] for point, each in solved.items()}, counts[:-1]) * self._variable(number) ** power
            for power in range(counts[-1])
        )

    def _checked(self, row: FormulaRow, expression: Any) -> Any:
        """`expression`, if it is right at the base, and where every symbol has another size; else None."""
        base = tuple(self.plan.base.values())
        points = [point for point in (base, *self._apart()) if self._has_plan(point)]
        right = all(self._at(expression, point) == self.plan.rows(point)[row] for point in points)
        return expression if right and base in points else None

    def _apart(self) -> Iterator[Point]:
        """Points at which every symbol has another size than at the reference."""
        for place in (1, 2, -1):
            yield tuple(sizes[place] if len(sizes) > max(place, 1) else sizes[-1] for sizes in self.sizes)

    def _at(self, expression: Any, point: Point) -> Fraction:
        found = expression.subs(dict(zip(self.symbols, map(_sympy().Integer, point), strict=True)))
        return Fraction(int(found.p), int(found.q))


def _interpolated(points: Sequence[tuple[Fraction, Fraction]], *, short: bool = True) -> list[Fraction]:
    """The coefficients of the polynomial through `points`, lowest first; if `short`, without zeros at the end."""
    coefficients = [Fraction(0)] * len(points)
    for number, (at, value) in enumerate(points):
        basis = [value]
        for other, (root, _) in enumerate(points):
            if other != number:
                scaled = [each / (at - root) for each in basis]
                basis = [a - root * b for a, b in zip([Fraction(0), *scaled], [*scaled, Fraction(0)], strict=True)]
        coefficients = [a + b for a, b in zip(coefficients, basis, strict=True)]
    while short and len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def _value(coefficients: Sequence[Fraction], at: Fraction) -> Fraction:
    return sum((each * at**power for power, each in enumerate(coefficients)), Fraction(0))


def _rational(value: Any) -> Any:
    return _sympy().Rational(value.numerator, value.denominator) if isinstance(value, Fraction) else value


def _pretty(expression: Any) -> Any:
    """As a product where it is one: `64*b*(model - 1)/model`."""
    return _sympy().factor(expression)


def _sympy() -> Any:
    """The library. Raises MeshError where it is not installed."""
    try:
        import sympy
    except ImportError:
        raise MeshError("error: formulas need sympy, which is not installed\n  hint: pip install meshbridge[symbolic]") from None
    return sympy
