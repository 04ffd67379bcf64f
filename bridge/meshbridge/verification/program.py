"""A module at any stage as a function of global arrays: the shardings of its arguments and results, and its devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from meshbridge.ir.mlir import MeshError, OpError, function_type, ir, main_function, sdy, walk, walk_all
from meshbridge.verification import (
    calls,
    collectives,
    constants,
    contractions,
    control,
    elementwise,
    indexing,
    legacy_ops,
    manual,
    mesh_ops,
    movement,
    ordering,
    ragged,
    random_bits,
    reductions,
    scalars,
    windows,
)
from meshbridge.verification.field import PRIMES, Array, Field
from meshbridge.verification.inputs import draw
from meshbridge.verification.layout import (
    DeviceMesh,
    Dims,
    axis_lists,
    cut,
    dims_of_sharding,
    join,
    mesh_named,
    mesh_of,
    pieces,
    shard_shape,
)
from meshbridge.verification.machine import ITERATION_LIMIT, RANKS, Evaluator, Grid, Observer
from meshbridge.verification.narrow_bits import as_its_type

FAMILIES = (
    *(calls, collectives, constants, contractions, control, elementwise, indexing),
    *(manual, mesh_ops, movement, legacy_ops, ordering, ragged, random_bits, reductions, scalars, windows),
)
"""The modules that define rules; importing them fills `machine.RULES`."""


@dataclass(frozen=True)
class Port:
    """An argument or result: its global shape, its element type, and its sharding.

    HLO of one device does not contain global shapes, nor always the shardings of results: `local` is then the shape of a shard,
    and `known` tells whether `dims` are. `declared` is the sharding that a source declares.
    """

    shape: tuple[int, ...]
    element: ir.Type
    dims: Dims
    local: tuple[int, ...] | None = None
    has_dims: bool = True
    declared: Dims | None = None

    def filled_in(self, source: Port) -> Port:
        """The port with what only the source contains. Raises MeshError if the source does not contain it either."""
        if self.local is None:
            return self
        dims = self.dims
        if not self.has_dims and self.local != source.shape:
            if source.declared is None:
                raise MeshError(
                    f"error: neither program says how a tensor of shape {list(source.shape)} becomes shards of shape "
                    f"{list(self.local)}\n  hint: give arguments and results of the source shardings"
                )
            dims = source.declared
        fits = shard_shape(source.shape, dims) == self.local
        return replace(self, dims=dims, shape=source.shape if fits else self.shape)


@dataclass(frozen=True)
class Shards:
    """The devices' values of a global value, as (devices, *shard), and its sharding."""

    value: Array
    dims: Dims
    mesh: DeviceMesh


@dataclass(frozen=True)
class VerifiedProgram:
    """A module with its entry point. `mesh` is None for a program on global tensors."""

    module: ir.Module
    main: ir.Operation
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    mesh: DeviceMesh | None
    grid: Grid

    def evaluate(
        self,
        field: Field,
        inputs: Sequence[Array],
        *,
        memory: int,
        observe: Observer | None = None,
        padding: str = "",
        iteration_limit: int = ITERATION_LIMIT,
    ) -> list[Array]:
        """The global results for global inputs, each without a device dimension.

        `padding` names the random elements beyond the end of uneven shards, `iteration_limit` bounds the iterations of a loop.
        Raises MeshError for a program that cannot be evaluated, manual.ReplicaConflict if copies of a shard differ.
        """
        machine = Evaluator(self.module, field, self.grid, memory=memory, observe=observe, iteration_limit=iteration_limit)
        arguments = [self._argument(field, index, value, padding) for index, value in enumerate(inputs)]
        results = machine.run(self.main, 0, arguments)
        return [self._result(index, value) for index, value in enumerate(results)]

    def shards(self, field: Field, inputs: Sequence[Array], *, memory: int, padding: str = "") -> list[Shards | None]:
        """The devices' values of each result, if known, copies that differ included.

        `padding` is as for `evaluate`. Raises MeshError for a program that cannot be evaluated.
        """
        machine = Evaluator(self.module, field, self.grid, memory=memory, joined={})
        arguments = [self._argument(field, index, value, padding) for index, value in enumerate(inputs)]
        if self.mesh is not None:
            results = map(machine.everywhere, machine.run(self.main, 0, arguments))
            return [Shards(value, port.dims, self.mesh) for value, port in zip(results, self.outputs, strict=True)]
        with suppress(manual.ReplicaConflict):
            machine.run(self.main, 0, arguments)
        return [self._joined(machine, number) for number in range(len(self.outputs))]

    def _joined(self, machine: Evaluator, number: int) -> Shards | None:
        value = self.origin(machine, number)
        if value is None or value not in (machine.joined or {}):
            return None
        sharding = manual.sharding_of_result(machine, value.owner.operation, value.result_number)
        return Shards(machine.joined[value], *sharding) if machine.joined and sharding else None

    def origin(self, machine: Evaluator, number: int) -> ir.OpResult | None:
        """The op's result that the program returns as result `number`, through calls; None for an argument."""
        function = self.main
        while True:
            value = function.regions[0].blocks[0].operations[-1].operands[number]
            if isinstance(value.owner, ir.Block):
                return None
            result: ir.OpResult = ir.OpResult(value)  # in jaxlib 0.9 operands are plain values
            owner = value.owner.operation
            if owner.name != "func.call":
                return result
            function = machine.functions[ir.FlatSymbolRefAttr(owner.attributes["callee"]).value]
            number = result.result_number

    def results_of(self, op: ir.Operation, index: int) -> list[int]:
        """The results of the program that are result `index` of `op`."""
        if op == self.main:
            return [index]
        machine = Evaluator(self.module, Field(PRIMES[0], 0))
        origins = [self.origin(machine, number) for number in range(len(self.outputs))]
        return [number for number, value in enumerate(origins) if value is not None and value == op.results[index]]

    def manual_mesh(self) -> DeviceMesh | None:
        """The mesh of the first manual computation of a program on global tensors."""
        machine = Evaluator(self.module, Field(PRIMES[0], 0))
        return next((mesh for op in walk_all(self.module) if (mesh := manual.mesh_of_computation(machine, op))), None)

    @property
    def has_padding(self) -> bool:
        """Whether an argument has uneven shards."""
        return self.mesh is not None and any(
            size % pieces(digits) for port in self.inputs for size, digits in zip(port.shape, port.dims, strict=True)
        )

    def _argument(self, field: Field, index: int, value: Array, name: str = "") -> Array:
        if self.mesh is None:
            return np.asarray(value[None])
        port = self.inputs[index]
        local = shard_shape(port.shape, port.dims)
        padding = draw(field, f"padding {name}of argument {index}", (self.mesh.size, *local), port.element)
        return cut(value[None], port.dims, self.mesh, padding)

    def _result(self, index: int, value: Array) -> Array:
        port = self.outputs[index]
        value = as_its_type(port.element, value)
        if self.mesh is None:
            return np.asarray(value[0])
        whole, wrong = join(value, port.dims, self.mesh, port.shape)
        if wrong is not None:
            raise manual.ReplicaConflict(self.main, index, wrong)
        return np.asarray(whole[0])


COMPARING = frozenset(("stablehlo.compare", "stablehlo.maximum", "stablehlo.minimum"))


def compares_over_devices(module: ir.Module) -> bool:
    """Whether a collective takes a maximum or a minimum."""
    return any(
        op.name in ("stablehlo.all_reduce", "stablehlo.reduce_scatter") and any(below.name in COMPARING for below in walk(op))
        for op in walk_all(module)
    )


SHARDING = "sdy.sharding"
GLOBAL, MESH, SPLIT, PARTIAL = (f"meshbridge.{name}" for name in ("global", "mesh", "split_axes", "partial_axes"))


def open_program(module: ir.Module) -> VerifiedProgram:
    """Reads the shardings of the arguments and results of the entry point of `module`.

    Raises MeshError for arguments that are not tensors of static shape.
    """
    main = main_function(module)
    meshes = {
        ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
        for view in module.body.operations
        if view.operation.name in ("mesh.mesh", "sdy.mesh")
    }
    kind = function_type(main)
    sides = [_side(main, side, len(types)) for side, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results))]
    mesh = next((_mesh(entry, meshes) for entries in sides for entry in entries if entry is not None and MESH in entry), None)
    says_all = any(entry is not None and GLOBAL in entry for entries in sides for entry in entries)
    ports = [
        tuple(_port(main, type_, entry, mesh, says_all) for type_, entry in zip(types, entries, strict=True))
        for types, entries in zip((kind.inputs, kind.results), sides, strict=True)
    ]
    outputs = ports[1]
    if mesh is None:
        outputs = tuple(replace(port, declared=_declared(entry, meshes)) for port, entry in zip(outputs, sides[1], strict=True))
    return VerifiedProgram(module, main, ports[0], outputs, mesh, _grid(module, mesh))


def _side(main: ir.Operation, side: str, count: int) -> list[ir.DictAttr | None]:
    if side not in main.attributes:
        return [None] * count
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(main.attributes[side])]


def _mesh(entry: ir.DictAttr, meshes: dict[str, ir.Operation]) -> DeviceMesh:
    return mesh_of(meshes[ir.FlatSymbolRefAttr(entry[MESH]).value])


def _port(main: ir.Operation, kind: ir.Type, entry: ir.DictAttr | None, mesh: DeviceMesh | None, says_all: bool) -> Port:
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        raise OpError(main, f"has an argument or result of type {kind}", "give sizes of symbolic dimensions by --dims")
    if kind.rank > RANKS:
        text = f"has an argument or result of {kind.rank} dimensions, expected at most {RANKS} for exact evaluation"
        raise OpError(main, text, "join dimensions by a reshape")
    shape: tuple[int, ...] = tuple(kind.shape)
    if entry is not None and PARTIAL in entry:
        raise OpError(main, "has an argument or result that is unreduced, which has no exact evaluation", "reshard it inside")
    whole: Dims = ((),) * len(shape)
    if mesh is None or entry is None or SPLIT not in entry:
        return Port(shape, kind.element_type, whole, None if mesh is None or says_all else shape, has_dims=False)
    if GLOBAL in entry:
        shape = tuple(ir.RankedTensorType(ir.TypeAttr(entry[GLOBAL]).value).shape)
    split = axis_lists(entry[SPLIT])
    padded = [*split, *([] for _ in range(len(shape) - len(split)))]
    dims = tuple(tuple(mesh.digit(mesh.axes[axis][0]) for axis in axes) for axes in padded)
    if GLOBAL in entry:
        return Port(shape, kind.element_type, dims)
    largest = tuple(size * pieces(digits) for size, digits in zip(shape, dims, strict=True))
    return Port(largest, kind.element_type, dims, local=shape)


def _declared(entry: ir.DictAttr | None, meshes: dict[str, ir.Operation]) -> Dims | None:
    """The declared sharding of a source's value, on a mesh whose devices are in order."""
    if entry is None or SHARDING not in entry:
        return None
    sharding = sdy.TensorShardingAttr(entry[SHARDING])
    mesh = mesh_named(sharding.mesh_or_ref, meshes)
    return None if mesh.ids or sharding.unreduced_axes else dims_of_sharding(mesh, sharding, set(dict(mesh.axes)))


def _grid(module: ir.Module, mesh: DeviceMesh | None) -> Grid:
    """A local program numbers its devices by replica if it reads replica ids or has a collective without a channel."""
    if mesh is None:
        return Grid()
    for op in walk_all(module):
        if op.name == "stablehlo.replica_id" or (op.name in control.COMMUNICATING and "channel_handle" not in op.attributes):
            return Grid(replicas=mesh.size)
    return Grid(partitions=mesh.size)


def matched(source: VerifiedProgram, partitioned: VerifiedProgram) -> VerifiedProgram:
    """The second program, completed with what only the source contains about its arguments and results.

    Raises MeshError unless the arguments and results of both programs have the same global shapes and element types.
    """
    if len(source.inputs) == len(partitioned.inputs) and len(source.outputs) == len(partitioned.outputs):
        sides = ((source.inputs, partitioned.inputs), (source.outputs, partitioned.outputs))
        inputs, outputs = (tuple(mine.filled_in(port) for port, mine in zip(*side, strict=True)) for side in sides)
        partitioned = replace(partitioned, inputs=inputs, outputs=outputs)
    _check_alike(source, partitioned)
    return partitioned


def _check_alike(source: VerifiedProgram, partitioned: VerifiedProgram) -> None:
    for kind, ours, theirs in (
        ("argument", source.inputs, partitioned.inputs),
        ("result", source.outputs, partitioned.outputs),
    ):
        if len(ours) != len(theirs):
            raise MeshError(f"error: the source has {len(ours)} {kind}s, the partitioned program has {len(theirs)}")
        for index, (port, partitioned_port) in enumerate(zip(ours, theirs, strict=True)):
            if port.shape != partitioned_port.shape or str(port.element) != str(partitioned_port.element):
                raise MeshError(
                    f"error: {kind} {index} is {_text(port)} in the source "
                    f"and {_text(partitioned_port)} in the partitioned program"
                    + (_SHARD_HINT if _is_shard(partitioned_port, port) else "")
                )


_SHARD_HINT = (
    "\n  hint: one device's program is compared once it says how its arguments and results are sharded: "
    "mesh-spmdization=boundary writes that, and wrap-local makes a program on global shapes of it"
)


def _is_shard(port: Port, whole: Port) -> bool:
    """Whether the first could be a shard of the second, which is larger."""
    return len(port.shape) == len(whole.shape) and all(
        size and not whole_size % size for size, whole_size in zip(port.shape, whole.shape, strict=True)
    )


def _text(port: Port) -> str:
    return f"tensor<{'x'.join(map(str, (*port.shape, port.element)))}>"
