"""Dimension numbers of ragged products."""

from jax import lax

CONTRACTED = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])
"""Groups of contracted elements, each of which gives a matrix: the gradient of the experts."""

BATCHED = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (0,))), lhs_ragged_dimensions=[1], rhs_group_dimensions=[1])
"""Groups of rows in each batch."""
