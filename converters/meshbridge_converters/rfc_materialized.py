"""From a partitioned function to the RFC's materialized form: global types, with encodings where devices hold shards.

Input:   %1 = mesh.all_gather %0 on @mesh0 mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
Output:  %1 = mesh.all_gather %0 {mesh_axis = [[0]], tensor_axis = [0]} : tensor<8xf32, #mesh.shard<[[0]]>> -> tensor<8xf32>

The boundary has the shardings of arguments, `meshbridge.result_split_axes` those of the results of payload ops, and collectives
say what they change. Types become global first, which MLIR verifies, and receive their encodings when the payload is mhlo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import (
    BOUNDARY_GLOBAL,
    BOUNDARY_MESH,
    BOUNDARY_PARTIAL,
    BOUNDARY_SPLIT,
    RESULT_SPLIT,
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    AllToAllOp,
    CollectiveOpView,
    ReduceScatterOp,
)
from meshbridge.ir.builder import Builder, integer, tensor
from meshbridge.ir.mlir import OpError, all_entries, entries, function_type, ir, set_entries, walk
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Split

_HINT = "mesh-spmdization=materialized writes down the sharding of every result"
_OTHERWISE = "the spelling `mesh` says whatever one device computes"
_BOUNDARY = {BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_SPLIT, BOUNDARY_PARTIAL}
CONSTANTS = ("stablehlo.constant", "mhlo.constant")
"""Ops whose value says their type once more."""


def trimmed(lists: Split) -> Split:
    """Without trailing empty lists, as the RFC prints them."""
    while lists and not lists[-1]:
        lists = lists[:-1]
    return lists


def array(values: Axes) -> ir.ArrayAttr:
    """The RFC's list of integers."""
    return ir.ArrayAttr.get(list(map(integer, values)))


def arrays(split: Split) -> ir.ArrayAttr:
    """The RFC's list of lists of integers."""
    return ir.ArrayAttr.get([array(axes) for axes in split])


def encoded(type_: ir.Type, lists: Split) -> ir.Type:
    """`type_` with the encoding `#mesh.shard<lists>`, or as it is if there are no lists."""
    if not lists:
        return type_
    held = ir.RankedTensorType(type_)
    encoding = ir.Attribute.parse(f"#mesh.shard<{attributes.axis_lists(lists)}>")
    return ir.RankedTensorType.get(list(held.shape), held.element_type, encoding, loc=ir.Location.unknown())


def retype_constant(op: ir.Operation, type_: ir.Type) -> None:
    """Gives the value of a constant that is the same everywhere another shape or encoding.

    Raises OpError if it is not.
    """
    value = ir.DenseElementsAttr(op.attributes["value"])
    if value.type == type_:
        return
    if not value.is_splat:
        raise OpError(op, f"has the elements of {value.type}, of which {type_} would hold others")
    op.attributes["value"] = ir.Attribute.parse(f"{str(value).rsplit(' : ', 1)[0]} : {type_}")


def boundary_mesh(function: ir.Operation) -> str | None:
    """The mesh that a partitioned function names at its boundary; None for any other function."""
    named = (entry[BOUNDARY_MESH] for entry in all_entries(function) if BOUNDARY_GLOBAL in entry)
    return next((str(ir.FlatSymbolRefAttr(attr).value) for attr in named), None)


def _boundary_lists(function: ir.Operation, side: str, types: list[ir.Type]) -> list[Split]:
    """The RFC's lists of each argument or result."""
    found = []
    for type_, entry in zip(types, entries(function, side), strict=True):
        split: Split = ()
        if BOUNDARY_GLOBAL in entry:
            rank = ir.RankedTensorType(type_).rank
            partial = attributes.integers(entry[BOUNDARY_PARTIAL]) if BOUNDARY_PARTIAL in entry else ()
            split = (*_padded(attributes.axis_array(entry[BOUNDARY_SPLIT]), rank)[:rank], partial)
        found.append(trimmed(split))
    return found


def _padded(lists: Split, rank: int) -> Split:
    """One list per dimension and that of the partial sum."""
    return (*lists, *((),) * (rank + 1 - len(lists)))


class Materializer:
    """Gives one partitioned function global types and the RFC's collectives."""

    def __init__(self, function: ir.Operation, mesh: Mesh) -> None:
        self._function = function
        self._mesh = mesh
        self._lists: dict[ir.Value[Any], Split] = {}
        self._hint = _HINT

    def run(self) -> None:
        """Rewrites the collectives and makes all types global; `encode` adds the encodings once the payload is mhlo.

        Raises OpError at an operation that the materialized form cannot say.
        """
        types = function_type(self._function)
        arguments = self._function.regions[0].blocks[0].arguments
        lists = _boundary_lists(self._function, "arg_attrs", list(types.inputs))
        self._lists.update(zip(arguments, lists, strict=True))
        results = _boundary_lists(self._function, "res_attrs", list(types.results))
        inputs = [self._whole(self._function, type_, held) for type_, held in zip(types.inputs, lists, strict=True)]
        outputs = [self._whole(self._function, type_, held) for type_, held in zip(types.results, results, strict=True)]
        for side, wholes in (("arg_attrs", inputs), ("res_attrs", outputs)):
            self._check_boundary(side, wholes)
        ops = list(walk(self._function))[1:]
        self._hint = _OTHERWISE if any(RESULT_SPLIT in op.attributes for op in ops) else _HINT
        for op in ops:
            self._visit(op)
        for value, held in self._lists.items():
            if held:
                value.set_type(self._whole(self._function, value.type, held))
        self._function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))
        self._verify()

    def _check_boundary(self, side: str, wholes: list[ir.Type]) -> None:
        for entry, whole in zip(entries(self._function, side), wholes, strict=True):
            if BOUNDARY_GLOBAL in entry and (told := ir.TypeAttr(entry[BOUNDARY_GLOBAL]).value) != whole:
                rule = f"holds shards of {told} that make up {whole}: the RFC's shards are equal, without padding"
                raise OpError(self._function, rule)

    def _visit(self, op: ir.Operation) -> None:
        write = _COLLECTIVES.get(op.name)
        if write is not None:
            lists = _padded(self._lists.get(op.operands[0], ()), ir.RankedTensorType(op.operands[0].type).rank)
            try:
                written = write(op, lists)
            except ValueError as error:
                raise OpError(op, str(error), self._hint) from None
            self._collective(op, *written)
        elif op.name.startswith("mesh.") and op.name not in ("mesh.idx", "mesh.size"):
            raise OpError(op, "cannot be written in the RFC's spelling, which has no word for it")
        else:
            self._payload(op)

    def _payload(self, op: ir.Operation) -> None:
        if RESULT_SPLIT in op.attributes:
            for result, lists in zip(op.results, ir.ArrayAttr(op.attributes[RESULT_SPLIT]), strict=True):
                self._lists[result] = trimmed(attributes.axis_array(lists))
            if op.name in CONSTANTS:
                retype_constant(op, self._whole(op, op.results[0].type, self._lists[op.results[0]]))
        elif len(op.results) and any(self._lists.get(operand) for operand in op.operands):
            raise OpError(op, "computes on shards, and nothing gives the sharding of its result", self._hint)
        if op.name == "stablehlo.while":
            held = [self._lists.get(result, ()) for result in op.results]
            for region in op.regions:
                self._lists.update(zip(region.blocks[0].arguments, held, strict=True))

    def _collective(self, op: ir.Operation, name: str, attrs: dict[str, ir.Attribute], lists: Split) -> None:
        operand, result = ir.RankedTensorType(op.operands[0].type), ir.RankedTensorType(op.results[0].type)
        if str(ir.FlatSymbolRefAttr(op.attributes["mesh"]).value) != self._mesh.name:
            raise OpError(op, f"runs on another mesh than @{self._mesh.name}; the RFC's spelling has one mesh per function")
        if operand.element_type != result.element_type:
            raise OpError(op, "accumulates in another element type, which the RFC's spelling cannot say")
        attrs |= _tag([trimmed(lists)])
        value = Builder.before(op).value(name, result, list(op.operands), attrs)
        self._lists[value] = trimmed(lists)
        self._lists.pop(op.results[0], None)
        op.results[0].replace_all_uses_with(value)
        op.erase()

    def _whole(self, op: ir.Operation, type_: ir.Type, lists: Split) -> ir.Type:
        """The global tensor of which a device holds a shard of `type_`."""
        if not lists:
            return type_
        held = ir.RankedTensorType(type_)
        if not held.has_static_shape or DYNAMIC in self._mesh.shape:
            raise OpError(op, f"holds {type_}, a shard of unknown size, which the RFC's materialized form cannot say")
        split = zip(held.shape, _padded(lists, held.rank), strict=False)
        return tensor([size * self._mesh.group_size(axes) for size, axes in split], held.element_type)

    def _verify(self) -> None:
        """Refuses the first op that computes on shards what global tensors do not say: by position, or in sizes of its own."""
        for op in sorted(list(walk(self._function))[1:], key=lambda op: len(op.regions) > 0):
            try:
                op.verify()
            except ir.MLIRError as error:
                why = "; ".join(diagnostic.message for diagnostic in error.error_diagnostics)
                rule = f"computes on shards what the RFC's materialized form, on global tensors, cannot say: {why}"
                raise OpError(op, rule, self._hint) from None


def encode(function: ir.Operation) -> None:
    """Puts the encodings on the global types of a function that a Materializer has prepared."""
    types = function_type(function)
    boundary = []
    for side, declared in (("arg_attrs", types.inputs), ("res_attrs", types.results)):
        lists = _boundary_lists(function, side, list(declared))
        boundary.append([encoded(type_, held) for type_, held in zip(declared, lists, strict=True)])
        kept = [{name: entry[name] for name in entry.keys() - _BOUNDARY} for entry in entries(function, side)]
        set_entries(function, side, kept)
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*boundary))
    for argument, type_ in zip(function.regions[0].blocks[0].arguments, boundary[0], strict=True):
        argument.set_type(type_)
    for op in list(walk(function))[1:]:
        if RESULT_SPLIT not in op.attributes:
            continue
        for result, entry in zip(op.results, ir.ArrayAttr(op.attributes[RESULT_SPLIT]), strict=True):
            result.set_type(encoded(result.type, trimmed(attributes.axis_array(entry))))
        del op.attributes[RESULT_SPLIT]
        if op.name in CONSTANTS:
            retype_constant(op, op.results[0].type)
        if op.name == "mhlo.while":
            for region in op.regions:
                for argument, result in zip(region.blocks[0].arguments, op.results, strict=True):
                    argument.set_type(result.type)


def _tag(lists: list[Split]) -> dict[str, ir.Attribute]:
    return {RESULT_SPLIT: ir.ArrayAttr.get([attributes.axis_array_attr(entry) for entry in lists])} if any(lists) else {}


_Written = tuple[str, dict[str, ir.Attribute], Split]
"""The RFC's name and attributes of a collective, and the sharding of its result."""


def _at(lists: Split, dim: int, axes: Axes) -> Split:
    return (*lists[:dim], axes, *lists[dim + 1 :])


def _split(lists: Split, dim: int, axes: Axes) -> Split:
    return _at(lists, dim, (*lists[dim], *axes))


def _joined(lists: Split, dim: int, axes: Axes) -> Split:
    kept = len(lists[dim]) - len(axes)
    if kept < 0 or lists[dim][kept:] != axes:
        rule = f"joins dimension {dim} along {list(axes)}, but its operand is split along {list(lists[dim])}"
        raise ValueError(rule)
    return _at(lists, dim, lists[dim][:kept])


def _reduced(lists: Split, axes: Axes) -> Split:
    if not set(axes) <= set(lists[-1]):
        raise ValueError(f"reduces along {list(axes)}, but its operand is partial along {list(lists[-1])}")
    return (*lists[:-1], tuple(axis for axis in lists[-1] if axis not in axes))


def _all_gather(op: ir.Operation, lists: Split) -> _Written:
    view = AllGatherOp(op)
    dim, axes = view.gather_axis, view.mesh_axes
    attrs: dict[str, ir.Attribute] = {"mesh_axis": arrays((*((),) * dim, axes)), "tensor_axis": array((dim,))}
    return "mesh.all_gather", attrs, _joined(lists, dim, axes)


def _all_slice(op: ir.Operation, lists: Split) -> _Written:
    view = AllSliceOp(op)
    dim, axes = view.slice_axis, view.mesh_axes
    return "mesh.local_split", {"sharding": arrays((*((),) * dim, axes))}, _split(lists, dim, axes)


def _reduction(view: CollectiveOpView) -> dict[str, ir.Attribute]:
    return {"mesh_axis": array(view.mesh_axes), "reduction": ir.StringAttr.get(view.reduction)}


def _all_reduce(op: ir.Operation, lists: Split) -> _Written:
    view = AllReduceOp(op)
    return "mesh.all_reduce", _reduction(view), _reduced(lists, view.mesh_axes)


def _reduce_scatter(op: ir.Operation, lists: Split) -> _Written:
    view = ReduceScatterOp(op)
    attrs = _reduction(view) | {"tensor_axis": integer(view.scatter_axis)}
    return "mesh.reduce_scatter", attrs, _split(_reduced(lists, view.mesh_axes), view.scatter_axis, view.mesh_axes)


def _all_to_all(op: ir.Operation, lists: Split) -> _Written:
    view = AllToAllOp(op)
    numbers = {"split_axis": integer(view.split_axis), "concat_axis": integer(view.concat_axis)}
    attrs: dict[str, ir.Attribute] = {"sharding": array(view.mesh_axes), **numbers}
    held = _joined(lists, view.concat_axis, view.mesh_axes)
    return "mesh.all_to_all", attrs, _split(held, view.split_axis, view.mesh_axes)


_COLLECTIVES: dict[str, Callable[[ir.Operation, Split], _Written]] = {
    AllGatherOp.OPERATION_NAME: _all_gather,
    AllSliceOp.OPERATION_NAME: _all_slice,
    AllReduceOp.OPERATION_NAME: _all_reduce,
    ReduceScatterOp.OPERATION_NAME: _reduce_scatter,
    AllToAllOp.OPERATION_NAME: _all_to_all,
}
"""By name, what the RFC has instead of a collective whose operand has these split and partial axes."""
