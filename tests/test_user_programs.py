"""Programs as users write them, through everything that takes a program: `partition`, `compile`, `report`, `compare`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
import pytest
from jax import export

import meshbridge
from meshbridge import formats, mlir
from meshbridge.comparison import spmd
from meshbridge.comparison.contestants import CONTESTANTS, prepared
from meshbridge.pjrt import boundary
from tests.user_programs import PROGRAMS, UserProgram


def within(program: UserProgram) -> AbstractContextManager[Any]:
    return nullcontext() if program.mesh is None else jax.set_mesh(program.mesh)


def exported(program: UserProgram) -> export.Exported:
    with within(program):
        return export.export(program.jitted, platforms=program.platforms)(*program.arguments, **program.named)


def fresh(tree: Any) -> Any:
    """A copy that may be donated."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def expected(program: UserProgram) -> Any:
    with within(program):
        return program.plain(*fresh(program.arguments), **fresh(program.named))


def check_same(found: Any, wanted: Any) -> None:
    """Trees, types and numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(plain(got), plain(want), rtol=2e-2 if want.dtype == "bfloat16" else 1e-4, atol=1e-4)


def plain(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == "bfloat16" else array


@pytest.mark.parametrize("name", PROGRAMS)
def test_compile(name: str) -> None:
    """The executable is called as the function is, and gives what the function gives."""
    program = PROGRAMS[name]()
    executable = meshbridge.compile(exported(program))
    check_same(executable(*fresh(program.given), **fresh(program.named)), expected(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_compile_what_was_lowered(name: str) -> None:
    program = PROGRAMS[name]()
    with within(program):
        lowered = program.jitted.lower(*program.arguments, **program.named)
    check_same(meshbridge.compile(lowered)(*fresh(program.given), **fresh(program.named)), expected(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_partition(name: str) -> None:
    """A call of the executable within `jax.jit` is a call of the partitioned artifact. A jitted function is exported first."""
    program = PROGRAMS[name]()
    original = exported(program)
    with within(program):
        partitioned = meshbridge.partition(program.jitted, *program.arguments, **program.named)
        called = jax.jit(meshbridge.compile(original))(*fresh(program.given), **fresh(program.named))
    check_same(called, expected(program))
    assert (partitioned.in_tree, partitioned.out_tree) == (original.in_tree, original.out_tree)


@pytest.mark.parametrize("name", PROGRAMS)
def test_report_and_compare(name: str) -> None:
    """XLA's partitioners run the same program on the same inputs, and the results are those of the function."""
    program = PROGRAMS[name]()
    opened = formats.for_platform(formats.unpack(exported(program), mlir.context()), "cpu")
    report = meshbridge.report(opened)
    assert report.wire_bytes >= 0
    calling = opened.calling
    assert calling is not None
    wanted = expected(program)
    for contestant in CONTESTANTS.values():
        module, _ = prepared(contestant, opened.module)
        compiled = spmd.compile(module, jax.devices()[: report.mesh.size], shardy=contestant.shardy)
        arrays = calling.flatten(fresh(program.given), fresh(program.named))
        places = boundary(opened.module)[0]
        fitted = [place.fitted(*each) for place, *each in zip(places, calling.labels(), arrays, strict=True)]
        results = compiled.join(compiled.execute(compiled.place(fitted)))
        check_same(calling.unflatten([jax.numpy.asarray(result) for result in results]), wanted)
