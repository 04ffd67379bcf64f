"""Runs a resharding plan on devices, which may be XLA's virtual ones, and checks every device's shard."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from meshbridge import api
from meshbridge.dialect import attributes, build
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_SPLIT
from meshbridge.ir import mlir
from meshbridge.ir.builder import Builder
from meshbridge.ir.digits import axis_digits, group_index
from meshbridge.ir.mlir import MeshError, func, ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.resharding.boxes import buffer_shape, layout
from meshbridge.resharding.emit import emit
from meshbridge.resharding.plan import ReshardingPlan
from meshbridge.resharding.steps import Shape

Array = np.ndarray[Any, Any]

REDUCE: dict[str, np.ufunc] = {
    "sum": np.add,
    "average": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
"""By kind of partial value, the function that reduces it; an average is then divided."""


def try_on_devices(plan: ReshardingPlan) -> None:
    """Reshards a tensor of known numbers, with a different term on each device if the value is partial.

    Raises MeshError if any number is wrong, or if there are too few devices.
    """
    module = program(plan)
    LowerCollectives(form="local").run(module)
    executable = api.compile(module)
    terms = _terms(plan, executable.inputs[0].dtype)
    (result,) = executable(np.stack(list(_buffers(plan, terms))))
    whole = _reduce(terms, plan.source.partial_kind) if plan.source.partial_axes else terms[0]
    if not _is_right(plan, np.asarray(result), whole):
        raise MeshError("error: the plan ran and left wrong data: this is a bug in the planner")


def _terms(plan: ReshardingPlan, dtype: np.dtype[Any]) -> list[Array]:
    """One tensor for each device along the partial axes, with numbers so small that any type represents the reduction."""
    count, numbers = plan.mesh.group_size(plan.source.partial_axes), np.arange(prod(plan.shape)).reshape(plan.shape)
    if not (plan.source.partial_axes or plan.target.partial_axes):
        return [(numbers % 251).astype(dtype)]
    low, factor = (1, 1) if plan.source.partial_kind == "product" else (0, count if plan.source.partial_kind == "average" else 1)
    return [((numbers // (term + 1) % 2 + low) * factor).astype(dtype) for term in range(count)]


def _reduce(terms: list[Array], kind: str) -> Array:
    whole: Array = REDUCE[kind].reduce(terms, dtype=terms[0].dtype)
    return (whole / len(terms)).astype(whole.dtype) if kind == "average" else whole


def _buffers(plan: ReshardingPlan, terms: list[Array]) -> Iterator[Array]:
    """The local buffer of every device under the source sharding, filled with ones outside the shard."""
    digits = axis_digits(plan.mesh, plan.source.partial_axes)
    for device in range(plan.mesh.size):
        in_buffer, in_tensor = _box(plan.shape, plan.mesh, plan.source, device)
        buffer = np.ones(plan.start, terms[0].dtype)
        buffer[in_buffer] = terms[group_index(digits, device)][in_tensor]
        yield buffer


def _is_right(plan: ReshardingPlan, buffers: Array, whole: Array) -> bool:
    """True if the buffers of every group along the target's partial axes reduce to the shard of `whole`."""
    axes, kind = plan.target.partial_axes, plan.target.partial_kind
    digits = axis_digits(plan.mesh, axes)
    groups: dict[int, list[int]] = {}
    for device in range(plan.mesh.size):
        groups.setdefault(device - sum(digit.of(device) * digit.stride for digit in digits), []).append(device)
    for leader, group in groups.items():
        in_buffer, in_tensor = _box(plan.shape, plan.mesh, plan.target, leader)
        value = _reduce([buffers[device][in_buffer] for device in group], kind) if axes else buffers[leader][in_buffer]
        if not _is_equal(value, whole[in_tensor], "average" in (kind, plan.source.partial_kind)):
            return False
    return True


def _is_equal(actual: Array, wanted: Array, rounded: bool) -> bool:
    """True if all numbers are equal; if `rounded`, integers up to the rounding of XLA's division."""
    if not rounded:
        return np.array_equal(actual, wanted)
    return bool((np.abs(actual.astype(np.complex128) - wanted.astype(np.complex128)) < 0.1).all())


def _box(shape: Shape, mesh: Mesh, sharding: Sharding, device: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """A device's shard, as slices of its buffer and of the global tensor."""
    in_buffer, in_tensor = [], []
    for dim in layout(shape, mesh, sharding):
        block = group_index(axis_digits(mesh, dim.axes), device)
        start, stop = dim.kept[block]
        in_buffer.append(slice(start - dim.origin[block], stop - dim.origin[block]))
        in_tensor.append(slice(start, stop))
    return tuple(in_buffer), tuple(in_tensor)


def program(plan: ReshardingPlan) -> ir.Module:
    """The plan as one device's program: its argument and result are local buffers with a leading dimension of size 1, along which
    the buffers of all devices form one tensor."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build.mesh(plan.mesh)
            argument = _tensor((1, *plan.start), plan)
            main = func.FuncOp("main", ([argument], []))
        block = main.operation.regions[0].blocks.append(argument, arg_locs=[ir.Location.unknown()])
        end = buffer_shape(plan.shape, plan.mesh, plan.target)
        with ir.InsertionPoint(block) as ip:
            at = Builder(ir.Location.current, ip)
            result = emit(plan, at.reshape(block.arguments[0], plan.start), plan.mesh, at)
            func.ReturnOp([at.reshape(result, (1, *end))])
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([argument], [_tensor((1, *end), plan)]))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([_boundary(plan, plan.start)])
        main.attributes["res_attrs"] = ir.ArrayAttr.get([_boundary(plan, end)])
        return module


def _tensor(shape: Shape, plan: ReshardingPlan) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), ir.Type.parse(plan.dtype))


def _boundary(plan: ReshardingPlan, local: Shape) -> ir.DictAttr:
    """The attributes of the tensor of all devices' buffers, one after the other."""
    every: Axes = tuple(range(plan.mesh.rank))
    return ir.DictAttr.get(
        {
            BOUNDARY_GLOBAL: ir.TypeAttr.get(_tensor((plan.mesh.size, *local), plan)),
            BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(plan.mesh.name),
            BOUNDARY_SPLIT: attributes.axis_array_attr((every, *((),) * len(local))),
        }
    )
