"""Plain StableHLO through a compiler that shares nothing with XLA: IREE takes it, and keeps every collective.

It needs `iree-compile` on the path, beside Python, or named by IREE_COMPILE: `pip install iree-base-compiler`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from testdata.catalogue import BUILDERS, build
from testdata.program import Program
from testdata.realistic import catalogue as realistic

BESIDE_PYTHON = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
IREE = os.environ.get("IREE_COMPILE") or shutil.which("iree-compile", path=BESIDE_PYTHON)

pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(IREE is None, reason="no iree-compile on the path: pip install iree-base-compiler"),
]

SMALL = ("misc_fft2", "mlp_ws2d", "moe_grad", "sample_top_k", "loop_stencil")
PROGRAMS = [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in BUILDERS if name != "gpt48"]

OPS = (Path(__file__).parent / "iree_ops.txt").read_text().split()
"""What IREE (3.13) takes, of what the catalogue needs. It has no `select_and_scatter`, `cholesky` and `triangular_solve`."""

KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_permute": "send_recv",
    "stablehlo.reduce_scatter": "reduce_scatter",
}
"""Collectives of StableHLO, and what IREE calls them."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_iree_keeps_every_collective(name: str, tmp_path: Path) -> None:
    check(build(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", realistic.BUILDERS)
def test_iree_keeps_those_of_realistic_programs(name: str, tmp_path: Path) -> None:
    check(realistic.build(name, "constrained", 8), tmp_path)


def check(program: Program, tmp_path: Path) -> None:
    """IREE compiles a program, and has as many collectives of each kind as it had before it was made plain."""
    exported = program.export_for("tpu")  # for CPUs, linear algebra is calls of a library
    local = meshbridge.partition(exported, emit="local")
    plain = meshbridge.partition(exported, emit="local", stablehlo_version="1.9.0", ops=OPS)
    (tmp_path / "in").write_bytes(plain.serialize())
    assert IREE is not None
    options = ("--iree-input-type=stablehlo", "--iree-hal-target-backends=llvm-cpu", "--compile-to=flow")
    done = subprocess.run(
        [IREE, *options, str(tmp_path / "in"), "-o", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    kept = Counter(re.findall(r"= flow\.collective\.(\w+)", (tmp_path / "out").read_text()))
    assert kept == collectives(local) == collectives(plain.module)


def collectives(module: ir.Module) -> Counter[str]:
    """How many of each kind `module` has, as IREE calls them."""
    return Counter(KINDS[op.name] for op in mlir.find(module.operation, KINDS))
