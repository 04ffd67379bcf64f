"""What the compilers of accelerators send of our programs is what the report says, kind by kind.

XLA:GPU keeps every collective as it is. XLA:TPU makes three changes:

- float32 that only products read travels as bfloat16, in half the bytes;
- a reduce-scatter whose shards are too small becomes an all-reduce, of twice the bytes, and a slice;
- a reduce-scatter along a dimension that tiles do not divide is padded, and its shards are moved on by permutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import meshbridge
from meshbridge.analysis.hlo_figures import figures
from meshbridge.ir.mlir import MeshError
from meshbridge.machines.target import parse
from meshbridge.runtime import targets
from testdata.catalogue import build

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gpt3", "moe_grad", "cp_attn_grad")
EXACT = 1e-3
"""Of all bytes of a program."""

pytestmark = [pytest.mark.slow, pytest.mark.long]


def compiled(program: str, target: str, folder: Path) -> str:
    """The optimised HLO of a program of the catalogue, as meshbridge partitions it."""
    try:
        targets.check_installed(parse(target))
    except MeshError as error:
        pytest.skip(str(error))
    exported, text = folder / "program.jax_export", folder / "optimised.hlo"
    exported.write_bytes(build(program).export().serialize())
    command = [sys.executable, "-m", "tests.targets.optimised_text", str(exported), target, str(text)]
    environment = {**os.environ, **targets.environment(parse(target)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return text.read_text()


def reported(program: str) -> Counter[str]:
    """Bytes that the report says, by HLO's names of the kinds."""
    sent: Counter[str] = Counter()
    for collective in meshbridge.report(build(program).export()).collectives:
        sent[collective.kind.replace("_", "-")] += collective.total_bytes  # type: ignore[assignment]  # typed for int only
    return sent


@pytest.mark.parametrize("program", PROGRAMS)
def test_xla_for_gpus_sends_what_the_report_says(program: str, tmp_path: Path) -> None:
    assert figures(compiled(program, "gpu:h100:1x1x8", tmp_path)).bytes_by_kind == pytest.approx(reported(program))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v5p:2x2x2"])
def test_xla_for_tpus_differs_from_the_report_in_known_ways(program: str, target: str, tmp_path: Path) -> None:
    expected = reported(program)
    found = figures(compiled(program, target, tmp_path))
    # The programs have no bfloat16 of their own.
    sent = {kind: sum(by.values()) + by.get("bf16", 0) for kind, by in found.bytes_by_element.items()}
    summed = expected.pop("reduce-scatter", 0) - sent.pop("reduce-scatter", 0)
    expected["all-reduce"] += 2 * summed
    assert sent == pytest.approx(expected, abs=EXACT * expected.total())
