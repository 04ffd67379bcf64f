"""Draws of one mesh operation, several in a program."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import Phase
from hypothesis import strategies as st

from tests.lowering.cases import OPERATIONS, Expectation, meshes

CASES_PER_PROGRAM = 8

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: every attempt would compile a program, and a failure names its case anyway."""


@st.composite
def programs(draw: st.DrawFn, operation: str, form: str) -> list[Expectation]:
    """Draws of one operation, on one mesh or on several.

    The exported form has one device order for the whole program, the form `local` one for each mesh.
    """
    size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 8, 8]))
    any_order = st.permutations(range(size)).map(tuple)
    transposed = st.sampled_from([_transposed(size, outer) for outer in range(1, size + 1) if size % outer == 0])
    shared = draw(st.one_of(st.just(()), any_order, transposed))
    one = draw(meshes(size, shared))
    several = draw(st.booleans())
    found = []
    for number in range(CASES_PER_PROGRAM):
        mesh = one
        if several:
            order = shared if form == "exported" or draw(st.booleans()) else ()
            mesh = replace(draw(meshes(size, order)), name=f"m{number}")
        found.append(draw(OPERATIONS[operation](mesh)))
    return found


def _transposed(size: int, outer: int) -> tuple[int, ...]:
    """The numbers up to `size`, column by column of a table with `outer` rows."""
    return tuple(range(size)[row] for column in range(size // outer) for row in range(column, size, size // outer))
