"""Products that are divided beside their collectives: the numbers stay, and so do the bytes; prices say which are divided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.cost.step import predict
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.target import of_machine
from meshbridge.overlap.matmul.collective_matmul import CollectiveMatmul
from tests.overlap.perceptron import counted, training_step

P = PartitionSpec

FEWER = settings(max_examples=max(4, settings().max_examples // 5))
"""An example compiles two programs."""


@pytest.mark.slow
@FEWER
@given(
    tokens=st.sampled_from([16, 32]),
    width=st.sampled_from([24, 36, 40]),
    hidden=st.sampled_from([64, 96]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]),
    pieces=st.integers(2, 5),
    whole=st.booleans(),
)
def test_numbers_and_bytes(
    mesh: jax.sharding.Mesh, tokens: int, width: int, hidden: int, dtype: Any, pieces: int, whole: bool
) -> None:
    jitted, step, arguments = training_step(mesh, tokens, width, hidden, dtype)
    divided, before = (meshbridge.partition(jitted, *arguments, emit="mesh", machine="bytes") for _ in range(2))
    pipeline.run((CollectiveMatmul(pieces=pieces, least=1, whole=whole),), divided)
    assert counted(divided, "mesh.shift")
    assert communication(divided).wire_bytes == pytest.approx(communication(before).wire_bytes)
    flat = jax.tree.leaves(arguments)
    results = [meshbridge.compile(module)(*flat) for module in (divided, before)]
    coarse = 1e-5 if dtype == jnp.float32 else 4 * float(jnp.finfo(dtype).eps)
    for found, same, right in zip(*results, jax.tree.leaves(step(*arguments)), strict=True):
        assert found.dtype == same.dtype
        wide = np.asarray(right, np.float32)
        for each in (found, same):
            np.testing.assert_allclose(np.asarray(each, np.float32), wide, atol=coarse * np.abs(wide).max())


def product(tokens: int, width: int, hidden: int) -> ir.Module:
    """Rows of activations are gathered and multiplied, and what comes back is reduce-scattered, over 4 devices."""
    whole, rows = f"tensor<{tokens}x{width}xbf16>", f"tensor<{tokens // 4}x{width}xbf16>"
    wide, into, out_of = (f"tensor<{size}xbf16>" for size in (f"{tokens}x{hidden}", f"{width}x{hidden}", f"{hidden}x{width}"))
    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {rows}, %w: {into}, %v: {out_of}) -> {rows} {{
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : {rows} -> {whole}
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : ({whole}, {into}) -> {wide}
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : ({wide}, {out_of}) -> {whole}
  %3 = mesh.reduce_scatter %2 on @m mesh_axes = [1] scatter_axis = 0 : {whole} -> {rows}
  return %3 : {rows}
}}"""
    return read(text, "product.mlir", context())


@pytest.mark.parametrize(
    ("machine", "sizes", "expected"),
    [
        ("v5e", (8192, 4096, 2816), (True, True)),
        ("v5e:2x4", (8192, 4096, 2816), (True, True)),
        # To add partial products up takes longer than the gather, and what blocks read more than the reduce-scatter.
        ("v5e", (8192, 512, 8192), (False, False)),
        ("v5e", (128, 512, 128), (False, False)),
        # All-gathers are synchronous there: nothing hides their pieces.
        ("v5p", (8192, 4096, 2816), (False, True)),
        # Reduce-scatters are asynchronous there: they may hide behind something else.
        ("h100", (8192, 4096, 2816), (True, False)),
    ],
)
def test_what_prices_choose(machine: str, sizes: tuple[int, int, int], expected: tuple[bool, bool]) -> None:
    module = product(*sizes)
    pipeline.run((CollectiveMatmul(CompileTarget.of(machine)),), module)
    found = counted(module, "mesh.all_gather", "mesh.shift")
    assert (found["mesh.all_gather"] > 1, found["mesh.shift"] > 0) == expected


def weight_gradient(operand: str, by: int = 1) -> ir.Module:
    """A product that is reduce-scattered over 2 devices, along dimension `by` of its first operand."""
    x, whole, part = "tensor<2048x8192xbf16>", "tensor<2048x2048xbf16>", "tensor<1024x2048xbf16>"
    left = x if by == 0 else "tensor<8192x2048xbf16>"
    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {left}, %y: {x}) -> {part} {{
  %0 = stablehlo.multiply %x, %x : {left}
  %1 = stablehlo.dot_general {operand}, %y, contracting_dims = [{1 - by}] x [1] : ({left}, {x}) -> {whole}
  %2 = mesh.reduce_scatter %1 on @m mesh_axes = [0] scatter_axis = 0 : {whole} -> {part}
  return %2 : {part}
}}"""
    return read(text, "gradient.mlir", context())


@pytest.mark.parametrize(
    ("operand", "by", "pays"),
    [
        ("%x", 0, True),
        # The product computes it on the way. For pieces, which read parts, it is written first.
        ("%0", 0, False),
        # Is copied to a layout in which parts along its last dimension can be read.
        ("%x", 1, False),
    ],
)
def test_what_pieces_read_in_parts(operand: str, by: int, pays: bool) -> None:
    """To write or copy it takes longer than the reduce-scatter of a small group."""
    module = weight_gradient(operand, by)
    pipeline.run((CollectiveMatmul(CompileTarget.of("v5e")),), module)
    assert (counted(module, "stablehlo.dot_general").total() > 1) == pays


@pytest.mark.parametrize(
    ("machine", "reads", "travels"),
    [
        ("v5e", "%y", True),
        ("v5e:2x4", "%y", True),
        # Waits for the sum: nothing is computed beside it.
        ("v5e", "%2", False),
        # Reduce-scatters are asynchronous there.
        ("h100", "%y", False),
    ],
)
def test_sums_travel_beside_what_does_not_wait_for_them(machine: str, reads: str, travels: bool) -> None:
    x, whole, part = "tensor<8192x2048xbf16>", "tensor<2048x2048xbf16>", "tensor<1024x2048xbf16>"
    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {x}, %y: {part}, %w: {whole}) -> ({part}, {part}) {{
  %0 = stablehlo.multiply %x, %x : {x}
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [0] x [0] : ({x}, {x}) -> {whole}
  %2 = mesh.reduce_scatter %1 on @m mesh_axes = [0] scatter_axis = 0 : {whole} -> {part}
  %3 = stablehlo.dot_general {reads}, %w, contracting_dims = [1] x [0] : ({part}, {whole}) -> {part}
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : ({part}, {whole}) -> {part}
  %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : ({part}, {whole}) -> {part}
  return %2, %5 : {part}, {part}
}}"""
    module, before = (read(text, "beside.mlir", context()) for _ in range(2))
    pipeline.run((CollectiveMatmul(CompileTarget.of(machine)),), module)
    found = counted(module, "mesh.shift", "stablehlo.dot_general")
    assert (found["mesh.shift"], found["stablehlo.dot_general"]) == (int(travels), 4)
    target = of_machine(f"{machine.partition(':')[0]}:{'1x1x8' if machine == 'h100' else '2x4'}")
    assert (predict(module, target).seconds < predict(before, target).seconds) == travels


@pytest.mark.parametrize(
    ("machine", "options", "pays"),
    [
        ("v5e:2x4", "default", True),
        # All-reduces run beside kernels then, and on an H100.
        ("v5e:2x4", "best", False),
        ("h100:1x1x8", "default", False),
    ],
)
def test_all_reduces_of_products_are_divided_where_they_are_waited_for(machine: str, options: Any, pays: bool) -> None:
    x, w, whole = "tensor<4x2048x2048xbf16>", "tensor<2048x2048xbf16>", "tensor<4x2048x2048xbf16>"
    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {x}, %w: {w}) -> {whole} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({x}, {w}) -> {whole}
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : {whole} -> {whole}
  return %1 : {whole}
}}"""
    module, before = (read(text, "reduced.mlir", context()) for _ in range(2))
    pipeline.run((CollectiveMatmul(CompileTarget.of(machine, compiler_options=options)),), module)
    found = counted(module, "mesh.shift", "mesh.all_gather", "mesh.all_reduce")
    assert (found["mesh.shift"], found["mesh.all_gather"], found["mesh.all_reduce"]) == ((6, 1, 0) if pays else (0, 0, 1))
    assert communication(module).wire_bytes == communication(before).wire_bytes
    target = of_machine(machine, compiler_options=options)
    assert (predict(module, target).seconds < predict(before, target).seconds) == pays


@pytest.mark.parametrize("machine", ["v5p", "v5p:2x2x2"])
@pytest.mark.parametrize(("sizes", "expected"), [((8192, 4096, 2816), True), ((8192, 512, 8192), False)])
def test_what_prices_choose_under_the_best_options(machine: str, sizes: tuple[int, int, int], expected: bool) -> None:
    """All-gathers run beside kernels on a v5p then, and so do reduce-scatters, which may hide behind something else."""
    module = product(*sizes)
    pipeline.run((CollectiveMatmul(CompileTarget.of(machine, compiler_options="best"), whole=True),), module)
    found = counted(module, "mesh.all_gather", "mesh.shift")
    assert (found["mesh.all_gather"] > 1, found["mesh.shift"]) == (expected, 0)


@pytest.mark.parametrize(("tokens", "pays"), [(1024, True), (8192, False)])
def test_the_whole_step_is_to_become_shorter(tokens: int, pays: bool) -> None:
    """Two gathers are divided where each promises to save time, but together they may take longer."""
    x, w, shard = (f"tensor<{rows}x8192xbf16>" for rows in (tokens, 8192, 512))
    text = f"""
mesh.mesh @m(shape = 16)
func.func @main(%x: {x}, %a: {shard}, %b: {shard}) -> ({x}, {x}) {{
  %0 = mesh.all_gather %a on @m mesh_axes = [0] gather_axis = 0 : {shard} -> {w}
  %1 = mesh.all_gather %b on @m mesh_axes = [0] gather_axis = 0 : {shard} -> {w}
  %2 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}
  %3 = stablehlo.dot_general %x, %1, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}
  return %2, %3 : {x}, {x}
}}"""
    target = of_machine("v5p:2x2x4", compiler_options="best")
    before, kept, always = (read(text, "two.mlir", context()) for _ in range(3))
    divide = CollectiveMatmul(CompileTarget.of(target.text, compiler_options="best"))
    pipeline.run((divide,), always)
    pipeline.run((replace(divide, whole=True),), kept)
    assert str(kept) == str(always if pays else before)
    assert (predict(always, target).seconds < predict(before, target).seconds) == pays


def test_an_unknown_machine_is_an_error() -> None:
    """Not one that says nothing of what pays."""
    with pytest.raises(MeshError, match="v5e"):
        pipeline.run((CollectiveMatmul(CompileTarget.of("v5")),), product(8192, 4096, 2816))


def test_functions_that_nothing_calls_stay() -> None:
    text = str(product(8192, 4096, 2816))
    function = text[text.index("  func.func") : text.rindex("}")]
    module = read(text.replace(function, function + function.replace("@main", "private @other")), "two.mlir", context())
    pipeline.run((CollectiveMatmul(CompileTarget.of("v5e")),), module)
    assert counted(module, "mesh.reduce_scatter").total() == 1


@given(
    tokens=st.sampled_from([2048, 4096, 8192, 32768]),
    width=st.sampled_from([512, 2048, 4096]),
    hidden=st.sampled_from([256, 1024, 2816, 8192]),
)
def test_the_predicted_step_becomes_no_longer(tokens: int, width: int, hidden: int) -> None:
    """But for additions of partial products, which it takes to be kernels of their own: XLA:TPU hides a part of them."""
    before, module = product(tokens, width, hidden), product(tokens, width, hidden)
    pipeline.run((CollectiveMatmul(CompileTarget.of("v5e:2x4")),), module)
    target = of_machine("v5e:2x4")
    assert predict(module, target).seconds <= 1.02 * predict(before, target).seconds


def test_what_hides_already_stays() -> None:
    other = "tensor<8192x8192xbf16>"
    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {other}, %y: {other}, %w: tensor<2048x8192xbf16>) -> {other} {{
  %0 = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 0 : tensor<2048x8192xbf16> -> {other}
  %1 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({other}, {other}) -> {other}
  %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0] : ({other}, {other}) -> {other}
  return %2 : {other}
}}"""
    module = read(text, "hidden.mlir", context())
    pipeline.run((CollectiveMatmul(CompileTarget.of("v5e")),), module)
    assert counted(module, "mesh.all_gather").total() == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "v5e"}, True),
        ({"machine": "v5e:2x4"}, True),
        ({"machine": "v5e", "collectives": "off"}, False),
        ({"machine": "v5p"}, False),
        ({"machine": "v5p", "compiler_options": "best"}, True),
        ({"machine": "v5p:4x4x4", "compiler_options": "best"}, True),
        ({"machine": "v6e", "compiler_options": "best"}, False),
        ({"machine": "h100"}, False),
        ({"machine": "neutral"}, False),
    ],
)
def test_machines_that_divide(options: dict[str, Any], expected: bool) -> None:
    passes = pipeline.build(pipeline.Options.of(**options)).passes
    assert any(isinstance(each, CollectiveMatmul) for each in passes) == expected
