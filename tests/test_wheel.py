"""The wheel has all that the package needs: in an empty environment, without the repository, the README works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import meshbridge
from tests.documentation import PAGES, run_blocks
from tests.house import ROOT

pytestmark = pytest.mark.slow

PACKAGES = {"meshbridge": ROOT / "bridge", "meshbridge_converters": ROOT / "converters"}

LEFT_OUT = {"JAX_PLATFORMS", "PYTHONPATH", "XLA_FLAGS"}


def run(*command: str | Path, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as for a release: of the source distribution, so that nothing else can come in."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel, what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    wanted = f"jax=={run(sys.executable, '-c', 'import jax; print(jax.__version__)', folder=folder).strip()}"
    run(programs / "pip", "install", "--quiet", "--disable-pip-version-check", wheel, wanted, folder=folder)
    return programs


def test_files(wheel: Path) -> None:
    """Every file of the packages, and no other: tests, benchmarks and programs to test with stay out."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    kinds = ("*.py", "*.toml", "py.typed", "templates/*")
    expected = {
        path.relative_to(source).as_posix()
        for package, source in PACKAGES.items()
        for kind in kinds
        for path in (source / package).rglob(kind)
    }
    assert found == expected
    assert any(name.endswith(".toml") for name in found)


def test_commands(environment: Path, tmp_path: Path) -> None:
    assert run(environment / "meshbridge", "--version", folder=tmp_path) == f"meshbridge {meshbridge.__version__}\n"
    assert "--sharding-propagation" in run(environment / "mesh-opt", "--help", folder=tmp_path)


def test_nothing_of_development_is_there(environment: Path, tmp_path: Path) -> None:
    packages = {line.split("==")[0] for line in run(environment / "pip", "list", "--format=freeze", folder=tmp_path).splitlines()}
    assert "meshbridge" in packages
    assert not packages & {"flax", "hypothesis", "mkdocs", "mypy", "pytest", "ruff"}


def test_the_readme(environment: Path, tmp_path: Path) -> None:
    run_blocks(PAGES["README.md"], "README.md", tmp_path, environment / "python")
