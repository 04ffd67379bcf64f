"""Says what is new of jax and Python: a release of jax that `pyproject.toml` excludes, and a Python that the newest jax names and
`pyproject.toml` does not. Ends with status 1 if there is any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PYTHON = "Programming Language :: Python :: 3."


def news(project: Mapping[str, Any], newest: Mapping[str, Any]) -> Iterator[str]:
    """What is new, one sentence each: `project` of `pyproject.toml`, the metadata of the `newest` release of jax."""
    (bound,) = (match[1] for entry in project["dependencies"] if (match := re.fullmatch(r"jax>=.*,<(.*)", entry)))
    if _numbers(newest["version"]) >= _numbers(bound):
        yield f"jax {newest['version']} is there, and pyproject.toml allows jax<{bound}: run make test-versions, then raise it"
    ours, theirs = (_pythons(metadata["classifiers"]) for metadata in (project, newest))
    for python in sorted(theirs - ours):
        if python > max(ours):
            yield f"jax {newest['version']} is for Python 3.{python} too, which pyproject.toml does not name"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _pythons(classifiers: list[str]) -> set[int]:
    numbers = (entry.removeprefix(PYTHON) for entry in classifiers if entry.startswith(PYTHON))
    return {int(number) for number in numbers if number.isdecimal()}


def _newest() -> Mapping[str, Any]:
    """The metadata of the newest release of jax, which is not installed."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    done = subprocess.run([*command, "--report", "-", "jax"], check=True, stdout=subprocess.PIPE)
    (release,) = json.loads(done.stdout)["install"]
    metadata: Mapping[str, Any] = {"classifiers": [], **release["metadata"]}
    return {**metadata, "classifiers": metadata.get("classifier", metadata["classifiers"])}


def main() -> int:
    """Prints the news."""
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    found = list(news(pyproject["project"], _newest()))
    sys.stdout.write("".join(f"{sentence}\n" for sentence in found) or "nothing is new\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
