"""StableHLO's reference interpreter, which is part of jaxlib: neither JAX nor XLA is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshbridge.ir.mlir import ir, stablehlo

Array = np.ndarray[Any, Any]


def interpreted(module: ir.Module, inputs: Sequence[Array]) -> list[Array]:
    """The results of `main` by StableHLO's interpreter, which raises ValueError for a program that it cannot evaluate."""
    stablehlo.register_interpreter_dialect(module.context)
    with module.context:
        results = stablehlo.eval_module(module, [_attribute(np.asarray(value)) for value in inputs])
        return [_array(result) for result in results]


def _attribute(array: Array) -> ir.Attribute:
    if array.dtype == np.bool_:
        kind = ir.RankedTensorType.get(array.shape, ir.IntegerType.get_signless(1), loc=ir.Location.unknown())
        return ir.DenseElementsAttr.get([ir.BoolAttr.get(bool(bit)) for bit in array.flat], kind)
    data: Any = np.ascontiguousarray(array).reshape(array.shape)
    return ir.DenseElementsAttr.get(data, signless=array.dtype.kind != "u")


def _array(attribute: ir.Attribute) -> Array:
    kind = ir.RankedTensorType(attribute.type)
    if str(kind.element_type) == "i1":
        bits: Any = attribute  # the interpreter's own class of attribute, which can be walked
        return np.array([bool(bit) for bit in bits], np.bool_).reshape(kind.shape)
    return np.array(attribute).reshape(kind.shape)
