"""Random inputs of programs: elements, integers and booleans; small numbers; lines of zeros; infinities and NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.extended import OMEGA
from meshbridge.verification.field import Array, Field, word
from meshbridge.verification.machine import dtype_of, is_complex, is_float, width_of

SMALL = 8
"""Most random integers are below it: integers are mostly used as indices, which must exist."""

LARGE = 1024
"""A quarter of random integers reach up to it: indices reach all shards, and some are outside."""


def draw_small(field: Field, name: str, shape: Sequence[int]) -> Array:
    """Random 16ths between 0 and 2: sums of a few of their products are small and positive, too."""
    words = field.hash_words(name, np.arange(int(np.prod(shape, dtype=np.int64)))).reshape(tuple(shape))
    sixteenths = (1 + words % np.uint64(31)).astype(np.int64)
    return field.multiply(field.from_integers(sixteenths), field.from_floats(np.array(1 / 16)))


def draw(field: Field, name: str, shape: Sequence[int], element: ir.Type, below: int = 0) -> Array:
    """A random value: field elements, integers below SMALL or LARGE, booleans.

    With `below`, integers are in the upper half of the range below it.
    """
    if is_float(element) or is_complex(element):
        return field.random(name, shape, "c" if is_complex(element) else "f")
    words = field.hash_words(name, np.arange(int(np.prod(shape, dtype=np.int64)))).reshape(tuple(shape))
    dtype = dtype_of(element)
    if dtype == np.bool_:
        return np.asarray((words >> np.uint64(40)) % np.uint64(2) == 1)
    if below:
        return np.minimum(
            below - 1 - (words % np.uint64(-(-below // 2))).astype(np.int64), (1 << (width_of(element) - 1)) - 1
        ).astype(dtype)
    far = np.uint64(min(LARGE, (1 << (width_of(element) - 1)) - 1))
    chosen = np.where(words >> np.uint64(62) == 0, words % far, words % np.minimum(far, np.uint64(SMALL)))
    return chosen.astype(dtype)


LINES = 4
"""One line in that many, at least one, is zero or false in a value drawn by lines."""

FLOAT_LINES = 16
"""The same for floating-point values, in which zeros make products vanish."""


def draw_by_lines(field: Field, name: str, shape: Sequence[int], element: ir.Type) -> Array:
    """A random value with some lines of zeros: all elements along one dimension, for one choice of the other dimensions.

    Booleans have all-false lines along every dimension, and all-true lines along the last: rows of a mask that select no element,
    some or all. Other values have lines of zeros along the last dimension, vectors single zeros.
    """
    value = draw(field, name, shape, element)
    if not shape or not value.size:
        return value
    if dtype_of(element) != np.bool_:
        along = len(shape) - 1 if value.size // shape[-1] >= LINES else None
        return np.where(_lines(field, f"{name} zeros", shape, along, FLOAT_LINES), 0, value).astype(value.dtype)
    value = value | _lines(field, f"{name} true", shape, len(shape) - 1, LINES)
    for dim in range(len(shape)):
        value = value & ~_lines(field, f"{name} false along {dim}", shape, dim, LINES)
    return value


def _lines(field: Field, name: str, shape: Sequence[int], along: int | None, one_in: int) -> Array:
    """Which lines along a dimension are chosen, in a shape that broadcasts; single elements for None."""
    line_shape = tuple(1 if dim == along else size for dim, size in enumerate(shape))
    count = int(np.prod(line_shape, dtype=np.int64))
    chosen = field.hash_words(name, np.arange(count)) % np.uint64(one_in) == 0
    chosen[word(field.key, name) % count] = True
    return np.asarray(chosen).reshape(line_shape)


def draw_zeros(shape: Sequence[int], element: ir.Type) -> Array:
    """Zeros: masks that are all false, positions and lengths of 0."""
    return np.zeros(tuple(shape), dtype_of(element))


def with_infinities(field: Field, name: str, value: Array) -> Array:
    """The value with a positive infinity, a negative one and a NaN in random places."""
    result = value.reshape(-1).copy()
    for kind, special in (("infinite", OMEGA), ("negative", -OMEGA), ("nan", np.nan)):
        result[word(field.key, f"{name} {kind}") % len(result)] = special
    return result.reshape(value.shape)
