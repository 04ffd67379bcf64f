"""Train steps of other people's codebases under `meshbridge.patch()`, each in a process: numbers are those of `jax.jit`.

`make test-codebases` runs all that can be installed, `make test-codebases PART=2/5` a few that are quick to install.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.codebases import run_apart
from testdata.codebases.catalogue import CODEBASES, Program, part, programs
from testdata.codebases.install import missing
from tests.conftest import PART
from tests.xla_flags import QUICK_TO_COMPILE

pytestmark = pytest.mark.codebases

CHOSEN = part(*map(int, os.environ[PART].split("/"))) if os.environ.get(PART) else list(CODEBASES)


@pytest.mark.parametrize("program", [each for each in programs() if each.module in CHOSEN], ids=lambda each: each.name)
def test_a_train_step_as_it_stands(program: Program) -> None:
    if (why := missing(program.module)) is not None:
        pytest.skip(f"{program.module}: {why}")
    ran = run_apart(program, QUICK_TO_COMPILE)
    assert ran.is_right, ran
