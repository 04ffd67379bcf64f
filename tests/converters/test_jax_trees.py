"""Artifacts of functions whose arguments are trees of any classes."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import export, tree_util
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge_converters import jax_trees

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64


@tree_util.register_dataclass
@dataclass
class Weights:
    kernel: Any
    bias: Any


@tree_util.register_pytree_node_class
class Pair:
    """A class that gives its children no keys."""

    def __init__(self, first: Any, second: Any) -> None:
        self.pair = first, second

    def tree_flatten(self) -> tuple[tuple[Any, Any], str]:
        return self.pair, "what no file holds"

    @classmethod
    def tree_unflatten(cls, _: str, pair: tuple[Any, Any]) -> Pair:
        return cls(*pair)


class Moments(NamedTuple):
    mean: Any
    variance: Any


def optimizer_state() -> Any:
    return optax.adam(1e-2).init({"kernel": X})


def variables() -> Any:
    return nnx.state(nnx.Linear(8, 8, rngs=nnx.Rngs(0)))


STATES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "optax": (optimizer_state, ["state[0].count", "state[0].mu['kernel']", "state[0].nu['kernel']"]),
    "nnx": (variables, ["state['bias'].value", "state['kernel'].value"]),
    "dataclass": (lambda: Weights(X, X[0]), ["state.kernel", "state.bias"]),
    "no keys": (lambda: Pair(X, X[0]), ["state[0]", "state[1]"]),
    "numbered": (lambda: {0: X, 1: [Moments(X, X)]}, ["state[0]", "state[1][0].mean", "state[1][0].variance"]),
    "ordered": (lambda: OrderedDict(b=X, a=X), ["state['b']", "state['a']"]),
}


def step(state: Any, x: Any) -> tuple[Any, Any]:
    return jax.tree.map(lambda leaf: leaf + 1, state), x.sum() + sum(leaf.sum() for leaf in jax.tree.leaves(state))


@pytest.fixture(scope="module")
def jitted(mesh: jax.sharding.Mesh) -> Any:
    return meshbridge.jit(step, in_shardings=(None, NamedSharding(mesh, PartitionSpec("data"))))


@pytest.fixture(scope="module")
def files(jitted: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The step with each state, saved once as a method and once as a function."""
    folder = tmp_path_factory.mktemp("saved")
    for name, (make, _) in STATES.items():
        jitted.save(folder / f"{name}.jax_export", make(), X)
        meshbridge.save(jitted, folder / f"{name}.mlir", make(), X)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", ["jax_export", "mlir"])
def test_a_process_without_the_classes_reads_paths_lines_and_names(files: dict[str, Path], suffix: str) -> None:
    script = """
import sys, meshbridge
for path in sys.argv[1:]:
    report = meshbridge.report(meshbridge.load(path))
    print(*(array.name for array in report.arguments), sep="|")
    assert all(each.location.file.endswith("test_jax_trees.py") for each in report.collectives), report.table()
assert not {"optax", "flax"} & set(sys.modules)
"""
    paths = [str(files[f"{name}.{suffix}"]) for name in STATES]
    printed = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.splitlines() == ["|".join([*names, "x"]) for _, names in STATES.values()]


@pytest.mark.parametrize("name", STATES)
def test_saved_step_runs_on_the_arguments_of_the_function(files: dict[str, Path], name: str) -> None:
    """And on its own results, whose classes are known by their keys."""
    state = STATES[name][0]()
    run = meshbridge.compile(meshbridge.load(files[f"{name}.jax_export"]))
    once, total = run(state, X)
    twice, again = run(once, X)
    expected, expected_total = jax.jit(step)(state, X)
    expected_twice, expected_again = jax.jit(step)(expected, X)
    found = [*jax.tree.leaves((once, twice)), total, again]
    wanted = [*jax.tree.leaves((expected, expected_twice)), expected_total, expected_again]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_nodes_are_read_by_their_keys(files: dict[str, Path]) -> None:
    run = meshbridge.compile(meshbridge.load(files["optax.jax_export"]))
    state, _ = run(optimizer_state(), X)
    assert int(state[0].count) == 1
    np.testing.assert_allclose(state[0].mu["kernel"], 1.0)
    with pytest.raises(AttributeError, match=r"ScaleByAdamState has \.count, \.mu, \.nu, not \.momentum"):
        _ = state[0].momentum
    other = meshbridge.compile(meshbridge.load(files["dataclass.jax_export"]))
    with pytest.raises(meshbridge.MeshError, match="expected arguments of the structure"):
        other(Pair(X, X[0]), X)


def test_partitioned_file_is_read_as_the_one_that_it_comes_from(files: dict[str, Path], tmp_path: Path) -> None:
    program = meshbridge.load(files["optax.jax_export"])
    meshbridge.save(meshbridge.partition(program), tmp_path / "partitioned.jax_export")
    again = meshbridge.load(tmp_path / "partitioned.jax_export")
    assert again.calling is not None
    assert program.calling is not None
    assert again.calling.labels() == program.calling.labels()


def test_jax_reads_named_tuples_once_they_are_registered(files: dict[str, Path]) -> None:
    script = """
import sys, jax, optax
from jax import export
for kind in (optax.ScaleByAdamState, optax.EmptyState):
    export.register_namedtuple_serialization(kind, serialized_name=f"{kind.__module__}.{kind.__qualname__}")
exported = export.deserialize(open(sys.argv[1], "rb").read())
(state, x), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
print(type(state[0]).__name__, state[0].mu["kernel"].shape)
"""
    command = [sys.executable, "-c", script, str(files["optax.jax_export"])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "ScaleByAdamState (8, 8)\n"


class Registered(NamedTuple):
    value: Any


def test_a_class_is_the_users_to_register(mesh: jax.sharding.Mesh) -> None:
    """What is read before leaves no name behind; what is written after has the user's name, and is read as the class."""
    name = f"{__name__}.Registered"
    jitted = jax.jit(lambda x: x.value.sum(), in_shardings=NamedSharding(mesh, PartitionSpec("data")))
    data = meshbridge.convert(jitted, Registered(X), to="sdy").serialize()
    assert isinstance(jax.tree.unflatten(_read(data).in_tree, [X])[0][0], jax_trees.Node)
    export.register_namedtuple_serialization(Registered, serialized_name=name)
    assert isinstance(jax.tree.unflatten(_read(data).in_tree, [X])[0][0], Registered)
    assert _read(meshbridge.convert(jitted, Registered(X), to="sdy").serialize()).in_tree == jitted.lower(Registered(X)).in_tree


def _read(data: bytes) -> Any:
    return jax_trees.read(lambda: export.deserialize(bytearray(data)))


class Differentiated(NamedTuple):
    value: Any


def test_vjp_of_a_file_is_read_too() -> None:
    exported = export.export(jax.jit(lambda x: x.value.sum()))(Differentiated(X))
    data = jax_trees.serialized(exported, vjp_order=1)
    with pytest.raises(ValueError, match="unregistered type"):
        export.deserialize(bytearray(data))
    again = _read(data)
    assert again.has_vjp()
    assert not again.vjp().has_vjp()
    np.testing.assert_array_equal(again.vjp().call(X, jnp.float32(2))[0], np.full((8, 8), 2, np.float32))


def test_a_function_of_a_library_is_saved(mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    """`nnx.jit` puts its own stages around JAX's."""
    rows = NamedSharding(mesh, PartitionSpec("data"))
    jitted = nnx.jit(lambda model, x: model(jax.lax.with_sharding_constraint(x, rows)).sum())
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    meshbridge.save(jitted, tmp_path / "nnx.jax_export", model, X)
    assert meshbridge.report(meshbridge.load(tmp_path / "nnx.jax_export")).wire_bytes > 0
    assert meshbridge.report(jitted, model, X).wire_bytes > 0


class LoweredOnly:
    """A function of a library that is lowered, not traced, as `equinox.filter_jit` gives."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted

    def __call__(self, x: Any) -> Any:
        return self.jitted(x)

    def lower(self, x: Any) -> Any:
        @dataclass
        class Stage:
            lowered: Any

        return Stage(self.jitted.lower(x))


def test_a_function_that_is_only_lowered_is_saved(mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    jitted = LoweredOnly(jax.jit(lambda x: x.sum(), in_shardings=NamedSharding(mesh, PartitionSpec("data"))))
    meshbridge.save(jitted, tmp_path / "step.mlir", X)
    assert [array.name for array in meshbridge.report(meshbridge.load(tmp_path / "step.mlir")).arguments] == ["x"]
