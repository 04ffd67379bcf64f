"""The name of `meshbridge.solver.problem` before the solver had a folder of its own."""

from __future__ import annotations

from meshbridge.solver.problem import Indices, Numbers, Problem

__all__ = ["Indices", "Numbers", "Problem"]
