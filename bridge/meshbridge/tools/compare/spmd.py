"""Compiles a program on global shapes for several devices, with one of XLA's partitioners.

XLA tells the tiles of arguments and results; numpy slices and joins them.
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
    """The sharding of one array: the number of tiles in each dimension (the last may be padded), and each device's tile."""

    counts: tuple[int, ...]
    tile_of: tuple[int, ...]

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tile, by ceiling division."""
        return tuple(-(-size // count) for size, count in zip(whole, self.counts, strict=True))

    def split(self, array: Array) -> list[Array]:
        """Each device's tile, padded at the end."""
        tile = self.shape(array.shape)
        padding = [(0, size * count - actual) for size, count, actual in zip(tile, self.counts, array.shape, strict=True)]
        padded = np.pad(array, padding) if padding else array  # numpy pads no scalar
        return [padded[self._tile_slices(device, tile)] for device in range(len(self.tile_of))]

    def join(self, tiles: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The array of `shape` from the tiles of the devices."""
        tile = self.shape(shape)
        whole = np.empty([size * count for size, count in zip(tile, self.counts, strict=True)], tiles[0].dtype)
        for device, piece in enumerate(tiles):
            whole[self._tile_slices(device, tile)] = piece
        return whole[tuple(map(slice, shape))]

    def _tile_slices(self, device: int, tile: tuple[int, ...]) -> tuple[slice, ...]:
        position = np.unravel_index(self.tile_of[device], self.counts) if self.counts else ()
        return tuple(slice(int(at) * size, (int(at) + 1) * size) for at, size in zip(position, tile, strict=True))


def tiles(sharding: Any, rank: int, devices: int) -> ArrayTiles:
    """XLA's `OpSharding` (None: replicated) of an array of `rank` dimensions as Tiles."""
    assignment = None if sharding is None else xla_client.HloSharding.from_proto(sharding)
    if assignment is None or not assignment.is_tiled():
        return ArrayTiles((1,) * rank, (0,) * devices)
    counts = tuple(assignment.tile_assignment_dimensions())[:rank]  # further dimensions are of replicas
    order = np.array(assignment.tile_assignment_devices()).reshape(int(np.prod(counts)), -1)
    tile_of = np.empty(devices, np.int64)
    for number, holders in enumerate(order):
        tile_of[holders] = number
    return ArrayTiles(counts, tuple(tile_of.tolist()))


@dataclass(frozen=True)
class Compiled:
    """A compiled program on global arrays."""

    loaded: xla.Loaded
    inputs: tuple[ShardedPort, ...]
    outputs: tuple[ShardedPort, ...]

    def place(self, arrays: Sequence[Array]) -> list[jax.Array]:
        """Puts the arguments on the devices in their tiles."""
        shardings = self.loaded.executable.get_parameter_shardings() or [None] * len(arrays)
        return [self._put(*pair) for pair in zip(arrays, shardings, strict=True)]

    def _put(self, array: Array, sharding: Any) -> jax.Array:
        pieces = tiles(sharding, array.ndim, len(self.loaded.devices)).split(np.asarray(array))
        with jax.enable_x64(True):  # else JAX would convert 64-bit numbers to 32-bit ones
            shards = [jax.device_put(piece, device) for piece, device in zip(pieces, self.loaded.devices, strict=True)]
        replicated = NamedSharding(jax.sharding.Mesh(np.array(self.loaded.devices), ("device",)), PartitionSpec())
        return jax.make_array_from_single_device_arrays(pieces[0].shape, replicated, shards)

    def execute(self, placed: Sequence[jax.Array]) -> list[list[jax.Array]]:
        """Runs the program and waits for the results; each is a list of the devices' tiles."""
        results = self.loaded.run(placed)
        jax.block_until_ready(results)
        return results

    def join(self, results: Sequence[Sequence[jax.Array]]) -> list[Array]:
        """The results of `execute` as global arrays."""
        shardings = self.loaded.executable.get_output_shardings() or [None] * len(self.outputs)
        return [
            tiles(sharding, len(port.shape), len(self.loaded.devices)).join([np.asarray(tile) for tile in shards], port.shape)
            for shards, sharding, port in zip(results, shardings, self.outputs, strict=True)
        ]


def compile(
    module: ir.Module,
    devices: Sequence[Any],
    *,
    shardy: bool,
    compiler_options: Mapping[str, OptionValue] = MappingProxyType({}),
) -> Compiled:
    """Compiles `module`, with Shardy's shardings if `shardy`, else GSPMD's; XLA decides open ones. `compiler_options` have XLA's
    names.

    Raises XLA's own errors.
    """
    inputs, outputs = boundary(module)
    open_inputs, open_outputs = (_are_open(module, side) for side in mlir.SIDES)

    def configure(build: Any) -> None:
        build.use_spmd_partitioning, build.use_shardy_partitioner = True, shardy
        build.allow_spmd_sharding_propagation_to_parameters = open_inputs
        build.allow_spmd_sharding_propagation_to_output = open_outputs

    _strip_our_attributes(module)
    loaded = xla.compile_module(module, devices, "partitions", configure, compiler_options)
    return Compiled(loaded, tuple(inputs), tuple(outputs))


def _strip_our_attributes(module: ir.Module) -> None:
    """Removes meshbridge's attributes."""
    for op in mlir.walk_all(module):
        for name in [name for name in op.attributes if name.startswith("meshbridge.")]:
            del op.attributes[name]


def _are_open(module: ir.Module, side: str) -> list[bool]:
    """For each argument or result: true if it has no sharding."""
    entries = mlir.entries(mlir.main_function(module), side)
    return [not any("sharding" in name for name in entry) for entry in entries]
