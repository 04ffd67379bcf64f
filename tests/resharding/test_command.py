"""The body of `meshbridge reshard`: what it prints, what it refuses, and that it runs."""

from __future__ import annotations

import json

import jax
import pytest

from meshbridge.mlir import MeshError
from meshbridge.resharding.command import run
from meshbridge.resharding.picture import picture
from meshbridge.sharding import Mesh, Sharding

SEED_AFTER = """\
      tensor axis 1 ->
      0:3   3:6
     +-----+-----+
0:2  | 00  | 10  |
     +-----+-----+
2:4  | 01  | 11  |
     +-----+-----+
4:6  | 02  | 12  |
     +-----+-----+  tensor axis 0 down"""


def test_the_picture_is_the_seeds() -> None:
    """Seed 003, `[[1], [0]]` on 2x3: which device holds which part of the tensor."""
    found = picture((6, 6), Mesh("m", (2, 3)), Sharding("m", ((1,), (0,))))
    assert [line.split() for line in found.splitlines()] == [line.split() for line in SEED_AFTER.splitlines()]


def test_pictures_of_what_has_no_grid() -> None:
    mesh = Mesh("m", (2, 2, 12))
    assert picture((4, 4, 24), mesh, Sharding("m", ((0,), (1,), (2,)))).count("\n") == 47
    assert "192 blocks" in picture((256,), Mesh("m", (192,)), Sharding("m", ((0,),)))
    assert "0,0,0 0,0,1" in picture((4,), mesh, Sharding("m", ((0,),)))


def test_the_report_compares_with_the_bound() -> None:
    text = run("96x192xf32", "2x3", "[[0],[1]]", "[[1],[0]]", False, False)
    assert "receives 12288 bytes, lower bound 12288 (at the bound)" in text
    assert "before: [[0], [1]]" in text


def test_json() -> None:
    record = json.loads(run("8x8xbf16", "2x2", "[[0], []] partial = sum [1]", "[[0], [1]]", False, True))
    assert record["collectives"] == 1
    assert record["received_bytes"] == record["bound"]["received_bytes"] == 32
    assert record["steps"][0]["step"] == "reduce-scatter sum dim 1 over [1]"


@pytest.mark.skipif(len(jax.devices("cpu")) < 8, reason="needs 8 devices")
@pytest.mark.parametrize("pair", [("[[0], [1]]", "[[1], [0]]"), ("[[0, 1], []]", "[[], []]")])
def test_it_runs(pair: tuple[str, str]) -> None:
    assert "ran on 6 devices" in run("7x11xf32", "2x3", *pair, True, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("96x192", "2x3", "[[0]]", "[[1]]"), "expected a shape such as"),
        (("96xf32", "2y3", "[[0]]", "[[1]]"), "expected a mesh such as"),
        (("96xf32", "2x3", "[[0]", "[[1]]"), "expected a list"),
        (("96xf32", "2x3", "rows", "[[1]]"), "expected a sharding such as"),
        (("96xf32", "2x3", "[[0], [1]]", "[[1]]"), "2 split dimensions for a tensor of rank 1"),
        (("96xf32", "2x3", "[[5]]", "[[1]]"), "at most once, found [5]"),
        (("96xf32", "2x3", "[[0]] partial = most [1]", "[[1]]"), "expected one of sum"),
        (("96xf32", "2x3", "[[0]] partial = generic [1]", "[[1]]"), "nothing says how to reduce it"),
        (("96xf32", "2x3", "[[0]] halo_sizes = [1]", "[[1]]"), "two halo sizes"),
    ],
)
def test_bad_input(arguments: tuple[str, str, str, str], complaint: str) -> None:
    with pytest.raises(MeshError, match=complaint.replace("[", r"\[")):
        run(*arguments, False, False)
