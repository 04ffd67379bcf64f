"""Where our loops and Shardy's factors of the same op differ, over `tests/operations/samples.py`: a section of `docs/status.md`.

A difference without a reason in REASONS fails a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.ir.mlir import context, ir, run_stock_passes, sdy, walk_all
from meshbridge.ops.rule import RULES, SHARDING_RULE, Interface, ShardingRule, shape_of
from tests.operations.samples import SAMPLES

EVERY = "every"
NO_RULE = "no rule"
REASONS = {
    "chlo": (
        "Shardy rules StableHLO; these ops are legalized before it sees them. Here they are kept where XLA lowers them better."
    ),
    "stablehlo.constant": (
        "Shardy has no rule; here every use of a constant may be split for itself, and each device makes its part."
    ),
    "stablehlo.iota": "Shardy has no rule; here each device counts from where its shard begins.",
    "stablehlo.map": "Shardy has no rule; a map is elementwise.",
    "stablehlo.optimization_barrier": "Shardy passes shardings through it without a rule; here it has a loop per dimension.",
    "stablehlo.batch_norm_inference": "Here it is expanded into elementwise ops before loops are asked for.",
    "stablehlo.concatenate": (
        "Shardy keeps the joined dimension whole; here each device reads the pieces of which its shard is made."
    ),
    "stablehlo.dynamic_slice": (
        "Shardy keeps a sliced dimension whole; here each device gives what it holds of the slice, and the parts are joined."
    ),
    "stablehlo.gather": (
        "Shardy keeps a dimension whole of which windows take several elements; here each device looks up what it "
        "holds of them, and the parts are joined."
    ),
    "stablehlo.reshape": (
        "Of 6x4 -> 4x6 both split the common divisor of the major dimensions. Shardy names that of the minor ones "
        "too, but a minor factor may only be split once the major ones are split down to single elements, which these "
        "are not."
    ),
    "stablehlo.scatter": (
        "Shardy keeps a dimension whole of which windows cover several elements; here each device applies what falls "
        "into its shard. The same where updates replace, whose order matters: they stay together, the operand is "
        "split."
    ),
    "stablehlo.select_and_scatter": "Shardy splits the operand and keeps the source whole; here both are split alike.",
    "stablehlo.dot": "Here it is expanded into a dot_general.",
}
"""Why the two differ, by op, or by dialect where all its ops differ in the same way."""


def reason(op: str) -> str:
    """Why `op` differs. Raises KeyError if nobody has said."""
    return REASONS[op] if op in REASONS else REASONS[op.partition(".")[0]]


@dataclass(frozen=True)
class Place:
    """A dimension of an operand (`is_result` False) or result."""

    is_result: bool
    tensor: int
    dim: int

    def __str__(self) -> str:
        return f"{'result' if self.is_result else 'operand'} {self.tensor} dimension {self.dim}"


@dataclass(frozen=True)
class Role:
    """What becomes of a dimension, and with which others it is split together."""

    kind: str
    partners: frozenset[Place]


@dataclass(frozen=True, order=True)
class Difference:
    """One dimension of one op, or one op, that the two treat differently."""

    op: str
    what: str
    here: str
    shardy: str


def differences() -> list[Difference]:
    """All of them, each once."""
    found = {difference for sample in SAMPLES for difference in _in_module(sample.op, sample.module)}
    return sorted(found)


def _in_module(name: str, build: object) -> set[Difference]:
    assert callable(build)
    with context() as ctx:
        module = build(ctx)
        run_stock_passes(module, "builtin.module(func.func(sdy-populate-op-sharding-rules))")
        return {found for op in walk_all(module) if op.name == name for found in _of_op(op)}


def _of_op(op: ir.Operation) -> set[Difference]:
    described = op.name in RULES
    if SHARDING_RULE not in op.attributes:
        return {Difference(op.name, EVERY, "loops", NO_RULE)} if described and _has_dimensions(op) else set()
    rule = sdy.OpShardingRuleAttr(op.attributes[SHARDING_RULE])
    del op.attributes[SHARDING_RULE]
    if not described:
        return {Difference(op.name, EVERY, "expanded into simpler ops", "a rule")}
    ours, theirs = _our_roles(Interface().rule(op), _places(op)), _their_roles(rule, _places(op))
    return {
        Difference(op.name, str(place), _described(ours[place]), _described(theirs[place]))
        for place in ours
        if ours[place] != theirs[place]
    }


def _has_dimensions(op: ir.Operation) -> bool:
    return any(max(shape_of(value), default=1) > 1 for value in (*op.operands, *op.results))


def _places(op: ir.Operation) -> list[Place]:
    """The dimensions of `op` that have something to split."""
    return [
        Place(is_result, tensor, dim)
        for is_result, values in ((False, op.operands), (True, op.results))
        for tensor, value in enumerate(values)
        for dim, size in enumerate(shape_of(value))
        if size > 1
    ]


def _our_roles(rule: ShardingRule, places: list[Place]) -> dict[Place, Role]:
    exchanged = {each.loop for each in rule.exchanges}
    walked = {place: (rule.results if place.is_result else rule.operands)[place.tensor][place.dim] for place in places}

    written = {loop for dims in rule.results for loops in dims for loop in loops}

    def kind(place: Place) -> str:
        loops = walked[place]
        if not loops:
            return "whole"
        if any(rule.loops[loop].reduction or loop not in written for loop in loops):
            return "joined"
        return "exchanged" if exchanged.intersection(loops) else "parallel"

    return {place: Role(kind(place), _together(place, walked)) for place in places}


def _their_roles(rule: sdy.OpShardingRuleAttr, places: list[Place]) -> dict[Place, Role]:
    kinds = {
        **dict.fromkeys(rule.need_replication_factors, "whole"),
        **dict.fromkeys(rule.permutation_factors, "exchanged"),
        **dict.fromkeys(rule.reduction_factors, "joined"),
    }
    sides = {False: rule.operand_mappings, True: rule.result_mappings}
    walked = {
        place: tuple(
            factor
            for factor in sdy.DimMappingAttr(
                sdy.TensorMappingAttr(sides[place.is_result][place.tensor]).dim_mappings[place.dim]
            ).factor_indices
            if rule.factor_sizes[factor] > 1
        )
        for place in places
    }
    split = {
        place: () if any(kinds.get(factor) == "whole" for factor in factors) else factors for place, factors in walked.items()
    }
    return {
        place: Role(
            next((kinds[factor] for factor in factors if factor in kinds), "parallel") if factors else "whole",
            _together(place, split),
        )
        for place, factors in split.items()
    }


def _together(place: Place, walked: dict[Place, tuple[int, ...]]) -> frozenset[Place]:
    """The other dimensions that the same loops or factors walk."""
    return frozenset(other for other, loops in walked.items() if other != place and set(loops) & set(walked[place]))


def _described(role: Role) -> str:
    partners = ", ".join(sorted(map(str, role.partners)))
    return f"{role.kind} with {partners}" if partners else role.kind


HEAD = """## Where loops differ from Shardy's factors

Beside what Shardy's `sdy-populate-op-sharding-rules` says of the same samples; a test fails on a difference without a reason.
*parallel*: split without communication. *joined*: results of shards are reduced (Shardy's `reduction`). *exchanged*: split,
while devices exchange parts of shards (`permutation`). *whole*: not split (`need_replication`).
"""


def section() -> str:
    """The section of the page: a row for each op and way of differing, and one for each reason why one of both has no rule."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    without: dict[str, list[str]] = {}
    for one in differences():
        why = reason(one.op)
        if one.what == EVERY:
            without.setdefault(why, []).append(f"`{one.op}`")
        else:
            alike.setdefault((f"`{one.op}`", _kind(one.here), _kind(one.shardy), why), []).append(one.what)
    rows = [[op, ", ".join(places), here, shardy, why] for (op, here, shardy, why), places in alike.items()]
    return "\n".join(
        [
            HEAD,
            _table(["op", "dimensions", "here", "Shardy", "why"], rows),
            _table(["ops that only one of both knows", "why"], [[", ".join(ops), why] for why, ops in without.items()]),
        ]
    )


def _kind(described: str) -> str:
    return described.partition(" with ")[0]


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, ["---"] * len(header), *rows])
