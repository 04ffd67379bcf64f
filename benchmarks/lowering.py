"""Time of `lower-collectives` against the size of the mesh, for both ways of writing device groups.

    python -m benchmarks.lowering [--operations N] [--repeat N]

The same program on 8, 8,192 and 65,536 devices: gathers, slices, reductions, exchanges and index operations over every set of
axes. With `mesh-axes` nothing may grow with the mesh; dense groups have to be written once for each set of axes. Permutes are
measured apart: StableHLO has no word for them but the pairs of devices.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshbridge.dialect import build
from meshbridge.ir import mlir
from meshbridge.ir.groups import Spelling
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.text import table

MESHES = (Mesh("m", (2, 2, 2)), Mesh("m", (16, 16, 32)), Mesh("m", (32, 32, 64)))

SUBSETS: tuple[Axes, ...] = tuple(axes for count in (1, 2, 3) for axes in itertools.combinations(range(3), count))
"""Every non-empty set of the three axes."""

Emit = Callable[[ir.Value, Mesh, Axes], object]

COLLECTIVES: tuple[Emit, ...] = (
    lambda x, mesh, axes: build.all_gather(x, mesh, mesh_axes=axes, gather_axis=0),
    lambda x, mesh, axes: build.all_slice(x, mesh, mesh_axes=axes, slice_axis=0),
    lambda x, mesh, axes: build.all_to_all(x, mesh, mesh_axes=axes, split_axis=0, concat_axis=1),
    lambda x, mesh, axes: build.all_reduce(x, mesh, mesh_axes=axes, reduction="max"),
    lambda x, mesh, axes: build.reduce_scatter(x, mesh, mesh_axes=axes, scatter_axis=0),
    lambda x, mesh, axes: build.process_multi_index(mesh, axes),
)

PERMUTES: tuple[Emit, ...] = (
    lambda x, mesh, axes: build.permute(x, mesh, mesh_axes=axes, target_axes=axes[1:] + axes[:1]) if len(axes) > 1 else None,
)


@dataclass(frozen=True)
class Row:
    """One measured program: what it holds, how its groups are written, and seconds on each mesh."""

    label: str
    operations: int
    seconds: tuple[float, ...]

    @property
    def cells(self) -> list[str]:
        times = [f"{1e3 * each:.1f}" for each in self.seconds]
        return [self.label, str(self.operations), *times, *(f"{each / self.seconds[0]:.2f}x" for each in self.seconds[1:])]


def program(mesh: Mesh, emits: Sequence[Emit], operations: int) -> ir.Module:
    """A function of that many operations on one argument, cycling through `emits` and through the sets of axes."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build.mesh(mesh)
            type_ = ir.RankedTensorType.get([mesh.size, 4], ir.F32Type.get())
            function = mlir.func.FuncOp("main", ir.FunctionType.get([type_], []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            for number in range(operations):
                emit, axes = emits[number % len(emits)], SUBSETS[number // len(emits) % len(SUBSETS)]
                emit(block.arguments[0], mesh, axes)
            mlir.func.ReturnOp([])
        return module


def seconds(mesh: Mesh, emits: Sequence[Emit], operations: int, spelling: Spelling, repeat: int) -> float:
    """The best processor time of one run of the pass."""
    times = []
    for _ in range(repeat):
        module = program(mesh, emits, operations)
        start = time.process_time()
        LowerCollectives(replica_groups=spelling).run(module)
        times.append(time.process_time() - start)
    return min(times)


def measure(operations: int, repeat: int) -> list[Row]:
    """All rows of the table."""
    kinds: tuple[tuple[str, Sequence[Emit], Spelling], ...] = (
        ("collectives, mesh-axes", COLLECTIVES, "mesh-axes"),
        ("collectives, dense groups", COLLECTIVES, "dense"),
        ("permutes, pairs of devices", PERMUTES, "dense"),
    )
    return [
        Row(label, operations, tuple(seconds(mesh, emits, operations, spelling, repeat) for mesh in MESHES))
        for label, emits, spelling in kinds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=840, help="mesh operations in the program")
    parser.add_argument("--repeat", type=int, default=5, help="runs, of which the best counts")
    options = parser.parse_args()
    header = ["", "ops", *(f"{'x'.join(map(str, mesh.shape))} ms" for mesh in MESHES), *["growth"] * (len(MESHES) - 1)]
    print(table([header, *(row.cells for row in measure(options.operations, options.repeat))], left=(0,)))


if __name__ == "__main__":
    main()
