"""The function that `meshbridge.jit` gives for one that a library has jitted, such as `nnx.jit` and `eqx.filter_jit` give.

Such a library turns objects into arrays around a function of `jax.jit`, and writes changed arrays back. It still does so; all
that JAX compiles in a call is partitioned.
"""

from __future__ import annotations

import inspect
import os
from functools import update_wrapper
from typing import Any

from jax.stages import Lowered

from meshbridge.ir.mlir import context
from meshbridge.jitted.plans import Planned, Planning
from meshbridge.read import files, formats
from meshbridge.reports import Report
from meshbridge.runtime import lowerings


def is_of_library(function: object) -> bool:
    """Whether a library has jitted a function: its class is callable and lowers, and is not that of `jax.jit`'s functions."""
    kind = type(function)
    return not lowerings.is_jitted(function) and not inspect.isclass(function) and callable(function) and hasattr(kind, "lower")


class LibraryJitted:
    """See `function.Jitted`, whose methods it has; `lower` gives the library's own stage."""

    _function: Any

    def __init__(self, function: Any, planning: Planning) -> None:
        lowerings.replace_computations(Planned)
        update_wrapper(self, function, updated=())
        self._function = function._function if isinstance(function, LibraryJitted) else function
        self._planning = planning

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the partitioned program, as the library runs the function. Raises MeshError where it cannot be partitioned."""
        with lowerings.all_marked(self._planning):
            return self._function(*arguments, **named)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else update_wrapper(lambda *arguments, **named: self(owner, *arguments, **named), self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """The library's stage of the function as it is written; `compile()` of it partitions."""
        with lowerings.all_marked(self._planning):
            return self._function.lower(*arguments, **named)

    def report(self, *arguments: Any, **named: Any) -> Report:
        """What the function communicates, as `meshbridge.report` says it. Raises MeshError."""
        lowered = self._lowered(arguments, named)
        planned = lowerings.replacement(lowered)
        return self._planning.report(lowered) if planned is None else planned.report()

    def partitioned_text(self, *arguments: Any, **named: Any) -> str:
        """The partitioned program in StableHLO, every collective explicit. Raises MeshError."""
        lowered = self._lowered(arguments, named)
        planned = lowerings.replacement(lowered)
        return str(lowered.as_text() if planned is None else planned.module_to_compile())

    def save(self, path: str | os.PathLike[str], /, *arguments: Any, **named: Any) -> None:
        """Writes the function as it is written, not partitioned, as `meshbridge.save` does. Raises MeshError."""
        files.save(formats.unpack(self._function, context(), arguments, named), path)

    def _lowered(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Lowered:
        stage = self.lower(*arguments, **named)
        lowered: Lowered = stage if isinstance(stage, Lowered) else stage.lowered
        return lowered
