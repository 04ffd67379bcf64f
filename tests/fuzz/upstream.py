"""What LLVM's own tools say of a mutant that has been accepted here: whatever their verifiers refuse must be refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

from tests.fuzz.mutators import Source
from tests.patience import PATIENCE


def refusal(source: Source, data: bytes) -> str:
    """What the `mlir-opt` of the release whose spelling `source` has been written in refuses in `data`; empty if nothing, or if
    it refuses `source` itself, or where there is no such tool.
    """
    release = re.search(r" as llvm(\d+)$", source.name)
    found = shutil.which(f"mlir-opt-{release[1]}") if release else None
    if found is None or _diagnostics(found, source.data):
        return ""
    refused = _diagnostics(found, data)
    return f"accepted what {found} refuses: {refused}" if refused else ""


@cache
def _diagnostics(tool: str, data: bytes) -> str:
    """The first error that the tool prints."""
    command = [tool, "-", "--allow-unregistered-dialect"]
    done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=PATIENCE)
    lines = done.stderr.decode(errors="replace").splitlines()
    return next((line for line in lines if "error:" in line), "" if done.returncode == 0 else f"status {done.returncode}")
