"""JAX's devices: the platform of one, and the machine that those imply which JAX runs on already."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshbridge.cost.objective import DEFAULT
from meshbridge.machines import machine


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


def implied(platforms: Sequence[str]) -> Chosen:
    """That of JAX's default devices, for a program that is for some of `platforms`, or for any where it names none.

    Neither imports JAX nor has it look for devices: only where it has them does it run on them.
    """
    device = _running_on()
    if device is None or (platforms and platform(device) not in platforms):
        return Chosen(DEFAULT)
    return of_device(device)


def of_device(device: Any) -> Chosen:
    """The machine that a device of JAX is one of; the default for a CPU, and for one that no machine is known of."""
    if device.platform == "cpu":
        return Chosen(DEFAULT)
    if (name := machine.of_kind(device.device_kind)) is None:
        return Chosen(DEFAULT, f"JAX runs on {device.device_kind}, which no machine is known of")
    return Chosen(name, f"JAX runs on {device.device_kind}")


def _running_on() -> Any:
    if "jax" not in sys.modules:
        return None
    import jax
    from jax._src.xla_bridge import backends_are_initialized  # nothing public says so without initialising them

    return jax.devices()[0] if backends_are_initialized() else None
