"""What XLA and what meshbridge make of the faults. XLA may abort, so it runs in processes of its own: one for many programs,
another for the rest after an abort.

`python -m tests.zoo.observe FOLDER NAME…` is such a process: it leaves NAME.json and NAME.err in FOLDER for every program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.export

import meshbridge
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from tests.patience import PATIENCE
from tests.zoo import FAULTS, Fault

REMATERIALIZES = "Involuntary full rematerialization"


@dataclass(frozen=True)
class Observation:
    """What one compiler does with one program: `outcome` in words, and wire bytes per device unless it gives none.

    `scattered_bytes` count an all-reduce that is only sliced as a reduce-scatter.
    """

    outcome: str
    wire_bytes: float | None = None
    scattered_bytes: float | None = None

    @property
    def right(self) -> bool:
        """Whether the numbers are those of one device."""
        return self.outcome.startswith(RIGHT)


RIGHT = "right"
WRONG = "wrong numbers"


def ours(fault: Fault) -> Observation:
    """What meshbridge makes of the program in the fewest bytes. Raises what it raises."""
    with fault.on(fault.devices) as mesh:
        partitioned = meshbridge.partition(jax.export.export(fault.jit(mesh))(*fault.placed(mesh)), machine="bytes")
        shardings = {"in_shardings": fault.argument_shardings(mesh), "out_shardings": fault.result_shardings(mesh)}
        return _observed(fault, mesh, jax.jit(partitioned.call, **shardings))


def xla(fault: Fault) -> Observation:
    """What XLA makes of it, in this process, which may end by that."""
    with fault.on(fault.devices) as mesh:
        try:
            return _observed(fault, mesh, fault.jit(mesh))
        except jax.errors.JaxRuntimeError as error:
            return Observation(f"refuses: {str(error).splitlines()[0][:120]}")


def _observed(fault: Fault, mesh: jax.sharding.Mesh, jitted: Any) -> Observation:
    compiled = jitted.lower(*fault.placed(mesh)).compile()
    sent = communication(hlo.read(compiled.as_text()))
    outcome = RIGHT if fault.error(fault.run(mesh, compiled)) <= fault.tolerance else WRONG
    return Observation(outcome, sent.wire_bytes, sent.scattered_bytes)


def all_of_xla(names: Iterable[str]) -> dict[str, Observation]:
    """What XLA makes of the programs called `names`."""
    found: dict[str, Observation] = {}
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            status = subprocess.run(
                [sys.executable, "-m", "tests.zoo.observe", folder, *left],
                check=False,
                timeout=PATIENCE,
                stderr=subprocess.DEVNULL,
            ).returncode
            done = [name for name in left if (Path(folder) / f"{name}.json").exists()]
            found |= {name: Observation(**json.loads((Path(folder) / f"{name}.json").read_text())) for name in done}
            left = left[len(done) :]
            if left:
                assert status < 0, f"the process ended with status {status} at {left[0]}"
                found[left[0]] = Observation(f"aborts: {_check((Path(folder) / f'{left[0]}.err').read_text())}")
                left = left[1:]
    return found


def _check(text: str) -> str:
    """What failed, of the text that an abort leaves."""
    check = re.search(r"Check failed: (.*?)(?: \(|$)", text, re.MULTILINE)
    return f"`{check[1].strip()}`" if check else "without a message"


def main(folder: str, names: list[str]) -> None:
    """The process: each program's outcome, with what was written to stderr meanwhile beside it."""
    for name in names:
        stderr = Path(folder) / f"{name}.err"
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
        found = asdict(xla(FAULTS[name]))
        if REMATERIALIZES in stderr.read_text():
            found["outcome"] += ", rematerializes"
        (Path(folder) / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
