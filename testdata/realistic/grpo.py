"""A training step of group-relative policy optimisation (GRPO): a policy with gradients, and a frozen reference beside it, both
fully sharded llamas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import log

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic import llama
from testdata.realistic.layers import LENGTH, Pins
from testdata.scaled import Sizes


@dataclass(frozen=True)
class Size:
    """Each prompt is answered `group` times. Ratios of probabilities are clipped `clip` from one; `penalty` weighs the divergence
    from the reference."""

    model: Sizes = llama.SMALL
    layers: int = 8
    group: int = 8
    tokens: int = llama.TOKENS
    length: int = LENGTH
    clip: float = 0.2
    penalty: float = 0.04


SIZE = Size()


def grpo(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad by the policy and gradient descent, on sequences of a prompt and an answer, their rewards, and the
    logarithms of the probabilities under which they were sampled."""
    base = llama.llama(
        style,
        devices,
        layers=size.layers,
        scan=True,
        annotated=annotated,
        size=size.model,
        tokens=size.tokens,
        length=size.length,
    )
    weights, tokens, targets = base.arguments
    rows = tokens.shape[0]
    sampled = Argument(tokens.shape, tokens.spec, 0.1, centre=-log(size.model.vocabulary))
    prompt = Argument((rows,), P("data"), below=size.length // 2)
    rewards = Argument((rows,), P("data"))
    return Program(
        name=f"grpo_llama{size.layers}_scan_{style}",
        axes=base.axes,
        function=partial(_step, size=size, pins=common.STYLES[style].pins if annotated else {}),
        arguments=(weights, weights, tokens, targets, sampled, prompt, rewards),
        out_specs=(P(), common.specs(weights)),
        donated=(0,),
    )


def _step(
    policy: Tree,
    reference: Tree,
    tokens: jax.Array,
    targets: jax.Array,
    sampled: jax.Array,
    prompt: jax.Array,
    rewards: jax.Array,
    *,
    size: Size,
    pins: Pins,
) -> tuple[jax.Array, Tree]:
    frozen = _log_probabilities(reference, tokens, targets, size, pins)
    loss = partial(_loss, frozen=frozen, sampled=sampled, advantages=_advantages(rewards, size.group), size=size, pins=pins)
    return common.descended(loss, policy, tokens, targets, prompt)


def _advantages(rewards: jax.Array, group: int) -> jax.Array:
    """How far a reward is from the mean of its group, in standard deviations."""
    grouped = rewards.reshape(-1, group)
    centred = grouped - jnp.mean(grouped, axis=-1, keepdims=True)
    return (centred / (jnp.std(grouped, axis=-1, keepdims=True) + 1e-4)).reshape(-1)


def _loss(
    policy: Tree,
    tokens: jax.Array,
    targets: jax.Array,
    prompt: jax.Array,
    *,
    frozen: jax.Array,
    sampled: jax.Array,
    advantages: jax.Array,
    size: Size,
    pins: Pins,
) -> jax.Array:
    """The mean over sequences of the mean over an answer's tokens."""
    likely = _log_probabilities(policy, tokens, targets, size, pins)
    ratio = jnp.exp(likely - sampled)
    clipped = jnp.clip(ratio, 1 - size.clip, 1 + size.clip)
    gain = jnp.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    divergence = jnp.exp(frozen - likely) - (frozen - likely) - 1
    is_answer = jnp.arange(size.length) >= prompt[:, None]
    each = jnp.where(is_answer, gain - size.penalty * divergence, 0)
    return -jnp.mean(jnp.sum(each, axis=-1) / jnp.sum(is_answer, axis=-1))


def _log_probabilities(model: Tree, tokens: jax.Array, targets: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """[sequences, length], in float32."""
    logits = llama.logits(model, tokens, size=size.model, pins=pins).astype(jnp.float32)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
