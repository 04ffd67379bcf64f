"""Which ops commute with a sum over shards, so that a partial operand may stay partial through them."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.interface.loops import LoopNest
from meshbridge.sharding import Axes

UNARY = frozenset(
    f"stablehlo.{name}" for name in ["negate", "transpose", "reshape", "slice", "reverse", "reduce", "real", "imag"]
)
"""Linear in their first operand, the only one that may be partial (reduce: over `add`)."""

SCALE = frozenset(("stablehlo.multiply", "stablehlo.divide"))
"""Linear in the first operand, `multiply` in either, if the other one is not partial."""

ADD = frozenset(("stablehlo.add", "stablehlo.subtract"))
"""Sums over the same shards on both sides make one such sum."""


LINEAR = UNARY | SCALE | ADD
"""All of them."""


def carried_axes(op_name: str, nest: LoopNest, partial: Sequence[Axes]) -> Axes:
    """The axes over which the op's result stays a partial sum, given those of its operands; () if it needs them finished."""
    if not any(partial):
        return ()
    if op_name in ADD:
        return partial[0] if partial[0] == partial[1] else ()
    if op_name in SCALE:
        if partial[0] and not partial[1]:
            return partial[0]
        return partial[1] if op_name == "stablehlo.multiply" and not partial[0] else ()
    if op_name in UNARY and not any(partial[1:]) and all(loop.reduction in ("", "sum") for loop in nest.loops):
        return partial[0]
    return ()
