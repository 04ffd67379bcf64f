"""JAX's attributes of arguments that a program may overwrite."""

from __future__ import annotations

from collections.abc import Container

from meshbridge.ir.mlir import ir

ALIASED = "tf.aliasing_output"
"""The number of the result that takes the argument's buffer."""

DONOR = "jax.buffer_donor"
"""Any result of the same type may take it."""


def is_donated(attributes: Container[str]) -> bool:
    """Whether an argument with these attributes may be overwritten."""
    return ALIASED in attributes or DONOR in attributes


def aliased(result: int) -> ir.Attribute:
    """The value of ALIASED for the result of that number."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
