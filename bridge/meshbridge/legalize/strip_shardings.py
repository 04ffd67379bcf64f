"""Removes everything that says how a program is sharded, in any notation, and nothing else: what is left XLA runs on one device.

It reads the program as it came. No converter and no other pass has a part in it, so that the result is a reference for them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.ir.mlir import CUSTOM_CALL, SHARDING_GROUP, SIDES, OpError, dictionary, entries, ir, set_entries, unwrap, walk_all
from meshbridge.ir.passes import Pass, register

_PASS_THROUGH = frozenset(
    {"mesh.shard", "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.data_flow_edge"}
)
"""Operations that hand their first operand on."""

_CALLS_THROUGH = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier", "annotate_device_placement"})
"""Targets of custom calls that do."""

_ANNOTATIONS = frozenset({"mesh.sharding", "mesh.mesh", "sdy.mesh", SHARDING_GROUP})
"""Operations without meaning for one device; users before definitions when erased from the end."""

_GROUP_CALL = "xla.sdy.ShardingGroup"
"""The target of a custom call that has none either."""

_CALLS_PER_DEVICE = frozenset(
    {"SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"}
)
"""Targets at which a program leaves or enters the shapes of one device."""

_ATTRIBUTES = ("sdy.", "meshbridge.", "mhlo.sharding", "mhlo.spmd_")
"""How the names of attributes begin that speak of shardings alone."""

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
        """Raises OpError for a program that says what each device does: it has no meaning on one."""
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
                    for result, value in zip(op.results, unwrap(op), strict=True):
                        result.replace_all_uses_with(value)
                    erased.append(op)
                else:
                    _strip_attributes(op)
            for op in reversed(erased):
                op.erase()
            _strip_attributes(module.operation)


def find_per_device(module: ir.Module) -> ir.Operation | None:
    """An operation of `module` that says what one of several devices does; None if there is none."""
    known = _PASS_THROUGH | _ANNOTATIONS | {"sdy.named_computation", "sdy.return"}
    for op in walk_all(module):
        foreign = op.name.startswith(("mesh.", "sdy.")) and op.name not in known
        if foreign or MANUAL_AXES in op.attributes or _target(op) in _CALLS_PER_DEVICE:
            return op
    return None


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value) if op.name == CUSTOM_CALL else ""


def _strip_attributes(op: ir.Operation) -> None:
    kept = _stripped(op.attributes)
    for name in [name for name in op.attributes if name not in kept]:
        del op.attributes[name]
    if _FRONTEND in kept:
        op.attributes[_FRONTEND] = kept[_FRONTEND]
    for side in SIDES:
        if side in op.attributes:  # of a function
            set_entries(op, side, map(_stripped, entries(op, side)))


def _stripped(attributes: ir.OpAttributeMap | dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """Those that do not speak of shardings."""
    kept = {name: attributes[name] for name in attributes if not name.startswith(_ATTRIBUTES)}
    if _FRONTEND in kept:
        strings = {name: text for name, text in dictionary(kept[_FRONTEND]).items() if not name.startswith(_FRONTEND_KEYS)}
        kept[_FRONTEND] = ir.DictAttr.get(strings)
    return kept
