"""The state of a tensor while ops are assigned in program order (`assign.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from meshbridge.decide.graph import Tensor
from meshbridge.ir.sharding import Axes, Sharding


@final
@dataclass(frozen=True, eq=False)
class TensorState:
    """One tensor during assignment. Equal states are one object."""

    tensor: Tensor
    defined: Sharding
    "Its sharding where it is defined."
    unreduced: Axes = ()
    "The axes along which it stays partial if it is computed so."
    free: Axes = ()
    "The axes over which reducing it is free, since a partial value that is combined with it pays for that."
    is_passed_on: bool = False
    "Whether its only user passes on partial sums, in no more bytes."
    is_shared: bool = False
    "Whether it has several users."
    may_be_returned: bool = False
    "Whether it may be returned partial, see `Graph.returned_partial`."
    available: tuple[tuple[tuple[int, ...], Sharding], ...] = ()
    "Its reshardings so far, with their scopes."
    anticipated: Sharding | None = None
    "Its decided sharding, if it has several users and is computed differently: the decision has counted this resharding, once."

    @property
    def signature(self) -> tuple[object, ...]:
        """All fields, as a key."""
        facts = (self.unreduced, self.free, self.is_passed_on, self.is_shared, self.may_be_returned)
        return (self.tensor, self.defined, *facts, self.available, self.anticipated)

    def but(self, changed: dict[str, object]) -> TensorState:
        """A copy with `changed` fields. Much faster than `dataclasses.replace`."""
        copy = object.__new__(TensorState)
        copy.__dict__.update(self.__dict__, **changed)
        return copy

    def ready(self, scope: tuple[int, ...]) -> list[Sharding]:
        """The shardings that exist of it in a scope besides its definition."""
        return [sharding for inside, sharding in self.available if scope[: len(inside)] == inside]
