"""What LLVM's parser and verifier accept or refuse, ours does too: each release that has the dialect is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, context
from meshbridge.read import formats
from meshbridge_converters.llvm import FORMATS_BY_VERSION
from tests.dialect.llvm_tools import tool

PROGRAMS: dict[str, tuple[str, bool]] = {
    "a send without recv": (
        "%0 = mesh.send %a on @m mesh_axes = [0] destination = [1] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        True,
    ),
    "a recv without send": ("%0 = mesh.recv %a on @m mesh_axes = [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>", True),
    "a mesh in a function": ("mesh.mesh @inner(shape = 2)", False),
    "a nested module with a mesh": ("builtin.module { mesh.mesh @inner(shape = 2) }", True),
    "a region": (
        '%0 = "mesh.process_linear_index"() <{mesh = @m}> ({ "test.x"() : () -> () }) : () -> index',
        False,
    ),
    "a block without terminator": (
        "cf.br ^last\n^first:\n  return\n^last:\n  %0 = mesh.process_linear_index on @m : index\n}\nfunc.func @g() {",
        False,
    ),
    "an unknown attribute": ('"test.x"() {a = #mesh.nonsense<3>} : () -> ()', False),
    "an unknown opaque attribute": ('"test.x"() {a = #mesh<nonsense 3>} : () -> ()', False),
    "an attribute in a string": ('"test.x"() {a = "#mesh.nonsense<3>"} : () -> ()', True),
    "an attribute in a comment": ("// #mesh.nonsense<3>", True),
    "a string that does not end on its line": ('%0 = mesh.process_linear_index on @m {a = "} : index\n"} : index', False),
    "an unknown type": ('"test.x"() : () -> !mesh.nonsense', False),
    "an unknown opaque type": ('"test.x"() : () -> !mesh<nonsense>', False),
    "an unknown reduction": ('"test.x"() {a = #mesh<partial nope>} : () -> ()', False),
    "axes that are no numbers": ('"test.x"() {a = #mesh<axisarray[[0, x]]>} : () -> ()', False),
    "a digit of another script": ("%0 = mesh.process_multi_index on @m axes = [\u0660] : index", False),
    "a letter of another script": ("%\u00e9 = mesh.process_linear_index on @m : index", False),
    "a blank of another script": ("%0 = mesh.process_linear_index\u00a0on @m : index", False),
    "a form feed": ("%0 = mesh.process_linear_index\fon @m : index", False),
    "other letters in a comment": ("// \u0660\u00e9", True),
    "other letters in a string": ('"test.x"() {a = "\u0660\u00e9"} : () -> ()', True),
    "a partial sharding": ("%0 = mesh.sharding @m split_axes = [[0]] partial = sum [1] : !mesh.sharding", True),
}


def _text(line: str) -> str:
    return f"mesh.mesh @m(shape = 2x4)\nfunc.func @f(%a: tensor<4x8xf32>) {{\n  {line}\n  return\n}}\n"


_RENAMED = (
    ("mesh.mesh ", "shard.grid "),
    ("mesh_axes", "grid_axes"),
    ("mesh.", "shard."),
    ("#mesh", "#shard"),
    ("!mesh", "!shard"),
)
"""From LLVM 21's names to 22's."""


def _for_22(text: str) -> str:
    for before, after in _RENAMED:
        text = text.replace(before, after)
    return text


def _refusal(text: str, version: int) -> str:
    """The diagnostic with which our reader or verifier refuses `text`, or ""."""
    form = formats.TEXT if version == 21 else FORMATS_BY_VERSION[22]
    try:
        pipeline.verify(form.read(text.encode(), "a.mlir", context()).module)
    except MeshError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("version", [21, 22])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_accepted_or_refused_as_upstream_does(name: str, version: int, tmp_path: Path) -> None:
    line, accepted = PROGRAMS[name]
    accepted = accepted and (name, version) != ("a partial sharding", 22)
    text = _text(line) if version == 21 else _for_22(_text(line))
    path = tmp_path / "a.mlir"
    path.write_text(text)
    theirs = subprocess.run(
        [tool(version), "--allow-unregistered-dialect", str(path)], capture_output=True, text=True, check=False
    )
    assert (theirs.returncode == 0) == accepted, theirs.stderr
    refusal = _refusal(text, version)
    assert refusal == "" if accepted else refusal.startswith("a.mlir:"), refusal
