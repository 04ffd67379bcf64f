"""Writes programs as serialized jax.export artifacts, `testdata/NAME.jax_export`.

Run from the repository's root: `python -m testdata.export [NAME…] [--to FOLDER]`.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import jax

from testdata.catalogue import BUILDERS, build

KEPT = ("gpt3", "gpt12", "llama_scan_fsdp")
"""The artifacts that the repository holds; the others are made when somebody asks for them."""


def write(name: str, folder: Path) -> Path:
    """Exports one program. Needs its number of devices. The file appears whole or not at all."""
    path = folder / f"{name}.jax_export"
    beside = path.with_suffix(".partly")
    beside.write_bytes(build(name).export().serialize())
    beside.replace(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=KEPT, metavar="NAME", help=f"one of {', '.join(BUILDERS)}")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    options = parser.parse_args()
    # Locations in an artifact read `testdata/gpt.py`, wherever the repository lies.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", re.escape(f"{Path(__file__).parent.parent}/"))
    for name in options.names:
        path = write(name, options.to)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    # jax reads these when it makes its first device.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    main()
