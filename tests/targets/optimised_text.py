"""Compiles a program, as meshbridge partitions it, for a target, and writes the optimised HLO.

`python -m tests.targets.optimised_text PROGRAM TARGET TEXT`, in the environment of `meshbridge.runtime.targets`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from meshbridge.machines.target import parse
from meshbridge.read import files
from meshbridge.read.formats import find_notation
from meshbridge.runtime import targets
from meshbridge.tools.compare import spmd
from meshbridge.tools.compare.contestants import CONTESTANTS, prepared


def main(program: str, target: str, text: str) -> None:
    read = files.parse_program(Path(program).read_bytes(), program)
    module, _ = prepared(CONTESTANTS["meshbridge"], read.module)
    assert find_notation(module) is not None
    compiled = spmd.compile(module, targets.devices(parse(target))[:8], shardy=True)
    Path(text).write_text(compiled.loaded.hlo_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
