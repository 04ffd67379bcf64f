"""`meshbridge report --stages` and `meshbridge verify --stages`."""

from __future__ import annotations

import json
from pathlib import Path

import jax
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


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("report IN --schedule 1f1b", "--schedule has no effect without --stages"),
        ("verify IN --schedule 1f1b", "--schedule has no effect without --stages"),
        ("report IN --stages 2 --symbolic", "--symbolic has no effect with --stages"),
        ("verify IN --stages 2 --after-each-pass", "--after-each-pass has no effect with --stages"),
        ("report IN --stages 5", "expected boundaries of 5 stages, or of a multiple, found 3"),
        ("report IN --stages 2 --schedule fast", "invalid choice: 'fast'"),
        ("report IN --stages none", "expected"),
    ],
)
def test_refuses(line: str, text: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main([program if word == "IN" else word for word in line.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status
    assert text in capsys.readouterr().err
