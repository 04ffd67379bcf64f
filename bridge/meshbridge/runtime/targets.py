"""Ahead-of-time devices: XLA:TPU and XLA:GPU compile for devices that are not there, on any machine.

The compilers are packages of their own, which only `devices` imports. They read the environment when JAX starts, and may end
their process: compile for a target in a separate process with `environment`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.machine import Machine
from meshbridge.machines.target import Target

EXPORT_PLATFORM = {"tpu": "tpu", "gpu": "cuda"}
"""The platforms by jax.export's names."""

PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")}
"""The modules that contain each compiler, any one of which is enough."""

_ENVIRONMENT = {
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",  # no server of Google's cloud says what this machine is
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # of this host; whatever is compiled for, it must be something
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else one process of a machine at a time, as if it had the chips
    },
    # The scheduler's log is where XLA:GPU says how long it thinks that a program takes.
    "gpu": {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "latency_hiding_scheduler=1"},
}


def check_installed(target: Target) -> None:
    """Raises MeshError if the platform's compiler is not installed. Imports neither it nor JAX."""
    platform = target.machine.platform
    if not any(_is_there(name) for name in PACKAGES[platform]):
        hint = f"pip install 'meshbridge[{platform}]'"
        raise MeshError(f"error: target '{target.text}': XLA's compiler for {platform.upper()}s is not installed\n  hint: {hint}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the enclosing package
        return False


def environment(target: Target) -> dict[str, str]:
    """The environment of a process that compiles for `target`, to be set before it imports JAX."""
    return {"JAX_PLATFORMS": "cpu"} | _ENVIRONMENT[target.machine.platform]


def virtual_devices(count: int) -> dict[str, str]:
    """The environment of a process with that many virtual CPU devices, to be set before it imports JAX."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    return {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}".strip(), "JAX_PLATFORMS": "cpu"}


def devices(target: Target) -> tuple[Any, ...]:
    """The devices of `target`, for which programs can be compiled. Raises MeshError for what the compiler does not know."""
    import jax
    from jax.experimental import topologies

    machine, shape = target.machine, "x".join(map(str, target.topology))
    try:
        if machine.platform == "tpu":
            told = {key: value for key, value in machine.compiler.items() if key != "name"}
            described = topologies.get_topology_desc(f"{machine.compiler['name']}:{shape}", "tpu", **told)
        else:
            config = "\n".join(text_proto(target_config(machine)))
            described = topologies.get_topology_desc(platform="cuda", target_config=config, topology=shape)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise MeshError(f"error: target '{target.text}': {str(error).splitlines()[0]}") from None
    return tuple(described.devices)


def target_config(machine: Machine) -> dict[str, Any]:
    """The fields of XLA's `GpuTargetConfigProto`."""
    told = {key: value for key, value in machine.compiler.items() if key not in ("name", "source")}
    name = machine.compiler["name"]
    of_memory = {"device_memory_size": machine.memory_bytes, "memory_bandwidth": int(machine.memory_bandwidth)}
    return told | {
        "device_description_str": name,
        "gpu_device_info": told.get("gpu_device_info", {}) | of_memory | {"name": name},
    }


_ENUMERATIONS = frozenset({"feature_extension"})
"""Fields whose values are enumerators."""


def text_proto(fields: Mapping[str, Any]) -> Iterator[str]:
    """A message in Protocol Buffers' text format."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from (f"{name} {{", *text_proto(value), "}")
        elif isinstance(value, str) and name not in _ENUMERATIONS:
            yield f'{name}: "{value}"'
        else:
            yield f"{name}: {value}"
