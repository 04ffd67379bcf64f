"""Who is compared: each makes of a program something that XLA compiles, and says which of XLA's partitioners then runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge import conversion, partitioning, pipeline
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import OptionSet
from meshbridge.read import formats
from meshbridge.read.formats import Program

REPEATS = 3
"""Times are the shortest of so many runs: the first one also pays for empty caches."""


@dataclass(frozen=True)
class Contestant:
    """`prepare` changes a module into what XLA is to compile for a machine, under a set of its options; `shardy` says in whose
    notation that is."""

    prepare: Callable[[ir.Module, str, OptionSet], ir.Module]
    shardy: bool
    is_ours: bool = False
    "Whether preparing is partitioning, so that its time counts."


def _ours(module: ir.Module, machine: str, compiler_options: OptionSet) -> ir.Module:
    """Partitioned: nothing is left for XLA's partitioner to decide."""
    partitioning.partition_module(module, pipeline.Options(machine=machine, compiler_options=compiler_options))
    return module


def _in(notation: str) -> Callable[[ir.Module, str, OptionSet], ir.Module]:
    """The same program with its shardings in a notation, as it stands if it has that already."""

    def convert(module: ir.Module, _machine: str, _compiler_options: OptionSet) -> ir.Module:
        found = formats.find_notation(module)
        if found is None or found.name != notation:
            plain = notation in conversion.with_plain_form()  # which every XLA reads
            conversion.convert(Program(module, formats.BYTECODE), notation, plain=plain)
        return module

    return convert


OURS, PEER = "meshbridge", "xla-shardy"
"""Whose figures are divided by whose, where a table has ratios."""

CONTESTANTS = {
    OURS: Contestant(_ours, shardy=True, is_ours=True),
    PEER: Contestant(_in("sdy"), shardy=True),
    "xla-gspmd": Contestant(_in("gspmd"), shardy=False),
}
"""By the name that the table prints."""

PEERS = tuple(name for name, contestant in CONTESTANTS.items() if not contestant.is_ours)


def prepared(contestant: Contestant, module: ir.Module, machine: str, compiler_options: OptionSet) -> tuple[ir.Module, float]:
    """A copy of `module` as XLA is to compile it for `machine` under that set of options, and the seconds that partitioning took.
    Raises MeshError."""
    seconds = []
    for _ in range(REPEATS if contestant.is_ours else 1):
        copy = formats.copy_module(module)
        started = time.perf_counter()
        copy = contestant.prepare(copy, machine, compiler_options)
        seconds.append(time.perf_counter() - started)
    return copy, min(seconds) if contestant.is_ours else 0.0
