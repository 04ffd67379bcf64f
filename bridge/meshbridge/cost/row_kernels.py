"""Which values the kernel computes that writes the rows of a softmax or of a normalization.

Some compilers compute reductions along the last dimension in the kernel that writes values of the same rows: it reads a row once,
reduces it, and computes with what it has reduced. XLA:GPU does so by a Triton kernel, for rows of a limited length, unless a
reduction is also read elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from meshbridge.dialect.attributes import integers
from meshbridge.ir.block_index import BlockIndex, BlockOp
from meshbridge.ir.builder import shape_of
from meshbridge.ops.dimensions import BROADCAST, REDUCE
from meshbridge.ops.traits import Trait, has

_MOST_KERNELS = 4
"""A value that more kernels would compute is written."""


@dataclass(frozen=True)
class RowKernels:
    """The values of a block that kernels of whole rows compute."""

    reductions: frozenset[int] = frozenset()
    "The results of reductions that are computed by the kernels that read them."
    written: Mapping[int, frozenset[int]] = field(default_factory=dict)
    "For elementwise operations and reductions of rows, the results of the kernels that may compute them: themselves if written."

    def is_part(self, value: int) -> bool:
        """Whether one other kernel computes whatever reads `value`, and so the value, too."""
        written = self.written.get(value, ())
        return len(written) == 1 and value not in written

    def is_written(self, value: int) -> bool:
        """Whether something reads `value` that computes no rows."""
        return value in self.written.get(value, (value,))


def row_kernels(index: BlockIndex, longest: int, readers: Callable[[int], Sequence[int]]) -> RowKernels:
    """The kernels of rows of up to `longest` elements; `readers` has the operations that read a value, or a view of it."""
    rows = {block_op.results[0] for block_op in index.operations if _reduces_rows(block_op, index, longest)}
    if not rows:
        return RowKernels()
    reductions: set[int] = set()
    written: dict[int, frozenset[int]] = {}

    def kernels_of(value: int) -> frozenset[int]:
        """The results of the kernels that compute what reads `value`; itself if something else reads it."""
        reached: frozenset[int] = frozenset()
        for number in readers(value):
            kernels = written.get(index.operations[number].results[0]) if index.operations[number].results else None
            if not kernels:
                return frozenset((value,))
            reached |= kernels
        return reached if 0 < len(reached) <= _MOST_KERNELS else frozenset((value,))

    def elements(value: int) -> int:
        return prod(shape_of(index.values.all[value]))

    for block_op in reversed(index.operations):
        if len(block_op.results) != 1:
            continue
        (result,) = block_op.results
        if has(block_op.name, Trait.ELEMENTWISE):
            written[result] = kernels_of(result)
        elif block_op.name == BROADCAST:
            written[result] = kernels_of(result) - {result}
        elif result in rows:
            kernels = kernels_of(result)
            whole = elements(block_op.operands[0])
            if result not in kernels and all(kernel in rows or elements(kernel) == whole for kernel in kernels):
                reductions.add(result)
                written[result] = kernels
            else:
                written[result] = frozenset((result,))
    return RowKernels(frozenset(reductions), written)


def _reduces_rows(block_op: BlockOp, index: BlockIndex, longest: int) -> bool:
    """Whether an operation reduces one tensor along its last dimension alone."""
    if block_op.name != REDUCE or len(block_op.results) != 1:
        return False
    shape = shape_of(index.values.all[block_op.operands[0]])
    return integers(block_op.op.attributes["dimensions"]) == (len(shape) - 1,) and 1 < shape[-1] <= longest
