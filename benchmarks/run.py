"""Measures programs, prints one table, and writes JSON.

From the repository's root: `python -m benchmarks.run [--programs NAME…] [--by CONTESTANT…] [--json FILE]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# jax reads these when it makes its first device, so they come before anything that imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax

from benchmarks import fresh
from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import Measurement, measure, unsharded
from benchmarks.table import render
from testdata.catalogue import BUILDERS, MEASURED, build
from testdata.program import Program

LIMIT = 120
"""Seconds of CPU time that partitioning a program may take."""


def measured(names: Sequence[str], contestants: Sequence[str]) -> Iterator[Measurement]:
    """Every contestant on every program, one after the other."""
    for name in names:
        program = build(name)
        expected = unsharded(program)
        calls = partition_seconds(program)
        for contestant in contestants:
            print(f"{name} by {contestant}", file=sys.stderr, flush=True)
            one = measure(program, contestant, expected)
            yield dataclasses.replace(one, seconds=one.seconds | calls.get(contestant, {}))


def partition_seconds(program: Program) -> dict[str, dict[str, float]]:
    """What partitioning takes, by contestant: ours in a process of its own, the first call and the second, and Shardy's
    propagation in the same process. What a process that fails has not measured is left out: `measure` shows why."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{program.name}.mlir"
        path.write_text(program.export().mlir_module())
        found = fresh.probe(path, limit=LIMIT, repeats=1, propagation=True)
    first = {"partition": found.first.wall, "partition-cpu": found.first.cpu} if found.first else {}
    second = {"second-cpu": found.second.cpu} if found.second else {}
    theirs = {"sdy-propagation": found.propagation.cpu} if found.propagation else {}
    return {"meshbridge": first | second, "xla-shardy": theirs}


def write_json(measurements: Sequence[Measurement], path: Path) -> None:
    """All figures; the file appears whole or not at all."""
    content = {"jax": jax.__version__, "devices": jax.device_count(), "backend": jax.default_backend()}
    beside = path.with_name(f"{path.name}.partly")
    beside.write_text(json.dumps(content | {"measurements": [dataclasses.asdict(m) for m in measurements]}, indent=1))
    beside.replace(path)


def main() -> int:
    """The command; 1 if a contestant failed or computed wrong numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(BUILDERS), default=list(MEASURED), metavar="NAME")
    parser.add_argument("--by", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS), metavar="CONTESTANT")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    measurements = list(measured(options.programs, options.by))
    print(render(measurements))
    if options.json:
        write_json(measurements, options.json)
    return 1 if any(m.failed for m in measurements) else 0


if __name__ == "__main__":
    sys.exit(main())
