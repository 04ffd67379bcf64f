"""Pipelines written in Shardy's MPMD dialect: jaxlib verifies them, Shardy's passes lower them, and they compute the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir import mlir
from meshbridge.ir.mlir import context, ir, main_function, walk_all
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import StagedPipeline, build
from meshbridge.pipelines.mapped import read_mapped
from meshbridge.pipelines.mpmd_types import FRAGMENT, FRAGMENT_CALL, TRANSFER
from meshbridge.pipelines.mpmd_writer import write
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.read.formats import TEXT, Program
from meshbridge.verification.verdict import verify
from tests.pipelines import shardy
from tests.pipelines.steps import STEPS, accumulating, gpt, in_stacks, one_scan_loss

Tree = Any

LAYERS = {"a stack of layers": (accumulating(one_scan_loss, 2), (in_stacks(gpt()[0]), gpt()[1]), 2)}

SPECS: dict[str, Tree] = {"mlp": P("data"), "clipping": P("model", "data"), "tied embeddings": P("data"), "dropout": P("data")}
"""By step, how its batch is sharded, on two or four devices for each stage; others are on one."""


def sharded(name: str) -> dict[str, Any]:
    """The options of `jax.jit` for a step: parameters along the last dimension on "model", batches as in `SPECS`."""
    if name not in SPECS:
        return {}
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    params, batch = STEPS[name][1]
    place = lambda spec: NamedSharding(mesh, spec)  # noqa: E731
    kernels = jax.tree.map(lambda x: place(P(*[None] * (np.ndim(x) - 1), "model") if np.ndim(x) > 1 else P()), params)
    return {"in_shardings": (kernels, jax.tree.map(lambda x: place(SPECS[name] if np.ndim(x) else P()), batch))}


def pipeline_of(name: str, schedule: str = "1f1b", groups: int | None = None) -> StagedPipeline:
    """A step as a pipeline."""
    step, arguments, stages = (STEPS | LAYERS)[name]
    program = formats.unpack(jax.jit(step, **sharded(name)), context(), arguments)
    return build(program, Options.of(emit="local"), groups or stages, schedule)


def reread(module: ir.Module) -> ir.Module:
    """A program, written as text and read again."""
    return mlir.parse(str(module), "pipeline.mlir", context())


def computes(module: ir.Module, pipeline: StagedPipeline) -> bool:
    """Whether a mapped program computes what the step of a pipeline computes."""
    mapped = read_mapped(Program(module, TEXT), Options.of(emit="local"))
    return verify(pipeline.source.module, compose(mapped)).equal


@pytest.mark.parametrize("name", [*STEPS, *LAYERS])
def test_it_computes_what_the_step_computes(name: str) -> None:
    pipeline = pipeline_of(name, "zero-bubble" if name in ("four stages", "mixture of experts") else "1f1b")
    module = reread(write(pipeline))
    assert computes(module, pipeline)


@pytest.mark.parametrize(("name", "schedule"), [("mlp", "1f1b"), ("clipping", "zero-bubble")])
def test_shardy_lowers_it_in_its_order(name: str, schedule: str) -> None:
    """These steps have no constants that Shardy folds to rounded ones."""
    pipeline = pipeline_of(name, schedule)
    lowered = shardy.lowered(reread(write(pipeline)))
    called = [op for op in walk_all(lowered) if op.name == FRAGMENT_CALL]
    meshes = [ir.StringAttr(op.attributes["mesh_name"]).value for op in called]
    assert meshes == [f"mesh{call.fragment.group}" for call in pipeline.plan.calls]
    moved = [op for op in walk_all(lowered) if op.name == TRANSFER]
    assert len(moved) >= len(pipeline.plan.sends)
    assert computes(reread(lowered), pipeline)


def test_what_it_says() -> None:
    module = write(pipeline_of("four stages", "zero-bubble"))
    main = main_function(module)
    assert str(main.attributes["topology"]).count("<[") == 4
    labels = [str(op).split(">", 1)[0].partition("origin=")[2] for op in walk_all(module) if op.name == FRAGMENT]
    assert labels[:5] == ['["before"]'] * 4 + ['["stage0"], stage=0']
    assert '["stage3", "stage3"(1)], stage=3' in labels
    halves = [op for op in walk_all(module) if op.name == FRAGMENT and '"stage1"(1)' in str(op.attributes["origin"])]
    assert len(halves) == 8
    assert sum("split_keep_transferred" in op.attributes for op in halves) == 4
    assert sum("split_drop_transferred" in op.attributes for op in halves) == 4
    assert {int(ir.IntegerAttr(op.attributes["call_counter"]).value) for op in halves} == {0, 1, 2, 3}


def test_a_stack_of_layers_is_an_argument_for_each_stage() -> None:
    pipeline = pipeline_of("a stack of layers")
    read = read_mapped(Program(reread(write(pipeline)), TEXT), Options.of(emit="local"))
    assert read.stacks == pipeline.stacks
    assert any(part.parts == 2 for part in read.stacks.arguments)


def test_parts_of_a_stack_may_have_different_numbers_of_layers() -> None:
    params, tokens = gpt(5)
    program = formats.unpack(jax.jit(accumulating(one_scan_loss, 1)), context(), (in_stacks(params), tokens))
    pipeline = build(program, Options.of(emit="local"), 2, "1f1b")
    read = read_mapped(Program(reread(write(pipeline)), TEXT), Options.of(emit="local"))
    assert read.stacks == pipeline.stacks
    assert {part.division.sizes for part in read.stacks.arguments if part.parts > 1} == {(3, 2)}


def test_donated_arguments_stay_so() -> None:
    step, arguments, _ = STEPS["mlp"]
    program = formats.unpack(jax.jit(step, donate_argnums=0), context(), arguments)
    pipeline = build(program, Options.of(emit="local"), 2, "1f1b")
    assert read_mapped(Program(write(pipeline), TEXT), Options.of(emit="local")).donated == pipeline.donated
    assert pipeline.donated
