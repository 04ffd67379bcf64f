"""The layers of a program as one sequence, which is divided among chunks.

The layers of all scans are in the order of their forward passes, with boundaries beside scans between them. A chunk has a range
of them: the end of an encoder and the beginning of a decoder may be in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshbridge.ir.mlir import OpError, ir, walk
from meshbridge.pipelines.layer_cut import FamilyCut, LayerCut
from meshbridge.pipelines.layer_ranges import Unit, cut_layers
from meshbridge.pipelines.layer_scans import Family, LayerLoop, find_layers
from meshbridge.pipelines.marker import marker_of
from meshbridge.pipelines.stack_divisions import sharded_along_layers, unit_of
from meshbridge.pipelines.stacks import Division

FEWER = "choose fewer stages, or for an interleaved schedule a Schedule of fewer chunks"


class _Item(NamedTuple):
    """A layer of a family by its number, or what a boundary beside scans begins."""

    family: Family | None
    layer: int
    name: str
    "That of the boundary before it."
    may_begin: bool
    "Whether a chunk may begin with it."


@dataclass(frozen=True, eq=False)
class LayerSequence:
    """The layers of the families of a loop, and what boundaries beside scans begin, in order, by number."""

    module: ir.Module
    loop: LayerLoop
    families: tuple[Family, ...]
    is_marked: bool
    "Whether chunks begin at boundaries alone, some of which are in scans."

    @property
    def largest(self) -> Family:
        """The family with the most work."""
        return max(self.families, key=lambda family: family.work)

    @property
    def count(self) -> int:
        """The number of layers, of boundaries beside scans that no layer follows, and of what is before the first of these."""
        return len(self._items)

    @cached_property
    def scans(self) -> tuple[int, ...]:
        """The number of the family of each layer, and other numbers for what is no layer."""
        families = self.families
        return tuple(
            families.index(item.family) if item.family is not None else len(families) + number
            for number, item in enumerate(self._items)
        )

    @cached_property
    def _items(self) -> list[_Item]:
        items: list[_Item] = []
        mark = ""  # the boundary since the last layer
        first = {family.first.op: family for family in self.families}
        for view in self.loop.body.operations:
            marker, family = marker_of(view.operation), first.get(view.operation)
            if marker is not None and marker.direction == "forward" and marker.name not in (mark, *(each.name for each in items)):
                items += [_Item(None, 0, mark, may_begin=True)] if mark or not items else []
                mark = marker.name
            elif family is not None:
                items += self._layers(family, sum(each.family is not None for each in items), mark)
                mark = ""
        return [*items, _Item(None, 0, mark, may_begin=True)] if mark else items

    def _layers(self, family: Family, before: int, mark: str) -> list[_Item]:
        """The layers of a family, with so many of others before it, perhaps after a boundary beside scans."""
        name = family.name or "layers"
        may_begin = not self.is_marked or bool(family.name)
        items = [_Item(family, layer, f"{name} from {before + layer}", may_begin) for layer in range(family.layers)]
        return [items[0]._replace(name=mark, may_begin=True), *items[1:]] if mark else items

    @cached_property
    def _units(self) -> dict[Family, int]:
        """The number of layers of each family of which each chunk has a multiple. Raises OpError as `unit_of` does."""
        return {family: unit_of(self.loop, family, self.module) for family in self.families}

    @property
    def points(self) -> tuple[int, ...]:
        """The layers with which a chunk may begin, as their shardings allow. Raises OpError as `unit_of` does."""
        return tuple(
            number
            for number, item in enumerate(self._items)
            if number and item.may_begin and (item.family is None or item.layer % self._units[item.family] == 0)
        )

    def even(self, chunks: int) -> Division:
        """The layers of so many chunks, of as equal work as their shardings allow. Raises OpError if there are too few."""
        points = self.points
        if len(points) < chunks - 1:
            raise self._too_few(len(points) + 1, chunks)
        if self.count == self.largest.layers:
            return Division.even(self.count, chunks, self._units[self.largest])
        items = zip(self._items, self.scans, strict=True)
        work = [
            Unit(scan, item.family.work / item.family.layers if item.family else 0.0, may_begin=number in points)
            for number, (item, scan) in enumerate(items)
        ]
        return Division((0, *cut_layers(work, chunks), self.count))

    def _too_few(self, most: int, chunks: int) -> OpError:
        family, unit = max(self._units.items(), key=lambda item: item[1])
        if unit > 1:
            return sharded_along_layers(family, unit, family.layers // chunks)
        family = self.largest
        if self.count == family.layers:
            message = f"runs {most} layers, expected at least one for each of {chunks} stages"
        else:
            message = f"is one of the scans over layers in which {most} stages can begin, expected {chunks}"
        return OpError(family.first.op, message, FEWER)

    def cut(self, division: Division) -> LayerCut:
        """The cut in which each chunk has those layers."""
        starts = division.bounds[1:-1]
        names = {chunk: self._items[start].name for chunk, start in enumerate(starts, 1)}
        beside = {marker.name for op in self.loop.body.operations if (marker := marker_of(op.operation)) is not None}
        return LayerCut(self.loop, tuple(self._family_cut(family, starts) for family in self.families), names, frozenset(beside))

    def _family_cut(self, family: Family, starts: Sequence[int]) -> FamilyCut:
        numbers = [number for number, item in enumerate(self._items) if item.family is family]
        inner = [self._items[start].layer for start in starts if start in numbers[1:]]
        division = Division((0, *inner, family.layers))
        own = division.turned() if family.first.descends else division
        return FamilyCut(family, own, sum(start <= numbers[0] for start in starts))


def find_sequence(main: ir.Operation, module: ir.Module, chunks: int) -> LayerSequence | None:
    """The layers that have to be cut for so many chunks: of scans that mark a stage in their bodies, or, if no stage is marked
    anywhere, of all scans that read parameters layer by layer, if they have more work than a chunk. None if there are none. The
    program's calls are inlined."""
    marked = [op for op in walk(main) if marker_of(op) is not None]
    loop = find_layers(main, module) if chunks > 1 else None
    if loop is None:
        return None
    is_inner = any(family.name for family in loop.families)
    if marked and not is_inner:
        return None
    families = [family for family in loop.families if family.name or loop.reads_parameters(family)] or list(loop.families)
    if not families or (not is_inner and sum(family.work for family in families) * chunks <= loop.work):
        return None
    largest = max(families, key=lambda family: family.work)
    return LayerSequence(module, loop, tuple(family for family in families if family.is_ordered or family is largest), is_inner)
