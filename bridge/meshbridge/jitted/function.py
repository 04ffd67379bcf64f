"""The function that `meshbridge.jit` gives: called, lowered and reported on as one of `jax.jit`.

A call with arrays is compiled once for all that it depends on: the tree of its arguments, their shapes, types, weak types and
explicit shardings, the shardings of arguments that are committed to devices, the values of static arguments, and JAX's settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import jax
from jax.stages import Lowered

from meshbridge.ir.mlir import MeshError
from meshbridge.jitted.kinds import kinds, layouts
from meshbridge.jitted.plans import Planning
from meshbridge.jitted.within import Within
from meshbridge.reports import Report
from meshbridge.runtime import lowerings

P = ParamSpec("P")
R = TypeVar("R")

Key = tuple[Any, ...]


class _Compiled(NamedTuple):
    """What runs a call, and the layouts of the arrays that it was first made for."""

    run: Callable[..., Any]
    layouts: tuple[Any, ...]


class Jitted(Generic[P, R]):
    """A function that meshbridge partitions and XLA compiles, for each kind of arguments that it is called with.

    Threads may call it at once. Within a function that JAX traces it is a part of that function (`within`).
    """

    __wrapped__: Callable[P, R]

    def __init__(self, jitted: Any, planning: Planning) -> None:
        lowerings.tell_wholes_apart()
        functools.update_wrapper(self, jitted)
        self._jitted = jitted
        self._planning = planning
        self._static = lowerings.static_arguments(jitted)
        self._within = Within(jitted, planning)
        self._compiled: dict[Key, _Compiled] = {}
        self._last: tuple[Key, Callable[..., R]] | None = None

    def __repr__(self) -> str:
        return f"<meshbridge.jit of {self._jitted!r}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: bound, `self` being its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Runs the partitioned program on the devices of its mesh. Raises MeshError where it cannot be partitioned, and what JAX
        raises for arguments that `jax.jit` would not take."""
        if jax.config.jax_disable_jit:
            return self._eager(arguments, named)
        given, by_name, static = self._dynamic(arguments, named)
        leaves, tree = jax.tree.flatten((given, by_name))
        if not lowerings.trace_state_clean():
            key = (tree, static, lowerings.context(), *kinds(leaves))
            traced: R = self._within.call(self._hashable(key), arguments, named, (given, by_name))
            return traced
        key = (tree, static, lowerings.context_with_devices(), *kinds(leaves))
        last = self._last
        if last is None or last[0] != key:
            self._last = last = key, self._compile(key, leaves, arguments, named)
        try:
            return last[1](*given, **by_name)
        except lowerings.InternalFloatingPointError:
            return self._not_a_number(arguments, named)
        except ValueError:
            if (other := self._in_layouts(key, leaves, arguments, named)) is None:
                raise
        return other(*given, **by_name)

    def lower(self, *arguments: P.args, **named: P.kwargs) -> Lowered:
        """The partitioned program for arguments, which may be `jax.ShapeDtypeStruct`s, as a `jax.stages.Lowered`: `compile()`
        gives a `jax.stages.Compiled`, with `memory_analysis()` and `cost_analysis()`. Raises MeshError."""
        return self._lower(arguments, named)

    def partitioned_text(self, *arguments: P.args, **named: P.kwargs) -> str:
        """The partitioned program in StableHLO, every collective explicit. Raises MeshError."""
        return str(self.lower(*arguments, **named).as_text())

    def report(self, *arguments: P.args, **named: P.kwargs) -> Report:
        """What the function communicates, as `meshbridge.report` says it. Raises MeshError."""
        return self._planning.report(lowerings.lower(self._jitted, arguments, named))

    def trace(self, *arguments: P.args, **named: P.kwargs) -> Any:
        """The `jax.stages.Traced` of the function as it is written: of global arrays, without collectives. So `partition`,
        `compile` and `report` take this function as one of `jax.jit`, and partition it under options of their own."""
        return self._jitted.trace(*arguments, **named)

    def eval_shape(self, *arguments: P.args, **named: P.kwargs) -> Any:
        """The shapes and types of the results, which are not computed."""
        return self._jitted.eval_shape(*arguments, **named)

    def clear_cache(self) -> None:
        """Forgets all that the function is traced, partitioned and compiled for."""
        self._compiled.clear()
        self._last = None
        self._within = Within(self._jitted, self._planning)
        self._jitted.clear_cache()

    def _lower(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Lowered:
        return self._planning.partition(lowerings.lower(self._jitted, arguments, named))

    def _compile(self, key: Key, leaves: Sequence[Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Callable[..., R]:
        """What runs calls of that key. Two threads that come at once both compile it, and run the same."""
        found = self._compiled.get(self._hashable(key))
        if found is None:
            made = self._planning.compile(lowerings.lower(self._jitted, arguments, named), self._name)
            found = self._compiled.setdefault(key, _Compiled(made, layouts(leaves)))
        return found.run

    def _in_layouts(
        self, key: Key, leaves: Sequence[Any], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Callable[..., R] | None:
        """What runs a call whose arrays are in other layouts than those of the call that the key was compiled for, where JAX
        refuses it; None where they are in the same, which is then not what is wrong."""
        found, held = self._compiled.get(key), layouts(leaves)
        if found is None or found.layouts == held:
            return None
        return self._compile((*key, *held), leaves, arguments, named)

    def _not_a_number(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> R:
        """Computes op by op what has given a NaN, or an infinity, under `jax.debug_nans`: JAX then says which op it is."""
        with jax.disable_jit():
            self._eager(arguments, named)
        raise FloatingPointError(f"{self._name}, partitioned, gives a value that is not finite; op by op it does not")

    def _eager(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> R:
        """What `jax.jit` computes under `jax.disable_jit`."""
        found: R = self._jitted(*arguments, **named)
        return found

    def _hashable(self, key: Key) -> Key:
        """The same key. Raises MeshError for one with a static argument that cannot be hashed."""
        try:
            hash(key)
        except TypeError:
            raise MeshError(f"error: {self._name}: {_unhashable(key[1])}") from None
        return key

    @property
    def _name(self) -> str:
        return str(getattr(self, "__name__", "the function"))

    def _dynamic(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any], Key]:
        """The arguments that are not static, by position and by name, and those that are."""
        positions, names = self._static
        if not positions and not names:
            return arguments, named, ()
        fixed = {index % len(arguments) for index in positions if -len(arguments) <= index < len(arguments)}
        given = [argument for index, argument in enumerate(arguments) if index not in fixed]
        by_name = {name: argument for name, argument in named.items() if name not in names}
        static = (
            *((index, type(arguments[index]), arguments[index]) for index in sorted(fixed)),
            *((name, type(named[name]), named[name]) for name in sorted(named) if name in names),
        )
        return given, by_name, static


def _unhashable(static: Key) -> str:
    for name, kind, value in static:
        try:
            hash(value)
        except TypeError:
            label = f"'{name}'" if isinstance(name, str) else f"of position {name}"
            return f"the static argument {label} is a {kind.__name__}, which cannot be hashed"
    return "the arguments cannot be hashed"
