"""Each collective pass on random programs: the same numbers on 8 devices, no more bytes, nothing left for a second run."""

from __future__ import annotations

from random import Random

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge import pass_names, pipeline
from meshbridge.cost.communication import communication
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, ir
from meshbridge.lowering.lower_collectives import LowerCollectives
from tests.collectives import collective_programs
from tests.lowering.harness import run_local

PASSES: dict[str, tuple[str, ...]] = {
    "all-gather-move-down": ("all_gather", "all_slice", "convert", "reshape", "unary"),
    "all-gather-move-up": ("all_gather", "broadcast", "convert"),
    "all-reduce-folder": ("all_reduce",),
    "all-reduce-reassociate": ("all_reduce", "same_again", "binary"),
    "all-reduce-split": ("all_reduce", "all_slice", "all_gather", "binary", "unary", "broadcast"),
    "collective-matmul{least=1}": ("all_gather", "dot", "reduce_scatter"),
    "combine-collectives": (),
    "combine-collectives{bytes=512}": ("same_again",),
    "delay-reductions": ("loop", "all_reduce"),
    "fold-collectives": ("all_gather", "all_slice", "reduce_scatter"),
    "hoist-collectives": ("loop",),
    "merge-collectives": ("same_again",),
    "merge-permutes": ("shift", "listed"),
    "merge-permutes{bytes=0}": ("shift", "listed"),
    "mesh-simplifications": ("all_reduce", "all_slice"),
    "optimize-collectives": (),
    "reduce-scatter-reassociate": ("reduce_scatter", "same_again", "binary", "reduce", "transpose"),
    "reduction-move-up": ("scale", "all_reduce", "reduce_scatter", "binary"),
}
"""The passes, each with the steps that programs for it are full of."""

FEWER = settings(max_examples=max(4, settings().max_examples // 5))
"""An example compiles two programs."""

TRIES = 1000
"""Programs to draw until a pass finds something in one. It takes milliseconds to see that there is nothing."""


def parsed(text: str) -> ir.Module:
    return read(text, "random.mlir", context())


def program_that_changes(name: str, seed: int) -> tuple[ir.Module, ir.Module]:
    """A random program, and what the pass makes of it."""
    random = Random(seed)
    for _ in range(TRIES):
        text = collective_programs.program(random.randrange(2**32), random.randrange(6, 20), PASSES[name])
        before, after = parsed(text), parsed(text)
        pipeline.run(pass_names.parse_pipeline(name), after)
        if str(after) != str(before):
            return before, after
    raise AssertionError(f"{TRIES} programs hold nothing for {name}")


def results(module: ir.Module) -> list[np.ndarray]:
    """What the devices compute of small integers, each of its own."""
    random = np.random.default_rng(0)
    types = {"f64": np.float64, "i64": np.int64}
    shapes = [((8, *value.shape), types[value.dtype]) for value in collective_programs.ARGUMENTS]
    arguments = [random.integers(-3, 4, shape).astype(dtype) for shape, dtype in shapes]
    LowerCollectives(form="local").run(module)
    for view in list(module.body.operations):
        if view.operation.name == "mesh.mesh":
            view.operation.erase()
    with jax.enable_x64(True):
        return run_local(module, arguments, 8)


@pytest.mark.parametrize("name", PASSES)
@FEWER
@given(seed=st.integers(0, 2**32))
def test_a_pass_keeps_the_numbers_and_lowers_the_bytes(name: str, seed: int) -> None:
    before, after = program_that_changes(name, seed)
    moved_before, moved_after = communication(before), communication(after)
    assert moved_after.wire_bytes <= moved_before.wire_bytes * (1 + 1e-9)
    if name == "optimize-collectives":
        assert moved_after.executions <= moved_before.executions
    once = str(after)
    pipeline.run(pass_names.parse_pipeline(name), after)
    assert str(after) == once, "a second run finds more to do"
    for expected, found in zip(results(before), results(after), strict=True):
        assert expected.dtype == found.dtype
        np.testing.assert_array_equal(found, expected)
