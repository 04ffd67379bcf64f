"""Custom calls of XLA and JAX that carry no sharding rule, but whose dimensions are known.

    stablehlo.custom_call @Qr(%0) : (tensor<4x8x8xf32>) -> (tensor<4x8x8xf32>, tensor<4x8xf32>)
    loops: parallel along the 4 matrices

Linear algebra processes many matrices at a time, which are divided among the devices. Each matrix is on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from meshbridge.ir.mlir import ir
from meshbridge.ops.attention_calls import attention_rule, is_attention
from meshbridge.ops.rule import shape_of
from meshbridge.ops.rule_notation import Factors
from meshbridge.ops.sharding_rules import Rule
from meshbridge.ops.unsupported import INSPECTION, PLACEMENT

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
"""The rank of the first operand of one problem, by target. Leading dimensions beyond that number the problems, in all tensors.

Only targets that take sizes from the shapes of their operands: older ones have them in their configuration.
"""

_FRONTEND, _BATCH_DIMS = "mhlo.frontend_attributes", "num_batch_dims"
_CONFIG, _SEARCHED = "mhlo.backend_config", "reduction_dim"
_LAYOUT = "LayoutConstraint"
"""A target that fixes the order of a tensor's elements in memory and returns the tensor."""
_SHAPE = "xla_shape"
"""The attribute in which calls of older versions of JAX state the sizes of the results."""


def known_rule(op: ir.Operation, target: str) -> Rule | None:
    """The rule of a call of `target`; None if the target is unknown."""
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
    """The number of leading dimensions that number the problems, from JAX's attribute or from the rank of the first operand."""
    if _FRONTEND in op.attributes and _BATCH_DIMS in (attributes := ir.DictAttr(op.attributes[_FRONTEND])):
        return int(ir.StringAttr(attributes[_BATCH_DIMS]).value)
    rank = UNBATCHED_RANKS.get(target)
    return None if rank is None else len(shape_of(op.operands[0])) - rank


def _batched(op: ir.Operation, count: int) -> Rule | None:
    """The same `count` leading factors in every tensor, all other dimensions replicated; None if a tensor lacks them."""
    batch = shape_of(op.operands[0])[:count]
    if count < 0 or len(batch) < count or any(shape_of(value)[:count] != batch for value in (*op.operands, *op.results)):
        return None
    return _aligned(op, lambda dim: dim < count)


def _approximate_top_k(op: ir.Operation) -> Rule | None:
    """Every dimension passes through except the one that is searched. The last operands are initial values of rank 0."""
    if _CONFIG not in op.attributes or _SEARCHED not in (config := ir.DictAttr(op.attributes[_CONFIG])):
        return None
    searched = ir.IntegerAttr(config[_SEARCHED]).value
    return _aligned(op, lambda dim: dim != searched)


def _aligned(op: ir.Operation, is_shared: Callable[[int], bool]) -> Rule:
    """A rule in which a dimension has one factor in all tensors if `is_shared`, and one factor per tensor if not."""

    def factors(values: ir.OpOperandList | ir.OpResultList, side: str) -> Factors:
        return [
            [(f"d{dim}",) if is_shared(dim) else (f"{side}{number}_{dim}",) for dim in range(len(shape_of(value)))]
            for number, value in enumerate(values)
        ]

    return Rule(factors(op.operands, "operand"), factors(op.results, "result"))
