"""`meshbridge report --stages`, `meshbridge verify --stages` and `meshbridge search --stages`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from meshbridge.tools import cli
from tests.pipelines.steps import accumulating, mlp, mlp_loss


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An exported step with boundaries of four stages."""
    path: Path = tmp_path_factory.mktemp("pipelines") / "step.jax_export"
    path.write_bytes(export.export(jax.jit(accumulating(mlp_loss, 4)))(*mlp()).serialize())
    return str(path)


def test_reports(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", program, "--stages", "2", "--schedule", "gpipe"]) == 0
    assert capsys.readouterr().out.startswith("schedule gpipe: 4 microbatches, 1 device for each of 2 stages, machine neutral\n")
    assert cli.main(["report", program, "--stages", "2", "--schedule", "interleaved", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chunks"] == 4


def test_proves(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", program, "--stages", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["the composition of fragments: equal", "fragment pre0: equal"]
    assert cli.main(["verify", program, "--stages", "2", "--schedule", "zero-bubble", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]


@pytest.fixture(scope="module")
def mapped(program: str) -> str:
    """The step as a program of Shardy's MPMD dialect."""
    path = str(Path(program).with_name("pipeline.mlir"))
    assert cli.main(["partition", program, "--stages", "2", "--schedule", "zero-bubble", "--emit", "mpmd", "-o", path]) == 0
    return path


def test_reports_a_mapped_program(mapped: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", mapped]) == 0
    out = capsys.readouterr().out
    assert out.startswith("schedule zero-bubble: 4 microbatches, 1 device for each of 2 stages, machine neutral\n")
    assert cli.main(["report", mapped, "--machine", "v5p:2x1x1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0


def test_proves_a_mapped_program(program: str, mapped: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", program, mapped]) == 0
    assert capsys.readouterr().out.startswith("the composition of fragments: equal\nfragment pre0: equal\n")
    assert cli.main(["verify", mapped, mapped, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]
    other = Path(mapped).with_name("other.mlir")
    other.write_text(Path(mapped).read_text().replace("stablehlo.tanh", "stablehlo.sine"))
    assert cli.main(["verify", program, str(other)]) == 1
    assert capsys.readouterr().out.startswith("the composition of fragments: different")


def test_runs_a_mapped_program(mapped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = str(tmp_path / "outputs.npz")
    assert cli.main(["run", mapped, "--check", "--outputs", outputs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("result 0: float32[8]")
    assert lines[-1].startswith("largest difference from the unsharded run: absolute ")
    assert len(np.load(outputs).files) == len(lines) - 1


def test_names_the_line_of_what_it_does_not_read(mapped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.mlir"
    text = Path(mapped).read_text()
    path.write_text(text.replace('"mesh1", tensor<f32>', '"mesh1", tensor<f32>, memory_kind="pinned_host"'))
    assert cli.main(["report", str(path)]) == 1
    assert re.match(rf"{path}:\d+:\d+: error: .*in memory of kind 'pinned_host'", capsys.readouterr().err)


def test_searches(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["search", program, "--stages", "2,4", "--machine", "v5p:2x2x1", "--schedules", "gpipe,1f1b"]
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert text.startswith("gpipe, 4 stages on 1 device, 4 microbatches on v5p:2x2x1: a step of ")
    assert text.endswith('pipelined = meshbridge.pipelined(step, stages=4, schedule="gpipe", machine="v5p:2x2x1")\n')
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runner_up"]["candidate"]["schedule"] == "1f1b"

    def symbolic(params: Any, batch: Any) -> Any:
        add = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(mlp_loss)(params, x, 2)), None)  # noqa: E731
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)[0]

    dims = export.symbolic_shape("m, b")
    batch = (jax.ShapeDtypeStruct((*dims, 8), jnp.float32),) * 2
    path = tmp_path / "symbolic.jax_export"
    path.write_bytes(export.export(jax.jit(symbolic))(mlp()[0], batch).serialize())
    assert cli.main(["search", str(path), "--stages", "any", "--machine", "v5p:2x1x1", "--microbatches", "m*b=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["candidate"]["microbatches"] for each in found["tried"]} == {1, 2}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("search IN --machine v5p --stages 2", "name a topology, as in v5p:4x4x4"),
        ("search IN --machine v5p:2x1x1 --stages 2 --mesh 2", "--mesh has no effect with --stages"),
        ("search IN --machine v5p:2x1x1 --stages 2 -o OUT", "-o has no effect with --stages"),
        ("search IN --machine v5p:2x1x1 --schedules 1f1b", "--schedules has no effect without --stages"),
        ("search IN --machine v5p:2x1x1 --stages 2 --schedules fast", "expected some of gpipe, 1f1b, interleaved, zero-bubble"),
        ("search IN --machine v5p:2x1x1 --stages 2 --microbatches 4", "as in m*b=32, found '4'"),
        ("search IN --machine v5p:2x1x1 --stages none", "expected"),
        ("partition IN --stages 2", "--stages has no effect with --emit exported, expected --emit mpmd"),
        ("partition IN --emit mpmd", "--emit mpmd needs --stages N"),
        ("partition IN --stages 2 --emit mpmd --report", "--report has no effect with --stages"),
        ("partition IN --stages 2 --emit mpmd --replica-groups dense", "--replica-groups has no effect with --stages"),
        ("report MAPPED --stages 2", "--stages has no effect on a program that is mapped to meshes already"),
        ("report MAPPED --suggest 2", "--suggest has no effect on a program that is mapped to meshes"),
        ("verify MAPPED --local", "--local has no effect on a program that is mapped to meshes"),
        ("run MAPPED --local", "--local has no effect on a program that is mapped to meshes"),
        ("partition MAPPED -o OUT", "'mpmd.fragment' op is of a pipeline on several meshes, expected a program on one"),
        ("report IN --schedule 1f1b", "--schedule has no effect without --stages"),
        ("verify IN --schedule 1f1b", "--schedule has no effect without --stages"),
        ("report IN --stages 2 --symbolic", "--symbolic has no effect with --stages"),
        ("verify IN --stages 2 --after-each-pass", "--after-each-pass has no effect with --stages"),
        ("report IN --stages 5", "expected boundaries of 5 stages, or of a multiple, found 3"),
        ("report IN --stages 2 --schedule fast", "invalid choice: 'fast'"),
        ("report IN --stages 2 --schedule stacked", "stages that run the same ops, and this boundary is in no scan over layers"),
        ("report IN --stages none", "expected"),
    ],
)
def test_refuses(line: str, text: str, program: str, mapped: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"IN": program, "MAPPED": mapped}
    try:
        status = cli.main([given.get(word, word) for word in line.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status
    assert text in capsys.readouterr().err
