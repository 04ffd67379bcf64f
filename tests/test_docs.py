"""What the documents show runs as pasted, and has the types that they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax import export

from meshbridge.tools import cli, mesh_opt
from tests import architecture

ROOT = Path(__file__).parent.parent

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

COMMANDS = {"meshbridge": cli.main, "mesh-opt": mesh_opt.main}


@pytest.mark.parametrize("name", ["python-api.md", "resharding.md"])
def test_python_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of one document follow each other. Others show parts of programs; test_house.py runs the README's."""
    blocks = [code for kind, code in BLOCK.findall((ROOT / "docs" / name).read_text()) if kind == "python"]
    exec(compile("\n".join(blocks), name, "exec"), {})
    assert capsys.readouterr().out


def test_commands_of_the_readme(exported: export.Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.jax_export").write_bytes(exported.serialize())
    Path("model.mlir").write_text(exported.mlir_module())
    lines = [line for _, block in BLOCK.findall((ROOT / "README.md").read_text()) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.split(" ")[0] in COMMANDS]
    assert len(commands) == 9
    for name, *arguments in commands:
        if "-o" not in arguments and {"convert", "partition"} & set(arguments):
            arguments += ["-o", "out"]
        assert COMMANDS[name](arguments) == 0, arguments


def test_commands_of_a_day_with_the_code(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
    commands = [shlex.split(line) for _, block in blocks for line in block.splitlines()]
    assert [COMMANDS[name](arguments) for name, *arguments in commands] == [0, 0]
    assert "sharding_option" in capfd.readouterr().err


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="the page shows IR as the newest jaxlib prints it")
def test_architecture_is_up_to_date() -> None:
    assert architecture.PAGE.read_text() == architecture.page(), "write it anew: python -m tests.architecture"


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HOMES = [ROOT, ROOT / "bridge" / "meshbridge", ROOT / "converters" / "meshbridge_converters"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    """Links are relative to the document; code in backquotes is named from the root, or from that of a package."""
    text = BLOCK.sub("", document.read_text())
    links = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    files = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)
    assert not [target for target in links if not (document.parent / target).exists()]
    assert not [name for name in files if not any((home / name).exists() for home in HOMES)]


TYPES = """
import jax
from jax import export
import meshbridge
from meshbridge.ir.mlir import ir

jitted = jax.jit(lambda x: x)

def double(x: float) -> float:
    return 2 * x

def kinds(artifact: export.Exported, loaded: meshbridge.Program, module: ir.Module) -> None:
    reveal_type(meshbridge.partition(artifact))  # Exported
    reveal_type(meshbridge.partition(artifact, resharding="exact", collectives="off"))  # Exported
    reveal_type(meshbridge.partition(artifact, emit="mesh"))  # Module
    reveal_type(meshbridge.partition(jitted, 1.0))  # Exported
    reveal_type(meshbridge.partition(jitted, kwargs={"x": 1.0}, replica_groups="mesh-axes"))  # Exported
    reveal_type(meshbridge.partition(jitted, 1.0, emit="local"))  # Module
    reveal_type(meshbridge.partition(jitted.lower(1.0)))  # Module
    reveal_type(meshbridge.partition(loaded, emit="annotated"))  # Program
    reveal_type(meshbridge.partition(module))  # Module
    reveal_type(meshbridge.report(jitted, 1.0, resharding="exact"))  # Report
    reveal_type(meshbridge.compile(module, collectives="off"))  # Executable
    reveal_type(meshbridge.convert(artifact, to="gspmd"))  # Program
    reveal_type(meshbridge.jit(double)(1.0))  # float
    reveal_type(meshbridge.jit(donate_argnums=0)(double)(x=1.0))  # float
    reveal_type(meshbridge.jit(double, machine="h100").report(1.0))  # Report
    meshbridge.jit(double)("text")  # refused
    meshbridge.jit(double, donate="x")  # refused
    meshbridge.partition(3)  # refused
    meshbridge.report(3)  # refused
    meshbridge.compile(3)  # refused
    meshbridge.convert(3, to="sdy")  # refused
    meshbridge.save(3, "file")  # refused
    meshbridge.partition(artifact, 1.0)  # refused
    meshbridge.partition(artifact, resharding="fastest")  # refused
    meshbridge.partition(artifact, emit="poem")  # refused
    meshbridge.partition(jitted, x=1.0)  # refused
    meshbridge.report(artifact, colectives="off")  # refused
"""


@pytest.mark.slow
def test_types_that_mypy_sees(tmp_path: Path) -> None:
    """The types of our own and of JAX are followed here, as they are for users; `make lint` does not follow JAX's.

    What mypy says of every line is what the line's comment says: the type, or that the line is an error.
    """
    (tmp_path / "program.py").write_text(TYPES)
    settings = "[mypy]\n[mypy-jax.*,meshbridge.*]\nfollow_imports = silent\n[mypy-jaxlib.*]\nignore_missing_imports = True\n"
    (tmp_path / "mypy.ini").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    environment = os.environ | {"MYPYPATH": f"{ROOT / 'bridge'}:{ROOT / 'converters'}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = dict(re.findall(r'program.py:(\d+): note: Revealed type is "(?:\w+\.)*(\w+)"', done.stdout))
    found |= dict.fromkeys(re.findall(r"program.py:(\d+): error: ", done.stdout), "refused")
    expected = {str(number): line.split("  # ")[1] for number, line in enumerate(TYPES.splitlines(), 1) if "  # " in line}
    assert found == expected, done.stdout
