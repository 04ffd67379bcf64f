"""Programs with what models use beyond matrix products: control flow, sorting, scatters, windows, complex numbers, manual parts.

Each is a function with the mesh and the arguments that it is meant for; what they compute has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree

Axes = tuple[tuple[str, int], ...]
LINE: Axes = (("x", 8),)
GRID: Axes = (("x", 2), ("y", 4))

PROGRAMS: dict[str, Program] = {}

WHOLE, ROWS, COLUMNS = P(), P("x", None), P(None, "x")
NHWC = ("NHWC", "HWIO", "NHWC")
IMAGES = Argument((4, 32, 32, 8), P("x", "y", None, None))


def program(
    axes: Axes, *arguments: Argument, out: Tree = WHOLE, tolerance: float = 1e-4
) -> Callable[[Callable[..., Tree]], Program]:
    """Enters a function under its name."""

    def enter(function: Callable[..., Tree]) -> Program:
        name = function.__name__
        PROGRAMS[name] = Program(name, axes, function, arguments, out, tolerance=tolerance)
        return PROGRAMS[name]

    return enter


@program(
    GRID,
    Argument((8, 32, 64), P("x", None, None)),
    Argument((64, 128), P(None, "y"), 0.1),
    Argument((128, 64), P("y", None), 0.1),
)
def checkpointed_with_dropout(x: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    @jax.checkpoint
    def block(x: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(jax.random.key(3), 0.8, x.shape)
        return x + jnp.where(kept, jnp.tanh(x @ into) @ out_of, 0)

    def loss(*weights: jax.Array) -> jax.Array:
        return jnp.mean(block(block(x, *weights), *weights) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(into, out_of)


@program(GRID, Argument((8, 64, 32), P("x", "y", None)), Argument((32,), P(), 0.1, centre=1.0))
def associative_scan_gradient(x: jax.Array, rate: jax.Array) -> Tree:
    def combine(left: Tree, right: Tree) -> Tree:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def loss(rate: jax.Array) -> jax.Array:
        _, states = jax.lax.associative_scan(combine, (jax.nn.sigmoid(x * rate), x), axis=1)
        return jnp.mean(states**2)

    return jax.value_and_grad(loss)(rate)


@program(LINE, Argument((64, 32), ROWS), Argument((32, 32), P(), 0.1))
def loop_until_small(x: jax.Array, weight: jax.Array) -> Tree:
    def goes_on(state: Tree) -> jax.Array:
        return (state[1] < 30) & (jnp.max(jnp.abs(state[0])) > 0.05)

    return jax.lax.while_loop(goes_on, lambda state: (jnp.tanh(state[0] @ weight), state[1] + 1), (x, 0))


@program(LINE, Argument((64, 32), ROWS), Argument((64,), P("x"), below=4))
def branches_in_a_scan(x: jax.Array, which: jax.Array) -> Tree:
    def step(state: jax.Array, row_and_branch: Tree) -> Tree:
        row, branch = row_and_branch
        branches = [lambda s: s + row, lambda s: s * 0.9, lambda s: jnp.roll(s, 1) - row, lambda s: s * row]
        return jax.lax.switch(branch, branches, state), state.sum()

    return jax.lax.scan(step, jnp.ones(32), (x, which))


@program(LINE, Argument((64, 16, 16), P("x", None, None)), Argument((64, 16, 4), P("x", None, None)), out=P("x"), tolerance=1e-3)
def batched_solve(a: jax.Array, b: jax.Array) -> Tree:
    positive = a @ jnp.swapaxes(a, -1, -2) + 16 * jnp.eye(16)
    return jnp.linalg.solve(positive, b), jnp.linalg.cholesky(positive)


@program(LINE, Argument((32, 256), COLUMNS), Argument((32,), P()), out=COLUMNS)
def convolution_by_fourier(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.fft.irfft(jnp.fft.rfft(x, 512) * jnp.fft.rfft(kernel, 512), 512)[:, :256]


@program(GRID, Argument((64, 128), P("x", "y"), below=127), Argument((128, 64), P("y", None), below=127), out=ROWS)
def quantised_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a.astype(jnp.int8), b.astype(jnp.int8), preferred_element_type=jnp.int32)


@program(GRID, Argument((32, 32, 16), P("x", "y", None)), Argument((16, 8), P(), 0.3), Argument((16, 8), P(), 0.3))
def triangle_update(pairs: jax.Array, gate: jax.Array, value: jax.Array) -> Tree:
    def loss(gate: jax.Array, value: jax.Array) -> jax.Array:
        left, right = jax.nn.sigmoid(pairs @ gate), pairs @ value
        return jnp.mean((jnp.einsum("ikc,jkc->ijc", left, right) + jnp.einsum("kic,kjc->ijc", left, right)) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(gate, value)


@program(LINE, Argument((64, 16), ROWS), Argument((64,), P("x"), below=10))
def segments(x: jax.Array, ids: jax.Array) -> Tree:
    reduced = [reduce(x, ids, 12) for reduce in (jax.ops.segment_max, jax.ops.segment_min, jax.ops.segment_prod)]
    return reduced, jnp.bincount(ids, length=10)


@program(
    GRID,
    Argument((8, 64, 32), P("x", "y", None)),
    Argument((), P(), below=50),
    Argument((8, 1, 32), P("x", None, None)),
    out=(P("x", "y", None), P("x")),
)
def slices_at_run_time(cache: jax.Array, place: jax.Array, new: jax.Array) -> Tree:
    cache = jax.lax.dynamic_update_slice(cache, new, (0, place, 0))
    return cache, jax.lax.dynamic_slice(cache, (0, place, 0), (8, 16, 32))


@program(LINE, Argument((16, 128), COLUMNS), out=COLUMNS)
def running_reductions(x: jax.Array) -> Tree:
    lax = jax.lax
    return lax.cumprod(jnp.cos(x), 1), lax.cummax(x, 1), lax.cumlogsumexp(x, 1), lax.cummin(x, 1, reverse=True), jnp.cumsum(x, 0)


@program(LINE, Argument((16, 128), COLUMNS), Argument((16, 128), COLUMNS), out=COLUMNS)
def sorts(x: jax.Array, y: jax.Array) -> Tree:
    return jax.lax.sort((x, y), dimension=1, num_keys=1), jnp.argsort(x, axis=1), jnp.sort(x, axis=0)


@program(LINE, Argument((128,), P("x")), Argument((64,), P("x")))
def searches(x: jax.Array, wanted: jax.Array) -> Tree:
    return jnp.searchsorted(jnp.sort(x), wanted), jnp.median(x), jnp.quantile(x, 0.3), jnp.histogram(x, 16)[0]


@program(LINE, Argument((64, 32), ROWS), out=P("x"))
def bits(x: jax.Array) -> Tree:
    word = jax.lax.bitcast_convert_type(x, jnp.uint32)
    narrow = jax.lax.bitcast_convert_type(x, jnp.uint8)
    return word ^ (word >> 3), jax.lax.population_count(word), jax.lax.reduce_precision(x, 5, 10), narrow


@program(GRID, IMAGES, Argument((3, 3, 1, 8), P(), 0.3), Argument((3, 3, 8, 8), P(), 0.1), Argument((3, 3, 8, 8), P(), 0.1))
def down_and_up(x: jax.Array, depthwise: jax.Array, down: jax.Array, up: jax.Array) -> Tree:
    def loss(depthwise: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
        convolve = jax.lax.conv_general_dilated
        full = convolve(x, depthwise, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=8)
        half = jax.nn.relu(convolve(full, down, (2, 2), "SAME", dimension_numbers=NHWC))
        half = convolve(half, down, (1, 1), "SAME", dimension_numbers=NHWC, rhs_dilation=(2, 2))
        again = jax.lax.conv_transpose(half, up, (2, 2), "SAME", dimension_numbers=NHWC)
        return jnp.mean(jnp.concatenate([again, full], -1) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(depthwise, down, up)


@program(GRID, IMAGES, out=P("x"))
def pooling_gradient(x: jax.Array) -> Tree:
    def loss(x: jax.Array) -> jax.Array:
        largest = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        mean = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(largest**2) + jnp.sum(mean**3)

    return jax.grad(loss)(x), jax.image.resize(x, (4, 64, 64, 8), "bilinear")


@program(GRID, Argument((64, 32), P("x", "y")), Argument((16,), P(), below=64), Argument((64, 8), ROWS, below=32))
def lookups(x: jax.Array, i: jax.Array, j: jax.Array) -> Tree:
    read = x[i], x[i][:, i % 32], jnp.take(x, i, axis=1, mode="clip"), jnp.take(x, i * 3, axis=0, mode="fill")
    written = x.at[i].add(1.0), x.at[i, i % 32].set(3.0), x.at[:, i % 32].max(0.0)
    return read, written, jnp.take_along_axis(x, j, 1)


@program(LINE, Argument((64, 64), ROWS), Argument((64, 64), COLUMNS))
def complex_numbers(a: jax.Array, b: jax.Array) -> Tree:
    z = (a + 1j * b) * np.exp(1j * np.arange(64)).astype(np.complex64)
    return jnp.sum(z), jnp.prod(z[:8] / 4, 0), jnp.linalg.norm(z), jnp.einsum("ij,jk->ik", z, z), jnp.where(a > 0, z, 2 - 1j)


@program(LINE, Argument((64, 64), ROWS))
def statistics(x: jax.Array) -> Tree:
    places = jnp.argmax(x), jnp.argmin(x, 0), jnp.any(x > 3), jnp.all(x > -9, 1), jnp.count_nonzero(x > 0)
    moments = jnp.var(x), jnp.std(x, 0), jnp.prod(jnp.cos(x), 0), jax.nn.logsumexp(x), jnp.cov(x[:8])
    return places, moments, jnp.trace(x), jnp.diag(x), jnp.triu(x), jnp.median(x, axis=0)


@program(LINE, Argument((16, 64), COLUMNS))
def largest_and_smallest(x: jax.Array) -> Tree:
    """Ties, infinities and NaN among them: the first NaN wins, equal elements give the smallest index."""
    strange = x.at[2, 5].set(jnp.nan).at[2, 40].set(jnp.nan).at[3].set(-jnp.inf).at[4].set(jnp.inf)
    tied = jnp.round(x)
    kinds = strange, tied, tied.astype(jnp.int32), (jnp.abs(x) * 3).astype(jnp.uint8), tied > 0
    return [find(values, axis=axis) for find in (jnp.argmax, jnp.argmin) for values in kinds for axis in (0, 1, None)]


@program(GRID, Argument((24, 36), P("x", "y")))
def reshapes(x: jax.Array) -> Tree:
    return x.reshape(-1), x.reshape(12, 72), x.reshape(2, 12, 4, 9), x.reshape(6, 4, 36).transpose(2, 0, 1), x.T.reshape(18, 48)


@program(
    GRID,
    Argument((8, 64, 32), P("x", None, None)),
    Argument((32, 64), P(None, "y"), 0.2),
    Argument((64, 32), P("y", None), 0.2),
    out=P("x"),
)
def partly_manual(x: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
    """Manual along x only: inside, values differ along x, and partial sums are over y."""

    def add_total(mine: jax.Array) -> jax.Array:
        return jax.lax.psum(jnp.sum(mine, 0), "x")[None] + mine

    manual = jax.shard_map(add_total, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False)
    return jnp.tanh(manual(x @ into @ out_of))


@program(GRID, *[Argument((8, 64, 4, 16), P("x", "y", None, None))] * 3, out=P("x", "y", None, None))
def windowed_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    place = jnp.arange(64)
    near = (place[:, None] - place < 9) & (place[:, None] >= place)
    scores = jnp.where(near, jnp.einsum("bqhd,bkhd->bhqk", query, key) / 4, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


@program(
    LINE, Argument((8, 64, 32), P(None, "x", None)), Argument((32, 8), P(), 0.3), Argument((8, 32, 32), P("x", None, None), 0.1)
)
def experts_by_sorting(x: jax.Array, router: jax.Array, experts: jax.Array) -> jax.Array:
    tokens = x.reshape(-1, 32)
    gates = jax.nn.softmax(tokens @ router)
    chosen = jnp.argmax(gates, -1)
    order = jnp.argsort(chosen)
    mixed = jnp.einsum("td,edf,te->tf", tokens[order], experts, jax.nn.one_hot(chosen[order], 8))
    return (jnp.zeros_like(tokens).at[order].set(mixed) * gates.max(-1, keepdims=True)).reshape(x.shape)


@program(LINE, Argument((8, 64), ROWS), Argument((64, 512), P(), 0.2))
def beam_search(hidden: jax.Array, output: jax.Array) -> Tree:
    def step(state: Tree, _: None) -> Tree:
        hidden, score = state
        likely, index = jax.lax.top_k((jax.nn.log_softmax(hidden @ output) + score[:, None]).reshape(-1), 8)
        return (hidden[index // 512] * 0.9 + 0.1, likely), index

    return jax.lax.scan(step, (hidden, jnp.zeros(8)), None, length=5)


@program(GRID, Argument((32, 64), P("x", "y")), Argument((64, 32), P("y", "x"), 0.1), out=(P(), P("x", "y"), P("y", "x")))
def second_derivatives(x: jax.Array, weight: jax.Array) -> Tree:
    def value(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ weight) ** 2)

    penalty = jax.grad(lambda x: jnp.sum(jax.grad(value)(x, weight) ** 2))(x)
    return value(x, weight), penalty, jax.jvp(lambda w: jax.grad(value, 1)(x, w), (weight,), (jnp.ones_like(weight),))[1]
