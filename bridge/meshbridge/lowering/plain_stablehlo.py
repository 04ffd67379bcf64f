"""`plain-stablehlo`: local programs in plain StableHLO of a given version, for compilers other than XLA."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import (
    CUSTOM_CALL,
    SIDES,
    MeshError,
    OpError,
    call_target,
    display_name,
    entries,
    find,
    ir,
    run_stock_passes,
    set_entries,
    stablehlo,
    walk_all,
)
from meshbridge.ir.passes import Pass, register
from meshbridge.lowering.plain_collectives import COLLECTIVES, simplify
from meshbridge.lowering.plain_expansions import EXPANSIONS, expand
from meshbridge.ops.unsupported import PLACEMENT
from meshbridge.read.formats import copy_module

OLDEST, NEWEST = stablehlo.get_minimum_version(), stablehlo.get_current_version()
"""The versions of StableHLO that this jaxlib can write."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

STRUCTURE = frozenset(("func.func", "func.return", "stablehlo.return"))
"""Ops that are always allowed."""


def check_version(version: str) -> str:
    """Returns `version`, a version of StableHLO. Raises MeshError unless this jaxlib can write it."""
    if not _VERSION.fullmatch(version) or not _number(OLDEST) <= _number(version) <= _number(NEWEST):
        raise MeshError(f"error: stablehlo-version is {version!r}, expected {OLDEST} to {NEWEST}, as this jaxlib can write")
    return version


_VERSIONS = [f"0.{minor}.0" for minor in range(9, 21)] + [f"1.{minor}.0" for minor in range(int(NEWEST.split(".")[1]) + 1)]
"""The versions of StableHLO that differ in their ops, attributes or types."""


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@register
@dataclass(frozen=True)
class PlainStablehlo(Pass):
    """Reduces a local program to functions and ops of a given version of StableHLO.

    Input:   mesh.mesh @m(shape = 4)
             func.func @main(%arg0: tensor<2xf32> {meshbridge.global = tensor<8xf32>, …}) … {
               %0 = chlo.erf %arg0 : tensor<2xf32> -> tensor<2xf32> …
    Output:  func.func @main(%arg0: tensor<2xf32>) … {
               %0 = stablehlo.clamp …

    StableHLO's own passes expand CHLO, and newer ops if the version can express them by others; EXPANSIONS expands ops that `ops`
    lacks. Meshes, shardings, memory kinds and argument names are dropped; `meshbridge report` prints how arguments are sharded.
    """

    name: ClassVar[str] = "plain-stablehlo"
    version: str = NEWEST
    "The version of StableHLO."
    ops: str = ""
    "The names of the allowed ops, separated by commas; empty for all ops of the version."

    def run(self, module: ir.Module) -> None:
        """Raises MeshError for an op that is not in StableHLO, not in the version, or not in `ops`."""
        check_version(self.version)
        with module.context:
            _strip(module)
            for op in find(module.operation, _REWRITTEN):
                simplify(op) if op.name in COLLECTIVES else _rewrite_call(op)
        legalize = f"func.func(chlo-legalize-to-stablehlo),stablehlo-compatibility-expander{{target={self.version}}}"
        run_stock_passes(module, f"builtin.module({legalize})")
        _refuse(module, lambda name: name.startswith("stablehlo."), "is not of StableHLO, and has no form there")
        if self.ops:
            allowed = frozenset(self.ops.split(","))
            with module.context:
                for op in find(module.operation, EXPANSIONS.keys() - allowed):
                    expand(op)
            _refuse(module, lambda name: name in allowed, "is not among the allowed ops")
        _refuse_newer(module, self.version)


_REWRITTEN = COLLECTIVES | {CUSTOM_CALL}
_MESHES = ("mesh.mesh", "sdy.mesh")
_CONFIG = "backend_config"
_TYPED = 4
"""The API version of custom calls whose configuration is a dictionary."""


def _strip(module: ir.Module) -> None:
    """Removes meshes and the dialect attributes of ops, arguments and results."""
    for view in list(module.body.operations):
        if view.operation.name in _MESHES:
            view.operation.erase()
        elif view.operation.name == "func.func":
            for side in SIDES:
                set_entries(view.operation, side, ({} for _ in entries(view.operation, side)))
    for op in (module.operation, *walk_all(module)):
        for name in [name for name in op.attributes if "." in name and name != f"mhlo.{_CONFIG}"]:
            del op.attributes[name]


def _rewrite_call(op: ir.Operation) -> None:
    """Moves the configuration of a call into StableHLO's own attribute, as in XLA's typed calls; replaces a call that only places
    its operand in memory by the operand."""
    if call_target(op) == PLACEMENT:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    elif f"mhlo.{_CONFIG}" in op.attributes:
        op.attributes[_CONFIG] = op.attributes[f"mhlo.{_CONFIG}"]
        op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED)
        del op.attributes[f"mhlo.{_CONFIG}"]


def _refuse(module: ir.Module, is_allowed: Callable[[str], bool], message: str) -> None:
    """Raises OpError at the first op that is not allowed, and names all such ops."""
    if refused := [op for op in walk_all(module) if op.name not in STRUCTURE and not is_allowed(op.name)]:
        names = sorted({display_name(op) for op in refused})
        raise OpError(refused[0], message, f"all such ops of the program: {', '.join(names)}")


_NOT_IN_VERSION = re.compile(r"(.*?): error: failed to legalize operation 'vhlo\.(\w+?)_v\d+'")


def _refuse_newer(module: ir.Module, version: str) -> None:
    """Raises MeshError for an op whose name, attributes or types `version` does not have."""
    if (refused := _refusal(module, version)) is None:
        return
    if (where := _NOT_IN_VERSION.match(refused)) is None:
        raise MeshError(refused)
    later_versions = [candidate for candidate in _VERSIONS if _number(candidate) > _number(version)]
    index = bisect_left(later_versions, True, key=lambda candidate: _refusal(module, candidate) is None)
    hint = f"\n  hint: StableHLO {later_versions[index]} is the first that has it" if index < len(later_versions) else ""
    message = f"'stablehlo.{where[2]}' op is not in StableHLO {version} as it stands here, with its attributes and types"
    raise MeshError(f"{where[1]}: error: {message}{hint}")


def _refusal(module: ir.Module, version: str) -> str | None:
    """StableHLO's error if `module` cannot be written in `version`, else None."""
    try:
        run_stock_passes(copy_module(module), f"builtin.module(stablehlo-legalize-to-vhlo,vhlo-to-version{{target={version}}})")
    except MeshError as error:
        return str(error)
    return None
