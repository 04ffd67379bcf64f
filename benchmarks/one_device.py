"""Runs one device's part of a program on one device: the child process of `benchmarks.on_gpu`.

`python -m benchmarks.one_device FOLDER REQUEST` reads a request as JSON, and writes what it measures to FOLDER/result.json. Its
standard error is FOLDER/errors, where XLA:GPU's scheduler logs its model.

With `mock`, JAX shows the devices of a topology of GPUs of which this process has one, and collectives do nothing. The numbers of
such a run mean nothing; its time and its memory are those of one device. Without, all devices are of this process, as the virtual
ones of a CPU are, and collectives run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.analysis.hlo import HloError
from meshbridge.analysis.hlo_figures import figures
from meshbridge.analysis.hlo_kernel_time import COST_OPTION
from meshbridge.cost.step import predict
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.machines.target import Target, parse
from meshbridge.read import formats
from meshbridge.runtime.targets import EXPORT_PLATFORM
from meshbridge.tools import trial
from meshbridge.tools.compare import process, spmd
from meshbridge.tools.compare.child import modelled
from meshbridge.tools.compare.contestants import CONTESTANTS
from testdata import catalogue

ERRORS, RESULT = "errors", "result.json"
"""Files of the folder."""


@dataclass(frozen=True)
class Request:
    """A program in the file `program`, partitioned by `contestant` for `target` and run `repeats` times after `warm` runs on the
    first device of the topology `mock`; or, with `numbers`, programs of `testdata` whose results are compared with those of
    `jax.jit`."""

    program: str = ""
    contestant: str = ""
    target: str = ""
    repeats: int = 20
    warm: int = 3
    mock: str = ""
    "Slices x hosts x devices of a host: JAX asks for as many of the last as this process has. Empty: no mocking."
    numbers: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Runs the child. Errors other than crashes are results, too."""
    process.end_with_parent()
    folder, request = Path(arguments[0]), Request(**json.loads(arguments[1]))
    if request.mock:
        mock(request.mock)
    try:
        found = numbers(request.numbers) if request.numbers else step(request, folder)
    except Exception as error:  # XLA's errors have no common type
        lines = str(error).splitlines()
        found = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}
    (folder / RESULT).write_text(json.dumps(found | {"device": jax.devices()[0].device_kind}))
    return 0


OPTIONS = {COST_OPTION: True, "xla_gpu_shard_autotuning": False}
"""XLA's options on a GPU. The other seven processes, which are mocked, would tune no kernel."""


def mock(topology: str) -> None:
    """Has JAX show the devices of `topology`, before it shows any, of which the first GPU of this machine is one."""
    jax.config.update("jax_mock_gpu_topology", topology)
    jax.config.update("jax_cuda_visible_devices", "0")


def step(request: Request, folder: Path) -> dict[str, Any]:
    """What one device's part of a program takes: seconds, and bytes of one device. Raises MeshError, and XLA's errors."""
    target, contestant = parse(request.target), CONTESTANTS[request.contestant]
    module = formats.for_platform(meshbridge.load(request.program), _platform()).module
    options = pipeline.Options.of(machine=f"{target.device}:{'x'.join(map(str, target.topology))}")
    predicted = _predicted(module, options) if contestant.is_ours else {}
    module = module if contestant.is_ours else contestant.prepare(module, options.target)
    plan, devices = mlir.digest(module), jax.devices()[: target.devices]
    is_gpu = devices[0].platform == "gpu"
    started = time.perf_counter()
    compiled = spmd.compile(module, devices, shardy=contestant.shardy, compiler_options=OPTIONS if is_gpu else {})
    compiling = time.perf_counter() - started
    text, memory = compiled.loaded.hlo_text(), compiled.loaded.memory
    read = figures(text)
    return {
        "plan": plan,
        **_timed(compiled, request),
        "repeats": request.repeats,
        "compile_seconds": compiling,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "allocated_bytes": _allocated(devices),
        "wire_bytes": read.wire_bytes,
        "exposed_bytes": read.exposed_bytes,
        "modelled": _model(target, text, folder) if is_gpu else None,
        "predicted": predicted,
    }


def _platform() -> str:
    """What jax.export calls the devices of this process."""
    return EXPORT_PLATFORM.get(jax.default_backend(), jax.default_backend())


def _predicted(module: ir.Module, options: pipeline.Options) -> dict[str, float]:
    """Partitions `module`, and predicts its step. `work_seconds` are those of kernels at their peaks: at an efficiency of e,
    `compute_seconds` are the launches and 1/e of the work."""
    found: dict[str, float] = {}

    def on_stage(name: str, staged: ir.Module) -> None:
        if name != "optimised":
            return
        target = options.target.devices
        assert target is not None
        whole = predict(staged, target)
        peak, half = (predict(staged, _at(target, efficiency)).compute_seconds for efficiency in (1.0, 0.5))
        found.update(
            seconds=whole.seconds,
            compute_seconds=whole.compute_seconds,
            exposed_seconds=whole.exposed_seconds,
            work_seconds=half - peak,
            launch_seconds=2 * peak - half,
            efficiency=target.machine.efficiency,
        )

    partitioning.partition_module(module, options, on_stage=on_stage)
    return found


def _at(target: Target, efficiency: float) -> Target:
    return replace(target, machine=replace(target.machine, efficiency=efficiency))


def _model(target: Target, text: str, folder: Path) -> dict[str, Any]:
    """What XLA models of the step; why not, where it does not."""
    try:
        return asdict(modelled(target, text, (folder / ERRORS).read_text(errors="replace")))
    except HloError as error:
        return {"error": str(error)}


def _timed(compiled: spmd.Compiled, request: Request) -> dict[str, Any]:
    """Seconds of a step, warm: the median by the clock of this process, the extremes, and the busy time of the device."""
    fresh = _arguments(compiled)
    seconds = []
    for _ in range(request.warm + request.repeats):
        placed = fresh()  # programs donate their arguments
        started = time.perf_counter()
        results = compiled.execute(placed)
        seconds.append(time.perf_counter() - started)
        del placed, results
    with tempfile.TemporaryDirectory() as folder:
        placed = fresh()
        with jax.profiler.trace(folder):
            compiled.execute(placed)
        kernels = kernel_seconds(_planes(Path(folder)))
    measured = seconds[request.warm :]
    return {
        "step_seconds": median(measured),
        "fastest_seconds": min(measured),
        "slowest_seconds": max(measured),
        "kernel_seconds": kernels,
    }


def _arguments(compiled: spmd.Compiled) -> Callable[[], list[jax.Array]]:
    """Draws new arguments on the devices of this process: normal numbers around zero, and integers of 0 and 1."""
    devices = compiled.loaded.devices
    here = [device for device in devices if device.process_index == jax.process_index()]
    shardings = compiled.loaded.executable.get_parameter_shardings() or [None] * len(compiled.inputs)
    everywhere = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec())

    def drawn(port: Any, sharding: Any) -> jax.Array:
        shape = spmd.tiles(sharding, len(port.shape), len(devices)).shape(port.shape)
        shards = [jax.device_put(_draw(shape, port.dtype), device) for device in here]
        return jax.make_array_from_single_device_arrays(shape, everywhere, shards)

    def fresh() -> list[jax.Array]:
        placed = [drawn(*pair) for pair in zip(compiled.inputs, shardings, strict=True)]
        jax.block_until_ready(placed)
        return placed

    return fresh


SCALE = 0.02
"""Standard deviation of drawn numbers: those of a layer's weights. Zeros would need less power, and a GPU then clocks higher."""


def _draw(shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
    """On the first device of this process."""
    device = jax.local_devices()[0]
    with jax.default_device(device), jax.enable_x64(True):  # else JAX would convert 64-bit numbers to 32-bit ones
        key = jax.random.key(0)
        if jnp.issubdtype(dtype, jnp.inexact):
            return (SCALE * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
        return jax.random.bernoulli(key, 0.5, shape).astype(dtype)


def _planes(folder: Path) -> Iterable[Any]:
    for path in folder.rglob("*.xplane.pb"):
        yield from jax.profiler.ProfileData.from_file(str(path)).planes


def kernel_seconds(planes: Iterable[Any]) -> float | None:
    """Seconds in which any stream of the first GPU of a profile runs a kernel or a copy; None in a profile without a GPU."""
    for plane in planes:
        if plane.name.startswith("/device:GPU"):
            streams = [line for line in plane.lines if line.name.startswith("Stream")]
            spans = sorted((event.start_ns, event.start_ns + event.duration_ns) for line in streams for event in line.events)
            return _covered(spans) * 1e-9
    return None


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans, which are in order of their start."""
    covered, reached = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _allocated(devices: Sequence[Any]) -> int | None:
    """The most bytes that were allocated on this process's device; None where the device does not say."""
    own = next(device for device in devices if device.process_index == jax.process_index())
    stats = own.memory_stats()
    return stats and stats.get("peak_bytes_in_use")


TOLERANCE = 1e-3
"""Largest relative error of a result. Programs ask for float32 products, which would be tf32 otherwise."""


def numbers(names: Sequence[str]) -> dict[str, Any]:
    """The largest relative difference of each program's results from those of `jax.jit`, both on one device. Ours is partitioned
    by every pass, for a mesh whose axes have one device each."""
    return {"numbers": {name: _difference(name) for name in names}, "tolerance": TOLERANCE}


def _difference(name: str) -> float:
    program = catalogue.build(name)
    program = replace(program, axes=tuple((axis, 1) for axis, _ in program.axes))
    arguments = program.example_arguments()
    with jax.default_matmul_precision("float32"):
        mesh = program.mesh()
        with jax.set_mesh(mesh):
            expected = [np.asarray(leaf) for leaf in jax.tree.leaves(program.jit(mesh)(*arguments))]
        exported = program.export_for(_platform())
    module = formats.unpack(exported, mlir.context()).module
    partitioning.partition_module(module, pipeline.Options())
    compiled = spmd.compile(module, jax.devices()[:1], shardy=True)
    placed = compiled.place([np.asarray(leaf) for leaf in jax.tree.leaves(arguments)])
    return trial.worst(compiled.join(compiled.execute(placed)), expected).relative


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
