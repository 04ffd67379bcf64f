"""Compiles a module with XLA through JAX's PJRT client, runs it, and reports on the executable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import jax
import jaxlib.version
import numpy as np
from jaxlib import xla_client

from meshbridge.backends.xla_cpu import OrderCollectives
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.machines.machine import OptionValue


class OptionError(MeshError):
    """An option that XLA does not know, or a value that it does not accept."""


@dataclass(frozen=True, eq=False)  # jax.jit hashes what it is given
class Loaded:
    """A compiled program, with the devices that run it in the order of their logical numbers."""

    executable: Any
    "What the PJRT client returned; None for a program that another process has compiled."
    devices: tuple[Any, ...]

    def run(self, arguments: Sequence[jax.Array]) -> list[list[jax.Array]]:
        """Each result as one array per device."""
        results: list[list[jax.Array]] = self.executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()
        return results

    def hlo_text(self) -> str:
        """The optimised HLO of one device's program, as XLA runs it."""
        return "\n".join(module.to_string() for module in self.executable.hlo_modules())

    def serialize(self) -> bytes:
        """The executable as bytes for the platform's runtime. Raises MeshError if XLA cannot serialize it."""
        try:
            written: bytes = self.executable.serialize()
        except jax.errors.JaxRuntimeError as error:
            raise MeshError(f"<module>: error: XLA cannot serialize the program: {str(error).splitlines()[0]}") from None
        return written

    @property
    def memory(self) -> Any:
        """XLA's `CompiledMemoryStats`: a device's bytes of arguments and results, and of temporaries."""
        return self.executable.get_compiled_memory_stats()

    @property
    def cost(self) -> dict[str, float]:
        """XLA's estimates for one device's program, by its own names."""
        estimates: dict[str, float] = self.executable.cost_analysis()
        return estimates


_AHEAD_OF_TIME = {"gpu": {"xla_gpu_enable_triton_gemm": False}}
"""XLA's options by platform for ahead-of-time devices. Without a device, Triton's products cannot be tuned: XLA splits those of
few results along the contracted dimension, with float32 in between, for which its cost model has no measurement
(docs/targets.md). An MLP step of 395 GFLOP over 8 H100, partitioned by XLA with Shardy, is modelled to compute for 11.0 ms, with
cuBLAS for 0.9."""

_SCHEDULER: dict[str, Any] = (
    {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jaxlib.version.__version_info__ > (0, 9, 0)
    else {"xla_cpu_enable_concurrency_optimized_scheduler": False}
)

_UNORDERED = {"cpu": _SCHEDULER}
"""XLA's options by platform for present devices, for programs with collectives that `order_collectives` has not seen.
XLA:CPU's default schedule favours concurrency: one virtual device may start an independent collective before a loop of
collectives, and another device after it; the devices then wait for each other forever (docs/performance.md).

The other schedule is depth-first. It computes the gradients of weights after the whole backward pass, so activations live longer:
an unrolled llama of MaxText, three small layers on 4x2 devices, has 948 KB of temporaries instead of 534 (partitioned by XLA: 975
and 612)."""


def order_collectives(module: ir.Module, devices: Sequence[Any]) -> None:
    """Orders collectives alike on all of `devices`, if these are virtual: XLA:CPU keeps no order around loops."""
    if len(devices) > 1 and devices[0].client.platform == "cpu":
        OrderCollectives().run(module)


def own_options(device: Any, *, ordered: bool) -> dict[str, OptionValue]:
    """The XLA options for every program on devices like this one. The collectives of a partitioned program that has passed
    `order_collectives` are `ordered`."""
    if isinstance(device.client, mlir.CompileOnlyClient):
        return dict(_AHEAD_OF_TIME.get(device.client.platform, {}))
    return {} if ordered else dict(_UNORDERED.get(device.client.platform, {}))


def compile_module(
    module: ir.Module,
    devices: Sequence[Any],
    devices_are: Literal["replicas", "partitions"] = "replicas",
    configure: Callable[[Any], None] = lambda options: None,
    compiler_options: Mapping[str, OptionValue] = MappingProxyType({}),
) -> Loaded:
    """Compiles `module`, whose entry point it names `main`, for each of `devices`.

    Partitions run one program on global shapes, which XLA partitions; replicas each run the program as it stands. `configure`
    changes XLA's `ExecutableBuildOptions`; `compiler_options` are set by XLA's names. What is compiled for devices that are not
    there (see `targets`) does not run. Raises MeshError for a program that XLA refuses, OptionError for such an option.
    """
    replicas, partitions = (len(devices), 1) if devices_are == "replicas" else (1, len(devices))
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_replicas, options.num_partitions = build.num_replicas, build.num_partitions = replicas, partitions
    ids = np.array([device.id for device in devices]).reshape(replicas, partitions)
    options.device_assignment = build.device_assignment = xla_client.DeviceAssignment.create(ids)
    configure(build)
    with module.context:
        mlir.main_function(module).attributes["sym_name"] = ir.StringAttr.get("main")
        for name, count in (("replicas", replicas), ("partitions", partitions)):
            module.operation.attributes[f"mhlo.num_{name}"] = ir.Attribute.parse(f"{count} : i32")
    used = tuple(devices)
    order_collectives(module, used)
    options.env_option_overrides = list({**own_options(used[0], ordered=False), **compiler_options}.items())
    try:
        return Loaded(_compile(module, used, options), used)
    except jax.errors.JaxRuntimeError as error:
        message = str(error).splitlines()[0]
    if compiler_options and _refuses_options(used, options, message):
        hint = "they are those that were given, and those of the machine's file unless compiler-options is 'default'"
        raise OptionError(f"error: XLA does not take the compiler options: {message}\n  hint: {hint}")
    _refuse_other_dialects(module)
    raise MeshError(f"<module>: error: XLA cannot compile the program: {message}")


def _compile(module: ir.Module, devices: tuple[Any, ...], options: Any) -> Any:
    """The PJRT client's executable for a module. Raises XLA's own errors."""
    client, assigned = devices[0].client, xla_client.DeviceList(devices)
    if isinstance(client, mlir.CompileOnlyClient):
        return client.compile(module, assigned, options)
    data = mlir.to_bytecode(module)
    if b"lapack_" in data:
        _find_lapack()
    return client.compile_and_load(data, assigned, options)


DIALECTS = frozenset({"builtin", "chlo", "func", "mhlo", "mpmd", "sdy", "stablehlo"})
"""The dialects that XLA compiles, though not each op of them."""


def _refuse_other_dialects(module: ir.Module) -> None:
    """Raises OpError at the first op of a dialect that XLA does not compile, such as `arith` or `math`."""
    foreign = [op for op in mlir.walk_all(module) if op.name.partition(".")[0] not in DIALECTS]
    if foreign:
        names = ", ".join(sorted({op.name for op in foreign}))
        hint = (
            f"write the payload in StableHLO to run it; meshbridge partition --emit local has it as it is. All such ops: {names}"
        )
        raise OpError(foreign[0], "cannot be compiled by XLA, which takes StableHLO and CHLO", hint=hint)


def _refuses_options(devices: tuple[Any, ...], options: Any, message: str) -> bool:
    """Whether XLA gives the same message for a program that does nothing: then the options are at fault."""
    nothing = ir.Module.parse("func.func @main() { return }", mlir.context())
    try:
        _compile(nothing, devices, options)
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0] == message
    return False


def _find_lapack() -> None:
    """Makes jaxlib look up the routines of LAPACK, as JAX does when it traces a call of one: a program from a file would
    otherwise jump to an unresolved address."""
    from jaxlib import lapack

    prepare: Any = lapack.prepare_lapack_call  # without types
    prepare("geqrf", np.dtype(np.float32))
