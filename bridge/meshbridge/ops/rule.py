"""ShardingInterface: what each operation iterates over (the RFC, "ShardingInterface").

A ShardingRule lists an op's loops and says, for every dimension of every operand and result, which loops iterate along it:

    stablehlo.dot_general (8x16, 16x32) -> 8x32
    loops: parallel 8, parallel 32, reduction_sum 16       maps: (d0, d2), (d2, d1) -> (d0, d1)

A dimension of several loops, major first, is their product (a reshape that merges 8 and 4 has `(0, 1)` on the dimension
of 32); a dimension of none cannot be sharded. Each op family registers one function under its op names; descriptions are
memoised by signature, so layer 2 of a model costs what a dictionary look-up costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry
from meshbridge.ops.reach import Covered, Reach, Shares
from meshbridge.ops.refused import refuse_types
from meshbridge.ops.traits import Trait, declare

Dims = tuple[tuple[int, ...], ...]
"""Per dimension of one tensor, the loops along it, major to minor."""


@dataclass(frozen=True)
class Loop:
    """One loop: its trip count, and the reduction that joins its iterations ("" for a parallel loop)."""

    size: int
    reduction: str = ""


@dataclass(frozen=True)
class HaloExchange:
    """Where `loop` is split, each device receives what its windows `reach` of dimension `dim` of an operand and its shard lacks,
    or the shares of all others.

    The loop is shared with a dimension of another tensor, whose size may differ: each has shards of its own length.
    """

    loop: int
    operand: int
    dim: int
    reach: Reach | Covered | Shares
    shape: tuple[int, ...]
    dtype: str
    "Shape and element type of the global operand, or of what a part of the op has left of it before the exchange."


@dataclass(frozen=True)
class ShardingRule:
    """The loops of one op signature and the maps of its tensors. Values that are no ranked tensors have `()`.

    Equal rules are one object (`Interface.rule` sees to it), and the hash is computed once: they are keys everywhere.
    """

    loops: tuple[Loop, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    has_rule: bool = True
    "False: nothing is known about the op; its operands are gathered and it runs replicated."
    work: int = 1
    "Iterations of one element of the loops: what is computed along dimensions that have no loop."
    is_contraction: bool = False
    "Whether an iteration is a multiply-add on the units that accelerators are made for."
    exchanges: tuple[HaloExchange, ...] = ()
    "What neighbours send each other while the op runs, in the order in which they do."
    coarse: tuple[int, ...] = ()
    "Loops of which one iteration is several elements of a dimension, as 9 of 18 that a reshape makes 4 of, or that must not be"
    " padded for another reason."
    blocked: tuple[int, ...] = ()
    "Loops along which a sharding of one tensor is not propagated to the others."
    whole: tuple[int, ...] = ()
    "Loops that the user does not want to be sharded."

    @cached_property
    def _hash(self) -> int:
        described = (self.loops, self.operands, self.results, self.has_rule, self.work, self.is_contraction)
        return hash((*described, self.exchanges, self.coarse, self.blocked, self.whole))

    @cached_property
    def reduces(self) -> bool:
        """Whether any loop is a reduction."""
        return any(loop.reduction for loop in self.loops)

    @cached_property
    def merged_loops(self) -> tuple[int, ...]:
        """The loops that share a dimension with another one, or with what has no loop. Padding between two loops would shift
        elements, so they split evenly."""
        shared = {loop for dims in (*self.operands, *self.results) for loops in dims if len(loops) > 1 for loop in loops}
        return tuple(sorted({*shared, *self.coarse}))

    @cached_property
    def takes_any_option(self) -> bool:
        """Whether every option is legal that names no axis twice (see `is_legal`)."""
        kinds = {loop.reduction for loop in self.loops if loop.reduction}
        return not self.whole and not self.merged_loops and len(kinds) <= 1

    @cached_property
    def has_choices_of_any_size(self) -> bool:
        """Whether the same may be chosen whatever the sizes of its loops."""
        dims = [loops for dims in (*self.operands, *self.results) for loops in dims]
        return self.takes_any_option and not self.exchanges and all(len(loops) == 1 for loops in dims)

    def __hash__(self) -> int:
        return self._hash


RuleFn = Callable[[ir.Operation], ShardingRule]
RULES: Registry[str, RuleFn] = Registry("sharding rule")
"""Op name to the function that gives the rule of one op."""


def sharding_rule_of(
    *names: str, traits: Iterable[Trait], linear: tuple[int, ...] | None = (), multilinear: tuple[int, ...] = ()
) -> Callable[[RuleFn], RuleFn]:
    """A decorator that enters a sharding rule under each of `names`, and says what these ops are (`traits.declare`)."""
    declare(*names, traits=traits, linear=linear, multilinear=multilinear)
    return RULES.register(*names)


SHARDING_RULE = "sdy.sharding_rule"
"""Where a custom call says how it may be split."""

Restriction = Callable[[ir.Operation, ShardingRule], ShardingRule]
RESTRICTIONS: Registry[str, Restriction] = Registry("restriction by attribute")
"""Attribute to what it takes away from the loops of whatever op it stands on."""


Signature = tuple[object, ...]


OF_SHARDING = ("sdy.", "meshbridge.", "mhlo.")
"""What attributes begin with that say how to shard an op, not what it computes."""


def signature(op: ir.Operation) -> Signature:
    """Everything about an op that its description may depend on; equal signatures shard alike."""
    said = [entry for entry in op.attributes.items() if entry[0] == SHARDING_RULE or not entry[0].startswith(OF_SHARDING)]
    operands, results = ([value.type for value in values] for values in (op.operands, op.results))
    return (op.name, *operands, None, *results, *said, *region_names(op))


def region_names(op: ir.Operation) -> list[object]:
    """Names of the ops in the bodies of reducers and comparators: `add` or `maximum` decides the kind of a reduction."""
    return [(inner.operation.name, tuple([value.type for value in inner.operation.operands]))
            for region in op.regions for block in region.blocks for inner in block.operations]  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _interned(rule: ShardingRule) -> ShardingRule:
    """One object per distinct rule, so that caches keyed by rules compare them by identity, also for the next program."""
    return rule


class Interface:
    """Descriptions of the ops of one module. Signatures hold MLIR types and attributes, which live as long as their context."""

    def __init__(self) -> None:
        self._memo: dict[Signature, ShardingRule] = {}
        self._accepted: set[ir.Type] = set()

    def rule(self, op: ir.Operation) -> ShardingRule:
        """The loop rule of `op`; one without rule (`has_rule` False) for ops that nobody has described."""
        key = signature(op)
        found = self._memo.get(key)
        if found is None:
            if new := [value for value in (*op.operands, *op.results) if value.type not in self._accepted]:
                refuse_types(op, new)
                self._accepted.update([value.type for value in new])
            rule = RULES.get(op.name, opaque)(op)
            for attribute, restrict in RESTRICTIONS.items():
                if attribute in op.attributes:
                    rule = restrict(op, rule)
            found = self._memo[key] = _interned(rule)
        return found


def iterates(name: str) -> bool:
    """Whether the op of that name may have loops: those of these dialects say how a program is made up and sharded."""
    return not name.startswith(("builtin.", "func.", "mesh.", "sdy."))


def opaque(op: ir.Operation) -> ShardingRule:
    """An op that nobody has described: no loops, no dimension may be split."""
    return ShardingRule((), unsplittable(op.operands), unsplittable(op.results), has_rule=False)


def unsplittable(values: ir.OpOperandList | ir.OpResultList) -> tuple[Dims, ...]:
    """Maps in which no dimension has a loop."""
    return tuple(((),) * rank_of(value) for value in values)


def rank_of(value: ir.Value) -> int:
    """Rank of a ranked tensor, 0 for anything else."""
    kind = value.type
    return int(kind.rank) if isinstance(kind, ir.RankedTensorType) else 0


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Shape of a ranked tensor, () for anything else."""
    kind = value.type
    return tuple(kind.shape) if isinstance(kind, ir.RankedTensorType) else ()


class RuleBuilder:
    """Collects loops; the families use it to write their maps down."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.exchanges: list[HaloExchange] = []

    def loop(self, size: int, reduction: str = "") -> tuple[int, ...]:
        """Adds a loop and returns the map entry of a dimension along it; sizes 1 and 0 cannot be sharded and get no loop."""
        if size < 2:
            return ()
        self.loops.append(Loop(size, reduction))
        return (len(self.loops) - 1,)

    def exchange(self, loops: tuple[int, ...], op: ir.Operation, operand: int, dim: int, reach: Reach | Covered | Shares) -> None:
        """Notes that splitting the loop (none, if `loops` is empty) along dimension `dim` of an operand takes an exchange."""
        tensor = ir.RankedTensorType(op.operands[operand].type)
        for loop in loops:
            self.exchanges.append(HaloExchange(loop, operand, dim, reach, tuple(tensor.shape), str(tensor.element_type)))

    def rule(self, operands: list[Dims], results: list[Dims]) -> ShardingRule:
        return ShardingRule(tuple(self.loops), tuple(operands), tuple(results), exchanges=tuple(self.exchanges))


def affine_maps(rule: ShardingRule) -> list[ir.AffineMap]:
    """The indexing maps as MLIR writes them: operands, then results. Unwalked dimensions are the constant 0."""
    count = len(rule.loops)

    def expression(loops: tuple[int, ...]) -> ir.AffineExpr:
        total: ir.AffineExpr = ir.AffineConstantExpr.get(0)
        for loop in loops:
            total = total * rule.loops[loop].size + ir.AffineDimExpr.get(loop)
        return total

    return [ir.AffineMap.get(count, 0, [expression(loops) for loops in dims]) for dims in (*rule.operands, *rule.results)]


def loop_types(rule: ShardingRule) -> list[str]:
    """`parallel` or `reduction_<kind>` per loop, as the RFC prints them."""
    return [f"reduction_{loop.reduction}" if loop.reduction else "parallel" for loop in rule.loops]
