"""JAX's devices: the platform of one, and the machine that those imply which JAX runs on already."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshbridge.cost.objective import DEFAULT, UNNAMED, device
from meshbridge.machines import machine
from meshbridge.machines.machine import Machine
from meshbridge.runtime.located import UnlocatedError, locate


def platform(device: Any) -> str:
    """What jax.export calls the platform of a device; `gpu` is that of several."""
    name = str(device.platform)
    if name != "gpu":
        return name
    return "rocm" if "rocm" in device.client.platform_version else "cuda"


class Chosen(NamedTuple):
    """A machine that nobody named."""

    name: str
    why: str = ""
    "Empty for the default."
    layout: str = ""
    "Where the devices are in the topology that the name has."


def implied(platforms: Sequence[str]) -> Chosen:
    """That of JAX's default devices, for a program that is for some of `platforms`, or for any where it names none.

    Neither imports JAX nor has it look for devices: only where it has them does it run on them.
    """
    return of([device for device in _running() if not platforms or platform(device) in platforms])


def of(devices: Sequence[Any]) -> Chosen:
    """The machine that the first of JAX's `devices` is one of; the default without any, on CPUs, and where none is known."""
    if not devices or devices[0].platform == "cpu":
        return Chosen(DEFAULT)
    kind = devices[0].device_kind
    if (name := machine.of_kind(kind)) is None:
        return Chosen(DEFAULT, f"JAX runs on {kind}, which no machine is known of")
    return Chosen(name, f"JAX runs on {kind}")


def located(devices: Sequence[Any], *, but: str = "") -> Chosen:
    """The same with the topology of these devices, which are those of a program's mesh, in its order. Without one where they do
    not say where they are, and where something else speaks against it, a `but`; the reason says so."""
    chosen = of(devices)
    if chosen.name in UNNAMED:
        return chosen
    try:
        if but:
            raise UnlocatedError(but)
        name, layout = locate(devices, _known_with(devices[0]), machine.named(chosen.name))
    except UnlocatedError as error:
        return chosen._replace(why=f"{chosen.why}, planned for without a topology: {error}")
    return Chosen(name, chosen.why, layout)


def _known_with(device: Any) -> Sequence[Any]:
    """All devices of its backend, in all processes; none where that does not say."""
    client: Any = getattr(device, "client", None)
    return client.devices() if hasattr(client, "devices") else ()


def machine_of(devices: Sequence[Any], named: str) -> Machine | None:
    """What JAX's `devices` are: the machine `named` that a plan is made for, if that is of their platform; else the one of their
    kind; None where none is known. Raises MeshError where no machine has that name."""
    if not devices:
        return None
    found = None if named in UNNAMED else device(named)
    if found is not None and found.platform == devices[0].platform:
        return found
    kind = machine.of_kind(devices[0].device_kind)
    return None if kind is None else machine.named(kind)


def _running() -> Sequence[Any]:
    if "jax" not in sys.modules:
        return ()
    import jax
    from jax._src.xla_bridge import backends_are_initialized  # nothing public says so without initialising them

    return jax.devices() if backends_are_initialized() else ()
