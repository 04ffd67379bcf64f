"""Programs whose values have halos, or shards of sizes of their own: partitioned, they compute what they say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshbridge import api, pipeline
from meshbridge.dialect import build
from meshbridge.ir import mlir
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.legalize.inline_calls import InlineCalls
from tests.operations.differential import example

F32, I32 = "float32", "int32"
Shapes = list[tuple[tuple[int, ...], str]]

MESHES = [Mesh("m", (8,)), Mesh("m", (2, 4)), Mesh("m", (2, 2, 2))]


def _stencil(x: jax.Array) -> jax.Array:
    """Five points, zeros around."""
    around = jnp.pad(x, 1)
    return around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * x


def _smoothed(x: jax.Array) -> jax.Array:
    def body(_: Any, y: jax.Array) -> jax.Array:
        return y + jnp.float32(0.1) * jnp.tanh(_stencil(y))

    return lax.fori_loop(0, 3, body, x)


PROGRAMS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "elementwise": (lambda x, y: jnp.where(x > y, jnp.sin(x) * y + 2, x - jnp.exp(y)), [((16, 24), F32)] * 2),
    "clamp": (lambda x, low: lax.clamp(low, x, jnp.float32(0.5)) / 3, [((16, 24), F32), ((), F32)]),
    "integers": (lambda x, y: (x ^ y) + lax.population_count(x) * 3 // (y + 1), [((13, 9), I32)] * 2),
    "complex": (lambda x, y: jnp.abs(lax.complex(x, y) * (1 + 2j)), [((12, 8), F32)] * 2),
    "stencil": (_stencil, [((16, 24), F32)]),
    "smoothed": (_smoothed, [((16, 24), F32)]),
    "periodic stencil": (lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -2, 1), [((16, 24), F32)]),
    "pooling": (lambda x: lax.reduce_window(x, np.float32(-9), lax.max, (2, 3), (2, 1), "SAME"), [((16, 24), F32)]),
    "convolution": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), [((2, 3, 16, 16), F32), ((4, 3, 3, 3), F32)]),
    "convolution gradient": (
        lambda x, w: jax.grad(lambda v: (lax.conv(v, w, (2, 1), "VALID") ** 2).sum())(x),
        [((2, 3, 12, 16), F32), ((4, 3, 3, 2), F32)],
    ),
    "sums": (lambda x: (x.sum(0) * 2, x.max(1), (x * x).sum()), [((16, 10), F32)]),
    "argmax": (lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)), [((16, 9), F32)]),
    "softmax": (lambda x: jax.nn.softmax(x, axis=0), [((13, 8), F32)]),
    "cumsum": (lambda x: lax.cumsum(x, 0) + lax.cummax(x, 1, reverse=True), [((16, 6), F32)]),
    "dot": (lambda x, y: jnp.tanh(x @ y) + 1, [((16, 12), F32), ((12, 9), F32)]),
    "batched dot": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [((8, 3, 8), F32), ((8, 8, 5), F32)]),
    "reshape": (lambda x: jnp.cos(x.reshape(8, 24)).reshape(-1) * 2, [((16, 12), F32)]),
    "movement": (lambda x: jnp.concatenate([x[::-1, 1:], x[:, ::2]], 1).T, [((16, 8), F32)]),
    "pad": (lambda x: lax.pad(x, np.float32(1), ((1, 2, 0), (-1, 0, 1))), [((16, 8), F32)]),
    "iota": (lambda x: x * jnp.arange(8.0) + jnp.arange(16.0)[:, None], [((16, 8), F32)]),
    "lookup": (lambda x, i: x[i] + 1, [((16, 6), F32), ((9,), I32)]),
    "scatter": (lambda x, i, u: x.at[i].add(u), [((16, 6), F32), ((5,), I32), ((5, 6), F32)]),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), [((16, 8), F32)]),
    "slice at run time": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 3, 0), [((16, 6), F32), ((), I32)]),
    "update at run time": (
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0),
        [((16, 6), F32), ((2, 6), F32), ((), I32)],
    ),
    "branches": (lambda x, i: lax.switch(i, [lambda: x + 1, lambda: x.T @ x, lambda: x * 2]), [((8, 8), F32), ((), I32)]),
    "transform": (lambda x: jnp.abs(jnp.fft.fft(x)), [((16, 8), F32)]),
    "solve": (lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(8)), [((8, 8), F32)]),
    "empty": (lambda x: (x[:, :0] * 2, x.sum()), [((16, 8), F32)]),
    "layer": (
        lambda x, w: jax.value_and_grad(lambda v: jnp.mean(jax.nn.gelu(x @ v) ** 2))(w),
        [((16, 8), F32), ((8, 12), F32)],
    ),
}


def _drawn(draw: random.Random, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """A sharding of a tensor of `shape`: plain, with halos, or with offsets, uneven and empty shards among them."""
    kind = draw.choice(["plain", "halos", "halos", "offsets", "offsets"])
    split: list[list[int]] = [[] for _ in shape]
    for axis in draw.sample(range(mesh.rank), mesh.rank):
        home = draw.randrange(-1, len(shape))
        if home >= 0 and (kind != "plain" or mesh.group_size((*split[home], axis)) <= shape[home]):
            split[home].append(axis)
    halos: list[int] = []
    offsets: list[int] = []
    for size, axes in zip(shape, split, strict=True):
        if axes and kind == "halos":
            most = min(3, -(-size // mesh.group_size(tuple(axes))))
            halos += [draw.randint(0, most), draw.randint(0, most)]
        if axes and kind == "offsets":
            offsets += [0, *sorted(draw.randint(0, size) for _ in range(mesh.group_size(tuple(axes)) - 1)), size]
    return Sharding("m", tuple(map(tuple, split)), halo_sizes=tuple(halos), offsets=tuple(offsets))


def _blocks(block: ir.Block) -> list[ir.Block]:
    """A block and those of the loops and branches in it."""
    regions = [region for view in block.operations if view.operation.name in LOOPS for region in view.operation.regions]
    return [block, *(inner for region in regions for inner in _blocks(region.blocks[0]))]


LOOPS = ("stablehlo.while", "stablehlo.case")


def _annotate(module: ir.Module, mesh: Mesh, draw: random.Random, share: float) -> None:
    """Puts a drawn sharding on a `share` of the arguments and of what the program computes."""
    main = next(view.operation for view in module.body.operations if "main" in str(view.operation.attributes["sym_name"]))
    with module.context, ir.Location.unknown():
        build.mesh(mesh, at=Builder(ir.Location.current, ir.InsertionPoint.at_block_begin(module.body)))
        for block in _blocks(main.regions[0].blocks[0]):
            top = main.regions[0].blocks[0] == block
            places = [(value, ir.InsertionPoint.at_block_begin(block)) for value in block.arguments if top]
            places += [
                (value, ir.InsertionPoint.after(view.operation)) for view in block.operations for value in view.operation.results
            ]
            for value, ip in places:
                type_ = value.type
                if isinstance(type_, ir.RankedTensorType) and type_.rank and draw.random() < share:
                    at = Builder(ir.Location.current, ip)
                    sharding = build.sharding(_drawn(draw, mesh, tuple(type_.shape)), at=at)
                    users = list(value.uses)
                    held = build.shard(value, sharding, annotate_for_users=draw.random() < 0.3, at=at)
                    for use in users:
                        use.owner.operands[use.operand_number] = held


LOCAL = pipeline.build(pipeline.Options(emit="local"))
AS_ANNOTATED = LOCAL.replacing("decided")
"""Without decisions: what is not annotated is sharded as its operands are."""


def _cases() -> list[Any]:
    """Every program on every mesh in both ways; one of them each in the short suite."""
    ways = [(mesh, how) for how in ("decided", "as annotated") for mesh in MESHES]
    return [
        pytest.param(
            name,
            mesh,
            how,
            id=f"{name}-{'x'.join(map(str, mesh.shape))}-{how}",
            marks=() if number % len(ways) == place else pytest.mark.slow,
        )
        for number, name in enumerate(PROGRAMS)
        for place, (mesh, how) in enumerate(ways)
    ]


@pytest.mark.parametrize(("name", "mesh", "how"), _cases())
def test_computes_what_one_device_does(name: str, mesh: Mesh, how: str) -> None:
    function, shapes = PROGRAMS[name]
    draw, rng = random.Random(f"{name}{mesh.shape}"), np.random.default_rng(0)
    arguments = [example(rng, shape, dtype) if shape else np.asarray(1, dtype) for shape, dtype in shapes]
    text = jax.jit(function).lower(*arguments).as_text()
    module = mlir.parse(text, f"{name}.mlir", mlir.context())
    pipeline.run((InlineCalls(),), module)  # calls inlined: inside of them nothing could be annotated
    _annotate(module, mesh, draw, 0.7)
    pipeline.verify(module)
    pipeline.run((LOCAL if how == "decided" else AS_ANNOTATED).passes, module)
    found = api.compile(module)(*arguments)
    for ours, theirs in zip(found, jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)
