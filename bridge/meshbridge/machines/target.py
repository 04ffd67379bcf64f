"""A target: devices of one machine in a topology, written `PLATFORM:DEVICE:TOPOLOGY`, as in `tpu:v5e:2x4`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.machines import machine
from meshbridge.machines.machine import PLATFORMS, Machine

EXAMPLES = "tpu:v5e:2x4 or gpu:h100:1x1x8"


@dataclass(frozen=True)
class Target:
    """What a program is compiled for."""

    text: str
    "As it was written."
    device: str
    "The name of the machine, or the path of its file."
    machine: Machine
    topology: tuple[int, ...]
    "How many of what the machine's `topology` names."

    @property
    def devices(self) -> int:
        """How many there are, as JAX counts them."""
        return prod(self.topology) * self.machine.devices_per_chip


def parse(text: str) -> Target:
    """The target of that notation. Raises MeshError."""
    platform, _, rest = text.partition(":")
    device, _, topology = rest.rpartition(":")  # a path may hold colons
    if not (platform and device and topology):
        raise MeshError(f"error: expected a target PLATFORM:DEVICE:TOPOLOGY, as in {EXAMPLES}, found '{text}'")
    if platform not in PLATFORMS:
        raise MeshError(f"error: target '{text}': expected platform {' or '.join(PLATFORMS)}, found '{platform}'")
    found = machine.find(platform, device)
    sizes = topology.split("x")
    if len(sizes) != len(found.topology) or not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        expected = f"{len(found.topology)} positive numbers with x between them ({', '.join(found.topology)})"
        raise MeshError(f"error: target '{text}': expected a topology of {expected}, found '{topology}'")
    return Target(text, device, found, tuple(map(int, sizes)))


def check_devices(module: ir.Module, available: int, there: str) -> int:
    """How many devices an annotated program is for. Raises MeshError where it names no mesh, and where that needs more than are
    `available`, of which `there` says where."""
    mesh = find_mesh(module)
    if mesh is None:
        raise MeshError("<module>: error: the program names no mesh, there is nothing to partition")
    if mesh.size > available:
        raise MeshError(f"error: mesh @{mesh.name} needs {mesh.size} devices, {there} {available}")
    return mesh.size
