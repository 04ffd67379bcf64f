"""Training steps with a loop of microbatches and boundaries of stages: what tests of pipelines cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshbridge

Tree = Any
Loss = Callable[..., Any]

WIDTH, VOCABULARY, LENGTH, BATCH, MICROBATCHES = 8, 16, 4, 8, 4


def normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Small normal numbers."""
    return (0.3 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def mark(layer: int, layers: int, stages: int) -> Callable[[Tree], Tree]:
    """The boundary before a layer that begins one of `stages`, but the first; the identity before other layers."""
    per_stage = layers // stages
    begins = layer and layer % per_stage == 0
    return meshbridge.stage(f"stage{layer // per_stage}") if begins else lambda tree: tree


def accumulating(
    loss: Loss, stages: int, *, update: Callable[..., Tree] | None = None, microbatches: int = MICROBATCHES
) -> Callable[..., tuple[Tree, Any]]:
    """A step that adds up the gradients of `loss(params, microbatch, stages)` over microbatches, and updates parameters."""

    def step(params: Tree, batch: Tree) -> tuple[Tree, Any]:
        split = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), batch)

        def add(carry: tuple[Any, Tree], microbatch: Tree) -> tuple[tuple[Any, Tree], Any]:
            value, gradients = jax.value_and_grad(loss)(params, microbatch, stages)
            return (carry[0] + value.astype(jnp.float32), jax.tree.map(jnp.add, carry[1], gradients)), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        (total, gradients), values = jax.lax.scan(add, (jnp.float32(0), zeros), split)
        return (update or descend)(params, gradients), (total / microbatches, values)

    return step


def descend(params: Tree, gradients: Tree) -> Tree:
    """Gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.1 * g / MICROBATCHES, params, gradients)


def clipped(params: Tree, gradients: Tree) -> Tree:
    """Gradient descent, with the norm of all gradients at most one."""
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda p, g: p - 0.1 * g * jnp.minimum(1.0, 1.0 / norm), params, gradients)


def mlp(layers: int = 4) -> tuple[Tree, Tree]:
    """Parameters and a batch of a chain of layers."""
    params = {"layers": [{"w": normal(layer, WIDTH, WIDTH), "b": normal(90 + layer, WIDTH)} for layer in range(layers)]}
    return params, (normal(100, BATCH, WIDTH), normal(101, BATCH, WIDTH))


def mlp_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The mean square error of a chain of layers."""
    x, y = batch
    for layer, p in enumerate(params["layers"]):
        x = mark(layer, len(params["layers"]), stages)(x)
        x = jnp.tanh(x @ p["w"] + p["b"])
    return ((x - y) ** 2).mean()


def gpt(layers: int = 4) -> tuple[Tree, Tree]:
    """Parameters and tokens of a transformer whose embedding is also its head."""
    kernels = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    params = {
        "embed": normal(1, VOCABULARY, WIDTH),
        "layers": [
            {name: normal(10 * layer + number, *shape) for number, (name, shape) in enumerate(kernels.items())}
            for layer in range(layers)
        ],
    }
    return params, np.random.default_rng(5).integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)


def block(p: Tree, x: Any, memory: Any = None) -> Any:
    """A layer of a transformer, with causal attention or, if given, attention to `memory`."""
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    if memory is not None:
        _, k, v = jnp.split(memory @ p["qkv"], 3, axis=-1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    if memory is None:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
    x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) @ p["out"]
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def gpt_loss(params: Tree, tokens: Any, stages: int, *, layer: Callable[..., Any] = block) -> Any:
    """The cross entropy of the next token."""
    x = params["embed"][tokens]
    for number, p in enumerate(params["layers"]):
        x = mark(number, len(params["layers"]), stages)(x)
        x = layer(p, x)
    return cross_entropy(x @ params["embed"].T, tokens)


def cross_entropy(logits: Any, tokens: Any) -> Any:
    """The mean cross entropy of the next token."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1)
    return -chosen.mean()


def scanned_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """The same, with a scan over the layers of each stage."""
    x = params["embed"][tokens]
    layers = params["layers"]
    per_stage = len(layers) // stages
    for number in range(stages):
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers[number * per_stage : (number + 1) * per_stage])
        x = meshbridge.stage(f"stage{number}")(x) if number else x
        x, _ = jax.lax.scan(lambda x, p: (block(p, x), None), x, own)
    return cross_entropy(x @ params["embed"].T, tokens)


def in_stacks(params: Tree) -> Tree:
    """The same parameters, with one array for each kernel of all layers."""
    return {**params, "layers": jax.tree.map(lambda *leaves: np.stack(leaves), *params["layers"])}


def one_scan_loss(params: Tree, tokens: Any, stages: int, *, layer: Callable[..., Any] = block, mark: str = "") -> Any:
    """The loss of a transformer with a scan over all layers; with a `mark`, in which a stage may begin at each layer."""
    begin = meshbridge.stage(mark) if mark else lambda tree: tree
    x, _ = jax.lax.scan(lambda x, p: (layer(p, begin(x)), None), params["embed"][tokens], params["layers"])
    return cross_entropy(x @ params["embed"].T, tokens)


def marked_scan_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """The same, in which stages may begin."""
    return one_scan_loss(params, tokens, stages, mark="layer")


def llama(layers: int = 4) -> tuple[Tree, Tree]:
    """Parameters and tokens of a llama of one stack of layers, with grouped queries and a head of its own."""
    kernels = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH // 2), "v": (WIDTH, WIDTH // 2), "out": (WIDTH, WIDTH)}
    kernels |= {"gate": (WIDTH, 3 * WIDTH), "up": (WIDTH, 3 * WIDTH), "down": (3 * WIDTH, WIDTH)}
    stacks = {name: normal(20 + number, layers, *shape) for number, (name, shape) in enumerate(kernels.items())}
    norms = {name: np.ones((layers, WIDTH), np.float32) for name in ("before", "after")}
    params = {"embed": normal(1, VOCABULARY, WIDTH), "layers": stacks | norms, "norm": np.ones(WIDTH, np.float32)}
    return {**params, "head": normal(2, WIDTH, VOCABULARY)}, gpt()[1]


def rms_norm(x: Any, scale: Any) -> Any:
    """RMSNorm."""
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def llama_block(p: Tree, x: Any, angles: Any) -> Any:
    """A layer with rotary positions, two heads of queries for each of keys, and a gated MLP."""
    heads = lambda y: y.reshape(*y.shape[:2], -1, 2)  # noqa: E731

    def rotated(y: Any) -> Any:
        first, second = y[..., 0], y[..., 1]
        cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        return jnp.stack([first * cosine - second * sine, first * sine + second * cosine], -1)

    y = rms_norm(x, p["before"])
    q, k, v = rotated(heads(y @ p["q"])), rotated(heads(y @ p["k"])), heads(y @ p["v"])
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(x.shape) @ p["out"]
    y = rms_norm(x, p["after"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def llama_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """The cross entropy of a llama whose layers are scanned, and computed again in the backward pass."""
    angles = jnp.arange(tokens.shape[1], dtype=jnp.float32) * 0.3
    layer = jax.checkpoint(lambda x, p: (llama_block(p, x, angles), None))
    x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
    return cross_entropy(rms_norm(x, params["norm"]) @ params["head"], tokens)


def translator(layers: int = 4) -> tuple[Tree, Tree]:
    """Parameters and tokens of an encoder and a decoder."""
    params, tokens = gpt(layers)
    return params, (tokens, np.random.default_rng(6).integers(0, VOCABULARY, tokens.shape).astype(np.int32))


def translator_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The cross entropy of a decoder's next token; all its layers attend to what the encoder returns."""
    source, target = batch
    layers = params["layers"]
    half = len(layers) // 2
    x, memory = params["embed"][source], params["embed"][target]
    for number, p in enumerate(layers[:half]):
        x, memory = mark(number, len(layers), stages)((x, memory))
        x = block(p, x)
    x, memory = memory, x
    for number, p in enumerate(layers[half:], half):
        x, memory = mark(number, len(layers), stages)((x, memory))
        x = block(p, block(p, x), memory)
    return cross_entropy(x @ params["embed"].T, target)


def mixture(experts: int = 4) -> tuple[Tree, Tree]:
    """Parameters and a batch of layers with experts."""
    params, (x, y) = mlp()
    for layer, p in enumerate(params["layers"]):
        p["route"], p["experts"] = normal(50 + layer, WIDTH, experts), normal(60 + layer, experts, WIDTH, WIDTH)
    return params, (x, y)


def mixture_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The mean square error of layers in which each row goes to its best expert, and a loss that balances experts."""
    x, y = batch
    balance = jnp.float32(0)
    for layer, p in enumerate(params["layers"]):
        x, balance = mark(layer, len(params["layers"]), stages)((x, balance))
        gates = jax.nn.softmax(x @ p["route"])
        chosen = jax.nn.one_hot(gates.argmax(-1), gates.shape[-1])
        balance = balance + (gates.mean(0) * chosen.mean(0)).sum()
        x = x + jnp.einsum("be,bf,efg->bg", gates * chosen, x, p["experts"])
    return ((x - y) ** 2).mean() + 0.01 * balance


def dropped(params: Tree, batch: Tree) -> tuple[Tree, Any]:
    """A step of two stages with dropout, whose key the loop carries and splits."""
    x, y, seed = batch

    def loss(params: Tree, batch: Tree, key: Any) -> Any:
        x, y = batch
        for layer, p in enumerate(params["layers"]):
            x = mark(layer, len(params["layers"]), 2)(x)
            kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 0.75, x.shape)
            x = jnp.where(kept, jnp.tanh(x @ p["w"]), 0.0)
        return ((x - y) ** 2).mean()

    def add(carry: tuple[Tree, Any], microbatch: Tree) -> tuple[tuple[Tree, Any], Any]:
        total, key = carry
        key, own = jax.random.split(key)
        value, gradients = jax.value_and_grad(loss)(params, microbatch, own)
        return (jax.tree.map(jnp.add, total, gradients), key), value

    microbatches = jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, WIDTH), (x, y))
    zeros = jax.tree.map(jnp.zeros_like, params)
    (gradients, key), values = jax.lax.scan(add, (zeros, jax.random.key(seed)), microbatches)
    return descend(params, gradients), (values, jax.random.key_data(key))


def scaled(params: Tree, batch: Tree) -> tuple[Tree, Any]:
    """A step of two stages with a scaled loss: parameters stay as they are, and the scale halves, if a gradient is not finite."""
    weights, scale = params

    def loss(weights: Tree, microbatch: Tree, stages: int) -> Any:
        return mlp_loss(weights, microbatch, stages) * scale

    def update(_: Tree, gradients: Tree) -> Tree:
        unscaled = jax.tree.map(lambda g: g / scale, gradients)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(unscaled)]))
        updated = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), weights, unscaled)
        return updated, jnp.where(finite, scale, scale / 2)

    return accumulating(loss, 2, update=update)(weights, batch)


def rematerialized(params: Tree, tokens: Any, stages: int) -> Any:
    """`gpt_loss`, whose layers are computed again in the backward pass."""
    return gpt_loss(params, tokens, stages, layer=jax.checkpoint(block))


def parts(batch: Tree) -> Tree:
    """The batch as microbatches."""
    return jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, *leaf.shape[1:]), batch)


def added(loss: Loss, params: Tree, batch: Tree, zeros: Tree) -> Tree:
    """The sum of gradients of `loss(params, microbatch)` and `zeros`."""
    add = lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None)  # noqa: E731
    return jax.lax.scan(add, zeros, parts(batch))[0]


def cast(params: Tree, batch: Tree) -> Tree:
    """A step whose parameters are cast before the loop."""
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    zeros = jax.tree.map(jnp.zeros_like, low)
    gradients = added(lambda p, part: mlp_loss(p, part, 2), low, batch, zeros)
    return descend(params, jax.tree.map(lambda g: g.astype(jnp.float32), gradients))


def stacked(params: Tree, batch: Tree) -> Tree:
    """A step that keeps the gradients of all microbatches, and takes their mean after the loop."""
    each = lambda count, part: (count + 1, jax.grad(mlp_loss)(params, part, 2))  # noqa: E731
    _, gradients = jax.lax.scan(each, 0, parts(batch))
    return descend(params, jax.tree.map(lambda g: g.mean(0), gradients))


def averaged(state: Tree, batch: Tree) -> Tree:
    """A step that computes with its parameters before and after the loop, and carries on from the average of parameters."""
    params, average, count = state
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(params)))
    before = mlp_loss(params, batch, 1)
    start = jax.tree.map(lambda x: 0.1 * x, average)
    gradients = added(lambda p, part: mlp_loss(p, part, 2) * before / norm, params, batch, start)
    updated = descend(params, gradients)
    mixed = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, updated)
    return (updated, mixed, count + 1), mlp_loss(updated, batch, 1)


def counted(params: Tree, batch: Tree) -> Tree:
    """A step whose loop is a while loop, which also carries the largest loss."""

    def body(carry: tuple[Any, Tree, Any]) -> tuple[Any, Tree, Any]:
        count, total, largest = carry
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, 2 * count, 2), batch)
        value, gradients = jax.value_and_grad(mlp_loss)(params, part, 2)
        return count + 1, jax.tree.map(jnp.add, total, gradients), jnp.maximum(largest, value)

    start = (0, jax.tree.map(jnp.zeros_like, params), -jnp.inf)
    count, gradients, largest = jax.lax.while_loop(lambda carry: carry[0] < MICROBATCHES, body, start)
    return descend(params, gradients), largest, count


def frozen(params: Tree, batch: Tree) -> Tree:
    """A step that trains the second stage alone."""
    first, second = params["layers"][:2], params["layers"][2:]
    loss = lambda top, part: mlp_loss({"layers": first + top}, part, 2)  # noqa: E731
    gradients = added(loss, second, batch, jax.tree.map(jnp.zeros_like, second))
    return {"layers": first + descend(second, gradients)}


def branching_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The mean square error of layers with branches."""
    x, y = batch
    for layer, p in enumerate(params["layers"]):
        x = mark(layer, len(params["layers"]), stages)(x)
        x = jax.lax.cond(x.sum() > 0, lambda x, w: jnp.tanh(x @ w), lambda x, w: x @ w, x, p["w"])
    return ((x - y) ** 2).mean()


def replayed_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The mean square error of layers that are computed again in the backward pass, with the boundaries in them."""
    x, y = batch
    for layer, p in enumerate(params["layers"]):
        begin = mark(layer, len(params["layers"]), stages)
        x = jax.checkpoint(lambda p, x, begin=begin: jnp.tanh(begin(x) @ p["w"]))(p, x)
    return ((x - y) ** 2).mean()


def replayed_pairs_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The same of layers that are computed again in pairs, with a boundary before each layer."""
    x, y = batch
    layers = params["layers"]

    def pair(first: int, own: Tree, x: Any) -> Any:
        for number, p in enumerate(own):
            x = jnp.tanh(mark(first + number, len(layers), stages)(x) @ p["w"])
        return x

    for first in range(0, len(layers), 2):
        x = jax.checkpoint(partial(pair, first))(layers[first : first + 2], x)
    return ((x - y) ** 2).mean()


def pooled_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The mean square error of layers that pool neighbours in overlapping windows."""
    x, y = batch
    for layer, p in enumerate(params["layers"]):
        x = mark(layer, len(params["layers"]), stages)(x)
        x = jax.lax.reduce_window(x @ p["w"], -jnp.inf, jax.lax.max, (1, 3), (1, 1), "SAME")
    return ((x - y) ** 2).mean()


def forward(params: Tree, batch: Tree) -> Any:
    """The loss alone."""
    add = lambda total, part: (total + mlp_loss(params, part, 2), None)  # noqa: E731
    return jax.lax.scan(add, jnp.float32(0), parts(batch))[0]


STEPS: dict[str, tuple[Callable[..., Any], Tree, int]] = {
    "mlp": (accumulating(mlp_loss, 2), mlp(), 2),
    "four stages": (accumulating(mlp_loss, 4), mlp(), 4),
    "tied embeddings": (accumulating(gpt_loss, 2), gpt(), 2),
    "clipping": (accumulating(mlp_loss, 4, update=clipped), mlp(), 4),
    "scanned layers": (accumulating(scanned_loss, 2), gpt(), 2),
    "rematerialized": (accumulating(rematerialized, 2), gpt(), 2),
    "encoder and decoder": (accumulating(translator_loss, 4), translator(), 4),
    "mixture of experts": (accumulating(mixture_loss, 2), mixture(), 2),
    "dropout": (dropped, (mlp()[0], (*mlp()[1], 3)), 2),
    "cast before the loop": (cast, mlp(), 2),
    "gradients that are kept": (stacked, mlp(), 2),
    "work around the loop": (averaged, ((mlp()[0], mlp()[0], 0), mlp()[1]), 2),
    "a while loop": (counted, mlp(), 2),
    "a frozen stage": (frozen, mlp(), 2),
    "branches": (accumulating(branching_loss, 2), mlp(), 2),
    "boundaries in what is rematerialized": (accumulating(replayed_loss, 4), mlp(), 4),
    "boundaries within what is rematerialized": (accumulating(replayed_pairs_loss, 4), mlp(), 2),
    "pooling": (accumulating(pooled_loss, 2), mlp(), 2),
    "forward alone": (forward, mlp(), 2),
    "loss scaling": (scaled, ((mlp()[0], np.float32(1024)), mlp()[1]), 2),
}
"""By name, a step, its arguments, and its number of stages."""
