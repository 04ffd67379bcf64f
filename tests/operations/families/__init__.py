"""The families of ops, each a strategy for cases. Importing this package enters all of them into `drawing.FAMILIES`."""

from __future__ import annotations

from tests.operations.families import (
    bits,
    combinations,
    contractions,
    control,
    decompositions,
    elementwise,
    indexing,
    manual,
    movement,
    ordering,
    rare,
    reductions,
    ruled,
    windows,
)

__all__ = [
    "bits",
    "combinations",
    "contractions",
    "control",
    "decompositions",
    "elementwise",
    "indexing",
    "manual",
    "movement",
    "ordering",
    "rare",
    "reductions",
    "ruled",
    "windows",
]
