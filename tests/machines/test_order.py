"""An order of devices as digits of their numbers."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from meshbridge.machines.order import GridDigit, blocks, coordinates

RING = (
    [(x, 0) for x in range(4)]
    + [(x, y) for y, xs in enumerate([(3, 2, 1), (1, 2, 3), (3, 2, 1, 0)], 1) for x in xs]
    + [(0, 2), (0, 1)]
)
"""How `jax.make_mesh` goes through 4 by 4 chips of a v5e."""
HOSTS = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
"""How XLA lists the devices of hosts of 2 by 2 chips."""


def grid(*sizes: int) -> np.ndarray:
    return np.stack(np.unravel_index(np.arange(prod(sizes)), sizes), axis=1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (grid(4, 4), [[(0, 4, 1)], [(1, 4, 1)]]),
        (grid(4, 4)[:, ::-1], [[(1, 4, 1)], [(0, 4, 1)]]),
        (grid(2, 3, 4), [[(0, 2, 1)], [(1, 3, 1)], [(2, 4, 1)]]),
        (np.array(RING), [[(0, 4, 1), (1, 4, 1)]]),
        (grid(4, 4)[::-1], [[(0, 4, 1)], [(1, 4, 1)]]),
        (grid(4, 4)[HOSTS], [[(0, 2, 2)], [(1, 2, 2)], [(0, 2, 1)], [(1, 2, 1)]]),
        (grid(4, 4)[::2], [[(0, 4, 1)], [(1, 2, 2)]]),
        (grid(1, 8)[[0, 4, 1, 5, 2, 6, 3, 7]], [[(1, 4, 1)], [(1, 2, 4)]]),
        (grid(8, 8)[:16], [[(0, 2, 1)], [(1, 8, 1)]]),
        (grid(2, 2, 2)[[0, 1, 2, 3, 5, 7, 6, 4]], [[(0, 2, 1)], [(1, 2, 1), (2, 2, 1)]]),
        (grid(1, 1), []),
        (grid(4, 4)[[0, 1, 4]], None),
        (grid(4, 1)[[0, 1, 3]], None),
        (grid(4, 4)[[0, 1, 4, 6]], None),
    ],
)
def test_blocks(rows: np.ndarray, expected: list[list[tuple[int, int, int]]] | None) -> None:
    found = blocks(rows)
    assert (found if found is None else [[tuple(digit) for digit in block] for block in found]) == expected


def test_what_counts_along_digits_is_found_again() -> None:
    """Factors of three dimensions in any order, and any beginning."""
    chosen = random.Random(0)
    for _ in range(200):
        sizes = [[chosen.choice([2, 3, 4]) for _ in range(chosen.randint(0, 2))] for _ in range(3)]
        made = [
            GridDigit(dimension, size, prod(factors[:number]))
            for dimension, factors in enumerate(sizes)
            for number, size in enumerate(factors)
        ]
        chosen.shuffle(made)
        rows = coordinates(made, 3)
        found = blocks(rows + chosen.randint(0, 5))
        assert found is not None
        np.testing.assert_array_equal(coordinates([digit for (digit,) in found], 3), rows)
        assert len(found) <= len(made)
