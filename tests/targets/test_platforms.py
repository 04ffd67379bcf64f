"""Programs that call kernels and libraries of one platform: what is made of them compiles for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.cudnn import fused_attention_stablehlo  # which asks for cuDNN before it traces
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.runtime import targets
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from tests.operations.differential import device_mesh
from tests.targets.installed import target

pytestmark = pytest.mark.targets

SHAPE = (32, 512)


def compiled(text: str, function: Any, *arguments: tuple[tuple[int, ...], Any, Spec]) -> int:
    """How many collectives a device executes once a function is partitioned and compiled for the target `text`."""
    chosen = target(text)
    mesh = device_mesh((2, 4))
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, dtype, spec in arguments]
    platform = targets.EXPORT_PLATFORM[chosen.machine.platform]
    program = formats.unpack(jax.jit(function), context(), given, platform=platform)
    (compared,) = command.compare_for(program, [chosen], without=PEERS)
    found = compared.figures[OURS]
    assert not found.error
    return sum(found.count_by_kind.values())


def doubled(x: jax.Array, **options: Any) -> jax.Array:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)


def mapped(function: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=device_mesh((2, 4)), in_specs=spec, out_specs=spec, check_vma=False)


BY_BOTH, MATRICES = (SHAPE, np.float32, Spec("a", "b")), ((8, 64, 64), np.float32, Spec("a"))


@pytest.fixture(autouse=True)
def _for_tests_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (mapped(doubled, Spec("a", "b")), BY_BOTH),
        (lambda x: tuple(jnp.linalg.qr(x)), MATRICES),
        (jnp.linalg.cholesky, MATRICES),
        (lambda x: lax.approx_max_k(x, 4)[0], (SHAPE, np.float32, Spec("a"))),
        (lambda x: jax.device_put(jax.device_put(jnp.sin(x), jax.memory.Space.Host), jax.memory.Space.Device), BY_BOTH),
    ],
    ids=["mosaic", "qr", "cholesky", "approximate top k", "memory of the host"],
)
def test_tpu(function: Any, argument: Any) -> None:
    assert compiled("tpu:v5e:2x4", function, argument) == 0


TRITON = {"compiler_params": triton.CompilerParams(num_warps=4)}
HEADS = ((8, 256, 4, 64), jnp.bfloat16, Spec("a", None, "b"))


def attention(*given: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(*given, implementation="cudnn")


@pytest.mark.parametrize(
    ("function", "arguments", "collectives"),
    [
        (mapped(lambda x: doubled(x, **TRITON), Spec("a", "b")), [BY_BOTH], 0),
        (lambda x: doubled(x, **TRITON), [BY_BOTH], 1),
        (attention, [HEADS] * 3, 0),
        (jax.grad(lambda *given: jnp.sum(attention(*given).astype(np.float32)), (0, 1, 2)), [HEADS] * 3, 0),
        (lambda x: jax.device_put(jax.device_put(jnp.sin(x), jax.memory.Space.Host), jax.memory.Space.Device), [BY_BOTH], 0),
    ],
    ids=["triton", "triton, gathered", "cuDNN", "cuDNN's gradient", "memory of the host"],
)
def test_gpu(function: Any, arguments: Any, collectives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    assert compiled("gpu:h100:1x1x8", function, *arguments) == collectives


KINDS = """
import sys
from meshbridge.machines.target import parse
from meshbridge.runtime.targets import devices
print(*{device.device_kind for device in devices(parse(sys.argv[1]))}, sep="\\n")
"""


@pytest.mark.parametrize("text", ["tpu:v4:2x2x2", "tpu:v5e:2x4", "tpu:v5p:2x2x2", "tpu:v6e:2x4", "tpu:7x:2x2x1"])
def test_compilers_know_devices_by_kinds_of_their_machines(text: str) -> None:
    """Those of GPUs are named after the target's configuration, not as a driver names them."""
    chosen = target(text)
    environment = {**os.environ, **targets.environment(chosen)}
    done = subprocess.run([sys.executable, "-c", KINDS, text], env=environment, capture_output=True, text=True, check=True)
    assert {*done.stdout.splitlines()} <= {*chosen.machine.device_kinds}
