"""The clocks that count the seconds of a search: those of the solver, and the default."""

from __future__ import annotations

from meshbridge.solver.clock import WALL, Clock, Work

__all__ = ["WALL", "Clock", "Work", "usual"]


def usual() -> Clock:
    """The default clock of a search. Tests replace this function by one that counts work."""
    return WALL
