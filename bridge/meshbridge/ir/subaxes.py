"""Axes cut into parts: what splits a tensor along a part of an axis, and what fuses the parts again.

sdy can use a part of an axis: `"x":(2)4` is the sub-axis of `"x"` that lies inside the first factor 2 and has size 4. The mesh
dialect cannot, so the axis is *factored*: if a module uses `"x":(1)2` of an axis of size 8, its mesh gets the two axes
`x:(1)2` and `x:(2)4` instead of `x`. The names carry what fuses them again. The RFC's virtual axis is the same idea. A module may
come with such axes (sdy), or get them where a reshape cuts a dimension inside an axis (the pass `factor-axes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

from meshbridge.ir.sharding import Axes, Mesh, Split


@dataclass(frozen=True)
class AxisRef:
    """An sdy axis, or with `size` the part of it that starts after a product `pre` of the sizes outside of it."""

    name: str
    pre: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return f'"{self.name}"' if self.size is None else f'"{self.name}":({self.pre}){self.size}'

    @property
    def label(self) -> str:
        """Its name without quotes, as an axis of a factored mesh is called."""
        return self.name if self.size is None else f"{self.name}:({self.pre}){self.size}"


@dataclass(frozen=True)
class AxisPart:
    """One axis of the factored mesh: the part of axis `name` (of size `whole`) from `pre` on, of size `size`."""

    name: str
    pre: int
    size: int
    whole: int

    @property
    def label(self) -> str:
        """The name of the axis in the factored mesh."""
        return AxisRef(self.name, self.pre, None if self.size == self.whole else self.size).label


_LABEL = re.compile(r"(.+):\((\d+)\)(\d+)")


def looks_like_part(name: str) -> bool:
    """Whether an axis name could be mistaken for the label of a part."""
    return _LABEL.fullmatch(name) is not None


@dataclass(frozen=True)
class FactoredMesh:
    """The axes of one sdy mesh, each cut into the parts that the module uses."""

    parts: tuple[AxisPart, ...]

    @property
    def sdy_axes(self) -> list[tuple[str, int]]:
        """Name and size of each axis of the sdy mesh."""
        return [(part.name, part.whole) for part in self.parts if part.pre == 1]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(part.label for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(part.size for part in self.parts)

    def axes_of(self, ref: AxisRef) -> Axes:
        """The axes of the factored mesh that make up `ref`, outer to inner.

        Raises KeyError for an axis that the mesh does not have.
        """
        found = self._ranges()[ref.name]
        if ref.size is None:
            return found
        return tuple(axis for axis in found if ref.pre <= self.parts[axis].pre < ref.pre * ref.size)

    def _ranges(self) -> dict[str, Axes]:
        return _axes_by_name(self)

    def refs_of(self, axes: Iterable[int]) -> list[AxisRef]:
        """The sdy axes and sub-axes that `axes` name, neighbours fused (sdy refuses sub-axes that could be one)."""
        fused: list[AxisPart] = []
        for axis in axes:
            part = self.parts[axis]
            last = fused[-1] if fused else None
            if last is not None and last.name == part.name and last.pre * last.size == part.pre:
                fused[-1] = AxisPart(last.name, last.pre, last.size * part.size, last.whole)
            else:
                fused.append(part)
        return [AxisRef(p.name) if p.size == p.whole else AxisRef(p.name, p.pre, p.size) for p in fused]


@lru_cache(maxsize=1024)
def _axes_by_name(mesh: FactoredMesh) -> dict[str, Axes]:
    found: dict[str, Axes] = {}
    for axis, part in enumerate(mesh.parts):
        found[part.name] = (*found.get(part.name, ()), axis)
    return found


def factor(axes: Sequence[tuple[str, int]], used: Iterable[AxisRef]) -> FactoredMesh:
    """Cuts each of `axes` (name and size) so that every sub-axis in `used` is a run of whole parts.

    Raises ValueError where two sub-axes ask for cuts that no factorisation has, e.g. `"x":(1)2` and `"x":(1)3` of size 6.
    """
    cuts = {name: {1, size} for name, size in axes}
    for ref in used:
        if ref.size is not None and ref.name in cuts:
            cuts[ref.name] |= {ref.pre, ref.pre * ref.size}
    parts: list[AxisPart] = []
    for name, whole in axes:
        bounds = sorted(cuts[name])
        if bounds[0] < 1 or bounds[-1] > whole:  # bytecode can say what sdy's text cannot
            raise ValueError(f'axis "{name}"={whole} cannot be cut from {bounds[0]} to {bounds[-1]}, expected sizes from 1 on')
        for outer, inner in pairwise(bounds):
            if inner % outer:
                raise ValueError(f'no factorisation of axis "{name}"={whole} has sub-axes that end at {outer} and at {inner}')
            parts.append(AxisPart(name, outer, inner // outer, whole))
        if len(bounds) == 1:
            parts.append(AxisPart(name, 1, 1, 1))
    return FactoredMesh(tuple(parts))


@lru_cache(maxsize=1024)
def fused(mesh: Mesh) -> FactoredMesh:
    """Reads the parts back out of the axis names of a mesh; axes without names are called by their number.

    Raises ValueError where parts of one axis are missing.
    """
    parts: list[AxisPart] = []
    for axis in range(mesh.rank):
        size, label = mesh.shape[axis], mesh.axis_name(axis)
        found = _LABEL.fullmatch(label)
        if found is None:
            parts.append(AxisPart(label, 1, size, size))
            continue
        name, pre = found[1], int(found[2])
        outer = parts[-1] if parts else None
        continues = outer is not None and outer.name == name and outer.pre * outer.size == pre
        if size != int(found[3]) or not (pre == 1 or continues):
            raise ValueError(f'axis "{label}" of mesh @{mesh.name} does not follow the part of "{name}" before it')
        parts.append(AxisPart(name, pre, size, 0))
    wholes = {part.name: part.pre * part.size for part in parts}
    return FactoredMesh(tuple(AxisPart(part.name, part.pre, part.size, wholes[part.name]) for part in parts))


def whole_and_parts(mesh: Mesh) -> list[Axes]:
    """Each axis of `mesh` alone, and those that are parts of one axis together, these first."""
    wholes = _axes_by_name(_as_named(mesh)).values()
    return list(dict.fromkeys([*wholes, *((axis,) for axis in range(mesh.rank))]))


def axis_names(mesh: Mesh, axes: Axes) -> tuple[str, ...]:
    """What the user calls `axes`, neighbouring parts of one axis together; an axis without a name goes by its number."""
    return tuple(ref.label for ref in _as_named(mesh).refs_of(axes))


def named_axes(mesh: Mesh) -> list[tuple[str, int]]:
    """Name and size of each axis, as the user knows them."""
    return _as_named(mesh).sdy_axes


def whole_split(mesh: Mesh, split: Split) -> Split:
    """`split` without the parts of axes whose other parts do not stand beside them: JAX has no name for those."""
    factored = _as_named(mesh)
    if len(factored.sdy_axes) == mesh.rank:
        return split
    whole = [tuple(ref for ref in factored.refs_of(axes) if ref.size is None) for axes in split]
    return tuple(tuple(chain.from_iterable(map(factored.axes_of, refs))) for refs in whole)


def completed_split(mesh: Mesh, split: Split) -> Split:
    """`split` where a dimension that ends with the outer parts of an axis gets the inner ones too, if they split nothing yet."""
    factored = _as_named(mesh)
    if len(factored.sdy_axes) == mesh.rank:
        return split
    used = {axis for axes in split for axis in axes}
    completed = []
    for axes in split:
        last = factored.refs_of(axes)[-1:]
        more = [axis for ref in last for axis in factored.axes_of(AxisRef(ref.name)) if axis not in axes]
        completed.append((*axes, *more) if last and last[0].pre == 1 and used.isdisjoint(more) else axes)
        used.update(completed[-1])
    return tuple(completed)


def _as_named(mesh: Mesh) -> FactoredMesh:
    """The parts that the axis names tell of; where they contradict each other, every axis is one of its own."""
    try:
        return fused(mesh)
    except ValueError:
        return FactoredMesh(tuple(AxisPart(mesh.axis_name(axis), 1, size, size) for axis, size in enumerate(mesh.shape)))


def cut(mesh: Mesh, cuts: Mapping[int, Sequence[int]]) -> Mesh:
    """`mesh` with some of its axes in parts: `cuts` says after which products of sizes, e.g. {1: [2]} makes 2x8 of it 2x2x4.

    Raises ValueError for products that do not divide each other or the axis.
    """
    before = fused(mesh)
    refs = [AxisRef(part.name, part.pre, part.size) for part in before.parts if part.size != part.whole]
    refs += [AxisRef(before.parts[axis].name, before.parts[axis].pre, at) for axis, found in cuts.items() for at in found]
    after = factor(before.sdy_axes, refs)
    return replace(mesh, shape=after.shape, axis_names=after.labels)
