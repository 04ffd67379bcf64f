"""From the RFC's operations to the canonical dialect, in place.

Input:   %1 = mesh.annotate %0 {as_result = false, required = true, sharding = [[0]]} : tensor<8xf32> -> tensor<8xf32>
Output:  %s = mesh.sharding @mesh0 split_axes = [[0]] : !mesh.sharding
         %1 = mesh.shard %0 to %s annotate_for_users : tensor<8xf32>

Materialized functions, whose types carry encodings:

Input:   %1 = mesh.all_gather %0 {mesh_axis = [[0]], tensor_axis = [0]} : tensor<8xf32, #mesh.shard<[[0]]>> -> tensor<8xf32>
Output:  %1 = mesh.all_gather %0 on @mesh0 mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from meshbridge.dialect import attributes, build
from meshbridge.dialect.module_mesh import named_meshes
from meshbridge.dialect.ops import BOUNDARY_MESH, OPTION, REQUIRED, RESULT_SPLIT, MeshOp
from meshbridge.ir.builder import Builder, op_of, tensor
from meshbridge.ir.mlir import MeshError, OpError, function_type, ir, run_stock_passes, walk, walk_all
from meshbridge.ir.sharding import DYNAMIC, MOST_AXES, REDUCTION_KINDS, Axes, Mesh, Sharding, Split
from meshbridge.ops.boundary import set_boundary
from meshbridge_converters.rfc_materialized import CONSTANTS, retype_constant, trimmed

CLUSTER = "mesh_cluster"
"""The function attribute that names the mesh that the function runs on."""

ANNOTATE = "mesh.annotate"

_Conversion = Callable[[ir.Operation, Mesh], "ir.Value[Any]"]
_Make = Callable[..., "ir.Value[Any]"]
"""A builder of a collective."""


def to_canonical(module: ir.Module) -> None:
    """Rewrites every operation of the RFC, and mhlo into StableHLO.

    Raises OpError at an operation that contradicts itself, MeshError if the payload cannot become StableHLO.
    """
    with module.context:
        meshes = {}
        for op in walk_all(module):
            if op.name == "mesh.cluster":
                mesh = _mesh(op)
                meshes[mesh.name] = mesh
        for view in list(module.body.operations):
            if view.operation.name == "func.func":
                _Function(view.operation, meshes).lower_op()
        if any(op.name.startswith("mhlo.") for op in walk_all(module)):
            run_stock_passes(module, "builtin.module(hlo-legalize-to-stablehlo)")
        for view in list(module.body.operations):
            if view.operation.name == "func.func":
                _Function(view.operation, meshes).convert()


def _mesh(cluster: ir.Operation) -> Mesh:
    """Replaces `mesh.cluster`; sizes that are missing or not positive are unknown."""
    rank = int(ir.IntegerAttr(cluster.attributes["rank"]).value)
    sizes = _integers(cluster.attributes["dim_sizes"]) if "dim_sizes" in cluster.attributes else ()
    if len(sizes) > rank:
        raise OpError(cluster, f"is of rank {rank}, but has {len(sizes)} dim_sizes")
    if not 0 <= rank <= MOST_AXES:
        raise OpError(cluster, f"is of rank {rank}, expected at most {MOST_AXES}: axes are numbers of 16 bits")
    shape = tuple(size if size > 0 else DYNAMIC for size in sizes) + (DYNAMIC,) * (rank - len(sizes))
    attrs = {name: value for name, value in cluster.attributes.items() if name not in ("rank", "dim_sizes")}
    new = Builder.before(cluster).op("mesh.mesh", [], [], attrs | {"shape": attributes.integers_attr(shape)})
    cluster.erase()
    return MeshOp(new).value


def _integers(attr: ir.Attribute) -> tuple[int, ...]:
    return tuple(int(ir.IntegerAttr(entry).value) for entry in ir.ArrayAttr(attr))


def _lists(attr: ir.Attribute) -> Split:
    return tuple(_integers(entry) for entry in ir.ArrayAttr(attr))


_ENCODING = re.compile(r"#mesh\.shard<\s*(\[[\[\]\d,\s]*\])\s*>")


class _Function:
    """One function and the mesh that it runs on."""

    def __init__(self, function: ir.Operation, meshes: dict[str, Mesh]) -> None:
        self.function = function
        self.meshes = meshes

    def lower_op(self) -> None:
        """Gives values the types of their shards, and writes down what they are shards of."""
        ops = list(walk(self.function))
        if CLUSTER in self.function.attributes or any(op.name in _CONVERSIONS for op in ops):
            for op in ops:
                self._retype(op)
            self._retype_boundary()

    def convert(self) -> None:
        """Rewrites the function's operations."""
        for op in list(walk(self.function))[1:]:
            conversion = _CONVERSIONS.get(op.name)
            if conversion is not None:
                self._replace(op, conversion(op, self.mesh))
            elif "sharding" in op.attributes:
                op.attributes[OPTION] = attributes.axis_array_attr(_lists(op.attributes["sharding"]))
                del op.attributes["sharding"]
        if CLUSTER in self.function.attributes:
            if not named_meshes(walk(self.function)):  # or else they say it
                self.function.attributes[BOUNDARY_MESH] = ir.FlatSymbolRefAttr.get(self.mesh.name)
            del self.function.attributes[CLUSTER]

    @property
    def mesh(self) -> Mesh:
        """The mesh that the function names."""
        if CLUSTER not in self.function.attributes:
            raise OpError(self.function, f"has mesh operations, but no {CLUSTER} attribute")
        name = str(ir.FlatSymbolRefAttr(self.function.attributes[CLUSTER]).value)
        if name not in self.meshes:
            raise OpError(self.function, f'Undefined required mesh symbol "{name}".')
        return self.meshes[name]

    def _sharding(self, type_: ir.Type) -> Sharding:
        rank = type_.rank if isinstance(type_, ir.RankedTensorType) else 0
        lists = _encoding(type_)
        return Sharding(self.mesh.name, lists[:rank], lists[rank] if len(lists) > rank else ()).padded(rank)

    def _replace(self, op: ir.Operation, value: ir.Value[Any]) -> None:
        if value.type != op.results[0].type:
            raise OpError(op, f"computes {value.type} on each device, but its type says {op.results[0].type}")
        op.results[0].replace_all_uses_with(value)
        op.erase()

    def _retype(self, op: ir.Operation) -> None:
        """Gives results and block arguments the types of their shards."""
        if op.name not in _CONVERSIONS and any(lists := [_encoding(result.type) for result in op.results]):
            op.attributes[RESULT_SPLIT] = ir.ArrayAttr.get([attributes.axis_array_attr(entry) for entry in lists])
        for result in op.results:
            self._give_shard_type(op, result)
        if op.name in CONSTANTS:
            retype_constant(op, op.results[0].type)
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    self._give_shard_type(op, argument)

    def _give_shard_type(self, op: ir.Operation, value: ir.Value[Any]) -> None:
        local = self._local_type(op, value.type)
        if local != value.type:
            value.set_type(local)

    def _local_type(self, op: ir.Operation, type_: ir.Type) -> ir.Type:
        """The shard's type: an encoding splits the dimensions that it names, and goes."""
        if not _is_encoded(type_):
            return type_
        shape = list(type_.shape)
        for dim, axes in enumerate(_encoding(type_)[: len(shape)]):
            if any(axis >= self.mesh.rank for axis in axes):
                raise OpError(op, f"is sharded along mesh axes {list(axes)}, but @{self.mesh.name} is of rank {self.mesh.rank}")
            count = self.mesh.group_size(tuple(axes))
            if shape[dim] % count if count > 0 else axes:
                raise OpError(op, f"splits dimension {dim} of size {shape[dim]} over {count if count > 0 else 'unknown'} devices")
            shape[dim] //= max(count, 1)
        return tensor(shape, type_.element_type)

    def _retype_boundary(self) -> None:
        declared = function_type(self.function)
        inputs = [self._local_type(self.function, type_) for type_ in declared.inputs]
        results = [self._local_type(self.function, type_) for type_ in declared.results]
        if (inputs, results) == (list(declared.inputs), list(declared.results)):
            return
        for side, types in (("arg_attrs", declared.inputs), ("res_attrs", declared.results)):
            wholes = [_whole(type_) for type_ in types]
            set_boundary(self.function, side, wholes, [self._sharding(type_) for type_ in types])
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def _is_encoded(type_: ir.Type) -> TypeGuard[ir.RankedTensorType]:
    return isinstance(type_, ir.RankedTensorType) and _ENCODING.fullmatch(str(type_.encoding)) is not None


def _encoding(type_: ir.Type) -> Split:
    """The lists of a type's encoding; () for a type without."""
    found = _ENCODING.fullmatch(str(type_.encoding)) if isinstance(type_, ir.RankedTensorType) else None
    return trimmed(tuple(tuple(axes) for axes in ast.literal_eval(found.group(1)))) if found else ()


def _whole(type_: ir.Type) -> ir.Type:
    """`type_` without its encoding."""
    return tensor(type_.shape, type_.element_type) if _is_encoded(type_) else type_


def _annotate(op: ir.Operation, mesh: Mesh) -> ir.Value[Any]:
    rank = ir.RankedTensorType(op.operands[0].type).rank
    lists = _lists(op.attributes["sharding"])
    if len(lists) > rank + 1:
        raise OpError(op, f"has {len(lists)} lists of axes, but a tensor of rank {rank} takes {rank + 1} with the partial sum's")
    partial = lists[rank] if len(lists) > rank else ()
    at = Builder.before(op)
    sharding = build.sharding(Sharding(mesh.name, lists[:rank] or ((),), partial), at=at)
    for_users = "as_result" in op.attributes and not ir.BoolAttr(op.attributes["as_result"]).value
    value = build.shard(op.operands[0], sharding, annotate_for_users=for_users, at=at)
    required = "required" not in op.attributes or ir.BoolAttr(op.attributes["required"]).value
    op_of(value).attributes[REQUIRED] = ir.BoolAttr.get(required)
    return value


def _build(op: ir.Operation, mesh: Mesh, make: _Make, calls: Iterable[Mapping[str, Any]]) -> ir.Value[Any]:
    """The operand of `op` after each of the `calls` of a builder. The builder's complaints become diagnostics about `op`."""
    value: ir.Value[Any] = op.operands[0]
    for arguments in calls:
        try:
            value = make(value, mesh, **arguments, at=Builder.before(op))
        except (ValueError, IndexError) as error:
            if isinstance(error, MeshError):
                raise
            raise OpError(op, f"does not fit its operand: {error}") from None
    return value


def _reduction(op: ir.Operation, name: str) -> str:
    kind = str(ir.StringAttr(op.attributes[name]).value)
    if kind not in REDUCTION_KINDS:
        raise OpError(op, f"has the unknown reduction '{kind}', expected one of {', '.join(REDUCTION_KINDS)}")
    return kind


def _index(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _axes(op: ir.Operation, name: str) -> Axes:
    return _integers(op.attributes[name])


_READERS: dict[str, Callable[[ir.Operation, str], object]] = {"mesh_axes": _axes, "reduction": _reduction}
"""How arguments of the builders are read that are not the number of a dimension."""


def _along_one_axis(make: Callable[..., list[ir.Value[Any]]]) -> _Conversion:
    return _required(("axis",), lambda op, mesh: make(mesh, (_index(op, "axis"),), at=Builder.before(op))[0])


def _collective(make: _Make, **said: str) -> _Conversion:
    """By argument of the builder, the attribute that holds it."""

    def convert(op: ir.Operation, mesh: Mesh) -> ir.Value[Any]:
        return _build(op, mesh, make, [{each: _READERS.get(each, _index)(op, name) for each, name in said.items()}])

    return _required(said.values(), convert)


def _per_dimension(make: _Make, dimension: str, listed: str) -> _Conversion:
    """One collective for each dimension that the attribute `listed` has axes for; `dimension` is the builder's argument."""

    def convert(op: ir.Operation, mesh: Mesh) -> ir.Value[Any]:
        along = {dim: axes for dim, axes in enumerate(_lists(op.attributes[listed])) if axes}
        if "tensor_axis" in op.attributes and sorted(_axes(op, "tensor_axis")) != list(along):
            raise OpError(op, f"names the tensor axes {op.attributes['tensor_axis']}, but its {listed} those of {list(along)}")
        return _build(op, mesh, make, [{"mesh_axes": axes, dimension: dim} for dim, axes in along.items()])

    return _required((listed,), convert)


def _required(names: Iterable[str], convert: _Conversion) -> _Conversion:
    """Checks that an operation has the attributes that its conversion reads."""

    def checked(op: ir.Operation, mesh: Mesh) -> ir.Value[Any]:
        for name in names:
            if name not in op.attributes:
                raise OpError(op, f"requires attribute '{name}'")
        try:
            return convert(op, mesh)
        except (TypeError, ValueError) as error:
            if isinstance(error, MeshError):
                raise
            raise OpError(op, f"has an attribute of the wrong kind: {error}") from None

    return checked


_CONVERSIONS: dict[str, _Conversion] = {
    ANNOTATE: _required(("sharding",), _annotate),
    "mesh.idx": _along_one_axis(build.process_multi_index),
    "mesh.size": _along_one_axis(build.mesh_shape),
    "mesh.all_gather": _per_dimension(build.all_gather, "gather_axis", "mesh_axis"),
    "mesh.all_reduce": _collective(build.all_reduce, mesh_axes="mesh_axis", reduction="reduction"),
    "mesh.all_to_all": _collective(build.all_to_all, mesh_axes="sharding", split_axis="split_axis", concat_axis="concat_axis"),
    "mesh.local_split": _per_dimension(build.all_slice, "slice_axis", "sharding"),
    "mesh.reduce_scatter": _collective(
        build.reduce_scatter, mesh_axes="mesh_axis", reduction="reduction", scatter_axis="tensor_axis"
    ),
}
"""By operation of the RFC, what it becomes."""
