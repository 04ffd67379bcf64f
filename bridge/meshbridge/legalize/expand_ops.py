"""Ops that say in one word what simpler ones say in several, and that are split as those are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import OpError, ir, run_stock_passes
from meshbridge.ir.passes import RewritePass, register
from meshbridge.legalize.expansions import batch_norm, einsum, scan, shapes
from meshbridge.legalize.expansions.older_calls import expand_older_call, is_older_call

Expansion = Callable[[ir.Operation], list[ir.Value]]

_BROADCASTING = (
    "add and atan2 compare complex divide maximum minimum multiply next_after or polygamma power remainder select shift_left "
    "shift_right_arithmetic shift_right_logical subtract xor zeta"
)

EXPANSIONS: dict[str, Expansion] = {
    "stablehlo.batch_norm_inference": batch_norm.expand_inference,
    "stablehlo.batch_norm_training": batch_norm.expand_training,
    "stablehlo.batch_norm_grad": batch_norm.expand_gradient,
    "stablehlo.broadcast": shapes.expand_broadcast,
    "stablehlo.dot": einsum.expand_dot,
    "stablehlo.einsum": einsum.expand_einsum,
    "stablehlo.unary_einsum": einsum.expand_einsum,
    "stablehlo.get_dimension_size": shapes.expand_dimension_size,
    "stablehlo.torch_index_select": shapes.expand_index_select,
    "chlo.constant": shapes.expand_constant,
    "sdy.constant": shapes.expand_constant,
    "chlo.constant_like": shapes.expand_constant_like,
    "chlo.scan": scan.expand_scan,
    **{f"chlo.broadcast_{name}": shapes.expand_broadcasting for name in _BROADCASTING.split()},
}
"""The simpler ops of each op, in place of its results."""

STATIC_FORMS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "dynamic_broadcast_in_dim",
        "dynamic_conv",
        "dynamic_gather",
        "dynamic_iota",
        "dynamic_pad",
        "dynamic_reshape",
        "real_dynamic_slice",
    )
)
"""Ops that take sizes as operands; where these are constants, StableHLO's own pass puts the static op in their place."""


@register
@dataclass(frozen=True)
class ExpandOps(RewritePass):
    """Replaces ops by simpler ones, for which there are rules.

    Input:   %0 = stablehlo.dot %a, %b : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    Output:  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : …

    Batch normalisations become reductions and elementwise ops, einsums contractions, broadcasting ops of CHLO broadcasts, its
    scans loops, calls that older versions of JAX wrote for an op that op, and ops whose sizes are constant operands their static
    forms.
    """

    name: ClassVar[str] = "expand-ops"
    rewrites: ClassVar[frozenset[str]] = frozenset({*EXPANSIONS, *STATIC_FORMS, "stablehlo.tuple", "stablehlo.custom_call"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        found = [(EXPANSIONS[op.name], op) for op in ops if op.name in EXPANSIONS]
        found += [(expand_older_call, op) for op in ops if is_older_call(op)]
        tuples = [op for op in ops if op.name == "stablehlo.tuple"]
        takes_sizes = any(op.name in STATIC_FORMS for op in ops)
        for expand, op in found:
            with ir.InsertionPoint(op), op.location:
                for result, value in zip(op.results, expand(op), strict=True):
                    result.replace_all_uses_with(value)
            op.erase()
        for made in reversed(tuples):  # of tuples in tuples the outer ones first
            _take_apart(made)
        if takes_sizes:
            run_stock_passes(module, "builtin.module(func.func(stablehlo-canonicalize-dynamism))")
        return bool(found) or bool(tuples) or takes_sizes


def _take_apart(made: ir.Operation) -> None:
    """Hands the elements of a tuple to those who ask for them.

    Raises OpError if somebody takes the tuple as it is.
    """
    for use in list(made.results[0].uses):
        reader = use.owner.operation
        if reader.name != "stablehlo.get_tuple_element":
            raise OpError(reader, "takes a tuple, which has no sharding", "pass its elements")
        reader.results[0].replace_all_uses_with(made.operands[ir.IntegerAttr(reader.attributes["index"]).value])
        reader.erase()
    made.erase()
