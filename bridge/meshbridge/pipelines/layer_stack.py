"""A stack of layers whose parts are on the devices of their stages, where no sharding can say so.

A `jax.Array` has shards of equal size, one on each device. A stack of which stages have different numbers of layers, or one of
which a stage has several parts, is therefore none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np

from meshbridge.text import public


@public
@dataclass(frozen=True, eq=False, repr=False)
class LayerStack:
    """A stack of layers in parts, each on the devices of its stage.

    It has the shape and the type of the array that the step takes, and is a leaf of trees. A step takes it without a copy. NumPy
    and `jnp.asarray(stack)` make one array of it, and `stack[layer]` is one layer, on its stage. Functions of JAX take arrays
    alone: `jax.tree.map(jnp.asarray, params)`.
    """

    parts: tuple[jax.Array, ...]
    "In the order of layers, along the first dimension."

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole stack."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of elements."""
        kind: np.dtype[Any] = self.parts[0].dtype
        return kind

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(part.size for part in self.parts)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole stack."""
        return sum(part.nbytes for part in self.parts)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The first layer of each part, and the one after its last."""
        return tuple(pairwise((0, *accumulate(part.shape[0] for part in self.parts))))

    def is_deleted(self) -> bool:
        """Whether a step that donates the stack has overwritten it."""
        return any(part.is_deleted() for part in self.parts)

    def block_until_ready(self) -> LayerStack:
        """Waits for all parts."""
        jax.block_until_ready(self.parts)
        return self

    def rows(self, start: int, end: int) -> jax.Array:
        """Layers `start` to `end`: the part itself if it has no others, else a copy on the devices of the first of them."""
        found = [
            part if (start <= first and last <= end) else part[max(start - first, 0) : end - first]
            for part, (first, last) in zip(self.parts, self.bounds, strict=True)
            if first < end and start < last
        ]
        if len(found) == 1:
            return found[0]
        sharding = found[0].sharding
        with jax.enable_x64(True):  # without this JAX would silently make 32-bit numbers of 64-bit ones
            return jax.numpy.concatenate([jax.device_put(part, sharding) for part in found])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> jax.Array:
        """One layer, on the devices of its stage, if `key` is a number; else what `jnp.asarray(stack)[key]` is."""
        if not isinstance(key, int | np.integer):
            return self.__jax_array__()[key]
        if not -len(self) <= key < len(self):
            raise IndexError(f"layer {key} of a stack of {len(self)}")
        layer = int(key) % len(self)
        return self.rows(layer, layer + 1)[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return (self[layer] for layer in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        whole = np.concatenate([np.asarray(part) for part in self.parts])
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        return self.rows(0, len(self))

    def __repr__(self) -> str:
        sizes = " + ".join(str(part.shape[0]) for part in self.parts)
        return f"LayerStack(shape={self.shape}, dtype={self.dtype.name}, layers of parts: {sizes})"
