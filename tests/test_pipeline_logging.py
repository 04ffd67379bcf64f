"""What the logger `meshbridge` says: the stages that a program reaches, with seconds, and nothing that nobody asked for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import meshbridge
from meshbridge import pipeline

PROGRAM = Path(__file__).parents[1] / "testdata" / "walkthrough" / "two_layers.mlir"


def test_stages_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "meshbridge"):
        meshbridge.partition(meshbridge.load(PROGRAM), machine="neutral")
    stages = [stage.name for stage in pipeline.build().stages]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert [text.split("'")[1] for text in said] == stages
    (done,) = (record for record in caplog.records if record.levelno == logging.INFO)
    assert done.getMessage().startswith("a program is partitioned to the form 'exported' for machine 'neutral' in ")


def test_compared_plans_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "meshbridge"):
        meshbridge.partition(meshbridge.load(PROGRAM), machine="h100:1x1x4")
    assert any("plans are compared" in record.getMessage() for record in caplog.records)


def test_nothing_is_printed_unasked(capfd: pytest.CaptureFixture[str]) -> None:
    meshbridge.partition(meshbridge.load(PROGRAM))
    assert capfd.readouterr() == ("", "")
