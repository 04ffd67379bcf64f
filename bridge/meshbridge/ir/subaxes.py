"""Meshes with sub-axes, and splits along whole axes and sub-axes.

Shardy can use a part of an axis: `"x":(2)4` is the sub-axis of `"x"` inside the first factor 2 and has size 4. The mesh dialect
numbers axes, so a mesh with a use of `"x":(1)2` of an axis of size 8 has two axes for `x`, of sizes 2 and 4: see `Mesh.digits`.
The RFC's virtual axis is the same idea. A module may come with sub-axes, or get them if a reshape needs a dimension inside an
axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from meshbridge.ir.sharding import Axes, AxisRef, Mesh, Split


def factor(
    axes: Sequence[tuple[str, int]], used: Iterable[AxisRef], *, symbol: str = "", device_ids: tuple[int, ...] = ()
) -> Mesh:
    """The mesh of `axes`, names and sizes, divided so that every sub-axis in `used` is a run of its axes.

    Raises ValueError for two sub-axes without a common factorisation, e.g. `"x":(1)2` and `"x":(1)3` of size 6.
    """
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    mesh = Mesh(symbol, sizes, () if names == tuple(map(str, range(len(names)))) else names, device_ids)
    cuts: dict[int, set[int]] = {}
    for ref in used:
        if ref.size is not None and ref.name in mesh.runs:
            cuts.setdefault(mesh.runs[ref.name][0], set()).update((ref.pre, ref.pre * ref.size))
    return subdivide(mesh, cuts)


def subdivide(mesh: Mesh, cuts: Mapping[int, Iterable[int]]) -> Mesh:
    """`mesh` with some axes divided after the products of sizes in `cuts`: {1: [2]} makes 2x8 2x2x4.

    Raises ValueError for products that do not divide each other or the axis.
    """
    parts = [_parts(mesh, axis, cuts.get(axis, ())) for axis in range(mesh.rank)]
    digits = tuple(sum(len(parts[axis]) for axis in run) for run in mesh.runs.values())
    shape = tuple(chain.from_iterable(parts))
    return replace(mesh, shape=shape, digits=digits if len(digits) < len(shape) else ())


def parts_of(before: Mesh, after: Mesh) -> tuple[Axes, ...]:
    """Per axis of `before`, its axes in `after`, which is `before` subdivided."""
    parts: list[Axes] = []
    for size in before.shape:
        start = len(parts[-1]) + parts[-1][0] if parts else 0
        end = start + 1
        while after.group_size(range(start, end)) < size:
            end += 1
        parts.append(tuple(range(start, end)))
    return tuple(parts)


def _parts(mesh: Mesh, axis: int, cuts: Iterable[int]) -> list[int]:
    """The sizes of the sub-axes of one axis."""
    name, size = mesh.axis_name(axis), mesh.shape[axis]
    bounds = sorted({1, size, *cuts})
    if bounds[0] < 1 or bounds[-1] > size:  # bytecode can contain sizes that sdy's text cannot
        raise ValueError(
            f'axis "{name}"={size} cannot have a sub-axis from {bounds[0]} to {bounds[-1]}, expected sizes from 1 on'
        )
    for outer, inner in pairwise(bounds):
        if inner % outer:
            raise ValueError(f'no factorisation of axis "{name}"={size} has sub-axes that end at {outer} and at {inner}')
    return [inner // outer for outer, inner in pairwise(bounds)] or [1]


def whole_and_parts(mesh: Mesh) -> list[Axes]:
    """All axes and sub-axes of `mesh`, whole axes first."""
    return list(dict.fromkeys([*mesh.runs.values(), *((axis,) for axis in range(mesh.rank))]))


def whole_split(mesh: Mesh, split: Split) -> Split:
    """`split` without sub-axes whose complement is not next to them: JAX has no name for those."""
    if not mesh.digits:
        return split
    whole: list[list[AxisRef]] = [[ref for ref in mesh.refs_of(axes) if ref.size is None] for axes in split]
    return tuple(tuple(chain.from_iterable(map(mesh.axes_of, refs))) for refs in whole)


def completed_split(mesh: Mesh, split: Split) -> Split:
    """`split`, with the unused inner sub-axes added to a dimension that ends with the outer ones of an axis."""
    if not mesh.digits:
        return split
    used = {axis for axes in split for axis in axes}
    completed: list[Axes] = []
    for axes in split:
        innermost: Sequence[AxisRef] = mesh.refs_of(axes)[-1:]
        inner = [axis for ref in innermost for axis in mesh.runs[ref.name] if axis not in axes]
        completed.append((*axes, *inner) if innermost and innermost[0].pre == 1 and used.isdisjoint(inner) else axes)
        used.update(completed[-1])
    return tuple(completed)
