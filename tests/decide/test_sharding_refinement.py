"""Propagation's own small parts: folding repeated layers, determinism, and that refinement only ever lowers the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

import meshbridge
from meshbridge.cost.communication import Collective, communication
from meshbridge.decide.assign import Assigner
from meshbridge.decide.choice import EndPrices
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.propagate import Propagator
from meshbridge.decide.routes import refine
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect import assembly
from meshbridge.dialect.attributes import axis_array
from meshbridge.dialect.ops import OPTION
from meshbridge.ir.mlir import context, ir, walk_all
from meshbridge.ir.sharding import Sharding
from meshbridge.pipeline import Options, build, run
from meshbridge.read import formats
from testdata.realistic.catalogue import build as build_realistic
from tests.decide.graphs import graph_of
from tests.operations.differential import Spec, device_mesh

MESH = build(Options.of(emit="mesh", machine="bytes"))


def _network(layers: int) -> jax.export.Exported:
    """Layers of two contractions, rows split over `a`, the hidden dimension over `b`."""
    mesh = device_mesh((2, 4))

    def function(x: jax.Array, weights: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        for into, out_of in weights:
            x = x + jnp.tanh(x @ into) @ out_of
        return x

    def named(*spec: str | None) -> NamedSharding:
        return NamedSharding(mesh, Spec(*spec))

    shardings = (named("a", None), [(named(None, "b"), named("b", None))] * layers)
    weights = [(jax.ShapeDtypeStruct((32, 64), "float32"), jax.ShapeDtypeStruct((64, 32), "float32"))] * layers
    return jax.export.export(jax.jit(function, in_shardings=shardings))(jax.ShapeDtypeStruct((16, 32), "float32"), weights)


def _annotated(exported: jax.export.Exported, *, until: str = "decided") -> ir.Module:
    module = formats.unpack(exported, context()).module
    run(build(Options.of(emit="annotated", machine="bytes")).until(until).passes, module)
    return module


def test_layers_fold() -> None:
    """A network of 24 equal layers has as many kinds of slots and nodes as one of 12."""
    sizes = []
    for layers in (12, 24):
        module = _annotated(_network(layers), until="legal")
        folded, standing_for = fold_layers(graph_of(module))
        assert len(set(standing_for)) == len(folded.tensors)
        sizes.append((len(folded.tensors), len(folded.nodes)))
    assert sizes[0] == sizes[1]


def test_more_layers_cost_no_more_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding 48 equal layers prices, propagates and assigns nothing that deciding 16 has not; nor does the next program."""
    priced: list[Sharding] = []
    price = EndPrices.__missing__

    def counted(prices: EndPrices, sharding: Sharding) -> float:
        priced.append(sharding)
        return price(prices, sharding)

    monkeypatch.setattr(EndPrices, "__missing__", counted)
    counts = []
    for layers in (16, 48):
        module = _annotated(_network(layers), until="legal")
        graph = graph_of(module)
        propagator = Propagator(graph)
        propagator.run("backward-forward")
        refine(graph, ShardingRefinement.moves, graph.pricing.objective)
        assigner = Assigner(graph, lambda *_: None)
        assigner.run()
        counts.append((len(priced), propagator.count, assigner.count))
    assert counts[0] == counts[1]
    assert all(counts[0])


def test_deterministic() -> None:
    """The same program gives the same text, character by character."""
    exported = _network(3)
    assert assembly.write(_annotated(exported)) == assembly.write(_annotated(exported))


def test_refinement_lowers_bytes() -> None:
    """Refinement ends with no more bytes than it starts with."""
    totals = []
    for moves in (0, 2000):
        module = formats.unpack(_network(3), context()).module
        run(MESH.replacing("decided", ShardingRefinement(moves=moves)).passes, module)
        totals.append(communication(module).wire_bytes)
    assert totals[1] <= totals[0]


def _collectives(
    function: Callable[..., object], shapes: Sequence[tuple[int, ...]], specs: Sequence[Spec], out: Spec
) -> list[Collective]:
    """The collectives of a program on a mesh of 2 and 4 devices, its arguments lying as `specs`."""
    mesh = device_mesh((2, 4))
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    jitted = jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, out))
    module = formats.unpack(jax.export.export(jitted)(*arguments), context()).module
    run(MESH.passes, module)
    return list(communication(module).collectives)


def test_sums_are_joined_before_they_are_scattered() -> None:
    """Three products that are partial over `b`, added, and wanted in shards of `b`: one reduce-scatter, of their sum."""

    def gradient(x: jax.Array, y: jax.Array, z: jax.Array, u: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        return x @ u + jnp.negative(y @ v) + z @ w

    found = _collectives(
        gradient, [(64, 512)] * 3 + [(512, 32)] * 3, [Spec("a", "b")] * 3 + [Spec("b", None)] * 3, Spec(("a", "b"), None)
    )
    assert [collective.kind for collective in found] == ["reduce_scatter"]


def test_loops_finish_their_sums_once() -> None:
    """Gradients that a scan adds up over micro-batches are reduced after it; so are those of a scan within a scan."""

    def accumulate(weights: jax.Array, batches: jax.Array) -> jax.Array:
        def step(total: jax.Array, batch: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(lambda w: jnp.sum(jnp.tanh(batch @ w)))(weights), None

        def outer(total: jax.Array, group: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.lax.scan(step, jnp.zeros_like(weights), group)[0], None

        return jax.lax.scan(outer, jnp.zeros_like(weights), batches)[0]

    found = _collectives(
        accumulate, [(64, 64), (3, 5, 1024, 64)], [Spec(None, None), Spec(None, None, ("a", "b"))], Spec(None, None)
    )
    assert [(collective.kind, collective.executions) for collective in found] == [("all_reduce", 1)]


def test_loops_keep_what_later_readers_want() -> None:
    """A state that every step reads whole is gathered once a step, though the backward loop reads it again."""

    def loss(state: jax.Array, weights: jax.Array) -> jax.Array:
        def step(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ weights), None

        return jnp.sum(jax.lax.scan(step, state, None, length=16)[0] ** 2)

    found = _collectives(jax.grad(loss, 1), [(64, 256), (256, 256)], [Spec("a", "b"), Spec(None, "b")], Spec(None, "b"))
    gathers = [collective for collective in found if collective.kind == "all_gather" and collective.executions == 16]
    assert len(gathers) == 1


def test_barriers_hand_on_each_value_for_itself() -> None:
    """Two values that are sharded along the same axis go through one optimisation barrier: neither is gathered."""

    def held(x: jax.Array, w: jax.Array) -> jax.Array:
        x, w = jax.lax.optimization_barrier((jnp.sin(x), w))
        return x @ w

    found = _collectives(held, [(64, 512), (512, 64)], [Spec("a", "b"), Spec("b", None)], Spec("a", None))
    assert [collective.kind for collective in found] == ["all_reduce"]


def test_what_a_loop_carries_is_gathered_again_after_it() -> None:
    """A thin matrix that two steps and the end read replicated: it stays replicated, and need not be gathered in the end."""

    def train(x: jax.Array, thin: jax.Array) -> jax.Array:
        def step(thin: jax.Array, _: None) -> tuple[jax.Array, None]:
            return thin - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(thin), None

        return jax.lax.scan(step, thin, None, length=2)[0]

    found = _collectives(train, [(256, 16), (16, 4)], [Spec(("a", "b"), None), Spec(None, None)], Spec(None, None))
    assert {collective.executions for collective in found} == {2}


def test_what_some_of_a_class_have_the_others_may_take() -> None:
    """Moments of positions are split along the sequence, and tokens along the batch: all activations follow the tokens."""
    exported = build_realistic("adam_zero1", "inputs", 64).export_for("cpu")
    report = meshbridge.report(exported, machine="bytes")
    assert report.bytes_by_kind()["all_to_all"] < report.wire_bytes / 20


def test_what_is_computed_side_by_side_moves_together() -> None:
    """Tokens go to their experts in the forward and in the backward pass: in one alone, weights would be gathered still."""
    inputs, constrained = (
        meshbridge.report(build_realistic("moe_lm", annotation, 8).export_for("cpu"), machine="bytes").wire_bytes
        for annotation in ("inputs", "constrained")
    )
    assert inputs < 1.001 * constrained


def test_groups_of_a_few_numbers_leave_the_rows_of_a_model_whole() -> None:
    """Rewards are compared in groups, of which there are fewer than devices: activations are sharded by rows on all of these."""
    inputs, constrained = (
        meshbridge.report(build_realistic("grpo_llama8_scan_fsdp", annotation, 8).export_for("cpu"), machine="bytes").wire_bytes
        for annotation in ("inputs", "constrained")
    )
    assert inputs < 1.001 * constrained


def test_readers_of_a_value_that_moves_share_one_move() -> None:
    """A product that is computed in columns, but halved and read by several ops in rows: one all-to-all brings it there."""

    def gated(x: jax.Array, w: jax.Array) -> jax.Array:
        product = x @ w
        gate, value = jnp.split(jnp.cos(product), 2, -1)
        other, last = jnp.split(jnp.exp(product), 2, -1)
        return jax.nn.softmax(gate * other) * value + last

    found = _collectives(gated, [(64, 64), (64, 128)], [Spec("a", None), Spec(None, "b")], Spec(("a", "b"), None))
    assert [collective.kind for collective in found] == ["all_to_all"]
    assert found[0].total_bytes == 3 / 4 * 32 * 32 * 4


def test_a_product_contracts_along_what_its_operands_were_moved_to() -> None:
    """Two operands in columns, both moved to rows for products before: their own product contracts the rows, which nothing but
    those moves suggests."""

    def gradients(x: jax.Array, y: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        both = jnp.tanh(x @ v) + jnp.tanh(y @ w)
        return jax.lax.with_sharding_constraint(both, rows), jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())))

    axes = ("a", "b")
    rows, shapes = NamedSharding(device_mesh((2, 4)), Spec(axes)), [(1024, 64), (1024, 64), (64, 64), (64, 64)]
    found = _collectives(gradients, shapes, [Spec(None, axes), Spec(None, axes), Spec(), Spec()], Spec(axes))
    assert sorted(collective.kind for collective in found) == ["all_to_all", "all_to_all", "reduce_scatter"]


def test_axes_that_nobody_uses_stay_unused() -> None:
    """A program whose arguments and results everybody holds whole sends nothing, however much there is to compute."""
    assert not _collectives(lambda x, w: jnp.tanh(x @ w) @ w.T, [(512, 512), (512, 512)], [Spec(), Spec()], Spec())


def test_free_axes_at_the_border_of_a_manual_computation_may_move() -> None:
    """A sum over the manual axis `a`: its rows stay split along `b`, though the weight before it would have columns split."""

    def total(x: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
        manual = jax.shard_map(
            lambda mine: jax.lax.psum(jnp.sum(mine, 0), "a")[None] + mine,
            mesh=device_mesh((2, 4)),
            in_specs=Spec("a"),
            out_specs=Spec("a"),
            axis_names={"a"},
            check_vma=False,
        )
        return jnp.tanh(manual(x @ into @ out_of))

    specs = [Spec("a", "b", None), Spec(None, None), Spec("a", "b")]
    found = _collectives(total, [(8, 64, 32), (32, 64), (64, 32)], specs, Spec("a", "b", None))
    assert [collective.kind for collective in found] == ["all_gather", "all_reduce"]


@pytest.mark.parametrize("split", ["[0], []", "[], [1]", "[0], [1]", "[0, 1], []"])
def test_a_value_read_in_two_places(split: str) -> None:
    """Where both operands are one value, propagation ends though each place wants it otherwise."""
    program = f"""
mesh.mesh @m(shape = 2x4)
func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {{
  %s = mesh.sharding @m split_axes = [{split}] : !mesh.sharding
  %0 = stablehlo.tanh %x : tensor<32x32xf32>
  %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %2 = mesh.shard %1 to %s : tensor<32x32xf32>
  return %2 : tensor<32x32xf32>
}}"""
    module = formats.read(program.encode(), "a.mlir", context()).module
    run(build(Options.of(emit="annotated", machine="bytes")).passes, module)
    product = next(op for op in walk_all(module) if op.name == "stablehlo.dot_general")
    assert axis_array(product.attributes[OPTION])[:2] == axis_array(
        ir.Attribute.parse(f"#mesh.axisarray<[{split}]>", module.context)
    )
