"""What it costs to hold values that a loop carries unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.machines import machine
from testdata.program import Argument, Program

LAYERS, WIDTH, TOKENS = 16, 4096, 8 * 2048


def _frozen(weights: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient by the bias alone of layers whose weights are frozen."""

    def loss(bias: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x, weight: jnp.tanh(x @ weight + bias))
        return jnp.sum(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0])

    return jax.value_and_grad(loss)(bias)


@pytest.mark.parametrize("machine", ["neutral", "v5e:2x4"])
def test_frozen_layers_are_gathered_in_their_loop(machine: str) -> None:
    stacked = Argument((LAYERS, WIDTH, WIDTH), P(None, "data", None))
    arguments = (stacked, Argument((WIDTH,), P()), Argument((TOKENS, WIDTH), P("data", None)))
    program = Program("frozen", (("data", 8),), _frozen, arguments, (P(), P()))
    report = meshbridge.report(program.export_for("cpu"), machine=machine)
    gathers = [collective for collective in report.collectives if collective.kind == "all_gather"]
    assert gathers
    assert all(gather.executions >= LAYERS - 2 for gather in gathers), "none of them is of all layers"
    assert report.wire_bytes < 2.2 * LAYERS * WIDTH * WIDTH * 4, "the forward and the backward pass gather once"


def test_a_machine_says_what_held_bytes_cost(tmp_path: Path) -> None:
    """Layers of 9.4 MB: one gather of all of them saves 31 launches, each of which takes as long as 6.75 MB."""
    width, h100 = 1536, Path(machine.__file__).parent / "gpu" / "h100.toml"
    stacked = Argument((LAYERS, width, width), P(None, "data", None))
    arguments = (stacked, Argument((width,), P()), Argument((TOKENS, width), P("data", None)))
    exported = Program("frozen", (("data", 8),), _frozen, arguments, (P(), P())).export_for("cpu")

    def largest_gather(held_price: int) -> float:
        device = tmp_path / f"held_{held_price}.toml"
        device.write_text(re.sub("(?m)^held_price = .*$", f"held_price = {held_price}", h100.read_text()))
        report = meshbridge.report(exported, machine=f"{device}:1x1x8")
        return max(collective.wire_bytes for collective in report.collectives if collective.kind == "all_gather")

    layer = width * width * 4 * 7 / 8
    assert [largest_gather(held_price) for held_price in (1, 20)] == [LAYERS * layer, layer]


MICROBATCHES = 4


def _accumulated(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A step of gradient descent by the sum of the gradients of several microbatches."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x, weight: jnp.tanh(x @ weight))
        return jnp.sum(jax.lax.scan(lambda x, weight: (layer(x, weight), None), x, weights)[0])

    def added(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.grad(loss)(weights, x), None

    return weights - jax.lax.scan(added, jnp.zeros_like(weights), x)[0]


@pytest.mark.parametrize("machine", ["neutral", "v5e:2x4"])
def test_microbatches_gather_each_layer_for_themselves(machine: str) -> None:
    """The update reads the weights, too, after the loop over microbatches."""
    stacked = Argument((LAYERS, WIDTH, WIDTH), P(None, "data", None))
    arguments = (stacked, Argument((MICROBATCHES, TOKENS, WIDTH), P(None, "data", None)))
    program = Program("accumulated", (("data", 8),), _accumulated, arguments, P(None, "data", None))
    report = meshbridge.report(program.export_for("cpu"), machine=machine)
    gathers = [collective for collective in report.collectives if collective.kind == "all_gather"]
    assert gathers
    assert all(gather.executions >= MICROBATCHES * (LAYERS - 2) for gather in gathers), "none of them is of all layers"


@pytest.mark.parametrize("machine", ["neutral", "v5e:2x4"])
def test_a_loop_carries_what_is_stored_for_nothing(machine: str) -> None:
    """Weights that are stored replicated stay so in every loop that reads them: splitting them there saves no memory."""

    def summed(weights: jax.Array, x: jax.Array) -> jax.Array:
        def through(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]

        return jax.lax.scan(lambda total, x: (total + through(x), None), jnp.zeros_like(x[0]), x)[0]

    stacked = Argument((LAYERS, WIDTH, WIDTH), P(None, None, None))
    arguments = (stacked, Argument((MICROBATCHES, TOKENS, WIDTH), P(None, "data", None)))
    program = Program("replicated", (("data", 8),), summed, arguments, P("data", None))
    assert not meshbridge.report(program.export_for("cpu"), machine=machine).collectives
