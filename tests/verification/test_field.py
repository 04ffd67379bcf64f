"""The field that the evaluator computes in: its laws, its order, its constants, its roots of unity."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.verification.contractions import _forward, root_of_unity
from meshbridge.verification.field import BOUND, CHUNK, PRIMES, SMOOTH, Field

FIELD = Field(PRIMES[0], 5)
ELEMENTS = st.integers(-FIELD.half, FIELD.half).map(lambda number: np.array([float(number)]))
FLOATS = st.floats(width=64, allow_nan=False, allow_infinity=False)


def element(fraction: Fraction) -> float:
    return FIELD.integer(fraction.numerator * pow(fraction.denominator, -1, FIELD.prime))


@pytest.mark.parametrize("prime", PRIMES)
def test_primes_are_what_the_field_needs(prime: int) -> None:
    assert prime < BOUND
    assert prime % 4 == 3
    assert (prime + 1) % SMOOTH == 0
    assert all(prime % divisor for divisor in range(2, 2048))


@given(ELEMENTS, ELEMENTS, ELEMENTS)
def test_ring(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    f = FIELD
    assert f.add(f.add(x, y), z) == f.add(x, f.add(y, z))
    assert f.multiply(f.multiply(x, y), z) == f.multiply(x, f.multiply(y, z))
    assert f.multiply(x, f.add(y, z)) == f.add(f.multiply(x, y), f.multiply(x, z))
    assert f.subtract(x, x) == 0
    assert int(f.multiply(x, y)[0]) % f.prime == int(x[0]) * int(y[0]) % f.prime
    assert abs(f.multiply(x, y)[0]) <= f.half


@given(ELEMENTS, ELEMENTS, ELEMENTS)
def test_division_without_exceptions(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    f = FIELD
    assert f.divide(f.add(x, y), z) == f.add(f.divide(x, z), f.divide(y, z))
    assert f.inverse(f.multiply(x, y)) == f.multiply(f.inverse(x), f.inverse(y))
    assert f.multiply(x, f.inverse(x)) == (x != 0)


@given(ELEMENTS, ELEMENTS, ELEMENTS)
def test_order(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    f = FIELD
    assert f.maximum(f.maximum(x, y), z) == f.maximum(x, f.maximum(y, z))
    assert f.maximum(x, y) == f.maximum(y, x)
    assert f.maximum(x, y) == -f.minimum(-x, -y)
    assert f.maximum(x, np.array([-f.infinity])) == x
    assert f.minimum(x, np.array([f.infinity])) == x
    assert f.at_place(f.order(x)) == x


@given(FLOATS)
def test_constants_are_dyadic_rationals(number: float) -> None:
    assert FIELD.from_floats(np.array(number)) == element(Fraction(number))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_single_constants_are_the_same_in_double(number: float) -> None:
    assert FIELD.from_floats(np.array(number, np.float32)) == FIELD.from_floats(np.array(number))


def test_literals_in_their_natural_order() -> None:
    field = Field(PRIMES[0], 5, natural=1)
    literals = np.array([-np.inf, -1000.0, -30.0, -1.0, -0.5, 0.0, 0.125, 1.0, 2.5, 30.0, np.inf])
    assert (np.diff(field.order(field.from_floats(literals))) > 0).all()


def test_infinities_are_each_others_negative() -> None:
    infinities = FIELD.from_floats(np.array([np.inf, -np.inf]))
    assert infinities[0] == -infinities[1] == FIELD.infinity


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers(number: int) -> None:
    assert FIELD.from_integers(np.array([number])) == FIELD.integer(number)


@pytest.mark.parametrize("length", [1, 7, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
@pytest.mark.parametrize("kind", ["f", "c"])
def test_matrix_products_are_exact(length: int, kind: str) -> None:
    left, right = FIELD.random("left", (2, length), kind), FIELD.random("right", (length, 3), kind)
    found = FIELD.matmul(left, right)
    for row in range(2):
        for column in range(3):
            pairs = list(zip(left[row], right[:, column], strict=True))
            real = sum(int(a.real) * int(b.real) - int(a.imag) * int(b.imag) for a, b in pairs)
            imaginary = sum(int(a.real) * int(b.imag) + int(a.imag) * int(b.real) for a, b in pairs)
            assert found[row, column].real == FIELD.integer(real)
            assert found[row, column].imag == FIELD.integer(imaginary)


def test_extreme_products_are_exact() -> None:
    """The largest sums that a chunk can have, whose quotients by the prime are the hardest to round."""
    for last in range(8):
        row = np.full((1, CHUNK), float(FIELD.half))
        column = row.T.copy()
        column[0] -= last
        exact = sum(int(a) * int(b) for a, b in zip(row[0], column[:, 0], strict=True))
        assert FIELD.matmul(row, column)[0, 0] == FIELD.integer(exact)


@pytest.mark.parametrize("length", [2, 4, 6, 7, 1024])
def test_roots_of_unity(length: int) -> None:
    root = root_of_unity(FIELD, length)
    assert root is not None
    assert FIELD.multiply(root, root.conj()) == 1
    assert FIELD.power(root, length) == 1
    assert all(FIELD.power(root, length // factor) != 1 for factor in (2, 3, 5, 7) if length % factor == 0)


def test_transform_of_a_product_of_lengths() -> None:
    """Cooley and Tukey's four steps: the transform of length 12 out of those of lengths 3 and 4."""
    x = FIELD.random("x", (12,), "c")
    whole = FIELD.matmul(x[None], _forward(FIELD, 12))[0]
    table = FIELD.matmul(x.reshape(3, 4).T, _forward(FIELD, 3))  # transforms along the first dimension, transposed
    twiddles = _forward(FIELD, 12)[:4, :3]
    turned = FIELD.multiply(table, twiddles)
    assert np.array_equal(FIELD.matmul(_forward(FIELD, 4), turned).reshape(-1), whole)


def test_hashes_depend_on_all_they_are_given() -> None:
    x, y = FIELD.random("x", (1000,)), FIELD.random("y", (1000,))
    assert (FIELD.hash("f", x, y) != FIELD.hash("f", y, x)).mean() > 0.99
    assert (FIELD.hash("f", x) != FIELD.hash("g", x)).mean() > 0.99
    assert (FIELD.hash("f", x) != Field(PRIMES[0], 6).hash("f", x)).mean() > 0.99
    assert np.array_equal(FIELD.hash("f", x)[::-1], FIELD.hash("f", x[::-1]))
