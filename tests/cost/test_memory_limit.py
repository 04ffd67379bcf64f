"""Limits of memory: another plan is taken where one fits, and what cannot fit says by how much, and for which tensors."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MemoryWarning, machines
from meshbridge.cost.memory import largest_values, memory
from meshbridge.ir.mlir import MeshError, context, ir, main_function
from meshbridge.machines.compile_target import bytes_in
from meshbridge.tools import cli
from testdata.realistic.catalogue import build as build_realistic
from tests.operations.differential import device_mesh

HELD = """
func.func @main(%x: tensor<1024xf32>, %w: tensor<64xf32>) -> tensor<64xf32> {
  %long = stablehlo.custom_call @made(%x) : (tensor<1024xf32>) -> tensor<2048xf32>
  %early = stablehlo.custom_call @made(%x) : (tensor<1024xf32>) -> tensor<512xf32>
  %least = stablehlo.custom_call @made(%early) : (tensor<512xf32>) -> tensor<8xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %loop:2 = stablehlo.while(%i = %zero, %y = %w) : tensor<i32>, tensor<64xf32>
  cond {
    %end = stablehlo.constant dense<3> : tensor<i32>
    %on = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %on : tensor<i1>
  } do {
    %inside = stablehlo.custom_call @made(%y, %long) : (tensor<64xf32>, tensor<2048xf32>) -> tensor<4096xf32>
    %next = stablehlo.custom_call @made(%inside) : (tensor<4096xf32>) -> tensor<64xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %after = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %after, %next : tensor<i32>, tensor<64xf32>
  }
  %out = stablehlo.custom_call @made(%loop#1, %least) : (tensor<64xf32>, tensor<8xf32>) -> tensor<64xf32>
  return %out : tensor<64xf32>
}
"""


def test_what_is_held_at_the_peak() -> None:
    """In the loop: what it makes, what it reads from outside, the argument, and not what was read before."""
    module = ir.Module.parse(HELD, context())
    function = main_function(module)
    sizes = [size for _, size in largest_values(function, 3)]
    assert sizes == [4 * 4096, 4 * 2048, 4 * 1024]
    assert 4 * (4096 + 2048) <= memory(function).temporaries <= 4 * (4096 + 2048 + 64 + 64 + 8) + 32


LAST_READ = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %weights = stablehlo.custom_call @made(%x) : (tensor<8xf32>) -> tensor<1024xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %start = stablehlo.{start} : tensor<1024xf32>
  %loop:3 = stablehlo.while(%i = %zero, %held = %weights, %y = %start) : tensor<i32>, tensor<1024xf32>, tensor<1024xf32>
  cond {{
    %end = stablehlo.constant dense<3> : tensor<i32>
    %on = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %on : tensor<i1>
  }} do {{
    %next = stablehlo.custom_call @made(%y, {read}) : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %after = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %after, %held, %next : tensor<i32>, tensor<1024xf32>, tensor<1024xf32>
  }}
  %out = stablehlo.custom_call @made(%loop#2) : (tensor<1024xf32>) -> tensor<8xf32>
  return %out : tensor<8xf32>
}}
"""


@pytest.mark.parametrize("start", ["constant dense<0.0>", "custom_call @made(%x) : (tensor<8xf32>) -> tensor<1024xf32> //"])
@pytest.mark.parametrize("read", ["%held", "%weights"])
def test_what_a_loop_only_reads_keeps_its_buffer(start: str, read: str) -> None:
    """Nobody reads it afterwards, and yet the value that the loop computes is beside it, whatever it starts from."""
    module = ir.Module.parse(LAST_READ.format(start=start, read=read), context())
    iteration, loop = 4096, 4096 + 4096
    assert loop + iteration <= memory(main_function(module)).temporaries < loop + iteration + 64


@pytest.mark.slow
def test_another_plan_is_taken_where_it_fits() -> None:
    exported = build_realistic("gpt8_scan_fsdp_tp", "constrained", 8).export_for("cpu")
    free = meshbridge.report(exported)
    limit = 0.88 * free.memory.peak
    limited = meshbridge.report(exported, memory_limit=limit)
    assert limited.memory.peak <= limit
    assert limited.wire_bytes < 1.2 * free.wire_bytes
    assert meshbridge.report(exported, memory_limit=free.memory.peak) == free


def _network() -> export.Exported:
    """Two products, the hidden dimension of which nobody has annotated."""
    mesh = device_mesh((2, 4))

    def function(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ v) @ w), axis=0)

    rows, whole = NamedSharding(mesh, P("a")), NamedSharding(mesh, P("b"))
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((512, 64), (64, 4096), (4096, 64))]
    return export.export(jax.jit(function, in_shardings=(rows, whole, whole)))(*shapes)


def test_numbers_stay() -> None:
    exported = _network()
    free = meshbridge.report(exported)
    tight = meshbridge.partition(exported, memory_limit=free.memory.peak)
    values = [np.random.default_rng(n).standard_normal(aval.shape, "float32") / 8 for n, aval in enumerate(exported.in_avals)]
    x, v, w = values
    placed = [
        jax.device_put(value, sharding)
        for value, sharding in zip(values, exported.in_shardings_jax(device_mesh((2, 4))), strict=True)
    ]
    expected = np.tanh(np.tanh(x @ v) @ w).sum(axis=0)
    np.testing.assert_allclose(jax.jit(tight.call)(*placed), expected, rtol=2e-4, atol=2e-3)


def test_what_cannot_fit_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, out = tmp_path / "program.jax_export", tmp_path / "out.jax_export"
    program.write_bytes(_network().serialize())
    for command in (["partition", str(program), "-o", str(out)], ["report", str(program)]):
        assert cli.main([*command, "--memory-limit", "100KB"]) == 1
        said = capsys.readouterr()
        for text in ("of memory on a device, ", " more than the limit of 100.0 KB (arguments ", "argument 1: 262.1 KB", __file__):
            assert text in said.err
        assert not said.out
        assert cli.main([*command, "--memory-limit", "much"]) == 2
        assert "--memory-limit: 'much', expected a positive number of bytes" in capsys.readouterr().err
        assert cli.main([*command, "--memory-limit", "1GB", "--machine", "bytes"]) == 1
        assert "memory-limit has no effect on machine 'bytes'" in capsys.readouterr().err
    assert not out.exists()
    assert (
        cli.main(["partition", str(program), "--emit", "mesh", "--memory-limit", "1GB", "-o", str(tmp_path / "done.mlir")]) == 0
    )
    assert cli.main(["partition", str(tmp_path / "done.mlir"), "--memory-limit", "1GB", "-o", str(out)]) == 1
    assert "--memory-limit has no effect on a program that is partitioned already" in capsys.readouterr().err
    with pytest.raises(MeshError, match="no effect on the form 'annotated'"):
        meshbridge.partition(_network(), emit="annotated", memory_limit="1GB")  # type: ignore[call-overload]


def _saving() -> export.Exported:
    """Layers of computed weights, for several microbatches: the weights of all are gathered before the loops, or, for less
    memory, of each in them."""
    mesh = device_mesh((8,))

    def loss(shift: jax.Array, x: jax.Array, weights: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x, row: (jnp.tanh(x @ row + shift), None))
        return jnp.square(jax.lax.scan(layer, x, weights)[0]).mean()

    def gradient(shift: jax.Array, batches: jax.Array, weights: jax.Array) -> jax.Array:
        computed = jnp.sin(weights)
        microbatch = lambda total, x: (total + jax.grad(loss)(shift, x, computed), None)  # noqa: E731
        return jax.lax.scan(microbatch, jnp.zeros_like(shift), batches)[0]

    rows, layers, whole = (NamedSharding(mesh, P(*spec)) for spec in ((None, "a"), (None, "a"), ()))
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((128,), (8, 64, 128), (16, 128, 128))]
    return export.export(jax.jit(gradient, in_shardings=(whole, rows, layers), out_shardings=whole))(*shapes)


def _machine_with(tmp_path: Path, memory_bytes: float, topology: str = "") -> str:
    """A v5e of so much memory."""
    text = Path(machines.__file__).with_name("tpu").joinpath("v5e.toml").read_text()
    path = tmp_path / "small.toml"
    path.write_text(text.replace("bytes = 17_179_869_184", f"bytes = {int(memory_bytes)}"))
    return f"{path}{topology}"


@pytest.mark.parametrize("topology", ["", ":2x4"])
def test_the_memory_of_a_named_machine_is_a_limit(tmp_path: Path, topology: str) -> None:
    """Another plan is taken where one fits. None is sought where the first one fits, or where somebody says so."""
    exported = _saving()
    roomy = _machine_with(tmp_path, 1e9, topology)
    free = meshbridge.report(exported, machine=roomy)
    thrifty = meshbridge.report(exported, machine=roomy, memory_limit=0.9 * free.memory.peak)
    small = _machine_with(tmp_path, 0.9 * free.memory.peak, topology)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert meshbridge.report(exported, machine=small).memory == thrifty.memory != free.memory
        assert meshbridge.report(exported, machine=small, memory_limit="none").memory == free.memory


@pytest.mark.parametrize("topology", ["", ":2x4"])
@pytest.mark.parametrize("size", ["300KB", "1.5MB"])
def test_what_does_not_fit_a_named_machine_is_planned_with_a_warning(tmp_path: Path, topology: str, size: str) -> None:
    exported, machine = _network(), _machine_with(tmp_path, bytes_in(size), topology)
    with pytest.warns(
        MemoryWarning, match=r"^warning: the program needs .* more than .*small.toml.* has, .*argument 1: 262.1 KB"
    ):
        partitioned = meshbridge.partition(exported, machine=machine)
    free = meshbridge.partition(exported, machine=machine, memory_limit="none")
    assert partitioned.mlir_module_serialized == free.mlir_module_serialized
    with pytest.raises(MeshError, match="more than the limit"):
        meshbridge.partition(exported, machine=machine, memory_limit=size)
