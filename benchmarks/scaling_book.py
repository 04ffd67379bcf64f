"""How much tensor parallelism a search chooses for the training of a llama of 70 billion parameters on TPU v5p, beside what the
book "How To Scale Your Model" (https://jax-ml.github.io/scaling-book) derives.

    python -m benchmarks.scaling_book --seconds 6

The book shards weights along X devices and activations along the other N / X. Communication is shortest where X is the
square root of 2 B N / F, for B tokens of a batch and an MLP of width F. For LLaMA 3-70B, 4 million tokens and 8,960 chips
that is 1,618. The book rounds it to 2,048, with tensor parallelism of 4. Here there are 4,096 chips, of which powers of two
make up meshes, and 512 tokens of each, where the book has 468. Sequences are of 512 tokens, so that the batch has one for
each chip: attention is not in the formula.

Each mesh of data x model is searched by itself, as if nothing were sharded: along which axes the batch and the parameters are
split is the search's choice. The seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from meshbridge.dialect.patterns import keys_of
from meshbridge.ir.mlir import context
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.read import formats
from meshbridge.sharding_search.boundary import named_text
from meshbridge.sharding_search.clock import Clock
from meshbridge.sharding_search.mesh_search import SearchResult
from meshbridge.sharding_search.request import SearchRequest
from meshbridge.sharding_search.search import best_of
from testdata.realistic.llama import llama
from testdata.scaled import Sizes

SIZE = Sizes(width=8192, hidden=28672, vocabulary=128256, heads=64, key_heads=8)
LAYERS, TOKENS, LENGTH = 80, 512, 512
"""Tokens of each chip, and of a sequence."""

MACHINE, CHIPS = "v5p:16x16x16", 4096
TENSOR = (1, 2, 4, 8, 16)
SHOWN = ("query", "down")
"""Parameters of a layer whose shardings are printed."""


def derived(chips: int, tokens: float, hidden: int) -> float:
    """The tensor parallelism of the book: of the shortest communication, if weights are sharded along all other chips."""
    return chips / sqrt(2 * tokens * chips / hidden)


def rounded(size: float) -> int:
    """The power of two that is nearest by ratio."""
    return int(2 ** round(log2(size)))


@dataclass(frozen=True)
class Row:
    """What a search finds on a mesh."""

    tensor: int
    found: SearchResult

    @property
    def text(self) -> str:
        """Of a table."""
        best = self.found.best
        held = zip(self.found.names.arguments, self.found.boundary.arguments, strict=True)
        kept = [f"`{keys_of(name)[-1]}` {named_text(split)}" for name, split in held if split and keys_of(name)[-1] in SHOWN]
        return " | ".join(
            (
                f"{CHIPS // self.tensor} x {self.tensor}",
                f"{best.seconds * 1e3:.0f}",
                f"{best.exposed_seconds * 1e3:.0f}",
                f"{best.peak_bytes / 1e9:.2f}",
                "; ".join(kept),
            )
        )


def rows(sizes: Sequence[int], seconds: float, layers: int = LAYERS, clock: Clock = time.process_time) -> list[Row]:
    """What is found with tensor parallelism of these sizes, in so many seconds of a clock each."""
    program = llama("fsdp", CHIPS, layers=layers, scan=True, annotated=False, size=SIZE, tokens=TOKENS, length=LENGTH)
    jitted = jax.jit(program.function, donate_argnums=program.donated)
    exported = jax.export.export(jitted, platforms=("tpu",))(*program.avals())
    return [Row(size, _found(exported, size, seconds, clock)) for size in sizes]


def _found(exported: jax.export.Exported, tensor: int, seconds: float, clock: Clock) -> SearchResult:
    mesh = Mesh("mesh", (CHIPS // tensor, tensor), ("data", "model"))
    opened = formats.unpack(exported, context(), (), None, None)
    return best_of(opened.module, [mesh], SearchRequest(CompileTarget.of(MACHINE), seconds=seconds, clock=clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each search")
    parser.add_argument("--tensor", type=int, nargs="+", default=TENSOR, help="sizes of the axis `model`")
    options = parser.parse_args()
    found = rows(options.tensor, options.seconds)
    print("| data x model | step, ms | exposed, ms | memory, GB | parameters of a layer |")
    print("|---|---|---|---|---|")
    for row in found:
        print("|", row.text, "|")
    fastest = min(found, key=lambda row: row.found.best.seconds)
    size = derived(CHIPS, CHIPS * TOKENS, SIZE.hidden)
    print(f"the search chooses {fastest.tensor}; the book derives {size:.1f}, and rounds it to {rounded(size)}")


if __name__ == "__main__":
    main()
