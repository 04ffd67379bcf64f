"""Explains why arguments and results are sharded as they are: who decided, and what alternatives cost. Each alternative is
measured by partitioning the program with it, and compared with the plan."""

from __future__ import annotations

import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.dialect.ops import OPEN_DIMS, ShardingOp
from meshbridge.dialect.patterns import matches, no_match
from meshbridge.ir.locations import user_line
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.ir.sharding import Mesh
from meshbridge.pipeline import OnStage, Options
from meshbridge.progress import OnProgress, each
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
from meshbridge.reports.tables import unsharded
from meshbridge.text import Tabular, counted, public

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""

TRIES = 16
"""How many alternatives are tried by default for each match, each by one partitioning. Not measured: an array of three dimensions
has fewer on a mesh of two axes."""


@dataclass(frozen=True)
class Decider:
    """Who decided the sharding of some arguments or results."""

    by: str
    "`your sharding`, `your constraint at model.py:42`, `chosen here: …`."
    names: tuple[str, ...]


@dataclass(frozen=True)
class Alternative:
    """Another sharding of an argument or result, and its cost."""

    sharding: tuple[tuple[str, ...], ...] | None
    "By dimension, the axes that split it; None if it is left to meshbridge."
    chosen: tuple[tuple[tuple[str, ...], ...], ...]
    "The distinct shardings that meshbridge then gives the arrays; empty if the program cannot be partitioned."
    difference: Difference | None
    "Between the plan and the one with this sharding; None if the program cannot be partitioned."
    refused: str = ""
    "Why the program cannot be partitioned."

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
    "The path of the first, with `*` for numbers that differ, and the number of the others."
    arguments: tuple[str, ...]
    "Names, `argument 3` for one without."
    results: tuple[str, ...]
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the axes that split it, outer first."
    unreduced: tuple[str, ...]
    deciders: tuple[Decider, ...]
    "The decider of most arrays first."
    exposed_bytes: float
    "Wire bytes of the collectives of the arrays, and of what one operation computes from them."
    others: tuple[Alternative, ...]
    "Alternatives that were tried, the best first, the impossible ones last."
    untried: int
    "How many more alternatives differ by one axis."


@public
@dataclass(frozen=True, repr=False)
class Explanation(Tabular):
    """Why the arguments and results of a program are sharded as they are."""

    report: Report
    "The report of the plan."
    explained: tuple[Explained, ...]
    "In the order of their first arrays, arguments before results."

    @property
    def tried(self) -> int:
        """How many alternatives were tried."""
        return sum(len(explained.others) for explained in self.explained)

    @property
    def headline(self) -> str:
        """How much is explained."""
        shared = f"{counted(len(self.explained), 'sharding')} of arguments and results explained"
        return f"{shared}, {counted(self.tried, 'alternative')} tried"

    def remarks(self) -> tuple[str, ...]:
        """Remarks on the explanation, one sentence each."""
        if said := unsharded(self.report):
            return (said,)
        if not came_partitioned(self.report):
            return ()
        return ("all collectives are the program's own: it is partitioned already, and other shardings are resharded around it",)

    def table(self) -> str:
        """The explanation for people."""
        return explanation_table(self)

    def to_json(self) -> str:
        """The explanation as docs/report-json.md describes it."""
        figures = ("wire_bytes", "seconds", "peak_bytes")
        whole = {
            "schema": SCHEMA,
            **{name: getattr(self.report, name) for name in figures},
            "tried": self.tried,
            "explained": [
                asdict(replace(explained, others=()))
                | {
                    "others": [
                        {"sharding": alternative.sharding, "chosen": alternative.chosen, "refused": alternative.refused}
                        | {name: getattr(alternative, name) for name in figures}
                        | {"difference": None if alternative.difference is None else json.loads(alternative.difference.to_json())}
                        for alternative in explained.others
                    ]
                }
                for explained in self.explained
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
    on_progress: OnProgress | None = None,
) -> Explanation:
    """Partitions `module`, and explains the shardings of the arguments and results whose paths match one of `patterns`; of all
    if there are none. At most `tries` alternatives are tried for each match; without patterns, for all arrays together. Arrays of
    one family are one match: they are explained and changed together, unless `alone`. Progress is that of the alternatives.

    Raises MeshError like `partition_and_report`, for a pattern without a match, for negative `tries`, and for a program that came
    partitioned.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 0:
        raise MeshError(f"error: tries is {tries!r}, expected how many other shardings to try, 0 or more")
    if is_partitioned(module):
        raise MeshError("error: the program is partitioned already: what its shardings follow from is not in it")
    report, _, annotated, exposed = partition_and_observe(module, options, on_stage=on_stage)
    main, mesh = main_function(annotated), find_mesh(annotated)
    leaves = leaves_of(report, main)
    matched = _matching(patterns, leaves)
    explained_families = [Family((leaf,)) for leaf in leaves] if alone else families(leaves)
    explained_families = [family for family in explained_families if not matched.isdisjoint(family.leaves)]
    possible = {family: [] if mesh is None or mesh.size == 1 else changes_of(family, main, mesh) for family in explained_families}
    ranked = [(exposed_bytes(family, exposed), possible[family]) for family in explained_families]
    of_each = [[one] for one in ranked] if patterns else [ranked]
    chosen = {change for together in of_each for change in most_promising(together)[:tries]}
    explained = []
    tries_of = {family: [change for change in possible[family] if change in chosen] for family in explained_families}
    made = [change for changes in tries_of.values() for change in changes]
    tried = {change: _try(change, annotated, report, options) for change in each(made, on_progress)}
    for family in explained_families:
        changes = tries_of[family]
        alternatives = [tried[change] for change in changes]
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
                others=tuple(sorted(alternatives, key=_cost)),
                untried=len(possible[family]) - len(changes),
            )
        )
    return Explanation(report, tuple(explained))


def _matching(patterns: Iterable[str], leaves: Sequence[FamilyMember]) -> set[FamilyMember]:
    """The leaves that match some pattern, or all without patterns. Raises MeshError for a pattern without a match."""
    matched: set[FamilyMember] = set()
    for pattern in patterns:
        matching = {leaf for leaf in leaves if matches(pattern, leaf.name)}
        if not matching:
            raise MeshError(no_match(pattern, [leaf.name for leaf in leaves]))
        matched |= matching
    return matched if patterns else set(leaves)


def _try(change: TriedChange, annotated: ir.Module, before: Report, options: Options) -> Alternative:
    """Partitions the program with a change."""
    copy = copy_module(annotated)
    with copy.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the changed program is not the user's
        try:
            change.apply(copy)
            report, _ = partition_and_report(copy, options)
        except MeshError as error:
            return Alternative(change.split, (), None, str(error).splitlines()[0])
    of_leaf = {(leaf.side, leaf.index): leaf.sharding for leaf in leaves_of(report, main_function(copy))}
    chosen: dict[Split, None] = dict.fromkeys(of_leaf[leaf.side, leaf.index] for leaf in change.leaves)
    return Alternative(change.split, tuple(chosen), difference(before, report))


def _cost(alternative: Alternative) -> tuple[float, float, float]:
    """The sort key of alternatives: seconds if a step is predicted, bytes, memory."""
    if alternative.difference is None:
        return inf, inf, inf
    report = alternative.difference.second
    return report.seconds or 0.0, report.wire_bytes, report.peak_bytes


def _deciders(family: Family, main: ir.Operation, mesh: Mesh | None) -> tuple[Decider, ...]:
    names: dict[str, list[str]] = defaultdict(list)
    for leaf in family.leaves:
        names[_decider(leaf, main, mesh)].append(leaf.name)
    counts = Counter({by: len(leaf_names) for by, leaf_names in names.items()})
    return tuple(Decider(by, tuple(names[by])) for by, _ in counts.most_common())


def _decider(leaf: FamilyMember, main: ir.Operation, mesh: Mesh | None) -> str:
    """Who decided the sharding of a leaf: its annotation, a constraint directly at it, or meshbridge."""
    if mesh is None:
        return "the program names no mesh"
    constraint, annotation = (of[leaf.side](main, leaf.index) for of in (CONSTRAINT_OF, ANNOTATION_OF))
    if annotation is not None and not _is_open(annotation):
        split = _split(annotation, mesh)
        if split == leaf.sharding:
            return "your sharding"
        open_dims = ", of which dimensions are open" if OPEN_DIMS in annotation.attributes else ""
        return f"chosen here: your sharding is {spec_of(split)}{open_dims}"
    if constraint is None:
        return "chosen here: nothing is said of it"
    split, line = _split(constraint, mesh), user_line(constraint.location).short
    if split == leaf.sharding:
        return f"chosen here, as your constraint at {line} has it"
    return f"chosen here: your constraint at {line} is {spec_of(split)}"


def _split(shard: ir.Operation, mesh: Mesh) -> Split:
    """The sharding of an annotation, by the names of axes."""
    sharding = ShardingOp(shard.operands[1].owner.operation).value
    split = sharding.padded(ir.RankedTensorType(shard.operands[0].type).rank).split_axes
    return tuple(mesh.labels(axes) for axes in split)


def _is_open(shard: ir.Operation) -> bool:
    """True if an annotation says nothing: every dimension is open and unsharded."""
    dims = attributes.integers(shard.attributes[OPEN_DIMS]) if OPEN_DIMS in shard.attributes else ()
    is_split = any(ShardingOp(shard.operands[1].owner.operation).value.split_axes)
    return not is_split and len(dims) == ir.RankedTensorType(shard.operands[0].type).rank > 0
