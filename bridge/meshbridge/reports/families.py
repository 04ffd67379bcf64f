"""Groups arguments and results that are sharded alike because they are one thing: a weight in every layer, its moments in the
optimiser's state, its gradient, and the weight that a step returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

_KEY = re.compile(r"\[[^\]]*\]|\.\w+")
_RESULT = "result"
"""The prefix of JAX's names of results."""

_NUMBER = re.compile(r"\d+")

Split = tuple[tuple[str, ...], ...]
"""By dimension, the mesh axes that split it, by name."""


@dataclass(frozen=True)
class FamilyMember:
    """An argument or result."""

    side: str
    "`arguments` or `results`."
    index: int
    "Its number on its side."
    name: str
    "Its path, or `argument 3` if it has none."
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
        """The global shape of each leaf."""
        return self.leaves[0].shape

    @property
    def sharding(self) -> Split:
        """The sharding of each leaf."""
        return self.leaves[0].sharding

    @property
    def name(self) -> str:
        """The path of the first leaf, with `*` for numbers that differ, and the name or the number of the others."""
        leader, followers = self.leaves[0], self.leaves[1:]
        alike = [leaf for leaf in followers if leaf.side == leader.side and _pattern(leaf.name) == _pattern(leader.name)]
        name = common_name([leaf.name for leaf in (leader, *alike)])
        unlike = [leaf.name for leaf in followers if leaf not in alike]
        counted = f" ({len(alike) + 1} arrays)" if alike else ""
        return (
            name + counted + (f" and {unlike[0]}" if len(unlike) == 1 else f" and {len(unlike)} more with it" if unlike else "")
        )


def families(leaves: Sequence[FamilyMember]) -> list[Family]:
    """Divides the leaves into families, in the order of their first members, in linear time."""
    by_path: dict[Path, list[FamilyMember]] = {}
    for leaf in leaves:
        kind = (leaf.shape, leaf.element_type, leaf.sharding, leaf.unreduced)
        by_path.setdefault(Path(kind, _keys(leaf.name)), []).append(leaf)
    members_of: dict[Path, list[FamilyMember]] = {}
    positions: dict[Path, Path] = {}
    for path in sorted(by_path, key=lambda path: len(path.own)):
        ends = [Path(path.kind, path.keys[start:]) for start in range(len(path.keys))]
        family_path = next((end for end in ends if end in members_of), None)
        if path.keys[0] == _RESULT:  # a result without names joins the first tree with the same positions
            family_path = family_path or next((positions[end] for end in ends[1:] if end in positions), None)
        positions.setdefault(Path(path.kind, path.keys[1:]), family_path or Path(path.kind, path.own))
        members_of.setdefault(family_path or Path(path.kind, path.own), []).extend(by_path[path])
    order = {leaf: position for position, leaf in enumerate(leaves)}
    member_lists = [sorted(members, key=order.__getitem__) for members in members_of.values()]
    return [Family(tuple(members)) for members in sorted(member_lists, key=lambda members: order[members[0]])]


class Path(NamedTuple):
    """The key by which leaves are compared: their kind, and the keys of their paths without numbers."""

    kind: object
    keys: tuple[str, ...]

    @property
    def own(self) -> tuple[str, ...]:
        """The keys in the tree of weights, which trees of moments and gradients share: `['layers_*']['up']` of
        `state.params['layers_0']['up']`; all keys if the last is not a dictionary's."""
        named = tuple(reversed(list(takewhile(lambda key: key.startswith("['"), reversed(self.keys)))))
        return named or self.keys


def _keys(name: str) -> tuple[str, ...]:
    """The keys of a path. If they are only positions, the name of the tree comes first: positions mean nothing in others."""
    keys = tuple(without_numbers(key) for key in _KEY.findall(name))
    return keys if any(key != "[*]" for key in keys) else (_KEY.split(name)[0], *keys)


def without_numbers(name: str) -> str:
    """`layers[*]` of `layers[0]`."""
    return _NUMBER.sub("*", name)


def common_name(names: Sequence[str]) -> str:
    """`layers[*]` of `layers[0]` and `layers[1]`, which are the same without numbers."""
    parts = [re.split(r"(\d+)", name) for name in names]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts, strict=True))


def _pattern(name: str) -> str:
    return without_numbers(name) if _KEY.search(name) else name
