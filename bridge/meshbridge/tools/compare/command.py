"""The comparison seen from outside: hands the program to one child process after the other and collects what they found."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshbridge import pipeline
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, OpError, ir, walk_all
from meshbridge.read import formats
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.runtime import pjrt
from meshbridge.tools import progress, trial
from meshbridge.tools.compare.child import UNSHARDED, Request, reference_results
from meshbridge.tools.compare.contestants import CONTESTANTS
from meshbridge.tools.compare.figures import Figures

COMMAND: tuple[str, ...] = (sys.executable, "-m", "meshbridge.tools.compare.child")
"""What a child is started with."""

LEADERS = ("xla-shardy", "xla-gspmd")
"""Whose outputs are the reference where the program has no unsharded form: first who reads its shardings as they stand."""

_ANNOTATIONS = frozenset({"mesh.mesh", "mesh.sharding", "mesh.shard"})
"""Mesh operations of a program that is not partitioned."""


@dataclass(frozen=True)
class Comparison:
    """All contestants on one program. `reference` names what outputs are compared with, and `remark` says why it is not the
    unsharded run where it is not.
    """

    devices: int
    reference: str
    remark: str
    figures: dict[str, Figures]


def compare(module: ir.Module, *, devices: int, seed: int = 0, inputs: str = "", quiet: bool = True) -> Comparison:
    """Every contestant on `module`, which is not changed, and on the same inputs: those of the archive `inputs`, else drawn from
    `seed`. Shows on a terminal which of them runs unless `quiet`.

    XLA is asked for `devices` virtual devices through the environment, before JAX starts (see `commands`).

    Raises MeshError for a program that is partitioned already, that needs more devices, or that does not take these inputs,
    and MemoryError where they cannot be held.
    """
    needed = _devices(module, devices)
    ports = pjrt.boundary(module)[0]
    if inputs:
        _check_inputs(ports, inputs)
    else:
        trial.check_room(ports)
    leaders = _leaders(module)
    order = (*leaders, *(name for name in CONTESTANTS if name not in leaders))
    with tempfile.TemporaryDirectory() as folder, progress.shown((UNSHARDED, *order), quiet=quiet) as steps:
        (Path(folder) / "program").write_bytes(mlir.to_bytecode(module))

        def run(contestant: str, *, lead: bool) -> Figures:
            request = Request(contestant, needed, seed, inputs and str(Path(inputs).resolve()), lead)
            outcome = _outcome(Path(folder), request)
            steps.done(contestant)
            return outcome

        remark = run(UNSHARDED, lead=True).error.partition("\n")[0]
        reference = "" if remark else UNSHARDED
        found: dict[str, Figures] = {}
        for name in order:
            lead = not reference and name in leaders
            found[name] = run(name, lead=lead)
            if lead and not found[name].error:
                reference = name
    return Comparison(needed, reference, remark, {name: found[name] for name in CONTESTANTS})


def peer_results(module: ir.Module, *, seed: int, inputs: str) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Who of XLA's partitioners runs `module`, and the results on as many devices as its mesh has; inputs as for `compare`.

    Raises MeshError where none of them runs it.
    """
    devices = _devices(module, len(jax.devices()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program").write_bytes(mlir.to_bytecode(module))
        for leader in _leaders(module):
            found = _outcome(folder, Request(leader, devices, seed, inputs and str(Path(inputs).resolve()), lead=True))
            results = reference_results(folder)
            if not found.error and results is not None:
                return leader, results
    raise MeshError(f"error: there is nothing to compare with: {leader} does not run the program: {found.error}")


def _leaders(module: ir.Module) -> Sequence[str]:
    notation = formats.find_notation(module)
    return LEADERS[::-1] if notation is not None and notation.name == "gspmd" else LEADERS


def _devices(module: ir.Module, available: int) -> int:
    """How many devices the program is for."""
    if is_partitioned(module):
        raise MeshError("<module>: error: the program is partitioned already, there is nothing to compare")
    for op in walk_all(module):
        if op.name.startswith("mesh.") and op.name not in _ANNOTATIONS:
            raise OpError(op, "belongs to one device's program, which is partitioned already: there is nothing to compare")
    copy = formats.copy_module(module)
    pipeline.verify(copy)
    pipeline.run((ImportShardings(),), copy)
    mesh = find_mesh(copy)
    if mesh is None:
        raise MeshError("<module>: error: the program names no mesh, there is nothing to partition")
    if mesh.size > available:
        raise MeshError(f"error: mesh @{mesh.name} needs {mesh.size} devices, there are {available}")
    return mesh.size


def _check_inputs(ports: Sequence[pjrt.Port], path: str) -> None:
    arrays = trial.load_arrays(path)
    pjrt.check_number(ports, arrays)
    for index, (port, array) in enumerate(zip(ports, arrays, strict=True)):
        port.fitted(f"argument {index}", array)


def _outcome(folder: Path, request: Request) -> Figures:
    """What a child found, or how it ended without a result."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [*COMMAND, str(folder), json.dumps(asdict(request))]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode == 0 and result.exists():
        read = json.loads(result.read_text())
        return Figures(**read | {"unknown_loops": tuple(read["unknown_loops"])})
    return Figures(error=f"{_ending(done.returncode)}: {_last_words(done.stderr.splitlines())}")


def _ending(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last_words(lines: Sequence[str]) -> str:
    """XLA's fatal message, else the last line."""
    fatal = [line for line in lines if re.match(r"F\d{4} ", line) or "Check failed" in line]
    return (fatal or [line for line in lines if line.strip()] or ["it said nothing"])[-1].strip()
