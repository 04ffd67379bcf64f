"""Writes a model as a serialized jax.export artifact.

`python -m testdata.models.export OUT.jax_export NAME --scheme both --platform cuda`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from testdata.models.catalogue import model
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
    beside.write_bytes(model(options.name).export(options.scheme, options.platform).serialize())
    beside.replace(options.output)


if __name__ == "__main__":
    main()
