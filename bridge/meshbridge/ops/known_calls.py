"""Custom calls of XLA and of JAX that carry no sharding rule, but of which it is known what they do with each dimension.

    stablehlo.custom_call @Qr(%0) : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>)
    loops: parallel along the 4 matrices

Linear algebra takes many matrices at a time: each device can take its own ones. The matrices themselves are replicated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from meshbridge.ir.mlir import ir
from meshbridge.ops.attention_calls import attention_rule, is_attention
from meshbridge.ops.refused import INSPECTION, PLACEMENT
from meshbridge.ops.rule import shape_of
from meshbridge.ops.rule_notation import Factors
from meshbridge.ops.sharding_rules import Rule

_LAPACK = "geqrf gelqf orgqr ungqr potrf getrf syevd heevd gesvd gesdd geev ggev gees gehrd sytrd hetrd"
_GPU = "geqrf orgqr potrf getrf syev syevd syevd_batched syevj gesvd gesvdj gesdd sytrd"

UNBATCHED_RANKS: dict[str, int] = {
    **dict.fromkeys(("Qr", "ProductOfElementaryHouseholderReflectors", "Eigh", "LuDecomposition"), 2),
    **{f"lapack_{kind}{routine}_ffi": 2 for kind, routine in product("sdcz", _LAPACK.split())},
    **{f"{library}_{routine}_ffi": 2 for library, routine in product(("cusolver", "hipsolver", "rocsolver"), _GPU.split())},
    **{f"lapack_{kind}gtsv_ffi": 1 for kind in "sdcz"},
    **dict.fromkeys(("cusparse_gtsv2_ffi", "hipsparse_gtsv2_ffi"), 1),
    **dict.fromkeys(("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation"), 1),
    **dict.fromkeys(("cu_threefry2x32_ffi", "hip_threefry2x32_ffi"), 0),
}
"""The rank of the first operand of one problem, by target; further leading dimensions number the problems, of all tensors.

Only targets that find sizes in the shapes of their operands: older ones have them written into their configuration.
"""

_FRONTEND, _BATCH_DIMS = "mhlo.frontend_attributes", "num_batch_dims"
_CONFIG, _SEARCHED = "mhlo.backend_config", "reduction_dim"
_LAYOUT = "LayoutConstraint"
"""Says in which order the elements of a tensor are in memory, and gives it back."""
_SHAPE = "xla_shape"
"""Attribute of calls of older versions of JAX that spells the sizes of the results out."""


def known_rule(op: ir.Operation, target: str) -> Rule | None:
    """The rule of a call of `target`; None if nothing is known of it."""
    if _SHAPE in op.attributes:
        return None
    if target in (PLACEMENT, INSPECTION, _LAYOUT):
        return _aligned(op, lambda dim: True)
    if target == "ApproxTopK":
        return _approximate_top_k(op)
    if is_attention(op):
        return attention_rule(op)
    count = _batch_dims(op, target)
    return None if count is None else _batched(op, count)


def _batch_dims(op: ir.Operation, target: str) -> int | None:
    """How many leading dimensions number the problems: JAX says so itself, or the rank of the first operand does."""
    if _FRONTEND in op.attributes and _BATCH_DIMS in (said := ir.DictAttr(op.attributes[_FRONTEND])):
        return int(ir.StringAttr(said[_BATCH_DIMS]).value)
    rank = UNBATCHED_RANKS.get(target)
    return None if rank is None else len(shape_of(op.operands[0])) - rank


def _batched(op: ir.Operation, count: int) -> Rule | None:
    """The same `count` leading factors in every tensor, all other dimensions replicated; None where a tensor lacks them."""
    batch = shape_of(op.operands[0])[:count]
    if count < 0 or len(batch) < count or any(shape_of(value)[:count] != batch for value in (*op.operands, *op.results)):
        return None
    return _aligned(op, lambda dim: dim < count)


def _approximate_top_k(op: ir.Operation) -> Rule | None:
    """All dimensions pass through but the one that is searched; the last operands are initial values, of rank 0."""
    if _CONFIG not in op.attributes or _SEARCHED not in (config := ir.DictAttr(op.attributes[_CONFIG])):
        return None
    searched = ir.IntegerAttr(config[_SEARCHED]).value
    return _aligned(op, lambda dim: dim != searched)


def _aligned(op: ir.Operation, is_shared: Callable[[int], bool]) -> Rule:
    """A rule in which a dimension that `is_shared` has the same factor in all tensors, any other one of its own."""

    def factors(values: ir.OpOperandList | ir.OpResultList, side: str) -> Factors:
        return [
            [(f"d{dim}",) if is_shared(dim) else (f"{side}{number}_{dim}",) for dim in range(len(shape_of(value)))]
            for number, value in enumerate(values)
        ]

    return Rule(factors(op.operands, "operand"), factors(op.results, "result"))
