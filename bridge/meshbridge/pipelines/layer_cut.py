"""Families of scans over layers whose layers are divided among chunks, and the boundaries that what they return passes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from meshbridge.ir.mlir import ir, walk
from meshbridge.ir.uses import defining_op
from meshbridge.pipelines.layer_scans import Family, LayerLoop, LayerScan
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.pipelines.reads import external_operands
from meshbridge.pipelines.stacks import Division


@dataclass(frozen=True, eq=False)
class FamilyCut:
    """A family whose layers are in parts, along the first dimension of its stacks, in chunks in a row."""

    family: Family
    division: Division
    first_chunk: int

    def chunk(self, part: int) -> int:
        """The chunk that has a part."""
        turn = self.division.parts - 1 - part if self.family.first.descends else part
        return self.first_chunk + turn

    @property
    def last_chunk(self) -> int:
        """The last chunk that has layers."""
        return self.first_chunk + self.division.parts - 1


@dataclass(frozen=True, eq=False)
class LayerCut:
    """The families of a loop of microbatches, cut."""

    loop: LayerLoop
    families: tuple[FamilyCut, ...]
    "In the order of their layers."
    names: dict[int, str]
    "By chunk but the first, the name of the boundary with which it begins."
    beside: frozenset[str]
    "The names of boundaries beside scans."

    @property
    def erased(self) -> frozenset[str]:
        """The names of boundaries beside scans with which no chunk begins."""
        return self.beside.difference(self.names.values())

    def boundaries_after(self, cut: FamilyCut) -> list[str]:
        """The names of the boundaries that what a family returns passes: to the chunk in which the first family begins that reads
        it, or else to the last chunk, but not to a boundary beside scans, nor beyond one."""
        later, returned = self.families[self.families.index(cut) + 1 :], _returned(cut.family)
        reading = (other.first_chunk for other in later if not returned.isdisjoint(self._needed(other.family.first)))
        chunks = range(cut.last_chunk + 1, next(reading, max(self.names)) + 1)
        return [*takewhile(lambda name: name not in self.beside, (self.names[chunk] for chunk in chunks))]

    def follows(self, cut: FamilyCut, scan: LayerScan) -> bool:
        """Whether a forward scan needs what is computed in the first chunk of its family before it, or passes the boundary of
        that chunk. If not, nothing that it reads tells its chunk."""
        name = self.names[cut.first_chunk]
        if name in self.beside:
            marks = [op for op in walk(self.loop.loop) if marker_of(op) == Marker(name, "forward")]
            return any(not self._needed(scan).isdisjoint(op.results) for op in marks)
        before = self.families[self.families.index(cut) - 1].family
        return not _returned(before).isdisjoint(self._needed(scan))

    def _needed(self, scan: LayerScan) -> set[ir.Value]:
        """The values of the loop's body from which a scan is computed."""
        needed = set(external_operands(scan.op))
        waiting = list(needed)
        while waiting:
            defining = defining_op(waiting.pop())
            if defining is not None and defining.block == self.loop.body:
                new = [value for value in external_operands(defining) if value not in needed]
                needed.update(new)
                waiting += new
        return needed


def _returned(family: Family) -> set[ir.Value]:
    """What the last layer of a family returns forward."""
    return {scan.op.results[number] for scan in family.scans if family.is_forward(scan) for number in scan.carried()}
