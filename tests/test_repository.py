"""Files for tools around the repository: that they are what these tools read, and say what the package says."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.house import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


ALLOWED = "pyproject.toml allows jax<0.13"


def read(path: str) -> Any:
    """A YAML file."""
    return yaml.safe_load((ROOT / path).read_text())


def test_hooks_before_commits_are_those_of_lint() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    makefile = (ROOT / "Makefile").read_text()
    lint = makefile[makefile.index("\nlint:") :].split("\n\n")[0]
    assert all(f"$(BIN)/{entry.split()[0]}" in lint and entry.split()[-1] in lint for entry in entries), lint
    assert {entry.split()[0] for entry in entries} == set(re.findall(r"\$\(BIN\)/(\w+)", lint))


@pytest.mark.parametrize(("text", "status"), [("func.func @main() { return }", 0), ("func.func @main() { nonsense }", 1)])
def test_the_hook_for_others_verifies_each_file(text: str, status: int, tmp_path: Any) -> None:
    (hook,) = read(".pre-commit-hooks.yaml")
    bad, good = tmp_path / "bad.mlir", tmp_path / "good.mlir"
    bad.write_text(text)
    good.write_text("func.func @main() { return }")
    assert all(re.search(hook["files"], str(path)) for path in (bad, good))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # where mesh-opt is installed
    command = [*shlex.split(hook["entry"]), bad, good]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path})
    assert done.returncode == status, done.stderr
    assert ("bad.mlir:1:" in done.stderr) == bool(status)


def test_the_recipe_says_what_the_package_says() -> None:
    recipe = read("conda/recipe.yaml")
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {at}" for name, at in PROJECT["scripts"].items()]
    assert (recipe["about"]["license"], recipe["about"]["summary"]) == (PROJECT["license"], PROJECT["description"])
    assert (ROOT / recipe["about"]["license_file"]).exists()
    python, *needed = [
        entry.replace("python-flatbuffers", "flatbuffers").replace(" ", "") for entry in recipe["requirements"]["run"]
    ]
    assert python == f"python{PROJECT['requires-python']}"
    assert needed == PROJECT["dependencies"]


def test_the_container_makes_the_environment() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["image"] == f"python:{PROJECT['requires-python'].removeprefix('>=')}"
    command, target = container["postCreateCommand"].split()
    assert command == "make"
    assert "\n$(READY):" in (ROOT / "Makefile").read_text().replace("\n$(VENV)/.ready:", "\n$(READY):")
    assert target == ".venv/.ready"


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.stem)
def test_forms_of_issues(path: Any) -> None:
    form = read(str(path))
    assert {"name", "description", "body"} == set(form)
    for field in form["body"]:
        assert field["type"] in ("textarea", "input")
        assert field["attributes"]["label"]
    commands = re.findall(r"`meshbridge ([\w-]+)", path.read_text())
    from meshbridge.tools.cli import COMMANDS

    assert set(commands) <= set(COMMANDS)


def test_the_scheduled_check_runs_what_there_is() -> None:
    workflow = read(".github/workflows/news.yml")
    assert workflow[True]["schedule"]  # YAML's name of `on`
    steps = workflow["jobs"]["news"]["steps"]
    (command,) = [step["run"] for step in steps if "run" in step]
    assert (ROOT / command.removeprefix("python ")).exists()


@pytest.mark.parametrize(
    ("version", "pythons", "said"),
    [
        ("0.12.3", ("3.11", "3.12"), []),
        ("0.13.0", ("3.12",), [f"jax 0.13.0 is there, and {ALLOWED}: run make test-versions, then raise it"]),
        ("0.12.0", ("3.12", "3.99"), ["jax 0.12.0 is for Python 3.99 too, which pyproject.toml does not name"]),
    ],
)
def test_what_is_new(version: str, pythons: tuple[str, ...], said: list[str]) -> None:
    news = runpy.run_path(str(ROOT / ".ci" / "news.py"))["news"]
    project = {**PROJECT, "dependencies": ["jaxlib>=0.9,<0.13", "jax>=0.9,<0.13"]}
    classifiers = [f"Programming Language :: Python :: {python}" for python in pythons]
    assert list(news(project, {"version": version, "classifiers": classifiers})) == said


def test_a_release_is_checked() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "twine check --strict build/dist/*" in makefile[makefile.index("\nwheel:") :].split("\n\n")[0]
