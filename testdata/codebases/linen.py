"""Flax's linen: `TrainState` and the mesh rules of logical axes that its users shard by."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen import partitioning as nn_partitioning
from flax.training import train_state

from testdata.codebases.mesh import STEPS, fsdp, integers, mesh_of, numbers, on

RULES = (("batch", "data"), ("embed", None), ("hidden", "model"), ("heads", "model"), ("vocabulary", "model"))


class _Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: None) -> tuple[Any, None]:
        init, named = nn.initializers.lecun_normal(), nn.with_logical_partitioning
        x = nn.with_logical_constraint(x, ("batch", None, "embed"))
        attention = nn.MultiHeadDotProductAttention(4, kernel_init=nn.initializers.lecun_normal())
        x += attention(nn.LayerNorm()(x), mask=nn.make_causal_mask(x[..., 0]))
        hidden = nn.gelu(nn.Dense(256, kernel_init=named(init, ("embed", "hidden")))(nn.RMSNorm()(x)))
        hidden = nn.with_logical_constraint(hidden, ("batch", None, "hidden"))
        return x + nn.Dense(64, kernel_init=named(init, ("hidden", "embed")))(hidden), None


class _Decoder(nn.Module):
    """Its layers under `nn.scan` and `nn.remat`."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("vocabulary", "embed"))
        x = nn.Embed(128, 64, embedding_init=init)(tokens)
        scanned = nn.scan(
            nn.remat(_Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=2,
            metadata_params={nn.PARTITION_NAME: None},
        )  # fmt: skip
        x, _ = scanned()(x, None)
        return nn.Dense(128)(nn.LayerNorm()(x))


def logical_axes() -> Any:
    """A decoder sharded by rules, as the library's guide of `nn.logical_to_mesh_sharding` says, donated from step to step."""
    mesh = mesh_of(data=2, model=4)
    model = _Decoder()
    tokens = [on(mesh, integers(128, 8, 17, seed=turn), "data") for turn in range(STEPS)]

    def create(key: Any) -> Any:
        variables = model.init(key, tokens[0][:, :-1])
        return train_state.TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.sgd(0.1, momentum=0.9))

    with mesh, nn_partitioning.axis_rules(RULES):
        spec = nn.get_partition_spec(jax.eval_shape(create, jax.random.key(0)))
        shardings = nn.logical_to_mesh_sharding(spec, mesh, RULES)
        state = jax.jit(create, out_shardings=shardings)(jax.random.key(0))

        def step(state: Any, tokens: Any) -> Any:
            def loss_of(params: Any) -> Any:
                logits = state.apply_fn({"params": params}, tokens[:, :-1])
                return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

            loss, gradients = jax.value_and_grad(loss_of)(state.params)
            return state.apply_gradients(grads=gradients), loss

        jitted = jax.jit(step, donate_argnums=0, in_shardings=(shardings, None), out_shardings=(shardings, None))
        losses = []
        for each in tokens:
            state, loss = jitted(state, each)
            losses.append(loss)
    return jnp.stack(losses), nn.unbox(state.params)


class _Images(nn.Module):
    """Convolutions with batch normalisation: a state beside the parameters."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Dropout(0.1, deterministic=not train)(x.reshape(x.shape[0], -1))
        return nn.Dense(10)(x)


class _State(train_state.TrainState):
    batch_stats: Any = None


def images() -> Any:
    """A classifier with parameters sharded as FSDP, whose step jits by itself what committed arrays say."""
    mesh = mesh_of(data=8)
    model = _Images()
    variables = model.init(jax.random.key(0), jnp.zeros((1, 16, 16, 3)), train=False)
    params = jax.tree.map(fsdp(mesh), variables["params"])
    state = _State.create(
        apply_fn=model.apply, params=params, tx=optax.sgd(0.1), batch_stats=on(mesh, variables["batch_stats"])
    )  # fmt: skip

    @jax.jit
    def step(state: Any, images: Any, labels: Any, key: Any) -> Any:
        def loss_of(params: Any) -> Any:
            known = {"params": params, "batch_stats": state.batch_stats}
            logits, updates = state.apply_fn(known, images, train=True, mutable=["batch_stats"], rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updates

        (loss, updates), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, batch_stats=updates["batch_stats"]), loss

    losses = []
    for turn in range(STEPS):
        images, labels = on(mesh, (numbers(32, 16, 16, 3, seed=turn), integers(10, 32, seed=turn)), "data")
        state, loss = step(state, images, labels, on(mesh, jax.random.key(turn)))
        losses.append(loss)
    return losses, state.params, state.batch_stats
