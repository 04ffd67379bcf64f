"""Compiles a local program with the PJRT client that JAX holds, and runs it on global arrays.

A local program is the output of `lower-collectives{form=local}`: `main` on the shapes of one device's shards, devices as XLA
replicas, and on every argument and result the global type, the mesh and the axes that split it (BOUNDARY). The device at
row-major position p of the mesh is replica `device_ids[p]`; replica r runs on the r-th of the given devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from meshbridge.dialect import ops
from meshbridge.dialect.boundary import read_boundary
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_PARTIAL, BOUNDARY_SPLIT
from meshbridge.ir import mlir
from meshbridge.ir.elements import DTYPES
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.sharding import Axes, Mesh, Split
from meshbridge.ir.subaxes import whole_split
from meshbridge.machines.machine import OptionValue
from meshbridge.ops.unsupported import is_callback
from meshbridge.read import formats
from meshbridge.runtime import processes, xla
from meshbridge.text import counted

BOUNDARY = (BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_SPLIT, BOUNDARY_PARTIAL)
"""Attributes of the arguments and results of a local program: type before partitioning, mesh symbol, axes per dimension, and axes
along which devices hold terms of a sum."""


MEMORY_KIND = "mhlo.memory_kind"
"""Attribute of an argument or result: the kind of memory in which the caller keeps it."""


@dataclass(frozen=True)
class ShardedPort:
    """One argument or result: its global shape, its shards' shape, and its sharding."""

    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    split: Split
    partial: Axes = ()
    "The axes along which devices hold the terms of a sum: JAX's `unreduced`."
    memory: str | None = None
    "The kind of memory that the program asks for."

    def fitted(self, label: str, argument: Any) -> Any:
        """`argument`, which diagnostics call by its label, as an array of this shape and type; Python's numbers become one.

        Raises MeshError for anything that is not such an array, and for a number that the type does not hold.
        """
        if isinstance(argument, _NUMBERS) and not self.shape and self._widens(argument):
            try:
                return np.asarray(argument, self.dtype)
            except OverflowError:
                raise MeshError(f"error: {label}: {argument} does not fit in {self.dtype.name}") from None
        description = _described(argument)
        if description != f"{self.dtype.name}{list(self.shape)}":
            raise MeshError(f"error: {label}: expected {self.dtype.name}{list(self.shape)}, found {description}")
        return argument

    def _widens(self, number: complex) -> bool:
        """Whether a Python number converts to this type without losing its kind, as in JAX."""
        kinds: tuple[Any, ...] = (np.bool_, np.integer, np.floating, np.complexfloating)
        own = next(rank for rank, kind in enumerate(kinds) if jax.numpy.issubdtype(self.dtype, kind))
        return own >= _NUMBERS.index(type(number)) and (own > 0) == (type(number) is not bool)

    def padded_shape(self, mesh: Mesh) -> tuple[int, ...]:
        """The global shape rounded up to whole shards."""
        return tuple(size * mesh.group_size(axes) for size, axes in zip(self.shard_shape, self.split, strict=True))

    def in_parts(self, mesh: Mesh) -> bool:
        """Whether it is split along a sub-axis, which a PartitionSpec cannot name."""
        axes = (*self.split, tuple(sorted(self.partial)))
        return whole_split(mesh, axes) != axes

    def spec(self, mesh: Mesh) -> PartitionSpec:
        """The split as JAX writes it, by names of mesh axes, or of sub-axes if it is `in_parts`."""
        in_parts = self.in_parts(mesh)
        *names, unreduced = (
            tuple(map(mesh.axis_name, axes)) if in_parts else mesh.labels(axes) for axes in (*self.split, self.partial)
        )
        return PartitionSpec(*(entry or None for entry in names), unreduced=set(unreduced))


def _without_terms(spec: PartitionSpec) -> PartitionSpec:
    """The same split of whole values."""
    return PartitionSpec(*getattr(spec, "partitions", spec))  # jax 0.12 iterates over no spec that has unreduced axes


_NUMBERS = (bool, int, float, complex)
"""Python's numbers, each of which contains those before it."""


def _described(argument: Any) -> str:
    """The type and shape of an array as diagnostics write them, `float32[8, 4]`; the class of anything else."""
    shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
    try:
        return f"{np.dtype(dtype).name}{list(shape)}" if shape is not None and dtype is not None else type(argument).__name__
    except TypeError:  # a type of JAX's own, such as that of keys, or of another library
        return f"{dtype}{list(shape or ())}"


def check_number(ports: Sequence[ShardedPort], arguments: Sequence[Any]) -> None:
    """Raises MeshError for another number of arguments than the program's."""
    if len(arguments) != len(ports):
        raise MeshError(f"error: the program takes {len(ports)} arguments, {len(arguments)} given")


@dataclass(frozen=True, eq=False)  # jax.jit hashes what it is given
class Executable:
    """A compiled local program. Call it like the JAX function that it came from, or with one global array per argument."""

    mesh: Mesh
    inputs: tuple[ShardedPort, ...]
    outputs: tuple[ShardedPort, ...]
    loaded: xla.Loaded
    calling: formats.Calling | None = None
    """The trees, typed keys and dropped arguments of the JAX function; None for a bare module."""

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.named_axes)
        return (
            f"<Executable: {counted(len(self.inputs), 'argument')}, {counted(len(self.outputs), 'result')}, on the mesh {axes}>"
        )

    @cached_property
    def jax_mesh(self) -> jax.sharding.Mesh:
        """The devices in mesh order, axes by the user's names."""
        return self._mesh_of(self.mesh.named_axes)

    @cached_property
    def _mesh_of_parts(self) -> jax.sharding.Mesh:
        """The mesh with sub-axes as axes."""
        return self._mesh_of([(self.mesh.axis_name(axis), size) for axis, size in enumerate(self.mesh.shape)])

    def _mesh_for(self, port: ShardedPort) -> jax.sharding.Mesh:
        return self._mesh_of_parts if port.in_parts(self.mesh) else self.jax_mesh

    def _mesh_of(self, axes: Sequence[tuple[str, int]]) -> jax.sharding.Mesh:
        in_order = np.empty(self.mesh.size, dtype=object)
        for position, device in enumerate(self.mesh.ordered_devices()):
            in_order[position] = self.loaded.devices[device]
        kinds = tuple(AxisType.Explicit if name in self._unreduced else AxisType.Auto for name, _ in axes)
        return jax.sharding.Mesh(in_order.reshape([size for _, size in axes]), [name for name, _ in axes], axis_types=kinds)

    @cached_property
    def _unreduced(self) -> set[str]:
        """The axes that must be explicit in JAX, since devices along them hold terms of a sum."""
        partial = {axis for port in (*self.inputs, *self.outputs) for axis in port.partial}
        return {self.mesh.axis_name(axis) for axis in partial} | set(self.mesh.labels(sorted(partial)))

    def sharding(self, port: ShardedPort) -> NamedSharding:
        """The sharding of an argument or result. PartitionSpecs name whole axes: one that is split along the sub-axis `"x":(1)2`
        is on a mesh whose axes are sub-axes, with the names `x:(1)2` and so on."""
        return NamedSharding(self._mesh_for(port), port.spec(self.mesh), memory_kind=port.memory)

    def hlo_text(self) -> str:
        """The optimised HLO, as XLA runs it."""
        return self.loaded.hlo_text()

    def as_text(self) -> str:
        """The optimised HLO, under the name that `jax.stages.Compiled` has for it."""
        return self.hlo_text()

    def memory_analysis(self) -> Any:
        """XLA's `CompiledMemoryStats`, as from a `jax.stages.Compiled`: bytes of a device."""
        return self.loaded.memory

    def cost_analysis(self) -> dict[str, float]:
        """XLA's estimates for one device's program, by its own names (`flops`), as from a `jax.stages.Compiled`."""
        return self.loaded.cost

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs on global arrays of numpy or JAX. Returns global `jax.Array`s with the program's shardings, in the tree of the JAX
        function that the program came from, or in a list for a bare module.

        Inside a function that JAX traces, the call becomes part of that function. A result with uneven shards is returned without
        its padding, in a sharding of JAX's choice. Raises MeshError for arguments of the wrong number, structure, shape or type,
        and for a result that XLA leaves in another memory than the program's.
        """
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return self._trace(arguments, named)
        if self.calling is not None:
            return self.calling.unflatten(self.run(self.calling.flatten(arguments, named), self.calling.labels()))
        if named:
            raise MeshError(f"error: the arguments of a module have no names, found {', '.join(named)}")
        return self.run(arguments, [f"argument {index}" for index in range(len(arguments))])

    def run(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array]:
        """Runs on global arrays, called by `labels` in diagnostics. Raises MeshError as a call does."""
        check_number(self.inputs, arguments)
        fitted = [port.fitted(label, argument) for port, label, argument in zip(self.inputs, labels, arguments, strict=True)]
        if len(processes.of(self.loaded.devices)) > 1:
            fitted = [value if _is_spread(value) else np.asarray(value) for value in fitted]
            own_values = {label: value for label, value in zip(labels, fitted, strict=True) if not _is_spread(value)}
            processes.require_same_values(own_values, self.loaded.devices)
        sharded = [self._shard(*entry) for entry in zip(self.inputs, labels, fitted, strict=True)]
        return [self._join(port, shards) for port, shards in zip(self.outputs, self.loaded.run(sharded), strict=True)]

    def _trace(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The call inside a function that JAX traces, on this executable's devices."""
        if self.calling is None:
            hint = "compile a jax.export.Exported, or a jitted function with its arguments"
            raise MeshError(f"error: an executable of a bare module cannot be part of a function that JAX traces\n  hint: {hint}")
        return self.calling.trace(arguments, named, [self.sharding(port) for port in self.inputs])

    def _shard(self, port: ShardedPort, label: str, argument: Any) -> jax.Array:
        target = self.sharding(port)
        if _is_spread(argument) and argument.sharding.device_set != target.device_set:
            has, takes = (_described_devices(sharding.device_set) for sharding in (argument.sharding, target))
            hint = "compile for the devices that arrays are on, with devices="
            raise MeshError(f"error: {label}: the array is on {has}, expected {takes}\n  hint: {hint}")
        # Without this JAX would silently make 32-bit numbers of 64-bit ones.
        with jax.enable_x64(True):
            padded = _padded(argument, port.padded_shape(self.mesh), target)
            placed = self._as_terms(target, padded) if port.partial else _put(padded, target)
        return placed if not self.mesh.device_ids else self._in_device_order(placed)

    def _as_terms(self, target: NamedSharding, argument: Any) -> jax.Array:
        """An unreduced array unchanged. For any other array, the first device of each group holds the value, and the others
        zeros."""
        if isinstance(argument, jax.Array) and argument.sharding.is_equivalent_to(target, argument.ndim):
            return jax.device_put(argument, target)
        mesh, split = target.mesh, _without_terms(target.spec)
        coordinates = dict(zip(mesh.devices.flat, np.ndindex(mesh.devices.shape), strict=True))
        along = [mesh.axis_names.index(name) for name in target.spec.unreduced]
        whole = _put(argument, NamedSharding(mesh, split))
        shards = [
            jax.numpy.zeros_like(shard.data) if any(coordinates[shard.device][axis] for axis in along) else shard.data
            for shard in whole.addressable_shards
        ]
        return jax.make_array_from_single_device_arrays(whole.shape, target, shards)

    def _in_device_order(self, placed: jax.Array) -> jax.Array:
        """The same buffers in the client's order: by position in `devices`, whatever the mesh's order."""
        buffers = {shard.device: shard.data for shard in placed.addressable_shards}
        memory = placed.sharding.memory_kind
        mesh = jax.sharding.Mesh(np.array(self.loaded.devices), ("replica",))
        replicated = NamedSharding(mesh, PartitionSpec(), memory_kind=memory)
        shape = placed.sharding.shard_shape(placed.shape)
        return jax.make_array_from_single_device_arrays(
            shape, replicated, [buffers[device] for device in self.loaded.devices if device in buffers]
        )

    def _join(self, port: ShardedPort, shards: Sequence[Any]) -> jax.Array:
        memory = shards[0].sharding.memory_kind
        if port.memory not in (None, memory):
            hint = "jaxlib 0.10 or newer keeps it there"  # older ones do not say at compile time that they do not, on CPUs
            raise MeshError(
                f"error: a result is to be in memory of kind '{port.memory}', XLA leaves it in '{memory}'\n  hint: {hint}"
            )
        padded = port.padded_shape(self.mesh)
        whole = jax.make_array_from_single_device_arrays(padded, self.sharding(port), list(shards))
        return whole if padded == port.shape else whole[tuple(slice(size) for size in port.shape)]


def _is_spread(argument: Any) -> bool:
    """Whether this process does not hold all of the array."""
    return isinstance(argument, jax.Array) and not argument.is_fully_addressable


def _put(argument: Any, target: NamedSharding) -> jax.Array:
    """An array in a sharding. JAX itself takes values that every process holds only if nothing in them is NaN."""
    if target.is_fully_addressable or _is_spread(argument):
        return jax.device_put(argument, target)
    return processes.spread(argument, target)


def _padded(argument: Any, shape: Sequence[int], target: NamedSharding) -> Any:
    """The array padded with zeros at the end, up to a shape."""
    if tuple(argument.shape) == tuple(shape):
        return argument
    padding = [(0, target_size - size) for target_size, size in zip(shape, argument.shape, strict=True)]
    if not _is_spread(argument):
        return np.pad(np.asarray(argument), padding)
    return jax.jit(lambda array: jax.numpy.pad(array, padding), out_shardings=target)(argument)


def _described_devices(devices: Iterable[Any]) -> str:
    ids = sorted(device.id for device in devices)
    return f"the {len(ids)} devices {', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}"


def whole(array: jax.Array) -> np.ndarray[Any, Any]:
    """The value of a global array: the sum of the terms, if its devices hold terms of a sum."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or not sharding.spec.unreduced:
        return np.asarray(array)
    mesh, split = sharding.mesh, _without_terms(sharding.spec)
    naming = {*sharding.spec.unreduced, *(name for entry in split for name in (entry if isinstance(entry, tuple) else (entry,)))}
    copies = [axis for axis, name in enumerate(mesh.axis_names) if name not in naming]
    indices = NamedSharding(mesh, split).devices_indices_map(array.shape)
    shard_of = {shard.device: shard.data for shard in array.addressable_shards}
    total = np.zeros(array.shape, array.dtype)
    for device, coordinates in zip(mesh.devices.flat, np.ndindex(mesh.devices.shape), strict=True):
        if not any(coordinates[axis] for axis in copies):
            total[indices[device]] += np.asarray(shard_of[device])
    return total


def devices_for(module: ir.Module, available: Sequence[Any] | None = None, arguments: Any = ()) -> tuple[Any, ...]:
    """The first of the `available` devices, as many as the mesh of a program has.

    By default a program for one device runs on a device of this process, and any other on the devices of the `arguments`, a tree,
    in the order of their mesh, if that has as many; else on the first of JAX's devices. Raises MeshError if there are fewer, and
    if all of them belong to other processes.
    """
    mesh = mesh_or_single(module)
    if available is None and mesh.size == 1:
        available = jax.local_devices()
    elif available is None:
        meshes = (getattr(getattr(leaf, "sharding", None), "mesh", None) for leaf in jax.tree.leaves(arguments))
        orders = (tuple(view.devices.flat) for view in meshes if isinstance(view, jax.sharding.Mesh))
        # A program that has an order of devices itself means that of JAX's.
        available = next((order for order in orders if len(order) == mesh.size and not mesh.device_ids), jax.devices())
    if mesh.size > len(available):
        raise MeshError(f"error: mesh @{mesh.name} needs {mesh.size} devices, there are {len(available)}")
    used = tuple(available[: mesh.size])
    having = processes.of(used)
    if having and (own := jax.process_index()) not in having:
        hint = "compile it in those processes alone, or name other devices with devices="
        raise processes.Elsewhere(
            f"error: the program runs on {_described_devices(used)}, all of {processes.named(having)}, this is process {own}"
            f"\n  hint: {hint}"
        )
    return used


def load(
    program: formats.Program, available: Sequence[Any], compiler_options: Mapping[str, OptionValue] = MappingProxyType({})
) -> Executable:
    """Compiles a program in the form `local` for the first of the `available` devices, as many as its mesh has.
    `compiler_options` are set by XLA's names.

    Changes its module. Raises MeshError for one that needs other devices than there are, or that XLA refuses.
    """
    module = program.module
    main = mlir.main_function(module)
    mesh = mesh_or_single(module)
    inputs, outputs = boundary(module)
    used = devices_for(module, available)
    _strip(module, main)
    _check_memories((*inputs, *outputs), processes.own_device(used))
    return Executable(mesh, tuple(inputs), tuple(outputs), _load(module, used, compiler_options), program.calling)


def _check_memories(ports: Iterable[ShardedPort], device: Any) -> None:
    """Raises MeshError for an argument or result in a kind of memory that `device` does not have."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    for port in ports:
        if port.memory not in (None, *kinds):
            has = ", ".join(kinds)
            raise MeshError(
                f"error: an argument or result is kept in memory of kind '{port.memory}', {device.platform} has {has}"
            )


def compile_whole(module: ir.Module, device: Any) -> Executable:
    """Compiles a program on global shapes, without shardings, for one device, without any pass of ours.

    Changes the name of the module's entry point. Raises MeshError for a program that XLA refuses.
    """
    inputs, outputs = boundary(module)
    return Executable(Mesh("mesh", ()), tuple(inputs), tuple(outputs), _load(module, (device,)))


def boundary(module: ir.Module) -> tuple[list[ShardedPort], list[ShardedPort]]:
    """The arguments and results of the program's entry point; those of a program that is not partitioned are replicated.

    Raises OpError for a type that no array has.
    """
    main = mlir.main_function(module)
    return _ports(main, "arg_attrs"), _ports(main, "res_attrs")


def _ports(main: ir.Operation, side: str) -> list[ShardedPort]:
    kind = mlir.function_type(main)
    types = kind.inputs if side == "arg_attrs" else kind.results
    return [_port(main, local, entry) for local, entry in zip(types, mlir.entries(main, side), strict=True)]


def _port(main: ir.Operation, kind: ir.Type, entry: dict[str, ir.Attribute]) -> ShardedPort:
    if not isinstance(kind, ir.RankedTensorType):
        raise OpError(main, f"has a boundary of type {kind}, expected ranked tensors only")
    local = ir.RankedTensorType(kind)
    if not local.has_static_shape:
        raise OpError(main, f"has a boundary of type {kind}, expected static shapes")
    dtype = _dtype(main, local.element_type)
    memory = ir.StringAttr(entry[MEMORY_KIND]).value if MEMORY_KIND in entry else None
    port = read_boundary(entry, local)
    return ShardedPort(port.shape, tuple(local.shape), dtype, port.split, port.partial, memory)


def _dtype(main: ir.Operation, element: ir.Type) -> np.dtype[Any]:
    """The numpy type of an MLIR element type."""
    if (name := DTYPES.get(str(element))) is None:
        raise OpError(main, f"has a boundary of element type {element}, which numpy has no type for")
    scalar: type = getattr(jax.numpy, name).dtype.type
    return np.dtype(scalar)


def _strip(module: ir.Module, main: ir.Operation) -> None:
    """Removes what XLA does not know: mesh symbols, and the `meshbridge.*` attributes of the boundary."""
    with module.context:
        for side in mlir.SIDES:
            remaining = [{name: entry[name] for name in entry.keys() - set(BOUNDARY)} for entry in mlir.entries(main, side)]
            mlir.set_entries(main, side, remaining)
        for op in list(module.body.operations):
            if op.operation.name == ops.MeshOp.OPERATION_NAME:
                op.operation.erase()


def _refuse_callbacks(module: ir.Module) -> None:
    """Raises OpError for a call of a Python function: the module does not contain it, and running it would end the process."""
    for op in mlir.walk_all(module):
        if op.name == mlir.CUSTOM_CALL and is_callback(op):
            hint = "meshbridge.jit runs jax.pure_callback and jax.debug.print, as jax.jit does"
            raise OpError(op, "calls a Python function, which no module holds", hint=hint)


def _load(
    module: ir.Module, devices: Sequence[Any], compiler_options: Mapping[str, OptionValue] = MappingProxyType({})
) -> xla.Loaded:
    """Compiles for one replica on each device. Raises MeshError for a program that XLA refuses."""
    _refuse_callbacks(module)
    return xla.compile_module(module, devices, compiler_options=compiler_options)
