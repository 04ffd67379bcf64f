"""Every mesh operation does the same once the axes of its mesh are cut into parts: what the simulator says of whole axes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbridge.dialect.ops import MeshOp
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.mlir import ir
from meshbridge.ir.subaxes import subdivide
from tests.lowering.cases import OPERATIONS
from tests.lowering.drawn_programs import PHASES, programs
from tests.lowering.harness import run
from tests.mesh_axes import SPELLINGS


def cut_axes(module: ir.Module) -> None:
    """Cuts every axis of every mesh that has a divisor, after its smallest one."""
    for mesh in [view.value for view in module.body.operations if isinstance(view, MeshOp)]:
        divisors = {axis: next((n for n in range(2, size) if size % n == 0), 1) for axis, size in enumerate(mesh.shape)}
        finer = subdivide(mesh, {axis: [divisor] for axis, divisor in divisors.items()})
        if finer != mesh:
            renumber(module, mesh, finer)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["local", "exported"])
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_operation_goes_along(operation: str, form: str, data: st.DataObject) -> None:
    program = data.draw(programs(operation, form))
    spelling = data.draw(st.sampled_from(SPELLINGS))
    found = run([each.case for each in program], form=form, first=cut_axes, replica_groups=spelling)
    for expectation, results in zip(program, found, strict=True):
        expectation.check(results)
