"""The machine that a plan is made for where nobody names one: that of the devices that JAX runs on already."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.jitted.plans import Planning
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import machines, of_kind
from meshbridge.runtime import devices
from meshbridge.runtime.compiler_options import CompilerOptions
from tests.house import ROOT

GPU = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3", client=SimpleNamespace(platform_version="cuda 13"))
TPU = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
OTHER = SimpleNamespace(platform="tpu", device_kind="TPU v2")


def exported(*platforms: str) -> export.Exported:
    """A program whose plan for an H100 is not that of the fewest bytes."""
    mesh = AbstractMesh((8,), ("x",))
    by_rows, by_columns = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x",), (None, "x")))
    step = jax.jit(lambda x, w: jnp.sin(x.T @ x) @ w, in_shardings=(by_rows, by_rows), out_shardings=by_columns)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 96), (96, 96))]
    return export.export(step, platforms=platforms or ("tpu",))(*arguments)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *some: monkeypatch.setattr(devices, "_running", lambda: some)


@pytest.mark.parametrize(
    ("device", "platforms", "machine", "why"),
    [
        (TPU, ("tpu",), "v5e", "JAX runs on TPU v5 lite"),
        (TPU, ("cpu", "tpu"), "v5e", "JAX runs on TPU v5 lite"),
        (TPU, ("cuda",), "neutral", ""),
        (GPU, ("cuda",), "h100", "JAX runs on NVIDIA H100 80GB HBM3"),
        (GPU, ("rocm",), "neutral", ""),
        (OTHER, ("tpu",), "neutral", "JAX runs on TPU v2, which no machine is known of"),
    ],
)
def test_the_report_says_which_machine_and_why(device: Any, platforms: Any, machine: str, why: str, running: Any) -> None:
    running(device)
    report = meshbridge.report(exported(*platforms))
    assert (report.machine, report.why_machine) == (machine, why)
    assert json.loads(report.to_json())["planned_for"] == {"machine": machine, "why": why}
    assert (f"planned for machine {machine}: {why}" in report.table()) == bool(why)


@pytest.mark.parametrize("named", ["neutral", "bytes", "v5p"])
def test_a_machine_that_is_named_counts(named: str, running: Any) -> None:
    running(GPU)
    report = meshbridge.report(exported("cuda"), machine=named)
    assert (report.machine, report.why_machine) == (named, "")


def test_partition_and_compile_plan_for_it(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported("cuda")
    expected = {name: str(meshbridge.partition(program, emit="mesh", machine=name)) for name in ("bytes", "h100")}
    assert expected["bytes"] != expected["h100"]
    running(GPU)
    assert str(meshbridge.partition(program, emit="mesh")) == expected["h100"]
    taken: Counter[str] = Counter()
    plan = meshbridge.partitioning.partition_module
    monkeypatch.setattr(
        meshbridge.partitioning, "partition_module", lambda m, how: (taken.update([how.target.name]), plan(m, how))
    )
    running()
    monkeypatch.setattr(devices, "of", lambda some: devices.Chosen({"cpu": "h100"}[some[0].platform]))
    meshbridge.compile(exported("cpu"))
    assert taken == {"h100": 1}


def test_the_plan_is_for_the_options_that_it_is_compiled_under(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are given by name are beside XLA's defaults. What `partition` and `report` give others compile."""
    program, planned = exported("cpu"), list[str]()
    plan = meshbridge.partitioning.partition_module

    def noting(module: Any, how: Any, **observers: Any) -> Any:
        planned.append(how.target.compiler_options)
        return plan(module, how, **observers)

    monkeypatch.setattr(meshbridge.partitioning, "partition_module", noting)
    meshbridge.compile(program)
    meshbridge.compile(program, compiler_options="default")
    meshbridge.compile(program, compiler_options={"xla_disable_all_hlo_passes": True})
    meshbridge.partition(program)
    meshbridge.partition(program, compiler_options="best")
    assert planned == ["best", "default", "default", "default", "best"]
    assert Planning().on(()).target.compiler_options == "default"
    assert Planning(compiler_options=CompilerOptions("best")).on(()).target.compiler_options == "best"
    for found in (meshbridge.report(program), meshbridge.report(program, compiler_options="best")):
        assert json.loads(found.to_json())["compiler_options"] == found.compiler_options
    with pytest.raises(MeshError, match="compiler-options is 'fast', expected one of default, best"):
        meshbridge.partition(program, compiler_options="fast")  # type: ignore[call-overload]


def test_a_program_that_came_partitioned_is_planned_for_nothing(running: Any) -> None:
    running(TPU)
    done = meshbridge.partition(exported(), emit="mesh")
    report = meshbridge.report(done)
    assert json.loads(report.to_json())["planned_for"] is None
    assert "planned for" not in report.table()


def test_without_accelerators_it_is_neutral(running: Any) -> None:
    jax.devices()  # those of this process are CPUs
    assert devices.implied(()) == devices.Chosen("neutral")
    running()
    assert devices.implied(()) == devices.Chosen("neutral")


def test_every_kind_is_of_one_machine() -> None:
    known = {key: machine for key, machine in machines().items() if machine.platform != "cpu"}
    kinds = Counter(kind for machine in known.values() for kind in machine.device_kinds)
    assert set(kinds.values()) == {1}
    for (_, name), machine in known.items():
        assert machine.device_kinds
        assert {of_kind(kind) for kind in machine.device_kinds} == {name}
    assert of_kind("cpu") is None


@pytest.mark.parametrize("first", ["", "import jax; from jax._src.xla_bridge import backends_are_initialized as started"])
def test_jax_is_neither_imported_nor_started(first: str) -> None:
    program = Path(ROOT / "testdata" / "walkthrough" / "two_layers.mlir")
    last = "assert not started()" if first else "assert 'jax' not in sys.modules"
    code = f"{first}\nimport sys, meshbridge as m; m.report(m.load(sys.argv[1])); {last}"
    assert subprocess.run([sys.executable, "-c", code, str(program)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("device", "named", "expected"),
    [
        (TPU, "neutral", "v5e"),
        (TPU, "v5p", "v5p"),
        (TPU, "v5p:2x2x2", "v5p"),
        (TPU, "h100", "v5e"),
        (GPU, "bytes", "h100"),
        (OTHER, "neutral", None),
        (OTHER, "v4", "v4"),
    ],
)
def test_what_devices_are(device: Any, named: str, expected: str | None) -> None:
    """A machine that somebody names for the plan, unless it is of another platform; that says under which options to compile."""
    machine = CompileTarget.of(named).machine
    found = devices.machine_of([device], machine)
    assert (found and found.name) == expected
    assert devices.machine_of([], machine) is None
