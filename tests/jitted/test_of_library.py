"""`meshbridge.jit` of a function that a library has jitted: the library still writes changed arrays back into its objects."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError

X = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.up, self.down = (nnx.Linear(8, 8, rngs=nnx.Rngs(seed)) for seed in range(2))

    def __call__(self, x: Any) -> Any:
        return self.down(jnp.tanh(self.up(x)))


@nnx.jit
def train(model: Model, optimizer: Any, x: Any) -> Any:
    """A step that changes both objects."""
    value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
    optimizer.update(model, gradients)
    return value


def objects(mesh: jax.sharding.Mesh) -> tuple[Any, ...]:
    model = Model()
    model.up.kernel.set_value(jax.device_put(model.up.kernel.get_value(), NamedSharding(mesh, P(None, "model"))))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), jax.device_put(X, NamedSharding(mesh, P("data")))


def losses(step: Any, mesh: jax.sharding.Mesh) -> list[float]:
    arguments = objects(mesh)
    return [float(step(*arguments)) for _ in range(4)]


@pytest.fixture(scope="module")
def step() -> Any:
    return meshbridge.jit(train)


def test_objects_change_as_under_the_library_alone(step: Any, mesh: jax.sharding.Mesh) -> None:
    alone = losses(train, mesh)
    assert len(set(alone)) == 4
    np.testing.assert_allclose(losses(step, mesh), alone, rtol=1e-5)
    np.testing.assert_allclose(losses(meshbridge.jit(step, machine="bytes"), mesh), alone, rtol=1e-5)
    assert (step.__name__, step.__doc__) == ("train", "A step that changes both objects.")


def test_every_collective_is_explicit(step: Any, mesh: jax.sharding.Mesh) -> None:
    report = step.report(*objects(mesh))
    assert {each.phase for collective in report.collectives for each in collective.origins} == {"forward", "backward"}
    assert report.wire_bytes == meshbridge.report(train, *objects(mesh)).wire_bytes
    assert "sdy.manual_computation" in step.partitioned_text(*objects(mesh))


def test_only_its_own_calls_are_partitioned(step: Any, mesh: jax.sharding.Mesh) -> None:
    from meshbridge.jitted.plans import Planned

    fresh = objects(mesh)
    with Planned.noted() as planned:
        jax.jit(lambda x: x.sum())(fresh[-1])
        assert not planned
        meshbridge.jit(nnx.jit(lambda model, x: model(x).sum()))(fresh[0], fresh[-1])
        assert [each.name for each in planned] == ["jit(<lambda>)"]
        jax.jit(lambda x: x.max())(fresh[-1])
        assert len(planned) == 1


def test_lower_compiles_the_partitioned_program(step: Any, mesh: jax.sharding.Mesh) -> None:
    arguments = objects(mesh)
    compiled = step.lower(*arguments).compile()
    np.testing.assert_allclose([float(compiled(*arguments)) for _ in range(2)], losses(train, mesh)[:2], rtol=1e-5)


def test_a_method(mesh: jax.sharding.Mesh) -> None:
    class Trainer:
        @meshbridge.jit
        @nnx.jit(static_argnums=0)
        def loss(self, model: Model, x: Any) -> Any:
            return (model(x) ** 2).sum()

    model, _, x = objects(mesh)
    trainer: Any = Trainer()
    np.testing.assert_allclose(trainer.loss(model, x), (model(x) ** 2).sum(), rtol=1e-5)


def test_the_file_is_that_of_the_library_s_function(step: Any, mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    arguments = objects(mesh)
    step.save(tmp_path / "step.jax_export", *arguments)
    read = meshbridge.report(meshbridge.load(tmp_path / "step.jax_export"))
    assert read.wire_bytes == step.report(*arguments).wire_bytes
    assert "model.up.kernel" in [each.name for each in read.arguments]


def test_options_of_jax_belong_to_the_library(mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(MeshError, match=r"expected no option of jax\.jit, found donate_argnums\n  hint: give them to flax's"):
        meshbridge.jit(train, donate_argnums=0)


def test_what_copies_the_attributes_of_a_jitted_function_is_no_library_s(mesh: jax.sharding.Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    gradient = meshbridge.jit(jax.grad(jax.jit(lambda x: (x**2).sum())), in_shardings=rows)
    np.testing.assert_allclose(gradient(X), 2 * X)
    assert copy.deepcopy(gradient)(X).shape == X.shape
