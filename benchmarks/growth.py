"""How partition time grows: with the layers of a GPT training step, and with the devices of an MLP's mesh.

From the repository's root: `python -m benchmarks.growth [--layers 3 12 48] [--meshes 2x4 256x256]`. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from functools import partial

# jax reads these when it makes its first device, so they come before anything that imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import meshbridge
from benchmarks.contestants import Spent, sdy_propagation, shortest
from meshbridge.ir import mlir
from meshbridge.read import formats
from meshbridge.text import table
from testdata.gpt import gpt
from testdata.mlp import trained_on
from testdata.program import Program


@dataclass(frozen=True)
class Point:
    """One program: how large it is, what partitioning it takes, and what `sdy-propagation-pipeline` alone takes on it."""

    program: str
    devices: int
    operations: int
    partition: Spent
    propagation: Spent


def point(program: Program) -> Point:
    """Partitions `program` a few times and keeps the fastest."""
    exported = program.export_for_cpus()
    operations = len(mlir.walk_all(formats.unpack(exported, mlir.context()).module))
    _, spent = shortest(partial(meshbridge.partition, exported))
    return Point(program.name, program.devices, operations, spent, sdy_propagation(exported))


HEADING = ("program", "devices", "operations", "partition ms", "cpu ms", "cpu us per operation", "sdy-propagation ms", "cpu ms")


def render(points: list[Point]) -> str:
    """One row per program."""
    return table([HEADING, *map(_row, points)], left=(0, 1))


def _row(p: Point) -> tuple[str, ...]:
    times = (p.partition.wall * 1e3, p.partition.cpu * 1e3, p.partition.cpu / p.operations * 1e6)
    theirs = (p.propagation.wall * 1e3, p.propagation.cpu * 1e3)
    return (p.program, str(p.devices), str(p.operations), *(f"{time:.1f}" for time in (*times, *theirs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=[3, 12, 48])
    parser.add_argument("--meshes", nargs="*", default=["2x4", "32x32", "256x256"], metavar="DATAxMODEL")
    options = parser.parse_args()
    meshes = [tuple(map(int, text.split("x"))) for text in options.meshes]
    print(render([point(gpt(layers)) for layers in options.layers] + [point(trained_on(data, model)) for data, model in meshes]))


if __name__ == "__main__":
    main()
