"""Plans for machines whose links differ: less goes along slow ones, or while it is small, and the step is no slower."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MeshError, machines, partitioning, pipeline, resharding
from meshbridge.cost.objective import objective
from meshbridge.ir.mlir import context, ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.machines import machine
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import PlanVariant
from meshbridge.read import formats
from meshbridge.resharding.steps import AllGather
from meshbridge.tools import cli
from testdata.realistic.catalogue import build as build_realistic
from tests.house import BRIDGE
from tests.operations.differential import device_mesh

MESH = Mesh("mesh", (2, 4), ("data", "model"))
NODES, ACROSS = "h100:1x4x2", "model=infiniband"
"""Four nodes of two devices, between which the axis `model` is; an axis of a program is mostly between devices of one node."""


def test_how_much_slower_a_network_is() -> None:
    rates = objective(CompileTarget.of("h100:1x2x4"), MESH).rates
    assert rates is not None
    inside, between, both = (rates.gathering(frozenset(axes)).bytes for axes in (("model",), ("data",), ("data", "model")))
    assert inside == pytest.approx(1.0)
    assert between == pytest.approx(450 * 0.6 / (50 * 0.9))
    assert both == pytest.approx(6 / 7)  # most of it goes within a node, as long as the rest between them, at the same time
    assert both < between
    assert rates.exchanging(frozenset(("data", "model"))).bytes > both  # of an exchange half leaves the node
    assert rates.gathering(frozenset(("data",))).launch > 1.0


def test_prices_are_of_the_axes_that_a_value_goes_along() -> None:
    slow = objective(CompileTarget.of(NODES, ACROSS), MESH)
    whole, along_data, along_model = Sharding("mesh", ((), ())), Sharding("mesh", ((0,), ())), Sharding("mesh", ((1,), ()))
    price = [resharding.cost((8192, 1024), "f32", MESH, source, whole, slow) for source in (along_data, along_model)]
    plain = [resharding.cost((8192, 1024), "f32", MESH, source, whole, slow.plain) for source in (along_data, along_model)]
    assert price[0] == pytest.approx(plain[0], rel=0.1)
    assert price[1] > 4 * plain[1]
    moved = resharding.cost((8192, 1024), "f32", MESH, along_model, Sharding("mesh", ((), (1,))), slow)
    assert moved > 2 * resharding.cost((8192, 1024), "f32", MESH, along_model, Sharding("mesh", ((), (1,))), slow.plain)


@pytest.mark.parametrize(("layout", "first"), [("model=infiniband", 1), ("data=infiniband", 0)])
def test_slow_axes_are_gathered_along_first(layout: str, first: int) -> None:
    machine = NODES if first else "h100:1x2x4"
    options = replace(objective(CompileTarget.of(machine, layout), MESH).planning_on(MESH), scratch=0)
    plan = resharding.plan((512, 512), "f32", MESH, Sharding("mesh", ((0,), (1,))), Sharding("mesh", ((), ())), options)
    gathers = [step for step in plan.steps if isinstance(step, AllGather)]
    assert [{digit.axis for digit in step.digits} for step in gathers] == [{first}, {1 - first}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama4_fsdp_tp", "gpt8_scan_fsdp_tp"])
def test_the_step_is_faster_than_by_prices_of_a_node(name: str) -> None:
    exported = build_realistic(name, "inputs", 8).export_for("cuda")
    aware = meshbridge.report(exported, machine=NODES, layout=ACROSS)
    assert aware.seconds is not None
    for unaware in ("h100", "bytes"):
        there = meshbridge.report(meshbridge.partition(exported, machine=unaware, emit="mesh"), machine=NODES, layout=ACROSS)
        assert there.seconds is not None
        assert aware.seconds < 0.85 * there.seconds


@pytest.mark.slow
def test_what_products_hide_is_sent_instead_of_what_they_wait_for() -> None:
    """Experts' weights can be gathered while something else is computed, tokens have to arrive first: more bytes, less time."""
    exported = build_realistic("moe_lm", "inputs", 8).export_for("tpu")
    aware = meshbridge.report(exported, machine="v5e:2x4")
    alone = meshbridge.report(meshbridge.partition(exported, machine="v5e", emit="mesh"), machine="v5e:2x4")
    assert alone.wire_bytes < aware.wire_bytes
    assert aware.seconds is not None
    assert alone.seconds is not None
    assert aware.seconds < 0.92 * alone.seconds


def test_numbers_stay() -> None:
    mesh = device_mesh((2, 4))

    def step(x: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jnp.tanh(x @ v)
        return jax.nn.softmax(hidden @ w, axis=-1), v.T @ x.T

    specs = (P("a", None), P("a", "b"), P("b", "a"))
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((32, 64), (64, 96), (96, 48))]
    jitted = jax.jit(step, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs))
    partitioned = meshbridge.partition(export.export(jitted)(*shapes), machine=NODES, layout="b=infiniband")
    values = [np.random.default_rng(n).standard_normal(each.shape, "float32") / 8 for n, each in enumerate(shapes)]
    placed = [jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in zip(values, specs, strict=True)]
    x, v, w = values
    logits = np.tanh(x @ v) @ w
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    found = jax.jit(partitioned.call)(*placed)
    np.testing.assert_allclose(found[0], expected / expected.sum(-1, keepdims=True), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], v.T @ x.T, rtol=2e-4, atol=1e-4)


def two_layers() -> export.Exported:
    mesh = device_mesh((2, 4))
    specs = [P("a", None), P(None, "b"), P("b", None)]
    shapes = [(64, 256), (256, 512), (512, 256)]
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return export.export(jax.jit(jax.grad(lambda x, v, w: jnp.sum((jnp.tanh(x @ v) @ w) ** 2), argnums=(1, 2))))(*arguments)


@pytest.mark.parametrize("emit", ["mesh", "local", "exported"])
def test_the_plan_that_is_taken_is_not_made_again(emit: pipeline.Emit) -> None:
    """It is what follows from the prices that were paid for it, reasons and all. What is partitioned alike is optimised once."""
    options = pipeline.Options.of(emit=emit, machine=NODES, layout="b=infiniband", explain=True)
    program, stages = two_layers(), list[str]()
    module = formats.unpack(program, context()).module
    timings = partitioning.partition_module(module, options, on_stage=lambda stage, _: stages.append(stage))
    names = Counter(timing.name for timing in timings)
    assert names["mesh-spmdization"] == 3
    assert stages == ["source", "annotated", "legal", "optimised", *(["lowered"] if emit != "mesh" else [])]
    again, partitioned = [], set()
    for way in (PlanVariant(), PlanVariant(link_prices=False), PlanVariant(hides=True)):
        again.append(formats.unpack(program, context()).module)
        made = pipeline.build(options, way)
        pipeline.run(made.until("partitioned").passes, again[-1])
        partitioned.add(text(again[-1]))
        pipeline.run(made.starting_at("partitioned").passes, again[-1])
    assert text(module) in map(text, again)
    assert names["simplify"] == len(partitioned) < 3
    assert "all_reduce" in text(module)


def test_a_step_that_cannot_be_predicted_is_planned_for_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine that multiplies numbers of 8 bits alone nothing says how long products of float32 take."""
    path = tmp_path / "mine.toml"
    source = (BRIDGE / "machines" / "gpu" / "h100.toml").read_text()
    path.write_text(re.sub(r"^(bf16|f16|tf32|f32|f64) = .*\n", "", source, flags=re.MULTILINE))
    machine, why = f"{path}:1x4x2", "machine 'mine' has no FLOP/s for f32, expected those of tf32 or bf16 or f32"
    assert str(meshbridge.partition(two_layers(), machine=machine, emit="mesh")) == str(
        meshbridge.partition(two_layers(), machine=str(path), emit="mesh")
    )
    report = meshbridge.report(two_layers(), machine=machine)
    assert (report.step, report.seconds, json.loads(report.to_json())["seconds"]) == (None, None, None)
    assert why in report.unpredicted
    assert f"no step is predicted, and the plan is made for the device alone: {report.unpredicted}" in report.table()
    with pytest.raises(MeshError, match=re.escape(why)):
        report.perfetto()
    program = tmp_path / "program.jax_export"
    program.write_bytes(two_layers().serialize())
    for asked in (["--tokens", "64"], ["--perfetto", str(tmp_path / "step.json")]):
        assert cli.main(["report", str(program), "--machine", machine, *asked]) == 1
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("error: ")) == ("", 1)
        assert why in captured.err


def text(module: ir.Module) -> str:
    return module.operation.get_asm(enable_debug_info=True)


def test_an_exchange_costs_the_copies_beside_it(tmp_path: Path) -> None:
    """On a device that says how fast they are; gathers and reductions need none."""
    path = tmp_path / "mine.toml"
    text = (Path(machines.__file__).parent / "tpu" / "v5e.toml").read_text()
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("copy_bandwidth")))
    found = [objective(CompileTarget.of(f"{name}:2x4"), MESH).rates for name in ("v5e", path)]
    copying, free = (rates for rates in found if rates is not None)
    axes, link = frozenset(("model",)), machine.named("v5e").link
    seconds = 2 / machine.named("v5e").copy_bandwidth / (3 / 4)  # of 4 pieces 3 are received
    assert copying.exchanging(axes).bytes - free.exchanging(axes).bytes == pytest.approx(link.ports * link.rate * seconds)
    assert copying.gathering(axes) == free.gathering(axes)
