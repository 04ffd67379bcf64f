"""Axes of an sdy mesh as axes of a mesh-dialect mesh, and back.

sdy can use a part of an axis: `"x":(2)4` is the sub-axis of `"x"` that lies inside the first factor 2 and has size 4. The mesh
dialect cannot, so the axis is *factored*: if a module uses `"x":(1)2` of an axis of size 8, its mesh gets the two axes
`x:(1)2` and `x:(2)4` instead of `x`. The names carry what fuses them again. The RFC's virtual axis is the same idea.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from meshbridge.sharding import Axes, Mesh


@dataclass(frozen=True)
class AxisRef:
    """An sdy axis, or with `size` the part of it that starts after a product `pre` of the sizes outside of it."""

    name: str
    pre: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return f'"{self.name}"' if self.size is None else f'"{self.name}":({self.pre}){self.size}'


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
        return self.name if self.size == self.whole else f"{self.name}:({self.pre}){self.size}"


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
        for outer, inner in pairwise(bounds):
            if inner % outer:
                raise ValueError(f'no factorisation of axis "{name}"={whole} has sub-axes that end at {outer} and at {inner}')
            parts.append(AxisPart(name, outer, inner // outer, whole))
        if len(bounds) == 1:
            parts.append(AxisPart(name, 1, 1, 1))
    return FactoredMesh(tuple(parts))


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
