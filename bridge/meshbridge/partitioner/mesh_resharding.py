"""Converts pairs of unequal annotations to collectives, without partitioning: the executable form of the resharding spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.ops import MeshOp, ShardingOp, ShardOp
from meshbridge.ir.builder import TooLargeError
from meshbridge.ir.mlir import MeshError, OpError, ir, tensor_type, walk
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.resharding import PlanOptions, emit, plan, unknown_sizes


@register
@dataclass(frozen=True)
class MeshResharding(Pass):
    """Replaces a `mesh.shard` of a value and a different one of its use by the collectives between them.

    Input:   %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
             %1 = mesh.shard %0 to %columns annotate_for_users : tensor<8x16xf32>
    Output:  %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
             %1 = builtin.unrealized_conversion_cast %0 : tensor<8x16xf32> to tensor<4x16xf32>
             %2 = mesh.all_to_all %1 on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<4x16xf32> -> tensor<8x8xf32>
             %3 = builtin.unrealized_conversion_cast %2 : tensor<8x8xf32> to tensor<8x16xf32>
             %4 = mesh.shard %3 to %columns annotate_for_users : tensor<8x16xf32>

    The casts convert between the global tensor and one device's shard. The pass only reads such pairs.
    If sizes are only known at run time, axes are resharded one after the other (`unknown_sizes`).
    """

    name: ClassVar[str] = "mesh-resharding"
    exact: bool = False
    "Send the fewest bytes, in any number of collectives."
    alpha: float = PlanOptions.alpha
    "The cost of a collective, in seconds."
    beta: float = PlanOptions.beta
    "The cost of a byte, in seconds."

    def run(self, module: ir.Module) -> None:
        """Raises OpError at the annotation of the use if a pair has no plan."""
        options = PlanOptions(alpha=self.alpha, beta=self.beta, exact=self.exact)
        meshes = {op.sym_name: op.value for op in module.body.operations if isinstance(op, MeshOp)}
        shardings: dict[ir.Value, ShardingOp] = {}
        annotated: dict[ir.Value, ShardOp] = {}
        uses: list[tuple[ShardOp, ShardOp]] = []
        for op in walk(module.operation):
            view = op.opview
            if isinstance(view, ShardingOp):
                shardings[op.results[0]] = view
            elif isinstance(view, ShardOp):
                if not view.annotate_for_users:
                    annotated[op.results[0]] = view
                elif view.source in annotated:
                    uses.append((annotated[view.source], view))
        with module.context:
            for definition, use in uses:
                _reshard(shardings[definition.sharding], shardings[use.sharding], use, meshes, options)


def _reshard(source: ShardingOp, target: ShardingOp, use: ShardOp, meshes: dict[str, Mesh], options: PlanOptions) -> None:
    """Inserts the collectives from `source` to `target` before the annotation `use`."""
    op, type_ = use.operation, tensor_type(use.source)
    if type_ is None or source.mesh != target.mesh or source.mesh not in meshes:
        raise OpError(op, f"is on @{source.mesh} and then @{target.mesh}: expected a tensor on one declared mesh")
    if source.value == target.value:
        return
    mesh = meshes[source.mesh]
    ip = ir.InsertionPoint(op)
    try:
        with op.location, ip:
            if DYNAMIC in (*type_.shape, *mesh.shape):
                shard = _cast(use.source, unknown_sizes.shard_type(type_, mesh, source.value))
                resharded = unknown_sizes.reshard(shard, type_, mesh, source.value, target.value)
            else:
                resharding_plan = plan(tuple(type_.shape), str(type_.element_type), mesh, source.value, target.value, options)
                shard = _cast(use.source, ir.RankedTensorType.get(list(resharding_plan.start), type_.element_type))
                resharded = emit(resharding_plan, shard, mesh)
            op.operands[0] = _cast(resharded, type_)
    except TooLargeError:
        raise
    except MeshError as error:
        raise OpError(op, f"cannot be resharded: {error}") from None


def _cast(value: ir.Value, type_: ir.Type) -> ir.Value:
    if value.type == type_:
        return value
    cast: ir.Value = ir.Operation.create("builtin.unrealized_conversion_cast", [type_], [value]).results[0]
    return cast
