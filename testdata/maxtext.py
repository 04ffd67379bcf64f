"""The training step of a decoder as MaxText runs it on TPUs, of any size: what benchmarks/maxtext.py predicts.

Layers are under `lax.scan`, each computed again in the backward pass but for what a run saves. Parameters and the moments of Adam
are float32, activations bfloat16. Tokens are embedded by a product with their one-hot rows. Attention is a kernel that says what
it computes and does nothing: nobody runs these programs. Mixtures of experts drop the tokens beyond an expert's capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.sharding import PartitionSpec as P

from testdata.moe import combine_weights
from testdata.program import Argument, Program, Tree
from testdata.realistic.layers import cross_entropy
from testdata.scaled import normalise, rotated

RATE, FIRST, SECOND, SMALL = 1e-3, 0.9, 0.95, 1e-8

BATCH = ("data", "fsdp", "expert")
WIDTH = ("fsdp", "expert")
"""The axes along which sequences are split, and the residual stream's dimension of parameters."""

CAPACITY = 1.25
"""Slots of the experts for each token and choice."""


@dataclass(frozen=True)
class Model:
    """The sizes of a decoder. With `experts`, each token has two of them."""

    width: int
    hidden: int
    heads: int
    key_heads: int
    layers: int
    vocabulary: int
    experts: int = 0
    head: int = 128


@dataclass(frozen=True)
class Parallelism:
    """Devices along each axis of the mesh."""

    data: int = 1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.fsdp * self.expert * self.tensor


@dataclass(frozen=True)
class Run:
    """How a model is trained: `batch` sequences of each device, of that `length`."""

    batch: int
    length: int
    saved: tuple[str, ...] = ()
    "Of a layer's values, those that are kept for the backward pass: query, key, value, context, out_proj, mlpwi, mlpwo."
    weights: str = "float32"
    "The element type of parameters and moments."
    fused: bool = True
    "Whether one kernel computes all gradients of attention; else one those of queries, and another those of keys and values."


def training_step(model: Model, how: Parallelism, run: Run) -> Program:
    """The loss, and Adam's update."""
    parameters = _parameters(model, run.weights)
    tokens = Argument((run.batch * how.devices, run.length), P(BATCH, None), below=model.vocabulary)
    return Program(
        name="maxtext",
        axes=tuple(vars(how).items()),
        function=partial(_step, model=model, run=run),
        arguments=(parameters, (parameters, parameters), tokens, tokens),
        out_specs=(P(), *(jax.tree.map(lambda each: each.spec, part) for part in (parameters, (parameters, parameters)))),
        donated=(0, 1),
    )


def _parameters(model: Model, element: str) -> Tree:
    inner, keys = model.heads * model.head, model.key_heads * model.head
    into, out_of = P(WIDTH, "tensor"), P("tensor", WIDTH)
    mlp, experts = (), ()
    if model.experts:
        mlp, experts, into_mlp, out_of_mlp = (model.experts,), ("expert",), P("fsdp", "tensor"), P("tensor", "fsdp")
    else:
        into_mlp, out_of_mlp = into, out_of
    layer = {
        "attention_scale": ((model.width,), P()),
        "query": ((model.width, inner), into),
        "key": ((model.width, keys), into),
        "value": ((model.width, keys), into),
        "attention_out": ((inner, model.width), out_of),
        "mlp_scale": ((model.width,), P()),
        "gate": ((*mlp, model.width, model.hidden), P(*experts, *into_mlp)),
        "up": ((*mlp, model.width, model.hidden), P(*experts, *into_mlp)),
        "down": ((*mlp, model.hidden, model.width), P(*experts, *out_of_mlp)),
    }
    if model.experts:
        layer["router"] = ((model.width, model.experts), P(WIDTH, None))
    return {
        "embedding": Argument((model.vocabulary, model.width), out_of, element=element),
        "layers": {
            name: Argument((model.layers, *shape), P(None, *spec), element=element) for name, (shape, spec) in layer.items()
        },
        "final_scale": Argument((model.width,), P(), element=element),
        "output": Argument((model.width, model.vocabulary), into, element=element),
    }


def _step(
    parameters: Tree, moments: Tree, tokens: jax.Array, targets: jax.Array, *, model: Model, run: Run
) -> tuple[jax.Array, Tree, Tree]:
    loss, gradients = jax.value_and_grad(partial(_loss, model=model, run=run))(parameters, tokens, targets)
    first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, moments[1], gradients)
    changed = jax.tree.map(lambda p, m, v: p - RATE * m / (jnp.sqrt(v) + SMALL), parameters, first, second)
    return loss, changed, (first, second)


def _pinned(x: jax.Array, *spec: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, P(*spec))


def _residual(x: jax.Array) -> jax.Array:
    return _pinned(x, BATCH, None, "tensor")


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, model: Model, run: Run) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
        layer = jax.tree.map(lambda each: each.astype(jnp.bfloat16), layer)
        x = _residual(x + _attention(layer, normalise(x, layer["attention_scale"]), model, fused=run.fused))
        normal = normalise(x, layer["mlp_scale"])
        return _residual(x + (_experts if model.experts else _mlp)(layer, normal)), None

    rows = jax.nn.one_hot(tokens, model.vocabulary, dtype=jnp.bfloat16)
    x = _residual(rows @ parameters["embedding"].astype(jnp.bfloat16))
    kept = jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names(*run.saved))
    x, _ = jax.lax.scan(kept, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"].astype(jnp.bfloat16)) @ parameters["output"].astype(jnp.bfloat16)
    return cross_entropy(_pinned(logits, BATCH, None, "tensor"), targets)


def _mlp(layer: Tree, x: jax.Array) -> jax.Array:
    gate, up = (checkpoint_name(_pinned(x @ layer[name], BATCH, None, "tensor"), "mlpwi") for name in ("gate", "up"))
    return checkpoint_name((jax.nn.silu(gate) * up) @ layer["down"], "mlpwo")


def _experts(layer: Tree, x: jax.Array) -> jax.Array:
    """Each sequence fills slots of its own."""
    gates = jax.nn.softmax((x @ layer["router"]).astype(jnp.float32))
    capacity = round(2 * CAPACITY * x.shape[1] / gates.shape[-1])
    combine = combine_weights(gates, capacity=capacity).astype(x.dtype)

    def by_expert(y: jax.Array) -> jax.Array:
        return _pinned(y, "expert", ("data", "fsdp"), None, None)

    given = by_expert(jnp.einsum("gsec,gsd->egcd", (combine > 0).astype(x.dtype), x))
    gate, up = (checkpoint_name(jnp.einsum("egcd,edf->egcf", given, layer[name]), "mlpwi") for name in ("gate", "up"))
    found = by_expert(jnp.einsum("egcf,efd->egcd", jax.nn.silu(gate) * up, layer["down"]))
    return checkpoint_name(jnp.einsum("gsec,egcd->gsd", combine, found), "mlpwo")


def _attention(layer: Tree, x: jax.Array, model: Model, *, fused: bool) -> jax.Array:
    batch, length, _ = x.shape
    query, key, value = (
        (x @ layer[name]).reshape(batch, length, heads, model.head)
        for name, heads in (("query", model.heads), ("key", model.key_heads), ("value", model.key_heads))
    )
    named = [checkpoint_name(each, name) for each, name in ((rotated(query), "query"), (rotated(key), "key"), (value, "value"))]
    heads = P(BATCH, None, "tensor", None)
    mesh = jax.sharding.get_abstract_mesh()
    kernel = jax.shard_map(_flash(BACKWARD[fused]), mesh=mesh, in_specs=(heads,) * 3, out_specs=heads, check_vma=False)
    return checkpoint_name(kernel(*named).reshape(batch, length, -1) @ layer["attention_out"], "out_proj")


FORWARD, BACKWARD = 2, {True: 5, False: 7}
"""Products of MaxText's kernels: scores and their sums of values; scores again and the gradients, for which two kernels compute
scores and their gradients twice. Blocks beyond the diagonal are left out: half of each product is computed."""


@cache
def _flash(backward: int) -> Callable[..., jax.Array]:
    """Causal attention whose gradients take so many products."""

    @jax.custom_vjp
    def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return forward(query, key, value)[0]

    def forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
        sums = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
        found = [checkpoint_name(each, "context") for each in _kernel(FORWARD, (query, sums), query, key, value)]
        return found[0], (query, key, value, *found)

    def gradients(held: Any, gradient: jax.Array) -> Any:
        return tuple(_kernel(backward, held[:3], *held, gradient))

    attention.defvjp(forward, gradients)
    return attention


def _kernel(products: int, like: Any, *operands: jax.Array) -> list[jax.Array]:
    """A kernel that gives values of the shapes of some others, and says that it multiplies scores so many times."""
    query, key = operands[:2]
    flops = products * query.size * key.shape[1]  # two for each multiply-add of half the scores
    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    found: list[jax.Array] = pallas.pallas_call(
        lambda *_: None,
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like],
        in_specs=[anywhere] * len(operands),
        out_specs=[anywhere] * len(like),
        cost_estimate=pallas.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=0),
    )(*operands)
    return found


def export(program: Program) -> Any:
    """The program as an artifact for TPUs, kernels and all."""
    names, sizes = zip(*program.axes, strict=True)
    mesh = jax.sharding.AbstractMesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))
    unchecked = [jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.export.export(program.jit(mesh), platforms=("tpu",), disabled_checks=unchecked)(*program.avals())


__all__ = ["BATCH", "Model", "Parallelism", "Run", "export", "training_step"]
