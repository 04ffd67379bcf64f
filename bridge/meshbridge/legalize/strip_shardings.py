"""`strip-shardings`: removes all shardings, in any notation, and nothing else, so that XLA runs the program on one device.

It shares no code with converters and other passes, so that the result is a reference for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.ir.mlir import CUSTOM_CALL, SIDES, OpError, dictionary, entries, inline_region, ir, set_entries, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ops.traits import Trait, ops_with

_PASS_THROUGH = ops_with(Trait.ANNOTATION) & ops_with(Trait.FORWARDING)
"""Operations that return their first operand."""

_CALLS_THROUGH = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier", "annotate_device_placement"})
"""Targets of custom calls that return their first operand."""

_ANNOTATIONS = ops_with(Trait.ANNOTATION) - ops_with(Trait.FORWARDING)
"""Operations without meaning on one device."""

_GROUP_CALL = "xla.sdy.ShardingGroup"
"""The target of a custom call without meaning on one device."""

_CALLS_PER_DEVICE = frozenset(
    {"SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"}
)
"""Targets that convert between global and per-device shapes."""

_ATTRIBUTES = ("sdy.", "meshbridge.", "mhlo.sharding", "mhlo.spmd_")
"""Prefixes of attributes that only describe shardings."""

_FRONTEND, _FRONTEND_KEYS = "mhlo.frontend_attributes", "xla.sdy."

_HINT = "`meshbridge compare` compares such a program with what XLA makes of it"


@register
@dataclass(frozen=True)
class StripShardings(Pass):
    """Removes meshes and annotations.

    Input:   sdy.mesh @m = <["x"=2]>
             func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) …
             %0 = sdy.sharding_constraint %arg0 <@m, [{}]> : tensor<8xf32>
             %1 = stablehlo.tanh %0 : tensor<8xf32>
    Output:  func.func @main(%arg0: tensor<8xf32>) …
             %1 = stablehlo.tanh %arg0 : tensor<8xf32>
    """

    name: ClassVar[str] = "strip-shardings"

    def run(self, module: ir.Module) -> None:
        """Raises OpError for a program with per-device code, which has no meaning on one device."""
        op = find_per_device(module)
        if op is not None:
            raise OpError(op, "says what each of several devices does: there is no unsharded program to run", _HINT)
        with module.context:
            erased: list[ir.Operation] = []
            for op in walk_all(module):
                target = _target(op)
                if op.name in _PASS_THROUGH or target in _CALLS_THROUGH:
                    op.results[0].replace_all_uses_with(op.operands[0])
                    erased.append(op)
                elif op.name in _ANNOTATIONS or target == _GROUP_CALL:
                    erased.append(op)
                elif op.name == "sdy.named_computation":
                    for result, value in zip(op.results, inline_region(op), strict=True):
                        result.replace_all_uses_with(value)
                    erased.append(op)
                else:
                    _strip_attributes(op)
            for op in reversed(erased):
                op.erase()
            _strip_attributes(module.operation)


def find_per_device(module: ir.Module) -> ir.Operation | None:
    """The first operation of `module` with per-device code, or None."""
    handled = _PASS_THROUGH | _ANNOTATIONS | {"sdy.named_computation", "sdy.return"}
    for op in walk_all(module):
        foreign = op.name.startswith(("mesh.", "sdy.")) and op.name not in handled
        if foreign or MANUAL_AXES in op.attributes or _target(op) in _CALLS_PER_DEVICE:
            return op
    return None


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value) if op.name == CUSTOM_CALL else ""


def _strip_attributes(op: ir.Operation) -> None:
    stripped = _without_shardings(op.attributes)
    for name in [name for name in op.attributes if name not in stripped]:
        del op.attributes[name]
    if _FRONTEND in stripped:
        op.attributes[_FRONTEND] = stripped[_FRONTEND]
    for side in SIDES:
        if side in op.attributes:  # of a function
            set_entries(op, side, map(_without_shardings, entries(op, side)))


def _without_shardings(attributes: ir.OpAttributeMap | dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """The attributes that do not describe shardings."""
    stripped = {name: attributes[name] for name in attributes if not name.startswith(_ATTRIBUTES)}
    if _FRONTEND in stripped:
        strings = {name: text for name, text in dictionary(stripped[_FRONTEND]).items() if not name.startswith(_FRONTEND_KEYS)}
        stripped[_FRONTEND] = ir.DictAttr.get(strings)
    return stripped
