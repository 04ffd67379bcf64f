"""The reference of every run: the source program on one device.

XLA alone compiles it, without shardings and without any partitioner. If XLA is known to miscompile it, StableHLO's interpreter
evaluates it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir import mlir
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.uses import defining_name
from meshbridge.legalize.strip_shardings import StripShardings
from meshbridge.ops.reductions import body_kind
from meshbridge.read import formats
from meshbridge.runtime import pjrt
from meshbridge.runtime.interpreter import interpreted

Array = np.ndarray[Any, Any]


def unsharded(module: ir.Module, inputs: Sequence[Array]) -> list[Array]:
    """The results of `module` on global inputs; `module` itself is not changed.

    Raises MeshError for a partitioned program, which has no meaning on one device.
    """
    if is_partitioned(module):
        hint = "meshbridge verify SOURCE PARTITIONED compares it with the program that it was made from"
        raise MeshError(
            f"<module>: error: the program is partitioned already, it has no unsharded form to compare with\n  hint: {hint}"
        )
    copy = formats.copy_module(module)
    StripShardings().run(copy)
    if any(MISREAD[op.name](op) for op in mlir.walk_all(copy) if op.name in MISREAD):
        return _interpreted(copy, inputs)
    return [np.asarray(result) for result in pjrt.compile_whole(copy, jax.devices()[0])(*inputs)]


def _reduces_pieces(op: ir.Operation) -> bool:
    """XLA reduces each piece of a concatenation separately, and includes an initial value that is not neutral once for each."""
    count = len(op.operands) // 2
    reduced = list(op.operands)[:count]
    kind = body_kind(op)
    element = ir.RankedTensorType(op.results[0].type).element_type
    is_neutral = bool(kind) and all(is_splat(value, neutral(kind, element)) for value in list(op.operands)[count:])
    return not is_neutral and any(defining_name(value) == "stablehlo.concatenate" for value in reduced)


MISREAD: dict[str, Callable[[ir.Operation], bool]] = {"stablehlo.reduce": _reduces_pieces}
"""Ops that XLA computes wrongly on one device, and when. docs/propagation.md lists them, each with its test."""


def _interpreted(module: ir.Module, inputs: Sequence[Array]) -> list[Array]:
    try:
        return interpreted(module, inputs)
    except (ValueError, TypeError, RuntimeError) as error:
        raise MeshError(
            f"error: XLA is known to compute this program wrongly, and StableHLO's interpreter cannot evaluate it: {error}"
        ) from None
