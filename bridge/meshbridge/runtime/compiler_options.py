"""XLA's options that a program is compiled under, beside those of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from meshbridge.ir.mlir import MeshError
from meshbridge.machines.machine import Machine, OptionSet, OptionValue

Given: TypeAlias = OptionSet | Mapping[str, OptionValue]
"""What a Python caller asks for: a set, or options by XLA's names beside the default."""


@dataclass(frozen=True)
class CompilerOptions:
    """A set of options, and what is given beside it. Raises MeshError for a set that there is not."""

    chosen: OptionSet = "default"
    given: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)
    "By XLA's names; what is given counts, whatever the set says."

    def __post_init__(self) -> None:
        if self.chosen not in (sets := get_args(OptionSet)):
            raise MeshError(f"error: compiler-options is {self.chosen!r}, expected one of {', '.join(sets)}")

    @classmethod
    def of(cls, asked: Given) -> CompilerOptions:
        """What a Python caller asks for. Raises MeshError."""
        return cls(given=dict(asked)) if isinstance(asked, Mapping) else cls(asked)

    def on(self, machine: Machine | None, *, explicit: bool) -> dict[str, OptionValue]:
        """The options on a machine, None where none is known of the devices: of programs whose collectives are `explicit`, or of
        those that XLA partitions."""
        best = machine.options if machine is not None and self.chosen == "best" else {}
        return {**best.get("explicit" if explicit else "partitioned", {}), **self.given}
