"""Installs codebases into the environment of the Python that runs this, each by itself, and keeps why one cannot be installed.

`python -m testdata.codebases.install [--part 2/5] [CODEBASE…]`. JAX stays the release that is there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from testdata.codebases.catalogue import CODEBASES, Codebase, part

REASONS = Path(sys.prefix) / "codebases.json"
"""Why codebases could not be installed, by name."""

FIXED = ("jax", "jaxlib")
"""What no codebase may change."""


def install(name: str) -> str | None:
    """Installs a codebase; why that is not possible, in pip's words, if it is not."""
    codebase = CODEBASES[name]
    if missing_packages(codebase):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("".join(f"{package}=={metadata.version(package)}\n" for package in FIXED))
            constraints.flush()
            for packages, options in ((codebase.packages, ["--constraint", constraints.name]), (codebase.alone, ["--no-deps"])):
                if packages and (why := _pip([*options, *packages])) is not None:
                    return why
    return None


def _pip(arguments: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return None
    errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[0] if errors else done.stderr.strip().splitlines()[-1]


def missing_packages(codebase: Codebase) -> list[str]:
    """Those of its packages that are not installed."""
    return [each for each in (*codebase.packages, *codebase.alone) if _version(distribution(each)) is None]


def missing(name: str) -> str | None:
    """Why a codebase cannot run here, None where it can."""
    packages, before = missing_packages(CODEBASES[name]), CODEBASES[name].before_jax
    if before is not None and tuple(int(part) for part in metadata.version("jax").split(".")[:2]) >= before[0]:
        return before[1]
    if not packages:
        return None
    reasons = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    return str(reasons.get(name, f"not installed: {', '.join(packages)}"))


def versions(name: str) -> dict[str, str]:
    """The versions that its programs run with: of Python, of JAX, and of what it is made of."""
    codebase = CODEBASES[name]
    packages = codebase.shown or (*codebase.packages, *codebase.alone)
    names = ["jax", *(distribution(each) for each in packages)]
    found = {each: version for each in names if (version := _version(each)) is not None}
    return {"Python": ".".join(map(str, sys.version_info[:2])), **found}


def distribution(requirement: str) -> str:
    """The name in a requirement: `haliax` of `haliax==1.4`."""
    return re.split(r"[^\w.-]", requirement)[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command. It ends with 0 if a codebase cannot be installed: whoever runs the programs says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codebases", nargs="*", choices=[*CODEBASES, []], metavar="CODEBASE", help="(default: all)")
    parser.add_argument("--part", metavar="2/5", help="a part of the light ones, the third of five")
    options = parser.parse_args(argv)
    names = part(*map(int, options.part.split("/"))) if options.part else options.codebases or list(CODEBASES)
    reasons: Mapping[str, str | None] = {name: install(name) for name in names}
    for name, why in reasons.items():
        print(f"{name}: {why or 'installed'}", flush=True)
    known = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    kept = {name: why for name, why in (known | reasons).items() if why is not None}
    REASONS.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
