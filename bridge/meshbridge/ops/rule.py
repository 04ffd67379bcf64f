"""ShardingInterface: the loops of each operation (the RFC, "ShardingInterface").

A ShardingRule lists an op's loops, and the loops along every dimension of every operand and result:

    stablehlo.dot_general (8x16, 16x32) -> 8x32
    loops: parallel 8, parallel 32, reduction_sum 16       maps: (d0, d2), (d2, d1) -> (d0, d1)

A dimension with several loops, major first, is their product (a reshape that merges 8 and 4 has `(0, 1)` on the dimension of 32);
a dimension without loops cannot be sharded. Each op family registers one function for its op names. Rules are memoised by
signature, so layer 2 of a model costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry
from meshbridge.ops.affine_access import AffineAccess, CoveredAccess, ShardSummaries
from meshbridge.ops.traits import Trait, declare
from meshbridge.ops.unsupported import check_types

Dims = tuple[tuple[int, ...], ...]
"""Per dimension of one tensor, the loops along it, major to minor."""


@dataclass(frozen=True)
class Loop:
    """One loop: its trip count, and the reduction that combines its iterations ("" for a parallel loop)."""

    size: int
    reduction: str = ""


@dataclass(frozen=True)
class HaloExchange:
    """The exchange if `loop` is split: each device receives the elements that its `access` to dimension `dim` of an operand reads
    beyond its shard, or the summaries of all others.

    The loop is shared with a dimension of another tensor, whose size may differ: shards have a length per tensor.
    """

    loop: int
    operand: int
    dim: int
    access: AffineAccess | CoveredAccess | ShardSummaries
    shape: tuple[int, ...]
    dtype: str
    "Shape and element type of the global operand, as the earlier steps of the op have reduced it."


@dataclass(frozen=True)
class ShardingRule:
    """The loops of one op signature and the maps of its tensors. A value that is no ranked tensor has `()`.

    Equal rules are one object (see `Interface.rule`) with a cached hash, because they are keys everywhere.
    """

    loops: tuple[Loop, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    has_rule: bool = True
    "False if the op is unknown: its operands are gathered and it runs replicated."
    work: int = 1
    "Iterations per point of the loops: the work along dimensions that have no loop."
    is_contraction: bool = False
    "True if an iteration is a multiply-add on the matrix units of accelerators."
    exchanges: tuple[HaloExchange, ...] = ()
    "The exchanges between devices while the op runs, in order."
    coarse: tuple[int, ...] = ()
    "Loops of which one iteration is several elements of a dimension, as 9 of 18 that a reshape makes 4 of, or that must not be"
    " padded for another reason."
    blocked: tuple[int, ...] = ()
    "Loops along which a sharding of one tensor is not propagated to the others."
    replicated: tuple[int, ...] = ()
    "Loops that must not be sharded, by the user's rule."

    @cached_property
    def _hash(self) -> int:
        described = (self.loops, self.operands, self.results, self.has_rule, self.work, self.is_contraction)
        return hash((*described, self.exchanges, self.coarse, self.blocked, self.replicated))

    @cached_property
    def reduces(self) -> bool:
        """True if any loop is a reduction."""
        return any(loop.reduction for loop in self.loops)

    @cached_property
    def merged_loops(self) -> tuple[int, ...]:
        """The loops that share a dimension with another one, or with elements that have no loop. They split evenly, because
        padding between two loops would shift elements."""
        shared = {loop for dims in (*self.operands, *self.results) for loops in dims if len(loops) > 1 for loop in loops}
        return tuple(sorted({*shared, *self.coarse}))

    @cached_property
    def takes_any_option(self) -> bool:
        """True if every option that uses no axis twice is legal (see `is_legal`)."""
        kinds = {loop.reduction for loop in self.loops if loop.reduction}
        return not self.replicated and not self.merged_loops and len(kinds) <= 1

    @cached_property
    def options_ignore_sizes(self) -> bool:
        """True if the possible options do not depend on the sizes of the loops."""
        dims = [loops for dims in (*self.operands, *self.results) for loops in dims]
        return self.takes_any_option and not self.exchanges and all(len(loops) == 1 for loops in dims)

    def __hash__(self) -> int:
        return self._hash


RuleFn = Callable[[ir.Operation], ShardingRule]
RULES: Registry[str, RuleFn] = Registry("sharding rule")
"""By op name, the function that returns the rule of one op."""


def sharding_rule_of(
    *names: str, traits: Iterable[Trait], linear: tuple[int, ...] | None = (), multilinear: tuple[int, ...] = ()
) -> Callable[[RuleFn], RuleFn]:
    """A decorator that registers a sharding rule under each of `names`, and declares the traits of these ops
    (`traits.declare`)."""
    declare(*names, traits=traits, linear=linear, multilinear=multilinear)
    return RULES.register(*names)


SHARDING_RULE = "sdy.sharding_rule"
"""The attribute with the sharding rule of a custom call."""

Restriction = Callable[[ir.Operation, ShardingRule], ShardingRule]
RESTRICTIONS: Registry[str, Restriction] = Registry("restriction by attribute")
"""By attribute, the function that restricts the rule of an op that carries it."""


Signature = tuple[object, ...]


OF_SHARDING = ("sdy.", "meshbridge.", "mhlo.")
"""Prefixes of attributes about sharding, not about computation."""


def signature(op: ir.Operation) -> Signature:
    """Everything that the rule of an op may depend on; equal signatures shard alike."""
    attributes = [entry for entry in op.attributes.items() if entry[0] == SHARDING_RULE or not entry[0].startswith(OF_SHARDING)]
    operands, results = ([value.type for value in values] for values in (op.operands, op.results))
    return (op.name, *operands, None, *results, *attributes, *region_names(op))


def region_names(op: ir.Operation) -> list[object]:
    """The ops in the bodies of reducers and comparators: `add` or `maximum` decides the kind of a reduction."""
    return [(inner.operation.name, tuple([value.type for value in inner.operation.operands]))
            for region in op.regions for block in region.blocks for inner in block.operations]  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _interned(rule: ShardingRule) -> ShardingRule:
    """One object per distinct rule, across programs, so that caches compare rules by identity."""
    return rule


class Interface:
    """The rules of the ops of one module. Signatures hold MLIR types and attributes, which live as long as their context."""

    def __init__(self) -> None:
        self._memo: dict[Signature, ShardingRule] = {}
        self._accepted: set[ir.Type] = set()

    def rule(self, op: ir.Operation) -> ShardingRule:
        """The rule of `op`; an unknown op has one with `has_rule` False."""
        key = signature(op)
        rule = self._memo.get(key)
        if rule is None:
            if unchecked := [value for value in (*op.operands, *op.results) if value.type not in self._accepted]:
                check_types(op, unchecked)
                self._accepted.update([value.type for value in unchecked])
            new_rule = RULES.get(op.name, opaque)(op)
            for attribute, restrict in RESTRICTIONS.items():
                if attribute in op.attributes:
                    new_rule = restrict(op, new_rule)
            rule = self._memo[key] = _interned(new_rule)
        return rule


def may_have_loops(name: str) -> bool:
    """True if the op of that name may have loops: ops of these dialects define functions and shardings."""
    return not name.startswith(("builtin.", "func.", "mesh.", "sdy."))


def opaque(op: ir.Operation) -> ShardingRule:
    """The rule of an unknown op: no loops, no dimension may be split."""
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
    """Collects the loops and exchanges of one rule."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.exchanges: list[HaloExchange] = []

    def loop(self, size: int, reduction: str = "") -> tuple[int, ...]:
        """Adds a loop and returns the map entry of a dimension along it; sizes 1 and 0 cannot be sharded and get no loop."""
        if size < 2:
            return ()
        self.loops.append(Loop(size, reduction))
        return (len(self.loops) - 1,)

    def exchange(
        self,
        loops: tuple[int, ...],
        op: ir.Operation,
        operand: int,
        dim: int,
        access: AffineAccess | CoveredAccess | ShardSummaries,
    ) -> None:
        """Adds the exchange that splitting the loop (none, if `loops` is empty) along dimension `dim` of an operand takes."""
        tensor = ir.RankedTensorType(op.operands[operand].type)
        for loop in loops:
            self.exchanges.append(HaloExchange(loop, operand, dim, access, tuple(tensor.shape), str(tensor.element_type)))

    def rule(self, operands: list[Dims], results: list[Dims]) -> ShardingRule:
        return ShardingRule(tuple(self.loops), tuple(operands), tuple(results), exchanges=tuple(self.exchanges))


def affine_maps(rule: ShardingRule) -> list[ir.AffineMap]:
    """The indexing maps as MLIR writes them: operands, then results. A dimension without loops is the constant 0."""
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
