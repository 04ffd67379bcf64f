"""Every model by name, which begins with its library's. The libraries come with the extra `models`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from testdata.models.model import Model

MODULES = {
    "linen": ("linen", "optax"),
    "nnx": ("nnx",),
    "haiku": ("haiku",),
    "equinox": ("equinox", "flowjax"),
    "probability": ("numpyro", "tinygp", "distrax", "blackjax"),
    "science": ("jraph", "e3nn", "brax", "diffrax"),
    "transformers": ("hf",),
    "keras": ("keras",),
    "keras_hub": ("kerashub",),
}
"""By module of this folder, how the names of its models begin."""


def models() -> dict[str, Callable[[], Model]]:
    """Name to maker. Raises ImportError where a library is missing."""
    return {name: make for module in MODULES for name, make in _made_by(module).items()}


def model(name: str) -> Model:
    """The model of that name, of which alone the library is imported. Raises KeyError if there is none."""
    module = next((module for module, beginnings in MODULES.items() if name.split("_")[0] in beginnings), None)
    if module is None:
        raise KeyError(name)
    return _made_by(module)[name]()


def _made_by(module: str) -> dict[str, Callable[[], Model]]:
    found: dict[str, Callable[[], Model]] = import_module(f"testdata.models.{module}").MODELS
    return found
