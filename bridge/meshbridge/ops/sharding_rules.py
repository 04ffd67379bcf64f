"""Sharding rules that users give for ops of unknown behaviour (Shardy's `sdy.op_sharding_rule`).

    register_sharding_rule("my_matmul", "... i j, j k -> ... i k", reduction_factors=["j"])
    register_sharding_rule("my_sum", LoopsAndMaps(["parallel", "reduction_sum"], "(d0, d1) -> (d0)"))

A rule names the *factors* along each dimension. If operands and results share a factor, each device computes its part of it:

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
"""Ops whose loops come from their rule alone."""


@dataclass(frozen=True)
class Rule:
    """A parsed rule."""

    operands: Factors
    results: Factors
    reductions: Mapping[str, str] = field(default_factory=dict)
    "The kind of each reduction factor."
    replicated: frozenset[str] = frozenset()
    "Factors that are gathered."
    blocked: frozenset[str] = frozenset()
    "Factors along which shardings are not propagated."
    sizes: Mapping[str, int] = field(default_factory=dict)
    "Sizes of factors that no dimension has alone, or of any factor if `is_blockwise`."
    is_blockwise: bool = False
    "Whether a dimension may have several elements for each of a factor's, as the values that share a scale have. JAX takes the"
    " smallest dimension for the factor then."

    def sharding_rule(self, op: ir.Operation, *, may_pad: bool = False) -> ShardingRule:
        """The loops of an op with this rule. `may_pad` says that padding of a reduction factor is harmless; for an unknown op it
        is not.

        Raises OpError if the rule does not fit the op's tensors.
        """
        shapes = [[shape_of(value) for value in values] for values in (op.operands, op.results)]
        operands, results = _unfolded(op, [self.operands, self.results], shapes)
        sizes, blocks = self._sizes(op, operands + results, shapes[0] + shapes[1])
        splittable = self.splittable(sizes, operands, results)
        build = RuleBuilder()
        loops = {factor: build.loop(sizes[factor], self.reductions.get(factor, "")) for factor in sizes if factor in splittable}
        rule = build.rule(*([_dims(tensor, loops) for tensor in side] for side in (operands, results)))
        split_prefixes = {
            dim[: _count(dim, splittable)] for tensor in operands + results for dim in tensor if not splittable >= {*dim}
        }
        coarse = {*blocks, *sum(split_prefixes, ()), *(() if may_pad else self.reductions)}
        return replace(rule, coarse=_of(coarse, loops), blocked=_of(self.blocked, loops))

    def _sizes(self, op: ir.Operation, tensors: Factors, shapes: Shapes) -> tuple[dict[str, int], set[str]]:
        """The size of every factor, in the order of the rule, and the factors with several elements per iteration in some
        dimension."""
        dims = [
            (dim, size) for tensor, shape in zip(tensors, shapes, strict=True) for dim, size in zip(tensor, shape, strict=True)
        ]
        sizes, blocks = dict(self.sizes), set[str]()
        for dim, size in sorted(dims, key=lambda entry: len(entry[0])):  # dimensions of one factor first
            open_factors = [factor for factor in dim if factor not in sizes]
            product = prod(sizes[factor] for factor in dim if factor in sizes)
            if len(open_factors) > 1:
                raise OpError(op, f"has a rule that leaves the sizes of {', '.join(open_factors)} open", "give them one by one")
            if self.is_blockwise and len(dim) == 1 and product < size:
                blocks.add(dim[0])
                sizes[dim[0]] = gcd(product, size)
            elif (not product or size % product) if open_factors else size != product:
                raise OpError(op, f"has a dimension of {size} where its sharding rule has {' x '.join(dim) or '1'} = {product}")
            elif open_factors:
                sizes[open_factors[0]] = size // product
        return {factor: sizes[factor] for dim, _ in dims for factor in dim}, blocks

    def splittable(self, factors: Iterable[str], operands: Factors, results: Factors) -> set[str]:
        """The `factors` that can be split in all tensors. A factor that is minor to one that cannot be split is not
        contiguous."""
        read, written = _factors(operands), _factors(results)
        candidates = {
            factor
            for factor in factors
            if factor in read and factor not in self.replicated and (factor in written) != (factor in self.reductions)
        }
        while hidden := {
            factor
            for tensor in operands + results
            for dim in tensor
            for factor in dim[_count(dim, candidates) :]
            if factor in candidates
        }:
            candidates -= hidden
        return candidates


def _count(dim: tuple[str, ...], splittable: set[str]) -> int:
    """The number of factors of a dimension, from the major one on, that can be split."""
    return next((position for position, factor in enumerate(dim) if factor not in splittable), len(dim))


def _dims(tensor: list[tuple[str, ...]], loops: dict[str, tuple[int, ...]]) -> Dims:
    """The loops along each dimension, for the factors that are loops."""
    return tuple(sum((loops.get(factor, ()) for factor in dim), ()) for dim in tensor)


def _of(factors: Iterable[str], loops: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({loop for factor in factors for loop in loops.get(factor, ())}))


def _factors(tensors: Factors) -> set[str]:
    return {factor for tensor in tensors for dim in tensor for factor in dim}


def _unfolded(op: ir.Operation, sides: list[Factors], shapes: list[Shapes]) -> list[Factors]:
    """Replaces every `...` by one factor per dimension."""
    lengths: dict[str, int] = {}
    unfolded = []
    for tensors, expected, side in zip(sides, shapes, ("operands", "results"), strict=True):
        given_tensors: Factors = [] if tensors == [[]] and not expected else tensors
        if len(given_tensors) != len(expected):
            hint = "arrays that its function takes from outside are operands too, the first ones" if op.name == COMPOSITE else ""
            raise OpError(op, f"has {len(expected)} {side}, but its sharding rule has {len(given_tensors)}", hint)
        unfolded.append([_with_batch(op, *entry, side, lengths) for entry in zip(given_tensors, expected, strict=True)])
    return unfolded


def _with_batch(
    op: ir.Operation, tensor: list[tuple[str, ...]], shape: tuple[int, ...], side: str, lengths: dict[str, int]
) -> list[tuple[str, ...]]:
    group = tensor[0][0] if tensor and tensor[0] and tensor[0][0].startswith(BATCH) else ""
    named = len(tensor) - bool(group)
    extra = len(shape) - named
    if extra < 0 or (extra and not group):
        raise OpError(op, f"has {side} of rank {len(shape)}, but its sharding rule names {named} dimensions")
    if group and lengths.setdefault(group, extra) != extra:
        raise OpError(op, f"has tensors in which '{BATCH}' of its sharding rule is {lengths[group]} and {extra} dimensions")
    return [*[(f"{group}.{position}",) for position in range(extra)], *tensor[bool(group) :]]


def attached_rule(op: ir.Operation) -> Rule | None:
    """The rule in an op's `sdy.sharding_rule` attribute, which MLIR's verifier has checked except for sizes.

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
def keep_to_rule(op: ir.Operation, own_rule: ShardingRule) -> ShardingRule:
    """Restricts the rule of a known op to the loops along whose dimensions the user's rule can split every factor. Rules that a
    pass of Shardy has written (not `custom`) are ignored."""
    rule = attached_rule(op)
    if rule is None or op.name in RULED or not sdy.OpShardingRuleAttr(op.attributes[SHARDING_RULE]).is_custom:
        return own_rule
    tensors = [*rule.operands, *rule.results]
    splittable = rule.splittable(rule.sizes, rule.operands, rule.results)
    loop_factors = [
        (loop, {*dim})
        for tensor, dims in zip(tensors, (*own_rule.operands, *own_rule.results), strict=True)
        for dim, loops in zip(tensor, dims, strict=True)
        for loop in loops
    ]
    replicated = {loop for loop, factors in loop_factors if not factors <= splittable}
    blocked = {loop for loop, factors in loop_factors if factors & rule.blocked}
    return replace(own_rule, replicated=tuple(sorted(replicated)), blocked=tuple(sorted(blocked)))


def _attached_dims(tensor: ir.Attribute) -> list[Sequence[int]]:
    return [sdy.DimMappingAttr(dim).factor_indices for dim in sdy.TensorMappingAttr(tensor).dim_mappings]


USER_RULES: Registry[str, Rule] = Registry("sharding rule of")
"""Users' rules, by the target of a custom call or the name of a composite."""


KERNELS = frozenset(("__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2", "tpu_custom_call", "triton_kernel_call"))
"""Targets whose code is compiled for the shapes of their operands: it would read and write beyond shards."""


def rule_of(op: ir.Operation, name: str) -> Rule | None:
    """The rule that an op carries, or that is registered under its name: a custom call's target, a composite's name. None for
    KERNELS."""
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
    """Declares how calls of a custom call's `target`, or composites of that name, may be split: each device then runs them on its
    shards.

    `rule` is `"... i j, j k -> ... i k"` or LoopsAndMaps. The keywords are those of JAX's `custom_partitioning`, with Shardy's
    meanings. `reduction_factors` are only in operands: the shards' results are combined by `sum`, or as a mapping says (`{"j":
    "max"}`). Operands are gathered along `need_replication_factors` and `permutation_factors`. Shardings are not propagated along
    `blocked_propagation_factors`. `factor_sizes` give the sizes of factors that no dimension has alone, as in `(i j)`: `j=4`.

    A `sdy.sharding_rule` attribute takes precedence. Raises MeshError for an invalid rule, for a second rule of a target, and for
    one of KERNELS; a program whose tensors the rule does not fit raises OpError, which names the op.
    """
    if target in KERNELS:
        hint = "call the kernel in jax.shard_map, where it is compiled for shards"
        raise MeshError(f"error: '{target}' is code for operands of a given shape, which no rule can change\n  hint: {hint}")
    factor_lists = (need_replication_factors, permutation_factors, blocked_propagation_factors, reduction_factors)
    if any(isinstance(names, str) for names in factor_lists):
        raise MeshError(f"error: the sharding rule {rule!r} comes with a text for factors, expected a list of their names")
    if isinstance(rule, LoopsAndMaps):
        maps = read_maps(rule)
        read = Rule(maps.operands, maps.results, maps.reductions, maps.replicated, frozenset(), maps.sizes)
        if any(factor_lists) or factor_sizes:
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
    for factor in (*read.reductions, *read.replicated, *read.blocked, *read.sizes):
        if factor not in names:
            raise MeshError(f"error: the sharding rule {rule!r} has no factor '{factor}'")
    for tensor in (*read.operands, *read.results):
        factors = sum(tensor, ())
        if len(set(factors)) < len(factors):
            raise MeshError(f"error: a tensor of the sharding rule {rule!r} has a factor twice: {' '.join(factors)}")
    for factor, kind in read.reductions.items():
        if kind not in REDUCTION_KINDS or kind == "generic":
            supported = ", ".join(supported for supported in REDUCTION_KINDS if supported != "generic")
            raise MeshError(f"error: factor '{factor}' has the reduction '{kind}', expected one of {supported}")
        if factor in written:
            raise MeshError(f"error: factor '{factor}' is a reduction, but a result of the sharding rule {rule!r} has it")
    for factor, size in read.sizes.items():
        if size < 1:
            raise MeshError(f"error: factor '{factor}' has the size {size}, expected 1 or more")
