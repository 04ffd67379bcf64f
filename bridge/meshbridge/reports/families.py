"""Arguments and results that are sharded alike because they are the same thing: a weight in every layer, its moments in the state
of the optimiser, its gradient, and the weight that a step returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

_KEY = re.compile(r"\[[^\]]*\]|\.\w+")
_RESULT = "result"
"""How JAX's names of results begin."""

_NUMBER = re.compile(r"\d+")

Split = tuple[tuple[str, ...], ...]
"""By dimension, the mesh axes that split it, by name."""


@dataclass(frozen=True)
class FamilyMember:
    """An argument or result."""

    side: str
    "`arguments` or `results`."
    index: int
    "Among all of its side."
    name: str
    "Its path, or `argument 3` where it has none."
    shape: tuple[int, ...]
    element_type: str
    sharding: Split
    unreduced: tuple[str, ...] = ()
    "The axes along which devices hold terms of a sum."


@dataclass(frozen=True)
class Family:
    """Leaves of one shape and sharding whose paths end in the same keys, numbers aside."""

    leaves: tuple[FamilyMember, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape of each."""
        return self.leaves[0].shape

    @property
    def sharding(self) -> Split:
        """Of each."""
        return self.leaves[0].sharding

    @property
    def name(self) -> str:
        """The path of the first, numbers in which others differ as `*`, and what or how many are with it."""
        first, others = self.leaves[0], self.leaves[1:]
        alike = [leaf for leaf in others if leaf.side == first.side and _pattern(leaf.name) == _pattern(first.name)]
        name = common_name([leaf.name for leaf in (first, *alike)])
        rest = [leaf.name for leaf in others if leaf not in alike]
        counted = f" ({len(alike) + 1} arrays)" if alike else ""
        return name + counted + (f" and {rest[0]}" if len(rest) == 1 else f" and {len(rest)} more with it" if rest else "")


def families(leaves: Sequence[FamilyMember]) -> list[Family]:
    """All leaves, each in one family, in the order of their first members. Takes time in their number."""
    by_path: dict[Path, list[FamilyMember]] = {}
    for leaf in leaves:
        kind = (leaf.shape, leaf.element_type, leaf.sharding, leaf.unreduced)
        by_path.setdefault(Path(kind, _keys(leaf.name)), []).append(leaf)
    joined: dict[Path, list[FamilyMember]] = {}
    positions: dict[Path, Path] = {}
    for path in sorted(by_path, key=lambda path: len(path.own)):
        ends = [Path(path.kind, path.keys[start:]) for start in range(len(path.keys))]
        known = next((end for end in ends if end in joined), None)
        if path.keys[0] == _RESULT:  # of positions: the first tree that has such
            known = known or next((positions[end] for end in ends[1:] if end in positions), None)
        positions.setdefault(Path(path.kind, path.keys[1:]), known or Path(path.kind, path.own))
        joined.setdefault(known or Path(path.kind, path.own), []).extend(by_path[path])
    order = {leaf: position for position, leaf in enumerate(leaves)}
    found = [sorted(members, key=order.__getitem__) for members in joined.values()]
    return [Family(tuple(members)) for members in sorted(found, key=lambda members: order[members[0]])]


class Path(NamedTuple):
    """What is compared of leaves: what they are, and the keys of their paths, numbers aside."""

    kind: object
    keys: tuple[str, ...]

    @property
    def own(self) -> tuple[str, ...]:
        """The keys in the tree of weights, which trees of moments and gradients share: `['layers_*']['up']` of
        `state.params['layers_0']['up']`; all where the last is not that of a dictionary."""
        named = tuple(reversed(list(takewhile(lambda key: key.startswith("['"), reversed(self.keys)))))
        return named or self.keys


def _keys(name: str) -> tuple[str, ...]:
    """The keys of a path; where they are nothing but positions, they mean something in one tree alone, which comes first."""
    found = tuple(without_numbers(key) for key in _KEY.findall(name))
    return found if any(key != "[*]" for key in found) else (_KEY.split(name)[0], *found)


def without_numbers(name: str) -> str:
    """`layers[*]` of `layers[0]`."""
    return _NUMBER.sub("*", name)


def common_name(names: Sequence[str]) -> str:
    """`layers[*]` of `layers[0]` and `layers[1]`, which are the same without numbers."""
    parts = [re.split(r"(\d+)", name) for name in names]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts, strict=True))


def _pattern(name: str) -> str:
    return without_numbers(name) if _KEY.search(name) else name
