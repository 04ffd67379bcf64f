"""A training step of a stack of Mamba-2 blocks: state-space duality in chunks, whose states pass from one to the next by an
associative scan; remat in each layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.scaled import normalise


@dataclass(frozen=True)
class Size:
    """The sizes of Mamba-2 with 1.3 billion parameters, but for the layers. `taps` are those of the convolution; `sequences` are
    those of each row of the mesh."""

    width: int = 2048
    heads: int = 64
    head: int = 64
    state: int = 128
    taps: int = 4
    chunk: int = 256
    vocabulary: int = 50288
    layers: int = 8
    sequences: int = 4
    length: int = LENGTH

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head


SIZE = Size()


def mamba2(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`, heads along "model"; layers under
    `lax.scan`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    batch = common.batch_of(axes, size)
    return common.training_step(
        f"mamba{size.layers}_scan_{style}",
        axes,
        partial(_loss, size=size, pins=chosen.pins if annotated else {}),
        weights,
        batch,
        batch,
    )


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width = style.into, style.out_of, size.width
    of_head = Argument((size.heads,), P("model"), 0.5, element="float32")
    layer = {
        "scale": scale(width),
        "gate": weight(width, size.inner, spec=into),
        "value": weight(width, size.inner, spec=into),
        "write": weight(width, size.state, spec=P(into[0], None)),
        "read": weight(width, size.state, spec=P(into[0], None)),
        "step": weight(width, size.heads, spec=into),
        "value_taps": Argument((size.taps, 1, size.inner), P(None, None, "model"), 0.5, element="bfloat16"),
        "write_taps": Argument((size.taps, 1, size.state), P(), 0.5, element="bfloat16"),
        "read_taps": Argument((size.taps, 1, size.state), P(), 0.5, element="bfloat16"),
        "step_bias": of_head,
        "decay": of_head,
        "skip": of_head,
        "inner_scale": Argument((size.inner,), P("model"), 0.02, centre=1.0, element="bfloat16"),
        "out": weight(size.inner, width, spec=out_of),
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "layers": common.stacked(layer, size.layers, scan=True),
        "final_scale": scale(width),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> jax.Array:
        return pinned(x + _mixed(layer, normalise(x, layer["scale"]), size, pins), "residual", pins)

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _mixed(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    value, write, read = (
        jax.nn.silu(causal_convolution(x @ layer[name], layer[f"{name}_taps"])) for name in ("value", "write", "read")
    )
    value = pinned(value.reshape(*x.shape[:2], size.heads, size.head), "heads", pins)
    step = jax.nn.softplus((x @ layer["step"]).astype(jnp.float32) + layer["step_bias"])
    logs = -jnp.exp(layer["decay"]) * step
    found = _dual(value * step[..., None].astype(x.dtype), logs, write, read, size.chunk)
    found = pinned(found + value * layer["skip"][:, None].astype(x.dtype), "heads", pins)
    gate = jax.nn.silu(pinned(x @ layer["gate"], "hidden", pins))
    return normalise(found.reshape(gate.shape) * gate, layer["inner_scale"]) @ layer["out"]


def causal_convolution(x: jax.Array, taps: jax.Array) -> jax.Array:
    """[batch, length, channels], each channel with taps of its own, [taps, 1, channels], that reach back."""
    count, _, channels = taps.shape
    return jax.lax.conv_general_dilated(
        x, taps, (1,), [(count - 1, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=channels
    )


def _dual(value: jax.Array, logs: jax.Array, write: jax.Array, read: jax.Array, chunk: int) -> jax.Array:
    """The recurrence `state = exp(log) * state + outer(value, write)`, of which `read` reads: [batch, length, heads, size] to the
    same. `logs` are [batch, length, heads], `write` and `read` [batch, length, state], shared by all heads.

    Within a chunk it is a masked product of matrices, as attention is; states pass between chunks.
    """
    value, logs, write, read = (x.reshape(x.shape[0], -1, chunk, *x.shape[2:]) for x in (value, logs, write, read))
    total = jnp.cumsum(logs, axis=2)
    since = total[:, :, :, None] - total[:, :, None]
    masked = jnp.where(jnp.tril(jnp.ones((chunk, chunk), bool))[..., None], since, -jnp.inf)
    weights = jnp.einsum("bcqn,bckn->bcqk", read, write)[..., None] * jnp.exp(masked).astype(value.dtype)
    within = jnp.einsum("bcqkh,bckhp->bcqhp", weights, value)
    left = jnp.exp(total[:, :, -1:] - total).astype(value.dtype)
    added = jnp.einsum("bckn,bckhp->bchpn", write, value * left[..., None])
    before = _states_before(jnp.exp(total[:, :, -1]), added.astype(jnp.float32)).astype(value.dtype)
    across = jnp.einsum("bcqn,bchpn->bcqhp", read, before) * jnp.exp(total).astype(value.dtype)[..., None]
    return (within + across).reshape(value.shape[0], -1, *value.shape[3:])


def _states_before(decay: jax.Array, added: jax.Array) -> jax.Array:
    """The state at the beginning of each chunk: [batch, chunks, heads] and [batch, chunks, heads, size, state] to the latter."""

    def combined(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, after = jax.lax.associative_scan(combined, (decay[..., None, None], added), axis=1)
    return jnp.pad(after[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
