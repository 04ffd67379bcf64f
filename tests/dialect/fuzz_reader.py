"""Coverage-guided fuzzing of the mesh dialect's reader: `python -m tests.dialect.fuzz_reader -max_total_time=60 [CORPUS]`.

Whatever bytes come, they are read or refused with a place in the file. libFuzzer stops at the first other exception, crash or
hang and writes the input beside it.
"""

from __future__ import annotations

import re
import sys

import atheris

with atheris.instrument_imports(include=["meshbridge.dialect"]):
    from meshbridge.dialect.assembly import read, write
    from meshbridge.ir.mlir import MeshError, context

CONTEXT = context()


def one_input(data: bytes) -> None:
    """Reads `data`; what is read prints, and prints the same again."""
    text = data.decode("utf-8", errors="replace")
    refusal = ""
    try:
        module = read(text, "fuzz.mlir", CONTEXT)
    except MeshError as error:
        refusal = str(error)
    if refusal:
        assert re.match(r"fuzz\.mlir:\d+:\d+: error: .", refusal), refusal
        return
    printed = write(module)
    assert write(read(printed, "again.mlir", CONTEXT)) == printed


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
