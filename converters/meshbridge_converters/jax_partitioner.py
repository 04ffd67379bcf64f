"""Which partitioner of XLA a partitioned `jax.export` artifact is for: Shardy, or GSPMD where JAX has Shardy off.

    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] … manual_axes={"x"} (%arg1: tensor<4xf32>) {
      %1 = stablehlo.tanh %arg1
      sdy.return %1
    }
==>
    %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2]<=[2]}"}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}
    %2 = stablehlo.tanh %1
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[2]<=[2]}"}

JAX calls what has an `sdy.mesh` with Shardy on alone, and the second form either way. It wraps arguments and results that the
artifact has NamedShardings for in sdy, which it refuses with Shardy off: the second form has none of them.
"""

from __future__ import annotations

import warnings
from typing import Any

from meshbridge.ir.errors import ShardingWarning
from meshbridge.ir.mlir import context, ir
from meshbridge.read.formats import copy_module
from meshbridge_converters import gspmd_export, notations, portable
from meshbridge_converters.carriers import MHLO_SHARDING

FLAG = "jax_use_shardy_partitioner"


def is_shardy_on() -> bool:
    """Whether JAX lowers for Shardy, as it does by default."""
    import jax

    return bool(getattr(jax.config, FLAG))


def for_gspmd(module: ir.Module) -> ir.Module:
    """A copy of `module` with its sdy annotations in GSPMD's notation.

    Raises OpError for what GSPMD cannot say.
    """
    copy = copy_module(module)
    gspmd_export.from_sdy(copy, plain=True)
    return copy


def without_shardings(exported: Any) -> dict[str, object]:
    """The fields of an Exported in which no argument and no result has a sharding."""
    fields: dict[str, object] = {"_has_named_shardings": True} if hasattr(exported, "_has_named_shardings") else {}
    sides = {"in": len(exported.in_avals), "out": len(exported.out_avals)}
    return fields | {f"_{side}_named_shardings": (None,) * count for side, count in sides.items()}


def warn_of_callers(exported: Any) -> None:
    """Warns (ShardingWarning) where an artifact that came with GSPMD's annotations is written for callers with Shardy on."""
    data = exported.mlir_module_serialized
    if MHLO_SHARDING.encode() not in data:
        return
    if notations.uses_gspmd(portable.deserialize(data, exported.fun_name, context())):
        hint = f"{FLAG.upper()}=0 in the environment writes it for callers with Shardy off"
        found = "was exported with Shardy off, and what is written can be called with Shardy on alone"
        warnings.warn(f"{exported.fun_name}: warning: the artifact {found}\n  hint: {hint}", ShardingWarning, stacklevel=2)
