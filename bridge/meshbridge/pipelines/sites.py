"""The parts of a pipeline, each of which becomes a program of its own, and their order in the loop of microbatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

SiteKind = Literal["pre", "forward", "backward", "weight", "post"]

ORDER: tuple[SiteKind, ...] = ("pre", "forward", "backward", "weight", "post")
"""The kinds in the order in which a microbatch meets them."""


class Site(NamedTuple):
    """What a group of devices computes before the loop, what it computes for one microbatch in one chunk of the program, forward,
    backward, or for the gradients of weights, or what it computes after the loop."""

    kind: SiteKind
    number: int
    "The group of devices before and after the loop, the chunk of the program in it."
    level: int = 0
    """After the loop, how often values have crossed groups before. In a program that is mapped to meshes already, the number of
    other fragments at the same site."""

    @property
    def per_microbatch(self) -> bool:
        """Whether it is computed once for each microbatch, and not once in a step."""
        return self.kind not in ("pre", "post")

    def __str__(self) -> str:
        return f"{self.kind}{self.number}" + (f".{self.level}" if self.level else "")


@dataclass(frozen=True)
class Chunks:
    """A program that is cut into `count` chunks, of which each group of devices has every `groups`-th.

    Positions number the sites in the loop: forward from the first chunk on, backward from the last one on, then the gradients of
    weights.
    """

    groups: int
    count: int

    def group(self, site: Site) -> int:
        """The group of devices that computes a site."""
        return site.number % self.groups if site.per_microbatch else site.number

    def backward(self, chunk: int) -> int:
        """The position of the backward pass of a chunk."""
        return 2 * self.count - 1 - chunk

    def weight(self, chunk: int) -> int:
        """The position of a chunk's gradients of weights, where they are apart."""
        return 2 * self.count + chunk

    def site(self, position: int) -> Site:
        """The site at a position."""
        if position >= 2 * self.count:
            return Site("weight", position - 2 * self.count)
        return Site("forward", position) if position < self.count else Site("backward", self.backward(position))
