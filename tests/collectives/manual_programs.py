"""Programs whose own collectives, in `jax.shard_map`, meet those around them, and what one device sends: on a mesh of 2x4.

Sizes are those of float32. A reduce-scatter and an all-gather of `size` bytes over n devices send `size * (n - 1) / n`, an
all-reduce twice that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

Function = Callable[..., Any]
MATRIX = (64, 64)
BYTES = 4 * 64 * 64
"""Of a matrix."""


def scattered(size: int, devices: int) -> int:
    """Bytes of a reduce-scatter or an all-gather."""
    return size * (devices - 1) // devices


@dataclass(frozen=True)
class Program:
    """A function of arrays, how its arguments and its result are sharded, and how many bytes it takes."""

    function: Function
    arguments: tuple[Any, ...]
    result: Any
    shapes: tuple[Any, ...]
    wire_bytes: int


PROGRAMS: dict[str, Callable[[jax.sharding.Mesh], Program]] = {}


def program(arguments: tuple[Any, ...], result: Any, wire_bytes: int, shapes: tuple[Any, ...] | None = None) -> Any:
    """Adds a program: the decorated function gets `jax.shard_map` on the mesh, and the arguments, all matrices by default."""

    def put(function: Function) -> Function:
        def on(mesh: jax.sharding.Mesh) -> Program:
            region = partial(jax.shard_map, mesh=mesh, check_vma=False)
            return Program(partial(function, region), arguments, result, shapes or (MATRIX,) * len(arguments), wire_bytes)

        PROGRAMS[function.__name__.strip("_")] = on
        return function

    return put


ROWS, COLUMNS = P("model", None), P(None, "model")


@program((ROWS,), ROWS, scattered(BYTES, 4))
def _sum_that_is_sliced_outside(region: Any, x: Any) -> Any:
    return region(lambda x: lax.psum(jnp.tanh(x.T @ x), "model"), in_specs=P("model"), out_specs=P())(x)


@program((ROWS,), ROWS, scattered(BYTES, 4) + 2 * scattered(BYTES // 4, 2))
def _sum_over_both_axes_that_is_sliced_along_one(region: Any, x: Any) -> Any:
    return region(lambda x: lax.psum(jnp.tanh(x.T @ x), ("data", "model")), in_specs=P("model"), out_specs=P())(x)


@program((ROWS,), ROWS, scattered(BYTES, 4))
def _sum_that_is_sliced_inside(region: Any, x: Any) -> Any:
    def body(x: Any) -> Any:
        return lax.dynamic_slice_in_dim(lax.psum(jnp.tanh(x.T @ x), "model"), lax.axis_index("model") * 16, 16, 0)

    return region(body, in_specs=P("model"), out_specs=P("model"))(x)


@program((ROWS,), P(("model", "data"), None), scattered(BYTES, 8))
def _sum_that_is_sliced_along_both_axes(region: Any, x: Any) -> Any:
    def body(x: Any) -> Any:
        axes = ("model", "data")
        return lax.dynamic_slice_in_dim(lax.psum(jnp.tanh(x.T @ x), axes), lax.axis_index(axes) * 8, 8, 0)

    return region(body, in_specs=P("model"), out_specs=P(("model", "data")))(x)


@program((P(("model", "data"), None), ROWS), ROWS, scattered(BYTES, 8))
def _gather_at_the_entrance_of_one_that_gathers(region: Any, w: Any, x: Any) -> Any:
    def body(w: Any, x: Any) -> Any:
        return x @ lax.all_gather(w, "model", axis=0, tiled=True)

    return region(body, in_specs=(P("model"), P("model")), out_specs=P("model"))(w, x)


@program((ROWS, ROWS), ROWS, 0)
def _gather_at_the_entrance_that_is_sliced(region: Any, w: Any, x: Any) -> Any:
    def body(w: Any, x: Any) -> Any:
        return x + lax.dynamic_slice_in_dim(jnp.sin(w), lax.axis_index("model") * 16, 16, 0)

    return region(body, in_specs=(P(), P("model")), out_specs=P("model"))(w, x)


@program((P("model", "data"),), P(), 2 * scattered(BYTES // 8, 8))
def _sum_of_a_sum(region: Any, x: Any) -> Any:
    return region(lambda x: lax.psum(lax.psum(jnp.tanh(x), "model"), "data"), in_specs=P("model", "data"), out_specs=P())(x)


@program((P("model", "data"),), P(), 2 * scattered(BYTES // 8, 8))
def _sum_of_a_sum_in_the_next_region(region: Any, x: Any) -> Any:
    y = region(lambda x: lax.psum(jnp.tanh(x), "model"), in_specs=P("model", "data"), out_specs=P(None, "data"))(x)
    return region(lambda y: lax.psum(2 * y, "data"), in_specs=P(None, "data"), out_specs=P())(y)


@program((ROWS,), P(), 2 * scattered(BYTES // 4, 4))
def _scattered_sum_that_the_next_region_gathers(region: Any, x: Any) -> Any:
    def first(x: Any) -> Any:
        return lax.psum_scatter(jnp.tanh(x), "model", scatter_dimension=1, tiled=True)

    y = region(first, in_specs=P("model"), out_specs=COLUMNS)(x)
    return region(lambda y: lax.all_gather(y, "model", axis=1, tiled=True), in_specs=COLUMNS, out_specs=P())(y)


@program((ROWS,), ROWS, 0)
def _gathered_value_that_the_next_region_takes_in_shards(region: Any, x: Any) -> Any:
    y = region(lambda x: lax.all_gather(jnp.tanh(x), "model", axis=0, tiled=True), in_specs=P("model"), out_specs=P())(x)
    return region(lambda y: 2 * y, in_specs=P("model"), out_specs=P("model"))(y)


@program((ROWS,), ROWS, 0)
def _exchange_that_the_next_region_takes_back(region: Any, x: Any) -> Any:
    y = region(lambda x: lax.all_to_all(jnp.tanh(x), "model", 1, 0, tiled=True), in_specs=P("model"), out_specs=COLUMNS)(x)
    return region(lambda y: 2 * lax.all_to_all(y, "model", 0, 1, tiled=True), in_specs=COLUMNS, out_specs=P("model"))(y)


@program((P(), ROWS), ROWS, 0)
def _gradient_of_a_slice_at_the_device_number(region: Any, w: Any, x: Any) -> Any:
    """`jax.grad` sums over devices what each has written beside zeros; of the sum the caller wants what it has written."""

    def body(w: Any, x: Any) -> Any:
        return x * lax.dynamic_slice_in_dim(w, lax.axis_index("model") * 16, 16, 0)

    checked = {"in_specs": (P(), P("model")), "out_specs": P("model"), "check_vma": True}
    return jax.grad(lambda w: region(body, **checked)(w, x).sum())(w)


WEIGHTS, TOKENS = (P("data", "model"), P("model", "data")), P("data", None)
LAYER = ((64, 128), (128, 64)), (32, 64)
WEIGHT = 4 * 64 * 128
HIDDEN = 4 * 32 * 64

GRADIENT = 4 * scattered(WEIGHT // 4, 2)
"""Two weights are gathered along `data` and their gradients are scattered."""


def _layer(*, psum: bool = True) -> Function:
    def body(h: Any, into: Any, out_of: Any) -> Any:
        added = jnp.tanh(h @ into) @ out_of
        return h + (lax.psum(added, "model") if psum else added)

    return body


SPECS: dict[str, Any] = {"in_specs": (TOKENS, COLUMNS, P("model", None)), "out_specs": TOKENS}


def _gradients(layer: Function, weights: Any, x: Any) -> Any:
    return jax.grad(lambda weights: (layer(x, *weights) ** 2).sum())(weights)


@program((WEIGHTS, TOKENS), WEIGHTS, GRADIENT + 2 * scattered(HIDDEN // 2, 4), LAYER)
def _gradients_of_weights(region: Any, weights: Any, x: Any) -> Any:
    return _gradients(region(_layer(), **SPECS), weights, x)


@program((WEIGHTS, TOKENS), WEIGHTS, GRADIENT + 2 * scattered(HIDDEN // 2, 4), LAYER)
def _gradients_of_weights_with_checked_axes(region: Any, weights: Any, x: Any) -> Any:
    return _gradients(region(_layer(), **SPECS | {"check_vma": True}), weights, x)


@program((WEIGHTS, TOKENS), WEIGHTS, GRADIENT + 2 * scattered(HIDDEN // 2, 4), LAYER)
def _gradients_of_weights_along_one_manual_axis(region: Any, weights: Any, x: Any) -> Any:
    specs = {"in_specs": (TOKENS, P(), P()), "out_specs": TOKENS, "axis_names": {"data"}}
    return _gradients(region(_layer(psum=False), **specs), weights, x)


@program((WEIGHTS, TOKENS), WEIGHTS, GRADIENT + 2 * scattered(HIDDEN // 2, 4), LAYER)
def _gradients_of_weights_in_a_region_within_another(region: Any, weights: Any, x: Any) -> Any:
    inner = {"in_specs": (P(), COLUMNS, P("model", None)), "out_specs": P(), "axis_names": {"model"}, "check_vma": False}
    specs = {"in_specs": (TOKENS, P(), P()), "out_specs": TOKENS, "axis_names": {"data"}}
    return _gradients(region(jax.shard_map(_layer(), **inner), **specs), weights, x)


@program((WEIGHTS, TOKENS), WEIGHTS, GRADIENT + 2 * scattered(HIDDEN // 2, 4) + HIDDEN // 2, LAYER)
def _gradients_of_weights_beside_a_ring(region: Any, weights: Any, x: Any) -> Any:
    def body(h: Any, into: Any, out_of: Any) -> Any:
        ring = lax.ppermute(h, "data", [(0, 1), (1, 0)])
        return ring + _layer()(h, into, out_of) * lax.axis_index("data")

    return _gradients(region(body, **SPECS), weights, x)


LAYERS = 3
STACKED = tuple(P(None, *spec) for spec in WEIGHTS)


@program(
    (STACKED, TOKENS),
    STACKED,
    LAYERS * (GRADIENT + 4 * scattered(HIDDEN // 2, 4)),
    (tuple((LAYERS, *shape) for shape in LAYER[0]), LAYER[1]),
)
def _gradients_of_layers_in_a_loop(region: Any, weights: Any, x: Any) -> Any:
    """Sums of activations, forward and of their gradients; weights are gathered once for both loops."""
    layer = region(_layer(), **SPECS)

    def loss(weights: Any) -> Any:
        h, _ = lax.scan(jax.checkpoint(lambda h, each: (layer(h, *each), None)), x, weights)
        return (h**2).sum()

    return jax.grad(loss)(weights)
