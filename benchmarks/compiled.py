"""What the compiler of a target allocates for a plan, in a process of its own: compilers read their environment as JAX starts.

`python -m benchmarks.compiled PROGRAM TARGET [LIMIT]` plans the annotated program for the target, within a limit of bytes if
there is one, compiles it ahead of time, and prints an `Allocated` as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Allocated:
    """Bytes of one device, as the compiler says them; nothing but `error` where it refuses the program."""

    arguments: int = 0
    results: int = 0
    temporaries: int = 0
    aliased: int = 0
    "Of the results, those in buffers of arguments."
    peak: int = 0
    "The most that is held at once, arguments and results with it: what our estimate is of."
    error: str = ""

    @property
    def total(self) -> int:
        """All allocations, what is aliased once: more than `peak` where temporaries leave gaps between them."""
        return self.arguments + self.results - self.aliased + self.temporaries


def allocated(program: Path, target: str, limit: float | None, log: Path) -> Allocated:
    """What the compiler of `target` allocates for a program in a file, planned for it within `limit`; its words are in `log`."""
    from meshbridge.machines.target import parse
    from meshbridge.runtime.targets import environment

    command = [sys.executable, "-m", "benchmarks.compiled", str(program), target, *([] if limit is None else [str(limit)])]
    with log.open("w") as words:
        done = subprocess.run(
            command, env=os.environ | environment(parse(target)), stdout=subprocess.PIPE, stderr=words, text=True, check=False
        )
    if done.returncode:
        return Allocated(error=f"ended with status {done.returncode}, see {log}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Allocated(**found)


def main(arguments: Sequence[str]) -> None:
    """The process' command."""
    import meshbridge
    from meshbridge import partitioning, pipeline
    from meshbridge.ir.mlir import MeshError
    from meshbridge.machines.target import parse
    from meshbridge.runtime import targets
    from meshbridge.tools.compare import spmd

    name, text, *limit = arguments
    target = parse(text)
    module = meshbridge.load(name).module
    machine = text.partition(":")[2]
    partitioning.partition_module(module, pipeline.Options.of(machine=machine, memory_limit=float(limit[0]) if limit else None))
    try:
        memory = spmd.compile(module, targets.devices(target), shardy=True).loaded.memory
    except MeshError as error:
        found = Allocated(error=str(error))
    else:
        found = Allocated(
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.alias_size_in_bytes,
            memory.peak_memory_in_bytes,
        )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
