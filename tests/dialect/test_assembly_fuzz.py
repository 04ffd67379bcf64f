"""Hostile text: whatever is read either parses or is refused with a place in the file. Never a crash, never another exception."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge_converters import llvm, rfc
from tests.dialect.programs import FORMS, program
from tests.patience import PATIENCE

CONTEXT = context()
TESTDATA = Path(__file__).parents[2] / "testdata"
SEEDS = [
    (read, program(*(forms[0].replace("%0 =", f"%v{number} =") for number, forms in enumerate(FORMS.values()) if number % 2))),
    (read, (TESTDATA / "walkthrough" / "mlp_1d_weight_stationary.mlir").read_text()),
    (rfc.read, (TESTDATA / "rfc" / "mlp_1d_weight_stationary_materialized.mlir").read_text()),
    (
        llvm.LLVM_22.read,
        "shard.grid @m(shape = 2x4)\nfunc.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
        "  %s = shard.sharding @m split_axes = [[0], []] : !shard.sharding\n  %0 = shard.shard %a to %s : tensor<8xf32>\n"
        "  %1 = shard.all_reduce %0 on @m grid_axes = [1] reduction = max : tensor<8xf32> -> tensor<8xf32>\n"
        "  return %1 : tensor<8xf32>\n}\n",
    ),
]
PIECES = [
    *'%@:[]{}()<>",\n=-?#!$é\0',
    *("//", "->", "mesh.", "mesh.shard", "shard.", '"mesh.shard"(', "<{", "}>", "#mesh<", "loc(", "99999", "-1", "^bb0"),
    *("!mesh.sharding", "array<i64", "mesh_axes", "to", "on @m", "0x", "\\22", "affine_map<(d0) -> (d0)>"),
]


@st.composite
def mutations(draw: Callable[..., object]) -> tuple[Callable[[str, str, ir.Context], ir.Module], str]:
    """A reader and the text of a seed with one to three cuts, insertions or repetitions."""
    reader, text = draw(st.sampled_from(SEEDS))  # type: ignore[misc]
    for _ in range(draw(st.integers(1, 3))):  # type: ignore[call-overload]
        start: int = draw(st.integers(0, len(text)))  # type: ignore[assignment]
        end: int = min(len(text), start + draw(st.integers(0, 24)))  # type: ignore[operator]
        piece: str = draw(st.one_of(st.sampled_from(PIECES), st.just(""), st.just(text[start:end] * 2)))  # type: ignore[assignment]
        text = text[:start] + piece + text[end:]
    return reader, text


@settings(max_examples=300, deadline=None)
@given(mutations())
def test_text_is_read_or_refused_in_place(case: tuple[Callable[[str, str, ir.Context], ir.Module], str]) -> None:
    reader, text = case
    refusal = ""
    try:
        module = reader(text, "fuzz.mlir", CONTEXT)
    except MeshError as error:
        refusal = str(error)
    if refusal:
        assert re.match(r"fuzz\.mlir:\d+:\d+: error: .", refusal), refusal
        return
    assert all(re.match(r"(fuzz\.mlir|<unknown>|-)", str(error)) for error in verifier.diagnostics(module))
    printed = write(module)
    assert write(read(printed, "again.mlir", CONTEXT)) == printed


@pytest.mark.parametrize("count", [1_000, 20_000])
def test_one_long_line_takes_linear_time(count: int) -> None:
    """Twenty times the text: anything quadratic would take minutes."""
    line = " ".join(f"%{number} = mesh.process_linear_index on @m : index" for number in range(count))
    module = read(f"mesh.mesh @m(shape = 2)\nfunc.func @f() {{ {line} return }}", "line.mlir", CONTEXT)
    assert len(module.body.operations) == 2


def test_coverage_guided(tmp_path: Path) -> None:
    """Ten thousand inputs of atheris from the same seeds; longer runs: `python -m tests.dialect.fuzz_reader`."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, (_, text) in enumerate(SEEDS):
        (corpus / f"{number}.mlir").write_text(text)
    command = [sys.executable, "-m", "tests.dialect.fuzz_reader", "-runs=10000", "-timeout=60", "-seed=1", str(corpus)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Done" in run.stderr, run.stderr[-2000:]
