"""LLVM's own tools: the spelling of each release, and where its mlir-opt is."""

from __future__ import annotations

import shutil

import pytest

from meshbridge_converters import llvm

VERSIONS = {19: llvm.LLVM_19, 21: llvm.LLVM_21, 22: llvm.LLVM_22}


def tool(version: int) -> str:
    """The path of a release's mlir-opt; skips the test where there is none."""
    found = shutil.which(f"mlir-opt-{version}")
    if found is None:
        pytest.skip(f"mlir-opt-{version} is not installed")
    return found
