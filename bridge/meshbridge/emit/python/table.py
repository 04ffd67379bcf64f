"""The table of writers: by operation, the function that writes it as Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meshbridge.emit.python.code import Code
from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry

if TYPE_CHECKING:
    from meshbridge.emit.python.scope import Scope

Written = Code | Sequence[Code] | None
"""One expression for the result or the tuple of results; or one for each; or None if the writer called `Scope.define` itself."""

Writing = Callable[[ir.Operation, "Scope"], Written]

WRITINGS: Registry[str, Writing] = Registry("writing")
"""Operation name to the function that writes it as an expression."""


def writes(*names: str) -> Callable[[Writing], Writing]:
    """Registers a writer, under full op names, or names of StableHLO ops without the prefix."""
    return WRITINGS.register(*(name if "." in name else f"stablehlo.{name}" for name in names))
