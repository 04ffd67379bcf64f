"""What a pass is: a frozen dataclass whose fields are its options, registered under its command-line name.

A pass takes a module from one valid state to another, in place. The docstring shows the IR before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from meshbridge.ir.mlir import ir, walk_all
from meshbridge.ir.registry import Registry

PassT = TypeVar("PassT", bound="Pass")


class Pass:
    """Base of all passes. Subclasses are frozen dataclasses with a `name` and a `run`."""

    name: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    "Names that the pass has in releases of LLVM, under which it can be run too."
    main_option: ClassVar[str] = ""
    """The option that may be given without its name: `--mesh-specialize=m=4x2`."""

    def run(self, module: ir.Module) -> bool | None:
        """Changes `module` in place; False says that there was nothing to change, so that nothing need be verified.

        Raises MeshError with a located diagnostic where the module cannot be handled.
        """
        raise NotImplementedError(type(self).__name__)


class RewritePass(Pass):
    """A pass that looks at ops of a few names alone. Such passes in a row share one walk; one that finds none is done."""

    rewrites: ClassVar[frozenset[str]]
    """The names."""

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        """Changes what it can of `ops`, all the module's of these names, and says whether it has changed anything."""
        raise NotImplementedError(type(self))

    def run(self, module: ir.Module) -> bool:
        return self.rewrite_indexed(module, ops_by_name(module))

    def rewrite_indexed(self, module: ir.Module, index: OpsByName) -> bool:
        """Rewrites what an index of the module's ops has of the names."""
        found = [op for name in sorted(self.rewrites) for op in index.get(name, ())]
        if not found:
            return False
        with module.context:
            return self.rewrite(module, found)


PASSES: Registry[str, type[Pass]] = Registry("pass")
"""Every pass of the modules that are imported, by name."""

OpsByName = dict[str, list[ir.Operation]]


def ops_by_name(module: ir.Module) -> OpsByName:
    """All ops below the module, those of one name in program order."""
    index: OpsByName = {}
    for op in walk_all(module):
        index.setdefault(op.name, []).append(op)
    return index


def register(cls: type[PassT]) -> type[PassT]:
    """Enters a pass in PASSES under its name."""
    PASSES.add(cls.name, cls)
    return cls


def run_passes(passes: Sequence[Pass], module: ir.Module, after_each: Callable[[Pass, bool], None]) -> None:
    """Runs `passes` in order; `after_each`, told whether the pass may have changed something, verifies, times or prints."""
    index: OpsByName | None = None
    for step in passes:
        if isinstance(step, RewritePass):
            index = index or ops_by_name(module)
            changed = step.rewrite_indexed(module, index)
        else:
            changed = step.run(module) is not False
        if changed:
            index = None
        after_each(step, changed)
