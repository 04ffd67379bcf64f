"""A training step of a diffusion transformer (DiT): latent images in patches, layer norms whose shift, scale and gate are made of
the time and the class; batch and parameters sharded over the same devices, remat in each layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned, weight

PINS = {
    "residual": P("data", None, None),
    "heads": P("data", None, None, None),
    "hidden": P("data", None, None),
    "condition": P("data", None),
}
INTO, OUT_OF = P(None, "data"), P("data", None)


@dataclass(frozen=True)
class Size:
    """The sizes of DiT-XL/2 for images of 512 x 512, whose latents are 64 x 64, but for the layers. `waves` are those that stand
    for a time; `images` are those of a device."""

    width: int = 1152
    heads: int = 16
    layers: int = 8
    side: int = 64
    channels: int = 4
    patch: int = 2
    classes: int = 1000
    waves: int = 256
    images: int = 8

    @property
    def patched(self) -> int:
        """Numbers in one patch."""
        return self.patch * self.patch * self.channels


SIZE = Size()


def dit(devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad of the noise's squared error, and gradient descent; layers under `lax.scan`."""
    weights = _parameters(size)
    rows = size.images * devices
    image = Argument((rows, size.side, size.side, size.channels), P("data", None, None, None), element="bfloat16")
    times = Argument((rows,), P("data"), 0.1, centre=0.5)
    labels = Argument((rows,), P("data"), below=size.classes)
    return common.training_step(
        "dit_scan",
        (("data", devices),),
        partial(_loss, size=size, pins=PINS if annotated else {}),
        weights,
        image,
        image,
        times,
        labels,
    )


def _parameters(size: Size) -> Tree:
    width = size.width
    layer = {
        "modulation": weight(width, 6 * width, spec=INTO),
        "query_key_value": weight(width, 3 * width, spec=INTO),
        "attention_out": weight(width, width, spec=OUT_OF),
        "mlp_in": weight(width, 4 * width, spec=INTO),
        "mlp_out": weight(4 * width, width, spec=OUT_OF),
    }
    return {
        "patch_in": weight(size.patched, width, spec=INTO),
        "time_in": weight(size.waves, width, spec=INTO),
        "time_out": weight(width, width, spec=OUT_OF),
        "classes": weight(size.classes, width, spec=INTO),
        "layers": common.stacked(layer, size.layers, scan=True),
        "final_modulation": weight(width, 2 * width, spec=INTO),
        "patch_out": weight(width, size.patched, spec=OUT_OF),
    }


def _loss(
    parameters: Tree, image: jax.Array, noise: jax.Array, times: jax.Array, labels: jax.Array, *, size: Size, pins: Pins
) -> jax.Array:
    """At time 0 an image is as it is, at time 1 it is noise."""
    kept = jnp.cos(times * jnp.pi / 2)[:, None, None, None]
    noisy = kept * image.astype(jnp.float32) + jnp.sqrt(1 - kept**2) * noise.astype(jnp.float32)
    found = _denoised(parameters, noisy.astype(image.dtype), times, labels, size, pins)
    return jnp.mean((found - _patches(noise, size)).astype(jnp.float32) ** 2)


def _denoised(parameters: Tree, noisy: jax.Array, times: jax.Array, labels: jax.Array, size: Size, pins: Pins) -> jax.Array:
    time = jax.nn.silu(_waves(times, size.waves).astype(noisy.dtype) @ parameters["time_in"]) @ parameters["time_out"]
    condition = pinned(jax.nn.silu(time + parameters["classes"][labels]), "condition", pins)

    def block(x: jax.Array, layer: Tree) -> jax.Array:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = _modulation(condition, layer["modulation"], 6)
        x = pinned(x + gate * _attention(layer, _normalised(x) * (1 + scale) + shift, size, pins), "residual", pins)
        hidden = jax.nn.gelu((_normalised(x) * (1 + mlp_scale) + mlp_shift) @ layer["mlp_in"])
        return pinned(x + mlp_gate * (pinned(hidden, "hidden", pins) @ layer["mlp_out"]), "residual", pins)

    x = _patches(noisy, size) @ parameters["patch_in"] + _positions(size).astype(noisy.dtype)
    x = common.through(block, pinned(x, "residual", pins), parameters["layers"])
    shift, scale = _modulation(condition, parameters["final_modulation"], 2)
    return (_normalised(x) * (1 + scale) + shift) @ parameters["patch_out"]


def _modulation(condition: jax.Array, matrix: jax.Array, parts: int) -> list[jax.Array]:
    """Each [images, 1, width]."""
    return jnp.split((condition @ matrix)[:, None], parts, axis=-1)


def _attention(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    together = (x @ layer["query_key_value"]).reshape(*x.shape[:2], 3, size.heads, -1)
    query, key, value = (pinned(each, "heads", pins) for each in jnp.moveaxis(together, 2, 0))
    mixed = common.attention(query, key, value, lambda scores: scores, query.shape[-1] ** -0.5)
    return pinned(mixed, "heads", pins).reshape(x.shape) @ layer["attention_out"]


def _normalised(x: jax.Array) -> jax.Array:
    """Layer norm without a scale of its own, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _patches(images: jax.Array, size: Size) -> jax.Array:
    """[images, rows, columns, channels] to [images, patches, numbers of a patch]."""
    count = size.side // size.patch
    split = images.reshape(len(images), count, size.patch, count, size.patch, size.channels)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(len(images), count * count, size.patched)


def _waves(x: jax.Array, count: int) -> jax.Array:
    """Sines and cosines of `count // 2` frequencies, in a new last dimension, float32."""
    angles = x[..., None] * 1e3 * jnp.exp(-jnp.log(1e4) * jnp.arange(count // 2) / (count // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _positions(size: Size) -> jax.Array:
    """[patches, width], half of it of the row, half of the column."""
    count = size.side // size.patch
    one = _waves(jnp.arange(count) / 1e3, size.width // 2)
    rows, columns = jnp.repeat(one, count, axis=0), jnp.tile(one, (count, 1))
    return jnp.concatenate([rows, columns], axis=-1)
