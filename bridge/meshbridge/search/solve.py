"""The name of `meshbridge.solver.solve` before the solver had a folder of its own."""

from __future__ import annotations

from meshbridge.solver.solve import LimitError, Progress, Solution, solve

__all__ = ["LimitError", "Progress", "Solution", "solve"]
