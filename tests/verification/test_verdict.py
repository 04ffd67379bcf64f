"""Programs by hand against the single program that they should be."""

from __future__ import annotations

import pytest

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.verification import machine
from meshbridge.verification.field import PRIMES
from meshbridge.verification.verdict import verify

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>'

MATMUL = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x12xf32>) -> tensor<8x12xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""

PARTIAL = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x12xf32>) -> tensor<8x12xf32> {
  %0 = sdy.manual_computation(%a, %b) in_shardings=[<@mesh, [{"x"}, {"y"}]>, <@mesh, [{"y"}, {}]>]
      out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%l: tensor<4x4xf32>, %r: tensor<4x12xf32>) {
    %1 = stablehlo.dot_general %l, %r, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x12xf32>) -> tensor<4x12xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<GROUPS> : tensor<ROWSxi64>, use_global_device_ids}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %3 = stablehlo.REDUCE %p, %q : tensor<f32>
        stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x12xf32>) -> tensor<4x12xf32>
    sdy.return %2 : tensor<4x12xf32>
  } : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>
  return %0 : tensor<8x12xf32>
}
"""


def module(text: str, mesh: str = MESH) -> ir.Module:
    return assembly.read(f"{mesh}\n{text}", "test.mlir", mlir.context())


def partial(groups: str = "[[0, 1, 2, 3], [4, 5, 6, 7]]", rows: str = "2x4", reduce: str = "add") -> str:
    return PARTIAL.replace("GROUPS", groups).replace("ROWS", rows).replace("REDUCE", reduce)


def test_a_sum_in_parts_is_the_sum() -> None:
    assert verify(module(MATMUL), module(partial())).equal


def test_the_verdict_says_how_sure_it_is() -> None:
    """By Schwartz and Zippel, in the runs with uniformly random numbers alone."""
    verdict = verify(module(MATMUL), module(partial()))
    first, second = PRIMES[:2]
    assert verdict.uniform_primes == (first, second)
    assert verdict.chance == pytest.approx(1 / (first * second))
    assert str(verdict).splitlines() == [
        "equal on 4 random inputs over 4 fields: a wrong program, whose results differ by a polynomial of degree d, would pass "
        "with probability below 6.2e-14 * d^2",
        "  inputs: random; masks all true; infinities and NaN, masks by rows; infinities and NaN, masks all false",
    ]
    assert 1 / (first * second) <= 6.2e-14


def test_a_verdict_on_masks_is_less_sure() -> None:
    """A difference where a mask is false is not in the run in which all are true."""
    masked = module(
        "func.func @main(%m: tensor<8xi1>, %a: tensor<8xf32>) -> tensor<8xf32> {\n"
        "  %0 = stablehlo.select %m, %a, %a : tensor<8xi1>, tensor<8xf32>\n  return %0 : tensor<8xf32>\n}"
    )
    verdict = verify(masked, masked)
    assert verdict.masked
    assert verdict.uniform_primes == PRIMES[:1]
    assert "with probability below 2.4e-07 * d\n" in str(verdict)


def test_a_verdict_of_one_run_knows_no_probability() -> None:
    verdict = verify(module(MATMUL), module(partial()), runs=1)
    assert verdict.uniform_primes == ()
    assert "no probability of a wrong verdict is known" in str(verdict)


def test_the_order_of_a_groups_members_does_not_matter_to_a_sum() -> None:
    assert verify(module(MATMUL), module(partial("[[3, 1, 2, 0], [4, 7, 6, 5]]"))).equal


@pytest.mark.parametrize(
    "wrong",
    [
        partial(reduce="maximum"),
        partial("[[0, 1, 2, 3, 4, 5, 6, 7]]", "1x8"),
        partial("[[0, 4], [1, 5], [2, 6], [3, 7]]", "4x2"),
        partial("[[0, 1], [2, 3], [4, 5], [6, 7]]", "4x2"),
    ],
)
def test_wrong_sums_are_found(wrong: str) -> None:
    assert not verify(module(MATMUL), module(wrong)).equal


def test_devices_that_contradict_each_other_are_found() -> None:
    without = partial().replace("sdy.return %2", "sdy.return %1")
    verdict = verify(module(MATMUL), module(without))
    assert not verdict.equal
    assert "test.mlir" in verdict.differences[0].contradiction


def test_a_sum_is_not_another_sum() -> None:
    twice = MATMUL.replace("return %0", "%1 = stablehlo.add %0, %0 : tensor<8x12xf32>\n return %1")
    assert not verify(module(MATMUL), module(twice)).equal


def test_the_order_of_devices_of_a_mesh_counts() -> None:
    reverse = 'sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>'
    assert not verify(module(MATMUL), module(partial(), reverse)).equal
    assert verify(module(MATMUL), module(partial("[[0, 1, 4, 5], [2, 3, 6, 7]]"), reverse)).equal


def test_programs_of_other_shapes_are_refused() -> None:
    other = MATMUL.replace("12", "13")
    with pytest.raises(MeshError, match=r"argument 1 is tensor<16x12xf32> in the source and tensor<16x13xf32> in the"):
        verify(module(MATMUL), module(other))
    shard = MATMUL.replace("16", "8")
    with pytest.raises(MeshError, match=r"in the partitioned program\n  hint: .* mesh-spmdization=boundary writes that"):
        verify(module(MATMUL), module(shard))


def test_memory_has_a_bound() -> None:
    with pytest.raises(MeshError, match=r"test\.mlir:.*needs more memory than 1e-07 GB"):
        verify(module(MATMUL), module(partial()), memory=1e-7)


def test_unknown_ops_are_refused_by_name() -> None:
    unknown = MATMUL.replace("return %0", '%1 = "other.op"(%0) : (tensor<8x12xf32>) -> tensor<8x12xf32>\n return %1')
    with pytest.raises(MeshError, match=r"test\.mlir:5:.*'other\.op' op has no exact evaluation"):
        verify(module(unknown), module(MATMUL))


@pytest.mark.parametrize("number", ["0.001953125", "-0.001953125", "0.75", "-3.0"])
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_every_binary_constant_is_on_either_side_of_zero_in_one_run(number: str, kind: str) -> None:
    """Whether 1 / 512 is positive cannot be seen in a field; a fault that only shows where it is, or is not, is found."""
    constant = f"""func.func @main(%x: tensor<f32>) -> tensor<f32> {{
      %c = stablehlo.constant dense<{number}> : tensor<f32>
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %r = stablehlo.NAME %c, %z : tensor<f32>
      return %r : tensor<f32> }}"""
    assert not verify(module(constant.replace("NAME", "add")), module(constant.replace("NAME", kind))).equal


def test_functions_that_call_each_other_twice_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = "".join(
        f"""func.func private @f{level}(%x: tensor<2xf32>) -> tensor<2xf32> {{
          %0 = call @f{level + 1}(%x) : (tensor<2xf32>) -> tensor<2xf32>
          %1 = call @f{level + 1}(%0) : (tensor<2xf32>) -> tensor<2xf32>
          return %1 : tensor<2xf32>
        }}
        """
        for level in range(12)
    )
    last = "func.func private @f12(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    main = """func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @f0(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    """
    program = assembly.read(main + levels + last, "calls.mlir", mlir.context())
    assert verify(program, program).equal
    monkeypatch.setattr(machine, "CALLS", 1000)
    with pytest.raises(MeshError, match=r"calls\.mlir:.*after 1,000 calls in one run"):
        verify(program, program)
