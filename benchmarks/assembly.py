"""How long the mesh dialect's own text takes to read and print, against MLIR with the same module in generic form.

From the repository's root: `python -m benchmarks.assembly [--operations N]`. The goal is at most four times MLIR's own time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.ir.mlir import context, ir
from meshbridge.text import table

GOAL = 4.0
"""Reading and printing together, in units of MLIR's time for the generic form."""

_OPERATIONS = (
    "mesh.shard %{0} to %s annotate_for_users : tensor<64x64xf32>",
    "mesh.all_reduce %{0} on @m mesh_axes = [0] reduction = <max> : tensor<64x64xf32> -> tensor<64x64xf32>",
    "mesh.all_to_all %{0} on @m mesh_axes = [1] split_axis = 0 concat_axis = 0 : tensor<64x64xf32> -> tensor<64x64xf32>",
    "mesh.broadcast %{0} on @m mesh_axes = [0] root = [%i] : (tensor<64x64xf32>, index) -> tensor<64x64xf32>",
)


def chain(operations: int) -> str:
    """A function of that many mesh operations, each on the result of the one before."""

    def lines() -> Iterator[str]:
        yield "module {\n  mesh.mesh @m(shape = 4x8)"
        yield "  func.func @f(%0: tensor<64x64xf32>, %i: index) -> tensor<64x64xf32> {"
        yield "    %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding"
        for number in range(operations):
            yield f"    %{number + 1} = {_OPERATIONS[number % len(_OPERATIONS)].format(number)}"
        yield f"    return %{operations} : tensor<64x64xf32>\n  }}\n}}"

    return "\n".join(lines())


def best_of(times: int, run: Callable[[], object]) -> float:
    """The shortest of several runs, in seconds of this process."""
    seconds: list[float] = []
    for _ in range(times):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return min(seconds)


@dataclass(frozen=True)
class Times:
    """Seconds for one module."""

    operations: int
    read: float
    write: float
    mlir_read: float
    mlir_write: float
    verify: float

    @property
    def ratio(self) -> float:
        """Reading and printing in units of MLIR's time."""
        return (self.read + self.write) / (self.mlir_read + self.mlir_write)


def measure(operations: int, times: int = 5) -> Times:
    """Reads, prints and verifies a module of that many mesh operations."""
    ctx = context()
    text = chain(operations)
    module = read(text, "chain.mlir", ctx)
    generic = write(module, generic=True)

    def parse() -> ir.Module:
        with ctx:
            return ir.Module.parse(generic)

    return Times(
        operations,
        read=best_of(times, lambda: read(text, "chain.mlir", ctx)),
        write=best_of(times, lambda: write(module)),
        mlir_read=best_of(times, parse),
        mlir_write=best_of(times, lambda: write(module, generic=True)),
        verify=best_of(times, lambda: verifier.verify(module)),
    )


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description="Measures the mesh dialect's text against MLIR's generic form.")
    parser.add_argument("--operations", type=int, default=20_000, metavar="N", help="mesh operations (default: 20,000)")
    times = measure(parser.parse_args().operations)
    print(f"{times.operations:,} mesh operations, milliseconds")
    rows = {"read": (times.read, times.mlir_read), "print": (times.write, times.mlir_write), "verify": (times.verify,)}
    lines = [(name, *(f"{seconds * 1e3:.0f}" for seconds in each)) for name, each in rows.items()]
    print(table([("", "custom form", "generic by MLIR"), *lines], left=(0,)))
    print(f"together {times.ratio:.1f} times MLIR's own (goal: at most {GOAL:.0f})")


if __name__ == "__main__":
    main()
