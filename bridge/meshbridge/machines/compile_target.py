"""What a program is planned and compiled for, resolved once from what users write."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import Any, get_args

from meshbridge.ir.mlir import MeshError
from meshbridge.machines import machine as machines
from meshbridge.machines.machine import Machine, OptionSet
from meshbridge.machines.target import Target, has_topology, of_machine, parse_layout
from meshbridge.text import did_you_mean

DEFAULT = "neutral"
"""The machine that a plan is made for unless somebody names one, or JAX's devices imply one."""

NO_DEVICE = ("bytes", DEFAULT)
"""Machines that are no devices: bytes on the wire count alone, or those and the launches of collectives."""

UNLIMITED = "none"
"""What is written for no limit of memory."""

PARTS = ("machine", "layout", "compiler_options", "memory_limit")
"""What users write of a target, by the names of the options: the parameters of `CompileTarget.of`."""


@dataclass(frozen=True)
class CompileTarget:
    """What a program is planned and compiled for: a device, perhaps so many of them, or what counts where no device is named.

    `CompileTarget.of` reads what users write.
    """

    name: str = DEFAULT
    "As it was written: one of NO_DEVICE, or a device's name or file, perhaps with a topology, as in `v5p:4x4x4`."
    machine: Machine | None = None
    "The device, whose steps are compiled under the `compiler_options`; None for one of NO_DEVICE."
    devices: Target | None = None
    "With a topology: how many there are, and on which links the axes of a mesh are."
    layout: str = ""
    "As it was written, in `devices` too."
    compiler_options: OptionSet = "default"
    "The set of XLA's options that the step is compiled under."
    memory_limit: float | None = None
    "Bytes that a program may need on a device; infinite for no limit, None where nobody has written one."

    def __post_init__(self) -> None:
        assert (self.machine is None) == (self.name in NO_DEVICE), "CompileTarget.of reads the name of a machine"

    @classmethod
    def of(
        cls,
        machine: str = DEFAULT,
        layout: str = "",
        compiler_options: OptionSet = "default",
        memory_limit: float | str | None = None,
    ) -> CompileTarget:
        """The target that users write.

        `machine` is `bytes`, `neutral`, the name of a device of `machines`, or the path of its file, perhaps with a topology,
        as in `h100:1x1x8`. `layout` says with a topology which links the axes of the mesh are on, as in `data=dcn,model=ici`.
        `memory_limit` is a number of bytes, or one as in `80GB`; `none` is no limit.

        Raises MeshError for a machine that is not known, a topology or a layout that it does not have, and other options.
        """
        if not isinstance(machine, str):
            raise MeshError(f"error: machine is {machine!r}, expected the name of one or the path of its file, as a string")
        if compiler_options not in get_args(OptionSet):
            expected = ", ".join(get_args(OptionSet)) + did_you_mean(str(compiler_options), get_args(OptionSet))
            raise MeshError(f"error: compiler-options is {compiler_options!r}, expected one of {expected}")
        limit = None if memory_limit is None else inf if memory_limit == UNLIMITED else bytes_in(memory_limit)
        if machine in NO_DEVICE:
            parse_layout(layout)
            return cls(machine, None, None, layout, compiler_options, limit)
        devices = of_machine(machine, layout, compiler_options) if has_topology(machine) else None
        device = machines.named(machine, *NO_DEVICE).under(compiler_options) if devices is None else devices.machine
        if devices is None:
            parse_layout(layout)
        return cls(machine, device, devices, layout, compiler_options, limit)

    def but(self, **parts: Any) -> CompileTarget:
        """The same with other parts, written as for `of`. Raises MeshError as that does."""
        return CompileTarget.of(**{**{name: self.written(name) for name in PARTS}, **parts})

    def written(self, part: str) -> Any:
        """A part as users write it, by its name in PARTS."""
        if part == "machine":
            return self.name
        return UNLIMITED if part == "memory_limit" and self.memory_limit == inf else getattr(self, part)

    @property
    def held_price(self) -> float | None:
        """What holding a byte costs while a loop runs once, in bytes sent, on the devices that there are; None if unpriced."""
        if self.machine is None:
            return None
        network = self.machine.network if self.devices is not None and self.devices.nodes > 1 else None
        return self.machine.held_price if network is None or network.held_price is None else network.held_price

    def check_layout(self) -> None:
        """Raises MeshError for a layout without a topology."""
        if self.layout and self.devices is None:
            raise MeshError("error: layout has no effect without a machine of a topology, as in v5p:4x4x4")

    def check_device(self) -> None:
        """Raises MeshError for one of NO_DEVICE, for which no step can be predicted."""
        if self.machine is None:
            names = ", ".join(name for _, name in machines.machines())
            raise MeshError(f"error: machine '{self.name}' is no device, expected one of {names}, or the path of a .toml file")

    @property
    def device(self) -> Machine:
        """The device. Raises MeshError for one of NO_DEVICE."""
        self.check_device()
        assert self.machine is not None
        return self.machine

    @property
    def without_topology(self) -> CompileTarget:
        """The device alone, as if all links were like its own."""
        return self if self.devices is None else replace(self, name=self.devices.device, devices=None, layout="")

    @property
    def written_limit(self) -> float:
        """The limit of memory that somebody has written, in bytes; infinite where nobody has."""
        return inf if self.memory_limit is None else self.memory_limit

    @property
    def implied_limit(self) -> float:
        """The memory of a device of the machine, in bytes, where nobody has written a limit; infinite where it is not known."""
        return inf if self.memory_limit is not None or self.machine is None else float(self.machine.memory_bytes)


BYTES_TARGET = CompileTarget("bytes")
"""Bytes on the wire alone count."""

DEFAULT_TARGET = CompileTarget()
"""Nobody has named a device."""


_UNITS = {"": 1, "B": 1} | {f"{letter}B": 1000**n for n, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}


def bytes_in(size: float | str) -> float:
    """A number of bytes, as one or as in `80GB` and `16 GiB`. Raises MeshError for what is none, and where it is not positive."""
    number_and_unit = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", str(size))
    try:
        if number_and_unit is None or number_and_unit[2] not in _UNITS or not (number := float(number_and_unit[1])) > 0:
            raise ValueError
    except ValueError:
        raise MeshError(
            f"error: memory-limit is {size!r}, expected a positive number of bytes, or one as in 80GB or 16GiB"
        ) from None
    return number * float(_UNITS[number_and_unit[2]])
