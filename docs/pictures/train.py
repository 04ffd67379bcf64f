import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def loss(params, tokens):
    x = params["embed"][tokens]
    for layer in params["layers"]:
        with jax.named_scope("mlp"):
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    with jax.named_scope("head"):
        logits = x @ params["embed"].T
        logits = jax.lax.with_sharding_constraint(logits, P("data", None, None))
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, tokens[..., None], -1).mean()


def step(params, tokens):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, tokens))
