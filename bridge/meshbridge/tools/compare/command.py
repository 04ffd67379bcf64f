"""Runs the comparison: starts one child process after the other and collects their results."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshbridge import pipeline, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, OpError, ir, walk_all
from meshbridge.machines.machine import OptionValue
from meshbridge.machines.target import Target, check_devices
from meshbridge.ops.traits import Trait, has
from meshbridge.read import formats
from meshbridge.read.formats import Program
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.runtime import pjrt, targets
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.runtime.xla import OptionError
from meshbridge.tools import trial
from meshbridge.tools.compare import child, process
from meshbridge.tools.compare.child import ERRORS, EXECUTABLE, REFUSED, UNSHARDED, Request, reference_results
from meshbridge.tools.compare.comparison import Comparison, TargetComparison
from meshbridge.tools.compare.contestants import CONTESTANTS, OURS
from meshbridge.tools.compare.figures import Figures
from meshbridge.tools.compare.process import NO_LIMITS, Limits

COMMAND: tuple[str, ...] = (sys.executable, "-m", "meshbridge.tools.compare.child")
"""The command line of a child."""

FORKS = hasattr(os, "fork")
"""Whether children are forks of one process."""

LEADERS = ("xla-shardy", "xla-gspmd")
"""The contestants whose outputs are the reference if the program has no unsharded form, in order."""

DEFAULT_OPTIONS = CompilerOptions()


def compare(
    module: ir.Module,
    *,
    devices: int | None = None,
    machine: str = pipeline.DEFAULTS.target.name,
    seed: int = 0,
    inputs: str = "",
    limits: Limits = NO_LIMITS,
    quiet: bool = True,
) -> Comparison:
    """Runs every contestant on `module`, which is not changed, with the same inputs: those of the archive `inputs`, or random
    ones from `seed`, on as many virtual devices as the program needs, at most `devices`. Our plan is optimised for `machine`.
    Each process is held to `limits`. Shows progress on a terminal unless `quiet`.

    Raises MeshError for a program that is partitioned, that needs more devices, or that does not fit the inputs, and MemoryError
    if the inputs do not fit in memory.
    """
    _refuse_partitioned(module)
    needed = _devices(module, devices, "there are")
    ports = pjrt.boundary(module)[0]
    if inputs:
        _check_inputs(ports, inputs)
    else:
        trial.check_room(ports)
    leaders = _leaders(module)
    order = (*leaders, *(name for name in CONTESTANTS if name not in leaders))
    with (
        tempfile.TemporaryDirectory() as folder,
        _children(_virtual(needed)) as start,
        progress.shown((UNSHARDED, *order), quiet=quiet, alike=True) as steps,
    ):
        (Path(folder) / "program").write_bytes(mlir.to_bytecode(module))

        def run(contestant: str, *, lead: bool) -> Figures:
            request = Request(contestant, needed, seed, inputs and str(Path(inputs).resolve()), lead, machine=machine)
            outcome = _outcome(start, Path(folder), request, limits)
            steps.done(contestant)
            return outcome

        remark = run(UNSHARDED, lead=True).error.partition("\n")[0]
        reference = "" if remark else UNSHARDED
        figures: dict[str, Figures] = {}
        for name in order:
            lead = not reference and name in leaders
            figures[name] = run(name, lead=lead)
            if lead and not figures[name].error:
                reference = name
    return Comparison(needed, reference, remark, {name: figures[name] for name in CONTESTANTS})


def compare_for(
    program: Program,
    for_targets: Sequence[Target],
    *,
    machine: str | None = None,
    without: Sequence[str] = (),
    compiler_options: CompilerOptions = DEFAULT_OPTIONS,
    limits: Limits = NO_LIMITS,
    quiet: bool = True,
) -> tuple[TargetComparison, ...]:
    """Compiles `program`, which is not changed, for each target, by every contestant except those in `without`, under its
    `compiler_options`. Nothing runs. Our plan is optimised for `machine`, by default the target's own, under the same options.

    Each compilation is held to `limits`. Raises MeshError if a compiler is not installed or refuses an option, if a target has
    fewer devices than the program needs, and for a program that is partitioned.
    """
    _refuse_partitioned(program.module)
    work = [(target, *_for_target(program, target)) for target in for_targets]
    comparisons = []
    contestants = [name for name in CONTESTANTS if name not in without]
    names = [f"{name}, {target.text}" for target in for_targets for name in contestants]
    with tempfile.TemporaryDirectory() as name, progress.shown(names, quiet=quiet, alike=True) as steps:
        folder = Path(name)
        for target, module, used in work:
            (folder / "program").write_bytes(mlir.to_bytecode(module))
            figures, under = {}, _options(compiler_options, target, contestants)
            with _compilers(target) as start:
                for contestant in contestants:
                    options = under[contestant]
                    chosen = machine or machine_of(target, used)
                    chosen_set = compiler_options.chosen
                    request = Request(
                        contestant, used, target=target.text, machine=chosen, option_set=chosen_set, compiler_options=options
                    )
                    figures[contestant] = _compile(start, folder, request, target, limits)
                    steps.done(f"{contestant}, {target.text}")
            comparisons.append(TargetComparison(target, used, figures, under, mlir.digest(module)))
    return tuple(comparisons)


def _options(chosen: CompilerOptions, target: Target, contestants: Sequence[str]) -> dict[str, dict[str, OptionValue]]:
    return {name: chosen.on(target.machine, explicit=CONTESTANTS[name].is_ours) for name in contestants}


def executable_for(
    program: Program,
    target: Target,
    *,
    machine: str | None = None,
    compiler_options: CompilerOptions = DEFAULT_OPTIONS,
    limits: Limits = NO_LIMITS,
) -> bytes:
    """Partitions and compiles `program`, which is not changed, for `target`; returns the executable as its runtime serializes it.
    The plan is optimised for `machine`, by default the target's own, under the same options.

    Raises MeshError like `compare_for`, except for a program that is partitioned, and if the program cannot be compiled within
    `limits`.
    """
    module, used = _for_target(program, target)
    with tempfile.TemporaryDirectory() as name, _compilers(target) as start:
        folder = Path(name)
        (folder / "program").write_bytes(mlir.to_bytecode(module))
        under, chosen = _options(compiler_options, target, [OURS])[OURS], machine or machine_of(target, used)
        chosen_set = compiler_options.chosen
        request = Request(
            OURS, used, target=target.text, machine=chosen, option_set=chosen_set, keep=True, compiler_options=under
        )
        figures = _compile(start, folder, request, target, limits)
        if figures.error:
            raise MeshError(figures.error if "error: " in figures.error else f"error: target '{target.text}': {figures.error}")
        return (folder / EXECUTABLE).read_bytes()


def machine_of(target: Target, used: int) -> str:
    """The machine that our plan is optimised for: the target's devices, without their topology if the program uses only some."""
    return target.text.partition(":")[2] if used == target.devices else target.device


def for_target(program: Program, target: Target) -> Program:
    """A copy of the program for a target's platform."""
    copy = replace(program, module=formats.copy_module(program.module))
    return formats.for_platform(copy, targets.EXPORT_PLATFORM[target.machine.platform])


def _for_target(program: Program, target: Target) -> tuple[ir.Module, int]:
    """The program's module for a target's platform, and its number of devices."""
    module = for_target(program, target).module
    used = _devices(module, target.devices, f"target '{target.text}' has")
    targets.check_installed(target)
    return module, used


def _compilers(target: Target) -> AbstractContextManager[process.Run]:
    """How children that compile for a target are run."""
    return _children(os.environ | targets.environment(target))


def _compile(run: process.Run, folder: Path, request: Request, target: Target, limits: Limits) -> Figures:
    """Compiles for a target. Raises MeshError if the compiler refuses the options."""
    try:
        return _outcome(run, folder, request, limits)
    except OptionError as error:
        raise MeshError(f"error: target '{target.text}': {error}") from None


def peer_results(module: ir.Module, *, seed: int, inputs: str) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """The first of XLA's partitioners that runs `module`, and the results on the devices of its mesh; inputs as for `compare`.

    Raises MeshError if none of them runs it.
    """
    _refuse_partitioned(module)
    devices = _devices(module, len(jax.devices()), "there are")
    with tempfile.TemporaryDirectory() as name, _children(_virtual(devices)) as start:
        folder = Path(name)
        (folder / "program").write_bytes(mlir.to_bytecode(module))
        for leader in _leaders(module):
            request = Request(leader, devices, seed, inputs and str(Path(inputs).resolve()), lead=True)
            figures = _outcome(start, folder, request)
            results = reference_results(folder)
            if not figures.error and results is not None:
                return leader, results
    raise MeshError(f"error: there is nothing to compare with: {leader} does not run the program: {figures.error}")


def _virtual(devices: int) -> dict[str, str]:
    """The environment of a process with that many virtual CPU devices."""
    return os.environ | targets.virtual_devices(devices)


def _leaders(module: ir.Module) -> Sequence[str]:
    notation = formats.find_notation(module)
    return LEADERS[::-1] if notation is not None and notation.name == "gspmd" else LEADERS


def _refuse_partitioned(module: ir.Module) -> None:
    """Raises MeshError for a program that is partitioned."""
    if is_partitioned(module):
        raise MeshError("<module>: error: the program is partitioned already, there is nothing to compare")
    for op in walk_all(module):
        if op.name.startswith("mesh.") and not has(op.name, Trait.ANNOTATION):
            raise OpError(op, "belongs to one device's program, which is partitioned already: there is nothing to compare")


def _devices(module: ir.Module, available: int | None, subject: str) -> int:
    """The number of devices of the program. Raises MeshError if it exceeds `available`; `subject` introduces that number."""
    copy = formats.copy_module(module)
    pipeline.verify(copy)
    pipeline.run((ImportShardings(),), copy)
    return check_devices(copy, available, subject)


def _check_inputs(ports: Sequence[pjrt.ShardedPort], path: str) -> None:
    arrays = trial.typed(ports, trial.load_arrays(path))
    pjrt.check_number(ports, arrays)
    for index, (port, array) in enumerate(zip(ports, arrays, strict=True)):
        port.fitted(f"argument {index}", array)


@contextmanager
def _children(environment: Mapping[str, str] | None = None) -> Iterator[process.Run]:
    """How children are run: by forks of one process that has imported JAX, or each by COMMAND if the system has no forks."""
    if FORKS:
        with process.forking(child.__name__, environment) as run:
            yield run
    else:
        yield lambda arguments, errors, limits: process.run([*COMMAND, *arguments], errors, limits, environment)


def _outcome(run: process.Run, folder: Path, request: Request, limits: Limits = NO_LIMITS) -> Figures:
    """Runs a child; returns its figures, or how it ended without a result. Raises OptionError with XLA's message."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    error = run([str(folder), json.dumps(asdict(request))], folder / ERRORS, limits)
    if error or not result.exists():
        return Figures(error=error or "it left no result")
    fields = json.loads(result.read_text())
    if REFUSED in fields:
        raise OptionError(fields[REFUSED])
    return Figures.of(fields)
