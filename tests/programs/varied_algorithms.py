"""Algorithms of scientific computing, small: linear algebra, transforms, particles, graphs, sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Tree
from tests.programs.varied_programs import COLUMNS, GRID, LINE, ROWS, WHOLE, program


@program(LINE, Argument((32, 4), ROWS), Argument((32,), P("x")), tolerance=2e-3)
def gaussian_process(points: jax.Array, values: jax.Array) -> Tree:
    """The log likelihood by Cholesky, its gradient in the kernel's scale and noise, and a prediction."""

    def kernel(left: jax.Array, right: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.exp(-jnp.sum((left[:, None] - right) ** 2, -1) / scale**2)

    def loss(scale: jax.Array, noise: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(kernel(points, points, scale) + noise * jnp.eye(32))
        white = jax.scipy.linalg.solve_triangular(factor, values, lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))

    weights = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(kernel(points, points, 1.0) + jnp.eye(32)), values)
    return jax.value_and_grad(loss, (0, 1))(jnp.float32(1.5), jnp.float32(0.5)), kernel(points[:8], points, 1.0) @ weights


@program(GRID, Argument((32, 64), P("x", "y")), out=P("x", "y"))
def poisson(charge: jax.Array) -> jax.Array:
    """A potential by 2-D Fourier transforms of a grid that is split both ways."""
    rows, columns = jnp.fft.fftfreq(32)[:, None], jnp.fft.rfftfreq(64)
    symbol = 4 - 2 * jnp.cos(2 * jnp.pi * rows) - 2 * jnp.cos(2 * jnp.pi * columns)
    spectrum = jnp.fft.rfft2(charge - charge.mean())
    return jnp.fft.irfft2(jnp.where(symbol > 1e-6, spectrum / jnp.maximum(symbol, 1e-6), 0), (32, 64))


@program(GRID, Argument((32, 64), P("x", "y")), tolerance=1e-3)
def conjugate_gradients(right: jax.Array) -> Tree:
    """A five-point operator with walls, solved until the residual is small: halos, dot products, a while loop."""

    def apply(x: jax.Array) -> jax.Array:
        around = jnp.pad(x, 1)
        return 4.1 * x - around[2:, 1:-1] - around[:-2, 1:-1] - around[1:-1, 2:] - around[1:-1, :-2]

    def step(state: Tree) -> Tree:
        x, r, p, size, count = state
        moved = apply(p)
        length = size / jnp.sum(p * moved)
        r = r - length * moved
        after = jnp.sum(r**2)
        return x + length * p, r, r + after / size * p, after, count + 1

    start = (jnp.zeros_like(right), right, right, jnp.sum(right**2), 0)
    return jax.lax.while_loop(lambda s: (s[3] > 1e-3) & (s[4] < 20), step, start)[0]


@program(LINE, Argument((64, 3), ROWS), Argument((64, 3), ROWS, 0.1), out=(ROWS, ROWS))
def gravity(places: jax.Array, speeds: jax.Array) -> Tree:
    """N bodies, all pairs, by leapfrog: forces are the gradient of the potential."""

    def potential(places: jax.Array) -> jax.Array:
        apart = jnp.sum((places[:, None] - places) ** 2, -1) + 0.1
        return -0.5 * jnp.sum(jnp.where(jnp.eye(64, dtype=bool), 0, jax.lax.rsqrt(apart)))

    def step(_: jax.Array, state: Tree) -> Tree:
        places, speeds = state
        places = places + 0.01 * speeds
        return places, speeds - 0.01 * jax.grad(potential)(places)

    return jax.lax.fori_loop(0, 3, step, (places, speeds))


@program(LINE, Argument((64, 3), ROWS), Argument((64, 6), ROWS, below=64), out=ROWS)
def neighbour_forces(places: jax.Array, neighbours: jax.Array) -> jax.Array:
    """Particles that gather their neighbours' places; pair forces scattered back to both."""

    def energy(places: jax.Array) -> jax.Array:
        apart = jnp.sum((places[:, None] - places[neighbours]) ** 2, -1) + 0.5
        return jnp.sum(1 / apart**6 - 1 / apart**3)

    return places - 0.01 * jnp.clip(jax.grad(energy)(places), -1, 1)


@program(
    LINE,
    Argument((64, 8), ROWS),
    Argument((256,), P("x"), below=64),
    Argument((256,), P("x"), below=64),
    Argument((8, 8), P(), 0.3),
)
def message_passing(nodes: jax.Array, sources: jax.Array, targets: jax.Array, weight: jax.Array) -> Tree:
    """A graph layer: gathered messages, softmax over each node's edges by segment maxima and sums, gradients; PageRank."""

    def loss(weight: jax.Array) -> jax.Array:
        messages = jnp.tanh(nodes[sources] @ weight)
        scores = jnp.sum(messages * nodes[targets], -1)
        largest = jax.lax.stop_gradient(jax.ops.segment_max(scores, targets, 64))
        shares = jnp.exp(scores - largest[targets])
        shares = shares / jax.ops.segment_sum(shares, targets, 64)[targets]
        return jnp.mean(jax.ops.segment_sum(messages * shares[:, None], targets, 64) ** 2)

    degree = jnp.maximum(jax.ops.segment_sum(jnp.ones(256), sources, 64), 1)

    def rank(_: jax.Array, scores: jax.Array) -> jax.Array:
        return 0.15 / 64 + 0.85 * jax.ops.segment_sum((scores / degree)[sources], targets, 64)

    return jax.value_and_grad(loss)(weight), jax.lax.fori_loop(0, 5, rank, jnp.full(64, 1 / 64))


@program(LINE, Argument((256, 4), ROWS), Argument((8, 4), P()))
def clusters(points: jax.Array, centres: jax.Array) -> Tree:
    """k-means to a fixed point, with the empty clusters kept where they are."""

    def step(state: Tree) -> Tree:
        centres, _, count = state
        nearest = jnp.argmin(jnp.sum((points[:, None] - centres) ** 2, -1), 1)
        sizes = jnp.bincount(nearest, length=8)
        moved = jax.ops.segment_sum(points, nearest, 8) / jnp.maximum(sizes, 1)[:, None]
        moved = jnp.where((sizes > 0)[:, None], moved, centres)
        return moved, jnp.max(jnp.abs(moved - centres)), count + 1

    return jax.lax.while_loop(lambda s: (s[1] > 1e-3) & (s[2] < 6), step, (centres, jnp.float32(1), 0))[0]


@program(LINE, Argument((8, 10, 3), P("x", None, None)), Argument((4, 4), P(), 0.2), tolerance=1e-3)
def kalman_filter(observed: jax.Array, dynamics: jax.Array) -> Tree:
    """Batched filters under scan, each step with small solves, and the likelihood's gradient in the dynamics."""
    look = jnp.eye(3, 4)

    def loss(dynamics: jax.Array) -> jax.Array:
        move = jnp.eye(4) * 0.9 + dynamics * 0.1

        def step(state: Tree, seen: jax.Array) -> Tree:
            mean, cover = state
            mean, cover = mean @ move.T, move @ cover @ move.T + 0.1 * jnp.eye(4)
            surprise = seen - mean @ look.T
            spread = look @ cover @ look.T + 0.5 * jnp.eye(3)
            gain = jnp.swapaxes(jnp.linalg.solve(spread, look @ cover), -1, -2)
            likely = jnp.einsum("bi,bi->b", surprise, jnp.linalg.solve(spread, surprise[..., None])[..., 0])
            mean = mean + jnp.einsum("bij,bj->bi", gain, surprise)
            return (mean, cover - gain @ look @ cover), likely + jnp.linalg.slogdet(spread)[1]

        start = (jnp.zeros((8, 4)), jnp.tile(jnp.eye(4), (8, 1, 1)))
        return jnp.mean(jax.lax.scan(step, start, jnp.swapaxes(observed, 0, 1))[1])

    return jax.value_and_grad(loss)(dynamics)


@program(LINE, Argument((8, 12, 4), P("x", None, None)), Argument((64, 6), ROWS), tolerance=2e-3)
def decompositions(batch: jax.Array, tall: jax.Array) -> Tree:
    """SVD, QR and eigh in forms that do not depend on signs; least squares; whitening; a batched and a split matrix."""
    left, sizes, right = jnp.linalg.svd(batch, full_matrices=False)
    rebuilt = jnp.einsum("bij,bj,bjk->bik", left, sizes, right)
    q, r = jnp.linalg.qr(tall)
    values, vectors = jnp.linalg.eigh(tall.T @ tall / 64)
    white = tall @ (vectors * jax.lax.rsqrt(values)) @ vectors.T
    solved = jnp.linalg.lstsq(tall, tall[:, :2] * 2)[0]
    return (
        rebuilt,
        sizes,
        q @ r,
        jnp.abs(r),
        values,
        white.T @ white,
        solved,
        jnp.linalg.pinv(batch),
        jnp.linalg.det(tall.T @ tall),
    )


@program(LINE, Argument((16, 16), ROWS), Argument((16, 4), ROWS), tolerance=2e-3)
def solve_and_its_gradient(a: jax.Array, b: jax.Array) -> Tree:
    def value(a: jax.Array, b: jax.Array) -> jax.Array:
        positive = a @ a.T + 16 * jnp.eye(16)
        return jnp.sum(jnp.linalg.solve(positive, b) ** 2) + jnp.linalg.slogdet(positive)[1] + jnp.trace(jnp.linalg.inv(positive))

    return jax.value_and_grad(value, (0, 1))(a, b)


@program(LINE, Argument((96,), P("x"), below=20), Argument((96,), P("x")))
def distinct_values(ids: jax.Array, weights: jax.Array) -> Tree:
    """What group-by is made of: unique with counts and inverse, sums by group, run lengths, ranks."""
    values, inverse, counts = jnp.unique(ids, size=24, fill_value=-1, return_inverse=True, return_counts=True)
    order = jnp.lexsort((weights, ids))
    starts = jnp.concatenate([jnp.ones(1, bool), jnp.diff(ids[order]) != 0])
    return (
        values,
        counts,
        jax.ops.segment_sum(weights, inverse, 24),
        jnp.cumsum(starts),
        jnp.argsort(order),
        jnp.nonzero(starts, size=20),
    )


@program(LINE, Argument((64, 8), ROWS), Argument((8, 64), COLUMNS))
def random_numbers(x: jax.Array, y: jax.Array) -> Tree:
    """Keys split, folded and mapped over inside the step: the same numbers as on one device."""
    first, second, third = jax.random.split(jax.random.key(5), 3)
    keys = jax.random.split(first, 64)
    rows = jax.vmap(lambda key, row: row + jax.random.normal(key, row.shape))(keys, x)
    kept = jax.random.bernoulli(second, 0.7, y.shape)
    chosen = jax.random.categorical(third, x, axis=-1)
    return rows, jnp.where(kept, y / 0.7, 0), chosen, jax.random.permutation(first, x), jax.random.gumbel(second, (64, 8)) + x


@program(
    GRID,
    Argument((8, 4, 6), P("x", "y", None)),
    Argument((6, 8), P(None, "y")),
    Argument((4, 8), P("y", None)),
    Argument((8, 8), P("x", "y")),
)
def einsum_zoo(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Tree:
    strings = {
        "ijk,kl->ijl": (a, b),
        "ijk,kl,jl->il": (a, b, c),
        "ijk,jl->ikl": (a, c),
        "ijk,ijk->j": (a, a),
        "il,ml->im": (d, d),
        "ijk,imk->ijm": (a, a),
        "jl,jl->": (c, c),
        "il,jl->lij": (d, c),
        "ijk->kij": (a,),
        "ii->i": (d,),
        "ii": (d,),
    }
    return (
        [jnp.einsum(string, *operands) for string, operands in strings.items()],
        jnp.tensordot(a, b, 1),
        jnp.kron(c, c),
        jnp.outer(c, c),
    )


@program(LINE, Argument((64,), P("x")), Argument((8,), P()), Argument((16, 64), COLUMNS), Argument((16, 64), COLUMNS))
def signals(x: jax.Array, taps: jax.Array, y: jax.Array, z: jax.Array) -> Tree:
    """Filters, correlations, differences, interpolation, moving windows, all along a split axis."""
    filtered = jnp.convolve(x, taps, "same"), jnp.correlate(x, taps, "full"), jnp.diff(x, n=2), jnp.gradient(y, axis=1)
    windows = jnp.stack([y[:, i : i + 57] for i in range(8)], -1).mean(-1)
    rolled = jnp.roll(y, 3, 1), jnp.roll(y, -5, 1) - z, jnp.flip(z, 1), jnp.trapezoid(y, dx=0.1), jnp.cumsum(z[:, ::-1], 1)
    return filtered, windows, rolled, jnp.interp(x, jnp.linspace(-2, 2, 8), taps), jnp.polyval(taps, x), jnp.vander(taps, 4)


@program(LINE, Argument((8, 20), ROWS, below=5), Argument((8, 20), ROWS, below=5))
def edit_distance(left: jax.Array, right: jax.Array) -> jax.Array:
    """Levenshtein distances of pairs by rows of dynamic programming; the inner minimum is a running one."""

    def one(left: jax.Array, right: jax.Array) -> jax.Array:
        def row(before: jax.Array, letter: jax.Array) -> tuple[jax.Array, None]:
            base = jnp.minimum(before[1:] + 1, before[:-1] + (right != letter))
            joined = jnp.concatenate([before[:1] + 1, base]) - jnp.arange(21)
            return jax.lax.cummin(joined) + jnp.arange(21), None

        return jax.lax.scan(row, jnp.arange(21), left)[0][-1]

    return jax.vmap(one)(left, right)


@program(GRID, Argument((16, 32), P("x", "y")), out=P("x", "y"))
def game_of_life(cells: jax.Array) -> jax.Array:
    """A periodic automaton on a grid split both ways: sums of rolled neighbours, integer rules."""

    def step(_: jax.Array, alive: jax.Array) -> jax.Array:
        around = sum(jnp.roll(alive, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
        return ((around == 3) | ((alive == 1) & (around == 2))).astype(jnp.int32)

    return jax.lax.fori_loop(0, 4, step, (cells > 0).astype(jnp.int32))


@program(LINE, Argument((32, 16), ROWS), Argument((16,), P(), 0.3), out=(P(), WHOLE))
def newton_steps(x: jax.Array, weight: jax.Array) -> Tree:
    """Logistic regression by Newton's method: Hessians by forward over reverse, a solve in every step of a scan."""
    labels = (x[:, 0] > 0).astype(jnp.float32)

    def loss(weight: jax.Array) -> jax.Array:
        score = x @ weight
        return jnp.mean(jax.nn.softplus(score) - labels * score) + 0.1 * jnp.sum(weight**2)

    def step(weight: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return weight - jnp.linalg.solve(jax.hessian(loss)(weight), jax.grad(loss)(weight)), loss(weight)

    return jax.lax.scan(step, weight, None, length=3)
