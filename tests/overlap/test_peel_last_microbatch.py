"""Accumulated gradients that are reduced beside the last microbatch's backward pass: the same numbers and bytes, in less time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.objective import device
from meshbridge.cost.step import step_seconds
from meshbridge.ir import mlir
from meshbridge.ir.mlir import find, ir, main_function
from meshbridge.overlap.peel_last_microbatch import PeelLastMicrobatch
from meshbridge.read import formats
from meshbridge.verify.verdict import verify

MACHINES = Path(meshbridge.__file__).parent / "machines"

SHARDED = {"replicated": (P(), P()), "fully": (P("data"), P("data")), "both": (P("data", "model"), P("model", "data"))}
"""How the two weights of a layer are sharded."""


@dataclass(frozen=True)
class Step:
    """A training step that adds gradients up over microbatches."""

    sharded: str = "replicated"
    layers: int = 3
    scanned: bool = True
    microbatches: int = 4
    width: int = 16
    hidden: int = 24
    batch: int = 512
    element: str = "float32"
    accumulator: str = "float32"
    clipped: bool = False
    "By the norm of all gradients, behind the loop."
    shared: bool = False
    "Whether all layers have one more weight in common."

    def loss(self, weights: Any, x: Any) -> Any:
        def layer(h: Any, of: Any) -> Any:
            return h + jnp.tanh((h + h @ weights["common"] if self.shared else h) @ of[0]) @ of[1], None

        again = jax.checkpoint(layer)
        h = x
        if self.scanned:
            h, _ = jax.lax.scan(again, h, weights["layers"])
        else:
            for of in weights["layers"]:
                h, _ = again(h, of)
        return jnp.mean((h @ weights["head"]).astype(jnp.float32) ** 2)

    def __call__(self, weights: Any, batches: Any) -> Any:
        def microbatch(carried: Any, x: Any) -> Any:
            total, loss, worst = carried
            value, gradients = jax.value_and_grad(self.loss)(weights, x)
            total = jax.tree.map(lambda old, new: old + new.astype(old.dtype), total, gradients)
            return (total, loss + value, jnp.maximum(worst, value)), value

        zeros = jax.tree.map(lambda weight: jnp.zeros(weight.shape, self.accumulator), weights)
        start = zeros, jnp.zeros(()), jnp.full((), -jnp.inf)
        (total, loss, worst), losses = jax.lax.scan(microbatch, start, batches)
        scale = 0.1 / self.microbatches
        if self.clipped:
            scale = scale / jnp.maximum(1.0, jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(total))))
        stepped = jax.tree.map(lambda weight, sum_: weight - (scale * sum_).astype(weight.dtype), weights, total)
        return stepped, (loss / self.microbatches, worst, losses)

    @property
    def weights(self) -> Any:
        """Their shapes."""
        layer = (
            jax.ShapeDtypeStruct((self.width, self.hidden), self.element),
            jax.ShapeDtypeStruct((self.hidden, self.width), self.element),
        )
        layers = [layer] * self.layers
        if self.scanned:
            layers = jax.tree.map(lambda each: jax.ShapeDtypeStruct((self.layers, *each.shape), each.dtype), layer)
        head, common = (jax.ShapeDtypeStruct((self.width, size), self.element) for size in (8, self.width))
        return {"layers": layers, "head": head, "common": common}

    @property
    def batches(self) -> Any:
        return jax.ShapeDtypeStruct((self.microbatches, self.batch, self.width), self.element)

    def arguments(self) -> Any:
        rng = np.random.default_rng(0)
        shapes = self.weights, self.batches
        return jax.tree.map(lambda each: jnp.asarray(0.3 * rng.standard_normal(each.shape), each.dtype), shapes)

    def exported(self, mesh: jax.sharding.Mesh) -> export.Exported:
        pair = SHARDED[self.sharded]
        layers = tuple(P(None, *spec) for spec in pair) if self.scanned else [pair] * self.layers
        specs = {"layers": layers, "head": pair[0], "common": P()}
        weights = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
        batches = NamedSharding(mesh, P(None, "data"))
        jitted = jax.jit(self, in_shardings=(weights, batches), out_shardings=(weights, None), donate_argnums=0)
        return export.export(jitted)(self.weights, self.batches)


def planned(step: Step, mesh: jax.sharding.Mesh) -> ir.Module:
    """The step partitioned for a machine that waits for reductions and whose compiler combines them: they stand behind loops."""
    module: ir.Module = meshbridge.partition(step.exported(mesh), emit="mesh", machine="v5e")
    return module


def peeled(module: ir.Module, **options: Any) -> ir.Module:
    copy = formats.copy_module(module)
    pipeline.run((PeelLastMicrobatch(**options),), copy)
    return copy


def check(step: Step, mesh: jax.sharding.Mesh) -> tuple[ir.Module, ir.Module]:
    """Compares the step with and without the pass, and with one device; returns it without and with."""
    before = planned(step, mesh)
    after = peeled(before)
    assert communication(after).wire_bytes == communication(before).wire_bytes
    found, same = (ran(each, step) for each in (after, before))
    expected = jax.tree.leaves(jax.jit(step)(*step.arguments()))
    tolerance = 1e-5 if step.element == "float32" else 2e-2
    for one, other, right in zip(found, same, expected, strict=True):
        if step.element == "float32":  # added up in the same order; XLA joins products and additions otherwise
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one, np.asarray(right, np.float32), rtol=tolerance, atol=tolerance)
    return before, after


def ran(module: ir.Module, step: Step) -> list[np.ndarray]:
    """Its results, of arguments that it is given."""
    return [np.asarray(each, np.float32) for each in meshbridge.compile(module)(*jax.tree.leaves(step.arguments()))]


STEPS = {
    "scanned": Step(),
    "unrolled": Step(scanned=False, layers=2),
    "widened": Step("fully", element="bfloat16"),
    "both": Step("both", layers=2, shared=True, microbatches=2),
}
"""Each with gradients that are reduced behind the loop."""


@pytest.mark.parametrize("name", [name if name != "both" else pytest.param(name, marks=pytest.mark.slow) for name in STEPS])
def test_numbers_and_bytes(mesh: jax.sharding.Mesh, name: str) -> None:
    before, after = check(STEPS[name], mesh)
    assert inside(before) < inside(after) or not STEPS[name].scanned
    assert operations(before) < operations(after)


@pytest.mark.slow
@given(
    step=st.builds(
        Step,
        sharded=st.sampled_from([*SHARDED]),
        layers=st.integers(1, 4),
        scanned=st.booleans(),
        microbatches=st.integers(1, 5),
        width=st.sampled_from([8, 16, 24]),
        element=st.sampled_from(["float32", "bfloat16"]),
        clipped=st.booleans(),
        shared=st.booleans(),
    )
)
def test_drawn_steps(mesh: jax.sharding.Mesh, step: Step) -> None:
    check(step, mesh)


def inside(module: ir.Module) -> int:
    """How many reductions stand in loops."""
    reductions = find(module.operation, ["mesh.all_reduce", "mesh.reduce_scatter"])
    return sum(op.parent.name == "stablehlo.while" for op in reductions)


def operations(module: ir.Module) -> int:
    return sum(1 for _ in mlir.walk(main_function(module)))


@pytest.mark.parametrize("name", ["scanned", pytest.param("widened", marks=pytest.mark.slow)])
def test_exactly_as_before(mesh: jax.sharding.Mesh, name: str) -> None:
    """Over finite fields, where no sum rounds."""
    step = replace(STEPS[name], batch=64, layers=2, width=8)
    exported = step.exported(mesh)
    source = formats.unpack(exported, mlir.context()).module
    before = planned(step, mesh)
    after = peeled(before)
    assert str(after) != str(before)
    assert verify(source, after, runs=1).equal


def large(microbatches: int, accumulator: str) -> Step:
    """A step whose products take longer than what is sent of a layer, but not by much."""
    return Step(
        "fully", 4, microbatches=microbatches, width=4096, hidden=4096, batch=4096, element="bfloat16", accumulator=accumulator
    )


@pytest.mark.parametrize(("microbatches", "accumulator", "expected"), [(2, "bfloat16", True), (64, "float32", False)])
def test_a_step_that_becomes_shorter(mesh: jax.sharding.Mesh, microbatches: int, accumulator: str, expected: bool) -> None:
    """Of many microbatches the last one's reductions are next to nothing."""
    before = planned(large(microbatches, accumulator), mesh)
    assert str(peeled(before)) != str(before)
    after = peeled(before, machine="h100")
    shorter = step_seconds(after, device("h100"), None) < step_seconds(before, device("h100"), None)
    assert ((str(after) != str(before)), shorter) == (expected, expected)


@pytest.mark.parametrize(("spare", "expected"), [(0.9, False), (1.1, True)])
def test_room_for_temporaries(mesh: jax.sharding.Mesh, spare: float, expected: bool) -> None:
    """Twice what they are estimated at."""
    before = planned(large(2, "bfloat16"), mesh)
    after = peeled(before, machine="h100")
    needed = memory(main_function(after))
    limit = needed.peak + spare * needed.temporaries
    assert (str(peeled(before, machine="h100", memory=limit)) != str(before)) == expected


def test_a_machine_without_room(mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    """Without a limit, what the machine has."""
    path = tmp_path / "small.toml"
    path.write_text((MACHINES / "gpu" / "h100.toml").read_text().replace("bytes = 84_942_979_072", "bytes = 1_000_000_000", 1))
    before = planned(large(2, "bfloat16"), mesh)
    assert str(peeled(before, machine=str(path))) == str(before)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "h100"}, True),
        ({"machine": "h100", "collectives": "off"}, False),
        ({"machine": "v5e"}, False),
        ({"machine": "v5e", "compiler_options": "best"}, True),
        ({"machine": "bytes"}, False),
        ({"machine": "neutral"}, False),
    ],
)
def test_machines_that_reduce_beside_products(options: dict[str, Any], expected: bool) -> None:
    passes = pipeline.build(pipeline.Options(**options)).passes
    assert any(isinstance(each, PeelLastMicrobatch) for each in passes) == expected
