"""Arguments that a step writes over, by what devices have parts of: on TPUs the parts are gathered, and the whole is updated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import context, ir, main_function
from meshbridge.machines import machine
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.operations.differential import device_mesh

Step = Callable[..., Any]
WIDTH = 512
V5E = Path(machine.__file__).parent / "tpu" / "v5e.toml"


def product(w: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of a weight: each device has a part of the batch."""
    return x.T @ jnp.tanh(x @ w)


def descended(w: jax.Array, _: jax.Array, x: jax.Array) -> Any:
    return w - 0.01 * product(w, x), _


def decayed(w: jax.Array, _: jax.Array, x: jax.Array) -> Any:
    return jnp.where(w > 0, 0.9 * w, w) - 0.01 * product(w, x), _


def with_momentum(w: jax.Array, moment: jax.Array, x: jax.Array) -> Any:
    moment = 0.9 * moment + product(w, x)
    return w - (0.01 * moment).astype(w.dtype), moment


def widened(w: jax.Array, moment: jax.Array, x: jax.Array) -> Any:
    moment = 0.9 * moment + 0.1 * product(w, x).astype(jnp.float32) ** 2
    return w - (0.01 * product(w, x) / jnp.sqrt(moment + 1.0)).astype(w.dtype), moment


SPLIT = P("a")
STEPS: dict[str, tuple[Step, P]] = {
    "descended": (descended, P()),
    "decayed": (decayed, P()),
    "with_momentum": (with_momentum, P()),
    "moment_split": (with_momentum, SPLIT),
    "adaptive": (widened, SPLIT),
}
"""By name, and how the second argument is sharded."""


def exported(name: str, *, donated: bool = True, element: Any = jnp.float32) -> jax.export.Exported:
    step, of_moment = STEPS[name]
    mesh = device_mesh((8,))
    w, moment, x = (NamedSharding(mesh, spec) for spec in (P(), of_moment, SPLIT))
    jitted = jax.jit(step, in_shardings=(w, moment, x), out_shardings=(w, moment), donate_argnums=(0, 1) if donated else ())
    shapes = ((WIDTH, WIDTH), element), ((WIDTH, WIDTH), jnp.float32), ((4096, WIDTH), element)
    return jax.export.export(jitted)(*(jax.ShapeDtypeStruct(shape, kind) for shape, kind in shapes))


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A v5e whose compiler copies whatever is gathered, however small."""
    path = tmp_path_factory.mktemp("machines") / "copying.toml"
    path.write_text(re.sub("(?m)^aliased_gather_copy_bytes = .*$", "aliased_gather_copy_bytes = 0", V5E.read_text()))
    return str(path)


def gathered_results(program: Any, device: str) -> int:
    """How many results are what an all-gather leaves."""
    module = meshbridge.partition(formats.unpack(program, context()).module, machine=device, emit="mesh")
    *_, returned = main_function(module).regions[0].blocks[0].operations
    owners = (value.owner for value in returned.operands)
    return sum(not isinstance(owner, ir.Block) and owner.name == "mesh.all_gather" for owner in owners)


SHARED = ("moment_split", "adaptive")
"""Steps whose second argument has devices update parts of the first one on any machine."""


@pytest.mark.parametrize("element", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", SHARED)
def test_what_is_written_over_an_argument_is_not_gathered(name: str, element: Any, copying: str) -> None:
    program = exported(name, element=element)
    assert [gathered_results(program, name) for name in ("h100", "v5e", copying)] == [1, 1, 0]
    ours, others = (meshbridge.report(program, machine=name) for name in (copying, "v5e"))
    assert ours.wire_bytes == others.wire_bytes


@pytest.mark.parametrize("name", SHARED)
def test_what_takes_no_argument_s_buffer_stays(name: str, copying: str) -> None:
    assert gathered_results(exported(name, donated=False), copying) == 1


@pytest.mark.parametrize("name", STEPS)
def test_same_numbers(name: str, copying: str) -> None:
    program = exported(name)
    random = np.random.default_rng(0)
    values = [random.normal(size=aval.shape).astype(np.float32) / 16 for aval in program.in_avals]
    step, of_moment = STEPS[name]
    mesh = device_mesh((8,))
    placed = [
        jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in zip(values, (P(), of_moment, SPLIT), strict=True)
    ]
    found = meshbridge.partition(program, machine=copying).call(*placed)
    for ours, expected in zip(found, jax.jit(step)(*values), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_exactly_the_same_program(name: str, copying: str) -> None:
    module = formats.unpack(exported(name), context()).module
    assert verify(module, meshbridge.partition(module, machine=copying)).equal
