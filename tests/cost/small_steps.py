"""Small programs of products and gathers on eight devices, and what their parts take by hand."""

from __future__ import annotations

from meshbridge.cost.seconds import collective_time
from meshbridge.cost.step import PredictedStep, predict
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


def predicted(body: str, arguments: str, results: str, machine: str = GPUS) -> PredictedStep:
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


def five_iterations(carried: dict[str, tuple[str, str]], body: str, handed: str) -> str:
    """A loop that returns the first of what it `carried`: by name, what that begins as, and its type."""
    names = ", ".join(f"%{name} = %{first}" for name, (first, _) in carried.items())
    types = ", ".join(type_ for _, type_ in carried.values())
    return f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:{len(carried) + 1} = stablehlo.while(%i = %zero, {names}) : tensor<i32>, {types}
  cond {{
    %most = stablehlo.constant dense<5> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    {body}
    stablehlo.return %next, {handed} : tensor<i32>, {types}
  }}
  return %0#1 : {next(iter(carried.values()))[1]}
"""
