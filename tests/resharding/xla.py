"""Runs emitted plans with XLA on virtual devices: one partition a device, local shapes in and out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import sharding as jax_sharding
from jaxlib.mlir import ir

from meshbridge.dialect import build
from meshbridge.ir.mlir import context, func
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.resharding import ReshardingPlan, emit
from meshbridge.runtime import xla

Array = np.ndarray[Any, Any]


def program(plan: ReshardingPlan) -> ir.Module:
    """A module whose `main` takes the source shard and returns the target shard."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), plan.mesh.size)
        with ir.InsertionPoint(module.body):
            build.mesh(plan.mesh)
            element = ir.Type.parse(plan.dtype)
            main = func.FuncOp("main", ([ir.RankedTensorType.get(list(plan.start), element)], []))
        entry = main.add_entry_block()
        with ir.InsertionPoint(entry):
            result = emit(plan, entry.arguments[0], plan.mesh)
            func.ReturnOp([result])
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([entry.arguments[0].type], [result.type]))
        assert module.operation.verify()
        return module


def compiled(plan: ReshardingPlan) -> xla.Loaded:
    """The lowered program as XLA has compiled it."""
    module = program(plan)
    LowerCollectives(form="local").run(module)
    for op in list(module.body.operations):
        if op.operation.name == "mesh.mesh":  # a declaration, which XLA does not know
            op.operation.erase()
    return xla.compile_module(module, jax.devices("cpu")[: plan.mesh.size])


def run_on_xla(plan: ReshardingPlan, buffers: list[Array]) -> list[Array]:
    """What every device, in row-major order of the mesh, holds afterwards."""
    order = plan.mesh.ordered_devices()
    devices = jax.devices("cpu")[: plan.mesh.size]
    by_replica = dict(zip(order, buffers, strict=True))
    arrays = [jax.device_put(by_replica[replica], device) for replica, device in enumerate(devices)]
    sharding = jax_sharding.NamedSharding(jax_sharding.Mesh(np.array(devices), ("x",)), jax_sharding.PartitionSpec("x"))
    stacked = jax.make_array_from_single_device_arrays((len(arrays) * arrays[0].shape[0], *arrays[0].shape[1:]), sharding, arrays)
    (result,) = compiled(plan).run([stacked])
    return [np.asarray(result[replica]) for replica in order]
