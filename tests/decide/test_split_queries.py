"""Attention whose queries are split along their sequence: planned so too, for keys and values to travel around the devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from meshbridge import partitioning, pipeline
from meshbridge.decide.propagate import Propagator
from meshbridge.decide.split_queries import keep_split_queries
from meshbridge.ir.mlir import context, ir
from meshbridge.overlap.attention.ring_attention import RingAttention
from meshbridge.pipeline import PlanVariant
from meshbridge.read import formats
from tests.decide.graphs import graph_of
from tests.overlap.attention.attention_programs import Attention, causal, check_numbers, counted, drawn, hand_written, multiplied

EXCHANGED = "v5e:2x4"


def program(attention: Attention, mesh: jax.sharding.Mesh, spec: PartitionSpec, arguments: list[Any]) -> ir.Module:
    """The exported gradients of a layer of attention whose arguments are sharded so."""
    step = jax.grad(lambda *each: (attention(*each).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))
    jitted = jax.jit(step, in_shardings=NamedSharding(mesh, spec), out_shardings=NamedSharding(mesh, spec))
    return formats.unpack(jax.export.export(jitted)(*arguments), context()).module


def planned(module: ir.Module, machine: str, *passes: pipeline.Pass, keeps_queries: bool) -> ir.Module:
    """One device's program in that way, without the passes that hide collectives, but for these."""
    options = pipeline.Options.of(machine=machine, emit="mesh")
    stages = pipeline.build(options, PlanVariant(keeps_queries=keeps_queries)).until("partitioned")
    pipeline.run((*stages.passes, *passes), module)
    return module


@pytest.mark.parametrize(
    "attention",
    [hand_written(causal), hand_written(lambda scores: scores), partial(jax.nn.dot_product_attention, is_causal=True)],
    ids=["causal", "unmasked", "library"],
)
def test_queries_stay_where_they_are(attention: Attention, mesh: jax.sharding.Mesh) -> None:
    """Heads are not exchanged for parts of the sequence, and rings have the numbers of one device."""
    arguments = drawn()
    rows = NamedSharding(mesh, PartitionSpec("data", "model"))
    exported = jax.export.export(jax.jit(attention, in_shardings=rows, out_shardings=rows))(*arguments)
    kept, free = (planned(formats.unpack(exported, context()).module, "bytes", keeps_queries=keeps) for keeps in (True, False))
    assert [counted(kept, f"mesh.{kind}") for kind in ("all_to_all", "all_gather")] == [0, 2]
    assert counted(free, "mesh.all_to_all") == 4
    pipeline.run((RingAttention(balance=True),), kept)
    assert counted(kept, "mesh.shift")
    check_numbers(kept, attention, arguments)


def test_the_predicted_step_chooses(mesh: jax.sharding.Mesh) -> None:
    """Of a long sequence the balanced ring computes half of the products, and two of seven again. It sends more."""
    shapes = [jax.ShapeDtypeStruct((2, 16384, heads, 64), jnp.bfloat16) for heads in (8, 4, 4)]
    spec, options = PartitionSpec("data", "model"), pipeline.Options.of(machine=EXCHANGED, emit="mesh")
    found, free = (program(hand_written(causal), mesh, spec, shapes) for _ in range(2))
    partitioning.partition_module(found, options)
    pipeline.run(pipeline.build(options, PlanVariant()).passes, free)
    assert [bool(counted(each, "mesh.all_to_all")) for each in (free, found)] == [True, False]
    assert multiplied(found) < 0.7 * multiplied(free)


@pytest.mark.parametrize(
    ("spec", "are_split"),
    [(PartitionSpec("data", "model"), True), (PartitionSpec("data", None, "model"), False)],
    ids=["queries", "heads"],
)
def test_queries_are_found_only_where_they_are_split(spec: PartitionSpec, are_split: bool, mesh: jax.sharding.Mesh) -> None:
    assert has_split_queries(program(hand_written(causal), mesh, spec, drawn())) == are_split


def test_keys_that_are_split_are_no_queries(mesh: jax.sharding.Mesh) -> None:
    """As in decoding."""
    query, *cache = drawn()
    attention = hand_written(lambda scores: scores)
    rows, keys = (NamedSharding(mesh, PartitionSpec("data", *rest)) for rest in ((), ("model",)))
    jitted = jax.jit(attention, in_shardings=(rows, keys, keys), out_shardings=rows)
    assert not has_split_queries(formats.unpack(jax.export.export(jitted)(query[:, :1], *cache), context()).module)


def test_logits_are_no_scores() -> None:
    """Although their exponentials are added up, too: what they are computed of is not split along the vocabulary."""
    devices = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = NamedSharding(devices, PartitionSpec("data"))
    loss = jax.jit(lambda x, w: jax.nn.logsumexp(x @ w, axis=-1).sum(), in_shardings=(rows, rows))
    assert not has_split_queries(formats.unpack(jax.export.export(loss)(jnp.ones((16, 8)), jnp.ones((8, 32))), context()).module)


def has_split_queries(module: ir.Module) -> bool:
    """Whether a plan that keeps queries split is tried."""
    pipeline.run(pipeline.build(pipeline.Options.of(machine=EXCHANGED)).until("legal").passes, module)
    graph = graph_of(module)
    Propagator(graph).run("backward-forward")
    return keep_split_queries(graph)
