"""The predicted step: what kernels compute and move, by hand."""

from __future__ import annotations

import re

import pytest

from meshbridge.cost.memory import memory
from meshbridge.cost.step import schedule
from meshbridge.ir.mlir import main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.target import of_machine
from tests.cost.small_steps import BYTES, GPUS, PRODUCT, SHARD, SIZE, TENSOR, five_iterations, moving, predicted, product, read


def test_of_branches_the_dearest_counts() -> None:
    body = f"""
  %0 = "stablehlo.if"(%p) ({{
    %1 = stablehlo.negate %a : {TENSOR}
    stablehlo.return %1 : {TENSOR}
  }}, {{
    {product("y", "a", "b")}
    stablehlo.return %y : {TENSOR}
  }}) : (tensor<i1>) -> {TENSOR}
  return %0 : {TENSOR}
"""
    arguments = f"%p: tensor<i1>, %a: {TENSOR}, %b: {TENSOR}"
    assert predicted(body, arguments, TENSOR).seconds == pytest.approx(PRODUCT)
    known = f"%p = stablehlo.constant dense<true> : tensor<i1>\n{body}"
    assert predicted(known, f"%a: {TENSOR}, %b: {TENSOR}", TENSOR).seconds == pytest.approx(moving(2))


def test_fused_operations_move_their_operands_and_results_alone() -> None:
    """Three operations in one loop: two tensors are read, one is written."""
    body = f"""
  %0 = stablehlo.add %a, %b : {TENSOR}
  %1 = stablehlo.negate %0 : {TENSOR}
  %2 = stablehlo.multiply %1, %1 : {TENSOR}
  return %2 : {TENSOR}
"""
    assert predicted(body, f"%a: {TENSOR}, %b: {TENSOR}", TENSOR).seconds == pytest.approx(moving(3))


SHARED = f"""
  %0 = stablehlo.OP %a : {TENSOR}
  %1 = stablehlo.negate %0 : {TENSOR}
  %2 = stablehlo.abs %0 : {TENSOR}
  return %1, %2 : {TENSOR}, {TENSOR}
"""


@pytest.mark.parametrize(
    ("machine", "op", "passes", "kernels"),
    [(GPUS, "exponential", 4, 2), ("v5e:2x4", "sign", 4, 2), ("v5e:2x4", "exponential", 6, 3)],
)
def test_what_is_cheap_is_computed_by_every_reader(machine: str, op: str, passes: int, kernels: int) -> None:
    """Two readers read the argument instead. XLA:TPU computes an exponential once, writes it, and reads it twice."""
    step = predicted(SHARED.replace("OP", op), f"%a: {TENSOR}", f"{TENSOR}, {TENSOR}", machine)
    assert step.seconds == pytest.approx(moving(passes, kernels, machine))


def test_products_may_write_what_is_made_of_their_results() -> None:
    """Unless two readers want it, of which neither is the last."""
    sums = "%z = stablehlo.constant dense<0.0> : tensor<bf16>\n%s = stablehlo.reduce(%p init: %z) applies stablehlo.add across"
    sums += f" dimensions = [1] : ({TENSOR}, tensor<bf16>) -> tensor<{SIZE}xbf16>\n"
    exponential = product("p", "a", "b") + f"%e = stablehlo.exponential %p : {TENSOR}\n"
    for body, results, passes in (
        (exponential + f"return %e : {TENSOR}", TENSOR, 1),
        (exponential + sums + f"return %e, %s : {TENSOR}, tensor<{SIZE}xbf16>", f"{TENSOR}, tensor<{SIZE}xbf16>", 3),
    ):
        module = read(body, f"%a: {TENSOR}, %b: {TENSOR}", results)
        seconds = schedule(module, CompileTarget.of(GPUS), epilogues=True).seconds
        assert seconds == pytest.approx(PRODUCT + moving(passes, passes // 2 + 1), rel=1e-3)


def test_products_are_scaled_as_they_are_written() -> None:
    """By a constant, transposed or not, unless something else reads them as they are."""
    rate = f"%rate = stablehlo.constant dense<0.1> : {TENSOR}\n"
    turned = f"%t = stablehlo.transpose %p, dims = [1, 0] : ({TENSOR}) -> {TENSOR}\n"
    body = rate + product("p", "x", "x") + turned + f"%s = stablehlo.multiply %rate, %t : {TENSOR}\n"
    assert predicted(f"{body}return %s : {TENSOR}", f"%x: {TENSOR}", TENSOR).seconds == pytest.approx(PRODUCT)
    both = predicted(f"{body}return %s, %p : {TENSOR}, {TENSOR}", f"%x: {TENSOR}", f"{TENSOR}, {TENSOR}")
    assert both.seconds == pytest.approx(PRODUCT + moving(2))
    other = predicted(f"{body.replace('%rate, %t', '%x, %t')}return %s : {TENSOR}", f"%x: {TENSOR}", TENSOR)
    assert other.seconds == pytest.approx(PRODUCT + moving(3))


def test_a_normalised_tensor_is_computed_by_every_reader() -> None:
    """Out of one of its size and a vector: four passes, and two of a row, in place of five and one."""
    row = f"tensor<{SIZE}xbf16>"
    body = f"""
  %m = stablehlo.broadcast_in_dim %row, dims = [1] : ({row}) -> {TENSOR}
  {SHARED.replace("stablehlo.OP %a", "stablehlo.subtract %a, %m")}"""
    step = predicted(body, f"%a: {TENSOR}, %row: {row}", f"{TENSOR}, {TENSOR}")
    assert step.seconds == pytest.approx(moving(4 + 2 / SIZE, 2))


def normalised(size: int, *, last: str = "return %y : TENSOR", dimension: int = 1) -> str:
    """Softmax of `%a` along one of its two dimensions, and the end of the function."""
    tensor, row = f"tensor<{size}x{size}xbf16>", f"tensor<{size}xbf16>"
    reduced = f"across dimensions = [{dimension}] : ({tensor}, tensor<bf16>) -> {row}"
    spread = f"dims = [{1 - dimension}] : ({row}) -> {tensor}"
    return f"""
  %low = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %m = stablehlo.reduce(%a init: %low) applies stablehlo.maximum {reduced}
  %mm = stablehlo.broadcast_in_dim %m, {spread}
  %s = stablehlo.subtract %a, %mm : {tensor}
  %e = stablehlo.exponential %s : {tensor}
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add {reduced}
  %tt = stablehlo.broadcast_in_dim %t, {spread}
  %y = stablehlo.divide %e, %tt : {tensor}
  {last.replace("TENSOR", tensor).replace("ROW", row)}
"""


COLUMNS = "%c = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (TENSOR, tensor<bf16>) -> ROW\n"


@pytest.mark.parametrize(
    ("machine", "body", "result", "passes", "kernels"),
    [
        (GPUS, normalised(SIZE), TENSOR, 2, 1),
        ("v5e:2x4", normalised(SIZE), TENSOR, 6, 4),
        (GPUS, normalised(SIZE, dimension=0), TENSOR, 4, 3),
        (GPUS, normalised(SIZE, last=COLUMNS + "return %c : ROW"), f"tensor<{SIZE}xbf16>", 3, 2),
        (GPUS, normalised(SIZE, last="return %y, %m : TENSOR, ROW"), f"{TENSOR}, tensor<{SIZE}xbf16>", 3, 2),
        (GPUS, re.sub(r".*%y = .*", "", normalised(SIZE, last="return %t : ROW")), f"tensor<{SIZE}xbf16>", 1, 1),
    ],
    ids=["of rows", "on a TPU", "of columns", "read by columns", "a reduction is kept", "reduced alone"],
)
def test_gpus_compute_reductions_of_rows_in_the_kernel_that_writes_them(
    machine: str, body: str, result: str, passes: int, kernels: int
) -> None:
    step = predicted(body, f"%a: {TENSOR}", result, machine)
    assert step.seconds == pytest.approx(moving(passes, kernels, machine), rel=0.01)


@pytest.mark.parametrize(("elements", "passes", "kernels"), [(16_384, 2, 1), (16_385, 4, 3)])
def test_rows_that_are_too_long_are_read_for_each_reduction(elements: int, passes: int, kernels: int) -> None:
    tensor = f"tensor<{elements}x{elements}xbf16>"
    step = predicted(normalised(elements), f"%a: {tensor}", tensor)
    assert step.seconds == pytest.approx(moving(passes * (elements / SIZE) ** 2, kernels), rel=0.001)


def test_arithmetic_of_single_numbers_takes_no_kernel() -> None:
    body = "%0 = stablehlo.add %a, %a : tensor<f32>\n%1 = stablehlo.exponential %0 : tensor<f32>\nreturn %1 : tensor<f32>"
    assert predicted(body, "%a: tensor<f32>", "tensor<f32>").seconds == 0


def test_a_slice_reads_what_it_takes() -> None:
    body = f"%0 = stablehlo.slice %a [0:{SIZE // 8}, 0:{SIZE}] : ({TENSOR}) -> {SHARD}\nreturn %0 : {SHARD}"
    assert predicted(body, f"%a: {TENSOR}", SHARD).seconds == pytest.approx(moving(2 / 8))


SLICES = (
    f"%0 = stablehlo.slice %a [0:{SIZE // 8}, 0:{SIZE}] : ({TENSOR}) -> {SHARD}",
    f"%0 = mesh.all_slice %a on @m mesh_axes = [0] slice_axis = 0 : {TENSOR} -> {SHARD}",
)


@pytest.mark.parametrize("sliced", SLICES)
@pytest.mark.parametrize(("machine", "kernels"), [(GPUS, 2), ("v5e:2x4", 1)])
def test_products_read_slices_in_place_on_tpus(machine: str, kernels: int, sliced: str) -> None:
    """A GPU copies them: they are read and written beside what the product takes."""
    row = f"tensor<{SIZE // 8}x{SIZE // 8}xbf16>"
    body = f"""
  {sliced}
  %1 = stablehlo.dot_general %0, %b, contracting_dims = [1] x [1] : ({SHARD}, {SHARD}) -> {row}
  return %1 : {row}"""
    step = predicted(body, f"%a: {TENSOR}, %b: {SHARD}", row, machine)
    device = of_machine(machine).machine
    flops = 2 * SIZE**3 / 64 / (device.efficiency * device.flops["bf16"])
    read = moving(2 / 8 + 1 / 64, 1, machine)
    assert step.seconds == pytest.approx(max(device.kernel_launch + flops, read) + (kernels - 1) * moving(2 / 8, 1, machine))


def test_what_a_loop_only_reads_is_read_as_it_is_outside() -> None:
    """The mask is a broadcast: no buffer holds it, inside of the loop as little as outside."""
    mask = f"%mask = stablehlo.broadcast_in_dim %row, dims = [1] : (tensor<{SIZE}xbf16>) -> {TENSOR}\n"
    iterations = five_iterations({"x": ("a", TENSOR), "m": ("mask", TENSOR)}, f"%y = stablehlo.add %x, %m : {TENSOR}", "%y, %m")
    step = predicted(mask + iterations, f"%a: {TENSOR}, %row: tensor<{SIZE}xbf16>", TENSOR)
    assert step.seconds == pytest.approx(5 * moving(2), rel=1e-3)


@pytest.mark.parametrize(
    ("attributes", "donated"),
    [("", 0), ("{tf.aliasing_output = 0 : i32}", BYTES), ("{jax.buffer_donor = true}", BYTES)],
)
def test_a_result_takes_the_buffer_of_a_donated_argument(attributes: str, donated: float) -> None:
    module = read(f"%0 = stablehlo.negate %a : {TENSOR}\nreturn %0 : {TENSOR}", f"%a: {TENSOR} {attributes}", TENSOR)
    found = memory(main_function(module))
    assert (found.donated, found.peak) == (donated, 2 * BYTES - donated)


def test_a_donor_of_another_type_gives_nothing() -> None:
    module = read(f"return %a : {TENSOR}", f"%a: {TENSOR}, %b: {SHARD} {{jax.buffer_donor = true}}", TENSOR)
    assert memory(main_function(module)).donated == 0
