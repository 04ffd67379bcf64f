"""Composites with a sharding rule: a named op, and a function that defines it in simpler ops.

    %0 = stablehlo.composite "my.norm" %x {decomposition = @norm} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    register_sharding_rule("my.norm", "i j -> i j", need_replication_factors=["j"])
    loops: parallel i

`inline-calls` replaces composites without a rule by their bodies. Composites that our own passes create have a sharding rule and
an SPMD lowering in `COMPOSITES`.
"""

from __future__ import annotations

from dataclasses import replace

from meshbridge.ir.mlir import COMPOSITE, OpError, ir, walk
from meshbridge.ir.registry import Registry, docstring
from meshbridge.ops.option import Option
from meshbridge.ops.rule import RuleFn, ShardingRule, opaque, sharding_rule_of
from meshbridge.ops.sharding_rules import Rule, rule_of
from meshbridge.ops.spmd import SpmdLowering, SpmdProgram, default_lowering, spmd_lowering

CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
"""Ops that multiply and add up."""


def composite_rule(op: ir.Operation) -> Rule | None:
    """The rule that a composite carries, or that is registered for its name."""
    return rule_of(op, composite_name(op))


def composite_name(op: ir.Operation) -> str:
    """The name of a composite."""
    return str(ir.StringAttr(op.attributes["name"]).value)


COMPOSITES: Registry[str, tuple[RuleFn, SpmdLowering]] = Registry("composite", lambda own: docstring(own[0]))
"""Sharding rule and SPMD lowering, by name, of the composites that our own passes create."""


@sharding_rule_of(COMPOSITE, traits=())
def composite(op: ir.Operation) -> ShardingRule:
    """The loops of the composite's rule; a contraction if its body has one. The ops of the body handle padding themselves."""
    if (own := COMPOSITES.get(composite_name(op))) is not None:
        return own[0](op)
    rule = composite_rule(op)
    if rule is None:
        return opaque(op)
    return replace(
        rule.sharding_rule(op, may_pad=True),
        is_contraction=any(inner.name in CONTRACTIONS for inner in walk(composite_body(op))),
    )


def composite_body(op: ir.Operation) -> ir.Operation:
    """The function that a composite calls."""
    module = op.parent
    while module is not None and module.name != "builtin.module":
        module = module.parent
    name = ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
    if module is None or name not in (symbols := ir.SymbolTable(module)):
        raise OpError(op, f"calls @{name}, which the module does not have")
    return symbols[name].operation


@spmd_lowering(COMPOSITE)
def local_composite(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Lowers a composite of `COMPOSITES`; one without a rule runs replicated. `mesh-spmdization` inlines composites that have a
    user's rule."""
    if (own := COMPOSITES.get(composite_name(op))) is not None:
        own[1](op, rule, option, at)
        return
    default_lowering(op, rule, option, at)
