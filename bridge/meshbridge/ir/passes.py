"""The base of passes: frozen dataclasses whose fields are their options, registered under their command-line names.

A pass takes a module from one valid state to another, in place. The docstring shows the IR before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry

Analyses = dict[type[Any], Any]
"""By type, the analyses of the module in its current state that the passes of one run share."""


class Recomputable:
    """Base of analyses that passes compute where they are missing: the pipeline drops them once the module changes."""


PassT = TypeVar("PassT", bound="Pass")


class Pass:
    """Base of all passes. Subclasses are frozen dataclasses with a `name` and a `run`."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    "Names of the pass in releases of LLVM, which are accepted too."
    main_option: ClassVar[str] = ""
    """The option that may be given without its name, as in `--mesh-specialize=m=4x2`."""
    option_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})
    "Options by their names in earlier releases, which are accepted too."
    keeps_step: ClassVar[bool] = False
    """Whether the predicted step stays nearly as it is. Of compared plans, such a pass, one of the last, runs on the one that is
    taken."""

    def run(self, module: ir.Module) -> bool | None:
        """Changes `module` in place; returns False if nothing changed, so that verification can be skipped.

        Raises MeshError with a source location if the module cannot be handled.
        """
        raise NotImplementedError(type(self).__name__)

    def run_with(self, module: ir.Module, analyses: Analyses) -> bool | None:
        """`run`, for passes that store or use `analyses`."""
        return self.run(module)


PASSES: Registry[str, type[Pass]] = Registry("pass")
"""Every pass of the imported modules, by name."""


def register(cls: type[PassT]) -> type[PassT]:
    """Registers a pass under its name."""
    PASSES.add(cls.name, cls)
    return cls
