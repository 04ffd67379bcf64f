"""`chlo.ragged_dot`: products whose rows or contracted elements come in groups."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.contractions import arranged, product
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, element_of, evaluates, is_float, shape_of

_NUMBERS = re.compile(r"(\w+)_dimensions = \[([\d, ]*)\]")


@evaluates("chlo.ragged_dot")
def ragged_dot(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Each row is multiplied by the matrix of its group, and rows beyond the last group give zeros; or each group of contracted
    elements gives a product of its own. Group sizes may differ between batches. As in the op's decomposition, rows of other
    groups are zeros in a sum over all groups: an infinity in a matrix leads to NaN in all rows."""
    numbers = {name: _dims(text) for name, text in _NUMBERS.findall(str(op.attributes["ragged_dot_dimension_numbers"]))}
    batch, contracted = ([numbers.get(f"{side}_{kind}", []) for side in ("lhs", "rhs")] for kind in ("batching", "contracting"))
    (ragged,), groups = numbers["lhs_ragged"], numbers.get("rhs_group", [])
    if ragged in batch[0]:
        raise OpError(op, "has groups of batches, which has no exact evaluation", "group rows or contracted elements")
    lhs, rhs, sizes = align(*operands)
    element = element_of(op.results[0])
    if is_float(element):
        lhs, rhs = (machine.field.from_integers(x) if x.dtype.kind in "iub" else x for x in (lhs, rhs))
    ends = np.cumsum(sizes.astype(np.int64), axis=-1)
    count = lhs.shape[ragged + 1]
    members = [
        (np.arange(count) >= start[..., None]) & (np.arange(count) < end[..., None])
        for start, end in zip(_parts(ends - sizes), _parts(ends), strict=True)
    ]

    shape = shape_of(op.results[0])

    def arranged_lhs(member: Array) -> Array:
        own = _masked(lhs, member, [*batch[0][: member.ndim - 2], ragged])
        return arranged(own, batch[0], contracted[0], contracted_last=True)

    if ragged in contracted[0]:
        right = arranged(rhs, batch[1], contracted[1], contracted_last=False)
        totals = [product(machine, arranged_lhs(member), right, element) for member in members]
        return [np.stack([total.reshape(-1, *shape[1:]) for total in totals], 1)]
    (group,) = groups
    right_batch, right_contracted = ([dim - (dim > group) for dim in dims] for dims in (batch[1], contracted[1]))
    parts = [np.take(rhs, number, group + 1) for number in range(len(members))]
    right = np.concatenate([arranged(part, right_batch, right_contracted, contracted_last=False) for part in parts], -2)
    total = product(machine, np.concatenate(list(map(arranged_lhs, members)), -1), right, element)
    return [total.reshape(-1, *shape)]


def _dims(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def _parts(sizes: Array) -> Iterable[Array]:
    """The groups' entries, one array for each group."""
    return np.moveaxis(sizes, -1, 0)


def _on(member: Array, dims: list[int], rank: int) -> Array:
    """A mask of devices and `dims`, as it applies to arrays of devices and `rank` dimensions."""
    order = np.argsort(dims)
    shape = [1] * rank
    for axis in order:
        shape[dims[axis]] = member.shape[axis + 1]
    return member.transpose(0, *(axis + 1 for axis in order)).reshape(member.shape[0], *shape)


def _masked(x: Array, member: Array, dims: list[int]) -> Array:
    return np.where(_on(member, dims, x.ndim - 1), x, np.zeros((), x.dtype))
