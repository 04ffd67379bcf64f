"""What results are compared with: the program as it came, which nothing that partitions it has touched."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

from benchmarks.measure import relative_error
from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.legalize.strip_shardings import StripShardings, find_per_device
from meshbridge.read import formats
from meshbridge.runtime import reference
from meshbridge.tools import cli, trial
from meshbridge.tools.trial import NumericError

SDY = """
sdy.mesh @m = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}) -> (tensor<8x4xf32> {jax.result_info = "r"})
{
  %0 = sdy.sharding_constraint %x <@m, [{"y"}, {}]> : tensor<8x4xf32>
  sdy.sharding_group %0 group_id = 3 : tensor<8x4xf32>
  %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {"y"}]>]>} : tensor<8x4xf32>
  %2 = sdy.propagation_barrier %1 allowed_direction=NONE : tensor<8x4xf32>
  %3 = func.call @f(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
func.func private @f(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = sdy.named_computation<"double">(%x) (%y: tensor<8x4xf32>) {
    %2 = stablehlo.add %y, %y : tensor<8x4xf32>
    sdy.return %2 : tensor<8x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""

STRINGS = """
module attributes {mhlo.frontend_attributes = {other = "kept", xla.sdy.meshes = "{m = #sdy.mesh<[\\22x\\22=2, \\22y\\22=4]>}"}} {
func.func @main(%x: tensor<8x4xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@m, [{\\22x\\22}, {}]>"}})
    -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = stablehlo.add %0, %0 : tensor<8x4xf32>
  %2 = stablehlo.custom_call @Sharding(%1) {mhlo.frontend_attributes =
    {xla.sdy.sharding = "#sdy.sharding_per_value<[<@m, [{}, {\\22y\\22}]>]>"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}}
"""

GSPMD = """
func.func @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %x {mhlo.sharding = "{devices=[4,2]<=[8]}"} : tensor<8x4xf32>
  %1 = stablehlo.custom_call @Sharding(%0) {backend_config = "unspecified_dims=[1]",
    mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.add %1, %1 : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
"""

MESH = """
mesh.mesh @m(shape = 2x4)
func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  %2 = mesh.shard %1 to %s annotate_for_users : tensor<8x4xf32>
  %3 = stablehlo.add %2, %2 : tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
"""

NOTATIONS = {"sdy": SDY, "sdy in strings": STRINGS, "gspmd": GSPMD, "mesh": MESH}


def read(text: str) -> ir.Module:
    return formats.read(text.encode(), "program.mlir", mlir.context()).module


@pytest.mark.parametrize("name", NOTATIONS)
def test_nothing_that_shards_is_left_and_the_program_runs(name: str) -> None:
    module = read(NOTATIONS[name])
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    (found,) = reference.unsharded(module, [x])
    np.testing.assert_allclose(found, 2 * np.tanh(x), rtol=1e-6)
    StripShardings().run(module)
    assert not [word for word in ("sdy", "mesh", "Sharding", "mhlo.sharding") if word in str(module)]
    assert ("kept" in str(module)) == (name == "sdy in strings")
    assert ("jax.result_info" in str(module)) == (name == "sdy")


def test_no_pass_of_the_pipeline_has_a_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: pytest.fail("a pass ran"))
    reference.unsharded(read(SDY), [np.zeros((8, 4), np.float32)])


PIECES = """
sdy.mesh @m = <["x"=2]>
func.func @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<4xf32> {
  %c = stablehlo.constant dense<5.0> : tensor<f32>
  %0 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [1]
      : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


def test_where_xla_is_wrong_the_interpreter_is_the_reference(tmp_path: Path) -> None:
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    (found,) = reference.unsharded(read(PIECES), [x])
    np.testing.assert_array_equal(found, 2 * x.sum(1) + 5)
    path = tmp_path / "pieces.mlir"
    path.write_text(PIECES)
    assert cli.main(["run", str(path), "--check"]) == 0


def test_the_interpreter_gives_booleans_too() -> None:
    text = PIECES.replace("return %1 : tensor<4xf32>", "%2 = stablehlo.compare GT, %1, %1 : (tensor<4xf32>, tensor<4xf32>)")
    text = text.replace("-> tensor<4xf32> {", "-> tensor<4xi1> {").replace(
        "\n}", " -> tensor<4xi1>\n  return %2 : tensor<4xi1>\n}"
    )
    (found,) = reference.unsharded(read(text), [np.ones((4, 4), np.float32)])
    np.testing.assert_array_equal(found, [False] * 4)


def test_xla_still_takes_initial_values_in_once_for_each_piece() -> None:
    x = np.ones((4, 4), np.float32)
    program = jax.jit(lambda x: jax.lax.reduce(jax.lax.concatenate([x, x], 1), np.float32(5), jax.lax.add, (1,)))
    assert np.asarray(program(x)).tolist() != [13.0] * 4, "take the interpreter out of meshbridge.runtime.reference"


class _Wrong(Pass):
    """Input: tanh. Output: logistic."""

    name: ClassVar[str] = "wrong"

    def run(self, module: ir.Module) -> None:
        for op in mlir.walk_all(module):
            if op.name == "stablehlo.tanh":
                made = ir.Operation.create(
                    "stablehlo.logistic", [op.results[0].type], list(op.operands), loc=op.location, ip=ir.InsertionPoint(op)
                )
                op.results[0].replace_all_uses_with(made.results[0])
                op.erase()


def test_a_wrong_pass_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(GSPMD)
    assert cli.main(["run", str(path), "--check"]) == 0
    monkeypatch.setattr(pipeline, "LEGALIZE", (_Wrong(), *pipeline.LEGALIZE))
    assert cli.main(["run", str(path), "--check"]) == 1
    assert "differs by" in capsys.readouterr().err


MANUAL = """
sdy.mesh @m = <["x"=8]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.manual_computation(%x) in_shardings = [<@m, [{"x"}, {}]>] out_shardings = [<@m, [{"x"}, {}]>] manual_axes = {"x"}
      (%y: tensor<1x4xf32>) {
    %1 = "stablehlo.all_reduce"(%y) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}
      : (tensor<1x4xf32>) -> tensor<1x4xf32>
    sdy.return %1 : tensor<1x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""

MANUAL_GSPMD = """
func.func @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> tensor<8x4xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<1x4xf32>
  %2 = stablehlo.add %1, %1 : tensor<1x4xf32>
  %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<1x4xf32>) -> tensor<1x4xf32>
  %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[8,1]<=[8]}"}
      : (tensor<1x4xf32>) -> tensor<8x4xf32>
  return %4 : tensor<8x4xf32>
}
"""


@pytest.mark.parametrize(("text", "who"), [(MANUAL, "xla-shardy"), (MANUAL_GSPMD, "xla-gspmd")], ids=["sdy", "gspmd"])
def test_what_each_device_does_is_compared_with_xla_on_the_same_devices(
    text: str, who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_per_device(read(text)) is not None
    path = tmp_path / "program.mlir"
    path.write_text(text)
    assert cli.main(["run", str(path), "--check"]) == 0, capsys.readouterr().err
    assert f"largest difference from the run that {who} partitions: absolute 0, relative 0" in capsys.readouterr().out


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "wanted", "difference"),
    [
        (np.array([NAN, INFINITY, 1]), np.array([NAN, INFINITY, 1]), 0),
        (np.array([NAN]), np.array([INFINITY]), INFINITY),
        (np.array([INFINITY]), np.array([-INFINITY]), INFINITY),
        (np.array([1.0]), np.array([NAN]), INFINITY),
        (np.array([1.0], np.float32), np.array([1.0]), INFINITY),
        (np.array([1], np.int32), np.array([1], np.uint32), INFINITY),
        (np.array([1.0]), np.array([[1.0]]), INFINITY),
        (np.array([2**62 + 1]), np.array([2**62]), 1),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2.0**64),
        (np.array([0], np.uint8), np.array([200], np.uint8), 200),
        (np.array([True]), np.array([False]), 1),
        (np.array([1], jax.numpy.bfloat16.dtype), np.array([3], jax.numpy.bfloat16.dtype), 2),
        (np.array([NAN], jax.numpy.float8_e4m3fn.dtype), np.array([NAN], jax.numpy.float8_e4m3fn.dtype), 0),
        (np.array([1 + 1j]), np.array([1 - 1j]), 2),
        (np.zeros(0), np.zeros(0), 0),
    ],
)
def test_comparison(found: np.ndarray, wanted: np.ndarray, difference: float) -> None:
    assert trial.compare(found, wanted).absolute == difference
    assert (relative_error({"a": found}, {"a": wanted}) == 0) == (difference == 0)


def test_comparison_of_several() -> None:
    assert trial.worst([np.ones(2), np.ones(2)], [np.ones(2), np.array([1.0, 2.0])]) == NumericError(1.0, 0.5)
    assert trial.worst([np.ones(2)], []) == NumericError(INFINITY, INFINITY)
    assert relative_error((np.ones(2),), [np.ones(2)]) == INFINITY
