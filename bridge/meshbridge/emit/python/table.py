"""The table of what writes each operation as Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meshbridge.emit.python.code import Code
from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry

if TYPE_CHECKING:
    from meshbridge.emit.python.scope import Scope

Written = Code | Sequence[Code] | None
"""One expression for the result, or the tuple of them; one for each; none where the function said so to the scope itself."""

Writing = Callable[[ir.Operation, "Scope"], Written]

WRITINGS: Registry[str, Writing] = Registry("writing")
"""Operation name to the function that writes it as an expression."""


def writes(*names: str) -> Callable[[Writing], Writing]:
    """Enters a function in WRITINGS, under names of StableHLO's without their prefix, or whole ones."""
    return WRITINGS.register(*(name if "." in name else f"stablehlo.{name}" for name in names))
