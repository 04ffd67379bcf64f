"""Who is compared: each contestant turns a program into a compiled JAX executable and says how long its stages took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.export

import meshbridge
from benchmarks.xla_trace import partitioning_seconds
from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.read import formats
from testdata.program import Program

MACHINE = "bytes"
"""The programs are so small that launches are all that counts on any device; what is compared are bytes."""


@dataclass(frozen=True)
class Built:
    """A compiled program. `seconds` by stage; `passes` splits the stage `partition`, where a contestant lets us see it."""

    compiled: Any
    seconds: dict[str, float]
    passes: dict[str, float] = field(default_factory=dict)


Contestant = Callable[[Program], Built]


@contextmanager
def _shardy(enabled: bool) -> Iterator[None]:
    """Lowers and compiles with Shardy, or with GSPMD's propagation."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def xla(program: Program, *, shardy: bool) -> Built:
    """XLA's own partitioner after Shardy's or GSPMD's propagation. `partition` is the part of `compile` that both take."""
    with _shardy(shardy):
        jax.clear_caches()  # a program that this process has compiled before would cost nothing
        start = time.perf_counter()
        lowered = program.lower()
        middle = time.perf_counter()
        compiled, partition = partitioning_seconds(lowered.compile)
        return Built(compiled, {"lower": middle - start, "partition": partition, "compile": time.perf_counter() - middle})


def ours(program: Program) -> Built:
    """`meshbridge.partition`, then XLA, which has nothing left to partition."""
    exported = program.export()
    partitioned = meshbridge.partition(exported, machine=MACHINE)
    arguments, results = program.jit_shardings(program.mesh())
    jax.clear_caches()
    call = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results)
    start = time.perf_counter()
    lowered = call.lower(*program.avals())
    middle = time.perf_counter()
    compiled = lowered.compile()
    stages = {"lower": middle - start, "compile": time.perf_counter() - middle}
    return Built(compiled, stages, _pass_seconds(exported))


def _pass_seconds(exported: Any) -> dict[str, float]:
    """Seconds of each pass, and of all verification between them, in a process that has partitioned the program before."""
    timings = partitioning.partition_module(formats.unpack(exported, mlir.context()).module, pipeline.Options.of(machine=MACHINE))
    return {timing.name: timing.seconds for timing in timings} | {"verification": sum(t.verify_seconds for t in timings)}


CONTESTANTS: dict[str, Contestant] = {
    "meshbridge": ours,
    "xla-shardy": partial(xla, shardy=True),
    "xla-gspmd": partial(xla, shardy=False),
}
"""By the name that the table prints."""
