"""What is minimised: a collective costs the time in which it starts, on the machine that is named."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import resharding
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.objective import NEUTRAL, objective
from meshbridge.decide.decide import decide
from meshbridge.decide.decisions import Decisions
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.ir.mlir import MeshError, context, functions_to_partition, ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.machines import machine
from meshbridge.machines.compile_target import NO_DEVICE, CompileTarget
from meshbridge.ops.rule import Interface
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization
from meshbridge.pipeline import Options, build, run
from meshbridge.read import formats
from meshbridge.resharding import BYTES, Objective
from meshbridge.tools import cli
from testdata.realistic.catalogue import build as build_realistic
from tests.machines.examples import MINE
from tests.operations.differential import device_mesh

MESHES = ((2, 4), (2, 2, 2), (4, 8), (2, 4, 4))


def test_machines_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    assert objective(CompileTarget.of("bytes")) == BYTES
    assert objective(CompileTarget.of("neutral")) == NEUTRAL
    assert objective(CompileTarget.of(str(path))).launch == pytest.approx(5e10 * 0.5 * 2e-6)
    for _, name in machine.machines():
        assert objective(CompileTarget.of(name)).launch == machine.named(name).link.launch_bytes > 0
    with pytest.raises(MeshError, match=r"unknown machine 'abacus', expected one of bytes, neutral, .*v5e.*\.toml file"):
        objective(CompileTarget.of("abacus"))
    with pytest.raises(MeshError, match="machine is 3, expected the name of one or the path of its file"):
        meshbridge.report(_activated(), machine=3)  # type: ignore[arg-type]
    with pytest.raises(MeshError, match=r"^nowhere\.toml: error: cannot read"):
        objective(CompileTarget.of("nowhere.toml"))


@pytest.mark.parametrize("seed", range(4))
def test_prices_count_the_collectives_of_the_plan(seed: int) -> None:
    """What is priced is what the plan sends and starts, where shardings divide the tensor in powers of two."""
    chooser, launch = random.Random(seed), 2048.0
    weighed, seen, fewer = Objective(launch), 0, 0
    for _ in range(150):
        mesh = Mesh("m", chooser.choice(MESHES))
        source, target = (_drawn(chooser, mesh) for _ in range(2))
        shape = (4096, 4096)
        plan = resharding.plan(shape, "f32", mesh, source, target, replace(weighed.planning, check=False))
        price = resharding.cost(shape, "f32", mesh, source, target, weighed)
        launches = (price - plan.total_bytes / mesh.size) / launch
        assert launches == pytest.approx(round(launches))
        assert round(launches) <= plan.collectives, plan
        fewer += round(launches) < plan.collectives  # two gathers along one dimension, with an axis between that stays
        seen += plan.collectives > 1
    assert seen > 20
    assert fewer < 10


def _drawn(chooser: random.Random, mesh: Mesh) -> Sharding:
    axes = [*range(mesh.rank)]
    chooser.shuffle(axes)
    used = axes[: chooser.randint(0, mesh.rank)]
    cut = chooser.randint(0, len(used))
    return Sharding("m", (tuple(used[:cut]), tuple(used[cut:])))


def _activated() -> export.Exported:
    """A product along a split dimension, and what follows on its sum: computed on parts of it, which are gathered, or whole."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    mesh = device_mesh((2, 4))
    shardings = [NamedSharding(mesh, spec) for spec in (P("a", "b"), P("b", None), P("a", None))]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 512), (512, 512))]
    return export.export(jax.jit(function, in_shardings=tuple(shardings[:2]), out_shardings=shardings[2]))(*arguments)


def test_a_dear_launch_is_avoided_and_numbers_stay(tmp_path: Path) -> None:
    """The dearer a launch, the fewer collectives; bytes alone are fewest where launches cost nothing."""
    exported = _activated()
    slow = tmp_path / "slow.toml"
    slow.write_text(MINE.replace("launch = 2e-6", "launch = 1"))
    reports = [meshbridge.report(exported, machine=name) for name in ("bytes", "neutral", str(slow))]
    launches = [sum(found.executions for found in report.collectives) for report in reports]
    assert launches == [2, 1, 1]
    assert len({report.wire_bytes for report in reports}) == 1
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(aval.shape, np.float32) for aval in exported.in_avals]
    expected = np.tanh(arguments[0] @ arguments[1])
    for name in ("bytes", "neutral", str(slow)):
        found = meshbridge.compile(exported, machine=name)(*arguments)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_commands_take_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    program.write_bytes(_activated().serialize())
    found = []
    for name in ("bytes", "v5e"):
        assert cli.main(["report", str(program), "--machine", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    launches = [sum(each["executions"] for each in report["collectives"]) for report in found]
    assert launches[1] < launches[0]
    assert cli.main(["partition", str(program), "--machine", "abacus"]) == 2
    assert "argument --machine: unknown machine 'abacus'" in capsys.readouterr().err
    assert cli.main(["partition", str(program), "--emit", "mesh", "-o", str(tmp_path / "done.mlir")]) == 0
    assert cli.main(["report", str(tmp_path / "done.mlir"), "--machine", "v5e"]) == 1
    assert "--machine has no effect on a program that is partitioned already" in capsys.readouterr().err


def test_commands_take_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is that for the device, and the mesh must have as many devices."""
    program, whole = tmp_path / "program", tmp_path / "whole.mlir"
    program.write_bytes(_activated().serialize())
    texts = []
    for said in (["--machine", "bytes"], ["--machine", "v5e"], ["--machine", "v5e:2x4"], ["--target", "tpu:v5e:2x4"]):
        assert cli.main(["partition", str(program), "--emit", "mesh", *said, "-o", str(whole)]) == 0
        texts.append(whole.read_text())
    assert texts[0] != texts[1] == texts[2] == texts[3]
    for command in (["partition", str(program), "-o", str(tmp_path / "none")], ["report", str(program)]):
        capsys.readouterr()
        assert cli.main([*command, "--machine", "v5e:2x2"]) == 1
        assert "error: mesh @mesh has 8 devices, machine 'v5e:2x2' has 4" in capsys.readouterr().err
        assert cli.main([*command, "--machine", "v5e:8"]) == 2
        assert "expected a topology of 2 positive numbers" in capsys.readouterr().err
        assert cli.main([*command, "--target", "tpu:v5e"]) == 2
        assert "expected a target PLATFORM:DEVICE:TOPOLOGY" in capsys.readouterr().err
        assert cli.main([*command, "--target", "tpu:v5e:2x4", "--machine", "v5e"]) == 2
        assert "not allowed with argument --target" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    with pytest.raises(MeshError, match="mesh @mesh has 8 devices, machine 'v5e:2x2' has 4"):
        meshbridge.partition(_activated(), machine="v5e:2x2")
    assert cli.main(["partition", str(whole), "--machine", "v5e:2x4", "-o", str(tmp_path / "none")]) == 1
    assert "--machine has no effect on a program that is partitioned already" in capsys.readouterr().err


def test_devices_combine_by_themselves() -> None:
    """Two sums that nothing but their groups has in common: two collectives for compilers that combine them."""
    mesh = device_mesh((2, 4))
    shardings = tuple(NamedSharding(mesh, P(None, "b")) for _ in range(2))
    jitted = jax.jit(lambda x, y: (x.sum(1), jnp.cos(y).sum(1)), in_shardings=shardings, out_shardings=None)
    exported = export.export(jitted)(*[jax.ShapeDtypeStruct((rows, 64), jnp.float32) for rows in (8, 16)])
    found = [
        len(meshbridge.report(exported, machine=name).collectives) for name in ("bytes", "neutral", "cpu8", "v5e", "h100:1x1x8")
    ]
    assert found == [1, 1, 1, 2, 2]


def test_unnamed_machines_are_no_devices() -> None:
    assert not {name for _, name in machine.machines()} & set(NO_DEVICE)


def test_the_dearer_memory_is_the_less_is_held() -> None:
    """What is held is counted for every layer, though layers are folded, and in a loop's stacks."""
    exported = build_realistic("gpt8_scan_fsdp_tp", "constrained", 8).export_for("cpu")
    held = []
    for factor in (1.0, 100.0):
        decided = ShardingRefinement(target=CompileTarget.of("neutral"), memory_factor=factor, annotate=False)
        module = formats.unpack(exported, context()).module
        run(build(Options(emit="mesh")).replacing("decided", decided).passes, module)
        held.append(memory(main_function(module)).temporaries)
    assert held[1] < 0.9 * held[0]


def test_plans_for_devices_start_from_the_fewest_bytes_too() -> None:
    """Under prices of launches alone a GPT with replicated parameters keeps an exchange of activations that no single move
    takes away."""
    exported = build_realistic("gpt8_scan_dp_tp", "constrained", 8).export_for("cuda")
    sent, held = [], []
    launches = replace(objective(CompileTarget.of("h100")), launch=2.25e6)
    for weights in (launches, replace(launches, is_thorough=False)):
        module = formats.unpack(exported, context()).module
        run(build(Options.of(emit="mesh", machine="h100")).until("legal").passes, module)
        decide_for(module, weights)
        sent.append(communication(module).wire_bytes)
        held.append(memory(main_function(module)).temporaries)
    assert sent[0] < 0.97 * sent[1]
    assert held[0] <= 1.01 * held[1]


def decide_for(module: ir.Module, weights: Objective) -> None:
    """Decides under an objective, and partitions."""
    with module.context, ir.Location.unknown():
        decisions = decide(functions_to_partition(module), module, Interface(), moves=8000, objective=weights)
    MeshSpmdization(boundary=True, target=CompileTarget.of("h100")).run_with(module, {Decisions: decisions})
