"""Partitions one program in a process that has partitioned nothing before, and prints what that took, as JSON.

`python -m benchmarks.probe FILE.mlir [--propagation] [--planned-for TARGET…] [--limit SECONDS]`. The first call is from the
text of the program to the lowered module in memory: reading, verification and lowering included. The second is the same again in
the same process.

Every figure is a line of its own, printed as soon as it is known, so that a process which is ended loses only what is missing:

- `first`, `second`: seconds by the wall and of CPU time
- `stages`: seconds of CPU time of the first call by stage, each with the verification after it
- `peak_bytes`: what the first call added to the largest memory that the process has had
- `text_bytes`: size of the lowered module as text without source locations
- `operations`: how many the program has before anything is done to it
- `propagation`: what Shardy's propagation alone takes, if asked for
- `planned`: by target, a machine with a topology and perhaps a set of compiler options behind a slash, the first and the second
  call of a plan for it
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.clock import sdy_propagation, shortest
from meshbridge import partitioning
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.pipeline import DEFAULTS, Options
from meshbridge.read import formats

PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in a unit of `ru_maxrss`."""


MEMORY = 8_000_000_000
"""Bytes of address space that the process may take: a program that needs more must not take the machine with it."""


def lowered(data: bytes, stages: dict[str, float], options: Options = DEFAULTS) -> ir.Module:
    """From text to the lowered module; adds to `stages` the CPU seconds of each."""
    last = time.process_time()

    def note(stage: str, _module: ir.Module | None = None) -> None:
        nonlocal last
        now = time.process_time()
        stages[stage] = now - last
        last = now

    module = formats.read(data, "program.mlir", mlir.context()).module
    note("read")
    partitioning.partition_module(module, options, on_stage=note)
    return module


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def planned(data: bytes, targets: Iterable[str]) -> dict[str, list[dict[str, float]]]:
    """What the first and the second call take by target (see above)."""
    spent = {}
    for target in targets:
        machine, _, compiler_options = target.partition("/")
        options = Options.of(machine=machine, compiler_options=compiler_options or "default")
        calls = (shortest(partial(lowered, data, {}, options), repeats=1)[1] for _ in range(2))
        spent[target] = [asdict(call) for call in calls]
    return spent


def probe(data: bytes, *, propagation: bool, targets: Iterable[str] = ()) -> Iterator[tuple[str, object]]:
    """The figures of one program, whose text is `data`, by name. The first call is one only where this process made none."""
    stages: dict[str, float] = {}
    before = _peak()
    module, first = shortest(lambda: lowered(data, stages), repeats=1)
    yield "peak_bytes", _peak() - before
    yield "first", asdict(first)
    yield "stages", stages
    yield "text_bytes", len(str(module))
    del module
    yield "operations", len(mlir.walk_all(formats.read(data, "program.mlir", mlir.context()).module))
    yield "second", asdict(shortest(lambda: lowered(data, {}), repeats=1)[1])
    if propagation:
        yield "propagation", asdict(sdy_propagation(data.decode()))
    yield "planned", planned(data, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--propagation", action="store_true", help="also measure sdy-propagation-pipeline")
    parser.add_argument("--planned-for", nargs="+", default=[], metavar="TARGET", help="also measure plans for these")
    parser.add_argument("--limit", type=int, help="seconds of CPU time after which the process ends by SIGXCPU")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if options.limit:
        resource.setrlimit(resource.RLIMIT_CPU, (options.limit, options.limit + 1))
    for name, figure in probe(options.program.read_bytes(), propagation=options.propagation, targets=options.planned_for):
        print(json.dumps({name: figure}), flush=True)


if __name__ == "__main__":
    main()
