"""Rings of attention in whole transformers: layers one after the other, or as the body of a scan, with their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from meshbridge import pipeline
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.overlap.attention.attention_programs import VARIANTS, library
from tests.overlap.transformer import Transformer, check, drawn, grid, step
from tests.work import lines_run


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unrolled"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_layers_that_are_computed_again(dtype: Any, scanned: bool) -> None:
    """Forward pass, its repetition, and the gradients are rings."""
    check(Transformer(scanned=scanned), 4, dtype)


@pytest.mark.parametrize("count", [2, 8])
def test_groups(count: int) -> None:
    check(Transformer(library(is_causal=True), key_heads=1), count)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["library", "library_window", "wide", "window", "sloped", "masked_rows_finite"])
@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unrolled"])
def test_variants(name: str, scanned: bool) -> None:
    check(Transformer(VARIANTS[name], scanned=scanned), 4)


def named(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return checkpoint_name(VARIANTS["causal"](query, key, value), "mixed")


def test_weighted_values_that_are_saved() -> None:
    """Nothing computes them again, so that sums over keys are taken of gathered keys."""
    saving = partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("mixed"))
    check(Transformer(named, again=saving), 4, gathers=2)


def test_work_in_proportion_to_layers() -> None:
    def many(layers: int) -> int:
        model = Transformer(scanned=False, layers=layers)
        module = step(model, grid(4), jax.eval_shape(lambda: drawn(model)))
        return lines_run(partial(pipeline.run, (RingAttention(),), module))

    assert many(12) < 5 * many(3)
