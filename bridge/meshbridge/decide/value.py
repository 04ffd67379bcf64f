"""What is known of a tensor while ops are assigned in program order (`assign.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshbridge.decide.graph import Tensor
from meshbridge.ir.sharding import Axes, Sharding


@final
@dataclass(frozen=True)
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

    @cached_property
    def _hash(self) -> int:
        return hash((self.tensor, self.defined, self.unreduced, self.is_passed_on, self.available, self.anticipated))

    def __hash__(self) -> int:
        return self._hash

    def ready(self, scope: tuple[int, ...]) -> list[Sharding]:
        """What exists of it in a scope beside its definition."""
        return [sharding for inside, sharding in self.available if scope[: len(inside)] == inside]
