"""`meshbridge_converters.nnx_names`: arrays of nnx objects have the path that Python reads them by."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import meshbridge

X = np.ones((8, 8), np.float32)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = (nnx.Linear(8, 8, use_bias=False, rngs=rngs) for _ in range(2))
        self.by_name = nnx.Dict({"left": nnx.Param(jnp.ones(8)), "not a name": nnx.Param(jnp.ones(8))})

    def __call__(self, x: Any) -> Any:
        return self.down(nnx.gelu(self.up(x))) * self.by_name["left"] + self.by_name["not a name"]


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def train(model: Model, optimizer: Any, x: Any) -> Any:
    value, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradients)
    return value


def names(report: meshbridge.Report) -> tuple[list[str], list[str]]:
    return [each.name for each in report.arguments], [each.name for each in report.results]


@pytest.fixture(scope="module")
def step(mesh: jax.sharding.Mesh) -> tuple[Any, ...]:
    """A training step, not called yet, and its arguments."""
    model = Model(nnx.Rngs(0))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return nnx.jit(train), model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), jax.device_put(X, rows)


def test_arrays_have_their_path_in_the_object(step: tuple[Any, ...]) -> None:
    arguments, results = names(meshbridge.report(*step))
    assert "model.blocks[0].up.kernel" in arguments
    assert "model.blocks[1].by_name['not a name']" in arguments
    assert "optimizer.opt_state[0].mu.blocks[1].down.kernel" in arguments
    assert "result[0][1].opt_state[0].nu.blocks[0].by_name.left" in results
    assert (arguments[-1], results[-1]) == ("x", "result[2]")
    assert not any(".states[" in name for name in (*arguments, *results))


def test_each_path_is_that_of_its_own_array(mesh: jax.sharding.Mesh) -> None:
    """The path of each array agrees with the shape that is read there."""

    class Sizes(nnx.Module):
        def __init__(self) -> None:
            self.b, self.a = nnx.Param(jnp.ones(3)), nnx.Param(jnp.ones(2))
            self.c = nnx.List([nnx.Param(jnp.ones(5)), nnx.Param(jnp.ones(7))])

    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    jitted = nnx.jit(lambda sizes, x: jax.lax.with_sharding_constraint(x, rows).sum() + sizes.b[0] + sizes.a[0] + sizes.c[1][0])
    report = meshbridge.report(jitted, Sizes(), X)
    assert {each.name: each.shape for each in report.arguments} == {
        "sizes.a": (2,),
        "sizes.b": (3,),
        "sizes.c[0]": (5,),
        "sizes.c[1]": (7,),
        "x": (8, 8),
    }


def test_an_object_that_two_arguments_share_has_one_name(mesh: jax.sharding.Mesh) -> None:
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    linear = nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(0))
    jitted = nnx.jit(lambda first, second, x: second(first(jax.lax.with_sharding_constraint(x, rows))).sum())
    arguments, _ = names(meshbridge.report(jitted, linear, linear, X))
    assert arguments == ["first.kernel", "x"]


@pytest.mark.parametrize("suffix", ["jax_export", "mlir"])
def test_files_keep_the_paths(step: tuple[Any, ...], tmp_path: Path, suffix: str) -> None:
    jitted, *arguments = step
    meshbridge.save(jitted, tmp_path / f"step.{suffix}", *arguments)
    read = meshbridge.load(tmp_path / f"step.{suffix}")
    assert names(meshbridge.report(read)) == names(meshbridge.report(*step))
    (explained,) = meshbridge.explain(read, of="model/blocks/0/up/kernel", tries=0).explained
    assert "model.blocks[0].up.kernel" in explained.arguments


def test_a_lowered_function_has_them(step: tuple[Any, ...]) -> None:
    jitted, *arguments = step
    lowered = jitted.lower(*arguments).lowered
    assert "model.blocks[0].up.kernel" in names(meshbridge.report(lowered))[0]
