"""Every model by name. What makes them comes with the extra `models`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from testdata.models.model import Model

MODULES = ("linen", "nnx", "haiku", "equinox", "probability", "science", "transformers", "keras")


def models() -> dict[str, Callable[[], Model]]:
    """Name to maker. Raises ImportError where a library is missing."""
    return {name: make for module in MODULES for name, make in import_module(f"testdata.models.{module}").MODELS.items()}
