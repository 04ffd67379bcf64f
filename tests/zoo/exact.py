"""What exact evaluation says of XLA's own partitioned programs, without running them.

`python -m tests.zoo.exact FOLDER NAME…` is a process that leaves NAME.verdict in FOLDER for every program: what exact evaluation
says after XLA's partitioner, and after all of its passes: `equal`, `different`, or why it could not be said. XLA writes the
program of one device to files while it compiles, as the flags below ask; it may abort.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.verification.verdict import verify
from meshbridge_converters import hlo
from tests.patience import PATIENCE
from tests.zoo import FAULTS, Fault

FLAGS = (
    *("--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0"),
    *("--xla_dump_to={folder}", "--xla_dump_hlo_pass_re=spmd-partitioning", "--xla_dump_hlo_as_text"),
)
EQUAL, DIFFERENT = "equal", "different"
RUNS = 8
"""Fields, and random inputs: an index past the end of its tensor is drawn in some of them."""


def verdict(fault: Fault, dumps: Path) -> str:
    """What exact evaluation says of the program after XLA's partitioner, and after all of its passes, on a line each."""
    with fault.on(fault.devices) as mesh:
        lowered = fault.jit(mesh).lower(*fault.placed(mesh))
        before = _partitioned(dumps)
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            return f"not compiled: {str(error).splitlines()[0]}"
        written = _partitioned(dumps) - before
        (after,) = [path for path in written if fault.name in path]
        context = mlir.context()
        source = ir.Module.parse(str(lowered.compiler_ir()), context)
        module = compiled.runtime_executable().hlo_modules()[0]
        parameters = [str(mlir.hlo.HloSharding.from_proto(each)) for each in module.spmd_parameters_shardings]
        results = str(mlir.hlo.HloSharding.from_proto(module.spmd_output_sharding))
        stages = [Path(after).read_bytes(), module.to_string().encode()]
        return "\n".join(_judged(source, hlo.read(text, after, context, parameters, results)) for text in stages)


def _judged(source: ir.Module, partitioned: ir.Module) -> str:
    try:
        return EQUAL if verify(source, partitioned, runs=RUNS).equal else DIFFERENT
    except MeshError as error:
        return str(error).splitlines()[0]


def _partitioned(dumps: Path) -> set[str]:
    return set(glob.glob(str(dumps / "*after_spmd-partitioning*.txt")))


def all_verdicts(names: Iterable[str]) -> dict[str, str]:
    """The verdicts of the programs called `names`; `aborts` where XLA ends its process."""
    found: dict[str, str] = {}
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            flags = " ".join(FLAGS).format(folder=folder)
            command = [sys.executable, "-m", "tests.zoo.exact", folder, *left]
            subprocess.run(command, check=False, timeout=PATIENCE, env=os.environ | {"XLA_FLAGS": flags})
            done = [name for name in left if (Path(folder) / f"{name}.verdict").exists()]
            found |= {name: (Path(folder) / f"{name}.verdict").read_text() for name in done}
        left = left[len(done) :]
        if left:
            found[left[0]] = "aborts"
            left = left[1:]
    return found


def main(folder: str, names: list[str]) -> None:
    """The process: each program's verdict in a file."""
    for name in names:
        try:
            text = verdict(FAULTS[name], Path(folder))
        except MeshError as error:
            text = str(error).splitlines()[0]
        (Path(folder) / f"{name}.verdict").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
