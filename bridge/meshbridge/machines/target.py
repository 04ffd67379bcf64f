"""A target: devices of one machine in a topology, written `PLATFORM:DEVICE:TOPOLOGY`, as in `tpu:v5e:2x4`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.machines import machine
from meshbridge.machines.machine import Machine, OptionSet

EXAMPLES = "tpu:v5e:2x4 or gpu:h100:1x1x8"

COMPILED_FOR = ("tpu", "gpu")
"""The platforms whose compilers need none of their devices. A CPU needs no target: programs are compiled where they run."""


ALL_AXES = "*"
"""Instead of the name of an axis in a layout: all of them, whose devices count along what follows, outermost first."""


@dataclass(frozen=True)
class Target:
    """What a program is compiled for, or its time is predicted on."""

    text: str
    "As it was written."
    device: str
    "The name of the machine, or the path of its file."
    machine: Machine
    topology: tuple[int, ...]
    "How many of what the machine's `topology` names."
    slices: int = 1
    "How many of that there are."
    layout: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """By the name of a mesh axis, its links, or axes of the torus; axes without a name here take the remaining ones.
    Under ALL_AXES, the links of all axes."""

    @property
    def devices(self) -> int:
        """How many there are, as JAX counts them."""
        return self.slices * prod(self.topology) * self.machine.devices_per_chip

    @property
    def node_topology(self) -> tuple[int, ...]:
        """The topology of one slice or node."""
        return self.topology if self.machine.link.wrap_multiple else self.topology[-1:]

    @property
    def nodes(self) -> int:
        """How many slices or nodes there are."""
        return self.slices * prod(self.topology) // prod(self.node_topology)


def parse(text: str) -> Target:
    """The target of that notation. Raises MeshError."""
    platform, _, rest = text.partition(":")
    device, _, topology = rest.rpartition(":")  # a path may hold colons
    if not (platform and device and topology):
        raise MeshError(f"error: expected a target PLATFORM:DEVICE:TOPOLOGY, as in {EXAMPLES}, found '{text}'")
    if platform not in COMPILED_FOR:
        raise MeshError(f"error: target '{text}': expected platform {' or '.join(COMPILED_FOR)}, found '{platform}'")
    found = machine.find(platform, device)
    return Target(text, device, found, _sizes(f"target '{text}'", topology, found.topology))


def of_machine(text: str, layout: str = "", compiler_options: OptionSet = "default") -> Target:
    """Devices whose platform the machine's name says, written `DEVICE:TOPOLOGY`, as in `v5p:4x4x4`; in front of the topology of a
    torus may stand how many slices there are: `v5p:2x4x4x4`. A layout is written `data=dcn,model=x+y`. Steps are compiled under
    that set of options. Raises MeshError."""
    device, _, topology = text.rpartition(":")
    if not (device and topology):
        raise MeshError(f"error: expected a machine DEVICE:TOPOLOGY, as in v5p:4x4x4 or h100:1x1x8, found '{text}'")
    found = machine.named(device).under(compiler_options)
    names = found.topology
    if found.link.wrap_multiple and topology.count("x") == len(names):
        names = ("slices", *names)
    sizes = _sizes(f"machine '{text}'", topology, names)
    whole = len(found.topology)
    return Target(text, device, found, sizes[-whole:], prod(sizes[:-whole]), parse_layout(layout))


def parse_layout(text: str) -> dict[str, tuple[str, ...]]:
    """A layout as it is written: `data=dcn,model=x+y`; nothing where nothing is. Raises MeshError."""
    found: dict[str, tuple[str, ...]] = {}
    for each in text.split(",") if text else ():
        axis, equals, where = (part.strip() for part in each.partition("="))
        if not (axis and equals and where) or axis in found:
            raise MeshError(f"error: expected a layout AXIS=LINK,…, each axis once, as in data=dcn,model=ici, found '{text}'")
        found[axis] = tuple(name.strip() for name in where.split("+"))
    return found


_TOPOLOGY = re.compile(r":\d[\dx]*$")


def has_topology(name: str) -> bool:
    """Whether the name of a machine says how many devices there are, as `v5p:4x4x4` does and `v5p` does not."""
    return _TOPOLOGY.search(name) is not None


def _sizes(place: str, topology: str, names: Sequence[str]) -> tuple[int, ...]:
    sizes = topology.split("x")
    if len(sizes) != len(names) or not all(re.fullmatch("[1-9][0-9]*", size) for size in sizes):
        expected = f"{len(names)} positive numbers with x between them ({', '.join(names)})"
        raise MeshError(f"error: {place}: expected a topology of {expected}, found '{topology}'")
    return tuple(map(int, sizes))


def check_devices(module: ir.Module, available: int | None, there: str) -> int:
    """How many devices an annotated program is for. Raises MeshError where it names no mesh, and where that needs more than are
    `available`, of which `there` says where; None is any number."""
    mesh = find_mesh(module)
    if mesh is None:
        raise MeshError("<module>: error: the program names no mesh, there is nothing to partition")
    if available is not None and mesh.size > available:
        raise MeshError(f"error: mesh @{mesh.name} needs {mesh.size} devices, {there} {available}")
    return mesh.size
