"""Loops over split arrays: a five-point stencil, power iteration, and k-means."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

STEPS = 10
GRID_AXES = (("x", 2), ("y", 4))
SIDE = 512
POINTS, CENTRES, FEATURES = 8192, 64, 32


def stencil() -> Program:
    """Jacobi steps on a periodic grid that is split both ways."""
    grid = Argument((SIDE, SIDE), P("x", "y"))
    plan = (
        Term("collective-permute", 2, SIDE // 4 * 4, 2 * STEPS, "a row from above and from below"),
        Term("collective-permute", 4, SIDE // 2 * 4, 2 * STEPS, "a column from either side"),
    )
    return Program("loop_stencil", GRID_AXES, _stencil, (grid,), grid.spec, plan)


def power_iteration() -> Program:
    """The largest eigenvector of a matrix that is split both ways; the vector is split along the columns."""
    matrix, vector = Argument((SIDE, SIDE), P("x", "y"), SIDE**-0.5), Argument((SIDE,), P("y"))
    plan = (
        Term("reduce-scatter", 4, SIDE // 2 * 4, STEPS, "the product, partial over y, to eighths"),
        Term("all-gather", 2, SIDE // 4 * 4, STEPS, "eighths to quarters over x"),
        Term("collective-permute", 8, SIDE // 8 * 4 * 6 / 8, STEPS, "eighths from order x, y to y, x: two of eight stay"),
        Term("all-reduce", 4, 4, STEPS, "the norm"),
    )
    return Program("loop_power", GRID_AXES, _power_iteration, (matrix, vector), vector.spec, plan)


def kmeans() -> Program:
    """Lloyd's steps: points split, centres whole."""
    points = Argument((POINTS, FEATURES), P("d", None))
    # Far apart, so that no point is equally near to two.
    centres = Argument((CENTRES, FEATURES), P(), 2.0)
    sums = CENTRES * (FEATURES + 1) * 4
    plan = (Term("all-reduce", 8, sums, STEPS, "per centre, the sum of its points and their number"),)
    return Program("loop_kmeans", (("d", 8),), _kmeans, (points, centres), P(), plan)


def _stencil(grid: jax.Array) -> jax.Array:
    def step(_: int, x: jax.Array) -> jax.Array:
        return 0.25 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1))

    return jax.lax.fori_loop(0, STEPS, step, grid)


def _power_iteration(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    def step(_: int, v: jax.Array) -> jax.Array:
        product = matrix @ v
        return product * jax.lax.rsqrt(jnp.sum(product * product))

    return jax.lax.fori_loop(0, STEPS, step, vector)


def _kmeans(points: jax.Array, centres: jax.Array) -> jax.Array:
    def step(_: int, c: jax.Array) -> jax.Array:
        nearest = jnp.argmin(jnp.sum(c * c, axis=-1) - 2 * points @ c.T, axis=-1)
        member = jax.nn.one_hot(nearest, CENTRES)
        count = jnp.sum(member, axis=0)[:, None]
        return jnp.where(count > 0, member.T @ points / jnp.maximum(count, 1), c)

    return jax.lax.fori_loop(0, STEPS, step, centres)
