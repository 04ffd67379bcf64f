"""From the canonical dialect to the RFC's operations, on a copy.

Input:   %s = mesh.sharding @mesh0 split_axes = [[], [0]] partial = sum[1] : !mesh.sharding
         %1 = mesh.shard %0 to %s : tensor<4x8xf32>
Output:  %1 = mesh.annotate %0 {required = true, sharding = [[], [0], [1]]} : tensor<4x8xf32> -> tensor<4x8xf32>
"""

from __future__ import annotations

from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.assembly.source_map import as_module
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import BOUNDARY_MESH, OPTION, REQUIRED, MeshOp, MeshShapeOp, ProcessMultiIndexOp, ShardingOp, ShardOp
from meshbridge.ir.builder import Builder, integer
from meshbridge.ir.mlir import OpError, ir, run_stock_passes, walk, walk_all
from meshbridge.ir.sharding import DYNAMIC, Mesh, Split
from meshbridge_converters.rfc_import import ANNOTATE, CLUSTER
from meshbridge_converters.rfc_materialized import Materializer, array, arrays, boundary_mesh, encode, trimmed

_ONE_AXIS = {ProcessMultiIndexOp.OPERATION_NAME: "mesh.idx", MeshShapeOp.OPERATION_NAME: "mesh.size"}


def from_canonical(module: ir.Module) -> ir.Operation:
    """A copy of `module` with the RFC's operations and mhlo payload.

    Raises OpError at the first operation that the RFC has no word for.
    """
    with module.context:
        copy = as_module(module.operation.clone().operation)
        values = declared_meshes(copy.body)
        for view in list(copy.body.operations):
            if view.operation.name == MeshOp.OPERATION_NAME:
                _cluster(view.operation)
            else:
                _Exporter(view.operation, values).run()
        if any(op.name.startswith("stablehlo.") for op in walk_all(copy)):
            run_stock_passes(copy, "builtin.module(stablehlo-legalize-to-hlo)")
        for view in copy.body.operations:
            if view.operation.name == "func.func" and boundary_mesh(view.operation) is not None:
                encode(view.operation)
        return copy.operation


def _cluster(mesh: ir.Operation) -> None:
    """`mesh.mesh @m(shape = 4x?)` to `mesh.cluster @m(rank = 2, dim_sizes = [4])`: unknown sizes are 0 or left out."""
    sizes = [0 if size == DYNAMIC else size for size in MeshOp(mesh).shape]
    attrs = {name: value for name, value in mesh.attributes.items() if name != "shape"}
    attrs["rank"] = integer(len(sizes))
    while sizes and sizes[-1] == 0:
        sizes.pop()
    attrs["dim_sizes"] = array(tuple(sizes))
    Builder.before(mesh).op("mesh.cluster", [], [], attrs)
    mesh.erase()


class _Exporter:
    """Rewrites the operations of one function, which the RFC lets run on one mesh."""

    def __init__(self, function: ir.Operation, meshes: dict[str, Mesh]) -> None:
        self._function = function
        self._meshes = meshes
        self._mesh: str | None = None
        self._shardings: dict[ir.Value[Any], ShardingOp] = {}
        self._is_marked = any(REQUIRED in op.attributes for op in walk(function))
        "Whether the RFC's spelling was read, which marks what the user annotated: anything else was inferred."

    def run(self) -> None:
        """Rewrites the function; its attribute then names its mesh."""
        self._partitioned_on = boundary_mesh(self._function) if self._function.name == "func.func" else None
        if self._partitioned_on is not None:
            self._runs_on(self._function, self._partitioned_on)
        if BOUNDARY_MESH in self._function.attributes:
            self._runs_on(self._function, str(ir.FlatSymbolRefAttr(self._function.attributes[BOUNDARY_MESH]).value))
            del self._function.attributes[BOUNDARY_MESH]
        for op in list(walk(self._function))[1:]:
            self._export(op)
        if self._partitioned_on is not None:
            Materializer(self._function, self._meshes[self._partitioned_on]).run()
        for sharding in self._shardings.values():
            if any(True for _ in sharding.operation.results[0].uses):
                raise OpError(sharding.operation, "is used outside of mesh.shard, which the RFC's spelling cannot say")
            sharding.operation.erase()
        if self._mesh is not None and self._function.name == "func.func":
            self._function.attributes[CLUSTER] = ir.FlatSymbolRefAttr.get(self._mesh)

    def _export(self, op: ir.Operation) -> None:
        if op.name == ShardingOp.OPERATION_NAME:
            self._runs_on(op, ShardingOp(op).mesh)
            self._shardings[op.results[0]] = _checked(op)
        elif op.name == ShardOp.OPERATION_NAME:
            self._annotate(op)
        elif op.name in _ONE_AXIS:
            self._runs_on(op, ProcessMultiIndexOp(op).mesh)
            _indices(op, _ONE_AXIS[op.name])
        elif op.name.startswith("mesh.") and self._partitioned_on is None:
            raise OpError(
                op,
                "cannot be written in the RFC's spelling, which types collectives by global tensors and their encodings",
                hint="write the program before mesh-spmdization, or say mesh-spmdization=materialized",
            )
        elif OPTION in op.attributes:
            op.attributes["sharding"] = arrays(attributes.axis_array(op.attributes[OPTION]))
            del op.attributes[OPTION]

    def _runs_on(self, op: ir.Operation, mesh: str) -> None:
        if self._mesh is None:
            self._mesh = mesh
        if mesh != self._mesh:
            raise OpError(op, f"runs on @{mesh} in a function on @{self._mesh}; the RFC's spelling has one mesh per function")

    def _annotate(self, op: ir.Operation) -> None:
        sharding = self._shardings.get(op.operands[1])
        if sharding is None:
            raise OpError(op, "takes its sharding from elsewhere than a mesh.sharding, which the RFC's spelling cannot say")
        attrs = {name: value for name, value in op.attributes.items() if name not in ("annotate_for_users", REQUIRED)}
        required = ir.BoolAttr(op.attributes[REQUIRED]).value if REQUIRED in op.attributes else not self._is_marked
        rank = ir.RankedTensorType(op.operands[0].type).rank
        attrs["required"] = ir.BoolAttr.get(required)
        attrs["sharding"] = arrays(_rfc_lists(sharding, rank))
        if ShardOp(op).annotate_for_users:
            attrs["as_result"] = ir.BoolAttr.get(False)
        op.results[0].replace_all_uses_with(Builder.before(op).value(ANNOTATE, op.results[0].type, [op.operands[0]], attrs))
        op.erase()


def _rfc_lists(sharding: ShardingOp, rank: int) -> Split:
    """One list per dimension, the partial sum's after them; trailing empty lists go, as the RFC prints them."""
    lists = sharding.value.padded(rank).split_axes + ((sharding.partial_axes,) if sharding.partial_axes else ())
    return trimmed(lists)


def _checked(op: ir.Operation) -> ShardingOp:
    """The sharding, if the RFC can say it."""
    sharding = ShardingOp(op)
    for what, present in (
        ("halo sizes", bool(sharding.halo_sizes)),
        ("sharded dims offsets", bool(sharding.sharded_dims_offsets)),
        (f"partial {sharding.partial_type}", bool(sharding.partial_axes) and sharding.partial_type != "sum"),
    ):
        if present:
            raise OpError(op, f"cannot be written in the RFC's spelling, which has no {what}")
    return sharding


def _indices(op: ir.Operation, name: str) -> None:
    """One `mesh.idx` or `mesh.size` for each result."""
    axes = ProcessMultiIndexOp(op).axes or tuple(range(len(op.results)))
    for axis, result in zip(axes, op.results, strict=True):
        result.replace_all_uses_with(Builder.before(op).value(name, result.type, [], {"axis": attributes.index_attr(axis)}))
    op.erase()
