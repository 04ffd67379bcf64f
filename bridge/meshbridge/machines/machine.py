"""What is known of one kind of device, from a TOML file: those of this folder by name, a user's own by path.

`machines/tpu/v5e.toml` is `v5e`, of the platform `tpu`. docs/targets.md explains the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.registry import Registry

PLATFORMS = ("tpu", "gpu")
"""The kinds of accelerators, each of which has a compiler of its own."""


@dataclass(frozen=True)
class Link:
    """What connects devices. A collective takes the time in which it starts and that of its bytes."""

    bandwidth: float
    "Bytes per second that a device receives in a collective: along one axis of a torus from both sides."
    latency: float
    "Seconds in which a collective starts."

    @property
    def launch(self) -> float:
        """Bytes that it carries in the time in which a collective starts."""
        return self.bandwidth * self.latency


@dataclass(frozen=True)
class Machine:
    """One kind of device. Rates are per second, peak, and those of one device as JAX counts them."""

    platform: str
    name: str
    summary: str
    topology: tuple[str, ...]
    "What the numbers of a topology count, in order."
    devices_per_chip: int
    flops: Mapping[str, float] = field(hash=False)
    "Of dense matrix products, by element type."
    memory_bytes: int
    memory_bandwidth: float
    "Bytes per second."
    link: Link
    compiler: Mapping[str, Any] = field(hash=False)
    "What the platform's compiler is told of the device."


SUFFIX = ".toml"

_KEYS: dict[str, type] = {
    "platform": str,
    "summary": str,
    "topology": list,
    "devices_per_chip": int,
    "flops": dict,
    "memory": dict,
    "link": dict,
    "compiler": dict,
}
_MEMORY_KEYS: dict[str, type] = {"source": str, "bytes": int, "bandwidth": float}
_LINK_KEYS: dict[str, type] = {"source": str, "bandwidth": float, "latency": float}


@cache
def machines() -> Registry[tuple[str, str], Machine]:
    """Those that come with meshbridge, by platform and name."""
    found: Registry[tuple[str, str], Machine] = Registry("machine", lambda machine: machine.summary)
    for platform in PLATFORMS:
        for path in sorted((Path(__file__).parent / platform).glob(f"*{SUFFIX}")):
            found.add((platform, path.stem), load(path))
    return found


def find(platform: str, device: str) -> Machine:
    """The machine of that name, or in the file of that path, which has a slash or ends in `.toml`.

    Raises MeshError where there is none, where a file does not say what it must, and where it is of another platform.
    """
    if is_path(device):
        machine = load(Path(device))
        if machine.platform != platform:
            raise MeshError(f"{device}: error: expected a device of platform '{platform}', found one of '{machine.platform}'")
        return machine
    if (platform, device) not in machines():
        known = ", ".join(name for kind, name in machines() if kind == platform)
        raise MeshError(f"error: unknown {platform.upper()} '{device}', expected one of {known}, or the path of a {SUFFIX} file")
    return machines()[platform, device]


def named(device: str) -> Machine:
    """The machine of that name, of whichever platform, or in the file of that path.

    Raises MeshError where there is none, and where a file does not say what it must.
    """
    if is_path(device):
        return load(Path(device))
    known = {name: machine for (_, name), machine in machines().items()}
    if device not in known:
        raise MeshError(f"error: unknown machine '{device}', expected one of {', '.join(known)}, or the path of a {SUFFIX} file")
    return known[device]


def is_path(device: str) -> bool:
    """Whether that is the path of a machine's file, and no name."""
    return "/" in device or device.endswith(SUFFIX)


def load(path: Path) -> Machine:
    """The machine in a file, by the file's name. Raises MeshError."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshError(f"{path}: error: cannot read: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise MeshError(f"{path}: error: not a TOML file: {error}") from None
    _check(path, "", read, _KEYS)
    memory = read["memory"]
    _check(path, "memory.", memory, _MEMORY_KEYS)
    link = read["link"]
    _check(path, "link.", link, _LINK_KEYS)
    for key in ("bandwidth", "latency"):
        if link[key] <= 0:
            raise MeshError(f"{path}: error: link.{key}: expected a positive number, found {link[key]!r}")
    if read["platform"] not in PLATFORMS:
        raise MeshError(f"{path}: error: expected platform {' or '.join(PLATFORMS)}, found '{read['platform']}'")
    rates = {kind: rate for kind, rate in read["flops"].items() if kind != "source"}
    _check(path, "flops.", rates, dict.fromkeys(rates, float))
    _check(path, "compiler.", read["compiler"], dict.fromkeys(read["compiler"], object) | {"name": str})
    return Machine(
        read["platform"],
        path.stem,
        read["summary"],
        tuple(map(str, read["topology"])),
        read["devices_per_chip"],
        rates,
        memory["bytes"],
        memory["bandwidth"],
        Link(link["bandwidth"], link["latency"]),
        read["compiler"],
    )


def _check(path: Path, place: str, found: Mapping[str, Any], expected: Mapping[str, type]) -> None:
    """Raises MeshError unless exactly these keys are there, with values of these types; an integer is a float, too."""
    for key in [*expected, *found]:
        if key not in found:
            raise MeshError(f"{path}: error: {place}{key} is missing")
        if key not in expected:
            raise MeshError(f"{path}: error: unknown key {place}{key}, expected {', '.join(expected)}")
        kinds = (int, float) if expected[key] is float else expected[key]
        if not isinstance(found[key], kinds) or isinstance(found[key], bool):
            raise MeshError(f"{path}: error: {place}{key}: expected a {_WORDS[expected[key]]}, found {found[key]!r}")


_WORDS = {str: "string", int: "whole number", float: "number", list: "list", dict: "table"}
