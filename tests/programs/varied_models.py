"""Models as people train and serve them, small: each with the shardings that its users give it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Tree
from tests.programs.varied_programs import COLUMNS, GRID, LINE, NHWC, PROGRAMS, ROWS, WHOLE, program

TOKENS = Argument((8, 32), P("x", None), below=64)
TALL, WIDE = P("y", None), P(None, "y")


def _weight(*shape: int, spec: P = WHOLE) -> Argument:
    return Argument(shape, spec, shape[-2] ** -0.5 if len(shape) > 1 else 0.1)


def _normalised(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _heads(x: jax.Array, count: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], count, -1)


def _attention(x: jax.Array, into: jax.Array, out_of: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    query, key, value = (_heads(part, 4) for part in jnp.split(x @ into, 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    scores = scores if mask is None else jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(x.shape) @ out_of


@program(LINE, Argument((8, 64, 16), P(None, "x", None)), _weight(16, 3 * 16), _weight(16, 4), _weight(16, 4))
def selective_state_space(x: jax.Array, into: jax.Array, write: jax.Array, read: jax.Array) -> Tree:
    """A Mamba-like layer: a linear recurrence along a split sequence by associative scan, forward and backward."""

    def loss(into: jax.Array, write: jax.Array, read: jax.Array) -> jax.Array:
        gate, value, rate = jnp.split(x @ into, 3, -1)
        decay = jnp.exp(-jax.nn.softplus(rate))[..., None] * jnp.ones(4)
        added = value[..., None] * (x @ write)[:, :, None, :]
        _, states = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, added), axis=1)
        return jnp.mean((jnp.einsum("blds,bls->bld", states, x @ read) * jax.nn.silu(gate)) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(into, write, read)


@program(LINE, Argument((8, 24, 16), P("x", None, None)), Argument((8, 6), ROWS, below=15))
def connectionist_alignment(logits: jax.Array, labels: jax.Array) -> Tree:
    """The CTC loss: dynamic programming in log space under scan, and its gradient."""

    def loss(logits: jax.Array) -> jax.Array:
        likely = jax.nn.log_softmax(logits)
        extended = jnp.full((8, 13), 15).at[:, 1::2].set(labels)
        skips = jnp.pad((extended[:, 2:] != extended[:, :-2]) & (extended[:, 2:] != 15), ((0, 0), (2, 0)))
        emitted = jnp.take_along_axis(likely, extended[:, None, :].repeat(24, 1), 2)
        start = jnp.full((8, 13), -1e5).at[:, :2].set(emitted[:, 0, :2])

        def step(alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
            one = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=-1e5)
            two = jnp.where(skips, jnp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=-1e5), -1e5)
            return jnp.logaddexp(jnp.logaddexp(alpha, one), two) + emission, None

        last, _ = jax.lax.scan(step, start, jnp.swapaxes(emitted, 0, 1)[1:])
        return -jnp.mean(jnp.logaddexp(last[:, -1], last[:, -2]))

    return jax.value_and_grad(loss)(logits)


@program(
    GRID,
    Argument((8, 16, 16, 3), P("x", None, None, None)),
    _weight(48, 32),
    _weight(32, 96, spec=WIDE),
    _weight(32, 32, spec=TALL),
)
def patch_transformer(images: jax.Array, embed: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """A vision transformer block: patches by reshaping, attention by heads."""

    def loss(embed: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
        patches = images.reshape(8, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(8, 16, 48)
        x = patches @ embed + jnp.sin(jnp.arange(16.0))[:, None]
        return jnp.mean((x + _attention(_normalised(x), into, out_of)) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(embed, into, out_of)


@program(GRID, TOKENS, _weight(64, 32, spec=TALL), _weight(32, 96, spec=WIDE), _weight(32, 32, spec=TALL))
def masked_language_model(tokens: jax.Array, table: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """BERT's objective: random positions masked in the step, tied embeddings split along the vocabulary, padding ignored."""

    def loss(table: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
        chosen = jax.random.bernoulli(jax.random.key(7), 0.15, tokens.shape)
        x = table[jnp.where(chosen, 63, tokens)]
        present = tokens > 5
        x = x + _attention(_normalised(x), into, out_of, present[:, None, None, :])
        logits = _normalised(x) @ table.T
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]
        counted = chosen & present
        return jnp.sum(jnp.where(counted, losses, 0)) / jnp.maximum(counted.sum(), 1)

    return jax.value_and_grad(loss, (0, 1, 2))(table, into, out_of)


@program(GRID, Argument((4, 64, 8), P("x", "y", None)), _weight(3, 8, 16), _weight(3, 16, 16), _weight(16, 48), _weight(16, 16))
def speech_encoder(sound: jax.Array, first: jax.Array, second: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """Convolutions along a split time axis, the second with stride 2, then attention over time."""
    convolve = partial(jax.lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"))

    def loss(first: jax.Array, second: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
        x = jax.nn.gelu(convolve(sound, first, (1,), ((1, 1),)))
        x = jax.nn.gelu(convolve(x, second, (2,), ((1, 1),)))
        return jnp.mean((x + _attention(_normalised(x), into, out_of)) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2, 3))(first, second, into, out_of)


@program(
    GRID, Argument((4, 32, 16, 8), P("x", "y", None, None)), _weight(3, 3, 8, 16), _weight(3, 3, 16, 8), Argument((4,), P("x"))
)
def diffusion_block(image: jax.Array, down: jax.Array, up: jax.Array, time: jax.Array) -> Tree:
    """A U-Net block with group normalisation and a time embedding, rows split over 4, down and up again."""
    convolve = partial(jax.lax.conv_general_dilated, padding="SAME", dimension_numbers=NHWC)

    def group_norm(x: jax.Array) -> jax.Array:
        grouped = x.reshape(*x.shape[:3], 4, -1)
        centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
        return (centred * jax.lax.rsqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)

    def loss(down: jax.Array, up: jax.Array) -> jax.Array:
        noise = jax.random.normal(jax.random.key(0), image.shape)
        angles = time[:, None] * jnp.exp(-jnp.arange(8.0))
        noisy = image * 0.8 + noise * 0.6 + jnp.sin(angles)[:, None, None]
        half = convolve(jax.nn.silu(group_norm(noisy)), down, (2, 2))
        again = jax.image.resize(jax.nn.silu(group_norm(half)), (4, 32, 16, 16), "nearest")
        return jnp.mean((convolve(again, up, (1, 1)) + noisy - noise) ** 2)

    return jax.value_and_grad(loss, (0, 1))(down, up)


@program(
    GRID, Argument((16, 4), P("x", None), below=128), Argument((16, 8), P("x", None)), _weight(128, 16, spec=TALL), _weight(24, 1)
)
def embedding_bags(ids: jax.Array, dense: jax.Array, table: jax.Array, top: jax.Array) -> Tree:
    """A recommender: bags summed from a table split by rows, feature interactions, the table's gradient a scatter."""

    def loss(table: jax.Array, top: jax.Array) -> jax.Array:
        bags = table[ids]
        features = jnp.concatenate([bags, jnp.tile(dense, 2)[:, None]], 1)
        crossed = jnp.einsum("bif,bjf->bij", features, features)[:, *jnp.triu_indices(5, 1)]
        score = jnp.concatenate([bags.sum(1)[:, :14], crossed], -1) @ top
        return jnp.mean(jax.nn.softplus(-score))

    return jax.value_and_grad(loss, (0, 1))(table, top)


@program(
    GRID,
    Argument((8, 16, 32), P("x", None, None)),
    _weight(32, 64, spec=WIDE),
    _weight(32, 4),
    _weight(4, 64, spec=WIDE),
    out=(WHOLE, (WHOLE, WIDE)),
)
def low_rank_tuning(x: jax.Array, frozen: jax.Array, a: jax.Array, b: jax.Array) -> Tree:
    """LoRA: gradients of two thin matrices beside a frozen one; two steps of momentum on them."""

    def loss(thin: Tree) -> jax.Array:
        return jnp.mean(jnp.tanh(x @ frozen + (x @ thin[0]) @ thin[1]) ** 2)

    def step(state: Tree, _: None) -> Tree:
        thin, speed = state
        value, slope = jax.value_and_grad(loss)(thin)
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, slope)
        return (jax.tree.map(lambda p, v: p - 0.1 * v, thin, speed), speed), value

    (thin, _), losses = jax.lax.scan(step, ((a, b), (jnp.zeros_like(a), jnp.zeros_like(b))), None, length=2)
    return losses, thin


PROGRAMS["low_rank_tuning_by_sequence"] = replace(
    low_rank_tuning,
    name="low_rank_tuning_by_sequence",
    axes=(("x", 4), ("y", 2)),
    arguments=(
        Argument((8, 16, 32), P(None, ("x", "y"), None)),
        *[_weight(*shape, spec=COLUMNS) for shape in ((32, 64), (32, 4), (4, 64))],
    ),
    out_specs=None,
)
"""The same with the sequence split and results left open: what is trained lies in columns, as it comes in."""


@program(LINE, Argument((8, 8, 16), P(None, "x", None)), _weight(16, 32), _weight(32, 8))
def accumulated_gradients(batches: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """Microbatches under scan, gradients summed, clipped by their global norm."""

    def loss(weights: Tree, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1]) ** 2)

    def step(total: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        value, slope = jax.value_and_grad(loss)((into, out_of), x)
        return jax.tree.map(jnp.add, total, slope), value

    total, losses = jax.lax.scan(step, (jnp.zeros_like(into), jnp.zeros_like(out_of)), batches)
    norm = jnp.sqrt(sum(jnp.sum(part**2) for part in total))
    return losses.mean(), [part * jnp.minimum(1.0, 0.1 / norm) for part in total]


@program(
    GRID,
    Argument((16, 8), P("x", None)),
    Argument((16,), P("x"), below=4),
    Argument((16, 12), P("x", None)),
    _weight(8, 4),
    _weight(8, 1),
)
def clipped_policy(states: jax.Array, actions: jax.Array, rewards: jax.Array, policy: jax.Array, critic: jax.Array) -> Tree:
    """PPO: advantages by a reverse scan, normalised over the batch; clipped ratios; an entropy bonus."""
    _, returns = jax.lax.scan(lambda sum_, r: (r + 0.9 * sum_,) * 2, jnp.zeros(16), rewards.T, reverse=True)
    advantage = (returns[0] - returns[0].mean()) / (returns[0].std() + 1e-6)

    def loss(policy: jax.Array, critic: jax.Array) -> jax.Array:
        likely = jax.nn.log_softmax(states @ policy)
        ratio = jnp.exp(jnp.take_along_axis(likely, actions[:, None], 1)[:, 0] + 1.4)
        surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        entropy = -jnp.sum(jnp.exp(likely) * likely, -1)
        return jnp.mean(-surrogate - 0.01 * entropy + (returns[0] - (states @ critic)[:, 0]) ** 2)

    return jax.value_and_grad(loss, (0, 1))(policy, critic)


@program(GRID, Argument((16, 32), P("x", None)), _weight(32, 64, spec=WIDE), _weight(64, 16, spec=TALL), tolerance=2e-2)
def mixed_precision_step(x: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """bfloat16 products of float32 weights, a scaled loss, gradients dropped where they overflow."""

    def loss(weights: Tree) -> jax.Array:
        low = [weight.astype(jnp.bfloat16) for weight in weights]
        return jnp.mean(((jax.nn.relu(x.astype(jnp.bfloat16) @ low[0]) @ low[1]).astype(jnp.float32)) ** 2) * 1024

    value, slope = jax.value_and_grad(loss)((into, out_of))
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(part)) for part in slope]))
    return value, [
        jnp.where(finite, weight - 1e-4 * part / 1024, weight) for weight, part in zip((into, out_of), slope, strict=True)
    ]


@program(LINE, Argument((16, 8), ROWS), _weight(8, 15), Argument((16, 1), ROWS))
def mixture_density(x: jax.Array, weight: jax.Array, target: jax.Array) -> Tree:
    def loss(weight: jax.Array) -> jax.Array:
        mixture, centre, spread = jnp.split(x @ weight, 3, -1)
        normal = -0.5 * ((target - centre) * jnp.exp(-spread)) ** 2 - spread
        return -jnp.mean(jax.nn.logsumexp(jax.nn.log_softmax(mixture) + normal, -1))

    return jax.value_and_grad(loss)(weight)


@program(LINE, Argument((8, 16), ROWS), Argument((16, 64), COLUMNS, 0.25), Argument((64, 16), ROWS, 0.12))
def quantised_layer(x: jax.Array, into: jax.Array, out_of: jax.Array) -> Tree:
    """int8 products with scales by row and column, and a straight-through estimator behind custom_vjp."""

    @jax.custom_vjp
    def rounded(w: jax.Array) -> jax.Array:
        scale = jnp.max(jnp.abs(w), 0, keepdims=True) / 127
        return jnp.round(w / scale) * scale

    rounded.defvjp(lambda w: (rounded(w), None), lambda _, g: (g,))

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        row, column = jnp.max(jnp.abs(x), 1, keepdims=True) / 127, jnp.max(jnp.abs(w), 0, keepdims=True) / 127
        whole = [jnp.round(a / b).astype(jnp.int8) for a, b in ((x, row), (w, column))]
        return jax.lax.dot(*whole, preferred_element_type=jnp.int32).astype(jnp.float32) * row * column

    gradients = jax.grad(lambda a, b: jnp.sum(jnp.tanh(x @ rounded(a)) @ rounded(b)), (0, 1))(into, out_of)
    return product(jnp.tanh(product(x, into)), out_of), gradients


@program(GRID, Argument((8, 32, 16), P("x", "y", None)), _weight(16, 48), _weight(16, 16), _weight(16, 32), _weight(32, 16))
def sequence_parallel_block(x: jax.Array, into: jax.Array, out_of: jax.Array, up: jax.Array, down: jax.Array) -> Tree:
    """A decoder block whose sequence is split over 4, rematerialised, with dropout, forward and backward."""

    @jax.checkpoint
    def block(x: jax.Array, into: jax.Array, out_of: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        causal = jnp.tril(jnp.ones((32, 32), bool))
        x = x + _attention(_normalised(x), into, out_of, causal)
        kept = jax.random.bernoulli(jax.random.key(1), 0.9, (8, 32, 32))
        return x + jnp.where(kept, jax.nn.gelu(_normalised(x) @ up), 0) @ down

    return jax.value_and_grad(lambda *weights: jnp.mean(block(x, *weights) ** 2), (0, 1, 2, 3))(into, out_of, up, down)


@program(
    GRID,
    Argument((8, 64, 4, 8), P("x", "y", None, None)),
    Argument((8, 64, 4, 8), P("x", "y", None, None)),
    Argument((8, 1, 4, 8), P("x", None, None, None)),
    Argument((), WHOLE, below=60),
    out=(P("x"), P("x", "y"), P("x", "y")),
)
def decode_with_rotation(keys: jax.Array, values: jax.Array, new: jax.Array, place: jax.Array) -> Tree:
    """One decoding step: rotary positions, the cache split by sequence and updated at a place of run time."""

    def rotate(x: jax.Array, place: jax.Array) -> jax.Array:
        angle = place * 10000.0 ** (-jnp.arange(4) / 4)
        left, right = jnp.split(x, 2, -1)
        return jnp.concatenate(
            [left * jnp.cos(angle) - right * jnp.sin(angle), right * jnp.cos(angle) + left * jnp.sin(angle)], -1
        )

    keys = jax.lax.dynamic_update_slice(keys, rotate(new, place), (0, place, 0, 0))
    values = jax.lax.dynamic_update_slice(values, new, (0, place, 0, 0))
    scores = jnp.einsum("bqhd,bkhd->bhqk", rotate(new, place), keys)
    scores = jnp.where(jnp.arange(64) <= place, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values), keys, values


@program(LINE, Argument((8, 12, 16), P("x", None, None)), _weight(32, 64), Argument((64,), WHOLE, 0.1))
def gated_recurrence(x: jax.Array, weight: jax.Array, bias: jax.Array) -> Tree:
    """An LSTM under scan with its gradient; sequences of different lengths, frozen at their end."""
    lengths = jnp.arange(8) + 5

    def loss(weight: jax.Array, bias: jax.Array) -> jax.Array:
        def step(state: Tree, input_and_time: Tree) -> Tree:
            hidden, cell = state
            now, time = input_and_time
            gates = jnp.concatenate([now, hidden], -1) @ weight + bias
            ins, forget, out, new = jnp.split(gates, 4, -1)
            after = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(ins) * jnp.tanh(new)
            moved = (jax.nn.sigmoid(out) * jnp.tanh(after), after)
            goes_on = (time < lengths)[:, None]
            return jax.tree.map(lambda a, b: jnp.where(goes_on, a, b), moved, state), hidden

        zero = jnp.zeros((8, 16))
        (last, _), every = jax.lax.scan(step, (zero, zero), (jnp.swapaxes(x, 0, 1), jnp.arange(12)))
        return jnp.mean(last**2) + jnp.mean(every)

    return jax.value_and_grad(loss, (0, 1))(weight, bias)


@program(
    GRID,
    Argument((8, 16, 32), P("x", None, None)),
    _weight(32, 4),
    Argument((4, 32, 64), P("y", None, None), 0.2),
    Argument((4, 64, 32), P("y", None, None), 0.2),
)
def experts_with_capacity(x: jax.Array, router: jax.Array, up: jax.Array, down: jax.Array) -> Tree:
    """Top-2 routing with places by cumulative sums and a capacity; experts over 4; forward and backward."""

    def loss(router: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        tokens = x.reshape(-1, 32)
        gates, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ router), 2)
        one_hot = jax.nn.one_hot(chosen, 4)
        place = (jnp.cumsum(one_hot.reshape(-1, 4), 0) - 1).reshape(one_hot.shape) * one_hot
        slots = jax.nn.one_hot(place.sum(-1).astype(int), 80) * (place.sum(-1) < 80)[..., None]
        combine = jnp.einsum("tk,tke,tkc->tec", gates, one_hot, slots)
        hidden = jax.nn.relu(jnp.einsum("tec,td,edf->ecf", (combine > 0).astype(x.dtype), tokens, up))
        return jnp.mean(jnp.einsum("tec,ecf,efd->td", combine, hidden, down) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(router, up, down)


@program(
    GRID, Argument((8, 32, 64), P("x", None, None)), _weight(64, 256, spec=WIDE), _weight(32, 32), _weight(128, 64, spec=TALL)
)
def spatial_gating(x: jax.Array, into: jax.Array, mix: jax.Array, out_of: jax.Array) -> Tree:
    """A gMLP block: the hidden layer is cut in two across its shards, one half mixed along the sequence to gate the other."""

    def loss(into: jax.Array, mix: jax.Array, out_of: jax.Array) -> jax.Array:
        kept, gate = jnp.split(jax.nn.gelu(_normalised(x) @ into), 2, -1)
        return jnp.mean((x + (kept * jnp.einsum("bnd,nm->bmd", _normalised(gate), mix)) @ out_of) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(into, mix, out_of)


@program(
    GRID,
    Argument((8, 32, 64), P("x", None, None)),
    *[_weight(64, n, spec=WIDE) for n in (64, 16, 16)],
    _weight(64, 64, spec=TALL),
)
def grouped_queries(x: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, out_of: jax.Array) -> Tree:
    """Attention of eight query heads and two heads of keys and values, on four shards."""

    def loss(query: jax.Array, key: jax.Array, value: jax.Array, out_of: jax.Array) -> jax.Array:
        q, k, v = (x @ query).reshape(8, 32, 2, 4, 8), _heads(x @ key, 2), _heads(x @ value, 2)
        scores = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), jnp.einsum("bqkgd,btkd->bkgqt", q, k) * 8**-0.5, -1e9)
        mixed = jnp.einsum("bkgqt,btkd->bqkgd", jax.nn.softmax(scores), v).reshape(x.shape)
        return jnp.mean((x + mixed @ out_of) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2, 3))(query, key, value, out_of)


@program(
    (("x", 2), ("y", 2), ("z", 2)),
    Argument((8, 12, 32), P("x", None, None)),
    *[_weight(32, 96, spec=P(*axes)) for axes in ("xz", "zx", "xz", "zx")],
    out=None,
)
def both_directions(x: jax.Array, into: jax.Array, again: jax.Array, back_into: jax.Array, back_again: jax.Array) -> Tree:
    """A GRU from either end; its weights are split along the batch's axis too, so that loops add up their gradients' shards."""

    def states(xs: jax.Array, into: jax.Array, again: jax.Array) -> jax.Array:
        def step(hidden: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            (reset, update, new), (kept, stays, old) = jnp.split(now @ into, 3, -1), jnp.split(hidden @ again, 3, -1)
            share = jax.nn.sigmoid(update + stays)
            hidden = (1 - share) * jnp.tanh(new + jax.nn.sigmoid(reset + kept) * old) + share * hidden
            return hidden, hidden

        return jax.lax.scan(step, jnp.zeros((8, 32)), xs)[1]

    def loss(*weights: jax.Array) -> jax.Array:
        xs = jnp.swapaxes(x, 0, 1)
        return jnp.mean(jnp.concatenate([states(xs, *weights[:2]), states(xs[::-1], *weights[2:])[::-1]], -1) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2, 3))(into, again, back_into, back_again)
