"""Programs as users write them, through everything that takes a program: `partition`, `compile`, `report`, `compare`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax import export

import meshbridge
from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.read import formats
from meshbridge.runtime.pjrt import boundary
from meshbridge.tools.compare import spmd
from meshbridge.tools.compare.contestants import CONTESTANTS
from tests.programs.user_programs import PROGRAMS, UserProgram
from tests.versions import CALLS_WITH_KEYS


def within(program: UserProgram) -> AbstractContextManager[Any]:
    return nullcontext() if program.mesh is None else jax.set_mesh(program.mesh)


@cache
def built(name: str) -> UserProgram:
    return PROGRAMS[name]()


@cache
def exported(name: str) -> export.Exported:
    program = built(name)
    with within(program):
        return export.export(program.jitted, platforms=program.platforms)(*program.arguments, **program.named)


def fresh(tree: Any) -> Any:
    """A copy that may be donated."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


@cache
def expected(name: str) -> Any:
    program = built(name)
    with within(program):
        return program.plain(*fresh(program.arguments), **fresh(program.named))


def check_same(found: Any, wanted: Any) -> None:
    """Trees, types and numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(plain(got), plain(want), rtol=2e-2 if want.dtype == "bfloat16" else 1e-4, atol=1e-4)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(array: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(jax.random.key_data(array) if is_key(array) else array)
    return array.astype(np.float32) if array.dtype == "bfloat16" else array


@pytest.mark.parametrize("name", PROGRAMS)
def test_compile(name: str) -> None:
    """The executable is called as the function is, and gives what the function gives."""
    program = built(name)
    executable = meshbridge.compile(exported(name))
    check_same(executable(*fresh(program.given), **fresh(program.given_named)), expected(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_compile_what_was_lowered(name: str) -> None:
    program = built(name)
    with within(program):
        lowered = program.jitted.lower(*program.arguments, **program.named)
    check_same(meshbridge.compile(lowered)(*fresh(program.given), **fresh(program.given_named)), expected(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_partition(name: str) -> None:
    """A call of the executable within `jax.jit` is a call of the partitioned artifact. A jitted function is exported first."""
    program = built(name)
    original = exported(name)
    if not CALLS_WITH_KEYS and any(map(is_key, jax.tree.leaves((program.given, program.named)))):
        pytest.skip("this jax cannot call an exported function that takes typed keys")
    with within(program):
        partitioned = meshbridge.partition(program.jitted, *program.arguments, kwargs=program.named)
        called = jax.jit(meshbridge.compile(original))(*fresh(program.given), **fresh(program.given_named))
    check_same(called, expected(name))
    assert (partitioned.in_tree, partitioned.out_tree) == (original.in_tree, original.out_tree)


@pytest.mark.parametrize("name", PROGRAMS)
def test_report_and_compare(name: str) -> None:
    """XLA's partitioners run the same program on the same inputs, and the results are those of the function."""
    program = built(name)
    opened = formats.for_platform(formats.unpack(exported(name), mlir.context()), "cpu")
    report = meshbridge.report(opened)
    assert report.wire_bytes >= 0
    calling = opened.calling
    assert calling is not None
    wanted = expected(name)
    for contestant in CONTESTANTS.values():
        module = contestant.prepare(formats.copy_module(opened.module), pipeline.DEFAULTS.target)
        compiled = spmd.compile(module, jax.devices()[: report.mesh.size], shardy=contestant.shardy)
        arrays = calling.flatten(fresh(program.given), fresh(program.given_named))
        places = boundary(opened.module)[0]
        fitted = [place.fitted(*each) for place, *each in zip(places, calling.labels(), arrays, strict=True)]
        results = compiled.join(compiled.execute(compiled.place(fitted)))
        check_same(calling.unflatten([jax.numpy.asarray(result) for result in results]), wanted)
