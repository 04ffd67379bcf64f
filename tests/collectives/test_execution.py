"""Every mesh operation, lowered and run by XLA on up to 8 virtual devices, equals the simulator.

Each example is one program of several draws of one operation on meshes with equally many devices.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import OPERATIONS, Expectation, meshes
from harness import run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CASES_PER_PROGRAM = 8

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: every attempt would compile a program, and a failure names its case anyway."""


@st.composite
def programs(draw: st.DrawFn, operation: str, form: str) -> list[Expectation]:
    """Draws of one operation, on one mesh or on several.

    The exported form has one device order for the whole program, the local form one for each mesh.
    """
    size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 8, 8]))
    shared = tuple(draw(st.permutations(range(size)))) if draw(st.booleans()) else ()
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


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["local", "exported"])
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_operation_equals_the_simulator(operation: str, form: str, data: st.DataObject) -> None:
    program = data.draw(programs(operation, form))
    spelling = data.draw(st.sampled_from(["dense", "mesh-axes"]))
    found = run([each.case for each in program], form=form, replica_groups=spelling)
    for expectation, results in zip(program, found, strict=True):
        expectation.check(results)
