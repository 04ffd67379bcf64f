"""The XLA options that a program is compiled with, besides those of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.machine import Machine, OptionSet, OptionValue
from meshbridge.text import did_you_mean

Given: TypeAlias = OptionSet | Mapping[str, OptionValue]
"""What a Python caller passes: a set, or options by XLA's names on top of the default."""


@dataclass(frozen=True)
class CompilerOptions:
    """A set of options, and options on top of it. Raises MeshError for an unknown set."""

    chosen: OptionSet = "default"
    given: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)
    "By XLA's names; they override the set."

    def __post_init__(self) -> None:
        if self.chosen not in (sets := get_args(OptionSet)):
            near = did_you_mean(str(self.chosen), sets)
            raise MeshError(f"error: compiler-options is {self.chosen!r}, expected one of {', '.join(sets)}{near}")

    @classmethod
    def of(cls, request: Given) -> CompilerOptions:
        """The options that a Python caller passes. Raises MeshError."""
        return cls(given=dict(request)) if isinstance(request, Mapping) else cls(request)

    def on(self, machine: Machine | None, *, explicit: bool) -> dict[str, OptionValue]:
        """The options on a machine (None if unknown), for programs whose collectives are `explicit`, or for programs that XLA
        partitions."""
        best = machine.options if machine is not None and self.chosen == "best" else {}
        return {**best.get("explicit" if explicit else "partitioned", {}), **self.given}
