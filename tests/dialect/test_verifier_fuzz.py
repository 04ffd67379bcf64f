"""Mutants of every operation's text: what a release's parser and verifier refuse, ours refuses too, at a place in the text."""

from __future__ import annotations

import random
import re
import subprocess

import pytest

from meshbridge import pipeline
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import MeshError, context
from meshbridge_converters import llvm
from tests.dialect.llvm_tools import VERSIONS, tool
from tests.dialect.programs import FORMS, program

_TOKEN = re.compile(r"[%@#!^]?[\w$.]+|->|\S|\s+")

_PIECES = re.findall(
    r"\S+",
    """
    -1 0 1 2 7 40000 9223372036854775807 -9223372036854775808 99999999999999999999 [ ] [[0]] [] [0] = , : -> ( ) < >
    sum generic index i64 tensor<4x8xf32> tensor<f32> tensor<?x8xf32> @m0 @nope %arg0 %0 rotate partial halo_sizes root
    mesh_axes grid_axes {a} { } ? x " // loc(unknown) !mesh.sharding #mesh.partial<sum> 0x10 1.0 - + true
    annotate_for_users split_axes
    """,
)


def _mutant(chooser: random.Random, text: str) -> str:
    """`text` with one or two tokens left out, replaced, added, repeated, or in each other's places."""
    tokens = _TOKEN.findall(text)
    for _ in range(chooser.randint(1, 2)):
        at, other = (chooser.choice([index for index, token in enumerate(tokens) if token.strip()]) for _ in range(2))
        match chooser.randrange(5):
            case 0:
                del tokens[at]
            case 1:
                tokens[at] = chooser.choice(_PIECES)
            case 2:
                tokens.insert(at, f"{chooser.choice(_PIECES)} ")
            case 3:
                tokens.insert(at, f"{tokens[at]} ")
            case _:
                tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


def _seeds(version: int) -> list[str]:
    """Each form of each operation that the release has, in a program of its own."""
    found = []
    for form in (form for forms in FORMS.values() for form in forms):
        text = program(form)
        if version == 19:  # which has no type for shardings
            text = text.replace(", %arg3: !mesh.sharding", "")
        try:
            found.append(VERSIONS[version].write(read(text, "a.mlir", context())))
        except MeshError:
            continue
    return found


def _refusal(version: llvm._Version, text: str) -> str:
    try:
        pipeline.verify(version.read(text, "a.mlir", context()))
    except MeshError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_upstream_refuses_is_refused(version: int, count: int) -> None:
    chooser, seeds = random.Random(version + count), _seeds(version)
    for _ in range(count):
        text = _mutant(chooser, chooser.choice(seeds))
        ours = _refusal(VERSIONS[version], text)
        assert not ours or re.match(r"(a\.mlir:\d+:\d+|<unknown>): error: .", ours), f"{ours}\n{text}"
        if not ours:
            command = [tool(version), "-", "--allow-unregistered-dialect"]
            theirs = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            assert theirs.returncode == 0, f"{theirs.stderr}\n{text}"
