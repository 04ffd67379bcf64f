"""Runs a plan on devices, XLA's virtual ones if need be, and compares what every device holds with what it should hold."""

from __future__ import annotations

from math import prod

import numpy as np

from meshbridge import mlir, pjrt
from meshbridge.dialect import attributes, build
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_SPLIT
from meshbridge.mlir import MeshError, func, ir
from meshbridge.passes.lower_collectives import LowerCollectives
from meshbridge.resharding.emit import emit
from meshbridge.resharding.plan import Plan
from meshbridge.resharding.steps import Shape
from meshbridge.sharding import Sharding


def try_on_devices(plan: Plan) -> None:
    """Reshards a tensor of known numbers. Raises MeshError if any comes out wrong, or if there are too few devices."""
    for sharding in (plan.source, plan.target):
        if sharding.partial_axes or sharding.halo_sizes or sharding.offsets:
            raise MeshError("error: only shards without partial values, halos and offsets can be run")
    module = program(plan)
    LowerCollectives(form="local").run(module)
    executable = pjrt.compile(module)
    place = executable.inputs[0]
    whole = (np.arange(prod(plan.shape)) % 251).astype(place.dtype).reshape(plan.shape)
    (result,) = executable(whole)
    if not np.array_equal(np.asarray(result), whole):
        raise MeshError("error: the plan ran and left wrong data: this is a bug in the planner")


def program(plan: Plan) -> ir.Module:
    """The plan as the program of one device, stage 4 with the boundary attributes that say what its argument and result are."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build.mesh(plan.mesh)
            argument = _tensor(plan.start, plan)
            main = func.FuncOp("main", ([argument], []))
        block = main.operation.regions[0].blocks.append(argument, arg_locs=[ir.Location.unknown()])
        with ir.InsertionPoint(block):
            result = emit(plan, block.arguments[0], plan.mesh)
            func.ReturnOp([result])
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([argument], [result.type]))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([_boundary(plan, plan.source)])
        main.attributes["res_attrs"] = ir.ArrayAttr.get([_boundary(plan, plan.target)])
        return module


def _tensor(shape: Shape, plan: Plan) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), ir.Type.parse(plan.dtype))


def _boundary(plan: Plan, sharding: Sharding) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            BOUNDARY_GLOBAL: ir.TypeAttr.get(_tensor(plan.shape, plan)),
            BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(sharding.mesh),
            BOUNDARY_SPLIT: attributes.axis_array_attr(sharding.split_axes),
        }
    )
