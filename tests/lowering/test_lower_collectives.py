"""Every mesh operation, lowered and run by XLA on up to 8 virtual devices in both output forms, equals the simulator.

Each example is one program of several draws of one operation on meshes with equally many devices.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbridge.ir import groups, relays
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.compile_target import CompileTarget
from tests import simulator
from tests.lowering.cases import OPERATIONS, Member, rooted
from tests.lowering.drawn_programs import PHASES, programs
from tests.lowering.harness import Case, run
from tests.mesh_axes import SPELLINGS, needs_mesh_axes

MACHINES = ("neutral", "v5p")
"""Of both forms that compilers keep: any, and those of values that lie in tiles."""


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["local", "exported"])
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_operation_equals_the_simulator(operation: str, form: str, data: st.DataObject) -> None:
    program = data.draw(programs(operation, form))
    spelling = data.draw(st.sampled_from(SPELLINGS))
    machine = data.draw(st.sampled_from(MACHINES))
    found = run([each.case for each in program], form=form, replica_groups=spelling, target=CompileTarget.of(machine))
    for expectation, results in zip(program, found, strict=True):
        expectation.check(results)


@pytest.mark.parametrize("operation", ["shift", "update_halo"])
@pytest.mark.parametrize("form", ["local", "exported"])
@needs_mesh_axes
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_shifts_without_lists_of_devices(operation: str, form: str, data: st.DataObject) -> None:
    """As on large meshes; where all-to-alls cost nothing but what they send, digit by digit."""
    program = data.draw(programs(operation, form))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "SHIFTED_DEVICES", 0)
        patch.setattr(relays, "LAUNCH", data.draw(st.sampled_from([0, 64])))
        found = run([each.case for each in program], form=form)
    for expectation, results in zip(program, found, strict=True):
        expectation.check(results)


LOOP = (
    "%_zero = stablehlo.constant dense<0> : tensor<i32>",
    "%_one = stablehlo.constant dense<1> : tensor<i32>",
    "%_count = stablehlo.constant dense<3> : tensor<i32>",
    "%_out:2 = stablehlo.while(%_i = %_zero, %_v = $0) : tensor<i32>, tensor<2xi32> cond {",
    "  %_more = stablehlo.compare LT, %_i, %_count : (tensor<i32>, tensor<i32>) -> tensor<i1>",
    "  stablehlo.return %_more : tensor<i1>",
    "} do {",
    "  %_next = stablehlo.add %_i, %_one : tensor<i32>",
    '  %_r = "mesh.recv"(%_v) {mesh = @mesh, mesh_axes = array<i16: 0>, source = array<i64: 1>}'
    " : (tensor<2xi32>) -> tensor<2xi32>",
    "  %_w = stablehlo.multiply %_v, %_v : tensor<2xi32>",
    '  %_s = "mesh.send"(%_w) {mesh = @mesh, mesh_axes = array<i16: 0>, destination = array<i64: 0>}'
    " : (tensor<2xi32>) -> tensor<2xi32>",
    '  %_x = "mesh.shift"(%_r) {mesh = @mesh, mesh_axes = array<i16: 0>, shift_axis = 0 : index, offset = 1 : i64, rotate}'
    " : (tensor<2xi32>) -> tensor<2xi32>",
    "  stablehlo.return %_next, %_x : tensor<i32>, tensor<2xi32>",
    "}",
)


@pytest.mark.parametrize("form", ["local", "exported"])
def test_collectives_inside_of_a_loop(form: str) -> None:
    mesh = Mesh("m", (2, 2))
    values = {device: np.array([device[0] + 2, device[1] - 3], np.int32) for device in simulator.devices(mesh.shape)}
    expected = values
    for _ in range(3):
        squares = {device: value * value for device, value in expected.items()}
        received = simulator.send_recv(mesh.shape, squares, expected, [0], (1,), (0,))
        expected = simulator.shift(mesh.shape, received, 0, 1, rotate=True)
    ((found,),) = run([Case(mesh, (values,), LOOP, (("%_out#1", "tensor<2xi32>"),))], form=form)
    for device, value in expected.items():
        np.testing.assert_array_equal(found[device], value)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the interpreter needs a core for each device, or its devices deadlock")
@pytest.mark.parametrize("root", [(0,), (1,)])
@pytest.mark.parametrize("device_ids", [(), (1, 0)])
@pytest.mark.parametrize("one_collective", [True, False])
def test_broadcast_in_the_interpreter(root: tuple[int], device_ids: tuple[int, ...], one_collective: bool) -> None:
    """XLA's CPU backend has no collective_broadcast; StableHLO's interpreter has."""
    mesh = Mesh("m", (2,), (), device_ids)
    values = {device: np.array([device[0] + 5, 1], np.int32) for device in simulator.devices(mesh.shape)}
    expected = simulator.broadcast(mesh.shape, values, (0,), root)
    expectation = rooted(mesh, "broadcast", (0,), "", Member(root, (False,)), values, "tensor<2xi32>", expected)
    (found,) = run([expectation.case], form="interpreted", collective_broadcast=one_collective)
    expectation.check(found)
