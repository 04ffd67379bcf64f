"""Small programs of products and gathers on eight devices, and what their parts take by hand."""

from __future__ import annotations

from meshbridge.cost.seconds import collective_time
from meshbridge.cost.step import Step, predict
from meshbridge.dialect import assembly
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.mlir import context, ir
from meshbridge.machines.layout import place
from meshbridge.machines.target import of_machine

GPUS = "h100:1x1x8"
SIZE = 4096
TENSOR = f"tensor<{SIZE}x{SIZE}xbf16>"
SHARD = f"tensor<{SIZE // 8}x{SIZE}xbf16>"
BYTES = 2.0 * SIZE * SIZE
GPU = of_machine(GPUS).machine
PRODUCT = GPU.kernel_launch + 2 * SIZE**3 / (GPU.efficiency * GPU.flops["bf16"])


def moving(passes: float, kernels: int = 1, machine: str = GPUS) -> float:
    """Seconds in which so many tensors are read or written, in that many kernels."""
    device = of_machine(machine).machine
    return kernels * device.kernel_launch + passes * BYTES / (device.efficiency * device.memory_bandwidth)


def read(body: str, arguments: str, results: str) -> ir.Module:
    text = f"mesh.mesh @m(shape = 8)\nfunc.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n"
    return assembly.read(text, "step.mlir", context())


def predicted(body: str, arguments: str, results: str, machine: str = GPUS) -> Step:
    module = read(body, arguments, results)
    return predict(module, of_machine(machine))


def gathered(machine: str = GPUS) -> float:
    """Seconds of the all-gather of a tensor."""
    (mesh,) = declared_meshes(read(f"return %a : {TENSOR}", f"%a: {TENSOR}", TENSOR).body).values()
    return collective_time("all_gather", BYTES / 8, (0,), place(mesh, of_machine(machine))).seconds


def product(name: str, left: str, right: str) -> str:
    return f"%{name} = stablehlo.dot_general %{left}, %{right}, contracting_dims = [1] x [0] : ({TENSOR}, {TENSOR}) -> {TENSOR}\n"


def gather(name: str, shard: str) -> str:
    return f"%{name} = mesh.all_gather %{shard} on @m mesh_axes = [0] gather_axis = 0 : {SHARD} -> {TENSOR}\n"
