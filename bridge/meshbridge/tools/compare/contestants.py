"""The contestants of a comparison. Each prepares a program for XLA, and chooses one of XLA's partitioners."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge import conversion, partitioning, pipeline
from meshbridge.ir.mlir import ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.read import formats
from meshbridge.read.formats import Program

REPEATS = 3
"""The number of runs; times are the shortest of them, because the first run has cold caches."""


@dataclass(frozen=True)
class Contestant:
    """`prepare` changes a module into the one that XLA compiles for a target; `shardy` is true if its
    shardings are Shardy's."""

    prepare: Callable[[ir.Module, CompileTarget], ir.Module]
    shardy: bool
    is_ours: bool = False
    "True if preparing is partitioning, so that its time counts."


def _ours(module: ir.Module, target: CompileTarget) -> ir.Module:
    """Partitions the program, so that XLA's partitioner has nothing to decide."""
    partitioning.partition_module(module, pipeline.Options(target=target))
    return module


def _in(notation: str) -> Callable[[ir.Module, CompileTarget], ir.Module]:
    """Converts the shardings of a program to a notation."""

    def convert(module: ir.Module, _target: CompileTarget) -> ir.Module:
        present = formats.find_notation(module)
        if present is None or present.name != notation:
            plain = notation in conversion.with_plain_form()  # every version of XLA reads it
            conversion.convert(Program(module, formats.BYTECODE), notation, plain=plain)
        return module

    return convert


OURS, PEER = "meshbridge", "xla-shardy"
"""The numerator and the denominator of ratios in tables."""

CONTESTANTS = {
    OURS: Contestant(_ours, shardy=True, is_ours=True),
    PEER: Contestant(_in("sdy"), shardy=True),
    "xla-gspmd": Contestant(_in("gspmd"), shardy=False),
}
"""Contestants by their printed names."""

PEERS = tuple(name for name, contestant in CONTESTANTS.items() if not contestant.is_ours)


def prepared(contestant: Contestant, module: ir.Module, target: CompileTarget) -> tuple[ir.Module, float]:
    """A copy of `module`, prepared for XLA, and the seconds of partitioning. Raises MeshError."""
    seconds = []
    for _ in range(REPEATS if contestant.is_ours else 1):
        copy = formats.copy_module(module)
        started = time.perf_counter()
        copy = contestant.prepare(copy, target)
        seconds.append(time.perf_counter() - started)
    return copy, min(seconds) if contestant.is_ours else 0.0
