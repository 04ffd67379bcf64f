"""Looking up and updating one element of each row: the numbers of one device, whatever the indices, and no tensor in between."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options
from meshbridge.read import formats

ROWS, WORDS = 16, 64


def exported(function: Callable[..., jax.Array], *arguments: jax.ShapeDtypeStruct, spec: P) -> jax.export.Exported:
    """`function` of rows sharded as `spec` says on 2 x 4 devices, and of labels."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    first, *others = arguments
    shardings = [NamedSharding(mesh, spec), *[NamedSharding(mesh, P("data"))] * len(others)]
    return jax.export.export(jax.jit(function, in_shardings=shardings))(first, *others)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all rows."""
    likely = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(likely, labels[:, None], axis=-1))


UPDATES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": lambda labels, x: jnp.zeros((ROWS, WORDS), x.dtype).at[jnp.arange(ROWS), labels].add(x[:, 0]),
    "set": lambda labels, x: jnp.full((ROWS, WORDS), 3, x.dtype).at[jnp.arange(ROWS), labels].set(x[:, 0]),
    "multiply": lambda labels, x: jnp.full((ROWS, WORDS), 2, x.dtype).at[jnp.arange(ROWS), labels].multiply(x[:, 0]),
    "minimum": lambda labels, x: jnp.full((ROWS, WORDS), 0, x.dtype).at[jnp.arange(ROWS), labels].min(x[:, 0]),
    "in_order": lambda labels, x: jnp.zeros((WORDS, ROWS), x.dtype).at[labels, jnp.arange(ROWS)].add(x[:, 0]),
}
LOOKUPS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "clipped": lambda labels, x: jnp.take_along_axis(jnp.exp(x) * 2, labels[:, None], axis=1, mode="clip"),
    "filled": lambda labels, x: jnp.take_along_axis(jnp.exp(x) - jnp.max(x, 1, keepdims=True), labels[:, None], axis=1),
    "of_columns": lambda labels, x: jnp.take_along_axis((x - jnp.sum(x)).T, labels[None, :], axis=0),
    "selected": lambda labels, x: jnp.where(jnp.sum(x) > 0, x, 1)[jnp.arange(ROWS), labels],
}


@pytest.mark.parametrize("name", [*UPDATES, *LOOKUPS])
@pytest.mark.parametrize("index", ["int32", "uint8", "int8"])
def test_numbers(name: str, index: str) -> None:
    """Labels before the first element and after the last are among them."""
    function = (UPDATES | LOOKUPS)[name]
    rng = np.random.default_rng(0)
    labels = rng.integers(0 if index == "uint8" else -WORDS // 2, 3 * WORDS // 2, ROWS).astype(index)
    x = rng.standard_normal((ROWS, WORDS), "float32")
    x[:4, 0] = [-0.0, np.nan, np.inf, -np.inf]
    structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, labels)]
    given = exported(lambda x, labels: function(labels, x), *structs, spec=P("data", "model"))
    np.testing.assert_allclose(meshbridge.compile(given)(x, labels), jax.jit(function)(labels, x), rtol=1e-5)


def test_a_cross_entropy_holds_no_wide_logits() -> None:
    """What is looked up are logits as they are stored, and the gradient of that is computed on the way."""
    rows, words = 2**12, 2**15
    gradient = jax.value_and_grad(cross_entropy)
    structs = jax.ShapeDtypeStruct((rows, words), "bfloat16"), jax.ShapeDtypeStruct((rows,), "int32")
    module = formats.unpack(exported(gradient, *structs, spec=P("data", "model")), mlir.context()).module
    partition_module(module, Options(emit="mesh"))
    names = [op.name for op in mlir.walk_all(module)]
    assert "stablehlo.scatter" not in names
    (lookup,) = [op for op in mlir.walk_all(module) if op.name == "stablehlo.gather"]
    assert str(lookup.operands[0].type.element_type) == "bf16"
