"""Programs as JAX writes them come back from the mesh dialect as they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir import mlir
from meshbridge_converters import sdy
from tests.converters.jax_programs import PROGRAMS, X


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_comes_back(program: Callable[[Mesh, jax.Array], jax.Array]) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    text = jax.jit(partial(program, mesh), in_shardings=NamedSharding(mesh, P("data"))).lower(X).as_text()
    assert "sdy." in text
    module = mlir.parse(text, "program.mlir", mlir.context())
    before = str(module)
    sdy.import_module(module)
    module.operation.verify()
    sdy.export_module(module)
    assert str(module) == before
