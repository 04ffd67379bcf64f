"""JAX's devices: the platform of a device, and the machine that JAX's present devices imply."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshbridge.machines import machine
from meshbridge.machines.compile_target import DEFAULT, NO_DEVICE
from meshbridge.machines.machine import Machine
from meshbridge.runtime.located import UnlocatedError, locate


def platform(device: Any) -> str:
    """The platform of a device by jax.export's name, which splits `gpu` into several."""
    name = str(device.platform)
    if name != "gpu":
        return name
    return "rocm" if "rocm" in device.client.platform_version else "cuda"


class Chosen(NamedTuple):
    """A machine that the user did not name."""

    name: str
    why: str = ""
    "Empty for the default."
    layout: str = ""
    "The position of the devices in the topology of the name."


def implied(platforms: Sequence[str]) -> Chosen:
    """The machine of JAX's default devices, for a program for some of `platforms`, or for any if it names none.

    This neither imports JAX nor initializes devices: devices count only if JAX has them already.
    """
    return of([device for device in _running() if not platforms or platform(device) in platforms])


def of(devices: Sequence[Any]) -> Chosen:
    """The machine of the first of JAX's `devices`; the default without devices, on CPUs, and for an unknown kind."""
    if not devices or devices[0].platform == "cpu":
        return Chosen(DEFAULT)
    kind = devices[0].device_kind
    if (name := machine.of_kind(kind)) is None:
        return Chosen(DEFAULT, f"JAX runs on {kind}, which no machine is known of")
    return Chosen(name, f"JAX runs on {kind}")


def located(devices: Sequence[Any], *, but: str = "") -> Chosen:
    """The machine with the topology of these devices, which are those of a program's mesh, in its order. Without a topology if
    the devices do not tell their positions, or if `but` gives a reason against it; the result says why."""
    chosen = of(devices)
    if chosen.name in NO_DEVICE:
        return chosen
    try:
        if but:
            raise UnlocatedError(but)
        name, layout = locate(devices, _known_with(devices[0]), machine.named(chosen.name))
    except UnlocatedError as error:
        return chosen._replace(why=f"{chosen.why}, planned for without a topology: {error}")
    return Chosen(name, chosen.why, layout)


def _known_with(device: Any) -> Sequence[Any]:
    """All devices of the backend of `device`, in all processes; none if unknown."""
    client: Any = getattr(device, "client", None)
    return client.devices() if hasattr(client, "devices") else ()


def machine_of(devices: Sequence[Any], named: Machine | None) -> Machine | None:
    """The machine of JAX's `devices`: the machine `named` for which a plan is made, if it is of their platform; else the machine
    of their kind; None if unknown."""
    if not devices:
        return None
    if named is not None and named.platform == devices[0].platform:
        return named
    kind = machine.of_kind(devices[0].device_kind)
    return None if kind is None else machine.named(kind)


def _running() -> Sequence[Any]:
    if "jax" not in sys.modules:
        return ()
    import jax
    from jax._src.xla_bridge import backends_are_initialized  # nothing public says so without initialising them

    return jax.devices() if backends_are_initialized() else ()
