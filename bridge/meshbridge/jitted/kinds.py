"""What a program depends on of each argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


def kinds(leaves: Iterable[Any]) -> list[Any]:
    """What a program is compiled for, argument by argument: shape, type, weak type and explicit sharding, and the sharding of an
    array that is committed to devices.

    What a call has in common with the one before is the same object, mostly: to compare it costs next to nothing. What JAX does
    not take as an argument, its class is all that is known of: JAX says so when it traces.
    """
    found: list[Any] = []
    for leaf in leaves:
        kind = type(leaf)
        if kind in _arrays:
            found += (leaf.aval, leaf.sharding if leaf.committed else None)
        elif kind in _NUMBERS:
            found.append(kind)
        elif isinstance(leaf, (np.ndarray, np.generic)):
            found += (leaf.dtype, leaf.shape)
        elif isinstance(leaf, jax.core.Tracer):
            found.append(jax.typeof(leaf))
        elif isinstance(leaf, jax.Array):
            _arrays.add(kind)
            found += (leaf.aval, leaf.sharding if leaf.committed else None)
        else:
            found += (kind, _type(leaf))
    return found


def layouts(leaves: Iterable[Any]) -> tuple[Any, ...]:
    """In which order the elements of each array are in memory. To ask takes longer than all of `kinds`."""
    return tuple(_layout(leaf) for leaf in leaves)


def _type(leaf: Any) -> Any:
    """The type of what is an array to JAX by a method of its own; None for what is none, of which JAX says so as it traces."""
    try:
        return jax.typeof(leaf)
    except TypeError:
        return None


def _layout(leaf: Any) -> Any:
    held = getattr(leaf, "format", None)  # keys, and whatever is not JAX's own, have none
    return None if held is None else getattr(held, "layout", None)


_arrays: set[type] = set()
"""JAX's own classes of arrays, as they are met: to ask whether a value is a `jax.Array` takes longer than all else."""

_NUMBERS = frozenset({bool, int, float, complex})
