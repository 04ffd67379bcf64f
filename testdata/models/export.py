"""Writes a model as a serialized jax.export artifact.

`python -m testdata.models.export OUT.jax_export NAME --scheme both --platform cuda`
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault(
    "JAX_PLATFORMS", "cpu"
)  # jax reads both when it makes its first device, which some libraries do when imported
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from testdata.models.catalogue import models
from testdata.models.model import SCHEMES


def main() -> None:
    """Writes one model; the file appears whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("name")
    parser.add_argument("--scheme", choices=list(SCHEMES), default="both")
    parser.add_argument("--platform", choices=["cpu", "cuda", "tpu"], default="cpu")
    options = parser.parse_args()
    beside = options.output.with_suffix(".partly")
    beside.write_bytes(models()[options.name]().export(options.scheme, options.platform).serialize())
    beside.replace(options.output)


if __name__ == "__main__":
    main()
