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
        """The function on the mesh of a scheme, as an artifact for a platform that need not be there.

        It takes and returns lists of arrays: artifacts hold no classes of other libraries.
        """
        axes, sharded = SCHEMES[scheme]
        mesh = Mesh(np.array(jax.devices()[:8]).reshape([*axes.values()]), [*axes])
        (parameters, tree), (batch, beside) = jax.tree.flatten(self.parameters), jax.tree.flatten(self.batch)
        specs = [_parameter(leaf, sharded, axes) for leaf in parameters], [_examples(leaf, axes) for leaf in batch]

        def function(parameters: list[Any], batch: list[Any]) -> list[Any]:
            return jax.tree.leaves(self.function(jax.tree.unflatten(tree, parameters), jax.tree.unflatten(beside, batch)))

        with jax.set_mesh(mesh):
            jitted = jax.jit(function, in_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))
            return jax.export.export(jitted, platforms=[platform])(parameters, batch)


SCHEMES: dict[str, tuple[dict[str, int], str | None]] = {
    "batch": ({"data": 8}, None),
    "both": ({"data": 2, "model": 4}, "model"),
    "fsdp": ({"data": 8}, "data"),
}
"""By name: the mesh, and the axis that large parameters are sharded along, if any."""


def _parameter(leaf: Any, axis: str | None, mesh: dict[str, int]) -> PartitionSpec:
    """The last dimension that the axis divides lies along it."""
    shape = np.shape(leaf)
    if axis is not None and np.size(leaf) >= LEAST:
        for dim in reversed(range(len(shape))):
            if shape[dim] % mesh[axis] == 0:
                return PartitionSpec(*[None] * dim, axis)
    return PartitionSpec()


def _examples(leaf: Any, mesh: dict[str, int]) -> PartitionSpec:
    """The examples lie along "data"."""
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
