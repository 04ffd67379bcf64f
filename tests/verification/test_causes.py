"""The plausible cause of a wrong program: one program by hand for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.tools import cli
from meshbridge.verification.verdict import verify
from tests.verification.hlo_product import HLO
from tests.verification.hlo_product import ROWS as ROWS_OF_DEVICES
from tests.verification.hlo_product import partitioned as xla_partitioned
from tests.verification.hlo_product import source as xla_source

MESH = 'sdy.mesh @mesh = <["data"=2, "model"=4]>'


def module(text: str) -> ir.Module:
    return assembly.read(f"{MESH}\n{text}", "test.mlir", mlir.context())


def source(body: str) -> str:
    """A program of one 8x16 tensor."""
    return f"func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{\n{body}\nreturn %r : tensor<8x16xf32> }}"


def manual(inner: str, into: str, out: str, local: str, result: str, returned: str = "%r") -> str:
    """The same on each device; `into` and `out` are dimension shardings, `local` and `result` the shapes of shards."""
    return source(f"""
    %r = sdy.manual_computation(%x) in_shardings=[<@mesh, {into}>] out_shardings=[<@mesh, {out}>]
        manual_axes={{"data", "model"}} (%l: tensor<{local}xf32>) {{
      {inner}
      sdy.return %s : tensor<{result}xf32>
    }} : (tensor<8x16xf32>) -> tensor<8x16xf32>""")


def all_reduce(operand: str, name: str, groups: str, shape: str, kind: str = "add") -> str:
    return f"""{name} = "stablehlo.all_reduce"({operand}) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<{groups}> : tensor<2x4xi64>, use_global_device_ids}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %c = stablehlo.{kind} %p, %q : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }}) : (tensor<{shape}xf32>) -> tensor<{shape}xf32>"""


def permute(pairs: str, shape: str = "4x4") -> str:
    count = pairs.count("[") - 1
    return f"""%s = "stablehlo.collective_permute"(%l) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<{pairs}> : tensor<{count}x2xi64>}}> : (tensor<{shape}xf32>) -> tensor<{shape}xf32>"""


def gather(groups: str) -> str:
    return f"""%s = "stablehlo.all_gather"(%l) <{{all_gather_dim = 1 : i64,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<{groups}> : tensor<2x4xi64>, use_global_device_ids}}> : (tensor<4x4xf32>) -> tensor<4x16xf32>"""


MODEL = "[[0, 1, 2, 3], [4, 5, 6, 7]]"
SAME = (
    source("%r = stablehlo.abs %x : tensor<8x16xf32>")
    .replace("stablehlo.abs %x", "stablehlo.negate %n")
    .replace("{\n%r", "{\n%n = stablehlo.negate %x : tensor<8x16xf32>\n%r")
)
SHARDED, ROWS = '[{"data"}, {"model"}]', '[{"data"}, {}]'


def reduced(kind: str) -> str:
    """Rows combined by `kind`, and broadcast again."""
    return source(f"""
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %e = stablehlo.slice %x [0:8, 0:4] : (tensor<8x16xf32>) -> tensor<8x4xf32>
    %f = stablehlo.slice %x [0:8, 4:8] : (tensor<8x16xf32>) -> tensor<8x4xf32>
    %g = stablehlo.slice %x [0:8, 8:12] : (tensor<8x16xf32>) -> tensor<8x4xf32>
    %h = stablehlo.slice %x [0:8, 12:16] : (tensor<8x16xf32>) -> tensor<8x4xf32>
    %i = stablehlo.{kind} %e, %f : tensor<8x4xf32>
    %j = stablehlo.{kind} %g, %h : tensor<8x4xf32>
    %k = stablehlo.{kind} %i, %j : tensor<8x4xf32>
    %r = stablehlo.concatenate %k, %k, %k, %k, dim = 1
      : (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x16xf32>""")


def wide(operand: str) -> str:
    four = ", ".join(["tensor<4x4xf32>"] * 4)
    return f"%s = stablehlo.concatenate {operand}, {operand}, {operand}, {operand}, dim = 1 : ({four}) -> tensor<4x16xf32>"


def cause(left: str, right: str) -> str:
    """The cause that is said for the result, which differs."""
    (difference,) = verify(module(left), module(right)).differences
    return difference.cause


WORDS = {"add": "summing", "maximum": "taking the maximum", "minimum": "taking the minimum"}


@pytest.mark.parametrize(("kind", "word"), WORDS.items())
def test_a_missing_all_reduce(kind: str, word: str) -> None:
    right = manual(f"{all_reduce('%l', '%t', MODEL, '4x4', kind)}\n{wide('%t')}", SHARDED, ROWS, "4x4", "4x16")
    assert verify(module(reduced(kind)), module(right)).equal
    wrong = manual(wide("%l"), SHARDED, ROWS, "4x4", "4x16")
    assert cause(reduced(kind), wrong) == f'equal after {word} over axis "model": an all-reduce or reduce-scatter is missing'


def test_a_sum_along_two_axes_that_misses_one() -> None:
    left = source("%c = stablehlo.constant dense<8.0> : tensor<8x16xf32>\n%r = stablehlo.multiply %x, %c : tensor<8x16xf32>")
    right = manual(all_reduce("%l", "%s", MODEL, "8x16"), "[{}, {}]", "[{}, {}]", "8x16", "8x16")
    assert 'summing over axis "data"' in cause(left, right)


def test_a_sum_too_many() -> None:
    wrong = manual(all_reduce("%l", "%s", MODEL, "4x16"), ROWS, ROWS, "4x16", "4x16")
    assert "summed 4 times" in cause(SAME, wrong)


def test_shards_that_are_summed() -> None:
    wrong = manual(all_reduce("%l", "%s", MODEL, "4x4"), SHARDED, SHARDED, "4x4", "4x4")
    assert 'the shards along "model" are summed' in cause(SAME, wrong)


def test_the_shards_of_others() -> None:
    wrong = manual(permute("[[0, 1], [1, 0], [2, 2], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7]]"), SHARDED, SHARDED, "4x4", "4x4")
    said = "the devices hold each other's shards: device 0 holds what device 1 should, device 1 holds what device 0 should"
    assert cause(SAME, wrong).startswith(said)


def test_a_device_that_receives_nothing() -> None:
    wrong = manual(permute("[[0, 0], [1, 1], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7]]"), SHARDED, SHARDED, "4x4", "4x4")
    assert cause(SAME, wrong).startswith("device 2 holds only zeros")


def test_the_first_shard_everywhere() -> None:
    cut = "%s = stablehlo.slice %l [0:4, 0:4] : (tensor<8x16xf32>) -> tensor<4x4xf32>"
    assert "hold the shard of device 0" in cause(SAME, manual(cut, "[{}, {}]", SHARDED, "8x16", "4x4"))


def test_pieces_in_another_order() -> None:
    right = manual(gather(MODEL), SHARDED, ROWS, "4x4", "4x16")
    assert verify(module(SAME), module(right)).equal
    wrong = manual(gather("[[3, 1, 2, 0], [7, 5, 6, 4]]"), SHARDED, ROWS, "4x4", "4x16")
    assert "the 4 pieces of a shard along dimension 1" in cause(SAME, wrong)


@pytest.mark.parametrize(
    ("amount", "said"), [(1, "off by 1 element along dimension 1: element i holds what element i - 1"), (3, "off by 3 elements")]
)
def test_an_offset(amount: int, said: str) -> None:
    wrong = f"""
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.slice %l [0:4, 0:{16 - amount}] : (tensor<4x16xf32>) -> tensor<4x{16 - amount}xf32>
    %s = stablehlo.pad %t, %z, low = [0, {amount}], high = [0, 0], interior = [0, 0]
      : (tensor<4x{16 - amount}xf32>, tensor<f32>) -> tensor<4x16xf32>"""
    assert said in cause(SAME, manual(wrong, ROWS, ROWS, "4x16", "4x16"))


def test_padding_that_is_read() -> None:
    unmasked = HLO.replace("GROUPS", ROWS_OF_DEVICES).replace("select(%inside, %a, %zeros)", "copy(%a)")
    (difference,) = verify(xla_source(), xla_partitioned(unmasked)).differences
    assert difference.cause.startswith("the padding beyond the end of an uneven shard is read")


def test_no_cause_for_another_function() -> None:
    assert cause(SAME, source("%r = stablehlo.tanh %x : tensor<8x16xf32>")) == ""
    assert cause(SAME, manual("%s = stablehlo.tanh %l : tensor<4x4xf32>", SHARDED, SHARDED, "4x4", "4x4")) == ""


def test_too_few_elements_tell_nothing() -> None:
    """A coin toss that differs fits every hypothesis."""
    left = "func.func @main(%x: tensor<8xi1>) -> tensor<8xi1> { return %x : tensor<8xi1> }"
    right = """func.func @main(%x: tensor<8xi1>) -> tensor<8xi1> {
    %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}]>] out_shardings=[<@mesh, [{"data"}]>]
        manual_axes={"data", "model"} (%l: tensor<4xi1>) {
      %s = stablehlo.reverse %l, dims = [0] : tensor<4xi1>
      sdy.return %s : tensor<4xi1>
    } : (tensor<8xi1>) -> tensor<8xi1>
    return %r : tensor<8xi1> }"""
    assert cause(left, right) == ""


def test_the_command_says_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = manual(wide("%l"), SHARDED, ROWS, "4x4", "4x16")
    for name, text in (("source", reduced("add")), ("wrong", wrong)):
        (tmp_path / f"{name}.mlir").write_text(f"{MESH}\n{text}")
    paths = [str(tmp_path / f"{name}.mlir") for name in ("source", "wrong")]
    assert cli.main(["verify", *paths]) == 1
    assert '  plausible cause: equal after summing over axis "model"' in capsys.readouterr().out
    assert cli.main(["verify", *paths, "--json"]) == 1
    assert 'over axis "model"' in json.loads(capsys.readouterr().out)["differences"][0]["cause"]
