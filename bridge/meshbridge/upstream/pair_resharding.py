"""Replaces pairs of unequal annotations by collectives: how LLVM tests resharding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.ops import ShardOp
from meshbridge.ir.mlir import ir, walk
from meshbridge.ir.passes import register
from meshbridge.partitioner.mesh_resharding import MeshResharding


@register
@dataclass(frozen=True)
class PairResharding(MeshResharding):
    """Turns a `mesh.shard` of a value and one of its use into the collectives between them; upstream's pass of this name.

    Input:   %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
             %1 = mesh.shard %0 to %columns annotate_for_users : tensor<8x16xf32>
             "use"(%1)
    Output:  %0 = builtin.unrealized_conversion_cast %arg0 : tensor<8x16xf32> to tensor<4x16xf32>
             %1 = mesh.all_to_all %0 on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<4x16xf32> -> tensor<8x8xf32>
             %2 = builtin.unrealized_conversion_cast %1 : tensor<8x8xf32> to tensor<8x16xf32>
             "use"(%2)

    It is `mesh-resharding`, after which the annotations that were paired are erased.
    """

    name: ClassVar[str] = "test-mesh-resharding-spmdization"
    aliases: ClassVar[tuple[str, ...]] = ("test-grid-resharding-partition",)

    def run(self, module: ir.Module) -> None:
        """Raises OpError at the annotation of the use if a pair has no plan."""
        definitions: dict[ir.Value, ir.Operation] = {}
        uses: list[ir.Operation] = []
        paired: set[ir.Operation] = set()
        for op in walk(module.operation):
            if isinstance(view := op.opview, ShardOp):
                if not view.annotate_for_users:
                    definitions[op.results[0]] = op
                elif view.source in definitions:
                    uses.append(op)
                    paired.add(definitions[view.source])
        super().run(module)
        for use in uses:
            _drop(use)
        for definition in paired:
            _drop(definition)


def _drop(annotation: ir.Operation) -> None:
    annotation.results[0].replace_all_uses_with(annotation.operands[0])
    annotation.erase()
