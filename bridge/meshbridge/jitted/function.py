"""The function that `meshbridge.jit` gives: one of `jax.jit`, marked to be partitioned wherever JAX compiles it.

It is called, transformed, pickled and kept as any function of `jax.jit`, for it is one. Within a function that JAX traces it is a
part of that, which is then partitioned as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from jax.stages import Lowered, Traced

from meshbridge.ir.mlir import MeshError, context
from meshbridge.jitted.of_library import LibraryJitted, is_of_library
from meshbridge.jitted.plans import Planned, Planning
from meshbridge.read import files, formats
from meshbridge.reports import Report
from meshbridge.runtime import lowerings

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Jitted(Protocol[P, R_co]):
    """A function of `jax.jit` that meshbridge partitions for each kind of arguments that it is called with."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R_co:
        """Runs the partitioned program on the devices of its mesh. Raises MeshError where it cannot be partitioned, and what JAX
        raises for arguments that `jax.jit` would not take."""

    def lower(self, *arguments: P.args, **named: P.kwargs) -> Lowered:
        """The function as it is written, for arguments which may be `jax.ShapeDtypeStruct`s, as a `jax.stages.Lowered`:
        `compile()` gives a `jax.stages.Compiled` of the partitioned program, with `memory_analysis()` and `cost_analysis()`, and
        raises MeshError where it cannot be partitioned."""

    def partitioned_text(self, *arguments: P.args, **named: P.kwargs) -> str:
        """The partitioned program in StableHLO, every collective explicit. Raises MeshError."""

    def report(self, *arguments: P.args, **named: P.kwargs) -> Report:
        """What the function communicates, as `meshbridge.report` says it. Raises MeshError."""

    def save(self, path: str | os.PathLike[str], /, *arguments: P.args, **named: P.kwargs) -> None:
        """Writes the function as it is written, not partitioned, for these arguments, as `meshbridge.save` does: every command
        takes the file. Raises MeshError."""

    def trace(self, *arguments: P.args, **named: P.kwargs) -> Traced:
        """The `jax.stages.Traced` of the function, whose `lower()` gives what `lower` gives."""

    def eval_shape(self, *arguments: P.args, **named: P.kwargs) -> Any:
        """The shapes and types of the results, which are not computed."""

    def clear_cache(self) -> None:
        """Forgets all that the function is traced, partitioned and compiled for."""


def jitted(function: Callable[..., Any], options: Mapping[str, Any], planning: Planning) -> Any:
    """`jax.jit(function, **options)`, partitioned. A function that `jax.jit` has made keeps its options where there are no
    others. One that a library has jitted takes none. Raises MeshError for them."""
    if is_of_library(function):
        if options:
            listed = ", ".join(options)
            hint = f"give them to {type(function).__module__.partition('.')[0]}'s function"
            raise MeshError(
                f"error: a library has jitted the function, expected no option of jax.jit, found {listed}\n  hint: {hint}"
            )
        return LibraryJitted(function, planning)
    lowerings.replace_computations(Planned)
    partitioned = lowerings.marked(function, options, planning)

    def report(*arguments: Any, **named: Any) -> Report:
        return planning.report(lowerings.lower(partitioned, arguments, named))

    def partitioned_text(*arguments: Any, **named: Any) -> str:
        lowered = partitioned.lower(*arguments, **named)
        planned = lowerings.replacement(lowered)
        return str(lowered.as_text() if planned is None else planned.module_to_compile())

    def save(path: str | os.PathLike[str], /, *arguments: Any, **named: Any) -> None:
        files.save(formats.unpack(partitioned, context(), arguments, named), path)

    partitioned.report, partitioned.partitioned_text, partitioned.save = report, partitioned_text, save
    return partitioned
