"""Devices that are not there, for the compilers that are: XLA:TPU and XLA:GPU compile ahead of time, on any machine.

Both come in packages of their own, which nothing but `devices` imports. They read the environment as JAX starts, and may end
their process: whoever compiles for a target does so in a process of its own, started with `environment`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.machine import Machine
from meshbridge.machines.target import Target

EXPORT_PLATFORM = {"tpu": "tpu", "gpu": "cuda"}
"""What jax.export calls the platforms."""

PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")}
"""The modules in which the compilers come, any one of which will do."""

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
    """Raises MeshError where the platform's compiler is not installed. Imports neither it nor JAX."""
    platform = target.machine.platform
    if not any(_is_there(name) for name in PACKAGES[platform]):
        hint = f"pip install 'meshbridge[{platform}]'"
        raise MeshError(f"error: target '{target.text}': XLA's compiler for {platform.upper()}s is not installed\n  hint: {hint}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what it is in
        return False


def environment(target: Target) -> dict[str, str]:
    """What must be in the environment of a process that compiles for `target` before it imports JAX."""
    return {"JAX_PLATFORMS": "cpu"} | _ENVIRONMENT[target.machine.platform]


def devices(target: Target) -> tuple[Any, ...]:
    """The devices of `target`, which programs can be compiled for. Raises MeshError for what the compiler does not know."""
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
"""Fields whose values are words that Protocol Buffers know."""


def text_proto(fields: Mapping[str, Any]) -> Iterator[str]:
    """A message as Protocol Buffers write it."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from (f"{name} {{", *text_proto(value), "}")
        elif isinstance(value, str) and name not in _ENUMERATIONS:
            yield f'{name}: "{value}"'
        else:
            yield f"{name}: {value}"
