"""Sharding rules: how an op may be split of which nothing is known but what its user says (Shardy's `sdy.op_sharding_rule`).

    register_sharding_rule("my_matmul", "... i j, j k -> ... i k", reduction_factors=["j"])
    register_sharding_rule("my_sum", LoopsAndMaps(["parallel", "reduction_sum"], "(d0, d1) -> (d0)"))

A rule names the *factors* along each dimension. Where operands and results share one, each device works on its part of it:

| factor | becomes |
|---|---|
| of operands and results | a parallel loop |
| reduction | a loop whose shards' results are joined |
| need_replication, permutation | nothing: gathered along it, as Shardy resolves the permutations of ops that it does not know |
| of operands or results alone, and no reduction | nothing: gathered along it. JAX writes matrices in linear algebra so |
| blocked_propagation | what it is otherwise, but its shardings are not carried from one tensor to another |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from meshbridge.ir.mlir import COMPOSITE, CUSTOM_CALL, MeshError, OpError, ir, sdy
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import REDUCTION_KINDS
from meshbridge.ops.rule import RESTRICTIONS, SHARDING_RULE, Dims, RuleBuilder, ShardingRule, shape_of
from meshbridge.ops.rule_notation import BATCH, Factors, LoopsAndMaps, read_maps, read_notation

Shapes = list[tuple[int, ...]]

RULED = frozenset({CUSTOM_CALL, COMPOSITE})
"""Ops of which their rule alone says what loops they have."""


@dataclass(frozen=True)
class Rule:
    """A rule as its notation says it."""

    operands: Factors
    results: Factors
    reductions: Mapping[str, str] = field(default_factory=dict)
    "The kind of each reduction factor."
    whole: frozenset[str] = frozenset()
    "Factors that are gathered."
    blocked: frozenset[str] = frozenset()
    "Factors along which nothing is propagated."
    sizes: Mapping[str, int] = field(default_factory=dict)
    "Sizes of factors that no dimension has alone, of any factor if `is_blockwise`."
    is_blockwise: bool = False
    "Whether a dimension may have several elements for each of a factor's, as the values that share a scale have. JAX takes the"
    " smallest dimension for the factor then."

    def sharding_rule(self, op: ir.Operation, *, may_pad: bool = False) -> ShardingRule:
        """The loops of an op with this rule. `may_pad` says that padding of a reduction factor does no harm: of an op that nobody
        knows, it must be taken to.

        Raises OpError if the rule does not fit the op's tensors.
        """
        shapes = [[shape_of(value) for value in values] for values in (op.operands, op.results)]
        operands, results = _unfolded(op, [self.operands, self.results], shapes)
        sizes, blocks = self._sizes(op, operands + results, shapes[0] + shapes[1])
        splittable = self.splittable(sizes, operands, results)
        build = RuleBuilder()
        loops = {factor: build.loop(sizes[factor], self.reductions.get(factor, "")) for factor in sizes if factor in splittable}
        rule = build.rule(*([_dims(tensor, loops) for tensor in side] for side in (operands, results)))
        cut = {dim[: _count(dim, splittable)] for tensor in operands + results for dim in tensor if not splittable >= {*dim}}
        coarse = {*blocks, *sum(cut, ()), *(() if may_pad else self.reductions)}
        return replace(rule, coarse=_of(coarse, loops), blocked=_of(self.blocked, loops))

    def _sizes(self, op: ir.Operation, tensors: Factors, shapes: Shapes) -> tuple[dict[str, int], set[str]]:
        """The size of every factor, in the order in which the rule names them, and which ones have dimensions of several
        elements for each of theirs."""
        dims = [
            (dim, size) for tensor, shape in zip(tensors, shapes, strict=True) for dim, size in zip(tensor, shape, strict=True)
        ]
        sizes, blocks = dict(self.sizes), set[str]()
        for dim, size in sorted(dims, key=lambda entry: len(entry[0])):  # dimensions of one factor first
            open_factors = [factor for factor in dim if factor not in sizes]
            known = prod(sizes[factor] for factor in dim if factor in sizes)
            if len(open_factors) > 1:
                raise OpError(op, f"has a rule that leaves the sizes of {', '.join(open_factors)} open", "give them one by one")
            if self.is_blockwise and len(dim) == 1 and known < size:
                blocks.add(dim[0])
                sizes[dim[0]] = gcd(known, size)
            elif (not known or size % known) if open_factors else size != known:
                raise OpError(op, f"has a dimension of {size} where its sharding rule has {' x '.join(dim) or '1'} = {known}")
            elif open_factors:
                sizes[open_factors[0]] = size // known
        return {factor: sizes[factor] for dim, _ in dims for factor in dim}, blocks

    def splittable(self, factors: Iterable[str], operands: Factors, results: Factors) -> set[str]:
        """The `factors` that can be split, which is in all tensors or in none: one that is minor to another that cannot be
        sharded is not contiguous."""
        read, written = _factors(operands), _factors(results)
        found = {
            factor
            for factor in factors
            if factor in read and factor not in self.whole and (factor in written) != (factor in self.reductions)
        }
        while hidden := {
            factor for tensor in operands + results for dim in tensor for factor in dim[_count(dim, found) :] if factor in found
        }:
            found -= hidden
        return found


def _count(dim: tuple[str, ...], splittable: set[str]) -> int:
    """How many factors of a dimension, from the major one on, can be split."""
    return next((place for place, factor in enumerate(dim) if factor not in splittable), len(dim))


def _dims(tensor: list[tuple[str, ...]], loops: dict[str, tuple[int, ...]]) -> Dims:
    """The loops along each dimension, as far as its factors are loops."""
    return tuple(sum((loops.get(factor, ()) for factor in dim), ()) for dim in tensor)


def _of(factors: Iterable[str], loops: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({loop for factor in factors for loop in loops.get(factor, ())}))


def _factors(tensors: Factors) -> set[str]:
    return {factor for tensor in tensors for dim in tensor for factor in dim}


def _unfolded(op: ir.Operation, sides: list[Factors], shapes: list[Shapes]) -> list[Factors]:
    """Gives every dimension that a `...` stands for a factor of its own."""
    lengths: dict[str, int] = {}
    unfolded = []
    for tensors, expected, what in zip(sides, shapes, ("operands", "results"), strict=True):
        given: Factors = [] if tensors == [[]] and not expected else tensors
        if len(given) != len(expected):
            hint = "arrays that its function takes from outside are operands too, the first ones" if op.name == COMPOSITE else ""
            raise OpError(op, f"has {len(expected)} {what}, but its sharding rule has {len(given)}", hint)
        unfolded.append([_with_batch(op, *entry, what, lengths) for entry in zip(given, expected, strict=True)])
    return unfolded


def _with_batch(
    op: ir.Operation, tensor: list[tuple[str, ...]], shape: tuple[int, ...], what: str, lengths: dict[str, int]
) -> list[tuple[str, ...]]:
    group = tensor[0][0] if tensor and tensor[0] and tensor[0][0].startswith(BATCH) else ""
    named = len(tensor) - bool(group)
    extra = len(shape) - named
    if extra < 0 or (extra and not group):
        raise OpError(op, f"has {what} of rank {len(shape)}, but its sharding rule names {named} dimensions")
    if group and lengths.setdefault(group, extra) != extra:
        raise OpError(op, f"has tensors in which '{BATCH}' of its sharding rule is {lengths[group]} and {extra} dimensions")
    return [*[(f"{group}.{place}",) for place in range(extra)], *tensor[bool(group) :]]


def attached_rule(op: ir.Operation) -> Rule | None:
    """The rule that an op carries in its attribute `sdy.sharding_rule`, which MLIR's verifier has checked but for sizes.

    Raises OpError if a factor is larger than a dimension of which it is the only one.
    """
    if SHARDING_RULE not in op.attributes:
        return None
    rule = sdy.OpShardingRuleAttr(op.attributes[SHARDING_RULE])
    names = [chr(ord("i") + index) if index < 18 else f"z_{index - 17}" for index in range(len(rule.factor_sizes))]
    operands, results = (
        [[tuple(names[factor] for factor in dim) for dim in _attached_dims(tensor)] for tensor in side]
        for side in (rule.operand_mappings, rule.result_mappings)
    )
    return Rule(
        operands,
        results,
        dict.fromkeys((names[factor] for factor in rule.reduction_factors), "sum"),
        frozenset(names[factor] for factor in (*rule.need_replication_factors, *rule.permutation_factors)),
        frozenset(names[factor] for factor in rule.blocked_propagation_factors),
        dict(zip(names, rule.factor_sizes, strict=True)),
        is_blockwise=True,
    )


@RESTRICTIONS.register(SHARDING_RULE)
def keep_to_rule(op: ir.Operation, known: ShardingRule) -> ShardingRule:
    """What the user's rule leaves of the loops of an op that is known without it: those along whose dimensions every factor can
    be split. A rule that no user has written (`custom`), but a pass of Shardy's, says nothing new."""
    rule = attached_rule(op)
    if rule is None or op.name in RULED or not sdy.OpShardingRuleAttr(op.attributes[SHARDING_RULE]).is_custom:
        return known
    tensors = [*rule.operands, *rule.results]
    splittable = rule.splittable(rule.sizes, rule.operands, rule.results)
    walked = [
        (loop, {*dim})
        for tensor, dims in zip(tensors, (*known.operands, *known.results), strict=True)
        for dim, loops in zip(tensor, dims, strict=True)
        for loop in loops
    ]
    whole = {loop for loop, factors in walked if not factors <= splittable}
    blocked = {loop for loop, factors in walked if factors & rule.blocked}
    return replace(known, whole=tuple(sorted(whole)), blocked=tuple(sorted(blocked)))


def _attached_dims(tensor: ir.Attribute) -> list[Sequence[int]]:
    return [sdy.DimMappingAttr(dim).factor_indices for dim in sdy.TensorMappingAttr(tensor).dim_mappings]


USER_RULES: Registry[str, Rule] = Registry("sharding rule of")
"""What users have said, by the target of a custom call or the name of a composite."""


KERNELS = frozenset(("__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2", "tpu_custom_call", "triton_kernel_call"))
"""Targets that bring their code along, compiled for the shapes of their operands: it would read and write beside shards."""


def rule_of(op: ir.Operation, name: str) -> Rule | None:
    """The rule that an op carries, or that is registered under its name: a custom call's target, a composite's name. None for
    KERNELS, whatever they carry."""
    return None if name in KERNELS else attached_rule(op) or USER_RULES.get(name)


def register_sharding_rule(
    target: str,
    rule: str | LoopsAndMaps,
    *,
    reduction_factors: Mapping[str, str] | Sequence[str] = (),
    need_replication_factors: Sequence[str] = (),
    permutation_factors: Sequence[str] = (),
    blocked_propagation_factors: Sequence[str] = (),
    **factor_sizes: int,
) -> None:
    """Says how calls of a custom call's `target`, or composites of that name, may be split: each device then runs them on its
    shards.

    `rule` is `"... i j, j k -> ... i k"` or LoopsAndMaps. The keywords are those of JAX's `custom_partitioning`, and mean what
    Shardy says. `reduction_factors` are in operands alone: the shards' results are joined by `sum`, or as a mapping says
    (`{"j": "max"}`). Along `need_replication_factors` and `permutation_factors` operands are gathered. Along
    `blocked_propagation_factors` shardings are not carried from one tensor to another. `factor_sizes` are of factors that no
    dimension has alone, as in `(i j)`: `j=4`.

    A `sdy.sharding_rule` attribute goes before this. Raises MeshError for a rule that cannot be read, for a second one of a
    target, and for one of KERNELS; a program in which the rule does not fit is refused with an OpError that names the op.
    """
    if target in KERNELS:
        hint = "call the kernel in jax.shard_map, where it is compiled for shards"
        raise MeshError(f"error: '{target}' is code for operands of a given shape, which no rule can change\n  hint: {hint}")
    given = (need_replication_factors, permutation_factors, blocked_propagation_factors, reduction_factors)
    if any(isinstance(names, str) for names in given):
        raise MeshError(f"error: the sharding rule {rule!r} comes with a text for factors, expected a list of their names")
    if isinstance(rule, LoopsAndMaps):
        maps = read_maps(rule)
        read = Rule(maps.operands, maps.results, maps.reductions, maps.whole, frozenset(), maps.sizes)
        if any(given) or factor_sizes:
            raise MeshError(f"error: the sharding rule {rule!r} says by the types of its loops what its factors are")
    else:
        kinds = dict(reduction_factors) if isinstance(reduction_factors, Mapping) else dict.fromkeys(reduction_factors, "sum")
        gathered = (*need_replication_factors, *permutation_factors)
        if twice := [factor for factor, count in Counter((*reduction_factors, *gathered)).items() if count > 1]:
            raise MeshError(f"error: factor '{twice[0]}' of the sharding rule {rule!r} is of two kinds, or named twice")
        read = Rule(*read_notation(rule), kinds, frozenset(gathered), frozenset(blocked_propagation_factors), factor_sizes)
    _check(rule, read)
    USER_RULES.add(target, read)


def _check(rule: str | LoopsAndMaps, read: Rule) -> None:
    written = _factors(read.results)
    names = written | _factors(read.operands)
    for factor in (*read.reductions, *read.whole, *read.blocked, *read.sizes):
        if factor not in names:
            raise MeshError(f"error: the sharding rule {rule!r} has no factor '{factor}'")
    for tensor in (*read.operands, *read.results):
        factors = sum(tensor, ())
        if len(set(factors)) < len(factors):
            raise MeshError(f"error: a tensor of the sharding rule {rule!r} has a factor twice: {' '.join(factors)}")
    for factor, kind in read.reductions.items():
        if kind not in REDUCTION_KINDS or kind == "generic":
            known = ", ".join(known for known in REDUCTION_KINDS if known != "generic")
            raise MeshError(f"error: factor '{factor}' has the reduction '{kind}', expected one of {known}")
        if factor in written:
            raise MeshError(f"error: factor '{factor}' is a reduction, but a result of the sharding rule {rule!r} has it")
    for factor, size in read.sizes.items():
        if size < 1:
            raise MeshError(f"error: factor '{factor}' has the size {size}, expected 1 or more")
