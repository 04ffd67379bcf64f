"""What a pass is: a frozen dataclass whose fields are its options, registered under its command-line name.

A pass takes a module from one valid state to another, in place. The docstring shows the IR before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry

Known = dict[type[Any], Any]
"""What the passes of one run know of the module as it is, beside its IR, by kind."""

PassT = TypeVar("PassT", bound="Pass")


class Pass:
    """Base of all passes. Subclasses are frozen dataclasses with a `name` and a `run`."""

    name: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    "Names that the pass has in releases of LLVM, under which it can be run too."
    main_option: ClassVar[str] = ""
    """The option that may be given without its name: `--mesh-specialize=m=4x2`."""
    also_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    "Options by names that they had in earlier releases, under which they can be given too."

    def run(self, module: ir.Module) -> bool | None:
        """Changes `module` in place; False says that there was nothing to change, so that nothing need be verified.

        Raises MeshError with a located diagnostic where the module cannot be handled.
        """
        raise NotImplementedError(type(self).__name__)

    def run_with(self, module: ir.Module, known: Known) -> bool | None:
        """`run`, for passes that leave in `known` what they have found out, or take it from there."""
        return self.run(module)


PASSES: Registry[str, type[Pass]] = Registry("pass")
"""Every pass of the modules that are imported, by name."""


def register(cls: type[PassT]) -> type[PassT]:
    """Enters a pass in PASSES under its name."""
    PASSES.add(cls.name, cls)
    return cls
