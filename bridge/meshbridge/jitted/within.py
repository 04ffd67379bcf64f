"""Calls of a jitted function within one that JAX traces: under `jax.jit`, in loops and branches, under `jax.grad` and `jax.vjp`.

There the call is one of the partitioned `jax.export.Exported`. Its derivative is that of the function as it is written, which is
partitioned under the same options. Within a function that is itself being partitioned, it is a part of that like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from meshbridge.ir.mlir import MeshError, context
from meshbridge.jitted import plan_cache
from meshbridge.jitted.plans import Planning
from meshbridge.read import formats
from meshbridge.runtime import lowerings, xla


@dataclass(frozen=True)
class _Part:
    """The partitioned function for some arguments, and how they and the results are sharded, where it is known."""

    exported: Any
    shardings: Sequence[Any]
    results: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Within:
    """A jitted function as a part of others."""

    jitted: Any
    planning: Planning
    _parts: dict[Any, _Part | None] = field(default_factory=dict)

    def call(self, key: object, arguments: Sequence[Any], named: Mapping[str, Any], dynamic: tuple[Any, Any]) -> Any:
        """The results, as JAX traces them; `dynamic` are the arguments that are not static, `key` is what the function is
        partitioned for.

        Raises MeshError for a function that cannot be partitioned or exported, and for one that is to be batched.
        """
        if lowerings.is_partitioned_as_a_whole() or _is_manual():
            return self.jitted(*arguments, **named)
        leaves, tree = jax.tree.flatten(dynamic)
        if key not in self._parts:
            self._parts[key] = self._part(*jax.tree.map(_described, (tuple(arguments), dict(named))))
        part = self._parts[key]
        if part is None:
            return self.jitted(*arguments, **named)
        placed = [_placed(leaf, sharding) for leaf, sharding in zip(leaves, part.shardings, strict=True)]
        given, by_name = jax.tree.unflatten(tree, placed)
        try:
            results = part.exported.call(*given, **by_name)
        except NotImplementedError as error:
            if "call_exported" not in str(error):
                raise
            name = part.exported.fun_name
            hint = f"batch what is partitioned: meshbridge.jit(jax.vmap({name}))"
            raise MeshError(f"error: {name} is partitioned, and cannot be batched any more\n  hint: {hint}") from error
        if leaves:
            return results
        values, tree = jax.tree.flatten(results)
        return jax.tree.unflatten(tree, [_placed(*each) for each in zip(values, part.results, strict=True)])

    def _part(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> _Part | None:
        """The function for these arguments; None on one device, where there is nothing to partition."""
        devices = lowerings.devices(lowerings.lower(self.jitted, arguments, named))
        if len(devices) == 1:
            return None
        options = self.planning.on(devices)
        opened = formats.unpack(self.jitted, context(), arguments, named).planned(options)
        plan_cache.partition_module(opened.module, options)
        xla.order_collectives(opened.module, devices)
        exported: Any = formats.pack(opened)
        sides = exported.in_shardings_jax(None), exported.out_shardings_jax(None)
        return _Part(exported, *([_on(devices, sharding) for sharding in side] for side in sides))


def _on(devices: Sequence[Any], sharding: NamedSharding | None) -> NamedSharding | None:
    """The same sharding over a mesh of these devices; None where there is none, or where no devices are known."""
    if sharding is None or not devices:
        return None
    mesh = sharding.mesh
    held = Mesh(np.array(devices).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)
    return NamedSharding(held, sharding.spec, memory_kind=sharding.memory_kind)


def _placed(value: Any, sharding: Any) -> Any:
    """`value` with a sharding that names devices, unless its type says one: JAX otherwise takes a traced call to run on one
    device."""
    if sharding is None or _is_explicit(jax.typeof(value)):
        return value
    return jax.lax.with_sharding_constraint(value, sharding)


def _is_explicit(kind: Any) -> bool:
    """Whether a type says how its values are sharded."""
    return any(axis is not AxisType.Auto for axis in kind.sharding.mesh.axis_types)


def _is_manual() -> bool:
    """Whether JAX traces one device's part of a `jax.shard_map`: nothing is left to partition."""
    return AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types


def _described(value: Any) -> Any:
    """What the function is exported for in place of a value that JAX is tracing."""
    if not isinstance(value, jax.core.Tracer):
        return value
    kind = jax.typeof(value)
    sharding = kind.sharding if _is_explicit(kind) else None
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=sharding, weak_type=kind.weak_type)
