"""Collectives beside loops of collectives: one order on all virtual devices, and the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.runtime import xla
from tests.patience import PATIENCE

ALL = "[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>"
GROUPS = (
    ALL,
    "[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>",
    "[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>",
    "[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>",
)


def reduced(result: str, operand: str, kind: str, combiner: str = "add", groups: str = ALL) -> str:
    return f"""{result} = "stablehlo.all_reduce"({operand}) <{{replica_groups = dense<{groups}}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.{combiner} %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) : ({kind}) -> {kind}"""


def permuted(result: str, operand: str, kind: str) -> str:
    """What each device has, from itself."""
    pairs = [[number, number] for number in range(8)]
    attributes = f"source_target_pairs = dense<{pairs}> : tensor<8x2xi64>"
    return f'{result} = "stablehlo.collective_permute"({operand}) <{{{attributes}}}> : ({kind}) -> {kind}'


def loop(result: str, operand: str, kind: str = "tensor<4xf32>", communicated: Callable[..., str] = reduced) -> str:
    """Three iterations, a collective in each, and an operand that it hands on."""
    return f"""{result}:3 = stablehlo.while(%i = %zero, %x = {operand}, %same = {operand}) : tensor<i32>, {kind}, {kind}
      cond {{
        %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %j = stablehlo.add %i, %one : tensor<i32>
        {communicated("%y", "%x", kind)}
        stablehlo.return %j, %y, %same : tensor<i32>, {kind}, {kind}
      }}"""


def branch(result: str, operand: str, kind: str = "tensor<4xf32>") -> str:
    """A reduction where all devices say so."""
    return f"""{result}:2 = "stablehlo.if"(%yes) ({{
        {reduced("%y", operand, kind)}
        stablehlo.return %y, %y : {kind}, {kind}
      }}, {{
        stablehlo.return {operand}, {operand} : {kind}, {kind}
      }}) : (tensor<i1>) -> ({kind}, {kind})"""


def module(body: str, results: list[tuple[str, str]], arguments: str) -> ir.Module:
    values, types = (", ".join(part) for part in zip(*results, strict=True))
    text = f"""func.func @main({arguments}, %yes: tensor<i1>) -> ({types}) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      {body}
      return {values} : {types}
    }}"""
    return ir.Module.parse(text, mlir.context())


KIND = "tensor<4xf32>"
BESIDE = {
    "collective after loop": (loop("%l", "%a") + reduced("\n%r", "%b", KIND), ["%l#1", "%r"]),
    "loop after collective": (reduced("%r", "%b", KIND) + "\n" + loop("%l", "%a"), ["%r", "%l#1"]),
    "loop after loop": (loop("%k", "%b") + "\n" + loop("%l", "%a"), ["%k#1", "%l#1"]),
    "collective after branch": (branch("%l", "%a") + reduced("\n%r", "%b", KIND), ["%l#1", "%r"]),
    "branch after collective": (reduced("%r", "%b", KIND) + "\n" + branch("%l", "%a"), ["%r", "%l#1"]),
    "what a loop hands on": (loop("%l", "%a") + reduced("\n%r", "%l#2", KIND, "maximum"), ["%l#1", "%r"]),
    "between loops": (
        "\n".join(
            (loop("%k", "%a"), reduced("%r", "%b", KIND, "maximum"), reduced("%t", "%a", KIND, "minimum"), loop("%l", "%b"))
        ),
        ["%k#1", "%r", "%t", "%l#1"],
    ),
}
"""Bodies of programs on %a and %b, and what communicates in the order in which it is to happen."""


@pytest.mark.parametrize("name", BESIDE)
def test_xla_keeps_the_order(name: str) -> None:
    """In what XLA runs, too, each loop or branch waits for what is before it, and what is after waits for it."""
    body, results = BESIDE[name]
    compiled = xla.compile_module(module(body, [(each, KIND) for each in results], f"%a: {KIND}, %b: {KIND}"), jax.devices())
    *entry, root = compiled.hlo_text().partition("\nENTRY ")[2].partition("\n}")[0].splitlines()[1:]
    read = {name: operands for name, _, operands in map(parsed, entry)}
    kinds = {name: kind for name, kind, _ in map(parsed, entry)}
    in_order = [after(each, read, kinds) for each in parsed(root)[2]]
    for earlier, later in pairwise(in_order):
        if {kinds[earlier], kinds[later]} & {"while", "conditional"}:
            assert earlier in all_read(later, read)


def parsed(line: str) -> tuple[str, str, list[str]]:
    """The name of an instruction, its kind, and its operands."""
    found = re.match(
        r"\s*(?:ROOT )?%([\w.\-]+) = .*? ([a-z][a-z\-]*)\((.*?)\)(?:, |$)", re.sub(r"/\*.*?\*/|\{[\d,]*\}", "", line)
    )
    assert found is not None, line
    return found[1], found[2], re.findall(r"%([\w.\-]+)", found[3])


def after(name: str, read: dict[str, list[str]], kinds: dict[str, str]) -> str:
    """What communicates of which an instruction is computed without another that does."""
    while kinds[name] not in ("while", "conditional", "all-reduce"):
        (name,) = read[name]
    return name


def all_read(name: str, read: dict[str, list[str]]) -> set[str]:
    return {name}.union(*(all_read(each, read) for each in read.get(name, ())))


KINDS = {
    "bool": "i1",
    "int4": "i4",
    "uint8": "ui8",
    "int32": "i32",
    "uint64": "ui64",
    "float8_e4m3fn": "f8E4M3FN",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
"""Types as numpy and MLIR call them."""


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(), (7,), (0, 3)])
def test_same_bits(dtype: str, shape: tuple[int, ...]) -> None:
    """Also of numbers that are none, infinities and zeros with a sign, whatever numbers of that type the loop gives."""
    read, kind = f"tensor<4x{KINDS[dtype]}>", f"tensor<{''.join(f'{size}x' for size in shape)}{KINDS[dtype]}>"
    with jax.enable_x64(True):
        body = loop("%l", "%a", read, permuted) + "\n" + permuted("%r", "%b", kind)
        made = module(body, [("%l#1", read), ("%r", kind)], f"%a: {read}, %b: {kind}")
        compiled = xla.compile_module(made, jax.devices())
        numbers = np.array([np.nan, -np.inf, -0.0, 0.0, -1.5, np.inf, 3.0])[: int(np.prod(shape))].reshape(shape)
        value = special(numbers, dtype)
        for seen in (np.full(4, np.nan), np.full(4, -1e30), np.zeros(4), np.ones(4)):
            arguments = [replicated(np.asarray(each)) for each in (special(seen, dtype), value, np.True_)]
            _, result = compiled.run(arguments)
            assert np.asarray(result[3]).tobytes() == np.asarray(value).tobytes()


def special(numbers: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(np.nan_to_num(numbers, posinf=3, neginf=0) if "int" in dtype else numbers).astype(dtype)


def replicated(value: np.ndarray) -> jax.Array:
    devices = jax.devices()
    sharding = NamedSharding(jax.make_mesh((len(devices),), ("x",)), P())
    return jax.make_array_from_single_device_arrays(value.shape, sharding, [jax.device_put(value, each) for each in devices])


def test_jitted_functions(mesh: jax.sharding.Mesh) -> None:
    """On their own and within others."""

    def each(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        looped = jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(jax.lax.psum(x, "data")), a)
        return looped, jax.lax.pmax(b, "data")

    along = P("data")
    step = meshbridge.jit(jax.shard_map(each, mesh=mesh, in_specs=along, out_specs=P(), check_vma=False))
    arguments = [jax.device_put(jnp.arange(8.0) + k, NamedSharding(mesh, along)) for k in range(2)]
    assert "stablehlo.minimum" in step.partitioned_text(*arguments)
    assert "stablehlo.minimum" in meshbridge.jit(lambda a, b: step(a, b)).partitioned_text(*arguments)
    for function in (step, jax.jit(lambda a, b: step(a, b))):
        for found, expected in zip(function(*arguments), jax.jit(step.__wrapped__)(*arguments), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


MANY_RUNS = """
import jax
import numpy as np
from tests.backends import test_xla_cpu as here

compiled = here.xla.compile_module(here.side_by_side(), jax.devices())
for _ in range(8):
    arguments = [here.replicated(each) for each in (*(np.ones(size, np.float32) for size in here.SIZES), np.True_)]
    for result in compiled.run(arguments):
        np.asarray(result[0])
"""
SIZES = (200, 200), (64, 64)


@pytest.mark.slow
def test_many_runs() -> None:
    """In a process of its own, which can be ended: without an order it crashes."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", MANY_RUNS], capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment
    )
    assert done.returncode == 0, done.stderr


def side_by_side(width: int = 9, count: int = 24) -> ir.Module:
    """A loop that reduces, in which several threads compute products, and after it more reductions of other sizes than XLA
    reuses the loop's memory for."""
    large, small = (f"tensor<{size}x{size}xf32>" for size, _ in SIZES)
    added = "applies stablehlo.add across dimensions = [0, 1]"
    chain = [f"%c1 = stablehlo.sine %b : {small}"]
    chain += [f"%c{k} = stablehlo.cosine %c{k - 1} : {small}" for k in range(2, count + 1)]
    for k in range(1, count + 1):
        chain += [
            f"%n{k} = stablehlo.reduce(%c{k} init: %nothing) {added} : ({small}, tensor<f32>) -> tensor<f32>",
            f"%g{k} = stablehlo.broadcast_in_dim %n{k}, dims = [] : (tensor<f32>) -> {large}",
            f"%a{k} = stablehlo.add %a{k - 1 or ''}, %g{k} : {large}",
        ]
    products = [
        f"%d{k} = stablehlo.dot_general %start, %v{k}, contracting_dims = [1] x [0] : ({large}, {large}) -> {large}\n"
        f"%w{k} = stablehlo.tanh %d{k} : {large}"
        for k in range(width)
    ]
    after = [reduced(f"%r{k}", f"%c{k + 1}", small, "add" if k < 4 else "maximum", GROUPS[k % 4]) for k in range(count)]
    newline = "\n"
    body = f"""%nothing = stablehlo.constant dense<0.0> : tensor<f32>
      %many = stablehlo.constant dense<30> : tensor<i32>
      %scale = stablehlo.constant dense<0.125> : {large}
      {newline.join(chain)}
      %start = stablehlo.tanh %a{count} : {large}
      %l:{width + 2} = stablehlo.while(%i = %zero, %x = %start, {", ".join(f"%v{k} = %start" for k in range(width))})
        : {", ".join(["tensor<i32>", *[large] * (width + 1)])}
      cond {{
        %more = stablehlo.compare LT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %j = stablehlo.add %i, %one : tensor<i32>
        {newline.join(products)}
        %e = stablehlo.multiply %w0, %scale : {large}
        {reduced("%y", "%e", large)}
        stablehlo.return %j, %y, {", ".join(f"%w{k}" for k in range(width))}
          : {", ".join(["tensor<i32>", *[large] * (width + 1)])}
      }}
      {newline.join(after)}"""
    results = [(f"%l#{k + 1}", large) for k in range(width + 1)] + [(f"%r{k}", small) for k in range(count)]
    return module(body, [*results, ("%start", large)], f"%a: {large}, %b: {small}")
