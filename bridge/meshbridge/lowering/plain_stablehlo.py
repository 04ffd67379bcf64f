"""Local programs in plain StableHLO of a given version: what compilers other than XLA read."""

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
    entries,
    find,
    ir,
    run_stock_passes,
    set_entries,
    stablehlo,
    title,
    walk_all,
)
from meshbridge.ir.passes import Pass, register
from meshbridge.lowering.plain_collectives import COLLECTIVES, simplify
from meshbridge.lowering.plain_expansions import EXPANSIONS, expand
from meshbridge.ops.refused import PLACEMENT
from meshbridge.read.formats import copy_module

OLDEST, NEWEST = stablehlo.get_minimum_version(), stablehlo.get_current_version()
"""The versions of StableHLO that this jaxlib can write."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

STRUCTURE = frozenset(("func.func", "func.return", "stablehlo.return"))
"""Ops that every program has, whatever list of ops is allowed."""


def check_version(version: str) -> str:
    """A version of StableHLO, as it is. Raises MeshError unless this jaxlib can write it."""
    if not _VERSION.fullmatch(version) or not _number(OLDEST) <= _number(version) <= _number(NEWEST):
        raise MeshError(f"error: stablehlo-version is {version!r}, expected {OLDEST} to {NEWEST}, as this jaxlib can write")
    return version


_VERSIONS = [f"0.{minor}.0" for minor in range(9, 21)] + [f"1.{minor}.0" for minor in range(int(NEWEST.split(".")[1]) + 1)]
"""Those that differ in what they have."""


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@register
@dataclass(frozen=True)
class PlainStablehlo(Pass):
    """Leaves nothing of a local program but ops of StableHLO, as they are in a given version of it, and functions.

    Input:   mesh.mesh @m(shape = 4)
             func.func @main(%arg0: tensor<2xf32> {meshbridge.global = tensor<8xf32>, …}) … {
               %0 = chlo.erf %arg0 : tensor<2xf32> -> tensor<2xf32> …
    Output:  func.func @main(%arg0: tensor<2xf32>) … {
               %0 = stablehlo.clamp …

    CHLO is expanded by StableHLO's own passes, and so are ops that came after the version where it has others for them; ops that
    `ops` lacks are expanded by EXPANSIONS. Meshes, shardings, kinds of memory and names of arguments go; `meshbridge report` says
    how arguments are sharded.
    """

    name: ClassVar[str] = "plain-stablehlo"
    version: str = NEWEST
    "The version of StableHLO."
    ops: str = ""
    "The names of the ops that may be used, commas between them; empty for all that the version has."

    def run(self, module: ir.Module) -> None:
        """Raises MeshError for an op that is not of StableHLO, that the version does not have, or that `ops` lacks."""
        check_version(self.version)
        with module.context:
            _forget(module)
            for op in find(module.operation, _REWRITTEN):
                simplify(op) if op.name in COLLECTIVES else _as_called(op)
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
"""The version of the interface of calls whose configuration is a dictionary."""


def _forget(module: ir.Module) -> None:
    """Takes out meshes, and the attributes that ops, arguments and results have of any dialect."""
    for view in list(module.body.operations):
        if view.operation.name in _MESHES:
            view.operation.erase()
        elif view.operation.name == "func.func":
            for side in SIDES:
                set_entries(view.operation, side, ({} for _ in entries(view.operation, side)))
    for op in (module.operation, *walk_all(module)):
        for name in [name for name in op.attributes if "." in name and name != f"mhlo.{_CONFIG}"]:
            del op.attributes[name]


def _as_called(op: ir.Operation) -> None:
    """A call with its configuration in StableHLO's own attribute, as XLA's typed calls have it; its operand in place of one that
    says where it is kept."""
    if call_target(op) == PLACEMENT:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    elif f"mhlo.{_CONFIG}" in op.attributes:
        op.attributes[_CONFIG] = op.attributes[f"mhlo.{_CONFIG}"]
        op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED)
        del op.attributes[f"mhlo.{_CONFIG}"]


def _refuse(module: ir.Module, is_allowed: Callable[[str], bool], found: str) -> None:
    """Raises OpError for the first op whose name is not allowed, with the names of all that are not."""
    if refused := [op for op in walk_all(module) if op.name not in STRUCTURE and not is_allowed(op.name)]:
        names = sorted({title(op) for op in refused})
        raise OpError(refused[0], found, f"all such ops of the program: {', '.join(names)}")


_NOT_IN_VERSION = re.compile(r"(.*?): error: failed to legalize operation 'vhlo\.(\w+?)_v\d+'")


def _refuse_newer(module: ir.Module, version: str) -> None:
    """Raises MeshError for an op, or for attributes or types of it, that `version` does not have."""
    if (refused := _refusal(module, version)) is None:
        return
    if (where := _NOT_IN_VERSION.match(refused)) is None:
        raise MeshError(refused)
    newer = [each for each in _VERSIONS if _number(each) > _number(version)]
    first = bisect_left(newer, True, key=lambda each: _refusal(module, each) is None)
    hint = f"\n  hint: StableHLO {newer[first]} is the first that has it" if first < len(newer) else ""
    found = f"'stablehlo.{where[2]}' op is not in StableHLO {version} as it stands here, with its attributes and types"
    raise MeshError(f"{where[1]}: error: {found}{hint}")


def _refusal(module: ir.Module, version: str) -> str | None:
    """What StableHLO says where `module` cannot be written in `version`; None where it can."""
    try:
        run_stock_passes(copy_module(module), f"builtin.module(stablehlo-legalize-to-vhlo,vhlo-to-version{{target={version}}})")
    except MeshError as error:
        return str(error)
    return None
