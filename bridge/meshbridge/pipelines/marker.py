"""The boundary between stages in a program: an optimization barrier that bears a stage's name.

    %1 = stablehlo.optimization_barrier %0 {mhlo.frontend_attributes = {meshbridge.direction = "forward", meshbridge.stage = "b"}}

`stage` writes it. XLA compiles it unchanged, `jax.export` keeps it, and the partitioner knows barriers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshbridge.ir import mlir
from meshbridge.ir.mlir import BARRIER, ir, walk

Direction = Literal["forward", "backward"]

_FRONTEND = "mhlo.frontend_attributes"
_NAME, _DIRECTION = "meshbridge.stage", "meshbridge.direction"


@dataclass(frozen=True)
class Marker:
    """A boundary: what passes it forward begins the stage of that name, what passes it backward leaves that stage."""

    name: str
    direction: Direction

    def attributes(self) -> dict[str, ir.Attribute]:
        """Those of the barrier."""
        texts: dict[str, ir.Attribute] = {_NAME: ir.StringAttr.get(self.name), _DIRECTION: ir.StringAttr.get(self.direction)}
        return {_FRONTEND: ir.DictAttr.get(texts)}


def marker_of(op: ir.Operation) -> Marker | None:
    """The boundary that an op marks; None for any other op."""
    if op.name != BARRIER or _FRONTEND not in op.attributes:
        return None
    given = mlir.dictionary(op.attributes[_FRONTEND])
    if _NAME not in given:
        return None
    direction: Direction = "backward" if ir.StringAttr(given[_DIRECTION]).value == "backward" else "forward"
    return Marker(ir.StringAttr(given[_NAME]).value, direction)


def erase_markers(op: ir.Operation) -> None:
    """Erases the boundaries of stages in an op."""
    for marker in [inner for inner in walk(op) if marker_of(inner) is not None]:
        for result, operand in zip(marker.results, marker.operands, strict=True):
            result.replace_all_uses_with(operand)
        marker.erase()
