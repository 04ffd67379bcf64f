"""Why arguments and results are sharded as they are: who has said so, and what their next best shardings would cost. Each of
those is tried by partitioning the program so, and compared with the plan."""

from __future__ import annotations

import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from math import inf

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.dialect.ops import OPEN_DIMS, ShardingOp
from meshbridge.dialect.patterns import keys_of, matches
from meshbridge.ir.locations import user_line
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.ir.sharding import Mesh
from meshbridge.pipeline import OnStage, Options
from meshbridge.read.formats import copy_module
from meshbridge.reports.changes import (
    ANNOTATION_OF,
    CONSTRAINT_OF,
    SIDES,
    TriedChange,
    changes_of,
    exposed_bytes,
    leaves_of,
    most_promising,
    partition_and_observe,
    spec_of,
)
from meshbridge.reports.difference import Difference, came_partitioned, difference
from meshbridge.reports.explanation_table import explanation_table
from meshbridge.reports.families import Family, FamilyMember, Split, families
from meshbridge.reports.report import Report, partition_and_report

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""

TRIES = 16
"""How many other shardings are tried unless somebody says so. Each is one partitioning. Not measured: it is more than an array of
three dimensions has on a mesh of two axes."""


@dataclass(frozen=True)
class Decider:
    """Who has decided how some arguments or results are sharded."""

    by: str
    "`your sharding`, `your constraint at model.py:42`, `chosen here: …`."
    names: tuple[str, ...]


@dataclass(frozen=True)
class Other:
    """Another sharding of an argument or result, and what comes of it."""

    sharding: tuple[tuple[str, ...], ...] | None
    "By dimension, the axes that split it; None where it is left to meshbridge."
    chosen: tuple[tuple[tuple[str, ...], ...], ...]
    "How meshbridge then shards it, each way once; empty where the program cannot be partitioned so."
    difference: Difference | None
    "Between the plan and the one with this sharding; None where the program cannot be partitioned so."
    refused: str = ""
    "Why it cannot be."

    @property
    def seconds(self) -> float | None:
        """Of the predicted step; None without a machine of a topology."""
        return None if self.difference is None else self.difference.second.seconds

    @property
    def wire_bytes(self) -> float | None:
        """Of one device and step."""
        return None if self.difference is None else self.difference.second.wire_bytes

    @property
    def peak_bytes(self) -> float | None:
        """The most memory that a device needs."""
        return None if self.difference is None else self.difference.second.peak_bytes


@dataclass(frozen=True)
class Explained:
    """An argument or result, or several that are sharded together: a weight of every layer, its moments, the weight returned."""

    name: str
    "The path of the first, numbers in which others differ as `*`, and how many are with it."
    arguments: tuple[str, ...]
    "Names, `argument 3` for one without."
    results: tuple[str, ...]
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the axes that split it, outer first."
    unreduced: tuple[str, ...]
    deciders: tuple[Decider, ...]
    "Those of most arrays first."
    exposed_bytes: float
    "Wire bytes of the collectives of the arrays themselves, and of what one operation computes of them."
    others: tuple[Other, ...]
    "Shardings that were tried, the best first, those that cannot be last."
    untried: int
    "How many more there are within one axis."


@dataclass(frozen=True)
class Explanation:
    """Why arguments and results of a program are sharded as they are."""

    report: Report
    "Of the plan."
    explained: tuple[Explained, ...]
    "In the order of their first arrays, arguments before results."

    @property
    def tried(self) -> int:
        """How many other shardings were tried."""
        return sum(len(each.others) for each in self.explained)

    def remarks(self) -> tuple[str, ...]:
        """What to know of the explanation, a sentence each."""
        if not came_partitioned(self.report):
            return ()
        return ("all collectives are the program's own: it is partitioned already, and other shardings are resharded around it",)

    def table(self) -> str:
        """The explanation for people."""
        return explanation_table(self)

    def to_json(self) -> str:
        """The explanation as docs/explain.md describes it."""
        figures = ("wire_bytes", "seconds", "peak_bytes")
        whole = {
            "schema": SCHEMA,
            **{name: getattr(self.report, name) for name in figures},
            "tried": self.tried,
            "explained": [
                asdict(replace(each, others=()))
                | {
                    "others": [
                        {"sharding": other.sharding, "chosen": other.chosen, "refused": other.refused}
                        | {name: getattr(other, name) for name in figures}
                        | {"difference": None if other.difference is None else json.loads(other.difference.to_json())}
                        for other in each.others
                    ]
                }
                for each in self.explained
            ],
            "remarks": self.remarks(),
        }
        return json.dumps(whole, indent=2)


def partition_and_explain(
    module: ir.Module,
    options: Options,
    patterns: Sequence[str] = (),
    *,
    tries: int = TRIES,
    alone: bool = False,
    on_stage: OnStage | None = None,
) -> Explanation:
    """Partitions `module`, and explains the shardings of the arguments and results whose paths match one of the patterns, of all
    without any. At most so many other shardings are tried. What is sharded together is explained and changed together, unless
    `alone`.

    Raises MeshError as `partition_and_report` does, for a pattern that nothing matches, for a number of tries that is negative,
    and for a program that came partitioned.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 0:
        raise MeshError(f"error: tries is {tries!r}, expected how many other shardings to try, 0 or more")
    if is_partitioned(module):
        raise MeshError("error: the program is partitioned already: what its shardings follow from is not in it")
    report, _, annotated, exposed = partition_and_observe(module, options, on_stage=on_stage)
    main, mesh = main_function(annotated), find_mesh(annotated)
    leaves = leaves_of(report, main)
    asked = _matching(patterns, leaves)
    found = [Family((leaf,)) for leaf in leaves] if alone else families(leaves)
    found = [family for family in found if not asked.isdisjoint(family.leaves)]
    possible = {family: [] if mesh is None or mesh.size == 1 else changes_of(family, main, mesh) for family in found}
    chosen = set(most_promising((exposed_bytes(family, exposed), possible[family]) for family in found)[:tries])
    explained = []
    for family in found:
        changes = [change for change in possible[family] if change in chosen]
        others = [_tried(change, annotated, report, options) for change in changes]
        explained.append(
            Explained(
                name=family.name,
                **{side: tuple(leaf.name for leaf in family.leaves if leaf.side == side) for side in SIDES},
                shape=family.shape,
                element_type=family.leaves[0].element_type,
                sharding=family.sharding,
                unreduced=family.leaves[0].unreduced,
                deciders=_deciders(family, main, mesh),
                exposed_bytes=exposed_bytes(family, exposed),
                others=tuple(sorted(others, key=_cost)),
                untried=len(possible[family]) - len(changes),
            )
        )
    return Explanation(report, tuple(explained))


def _matching(patterns: Iterable[str], leaves: Sequence[FamilyMember]) -> set[FamilyMember]:
    """The leaves that some pattern means, all without patterns. Raises MeshError for a pattern that means none."""
    found: set[FamilyMember] = set()
    for pattern in patterns:
        matching = {leaf for leaf in leaves if matches(pattern, leaf.name)}
        if not matching:
            raise MeshError(_unknown(pattern, [leaf.name for leaf in leaves]))
        found |= matching
    return found if patterns else set(leaves)


def _unknown(pattern: str, names: Sequence[str]) -> str:
    """What to say of a pattern that means nothing: the names that are near to it, else the first."""
    near = get_close_matches(pattern, names, 4, 0.5) or [name for name in names if pattern in keys_of(name)]
    known = f"there are {_listed(names)}" if names else "there are none"
    hint = (
        f"did you mean {_listed(near)}?" if near else "keys have slashes between them, as in params/**/kernel; * stands for any"
    )
    return f"error: no argument and no result matches '{pattern}': {known}\n  hint: {hint}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _tried(change: TriedChange, annotated: ir.Module, before: Report, options: Options) -> Other:
    """What comes of a change."""
    copy = copy_module(annotated)
    with copy.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a program that nobody has written
        try:
            change.apply(copy)
            report, _ = partition_and_report(copy, options)
        except MeshError as error:
            return Other(change.split, (), None, str(error).splitlines()[0])
    of_leaf = {(leaf.side, leaf.index): leaf.sharding for leaf in leaves_of(report, main_function(copy))}
    chosen: dict[Split, None] = dict.fromkeys(of_leaf[leaf.side, leaf.index] for leaf in change.leaves)
    return Other(change.split, tuple(chosen), difference(before, report))


def _cost(other: Other) -> tuple[float, float, float]:
    """By what others are ordered: seconds where a step is predicted, bytes, memory."""
    if other.difference is None:
        return inf, inf, inf
    report = other.difference.second
    return report.seconds or 0.0, report.wire_bytes, report.peak_bytes


def _deciders(family: Family, main: ir.Operation, mesh: Mesh | None) -> tuple[Decider, ...]:
    names: dict[str, list[str]] = defaultdict(list)
    for leaf in family.leaves:
        names[_decider(leaf, main, mesh)].append(leaf.name)
    counts = Counter({by: len(found) for by, found in names.items()})
    return tuple(Decider(by, tuple(names[by])) for by, _ in counts.most_common())


def _decider(leaf: FamilyMember, main: ir.Operation, mesh: Mesh | None) -> str:
    """Who has decided how a leaf is sharded: its annotation, the constraint that stands at it, or meshbridge."""
    if mesh is None:
        return "the program names no mesh"
    said, stated = (of[leaf.side](main, leaf.index) for of in (CONSTRAINT_OF, ANNOTATION_OF))
    if stated is not None and not _is_open(stated):
        split = _split(stated, mesh)
        if split == leaf.sharding:
            return "your sharding"
        more = ", of which dimensions are open" if OPEN_DIMS in stated.attributes else ""
        return f"chosen here: your sharding is {spec_of(split)}{more}"
    if said is None:
        return "chosen here: nothing is said of it"
    split, line = _split(said, mesh), user_line(said.location).short
    if split == leaf.sharding:
        return f"chosen here, as your constraint at {line} has it"
    return f"chosen here: your constraint at {line} is {spec_of(split)}"


def _split(shard: ir.Operation, mesh: Mesh) -> Split:
    """What an annotation says, by the names of axes."""
    sharding = ShardingOp(shard.operands[1].owner.operation).value
    split = sharding.padded(ir.RankedTensorType(shard.operands[0].type).rank).split_axes
    return tuple(mesh.labels(axes) for axes in split)


def _is_open(shard: ir.Operation) -> bool:
    """Whether an annotation says nothing: every dimension is open, and none is split."""
    dims = attributes.integers(shard.attributes[OPEN_DIMS]) if OPEN_DIMS in shard.attributes else ()
    is_split = any(ShardingOp(shard.operands[1].owner.operation).value.split_axes)
    return not is_split and len(dims) == ir.RankedTensorType(shard.operands[0].type).rank > 0
