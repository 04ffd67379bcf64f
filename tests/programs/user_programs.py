"""Small programs as users write them: trees of arguments, typed keys, scalars, donated, static and unused arguments, contexts."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
LINE = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
SINGLE = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(AxisType.Auto,))


@dataclass(frozen=True)
class UserProgram:
    """A jitted function, what it is called with, and what that may be in other hands.

    `given` are the arguments that remain when static ones are bound; `plain` is the same function without shardings.
    `mesh` is the context that it is traced in, if any.
    """

    jitted: Any
    plain: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)
    static: tuple[int | str, ...] = ()
    platforms: tuple[str, ...] = ("cpu",)
    mesh: Any = None

    @property
    def given(self) -> tuple[Any, ...]:
        return tuple(value for index, value in enumerate(self.arguments) if index not in self.static)

    @property
    def given_named(self) -> dict[str, Any]:
        return {name: value for name, value in self.named.items() if name not in self.static}


PROGRAMS: dict[str, Callable[[], UserProgram]] = {}
"""By name; built when a test asks for one."""


def program(build: Callable[[], UserProgram]) -> Callable[[], UserProgram]:
    assert PROGRAMS.setdefault(build.__name__, build) is build
    return build


def at(*spec: Any, mesh: Any = MESH) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def numbers(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def simple(function: Callable[..., Any], *arguments: Any, named: dict[str, Any] | None = None, **options: Any) -> UserProgram:
    """A function that says nothing of shardings itself."""
    context = {name: options.pop(name) for name in ("platforms", "mesh") if name in options}
    bound = {name: options[name] for name in ("static_argnums", "static_argnames") if name in options}
    static = tuple(name for names in bound.values() for name in names)
    plain = jax.jit(function, **bound)
    return UserProgram(jax.jit(function, **options), plain, arguments, named or {}, static, **context)


ROWS, COLUMNS = at("data", None), at(None, "model")
X, W = numbers(8, 16), numbers(16, 32, seed=1)


@program
def matrix_product() -> UserProgram:
    return simple(lambda x, w: x @ w, X, W, in_shardings=(ROWS, COLUMNS))


@program
def scalar_that_nobody_placed() -> UserProgram:
    return simple(lambda x, scale: x * scale, X, jnp.float32(3), in_shardings=(ROWS, None))


@program
def scalar_that_nobody_placed_and_placed_arrays() -> UserProgram:
    return simple(lambda x, scale: (x * scale).sum(axis=0), jax.device_put(X, ROWS), jnp.float32(3))


@program
def python_numbers() -> UserProgram:
    def function(x: Any, scale: Any, power: Any, negate: Any) -> Any:
        return jnp.where(negate, -x, x) * scale + power

    return simple(function, X, 0.5, 3, True, in_shardings=(ROWS, None, None, None))


@program
def python_complex_number() -> UserProgram:
    return simple(lambda x, turn: x * turn, X, 1j, in_shardings=(ROWS, None))


@program
def numpy_scalar() -> UserProgram:
    return simple(lambda x, scale: x / scale, X, np.float32(4), in_shardings=(ROWS, None))


@program
def numpy_arrays_of_64_bits() -> UserProgram:
    return simple(lambda x, i: x[i], np.ones((8, 16)), np.arange(4), in_shardings=(ROWS, None))


@program
def typed_key() -> UserProgram:
    def dropout(x: Any, key: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    return simple(dropout, X, jax.random.key(7), in_shardings=(ROWS, None))


@program
def typed_key_in_and_out() -> UserProgram:
    def step(state: dict[str, Any]) -> dict[str, Any]:
        key, use = jax.random.split(state["key"])
        return {"key": key, "x": state["x"] + jax.random.normal(use, state["x"].shape)}

    return simple(step, {"key": jax.random.key(1), "x": X}, in_shardings=({"key": None, "x": ROWS},))


@program
def array_of_keys() -> UserProgram:
    def draw(keys: Any, x: Any) -> Any:
        return jax.vmap(lambda key, row: jax.random.uniform(key, row.shape) + row)(keys, x), keys

    return simple(draw, jax.random.split(jax.random.key(3), 8), X, in_shardings=(at("data"), ROWS))


@program
def legacy_key() -> UserProgram:
    return simple(lambda key, x: jax.random.permutation(key, x), jax.random.PRNGKey(0), X, in_shardings=(None, ROWS))


@program
def other_key_implementation() -> UserProgram:
    def draw(key: Any, x: Any) -> Any:
        return x + jax.random.uniform(key, x.shape)

    return simple(draw, jax.random.key(5, impl="rbg"), X, in_shardings=(None, ROWS))


@program
def unused_argument() -> UserProgram:
    return simple(lambda x, unused, w: x @ w, X, numbers(3), W, in_shardings=(ROWS, None, COLUMNS))


@program
def unused_leaves_and_keys() -> UserProgram:
    def function(state: dict[str, Any], key: Any) -> Any:
        return {"x": state["x"] * 2}

    shardings = ({"x": ROWS, "step": None, "moments": [None, None]}, None)
    state = {"x": X, "step": jnp.int32(4), "moments": [X, X]}
    return simple(function, state, jax.random.key(0), in_shardings=shardings)


@program
def unused_argument_kept() -> UserProgram:
    return simple(lambda x, unused: x + 1, X, jnp.float32(2), in_shardings=(ROWS, None), keep_unused=True)


@program
def keyword_arguments() -> UserProgram:
    def function(x: Any, *, scale: Any, bias: dict[str, Any]) -> Any:
        return x * scale + bias["b"]

    return simple(function, jax.device_put(X, ROWS), named={"scale": jnp.float32(2), "bias": {"b": numbers(16)}})


@program
def static_argument() -> UserProgram:
    def function(x: Any, axis: int, scale: Any) -> Any:
        return x.sum(axis=axis) * scale

    return simple(function, X, 1, 2.0, static_argnums=(1,), in_shardings=(ROWS, None))


@program
def static_argument_by_name() -> UserProgram:
    def function(x: Any, *, scale: Any, axis: int) -> Any:
        return x.sum(axis=axis) * scale

    placed = jax.device_put(X, ROWS)
    return simple(function, placed, named={"scale": 2.0, "axis": 0}, static_argnames=("axis",))


@program
def donated_argument() -> UserProgram:
    return simple(lambda x, y: (x + y, y), X, X, donate_argnums=(0,), in_shardings=(ROWS, ROWS), out_shardings=(ROWS, ROWS))


@program
def donated_state() -> UserProgram:
    def step(state: dict[str, Any], x: Any) -> Any:
        return {"w": state["w"] - 0.1 * (x.T @ (x @ state["w"])), "n": state["n"] + 1}, (x**2).sum()

    shardings = ({"w": COLUMNS, "n": None}, ROWS)
    return simple(step, {"w": W, "n": jnp.int32(0)}, X, donate_argnums=(0,), in_shardings=shardings)


@program
def linen_parameters() -> UserProgram:
    def apply(variables: dict[str, Any], x: Any) -> Any:
        layers = variables["params"]
        for name in ("Dense_0", "Dense_1"):
            x = jax.nn.relu(x @ layers[name]["kernel"] + layers[name]["bias"])
        return x

    first = {"kernel": W, "bias": numbers(32)}
    second = {"kernel": numbers(32, 16, seed=3), "bias": numbers(16)}
    shardings = {
        "params": {
            "Dense_0": {"kernel": COLUMNS, "bias": at("model")},
            "Dense_1": {"kernel": at("model", None), "bias": at()},
        }
    }
    return simple(apply, {"params": {"Dense_0": first, "Dense_1": second}}, X, in_shardings=(shardings, ROWS))


@jax.tree_util.register_dataclass
@dataclass
class Variable:
    """A leaf of a state as nnx has them: a node of its own, with a value and what is known of it."""

    value: Any
    name: str = field(metadata={"static": True}, default="param")


@program
def state_of_variables() -> UserProgram:
    def forward(state: dict[str, dict[int, Variable]], x: Any) -> tuple[Any, Any]:
        hidden = x @ state["layers"][0].value
        return hidden, {"layers": {0: Variable(state["layers"][0].value * 0.9)}}

    return simple(forward, {"layers": {0: Variable(W)}}, X, in_shardings=({"layers": {0: Variable(COLUMNS)}}, ROWS))


AdamState = namedtuple("AdamState", "count mu nu")
EmptyState = namedtuple("EmptyState", "")


@program
def optax_like_step() -> UserProgram:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"]) ** 2)

    def step(params: Any, states: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        adam, empty = states
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, gradients)
        nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, adam.nu, gradients)
        params = jax.tree.map(lambda p, m, v: p - 0.1 * m / (jnp.sqrt(v) + 1e-3), params, mu, nu)
        return params, (AdamState(adam.count + 1, mu, nu), empty), value

    params = {"w": W, "b": numbers(32)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    placed = {"w": COLUMNS, "b": at("model")}
    states = (AdamState(jnp.int32(0), zeros, zeros), EmptyState())
    shardings = (AdamState(None, placed, placed), EmptyState())
    return simple(step, params, states, X, in_shardings=(placed, shardings, ROWS))


@program
def nothing_in_the_tree() -> UserProgram:
    return simple(lambda x, nothing, empty: (x + 1, None, {}), X, None, (), in_shardings=(ROWS, None, ()))


@program
def results_are_arguments() -> UserProgram:
    return simple(lambda x, key, n: (key, x, n, x), X, jax.random.key(1), 5, in_shardings=(ROWS, None, None))


@program
def no_arguments() -> UserProgram:
    def function() -> Any:
        return lax.with_sharding_constraint(jnp.arange(16.0), at("data")) * 2

    return simple(function)


@program
def result_of_a_constant() -> UserProgram:
    return simple(lambda x: (jnp.float32(1), jnp.arange(4), x * 2), X, in_shardings=(ROWS,))


@program
def several_platforms() -> UserProgram:
    return simple(lambda x: x.sum(axis=0), X, in_shardings=(ROWS,), platforms=("cpu", "cuda", "tpu"))


def _by_platform(x: Any) -> Any:
    return lax.platform_dependent(x, tpu=lambda x: jnp.cos(x).sum() + x, cpu=jnp.sin)


@program
def platform_dependent() -> UserProgram:
    return simple(_by_platform, X, in_shardings=(ROWS,), platforms=("tpu", "cpu"))


@program
def platform_dependent_in_a_loop() -> UserProgram:
    def function(x: Any) -> Any:
        return lax.scan(lambda carry, _: (jax.jit(_by_platform)(carry), carry.sum()), x, None, length=3)

    return simple(function, X, in_shardings=(ROWS,), platforms=("cpu", "tpu"))


@program
def platform_dependent_with_scalars_and_unused() -> UserProgram:
    def function(unused: Any, x: Any, scale: Any) -> Any:
        return _by_platform(x) * scale

    return simple(function, X, X, 2.0, in_shardings=(None, ROWS, None), platforms=("tpu", "cpu"))


@program
def scalar_padded() -> UserProgram:
    return simple(lambda s, x: jnp.pad(s[None], (3, 4)) + x[:, 0], jnp.float32(2), X, in_shardings=(None, ROWS))


@program
def scalars_only() -> UserProgram:
    return simple(lambda a, b: a * b, jnp.float32(2), jnp.float32(3), in_shardings=(at(), None))


@program
def constraint_inside() -> UserProgram:
    def function(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(jnp.tanh(x @ w), at("data", "model")).sum()

    return simple(function, X, W)


@program
def sharded_map_inside() -> UserProgram:
    body = jax.shard_map(lambda x: lax.psum(x.sum(axis=0), "data"), mesh=MESH, in_specs=P("data", "model"), out_specs=P("model"))
    return simple(lambda x, scale: body(x) * scale, X, 2.0, in_shardings=(ROWS, None))


@program
def gradient_under_scan() -> UserProgram:
    def loss(w: Any, xs: Any) -> Any:
        return lax.scan(lambda total, x: (total + jnp.tanh(x @ w).sum(), None), jnp.float32(0), xs)[0]

    return simple(jax.value_and_grad(loss), W, numbers(3, 8, 16), in_shardings=(COLUMNS, at(None, "data", None)))


@program
def mesh_in_context() -> UserProgram:
    def function(x: Any, scale: Any) -> Any:
        return lax.with_sharding_constraint(x * scale, P("data", "model")).sum(axis=1)

    with jax.set_mesh(MESH):
        return simple(function, jax.device_put(X, ROWS), 2.0, mesh=MESH)


@program
def explicit_mesh() -> UserProgram:
    def function(x: Any, w: Any, scale: Any) -> Any:
        return jnp.einsum("bi,io->bo", x, w, out_sharding=P("data", "model")) * scale

    arguments = (jax.device_put(X, at("data", None, mesh=EXPLICIT)), jax.device_put(W, at(None, "model", mesh=EXPLICIT)), 2.0)
    return UserProgram(jax.jit(function), lambda x, w, scale: np.asarray(x) @ np.asarray(w) * scale, arguments, mesh=EXPLICIT)


@program
def abstract_mesh() -> UserProgram:
    abstract = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def function(x: Any, scale: Any) -> Any:
        return lax.with_sharding_constraint(x * scale, NamedSharding(abstract, P("data"))).sum(axis=0)

    return simple(function, jax.device_put(X, ROWS), 2.0)


@program
def mesh_of_one_device() -> UserProgram:
    return simple(lambda x, scale: x * scale, X, 2.0, in_shardings=(at("data", mesh=SINGLE), None))


@program
def no_mesh() -> UserProgram:
    return simple(lambda x, scale, key: (x * scale, jax.random.normal(key, (4,))), X, 2.0, jax.random.key(0))


@program
def one_axis() -> UserProgram:
    def function(x: Any, step: Any) -> Any:
        return lax.cond(step > 2, jnp.sum, jnp.max, x)

    return simple(function, X, 3, in_shardings=(at("data", mesh=LINE), None))


@program
def uneven_shards() -> UserProgram:
    def function(x: Any, scale: Any) -> Any:
        return lax.with_sharding_constraint(x[:7] * scale, ROWS).sum(axis=0)

    return simple(function, X, 2.0, in_shardings=(ROWS, None))


@program
def partial_application() -> UserProgram:
    def function(scale: Any, x: Any) -> Any:
        return x * scale

    return simple(partial(function, jnp.float32(3)), X, in_shardings=(ROWS,))


@program
def small_types() -> UserProgram:
    def function(x: Any, scale: Any, flags: Any) -> Any:
        return jnp.where(flags, x * scale, 0).sum(axis=0), flags.any()

    x = X.astype(jnp.bfloat16)
    return simple(function, x, jnp.bfloat16(2), X > 0, in_shardings=(ROWS, None, ROWS))
