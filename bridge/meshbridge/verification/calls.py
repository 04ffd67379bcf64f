"""Ops known only by name: custom calls, decompositions and solvers. Each result element is a hash of all operands and of its
position, per batch where the op works on each batch separately."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.attention_calls import ATTENTION, by_heads
from meshbridge.verification.constants import _as_bits
from meshbridge.verification.elementwise import OPAQUE_CHLO, UNARY, opaque
from meshbridge.verification.field import Array, Field, mix
from meshbridge.verification.machine import Evaluator, align, element_of, evaluates, is_complex, is_float, shape_of
from meshbridge.verification.ordering import largest

IDENTITIES = frozenset(
    (
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "LayoutConstraint",
        "xla.sdy.FuncResultSharding",
    )
)
"""Targets that annotate their operand and return it."""

BATCHED = re.compile(
    r"lapack_.*|cusolver_.*|cu_?blas.*|hipsolver_.*|Eigh|Qr|ProductOfElementaryHouseholderReflectors|LuDecomposition|.*TopK"
)
"""Targets whose operands are batches of matrices (or rows), each processed separately."""


def _digest(field: Field, name: str, x: Array, batch: int) -> Array:
    """One word for each device and batch element, which depends on every element of `x` and on its position."""
    rows = x.reshape(*x.shape[: batch + 1], math.prod(x.shape[batch + 1 :]))
    place = np.arange(rows.shape[-1]).reshape(*(1,) * (batch + 1), -1)
    words = field.hash_words(name, rows, place)
    return mix(np.asarray(words.sum(axis=-1, dtype=np.uint64)))


def hashed(
    machine: Evaluator,
    op: ir.Operation,
    operands: list[Array],
    name: str,
    batch: int,
    shapes: Sequence[tuple[int, ...]] = (),
) -> list[Array]:
    """Results that are hashes of all elements of the operands, separately for each of the `batch` leading dimensions. `shapes`
    are shapes of the results with these leading dimensions, if the results' own do not have them."""
    field = machine.field
    operands = align(*operands) if operands else operands
    state = np.zeros((1,) * (batch + 1), np.uint64)
    for index, operand in enumerate(operands):
        own = batch if operand.ndim > batch else 0
        state = mix(
            state
            ^ _digest(field, f"{name} operand {index}", operand, own).reshape(
                -1, *operand.shape[1 : own + 1], *(1,) * (batch - own)
            )
        )
    results = []
    for index, result in enumerate(op.results):
        shape, element = shapes[index] if shapes else shape_of(result), element_of(result)
        inner = int(np.prod(shape[batch:], dtype=np.int64))
        place = np.arange(inner).reshape(*(1,) * (batch + 1), -1)
        words = field.hash_words(f"{name} result {index}", state[..., None], place)
        words = np.broadcast_to(words, (words.shape[0], *shape[:batch], inner))
        if is_complex(element):
            parts = [field.hash(f"part {part}", words.view(np.int64)) for part in ("real", "imaginary")]
            numbers = parts[0] + 1j * parts[1]
        else:
            numbers = field.hash("number", words.view(np.int64)) if is_float(element) else _as_bits(field, words, element)
        results.append(numbers.reshape(len(words), *shape_of(result)))
    return results


def _attributes(op: ir.Operation, *left_out: str) -> str:
    named = [op.attributes[index] for index in range(len(op.attributes))]
    return " ".join(
        f"{entry.name}={entry.attr}"
        for entry in sorted(named, key=lambda entry: entry.name)
        if not entry.name.startswith(("meshbridge.", "mhlo.", "sdy.", "xla", *left_out))
    )


def legacy_call(machine: Evaluator, op: ir.Operation, target: str, operands: list[Array]) -> list[Array] | None:
    """The result of the CHLO operation that `target` is named after; None for other targets.

    JAX before 0.10 writes `custom_call @mhlo.erf` for `chlo.erf`. Raises OpError for a top-k of the smallest elements.
    """
    dialect, _, name = target.partition(".")
    if dialect != "mhlo":
        return None
    if name in OPAQUE_CHLO:
        return [opaque(machine.field, name, *operands)]
    if name in UNARY:
        return [UNARY[name](machine.field, operands[0])]
    if name != "topk":
        return None
    return largest(machine.field, op, ir.DictAttr(op.attributes["mhlo.attributes"]), operands[0])


@evaluates("stablehlo.custom_call")
def custom_call(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A hash of all operands, or the operand itself for a target that only annotates it."""
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    if target in IDENTITIES:
        return operands[: len(op.results)]
    if not len(op.results):
        return []
    if (results := legacy_call(machine, op, target, operands)) is not None:
        return results
    if ATTENTION.fullmatch(target) and (told := by_heads(op, target, operands)) is not None:
        config, ordered, shapes = told
        return hashed(machine, op, ordered, f"{target} {config}", 2, shapes)
    batch = 0
    if BATCHED.fullmatch(target):
        ranks = [operand.ndim - 1 for operand in operands] + [len(shape_of(result)) for result in op.results]
        batch = max(0, max(ranks) - (1 if target.endswith("TopK") else 2))
    return hashed(machine, op, operands, f"{target} {_attributes(op, 'operand_layouts', 'result_layouts')}", batch)


@evaluates("stablehlo.cholesky")
def cholesky(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A hash of each matrix."""
    return hashed(machine, op, operands, f"cholesky {_attributes(op)}", operands[0].ndim - 3)


@evaluates("stablehlo.triangular_solve")
def triangular_solve(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A hash of each matrix and one right-hand side."""
    a, b = align(*operands)
    is_left = str(op.attributes["left_side"]) == "true"
    columns = np.moveaxis(b, -1, -2) if is_left else b  # devices, batch…, right-hand sides, elements
    batch = a.ndim - 3
    field, name = machine.field, f"triangular_solve {_attributes(op)}"
    matrix = _digest(field, f"{name} matrix", a, batch)[..., None]
    sides = _digest(field, f"{name} side", columns, batch + 1)
    state = mix(matrix ^ mix(sides))
    words = field.hash_words(name, state[..., None], np.arange(columns.shape[-1]).reshape(*(1,) * (batch + 2), -1))
    if is_complex(element_of(op.results[0])):
        raise OpError(op, "has no exact evaluation on complex numbers")
    numbers = field.hash("number", words.view(np.int64))
    return [np.moveaxis(numbers, -1, -2) if is_left else numbers]
