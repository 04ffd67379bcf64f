"""Passes that hide collectives look at each operation a bounded number of times, however many layers a step has."""

from __future__ import annotations

from functools import partial

import pytest

from meshbridge import pipeline
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, ir
from meshbridge.ir.passes import Pass
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.matmul.collective_matmul import CollectiveMatmul
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule
from tests.work import lines_run

ROWS, WIDTH, DEVICES = 4096, 2048, 8
X, W, SHARD = (f"tensor<{rows}x{WIDTH}xbf16>" for rows in (ROWS, WIDTH, WIDTH // DEVICES))


def dot(left: str, right: str, dims: str, types: tuple[str, str], result: str) -> str:
    return f"stablehlo.dot_general {left}, {right}, contracting_dims = {dims} : ({', '.join(types)}) -> {result}"


def training_step(layers: int) -> ir.Module:
    """Layers whose weights are gathered, forward and backward, and whose gradients are reduce-scattered and subtracted."""
    lines = []
    for n in range(layers):
        lines += [
            f"%g{n} = mesh.all_gather %w{n} on @m mesh_axes = [0] gather_axis = 0 : {SHARD} -> {W}",
            f"%x{n + 1} = {dot(f'%x{n}', f'%g{n}', '[1] x [0]', (X, W), X)}",
        ]
    lines.append(f"%d{layers} = stablehlo.multiply %x{layers}, %x{layers} : {X}")
    for n in reversed(range(layers)):
        lines += [
            f"%h{n} = {dot(f'%x{n}', f'%d{n + 1}', '[0] x [0]', (X, X), W)}",
            f"%s{n} = mesh.reduce_scatter %h{n} on @m mesh_axes = [0] scatter_axis = 0 : {W} -> {SHARD}",
            f"%n{n} = stablehlo.subtract %w{n}, %s{n} : {SHARD}",
            f"%d{n} = {dot(f'%d{n + 1}', f'%g{n}', '[1] x [1]', (X, W), X)}",
        ]
    weights, updated = (", ".join(f"%{kind}{n}{(kind == 'w' and ': ' + SHARD) or ''}" for n in range(layers)) for kind in "wn")
    types = ", ".join([SHARD] * layers)
    body = "\n".join(lines)
    text = f"""
mesh.mesh @m(shape = {DEVICES})
func.func @main(%x0: {X}, {weights}) -> ({types}, {X}) {{
{body}
return {updated}, %d0 : {types}, {X}
}}"""
    return read(text, "layers.mlir", context())


@pytest.mark.parametrize(
    "step",
    [
        CollectiveMatmul(CompileTarget.of("v5e:2x4")),
        CollectiveMatmul(CompileTarget.of("v5p:2x2x2", compiler_options="best"), whole=True),
        KeepSchedule(CompileTarget.of("h100:1x1x8"), least=0),
    ],
    ids=lambda step: step.name,
)
def test_in_proportion_to_layers(step: Pass) -> None:
    def lines(layers: int) -> int:
        return lines_run(partial(pipeline.run, (step,), training_step(layers), verified="none"))

    lines(1)  # what is loaded once
    few, many = lines(50), lines(150)
    assert many < 3.2 * few
