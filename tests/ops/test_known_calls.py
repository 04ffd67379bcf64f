"""Linear algebra of many matrices: each device takes its own ones, as the rules of its calls say, or what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import meshbridge
from meshbridge.ir import mlir
from meshbridge.read import formats
from meshbridge.reports import Report
from tests.operations.differential import Spec, assert_close, device_mesh


def positive(x: Any) -> Any:
    return x @ x.mT + x.shape[-1] * jnp.eye(x.shape[-1], dtype=x.dtype)


CALLS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "cholesky gradient": jax.grad(lambda x: jnp.linalg.cholesky(positive(x)).sum()),
    "eigh": lambda x: jnp.linalg.eigh(positive(x)),
    "eig": lambda x: jnp.linalg.eigvals(positive(x)),
    "hessenberg": lambda x: lax.linalg.hessenberg(x),
    "lu": lambda x: lax.linalg.lu(x),
    "lu of complex numbers": lambda x: lax.linalg.lu(x + 1j * x.mT)[0],
    "qr": lambda x: jnp.linalg.qr(x[..., :3], mode="complete"),
    "schur": lambda x: lax.linalg.schur(positive(x)),
    "solve": lambda x: jnp.linalg.solve(positive(x), x),
    "svd": lambda x: jnp.linalg.svd(x[..., :4]),
    "triangular solve": lambda x: lax.linalg.triangular_solve(positive(x), x, left_side=True, lower=True),
    "tridiagonal": lambda x: lax.linalg.tridiagonal(positive(x)),
    "tridiagonal solve": lambda x: lax.linalg.tridiagonal_solve(
        x[..., 0].at[..., 0].set(0), 9 + x[..., 1], x[..., 2].at[..., -1].set(0), x
    ),
}


BATCHES = {(4, 8): Spec("a", "b"), (8,): Spec(("b", "a")), (2, 1, 4): Spec("a", None, "b")}
CASES = [(name, (4, 8)) for name in CALLS] + [(name, batch) for name in ("eigh", "qr", "tridiagonal solve") for batch in BATCHES]


@pytest.mark.parametrize(("name", "batch"), dict.fromkeys(CASES))
def test_batches_stay_apart(name: str, batch: tuple[int, ...]) -> None:
    """Not a byte is sent, and the numbers are those of one device."""
    x = np.random.default_rng(0).standard_normal((*batch, 6, 6)).astype(np.float32)
    spec = BATCHES[batch]
    mesh = device_mesh((2, 4))
    placed = NamedSharding(mesh, spec)
    with jax.set_mesh(mesh):
        exported = jax.export.export(jax.jit(CALLS[name], in_shardings=placed))(x)
    report = meshbridge.report(exported)
    assert not report.collectives
    assert not report.not_partitioned
    got = jax.jit(meshbridge.partition(exported).call)(jax.device_put(x, placed))
    assert_close(jax.tree.map(np.asarray, got), jax.tree.map(np.asarray, jax.jit(CALLS[name])(x)))


ELSEWHERE = ("cholesky", "eigh", "lu", "qr", "solve", "svd", "triangular solve", "tridiagonal solve")
"""What JAX lowers for accelerators, where no process here can run it."""
SEARCHES: dict[str, Callable[[Any], Any]] = {
    "approximate maxima": lambda x: lax.approx_max_k(x, 3),
    "approximate minima, not joined": lambda x: lax.approx_min_k(x, 2, reduction_dimension=2, aggregate_to_topk=False),
}
UNSUPPORTED = {("rocm", "tridiagonal solve")}
"""What JAX does not export."""
PLATFORMS = ("tpu", "cuda", "rocm")
EXPORTED = [(platform, name) for platform in PLATFORMS for name in (*ELSEWHERE, *SEARCHES) if (platform, name) not in UNSUPPORTED]


@pytest.mark.parametrize(("platform", "name"), EXPORTED)
def test_batches_stay_apart_on_accelerators(platform: str, name: str) -> None:
    """A bit goes around for each loop that ends once all matrices are done: QDWH, by which a TPU finds singular values."""
    mesh = device_mesh((2, 4))
    placed = NamedSharding(mesh, Spec("a", "b"))
    function = {**CALLS, **SEARCHES}[name]
    with jax.set_mesh(mesh):
        jitted = jax.jit(function, in_shardings=placed, out_shardings=placed)
        exported = jax.export.export(jitted, platforms=[platform])(jax.ShapeDtypeStruct((8, 8, 6, 6), np.float32))
    report = meshbridge.report(exported)
    assert report.wire_bytes < 8
    assert not [one for one in report.collectives if one.kind != "all_reduce"]
    assert not report.not_partitioned
    assert meshbridge.partition(exported).platforms == (platform,)


CALL = """
    sdy.mesh @m = <["a"=2, "b"=4]>
    func.func @main(%x: {0} {{sdy.sharding = #sdy.sharding<@m, [{{"a"}}, {{"b"}}{1}]>}}) -> ({2}) {{
      %r:{3} = stablehlo.custom_call @{4}({5}) {{mhlo.backend_config = {{}}{6}}} : ({7}) -> ({2})
      return {8} : {2}
    }}
"""


def report_of_call(target: str, operands: list[str], results: list[str], attributes: str = "") -> Report:
    """The report of a program that calls `target` on one tensor, once for each operand, split along its first two dimensions."""
    rank = operands[0].count("x")
    types = ", ".join(results)
    values = ", ".join(f"%r#{index}" for index in range(len(results)))
    arguments = ", ".join(["%x"] * len(operands))
    text = CALL.format(
        operands[0], ", {}" * (rank - 2), types, len(results), target, arguments, attributes, ", ".join(operands), values
    )
    return meshbridge.report(formats.read(text.encode(), "call.mlir", mlir.context()).module)


MATRICES, VECTORS, NUMBERS = "tensor<4x8x6x6xf32>", "tensor<4x8x6xf32>", "tensor<4x8xi32>"


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("lapack_sgeqrf_ffi", [MATRICES], [MATRICES, VECTORS]),
        ("lapack_ssyevd_ffi", [MATRICES], [MATRICES, VECTORS, NUMBERS]),
        ("lapack_sgeev_ffi", [MATRICES], [VECTORS, VECTORS, MATRICES, MATRICES, NUMBERS]),
        ("cusolver_gesvdj_ffi", [MATRICES], [MATRICES, VECTORS, MATRICES, MATRICES, NUMBERS]),
        ("hipsolver_getrf_ffi", [MATRICES], [MATRICES, "tensor<4x8x6xi32>", NUMBERS]),
        ("cu_lu_pivots_to_permutation", [VECTORS], ["tensor<4x8x9xi32>"]),
        ("cu_threefry2x32_ffi", [VECTORS] * 4, [VECTORS] * 2),
    ],
)
def test_artifacts_from_before_there_were_rules(target: str, operands: list[str], results: list[str]) -> None:
    report = report_of_call(target, operands, results)
    assert not report.collectives
    assert not report.not_partitioned


@pytest.mark.parametrize(
    ("target", "results", "attributes"),
    [
        ("Qr", ["tensor<6x6xf32>", "tensor<6xf32>"], ""),
        ("Qr", [MATRICES, VECTORS], ', xla_shape = "(f32[4,8,6,6], f32[4,8,6])"'),
        ("cusolver_geqrf", [MATRICES, VECTORS], ""),
        ("somebody.s_call", [MATRICES, VECTORS], ""),
    ],
)
def test_unknown_calls_are_gathered_and_named(target: str, results: list[str], attributes: str) -> None:
    """Targets that nobody knows, that have sizes in their configuration, and results without the dimensions of the operands."""
    report = report_of_call(target, [MATRICES], results, attributes)
    assert [found.operation for found in report.not_partitioned] == [f"stablehlo.custom_call @{target}"]
    assert all(f"custom_call @{target} at call.mlir:4" in collective.why for collective in report.collectives)
    assert report.collectives


def test_as_many_problems_as_the_call_says() -> None:
    """JAX counts the dimensions that number the problems, for any target."""
    count = ', mhlo.frontend_attributes = {num_batch_dims = "2"}'
    assert not report_of_call("somebody.s_call", [MATRICES], [VECTORS], count).collectives
