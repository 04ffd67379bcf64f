"""Small `jax.export` artifacts to make mutants of: `python -m tests.fuzz.artifacts FOLDER` writes some of the zoo's programs.

A process of its own writes them: JAX starts threads, which no fork survives.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.export

from tests.zoo import FAULTS

NAMES = ("roll_by_one", "row_lookup", "gradient_accumulation", "exported_shard_map", "constrained_keys")


def write(folder: Path) -> None:
    """Writes NAME.jax_export for each of NAMES."""
    for name in NAMES:
        fault = FAULTS[name]
        with fault.on(fault.devices) as mesh:
            exported = jax.export.export(fault.jit(mesh))(*fault.placed(mesh))
        (folder / f"{name}.jax_export").write_bytes(exported.serialize())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
