"""Every op of StableHLO and CHLO is partitioned or refused: a sample of each runs under several shardings, even and uneven."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.ir.mlir import context, parse
from meshbridge.legalize.legalize import Legalize
from meshbridge.ops.rule import RULES
from meshbridge.ops.spmd import SPMD_LOWERINGS
from meshbridge.ops.unsupported import MANUAL_ONLY, UNSUPPORTED
from tests.operations import differences, status
from tests.operations.cases import check
from tests.operations.differential import example
from tests.operations.interpreter import evaluate
from tests.operations.sample_cases import MESHES, case
from tests.operations.samples import SAMPLES, Sample
from tests.versions import OF_THE_PAGES

TOGETHER = 8
"""Samples in one program: XLA compiles it in far less time than one program for each."""
RUN = [sample for sample in SAMPLES if sample.runs]
GROUPS = [RUN[start : start + TOGETHER] for start in range(0, len(RUN), TOGETHER)]


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].op)
@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_equals_unsharded(group: list[Sample], mesh_shape: tuple[int, ...]) -> None:
    check([case(sample, mesh_shape) for sample in group], mesh_shape)


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if not sample.runs], ids=lambda sample: sample.op)
def test_partitions_what_cannot_run_here(sample: Sample) -> None:
    """The first dimension of every operand split: nothing is gathered for want of a rule."""
    with context() as ctx:
        body = str(sample.module(ctx))
        for index, (shape, _) in enumerate(sample.operands):
            dims = ", ".join(['{"a"}', *["{}"] * (len(shape) - 1)] if shape else [])
            body = re.sub(rf"(%arg{index}: [^,)]+)", rf"\1 {{sdy.sharding = #sdy.sharding<@mesh, [{dims}]>}}", body, count=1)
        module = parse(body.replace("module {", 'module {\nsdy.mesh @mesh = <["a"=2]>', 1), f"{sample.op}.mlir", ctx)
        assert not meshbridge.report(module).not_partitioned


def test_every_op_has_a_sample() -> None:
    sampled = {sample.op for sample in SAMPLES}
    covered = sampled | set(UNSUPPORTED) | set(MANUAL_ONLY) | set(status.WITHOUT_SAMPLE)
    assert set(status.op_names()) <= covered
    assert sampled <= set(status.op_names())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_sample_has_its_op(sample: Sample) -> None:
    with context() as ctx:
        assert f"{sample.op}" in str(sample.module(ctx).operation.get_asm(print_generic_op_form=True))


of_the_pages = pytest.mark.skipif(not OF_THE_PAGES, reason="the pages list the operations of jaxlib 0.10.2")


@of_the_pages
def test_status_is_up_to_date() -> None:
    """`python -m tests.operations.status` writes it."""
    assert status.PAGE.read_text() == status.page()


@of_the_pages
def test_differences_from_shardy_are_listed_with_reasons() -> None:
    """`python -m tests.operations.status` writes them; a new one has no reason yet."""
    found = differences.differences()
    assert {one.op for one in found if one.op.startswith("stablehlo.")} == {op for op in differences.REASONS if "." in op}


def test_expansion_that_jax_cannot_export() -> None:
    """`chlo.broadcast_select`, expanded and evaluated by the interpreter."""
    (sample,) = [sample for sample in SAMPLES if sample.oracle is not None and not sample.runs]
    rng = np.random.default_rng(0)
    values = [example(rng, shape, dtype) for shape, dtype in sample.operands]
    with context() as ctx:
        module = sample.module(ctx)
        Legalize().run(module)
        (found,) = evaluate(str(module), values)
    np.testing.assert_array_equal(found, sample.oracle(*values))


def test_oracles_are_only_where_xla_has_none() -> None:
    """An oracle replaces XLA's own run, so there must be a reason."""
    for sample in SAMPLES:
        if sample.oracle is not None and sample.runs:
            values = [np.ones(shape, dtype) for shape, dtype in sample.operands]
            with pytest.raises(Exception, match=r"translated|CHLO|legalize|UNIMPLEMENTED"):
                jax.jit(sample.function)(*values)


def test_a_lowering_stands_beside_its_rule() -> None:
    """Whoever changes how an op may be sharded sees in the same file what becomes of it on shards."""
    apart = {name: form.__module__ for name, form in SPMD_LOWERINGS.items() if form.__module__ != RULES[name].__module__}
    assert not apart
