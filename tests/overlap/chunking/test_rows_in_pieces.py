"""Rows in pieces: numbers stay, and so do bytes; what is divided, and what is not."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.dialect.assembly import read
from meshbridge.ir.block_index import BlockIndex
from meshbridge.ir.mlir import MeshError, context, ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.chunking.region import OPENING, Segments
from meshbridge.overlap.chunking.rows_in_pieces import RowsInPieces
from tests.overlap.perceptron import counted
from tests.overlap.perceptron import training_step as step_of
from tests.work import lines_run

FEWER = settings(max_examples=max(4, settings().max_examples // 5))
"""An example compiles two programs."""


def two_layers(weights: Any, x: Any, *, constrain: Any = lambda value, *_: value) -> Any:
    """The loss of two MLPs that are computed again, whose tokens are sharded along "model" between them."""

    @jax.checkpoint
    def layer(x: Any, gate: Any, up: Any, down: Any) -> Any:
        x = constrain(x, ("data", "model"), None)
        middle = constrain(jnp.tanh(x @ gate) * (x @ up), "data", "model")
        return x + constrain(middle @ down, ("data", "model"), None)

    return (layer(layer(x, *weights), *weights).astype(jnp.float32) ** 2).sum()


training_step = partial(step_of, loss=two_layers)


@pytest.mark.slow
@FEWER
@given(
    tokens=st.sampled_from([32, 64]),
    width=st.sampled_from([24, 36, 40]),
    hidden=st.sampled_from([64, 96]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]),
    pieces=st.sampled_from([2, 4]),
)
def test_numbers_and_bytes(mesh: jax.sharding.Mesh, tokens: int, width: int, hidden: int, dtype: Any, pieces: int) -> None:
    jitted, step, arguments = training_step(mesh, tokens, width, hidden, dtype)
    divided, before = (meshbridge.partition(jitted, *arguments, emit="mesh", machine="bytes") for _ in range(2))
    pipeline.run((RowsInPieces(pieces=pieces, least=1),), divided)
    assert counted(divided, "mesh.reduce_scatter").total() > counted(before, "mesh.reduce_scatter").total()
    assert communication(divided).wire_bytes == pytest.approx(communication(before).wire_bytes)
    flat = jax.tree.leaves(arguments)
    results = [meshbridge.compile(module)(*flat) for module in (divided, before)]
    coarse = 1e-5 if dtype == jnp.float32 else 4 * float(jnp.finfo(dtype).eps)
    for found, same, right in zip(*results, jax.tree.leaves(step(*arguments)), strict=True):
        assert found.dtype == same.dtype
        wide = np.asarray(right, np.float32)
        for each in (found, same):
            np.testing.assert_allclose(np.asarray(each, np.float32), wide, atol=coarse * np.abs(wide).max())


def layers(count: int, tokens: int, width: int, hidden: int, group: int = 4) -> ir.Module:
    """Layers, of each of which rows are gathered, multiplied twice and reduce-scattered, and added to what was gathered."""
    sizes = f"{tokens // group}x{width}", f"{tokens}x{width}", f"{tokens}x{hidden}"
    rows, whole, wide = (f"tensor<{size}xbf16>" for size in sizes)
    into, out_of = f"tensor<{width}x{hidden}xbf16>", f"tensor<{hidden}x{width}xbf16>"
    lines = [
        f"""
  %g{n} = mesh.all_gather %x{n} on @m mesh_axes = [1] gather_axis = 0 : {rows} -> {whole}
  %h{n} = stablehlo.dot_general %g{n}, %w, contracting_dims = [1] x [0] : ({whole}, {into}) -> {wide}
  %p{n} = stablehlo.dot_general %h{n}, %v, contracting_dims = [1] x [0] : ({wide}, {out_of}) -> {whole}
  %s{n} = mesh.reduce_scatter %p{n} on @m mesh_axes = [1] scatter_axis = 0 : {whole} -> {rows}
  %x{n + 1} = stablehlo.add %x{n}, %s{n} : {rows}"""
        for n in range(count)
    ]
    text = f"""
mesh.mesh @m(shape = 2x{group})
func.func @main(%x0: {rows}, %w: {into}, %v: {out_of}) -> {rows} {{{"".join(lines)}
  return %x{count} : {rows}
}}"""
    return read(text, "layers.mlir", context())


@pytest.mark.parametrize(
    ("machine", "options", "sizes", "expected"),
    [
        ("v5p:2x2x2", "best", (8192, 4096, 4096), 2),
        ("v5p", "best", (8192, 4096, 4096), 2),
        # Launches take longer than what could run beside them.
        ("v5p:2x2x2", "best", (1024, 256, 256), 1),
        # Nothing runs beside products there.
        ("v5p:2x2x2", "default", (8192, 4096, 4096), 1),
    ],
)
def test_what_prices_choose(machine: str, options: Any, sizes: tuple[int, int, int], expected: int) -> None:
    module = layers(3, *sizes)
    before = communication(module).wire_bytes
    pipeline.run((RowsInPieces(CompileTarget.of(machine, compiler_options=options)),), module)
    found = counted(module, "mesh.all_gather", "mesh.reduce_scatter")
    assert found == {"mesh.all_gather": 3 * expected, "mesh.reduce_scatter": 3 * expected}
    assert communication(module).wire_bytes == before


@pytest.mark.parametrize("axis", [0, 1])
def test_segments_start_near_a_reduction_along_their_axes(axis: int) -> None:
    """No other collective has to be looked at."""
    text = str(layers(3, 8192, 4096, 4096)).replace("[2, 4]", "[4, 4]")
    module = read(re.sub(r"(reduce_scatter.*i16: )1", rf"\g<1>{axis}", text), "layers.mlir", context())
    with module.context:
        found = Segments(BlockIndex(main_function(module).regions[0].blocks[0]), 2)
        gathers = [number for number, op in enumerate(found.index.operations) if op.name in OPENING]
        assert len(gathers) == 3
        assert found.openings() == (gathers if axis == 1 else [])
        assert [number for number in gathers if any(found.of(number, 128))] == found.openings()


def test_a_machine_that_is_not_known() -> None:
    with pytest.raises(MeshError, match="v9x"):
        pipeline.run((RowsInPieces(CompileTarget.of("v9x")),), layers(1, 64, 64, 64))


def test_segments_that_need_one_another() -> None:
    """Each gives the other a sum for each row in the middle: where one of them is in pieces, the other is not."""
    shard, whole, square, sums = "tensor<2x16xf32>", "tensor<8x16xf32>", "tensor<16x16xf32>", "tensor<8xf32>"
    dot = f"contracting_dims = [1] x [0] : ({whole}, {square}) -> {whole}"
    gather, scatter = (f"on @m mesh_axes = [1] {name}_axis = 0 :" for name in ("gather", "scatter"))

    def turned(number: int, other: str) -> str:
        """The sums of the rows of `other` in reverse, for each row: nothing that goes on row by row."""
        return f"""
  %a{number} = stablehlo.reduce({other} init: %c) applies stablehlo.add across dimensions = [1] : ({whole}, tensor<f32>) -> {sums}
  %b{number} = stablehlo.reverse %a{number}, dims = [0] : {sums}
  %c{number} = stablehlo.broadcast_in_dim %b{number}, dims = [0] : ({sums}) -> {whole}"""

    text = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: {shard}, %y: {shard}, %w: {square}) -> ({shard}, {shard}) {{
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_gather %x {gather} {shard} -> {whole}
  %1 = stablehlo.dot_general %0, %w, {dot}
  %2 = mesh.all_gather %y {gather} {shard} -> {whole}
  %3 = stablehlo.dot_general %2, %w, {dot}{turned(1, "%1")}{turned(2, "%3")}
  %6 = stablehlo.add %3, %c1 : {whole}
  %7 = stablehlo.add %1, %c2 : {whole}
  %8 = mesh.reduce_scatter %6 {scatter} {whole} -> {shard}
  %9 = mesh.reduce_scatter %7 {scatter} {whole} -> {shard}
  return %8, %9 : {shard}, {shard}
}}"""
    module = read(text, "mixed.mlir", context())
    pipeline.run((RowsInPieces(least=1),), module)
    assert counted(module, "mesh.all_gather") == {"mesh.all_gather": 3}


def test_in_proportion_to_layers() -> None:
    def lines(count: int) -> int:
        step = RowsInPieces(CompileTarget.of("v5p:2x2x2", compiler_options="best"))
        return lines_run(partial(pipeline.run, (step,), layers(count, 8192, 4096, 4096), verified="none"))

    lines(1)  # what is loaded once
    few, many = lines(50), lines(150)
    assert many < 3.2 * few
