"""Writes a realistic program as a serialized jax.export artifact, for a platform that need not be there.

`python -m testdata.realistic.export OUT.jax_export NAME --devices 8 --platform tpu --annotation constrained`
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import jax

from testdata.realistic.catalogue import ANNOTATIONS, BUILDERS, build


def main() -> None:
    """Writes one program; the file appears whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("name", choices=list(BUILDERS))
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--platform", choices=["cpu", "cuda", "tpu"], default="cpu")
    parser.add_argument("--annotation", choices=list(ANNOTATIONS), default="constrained")
    options = parser.parse_args()
    # Locations in an artifact read `testdata/realistic/gpt.py`, wherever the repository lies.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", re.escape(f"{Path(__file__).parents[2]}/"))
    program = build(options.name, options.annotation, options.devices)
    beside = options.output.with_suffix(".partly")
    beside.write_bytes(program.export_for(options.platform).serialize())
    beside.replace(options.output)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # jax reads it when it makes its first device
    main()
