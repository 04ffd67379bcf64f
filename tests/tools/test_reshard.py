"""The body of `meshbridge reshard`: what it prints, what it refuses, and that it runs."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding import PlanOptions, plan
from meshbridge.resharding.steps import Rounds
from meshbridge.tools.reshard import reshard
from meshbridge.tools.reshard_picture import picture
from meshbridge.tools.reshard_trial import try_on_devices

SPEC_AFTER = """\
      tensor axis 1 ->
      0:3   3:6
     +-----+-----+
0:2  | 00  | 10  |
     +-----+-----+
2:4  | 01  | 11  |
     +-----+-----+
4:6  | 02  | 12  |
     +-----+-----+  tensor axis 0 down"""


def test_the_picture_is_the_specs() -> None:
    """The resharding spec, `[[1], [0]]` on 2x3: which device holds which part of the tensor."""
    found = picture((6, 6), Mesh("m", (2, 3)), Sharding("m", ((1,), (0,))))
    assert [line.split() for line in found.splitlines()] == [line.split() for line in SPEC_AFTER.splitlines()]


def test_pictures_of_what_has_no_grid() -> None:
    mesh = Mesh("m", (2, 2, 12))
    assert picture((4, 4, 24), mesh, Sharding("m", ((0,), (1,), (2,)))).count("\n") == 47
    assert "192 blocks" in picture((256,), Mesh("m", (192,)), Sharding("m", ((0,),)))
    assert "0,0,0 0,0,1" in picture((4,), mesh, Sharding("m", ((0,),)))


def test_the_report_compares_with_the_bound() -> None:
    text = str(reshard("96x192xf32", "2x3", "[[0],[1]]", "[[1],[0]]"))
    assert "receives 12.3 KB, lower bound 12.3 KB (at the bound)" in text
    assert "before: [[0], [1]]" in text


def test_json() -> None:
    record = json.loads(reshard("8x8xbf16", "2x2", "[[0], []] partial = sum [1]", "[[0], [1]]").to_json())
    assert record["collectives"] == 1
    assert record["received_bytes"] == record["bound"]["received_bytes"] == 32
    assert record["steps"][0]["step"] == "reduce-scatter sum dim 1 over [1]"


RUNS = [
    ("7x11xf32", "2x3", "[[0], [1]]", "[[1], [0]]"),
    ("7x11xi1", "2x3", "[[0, 1], []]", "[[], []]"),
    ("f64", "2x4", "[] partial = min [1]", "[]"),
    ("16x8xbf16", "2x4", "[[0], []] partial = average [1]", "[[1], [0]]"),
    ("16x8xi32", "2x4", "[[0], []] partial = bitwise_xor [1]", "[[1], []] partial = sum [0]"),
    ("16x8xf32", "2x4", "[[], []] partial = product [0, 1]", "[[1], []] partial = product [0]"),
    ("8x9xcomplex<f32>", "4", "[[0], []]", "[[0], []] halo_sizes = [1, 2]"),
    ("8x9xui8", "2x2", "[[0], [1]] halo_sizes = [1, 1, 0, 2]", "[[1], [0]]"),
    ("32x32x8xf32", "2x2", "[[0], [1]] sharded_dims_offsets = [0, 24, 32, 0, 20, 32]", "[[1], [], [0]]"),
    ("12x4xf32", "3x2", "[[0], []] partial = max [1] sharded_dims_offsets = [0, 1, 6, 12]", "[[1], []]"),
    ("12x4xi64", "3x2", "[[0], []] partial = product [1] halo_sizes = [2, 1]", "[[0], [1]] halo_sizes = [1, 0, 0, 3]"),
    ("13xf32", "7", "[[]] partial = average [0]", "[[]]"),
    ("8xi64", "2x1x2", "[[1, 0, 2]] halo_sizes = [1, 1]", "[[0]]"),
    ("16x3xf32", "1x4", "[[1], [0]] halo_sizes = [0, 1, 2, 2]", "[[1, 0], []]"),
    ("5x16xf32", "2x2x1x2", "[[2], [0, 3]] halo_sizes = [3, 1, 2, 1]", "[[0, 1], []]"),
    ("0x4xf32", "2x2", "[[0], [1]]", "[[1], [0]]"),
]


@pytest.mark.skipif(len(jax.devices("cpu")) < 8, reason="needs 8 devices")
@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(exact=True)])
def test_it_runs(case: tuple[str, str, str, str], options: PlanOptions) -> None:
    assert "every device holds its shard" in reshard(*case, options, run=True).table()


@pytest.mark.skipif(len(jax.devices("cpu")) < 8, reason="needs 8 devices")
def test_a_run_notices_wrong_data() -> None:
    mesh = Mesh("mesh", (2, 4))
    found = plan((16, 8), "f32", mesh, Sharding("mesh", ((0,), (1,))), Sharding("mesh", ((1,), (0,))), PlanOptions(exact=True))
    exchange = next(step for step in found.steps if isinstance(step, Rounds))
    wrong = replace(exchange, sources=exchange.sources[1:] + exchange.sources[:1])
    with pytest.raises(MeshError, match="left wrong data"):
        try_on_devices(replace(found, steps=tuple(wrong if step is exchange else step for step in found.steps)))


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
        (("96xf32", "2x3", "[[0]] partial = bitwise_or [1]", "[[1]]"), "bitwise_or needs integers, found f32"),
        (("96xf32", "2x3", "[[0]] partial = generic [1]", "[[1]]"), "nothing says how to reduce it"),
        (("96xf32", "2x3", "[[0]] halo_sizes = [1]", "[[1]]"), "two halo sizes"),
    ],
)
def test_bad_input(arguments: tuple[str, str, str, str], complaint: str) -> None:
    with pytest.raises(MeshError, match=complaint.replace("[", r"\[")):
        reshard(*arguments)
