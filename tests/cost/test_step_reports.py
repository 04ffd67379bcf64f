"""The predicted step in reports: its JSON, its trace, and what is said where there is none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.tools import cli
from tests.cost.small_steps import GPU, GPUS
from tests.programs.user_programs import PROGRAMS


def exported() -> export.Exported:
    """The gradient of two layers with `jax.checkpoint`, the batch on one axis and the hidden dimension on the other."""
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    specs = [("data", None), (None, "model"), ("model", None)]

    def loss(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(lambda y: jax.nn.gelu(y @ v) @ w)(x) ** 2)

    shapes = [(64, 256), (256, 512), (512, 256)]
    shardings = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return export.export(jax.jit(jax.grad(loss, argnums=(1, 2)), in_shardings=shardings))(*arguments)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.jax_export"
    path.write_bytes(exported().serialize())
    return path


def test_the_report_has_a_step(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = meshbridge.report(exported(), machine=GPUS)
    assert cli.main(["report", str(program), "--machine", GPUS, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    keys = ("seconds", "exposed_seconds", "compute_seconds", "communication_seconds", "mfu", "peak_bytes")
    assert [read[key] for key in keys] == [getattr(report, key) for key in keys]
    assert read["machine"] == GPUS
    assert read["seconds"] == pytest.approx(read["compute_seconds"] + read["exposed_seconds"])
    assert read["peak_bytes"] == read["memory"]["peak"]
    assert f"per step on {GPUS}: computing" in report.table()


def test_mfu_counts_what_is_computed_again_once() -> None:
    """Two products forwards, three backwards, since the argument has no gradient; not the one that the checkpoint repeats."""
    report = meshbridge.report(exported(), machine=GPUS)
    flops = 5 * 2 * 64 * 256 * 512
    assert report.model_products == {"f32": flops}
    assert report.seconds is not None
    assert report.mfu == pytest.approx(flops / 8 / GPU.flops["tf32"] / report.seconds)


def test_tokens_per_second(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = meshbridge.report(exported(), machine=GPUS, tokens=4096)
    assert report.seconds is not None
    assert report.tokens_per_second == pytest.approx(4096 / report.seconds)
    assert f"about {4096 / report.seconds:,.0f} tokens per second, {512 / report.seconds:,.1f} per device" in report.table()
    assert cli.main(["report", str(program), "--machine", GPUS, "--tokens", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_second"] == report.tokens_per_second
    assert meshbridge.report(exported(), machine=GPUS).tokens_per_second is None


@pytest.mark.parametrize(
    ("machine", "tokens", "expected"),
    [(GPUS, 0, "tokens is 0, expected a positive number"), ("h100", 8, "tokens has no effect without a machine of a topology")],
)
def test_tokens_of_which_nothing_follows(machine: str, tokens: float, expected: str) -> None:
    with pytest.raises(MeshError, match=expected):
        meshbridge.report(exported(), machine=machine, tokens=tokens)


def test_without_a_topology_there_is_no_step() -> None:
    for machine in ("neutral", "h100"):
        report = meshbridge.report(exported(), machine=machine)
        assert (report.step, report.seconds, report.exposed_seconds, report.mfu) == (None,) * 4
        assert report.peak_bytes > 0
        with pytest.raises(MeshError, match="there is no predicted step, expected a machine with a topology"):
            report.perfetto()


def test_a_layout_says_which_axis_the_network_is_for(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Across two nodes of four that axis takes longer which is on the network, and nothing says otherwise than by default."""
    machine, seconds = "h100:1x2x4", []
    for layout in ("", "data=infiniband", "model=infiniband+nvlink"):
        assert cli.main(["report", str(program), "--machine", machine, "--layout", layout, "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
        assert meshbridge.report(exported(), machine=machine, layout=layout).seconds == seconds[-1]
    assert seconds[0] == seconds[1] != seconds[2]
    with pytest.raises(MeshError, match="layout has no effect without a machine of a topology"):
        meshbridge.report(exported(), layout="a=nvlink")


def test_trace(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    assert cli.main(["report", str(program), "--machine", "v5e:2x4", "--perfetto", str(path)]) == 0
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    slices = [each for each in events if each["ph"] == "X"]
    assert {"compute", "memory", "loops"} < set(tracks.values())
    assert len(slices) + len(tracks) + 1 == len(events)
    for each in slices:
        assert each.keys() == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert tracks[each["tid"]] == each["cat"]
        assert each["args"].keys() == {"operation", "location", "module", "executions", "total_ms"}
    for track in ("compute", "memory"):  # one after the other
        ends = [(each["ts"], each["ts"] + each["dur"]) for each in slices if each["cat"] == track]
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(ends))
    dots = [each for each in slices if each["args"]["operation"] == "stablehlo.dot_general" and each["cat"] == "compute"]
    assert all(each["name"].startswith("dot_general test_step_reports.py:") for each in dots)
    assert any("rematted_computation" in each["args"]["module"] for each in dots)


def test_a_partitioned_program_has_a_step(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "partitioned.mlir"
    assert cli.main(["partition", str(program), "--machine", GPUS, "--emit", "mesh", "-o", str(saved)]) == 0
    found = []
    for path in (program, saved):
        assert cli.main(["report", str(path), "--machine", GPUS, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["seconds"] == pytest.approx(found[1]["seconds"])
    assert found[1]["mfu"] is None
    local = tmp_path / "local.mlir"
    assert cli.main(["partition", str(program), "--machine", GPUS, "--emit", "local", "-o", str(local)]) == 0
    assert cli.main(["report", str(local), "--machine", GPUS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        (["--machine", "h100:1x1x4"], 1, "error: mesh @mesh has 8 devices, machine 'h100:1x1x4' has 4"),
        (["--machine", "h100:1x8"], 2, "expected a topology of 3 positive numbers with x between them (slices, hosts, devices)"),
        (["--machine", "h900:1x1x8"], 2, "unknown machine 'h900'"),
        (["--perfetto", "step.json"], 2, "--perfetto has no effect without --machine DEVICE:TOPOLOGY, as in h100:1x1x8"),
        (["--tokens", "4096"], 2, "--tokens has no effect without --machine DEVICE:TOPOLOGY"),
        (["--machine", GPUS, "--tokens", "0"], 2, "argument --tokens: expected a positive number, found '0'"),
        (["--layout", "data=nvlink"], 2, "--layout has no effect without --machine DEVICE:TOPOLOGY"),
        (["--machine", GPUS, "--layout", "a"], 2, "argument --layout: expected a layout AXIS=LINK,…, each axis once"),
        (
            ["--machine", GPUS, "--layout", "z=nvlink"],
            1,
            "error: layout of 'z': mesh @mesh has no such axis, expected one of data, model",
        ),
        (["--machine", "h100", "--perfetto", "step.json"], 2, "--perfetto has no effect without --machine DEVICE:TOPOLOGY"),
    ],
)
def test_diagnostics(
    program: Path, said: list[str], status: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [str(tmp_path / word) if word.endswith(".json") else word for word in said]
    assert cli.main(["report", str(program), *said]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("error:") == 1
    assert not (tmp_path / "step.json").exists()


def test_a_mesh_of_one_device_needs_no_place() -> None:
    """JAX declares one beside the program's own for arguments whose sharding nobody gave."""
    user = PROGRAMS["one_axis"]()
    report = meshbridge.report(user.jitted, *user.arguments, kwargs=user.named, machine=GPUS)
    assert "@empty_mesh" in export.export(user.jitted)(*user.arguments, **user.named).mlir_module()
    assert report.seconds is not None


def test_what_does_not_fit_is_said() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    held = NamedSharding(mesh, PartitionSpec())
    doubled = export.export(jax.jit(lambda x: x * 2, in_shardings=held, out_shardings=held))
    with pytest.warns(meshbridge.MemoryWarning, match=r"51.5 GB more than 'v5e:2x4' has"):
        report = meshbridge.report(doubled(jax.ShapeDtypeStruct((8, 2**30), np.float32)), machine="v5e:2x4")
    assert "does not fit: a device of v5e:2x4 has 17.2 GB of memory" in report.table()
