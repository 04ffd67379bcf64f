"""What is known of a tensor while ops are assigned in program order (`assign.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from meshbridge.decide.graph import Tensor
from meshbridge.ir.sharding import Axes, Sharding


@final
@dataclass(frozen=True, eq=False)
class Value:
    """One tensor while ops are assigned in order. Equal ones are one object."""

    tensor: Tensor
    defined: Sharding
    "Its sharding where it is defined."
    unreduced: Axes = ()
    "The axes along which it is left partial if it is made so."
    free: Axes = ()
    "Reducing it over these axes costs nothing extra, since a partial value that it joins pays for it."
    is_passed_on: bool = False
    "Whether its only user passes its terms on, in no more bytes."
    is_shared: bool = False
    "Whether it has several users."
    may_be_returned: bool = False
    "Whether it may be returned partial, see `Graph.returned_partial`."
    available: tuple[tuple[tuple[int, ...], Sharding], ...] = ()
    "What it has been resharded to, and in which scope."
    anticipated: Sharding | None = None
    "How it was decided, if it has several users and is computed otherwise: the decision has counted this resharding, once."

    @property
    def signature(self) -> tuple[object, ...]:
        """All of that, to be compared."""
        left = (self.unreduced, self.free, self.is_passed_on, self.is_shared, self.may_be_returned)
        return (self.tensor, self.defined, *left, self.available, self.anticipated)

    def but(self, changed: dict[str, object]) -> Value:
        """The same but for what is `changed`; nothing is computed anew."""
        found = object.__new__(Value)
        found.__dict__.update(self.__dict__, **changed)
        return found

    def ready(self, scope: tuple[int, ...]) -> list[Sharding]:
        """What exists of it in a scope beside its definition."""
        return [sharding for inside, sharding in self.available if scope[: len(inside)] == inside]
