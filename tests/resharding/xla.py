"""Runs emitted plans with XLA on virtual devices: one partition a device, local shapes in and out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from meshbridge.dialect import build
from meshbridge.mlir import context, func
from meshbridge.passes.lower_collectives import LowerCollectives
from meshbridge.resharding import Plan, emit

Array = np.ndarray[Any, Any]


def program(plan: Plan) -> ir.Module:
    """A module whose `main` takes the source shard and returns the target shard."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), plan.mesh.size)
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


@cache
def client() -> Any:
    return jax.devices("cpu")[0].client


def compiled(plan: Plan) -> Any:
    """The loaded executable of the lowered program."""
    from jax._src.lib import xla_client

    module = program(plan)
    LowerCollectives().run(module)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, plan.mesh.size
    options.executable_build_options.num_partitions = plan.mesh.size
    options.executable_build_options.use_spmd_partitioning = False
    devices = client().devices()[: plan.mesh.size]
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(plan.mesh.size).reshape(1, -1))
    with module.context:
        return client().compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)


def run_on_xla(plan: Plan, buffers: list[Array]) -> list[Array]:
    """What every device, in row-major order of the mesh, holds afterwards."""
    executable = compiled(plan)
    order = plan.mesh.ordered_devices()
    by_partition = {partition: buffer for partition, buffer in zip(order, buffers, strict=True)}
    devices = client().devices()
    arrays = [jax.device_put(by_partition[p], devices[p]) for p in range(plan.mesh.size)]
    sharded = jax.make_array_from_single_device_arrays(
        (plan.mesh.size * arrays[0].shape[0], *arrays[0].shape[1:]),
        jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(devices[: plan.mesh.size]), ("x",)), jax.sharding.PartitionSpec("x")),
        arrays,
    )
    (result,) = executable.execute_sharded([sharded]).disassemble_into_single_device_arrays()
    return [np.asarray(result[p]) for p in order]
