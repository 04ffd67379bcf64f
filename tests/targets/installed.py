"""Targets whose compilers are here."""

from __future__ import annotations

import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.target import Target, parse
from meshbridge.runtime import targets


def target(text: str) -> Target:
    """The target of that notation. Skips the test where its compiler is not installed."""
    found = parse(text)
    try:
        targets.check_installed(found)
    except MeshError as error:
        pytest.skip(str(error))
    return found
