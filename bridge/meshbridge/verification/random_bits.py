"""Random bits, bit for bit: Threefry-2x32 and Philox-4x32 (Salmon et al., SC 2011), laid out as in XLA.

StableHLO names the algorithms, and leaves the mapping from a state to a tensor of bits to the implementation. Here as in XLA, a
state of 64-bit words is a key and a counter, which increases by one for each block of bits. A type below 32 bits takes the low
bits of a word.
"""

from __future__ import annotations

import re

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.elementwise import wrap
from meshbridge.verification.field import Array
from meshbridge.verification.machine import (
    Evaluator,
    dtype_of,
    element_of,
    evaluates,
    index,
    is_complex,
    is_float,
    shape_of,
    width_of,
)

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)

_HALF = np.uint64(32)


def _words(numbers: Array) -> tuple[Array, Array]:
    """The low and the high 32 bits."""
    return numbers.astype(np.uint32), (numbers >> _HALF).astype(np.uint32)


def _joined(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | (high.astype(np.uint64) << _HALF)


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Threefry-2x32 of 20 rounds on arrays of uint32."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for turn in range(5):
        for distance in _ROTATIONS[turn % 2]:
            x = x + y
            y = x ^ (y << np.uint32(distance) | y >> np.uint32(32 - distance))
        x = x + keys[(turn + 1) % 3]
        y = y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


def philox(key: tuple[Array, Array], counter: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Philox-4x32 of 10 rounds on arrays of uint32."""
    for _ in range(10):
        (low, high), (other_low, other_high) = (
            _words(word.astype(np.uint64) * by) for word, by in zip(counter[::2], _MULTIPLIERS, strict=True)
        )
        counter = other_high ^ counter[1] ^ key[0], other_low, high ^ counter[3] ^ key[1], low
        key = key[0] + _STEPS[0], key[1] + _STEPS[1]
    return counter


def _counted(start: Array, count: int) -> Array:
    return start + np.arange(count, dtype=np.uint64)


def _threefry_bits(state: Array, shape: tuple[int, ...], width: int) -> tuple[Array, Array]:
    """The bits of a key and a counter. Each block gives 64 bits: one element, or two neighbours along the dimension that is
    halved, which is the first of even size, or else the first of the largest."""
    key, start = _words(state[:, :1]), state[:, 1:2]
    if width == 64:
        count = int(np.prod(shape, dtype=np.int64))
        bits = _joined(*threefry(key, _words(_counted(start, count))))
        return bits, np.concatenate([state[:, :1], start + np.uint64(count)], axis=1)
    sizes = shape or (1,)
    halved = next((dim for dim, size in enumerate(sizes) if size % 2 == 0), int(np.argmax(sizes)))
    blocks = [-(-size // 2) if dim == halved else size for dim, size in enumerate(sizes)]
    count = int(np.prod(blocks, dtype=np.int64))
    pair = [word.reshape(-1, *blocks) for word in threefry(key, _words(_counted(start, count)))]
    doubled = (2 * size if dim == halved else size for dim, size in enumerate(blocks))
    interleaved = np.stack(pair, axis=halved + 2).reshape(-1, *doubled)
    cropped = interleaved[index(slice(None), *(slice(0, size) for size in sizes))]
    return cropped.reshape(len(state), -1), np.concatenate([state[:, :1], start + np.uint64(count)], axis=1)


def _philox_bits(state: Array, shape: tuple[int, ...], width: int) -> tuple[Array, Array]:
    """The bits of a key and a counter of one or two words, the low word first; a missing high word is the key. Each block gives
    128 bits: two elements or four."""
    key, low = _words(state[:, :1]), state[:, 1:2]
    high = state[:, 2:3] if state.shape[1] > 2 else state[:, :1]
    elements = int(np.prod(shape, dtype=np.int64))
    count = -(-elements // (2 if width == 64 else 4))
    counters = _counted(low, count)
    carried = high + (counters < low).astype(np.uint64)
    words = philox(key, (*_words(counters), *_words(carried)))
    parts = (_joined(*words[:2]), _joined(*words[2:])) if width == 64 else words
    bits = np.stack(parts, axis=-1).reshape(len(state), -1)[:, :elements]
    after = low + np.uint64(count)
    step = [state[:, :1], after, high + (after < low).astype(np.uint64)]
    return bits, np.concatenate(step[: state.shape[1]], axis=1)


LAYOUTS = {"THREE_FRY": (_threefry_bits, (2,)), "PHILOX": (_philox_bits, (2, 3)), "DEFAULT": (_philox_bits, (2, 3))}
"""The layout of each algorithm, and the possible sizes of its state in words. The default is that of XLA's CPU backend."""

_ALGORITHM = re.compile(r"\b(THREE_FRY|PHILOX|DEFAULT)\b")


@evaluates("stablehlo.rng_bit_generator")
def random_bits(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The next state and the bits; a floating-point element is the number that its bits are as an integer."""
    state, shape, element = operands[0], shape_of(op.results[1]), element_of(op.results[1])
    named = _ALGORITHM.search(str(op.attributes["rng_algorithm"]))
    layout, sizes = LAYOUTS[named[1]] if named else (None, ())
    if layout is None or state.dtype != np.uint64 or state.shape[1:] not in [(size,) for size in sizes] or not _has_bits(element):
        raise OpError(op, f"has no exact evaluation from a state of type {op.operands[0].type} to bits of type {element}")
    bits, after = layout(np.ascontiguousarray(state), shape, width_of(element))
    drawn = bits.reshape(-1, *shape)
    if is_float(element):
        return [after, machine.field.from_integers(drawn)]
    return [after, wrap(drawn.astype(dtype_of(element)), element)]


def _has_bits(element: ir.Type) -> bool:
    return not is_complex(element) and width_of(element) > 1
