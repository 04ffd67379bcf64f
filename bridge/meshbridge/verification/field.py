"""Arithmetic in a finite field, in which the evaluator represents floating-point numbers.

An element of the field of `prime` integers is stored as a float64 between -(prime - 1) / 2 and (prime - 1) / 2, so that BLAS
multiplies matrices exactly. An element of the quadratic extension by i (the prime is 3 modulo 4, so -1 has no square root) is a
complex128 of two such numbers. Every function here is total and depends only on its operands and the key, so two programs that
are equal by the laws of a ring agree on every input:

* 1 / 0 is 0: (x y)^-1 = x^-1 y^-1 and x / z + y / z = (x + y) / z hold without exception.
* Infinities and NaN are ordinary elements, fixed by the key; -inf comes first in the order and +inf last, so both are neutral
  where they have to be.
* The order is that of the representatives times a secret number. It is total, and x < y if and only if -y < -x.
* Functions that are not rational are keyed hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SMOOTH = 2**10 * 3 * 5 * 7
"""Divides prime + 1 for every prime in PRIMES: roots of unity of these orders exist, with their conjugate as inverse."""

BOUND = 2**22
"""Primes stay below it: a product of two elements is below 2^42, and a sum of 2,048 of them below 2^53."""

BLOCK = 2**15
"""The number of elements that are reduced at once."""

NATURAL = 3 * 2**8
"""Scales the natural order: thirds and 256ths of magnitudes below 2,700 are in the order of the numbers."""

CHUNK = 2048
"""The most products that are added before a reduction."""


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


PRIMES: tuple[int, ...] = tuple(
    number for number in range(BOUND - BOUND % SMOOTH - 1, BOUND // 2, -SMOOTH) if number < BOUND and _is_prime(number)
)
"""Primes just below BOUND, the largest first; run k takes the k-th."""


@dataclass(frozen=True)
class Field:
    """The field of `prime` elements, with the secret `key` of its hashes and of its order."""

    prime: int
    key: int
    natural: int = 0
    """1 if small numbers with few binary digits are in their natural order, so that loops on literals end; -1 if in the opposite
    order; 0 if the order is secret."""

    @cached_property
    def half(self) -> int:
        """The largest element."""
        return (self.prime - 1) // 2

    @cached_property
    def _scale(self) -> int:
        """The factor from an element to its position in the order."""
        return NATURAL * self.natural if self.natural else 2 + word(self.key, "order") % (self.prime - 3)

    @cached_property
    def infinity(self) -> float:
        """The last element in the order; its negative is the first."""
        return self.integer(self.half * pow(self._scale, -1, self.prime))

    @cached_property
    def not_a_number(self) -> float:
        """The element of NaN."""
        return self.integer(word(self.key, "nan"))

    def integer(self, number: int) -> float:
        """The element of an integer of any size."""
        return float((number + self.half) % self.prime - self.half)

    def reduce(self, numbers: Array) -> Array:
        """The elements of integers of magnitude at most 2^50; real and imaginary parts separately."""
        if numbers.dtype.kind == "c":
            parts = np.ascontiguousarray(numbers).view(np.float64)
            return self.reduce(parts).view(np.complex128)
        result = np.empty(numbers.shape)
        if numbers.size <= BLOCK or not numbers.flags.c_contiguous:
            return self._reduce_into(numbers, result)
        source, target = numbers.reshape(-1), result.reshape(-1)
        for start in range(0, numbers.size, BLOCK):  # by pieces that stay in the cache
            self._reduce_into(source[start : start + BLOCK], target[start : start + BLOCK])
        return result

    def _reduce_into(self, numbers: Array, result: Array) -> Array:
        np.multiply(numbers, 1.0 / self.prime, out=result)
        np.rint(result, out=result)
        result *= self.prime
        return np.subtract(numbers, result, out=result)

    def add(self, left: Array, right: Array) -> Array:
        return self.reduce(left + right)

    def subtract(self, left: Array, right: Array) -> Array:
        return self.reduce(left - right)

    def multiply(self, left: Array, right: Array) -> Array:
        return self.reduce(left * right)

    def divide(self, left: Array, right: Array) -> Array:
        return self.multiply(left, self.inverse(right))

    def inverse(self, numbers: Array) -> Array:
        """1 / x; 0 for 0."""
        if numbers.dtype.kind == "c":
            norm = self.reduce(self.reduce(numbers.real**2) + self.reduce(numbers.imag**2))
            return self.multiply(numbers.conj(), self.inverse(norm))
        return compactly(self._inverse, numbers)

    def _inverse(self, numbers: Array) -> Array:
        """One power for all: 1 / x = y / (x y), for halves and halves of halves."""
        flat = np.where(numbers == 0, 1.0, numbers).reshape(-1)
        return np.where(numbers == 0, 0.0, self._inverse_of_units(flat).reshape(numbers.shape))

    def _inverse_of_units(self, flat: Array) -> Array:
        if len(flat) <= 64:
            return self.power(flat, self.prime - 2)
        half = len(flat) // 2
        a, b = flat[:half], flat[half : 2 * half]
        inverses = self._inverse_of_units(np.concatenate([self.multiply(a, b), flat[2 * half :]]))
        return np.concatenate([self.multiply(inverses[:half], b), self.multiply(inverses[:half], a), inverses[half:]])

    def power(self, numbers: Array, exponent: int) -> Array:
        """x to a non-negative integer, by squaring."""
        result, square = np.ones_like(numbers), numbers
        while exponent:
            if exponent & 1:
                result = self.multiply(result, square)
            exponent >>= 1
            if exponent:
                square = self.multiply(square, square)
        return result

    def sum(self, numbers: Array, axes: tuple[int, ...]) -> Array:
        """Sums over dimensions of up to 2^29 elements."""
        return self.reduce(np.asarray(numbers.sum(axis=axes)))

    def matmul(self, left: Array, right: Array) -> Array:
        """The matrix product of (…, m, k) and (…, k, n)."""
        chunk = CHUNK // 2 if left.dtype.kind == "c" or right.dtype.kind == "c" else CHUNK
        length = left.shape[-1]
        if length <= chunk:
            return self.reduce(self.reduce(np.matmul(left, right)))  # twice: the first leaves a large quotient one off
        total = self.matmul(left[..., :chunk], right[..., :chunk, :])
        for start in range(chunk, length, chunk):
            stop = start + chunk
            total = self.add(total, self.matmul(left[..., start:stop], right[..., start:stop, :]))
        return total

    def order(self, numbers: Array) -> Array:
        """The position of each element in the order: a number between -half and half, an odd bijection."""
        return self.reduce(numbers * float(self._scale))

    def at_place(self, places: Array) -> Array:
        """The inverse of `order`; positions beyond the last element wrap around."""
        wrapped = np.mod(places.astype(np.int64), self.prime).astype(np.float64)
        return self.reduce(wrapped * float(pow(self._scale, -1, self.prime)))

    def total_order(self, numbers: Array) -> Array:
        """The position of each element in the order of sorts, which has one for NaN."""
        return self.order(numbers)

    def positions(self, numbers: Array, largest: int) -> Array:
        """The position of each element as an integer of magnitude at most `largest`, which is the position of NaN if it has
        one."""
        return self.order(numbers).astype(np.int64)

    def at_positions(self, positions: Array, largest: int) -> Array:
        """The inverse of `positions`; positions of no element wrap around."""
        return self.at_place(positions)

    def is_finite(self, numbers: Array) -> Array:
        """Neither the element of an infinity nor that of NaN."""
        return np.asarray((np.abs(numbers) != abs(self.infinity)) & (numbers != self.not_a_number))

    def to_integers(self, numbers: Array) -> Array:
        """The representatives of elements."""
        return numbers.astype(np.int64)

    def as_finite(self, numbers: Array) -> Array:
        """A value with infinities and NaN as ordinary elements, for code that compares and adds whatever devices hold."""
        return numbers

    def maximum(self, left: Array, right: Array) -> Array:
        return np.where(self.order(left) >= self.order(right), left, right)

    def minimum(self, left: Array, right: Array) -> Array:
        return np.where(self.order(left) <= self.order(right), left, right)

    def sign(self, numbers: Array) -> Array:
        return np.sign(self.order(numbers))

    def from_integers(self, numbers: Array) -> Array:
        """Integers of any numpy type as elements."""
        if numbers.dtype == np.uint64:
            wrapped = np.mod(numbers, np.uint64(self.prime)).astype(np.float64)
        elif numbers.dtype.itemsize < 4:
            wrapped = numbers.astype(np.float64)
        else:
            wrapped = np.mod(numbers.astype(np.int64), self.prime).astype(np.float64)
        return self.reduce(wrapped)

    def from_floats(self, numbers: Array) -> Array:
        """Floating-point constants as exact dyadic rationals."""
        if numbers.dtype.kind == "c":
            return np.asarray(self.from_floats(numbers.real) + 1j * self.from_floats(numbers.imag))
        doubles: Array = numbers.astype(np.float64)
        finite = np.isfinite(doubles)
        mantissa, exponent = np.frexp(np.where(finite, doubles, 0.0))
        whole = self.reduce(self.reduce(mantissa * 2.0**50)) if numbers.dtype.itemsize < 8 else self._wide(mantissa)
        shift = 50 if numbers.dtype.itemsize < 8 else 53
        exact = self.multiply(whole, _powers_of_two(self.prime)[exponent - shift + _SMALLEST])
        result = np.where(np.isposinf(doubles), self.infinity, exact)
        result = np.where(np.isneginf(doubles), -self.infinity, result)
        return np.where(np.isnan(doubles), self.not_a_number, result)

    def _wide(self, mantissa: Array) -> Array:
        """Mantissas of 53 bits as elements."""
        return self.from_integers((mantissa * 2.0**53).astype(np.int64))

    def hash(self, name: str, *operands: Array) -> Array:
        """A pseudo-random function of the operands, elementwise: real elements."""
        return self._to_elements(self.hash_words(name, *operands))

    def hash_complex(self, name: str, *operands: Array) -> Array:
        """A pseudo-random function of the operands, elementwise: complex elements."""
        words = self.hash_words(name, *operands)
        result = np.empty(words.shape, np.complex128)
        result.real, result.imag = self._to_elements(words), self._to_elements(mix(words + np.uint64(1)))
        return result

    def hash_words(self, name: str, *operands: Array) -> Array:
        """64 pseudo-random bits for each element, as uint64."""
        state: Array = np.full((1,) * max((operand.ndim for operand in operands), default=1), word(self.key, name), np.uint64)
        for operand in operands:
            for part in (operand.real, operand.imag) if operand.dtype.kind == "c" else (operand,):
                state = mix(state ^ mix(_as_words(part) + np.uint64(0x9E3779B97F4A7C15)))
        return state

    def _to_elements(self, words: Array) -> Array:
        return self.reduce((words >> np.uint64(14)).astype(np.float64))

    def random(self, name: str, shape: Sequence[int], kind: str = "f") -> Array:
        """Pseudo-random elements of a shape, complex ones for kind "c"."""
        count = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
        drawn = self.hash_complex(name, count) if kind == "c" else self.hash(name, count)
        return drawn.reshape(tuple(shape))


def compactly(function: Callable[[Array], Array], numbers: Array) -> Array:
    """Applies an elementwise function to an array, once for elements that a broadcast repeats."""
    if 0 not in numbers.strides or numbers.size < 2:
        return function(numbers)
    distinct = tuple(slice(None) if stride else slice(0, 1) for stride in numbers.strides)
    return np.broadcast_to(function(numbers[distinct]), numbers.shape)


def word(key: int, text: str) -> int:
    """64 bits that depend on a key and a text."""
    return int.from_bytes(hashlib.blake2b(f"{key}:{text}".encode(), digest_size=8).digest(), "little")


def mix(words: Array) -> Array:
    """A bijection of 64 bits that cannot be told from a random one: splitmix64's finalizer."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


def _as_words(numbers: Array) -> Array:
    return numbers.astype(np.int64).view(np.uint64) if numbers.dtype != np.uint64 else numbers


_SMALLEST = 1200
"""More than the magnitude of any float64's exponent, subnormals and mantissas included."""


@lru_cache(maxsize=16)
def _powers_of_two(prime: int) -> Array:
    half = (prime - 1) // 2
    powers = [pow(2, exponent, prime) for exponent in range(-_SMALLEST, _SMALLEST)]
    return np.array([(power + half) % prime - half for power in powers], np.float64)
