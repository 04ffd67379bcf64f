"""What is minimised on a machine, by its name."""

from __future__ import annotations

from meshbridge.ir.mlir import MeshError
from meshbridge.machines import machine
from meshbridge.machines.target import has_topology, of_machine
from meshbridge.resharding import BYTES, Objective

MEMORY = 0.1
"""Bytes sent that it costs as much to hold a byte throughout the program: little, so that of plans that send nearly as much, the
one that needs less memory is taken.

Measured on the programs of `testdata/realistic`, 77 plans for three targets: with 0.1 none sends more than with 0, and
temporaries become up to 7 % less in plans of as many bytes; a GPT of two axes without constraints sends 1,949 MB instead of
2,358. With 1 two plans send 10 to 14 % more, one of which needs 5.5 GB instead of 9.9."""

NEUTRAL = Objective(launch=1e5, memory=MEMORY)
"""Where no machine is named: a collective starts in a microsecond, and a link carries 100 GB in a second.

Measured on the programs of `testdata/realistic`, 8 devices: against `bytes` they send 0.02 % more (the geometric mean; 0.9 % at
most), and annotated GPT steps of two axes execute 65, 96 and 158 collectives instead of 118, 183 and 246."""

UNNAMED = {"bytes": BYTES, "neutral": NEUTRAL}
"""Machines that are no devices. For devices small collectives are not combined by copying their operands together: the compilers
of TPUs and GPUs combine by themselves, without copies. On a v5e those took a quarter of a decoding step's cycles."""


def objective(name: str) -> Objective:
    """The objective of a machine: `neutral`, `bytes`, the name of a device of `machines`, or the path of its file,
    perhaps with a topology, as in `h100:1x1x8`.

    Raises MeshError where there is none.
    """
    if not isinstance(name, str):
        raise MeshError(f"error: machine is {name!r}, expected the name of one or the path of its file, as a string")
    if name in UNNAMED:
        return UNNAMED[name]
    try:
        device = of_machine(name).machine if has_topology(name) else machine.named(name)
        return Objective(device.link.launch_bytes, MEMORY)
    except MeshError as error:
        if machine.is_path(name):
            raise
        raise MeshError(str(error).replace("expected one of", f"expected one of {', '.join(UNNAMED)},")) from None
