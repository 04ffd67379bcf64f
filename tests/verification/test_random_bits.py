"""Random bits against those that XLA's CPU backend draws, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import jax
import numpy as np
import pytest

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError
from meshbridge.runtime import pjrt
from meshbridge.verification.field import PRIMES, Array, Field
from meshbridge.verification.program import open_program
from meshbridge.verification.random_bits import LAYOUTS

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (5,), (6,), (3, 5), (7, 4), (3, 7, 5), (2, 3, 4))
"""Even and odd sizes, and several dimensions of which one is halved."""

KEY = 0xFEDCBA9876543210


ELEMENTS = ("ui8", "ui16", "i32", "ui64")

STARTS = {2: [(7,), (2**64 - 2,)], 3: [(2**64 - 2, 5), (2**64 - 1, 2**64 - 1)]}
"""Counters for states of so many words; some overflow."""


def program(algorithm: str, words: int, elements: Sequence[str] = ELEMENTS) -> str:
    """Draws bits of each shape and element type from one state, and gives the next states too."""
    state, lines, kinds, names = f"tensor<{words}xui64>", [], [], []
    for shape, element in product(SHAPES, elements):
        number, kind = len(lines), f"tensor<{'x'.join(map(str, (*shape, element)))}>"
        drawn = f"stablehlo.rng_bit_generator %s, algorithm = {algorithm} : ({state}) -> ({state}, {kind})"
        lines.append(f"%t{number}, %r{number} = {drawn}")
        kinds += [state, kind]
        names += [f"%t{number}", f"%r{number}"]
    body = "\n".join(lines)
    return f"func.func @main(%s: {state}) -> ({', '.join(kinds)}) {{\n{body}\nreturn {', '.join(names)} : {', '.join(kinds)} }}"


def evaluated(text: str, state: Array) -> list[Array]:
    opened = open_program(assembly.read(text, "bits.mlir", mlir.context()))
    return opened.evaluate(Field(PRIMES[0], 3), [state], memory=10**9)


@pytest.mark.parametrize(("algorithm", "words"), [("THREE_FRY", 2), ("PHILOX", 2), ("PHILOX", 3), ("DEFAULT", 2), ("DEFAULT", 3)])
def test_bits_and_states_are_those_of_xla(algorithm: str, words: int) -> None:
    text = program(algorithm, words)
    executable = pjrt.compile_whole(assembly.read(text, "bits.mlir", mlir.context()), jax.devices()[0])
    for start in STARTS[words]:
        state = np.array([KEY, *start], np.uint64)
        for found, expected in zip(evaluated(text, state), executable(state), strict=True):
            bits = np.asarray(expected).astype(found.dtype)  # XLA gives signed integers as unsigned ones
            assert np.array_equal(found, bits), (found.shape, found.dtype)


def test_every_device_draws_from_its_own_state() -> None:
    states = np.arange(6, dtype=np.uint64).reshape(3, 2)
    for layout, _ in LAYOUTS.values():
        together = layout(states, (5, 3), 32)
        for device in range(3):
            for mine, alone in zip(together, layout(states[device : device + 1], (5, 3), 32), strict=True):
                assert np.array_equal(mine[device], alone[0])


def test_states_of_other_sizes_are_refused() -> None:
    with pytest.raises(MeshError, match=r"bits\.mlir:2.*no exact evaluation from a state of type tensor<3xui64>"):
        evaluated(program("THREE_FRY", 3), np.arange(3, dtype=np.uint64))
