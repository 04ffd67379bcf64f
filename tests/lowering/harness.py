"""Builds, lowers and runs small programs of mesh operations on 8 virtual devices.

A `Case` is one function body on local shapes. Many cases of meshes with equally many devices become one program: XLA compiles it
once. Arguments and results are `simulator.Values`; inside, argument k of all devices is one array, stacked along dimension 0.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, sdy, stablehlo
from meshbridge.ir.sharding import Mesh
from meshbridge.lowering.lower_collectives import LowerCollectives
from tests.simulator import Values, devices

ELEMENTS = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(jax.numpy.bfloat16),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "ui8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
    "complex<f32>": np.dtype(np.complex64),
}
"""MLIR element type to numpy's."""


def tensor_text(shape: Sequence[int], element: str) -> str:
    """`tensor<2x3xf32>`."""
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


@dataclass(frozen=True)
class Case:
    """One body. In `lines`, `$0`, `$1`, … are the arguments, `@mesh` the mesh and names like `%_x` the body's own."""

    mesh: Mesh
    arguments: tuple[Values, ...]
    lines: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    """(value, type) of each result; of rank 1 at least."""

    def written(self, text: str, number: int, first_argument: int) -> str:
        """`text` with names that are unique in the program."""
        for position in reversed(range(len(self.arguments))):
            text = text.replace(f"${position}", f"%arg{first_argument + position}")
        return text.replace("@mesh", f"@{self.mesh.name}").replace("%_", f"%v{number}_")


def _as_it_is(module: ir.Module) -> None:
    """Changes nothing."""


def run(
    cases: Sequence[Case], *, form: str = "local", first: Callable[[ir.Module], None] = _as_it_is, **options: Any
) -> list[list[Values]]:
    """Lowers and runs all cases in one program; their meshes must have equally many devices. Per case, its results.

    `form` is an output form of the lowering, or `interpreted`: the local one in StableHLO's interpreter. What comes `first`
    may change the program before it is lowered.
    """
    program = _Program.of(cases)
    if form == "exported" and program.size > 1:  # on one device nothing is manual, see wrap-local
        module = lowered(program.exported_text(), LowerCollectives(form="exported", **options), first)
        return program.results(run_exported(module, program.stacked(by="position"), program.size), by="position")
    module = lowered(program.local_text(), LowerCollectives(form="local", **options), first)
    execute = run_interpreted if form == "interpreted" else run_local
    return program.results(execute(module, program.stacked(by="device"), program.size), by="device")


def lowered(text: str, lowering: LowerCollectives, first: Callable[[ir.Module], None] = _as_it_is) -> ir.Module:
    """Parses and lowers; then drops the mesh declarations, which XLA cannot read."""
    module = mlir.parse(text, "case.mlir", mlir.context())
    first(module)
    lowering.run(module)
    for op in list(module.body.operations):
        if op.operation.name == "mesh.mesh":
            op.operation.erase()
    assert module.operation.verify()
    return module


@dataclass(frozen=True)
class _Program:
    cases: tuple[Case, ...]
    size: int

    @staticmethod
    def of(cases: Sequence[Case]) -> _Program:
        sizes = {case.mesh.size for case in cases}
        assert len(sizes) == 1, sizes
        return _Program(tuple(cases), sizes.pop())

    def declarations(self) -> str:
        return "\n".join(dict.fromkeys(_declaration(case.mesh) for case in self.cases))

    def arguments(self) -> list[tuple[Case, Values]]:
        return [(case, argument) for case in self.cases for argument in case.arguments]

    def argument_types(self) -> list[str]:
        return [_type_of(next(iter(values.values()))) for _, values in self.arguments()]

    def result_types(self) -> list[str]:
        return [type_ for case in self.cases for _, type_ in case.results]

    def body(self) -> tuple[list[str], list[str]]:
        """All lines and all returned values."""
        lines, returned, argument = [], [], 0
        for number, case in enumerate(self.cases):
            lines += [case.written(line, number, argument) for line in case.lines]
            returned += [case.written(value, number, argument) for value, _ in case.results]
            argument += len(case.arguments)
        return lines, returned

    def local_text(self) -> str:
        lines, returned = self.body()
        arguments = ", ".join(f"%arg{k}: {type_}" for k, type_ in enumerate(self.argument_types()))
        results = ", ".join(self.result_types())
        body = "\n".join([*lines, f"return {', '.join(returned)} : {results}"])
        return (
            f"module @cases attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {self.size} : i32}} {{\n"
            f"{self.declarations()}\nfunc.func public @main({arguments}) -> ({results}) {{\n{body}\n}}\n}}"
        )

    def exported_text(self) -> str:
        """The body under one `sdy.manual_computation`, dimension 0 of everything split over all devices.

        One program has one device order here: that of its first mesh.
        """
        lines, returned = self.body()
        types, results = self.argument_types(), self.result_types()
        mesh = self.cases[0].mesh
        assert {case.mesh.device_ids for case in self.cases} == {mesh.device_ids}
        ids = f", device_ids=[{', '.join(map(str, mesh.device_ids))}]" if mesh.device_ids else ""
        axes = ", ".join(f'"{axis}"' for axis in range(mesh.rank))
        sizes = ", ".join(f'"{axis}"={size}' for axis, size in enumerate(mesh.shape))

        def split(type_: str) -> str:
            return f"<@all, [{{{axes}}}{', {}' * (_rank(type_) - 1)}]>"

        def annotated(type_: str) -> str:
            return f"{_stacked_type(type_, self.size)} {{sdy.sharding = #sdy.sharding{split(type_)}}}"

        whole = [_stacked_type(type_, self.size) for type_ in types]
        whole_results = [_stacked_type(type_, self.size) for type_ in results]
        head = (
            f"%out:{len(results)} = sdy.manual_computation({', '.join(f'%in{k}' for k in range(len(types)))})"
            f" in_shardings=[{', '.join(map(split, types))}]"
            f" out_shardings=[{', '.join(map(split, results))}]"
            f" manual_axes={{{axes}}} ({', '.join(f'%arg{k}: {type_}' for k, type_ in enumerate(types))}) {{"
        )
        tail = [
            f"sdy.return {', '.join(returned)} : {', '.join(results)}",
            f"}} : ({', '.join(whole)}) -> ({', '.join(whole_results)})",
            f"return {', '.join(f'%out#{k}' for k in range(len(results)))} : {', '.join(whole_results)}",
        ]
        body = "\n".join([head, *lines, *tail])
        return (
            f"module @cases attributes {{mhlo.num_partitions = {self.size} : i32, mhlo.num_replicas = 1 : i32}} {{\n"
            f"sdy.mesh @all = <[{sizes}]{ids}>\n{self.declarations()}\n"
            f"func.func public @main({', '.join(f'%in{k}: {annotated(type_)}' for k, type_ in enumerate(types))})"
            f" -> ({', '.join(map(annotated, results))}) {{\n{body}\n}}\n}}"
        )

    def stacked(self, by: str) -> list[np.ndarray]:
        """Per argument, the arrays of all devices in the order of their logical numbers or of their positions in the mesh."""
        return [np.stack([values[index] for index in _order(case.mesh, by)]) for case, values in self.arguments()]

    def results(self, outputs: list[np.ndarray], by: str) -> list[list[Values]]:
        remaining = iter(outputs)
        return [[dict(zip(_order(case.mesh, by), next(remaining), strict=True)) for _ in case.results] for case in self.cases]


def _order(mesh: Mesh, by: str) -> list[tuple[int, ...]]:
    places = devices(mesh.shape)
    if by == "position" or not mesh.device_ids:
        return places
    return [places[mesh.device_ids.index(number)] for number in range(mesh.size)]


def _declaration(mesh: Mesh) -> str:
    ids = f", meshbridge.device_ids = array<i64: {', '.join(map(str, mesh.device_ids))}>" if mesh.device_ids else ""
    shape = ", ".join(map(str, mesh.shape))
    return f'"mesh.mesh"() {{sym_name = "{mesh.name}", shape = array<i64: {shape}>{ids}}} : () -> ()'


def _type_of(array: np.ndarray) -> str:
    element = next(text for text, dtype in ELEMENTS.items() if dtype == array.dtype)
    return tensor_text(array.shape, element)


def _rank(type_: str) -> int:
    return sum(part.isdigit() for part in type_.removeprefix("tensor<").split("x"))


def _stacked_type(type_: str, count: int) -> str:
    first, rest = type_.removeprefix("tensor<").split("x", 1)
    return f"tensor<{int(first) * count}x{rest}"


def run_local(module: ir.Module, arguments: list[np.ndarray], size: int) -> list[np.ndarray]:
    """Runs a module on `size` replicas; entry k of each argument goes to replica k, and results come back stacked like that."""
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = size, 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(size).reshape(size, 1))
    return _execute(module, arguments, options, size)


def run_exported(module: ir.Module, arguments: list[np.ndarray], size: int) -> list[np.ndarray]:
    """Runs a module whose body is a manual computation on `size` partitions, arguments given by position in its mesh."""
    sdy_mesh = next(op.operation for op in module.body.operations if op.operation.name == "sdy.mesh")
    order = list(sdy.MeshAttr(sdy_mesh.attributes["mesh"]).device_ids) or list(range(size))
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, size
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(size).reshape(1, size))
    by_partition = [argument[np.argsort(order)] for argument in arguments]
    return [output[order] for output in _execute(module, by_partition, options, size)]


def run_interpreted(module: ir.Module, arguments: list[np.ndarray], size: int) -> list[np.ndarray]:
    """Runs a local module in StableHLO's reference interpreter, which shares nothing with XLA. 32-bit numbers only."""
    main = mlir.main_function(module)
    type_ = mlir.function_type(main)
    main.attributes["sym_name"] = ir.StringAttr.get("device", module.context)
    inputs = [f"%a{device}_{k}: {each}" for device in range(size) for k, each in enumerate(type_.inputs)]
    names = ", ".join(each.split(":")[0] for each in inputs)
    types = ", ".join(str(each) for _ in range(size) for each in type_.inputs)
    results = ", ".join(str(each) for _ in range(size) for each in type_.results)
    count, programs = size * len(type_.results), ", ".join(["[@device]"] * size)
    text = (
        f"func.func @main({', '.join(inputs)}) -> ({results}) {{\n"
        f'%r:{count} = "interpreter.run_parallel"({names}) {{programs = [{programs}]}} : ({types}) -> ({results})\n'
        f"return {', '.join(f'%r#{k}' for k in range(count))} : {results}\n}}"
    )
    stablehlo.register_interpreter_dialect(module.context)
    with module.context:
        whole = ir.Module.parse(str(module).rstrip().removesuffix("}") + text + "\n}")
        operands = [ir.DenseElementsAttr.get(argument[device]) for device in range(size) for argument in arguments]
        outputs = [np.array(each) for each in stablehlo.eval_module(whole, operands)]
    per_device = [outputs[device * len(type_.results) : (device + 1) * len(type_.results)] for device in range(size)]
    return [np.stack([each[k] for each in per_device]) for k in range(len(type_.results))]


def _execute(module: ir.Module, arguments: list[np.ndarray], options: xla_client.CompileOptions, size: int) -> list[np.ndarray]:
    hardware = jax.devices()[:size]
    built = options.executable_build_options
    built.num_replicas, built.num_partitions = options.num_replicas, options.num_partitions
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    client = hardware[0].client
    executable = client.compile_and_load(bytecode.getvalue(), xla_client.DeviceList(tuple(hardware)), options)
    sharding = NamedSharding(jax.sharding.Mesh(np.array(hardware), ("d",)), PartitionSpec("d"))
    arrays = [
        jax.make_array_from_single_device_arrays(
            (size * pieces.shape[1], *pieces.shape[2:]),
            sharding,
            [jax.device_put(piece, device) for piece, device in zip(pieces, hardware, strict=True)],
        )
        for pieces in arguments
    ]
    outputs = executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [np.stack([np.asarray(piece) for piece in pieces]) for pieces in outputs]
