"""A program on global shapes, compiled by XLA for several devices and partitioned on the way by the partitioner of one's choice.

XLA says itself in which tiles it takes the arguments and leaves the results; numpy slices and joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import OptionValue
from meshbridge.runtime import xla
from meshbridge.runtime.pjrt import ShardedPort, boundary

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ArrayTiles:
    """How one array is sharded: tiles per dimension (the last ones may stick out), and for each device the number of its tile."""

    counts: tuple[int, ...]
    tile_of: tuple[int, ...]

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of every tile of an array: ceiling division."""
        return tuple(-(-size // count) for size, count in zip(whole, self.counts, strict=True))

    def cut(self, array: Array) -> list[Array]:
        """Each device's tile, padded where it sticks out."""
        tile = self.shape(array.shape)
        padding = [(0, size * count - given) for size, count, given in zip(tile, self.counts, array.shape, strict=True)]
        padded = np.pad(array, padding) if padding else array  # numpy pads no scalar
        return [padded[self._place(device, tile)] for device in range(len(self.tile_of))]

    def join(self, tiles: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The array of `shape` whose tiles the devices hold."""
        tile = self.shape(shape)
        whole = np.empty([size * count for size, count in zip(tile, self.counts, strict=True)], tiles[0].dtype)
        for device, held in enumerate(tiles):
            whole[self._place(device, tile)] = held
        return whole[tuple(map(slice, shape))]

    def _place(self, device: int, tile: tuple[int, ...]) -> tuple[slice, ...]:
        position = np.unravel_index(self.tile_of[device], self.counts) if self.counts else ()
        return tuple(slice(int(at) * size, (int(at) + 1) * size) for at, size in zip(position, tile, strict=True))


def tiles(sharding: Any, rank: int, devices: int) -> ArrayTiles:
    """XLA's `OpSharding` (None: replicated) of an array of `rank` dimensions as Tiles."""
    said = None if sharding is None else xla_client.HloSharding.from_proto(sharding)
    if said is None or not said.is_tiled():
        return ArrayTiles((1,) * rank, (0,) * devices)
    counts = tuple(said.tile_assignment_dimensions())[:rank]  # what follows says who holds copies
    order = np.array(said.tile_assignment_devices()).reshape(int(np.prod(counts)), -1)
    tile_of = np.empty(devices, np.int64)
    for number, holders in enumerate(order):
        tile_of[holders] = number
    return ArrayTiles(counts, tuple(tile_of.tolist()))


@dataclass(frozen=True)
class Compiled:
    """A compiled program; called with global arrays, it gives global arrays."""

    loaded: xla.Loaded
    inputs: tuple[ShardedPort, ...]
    outputs: tuple[ShardedPort, ...]

    def place(self, arrays: Sequence[Array]) -> list[jax.Array]:
        """The arguments on the devices, as the program takes them."""
        shardings = self.loaded.executable.get_parameter_shardings() or [None] * len(arrays)
        return [self._placed(*pair) for pair in zip(arrays, shardings, strict=True)]

    def _placed(self, array: Array, sharding: Any) -> jax.Array:
        pieces = tiles(sharding, array.ndim, len(self.loaded.devices)).cut(np.asarray(array))
        with jax.enable_x64(True):  # without it JAX would make 32-bit numbers of 64-bit ones
            held = [jax.device_put(piece, device) for piece, device in zip(pieces, self.loaded.devices, strict=True)]
        each = NamedSharding(jax.sharding.Mesh(np.array(self.loaded.devices), ("device",)), PartitionSpec())
        return jax.make_array_from_single_device_arrays(pieces[0].shape, each, held)

    def execute(self, placed: Sequence[jax.Array]) -> list[list[jax.Array]]:
        """Each result as every device's tile, when all are there."""
        results = self.loaded.run(placed)
        jax.block_until_ready(results)
        return results

    def join(self, results: Sequence[Sequence[jax.Array]]) -> list[Array]:
        """The results that `execute` gave, as global arrays."""
        shardings = self.loaded.executable.get_output_shardings() or [None] * len(self.outputs)
        return [
            tiles(sharding, len(port.shape), len(self.loaded.devices)).join([np.asarray(tile) for tile in held], port.shape)
            for held, sharding, port in zip(results, shardings, self.outputs, strict=True)
        ]


def compile(
    module: ir.Module,
    devices: Sequence[Any],
    *,
    shardy: bool,
    compiler_options: Mapping[str, OptionValue] = MappingProxyType({}),
) -> Compiled:
    """Compiles `module`, which carries Shardy's shardings or GSPMD's as `shardy` says; those that it leaves open XLA decides.
    `compiler_options` are set by XLA's names.

    Raises XLA's own errors.
    """
    inputs, outputs = boundary(module)
    open_inputs, open_outputs = (_are_open(module, side) for side in mlir.SIDES)

    def configure(build: Any) -> None:
        build.use_spmd_partitioning, build.use_shardy_partitioner = True, shardy
        build.allow_spmd_sharding_propagation_to_parameters = open_inputs
        build.allow_spmd_sharding_propagation_to_output = open_outputs

    _leave_what_xla_knows(module)
    loaded = xla.compile_module(module, devices, "partitions", configure, compiler_options)
    return Compiled(loaded, tuple(inputs), tuple(outputs))


def _leave_what_xla_knows(module: ir.Module) -> None:
    """Removes the attributes that only we read."""
    for op in mlir.walk_all(module):
        for name in [name for name in op.attributes if name.startswith("meshbridge.")]:
            del op.attributes[name]


def _are_open(module: ir.Module, side: str) -> list[bool]:
    """Which arguments or results carry no sharding."""
    entries = mlir.entries(mlir.main_function(module), side)
    return [not any("sharding" in name for name in entry) for entry in entries]
