"""Calls of a jitted function within one that JAX traces: under `jax.jit`, in loops and branches, under `jax.grad` and `jax.vjp`.

There the call is one of the partitioned `jax.export.Exported`. Its derivative is that of the function as it is written, which is
partitioned under the same options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from meshbridge.ir.mlir import MeshError, context
from meshbridge.jitted import lowerings, plan_cache
from meshbridge.jitted.plans import Planning
from meshbridge.read import formats


@dataclass(frozen=True)
class _Part:
    """The partitioned function for some arguments, and how they are sharded, where it is known."""

    exported: Any
    shardings: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Within:
    """A jitted function as a part of others."""

    jitted: Any
    planning: Planning
    _parts: dict[Any, _Part | None] = field(default_factory=dict)

    def call(self, arguments: Sequence[Any], named: Mapping[str, Any], dynamic: tuple[Any, Any], static: tuple[Any, ...]) -> Any:
        """The results, as JAX traces them; `dynamic` are the arguments that are not static.

        Raises MeshError for a function that cannot be partitioned or exported, and for one that is to be batched.
        """
        leaves, tree = jax.tree.flatten(dynamic)
        key = (tree, static, lowerings.context(), *map(jax.typeof, leaves))
        if key not in self._parts:
            self._parts[key] = self._part(arguments, named)
        part = self._parts[key]
        if part is None:
            return self.jitted(*arguments, **named)
        placed = [_placed(leaf, sharding) for leaf, sharding in zip(leaves, part.shardings, strict=True)]
        given, by_name = jax.tree.unflatten(tree, placed)
        try:
            return part.exported.call(*given, **by_name)
        except NotImplementedError as error:
            if "call_exported" not in str(error):
                raise
            name = part.exported.fun_name
            hint = f"batch what is partitioned: meshbridge.jit(jax.vmap({name}))"
            raise MeshError(f"error: {name} is partitioned, and cannot be batched by jax.vmap any more\n  hint: {hint}") from error

    def _part(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> _Part | None:
        """The function for these arguments; None on one device, where there is nothing to partition."""
        devices = lowerings.devices(lowerings.lower(self.jitted, arguments, named))
        if len(devices) == 1:
            return None
        options = self.planning.on(devices)
        opened = formats.unpack(self.jitted, context(), arguments, named).planned(options)
        plan_cache.partition_module(opened.module, options)
        exported: Any = formats.pack(opened)
        return _Part(exported, [_on(devices, sharding) for sharding in exported.in_shardings_jax(None)])


def _on(devices: Sequence[Any], sharding: NamedSharding | None) -> NamedSharding | None:
    """The same sharding over a mesh of these devices; None where there is none, or where no devices are known."""
    if sharding is None or not devices:
        return None
    mesh = sharding.mesh
    held = Mesh(np.array(devices).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)
    return NamedSharding(held, sharding.spec, memory_kind=sharding.memory_kind)


def _placed(leaf: Any, sharding: Any) -> Any:
    """`leaf` with a sharding that names devices, unless its type says one: JAX otherwise takes a traced call to run on one device."""
    if sharding is None or not jax.typeof(leaf).sharding.mesh.empty:
        return leaf
    return jax.lax.with_sharding_constraint(leaf, sharding)
