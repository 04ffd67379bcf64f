"""A model that somebody else's library makes: one function of parameters and a batch, and how both are sharded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = Any
"""A pytree."""

LEAST = 1_000
"""Parameters of fewer elements are not worth sharding."""


@dataclass(frozen=True)
class Model:
    """A function of a pytree of parameters and one of a batch; every array of the batch has the examples first."""

    function: Callable[[Tree, Tree], Tree]
    parameters: Tree
    batch: Tree

    def export(self, scheme: str, platform: str) -> jax.export.Exported:
        """The function on the mesh of a scheme, as an artifact for a platform that need not be there."""
        mesh = mesh_of(scheme)
        with jax.set_mesh(mesh):
            return jax.export.export(self.jit(scheme, mesh), platforms=[platform])(*self.leaves)

    def jit(self, scheme: str, mesh: Mesh) -> Any:
        """The jitted function under a scheme, which takes and returns lists of arrays: artifacts hold no classes of other
        libraries. Lower it under `jax.set_mesh`."""
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self._specs(scheme))
        return jax.jit(self.flat, in_shardings=shardings)

    def flat(self, parameters: list[Any], batch: list[Any]) -> list[Any]:
        """The function of lists of arrays."""
        trees = jax.tree.structure(self.parameters), jax.tree.structure(self.batch)
        return jax.tree.leaves(self.function(*map(jax.tree.unflatten, trees, (parameters, batch))))

    @property
    def leaves(self) -> tuple[list[Any], list[Any]]:
        """The arrays that the flat function takes."""
        return jax.tree.leaves(self.parameters), jax.tree.leaves(self.batch)

    def _specs(self, scheme: str) -> tuple[list[PartitionSpec], list[PartitionSpec]]:
        axes, sharded = SCHEMES[scheme]
        parameters, batch = self.leaves
        return [_parameter(leaf, sharded, axes) for leaf in parameters], [_examples(leaf, axes) for leaf in batch]


SCHEMES: dict[str, tuple[dict[str, int], str | None]] = {
    "batch": ({"data": 8}, None),
    "both": ({"data": 2, "model": 4}, "model"),
    "fsdp": ({"data": 8}, "data"),
}
"""By name: the mesh, and the axis that large parameters are sharded along, if any."""


def mesh_of(scheme: str) -> Mesh:
    """The mesh of a scheme, over the first eight devices."""
    axes, _ = SCHEMES[scheme]
    return Mesh(np.array(jax.devices()[:8]).reshape([*axes.values()]), [*axes])


def _parameter(leaf: Any, axis: str | None, mesh: dict[str, int]) -> PartitionSpec:
    """The last dimension that the axis divides is sharded along it."""
    shape = np.shape(leaf)
    if axis is not None and np.size(leaf) >= LEAST:
        for dim in reversed(range(len(shape))):
            if shape[dim] % mesh[axis] == 0:
                return PartitionSpec(*[None] * dim, axis)
    return PartitionSpec()


def _examples(leaf: Any, mesh: dict[str, int]) -> PartitionSpec:
    """The examples are sharded along "data"."""
    return PartitionSpec("data") if np.ndim(leaf) and np.shape(leaf)[0] % mesh["data"] == 0 else PartitionSpec()


def numbers(*shape: int) -> Any:
    """Normal numbers, the same in every run."""
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def integers(below: int, *shape: int) -> Any:
    """Such integers."""
    return jax.random.randint(jax.random.key(sum(shape)), shape, 0, below)


def training(loss: Callable[[Tree, Tree], Any], parameters: Tree, batch: Tree, optimizer: Any = None) -> Model:
    """A training step: of a loss, by an optimiser of optax, Adam if none is given."""
    import optax

    optimizer = optimizer or optax.adam(1e-3, eps=1e-3)  # gradients that rounding alone makes do not move anything

    def step(state: Tree, batch: Tree) -> Tree:
        parameters, moments = state
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    return Model(step, (parameters, optimizer.init(parameters)), batch)
