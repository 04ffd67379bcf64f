"""Runs one contestant on one program in its own process: XLA reads its flags once, and its fatal errors end the process.

`python -m meshbridge.tools.compare.child FOLDER REQUEST` reads the program from FOLDER/program, reads or writes the reference
outputs in FOLDER/reference.npz, and writes its measurements to FOLDER/result.json. Its standard error is FOLDER/errors.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from meshbridge import pipeline
from meshbridge.analysis import hlo_cost
from meshbridge.analysis.hlo import HloError
from meshbridge.analysis.hlo_figures import figures
from meshbridge.analysis.hlo_kernel_time import COST_OPTION
from meshbridge.cost.seconds import op_time
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import Machine, OptionSet, OptionValue
from meshbridge.machines.target import Target, parse
from meshbridge.read import formats
from meshbridge.runtime import reference, targets
from meshbridge.runtime.pjrt import ShardedPort, boundary
from meshbridge.runtime.xla import OptionError
from meshbridge.tools import trial
from meshbridge.tools.compare import process, spmd
from meshbridge.tools.compare.contestants import CONTESTANTS, REPEATS, prepared
from meshbridge.tools.compare.figures import Figures, Modelled

ERRORS, EXECUTABLE = "errors", "executable"
"""Files of the folder: the child's standard error, with the compilers' logs, and the serialized executable."""

UNSHARDED = "unsharded"
"""The unsharded program on one device, the reference of all contestants."""


@dataclass(frozen=True)
class Request:
    """The task of a child: run `contestant` on `devices` devices, and write the reference if `lead`.

    Inputs come from the archive `inputs`, or from `seed` if that is empty. With a `target`, the program is compiled for its first
    devices, and nothing runs. Our plan is optimised for `machine` under `option_set`. XLA compiles under `compiler_options`. If
    `keep`, the executable is written to the folder, and nothing is measured.
    """

    contestant: str
    devices: int
    seed: int = 0
    inputs: str = ""
    lead: bool = False
    target: str = ""
    machine: str = pipeline.DEFAULTS.target.name
    option_set: OptionSet = "default"
    keep: bool = False
    compiler_options: dict[str, OptionValue] = field(default_factory=dict)

    @property
    def planned_for(self) -> CompileTarget:
        """What our plan is made for. Raises MeshError for a machine that is not known."""
        return CompileTarget.of(self.machine, compiler_options=self.option_set)


REFUSED = "refused"
"""The only key of a result if XLA refuses the options; its value is the reason."""


def main(arguments: Sequence[str]) -> int:
    """Runs the child. Errors other than crashes are results, too."""
    process.end_with_parent()
    folder, request = Path(arguments[0]), Request(**json.loads(arguments[1]))
    try:
        measured = _measured(folder, request)
    except OptionError as error:
        (folder / "result.json").write_text(json.dumps({REFUSED: str(error).removeprefix("error: ")}))
        return 0
    except MeshError as error:
        measured = Figures(error=str(error).removeprefix("<module>: error: "))
    except Exception as error:  # XLA's errors have no common type
        measured = Figures(error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    (folder / "result.json").write_text(json.dumps(asdict(measured)))
    return 0


def _measured(folder: Path, request: Request) -> Figures:
    module = formats.BYTECODE.open((folder / "program").read_bytes(), "program", context()).module
    if request.target:
        return _ahead_of_time(folder, request, module)
    inputs = _inputs(request, boundary(module)[0])
    if request.contestant == UNSHARDED:
        _save(folder, reference.unsharded(module, inputs))
        return Figures()
    return _contest(folder, request, module, inputs)


def _inputs(request: Request, ports: Sequence[ShardedPort]) -> Sequence[Any]:
    if request.inputs:
        return trial.typed(ports, trial.load_arrays(request.inputs))
    return trial.random_inputs(ports, request.seed)


def _ahead_of_time(folder: Path, request: Request, module: ir.Module) -> Figures:
    target = parse(request.target)
    devices = targets.devices(target)[: request.devices]
    if request.keep:
        contestant = CONTESTANTS[request.contestant]
        copy, _ = prepared(contestant, module, request.planned_for)
        options = request.compiler_options
        compiled = spmd.compile(copy, devices, shardy=contestant.shardy, compiler_options=options)
        (folder / EXECUTABLE).write_bytes(compiled.loaded.serialize())
        return Figures()
    told = {COST_OPTION: True} if target.machine.platform == "gpu" else {}
    compiled, measured = _compiled(request, module, devices, told)
    try:
        return replace(
            measured, modelled=modelled(target, compiled.loaded.hlo_text(), (folder / ERRORS).read_text(errors="replace"))
        )
    except HloError as error:
        return replace(measured, unmodelled=str(error))


def modelled(target: Target, text: str, log: str) -> Modelled:
    """The compiler's estimate of a step, from the optimised HLO and the compiler's log. Raises HloError if there is none."""
    if target.machine.platform == "tpu":
        cost = hlo_cost.tpu_cost(text)
        return Modelled(cost.cycles, None, "cycles", cost.without_estimate)
    time = hlo_cost.gpu_time(text, log, partial(_roofline, target.machine))
    return Modelled(time.total, time.wasted, "microseconds", len(time.unmodelled), time.outside)


def _roofline(machine: Machine, flops: float, element: str, memory_bytes: float) -> float:
    """Microseconds of a kernel. HLO's signed integers are MLIR's."""
    dtype = re.sub(r"^s(?=\d)", "i", element)
    return op_time(flops, dtype, memory_bytes, machine) / machine.efficiency * 1e6


def _contest(folder: Path, request: Request, module: ir.Module, inputs: Sequence[Any]) -> Figures:
    compiled, measured = _compiled(request, module, jax.devices()[: request.devices])
    running = []
    for _ in range(REPEATS):
        placed = compiled.place(inputs)  # a program may donate its arguments
        started = time.perf_counter()
        outputs = compiled.execute(placed)
        running.append(time.perf_counter() - started)
    results = compiled.join(outputs)
    if request.lead:
        _save(folder, results)
    absolute, relative = (None, None) if request.lead else _differences(folder, results)
    return replace(measured, run_seconds=min(running), absolute_difference=absolute, relative_difference=relative)


def _compiled(
    request: Request, module: ir.Module, devices: Sequence[Any], told: Mapping[str, OptionValue] = MappingProxyType({})
) -> tuple[spmd.Compiled, Figures]:
    """The program as compiled by a contestant under the options of the request and `told`, and its figures before it runs."""
    contestant = CONTESTANTS[request.contestant]
    copy, partitioning = prepared(contestant, module, request.planned_for)
    plan = mlir.digest(copy)
    started = time.perf_counter()
    options = {**request.compiler_options, **told}
    compiled = spmd.compile(copy, devices, shardy=contestant.shardy, compiler_options=options)
    compiling = time.perf_counter() - started
    memory = compiled.loaded.memory
    return compiled, Figures(
        **vars(figures(compiled.loaded.hlo_text())),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        peak_bytes=memory.peak_memory_in_bytes,
        plan=plan,
        partition_seconds=partitioning if contestant.is_ours else None,
        compile_seconds=compiling,
    )


def _reference(folder: Path) -> Path:
    return folder / "reference.npz"


def _save(folder: Path, results: Sequence[Any]) -> None:
    """Saves results as bytes: archives only support numpy's own types."""
    arrays: dict[str, Any] = {"kinds": np.array([result.dtype.name for result in results], str)}
    for index, result in enumerate(results):
        arrays[f"shape_{index}"] = np.array(result.shape, np.int64)
        arrays[f"bytes_{index}"] = np.frombuffer(result.tobytes(), np.uint8)
    np.savez(_reference(folder), **arrays)


def reference_results(folder: Path) -> list[np.ndarray[Any, Any]] | None:
    """The reference outputs in `folder`, or None."""
    if not _reference(folder).exists():
        return None
    with np.load(_reference(folder)) as archive:
        kinds = [np.dtype(getattr(jax.numpy, str(name)).dtype) for name in archive["kinds"]]
        return [
            np.frombuffer(archive[f"bytes_{index}"].tobytes(), kind).reshape(archive[f"shape_{index}"])
            for index, kind in enumerate(kinds)
        ]


def _differences(folder: Path, results: Sequence[Any]) -> tuple[float | None, float | None]:
    expected = reference_results(folder)
    if expected is None:
        return None, None
    worst = trial.worst(results, expected)
    return worst.absolute, worst.relative


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
