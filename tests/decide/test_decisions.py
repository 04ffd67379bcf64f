"""Decisions in memory and as annotations mean the same, and say why each value is resharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from meshbridge import partitioning, pass_names, pipeline
from meshbridge.decide.decide import decide
from meshbridge.decide.decisions import ANNOTATED, CHEAPEST, SAME_VALUE, BlockDecisions, FunctionDecisions, Shardings
from meshbridge.decide.read_annotations import decisions_from_annotations
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.ir.mlir import context, functions_to_partition, ir, parse
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.ops.rule import Interface
from meshbridge.pipeline import Options
from meshbridge.read import formats
from testdata.catalogue import BUILDERS, build
from tests.programs.varied import PROGRAMS

QUICK = (
    "mlp_ws2d",
    "llama_scan_fsdp",
    "moe_grad",
    "decode_seq",
    "sample_top_k",
    "loop_kmeans",
    "pipeline",
    "beam_search",
    "misc_fft2",
)
QUICK_VARIED = ("partly_manual", "branches_in_a_scan", "sorts", "checkpointed_with_dropout")
MESH = pipeline.build(Options.of(emit="mesh", machine="bytes"))


def _cases() -> list[object]:
    names = [name for name in BUILDERS if name != "gpt48"]
    slow = [name for name in (*names, *PROGRAMS) if name not in QUICK + QUICK_VARIED]
    return [*QUICK, *QUICK_VARIED, *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long]) for name in slow)]


@pytest.mark.parametrize("name", _cases())
def test_annotations_say_what_memory_holds(name: str) -> None:
    """A program that was written out with its decisions and read back is partitioned to the same text."""
    exported = (build(name) if name in BUILDERS else PROGRAMS[name]).export()
    at_once, annotated = (formats.unpack(exported, context()).module for _ in range(2))
    pipeline.run(MESH.passes, at_once)
    pipeline.run(pipeline.build(Options.of(emit="annotated", machine="bytes")).passes, annotated)
    read_back = parse(str(annotated), "annotated.mlir", context())
    pipeline.run(MESH.starting_at("decided").passes, read_back)
    assert str(read_back) == str(at_once)


def test_deciding_leaves_the_program_as_it_is() -> None:
    module = _legal("moe_grad")
    before = str(module)
    _decide(module)
    assert str(module) == before


@pytest.mark.parametrize("name", ["moe_grad", "loop_kmeans"])
def test_reshardings_say_why(name: str) -> None:
    """Written down, all of them are annotations: none is left between an annotated definition and an annotated use."""
    module = _legal(name)
    decided = _decide(module)
    assert CHEAPEST in {found.why for found in decided} <= {ANNOTATED, CHEAPEST, SAME_VALUE}
    pipeline.run(pipeline.build(Options.of(emit="annotated", machine="bytes")).starting_at("legal").passes, module)
    with module.context:
        (function,) = decisions_from_annotations(module).functions
    read = list(_reshardings_of(function))
    pairs = ({(found.source, found.target) for found in each} for each in (decided, read))
    assert next(pairs) == next(pairs)
    assert all(found.op.name == "mesh.shard" or found.value in list(found.op.results) for found in read)


def _legal(name: str) -> ir.Module:
    module = formats.unpack(build(name).export(), context()).module
    pipeline.run(MESH.until("legal").passes, module)
    return module


def _decide(module: ir.Module) -> list[_Resharding]:
    with module.context, ir.Location.unknown():
        (function,) = decide(functions_to_partition(module), module, Interface(), moves=ShardingRefinement.moves).functions
    return list(_reshardings_of(function))


def test_a_pass_between_deciding_and_partitioning_is_refused() -> None:
    """Decisions are about the program as it was."""
    module = formats.unpack(build("moe_grad").export(), context()).module
    between = pass_names.make_pass("mesh-specialize")
    steps = (*MESH.until("decided").passes, between, *MESH.starting_at("decided").passes)
    with pytest.raises(RuntimeError, match="changes a program but keeps the analyses Decisions"):
        pipeline.run(steps, module)


@dataclass(frozen=True)
class _Resharding:
    """A value that is resharded before an op, or where the op defines it."""

    op: ir.Operation
    value: ir.Value
    source: Sharding
    target: Sharding
    why: str


def _reshardings_of(decisions: FunctionDecisions) -> Iterator[_Resharding]:
    """The reshardings between the definitions and the uses of a function, in program order, as long as it is not partitioned."""
    yield from _inside(decisions.function.regions[0].blocks[0], decisions.block, decisions.mesh, {})


def _inside(block: ir.Block, decisions: BlockDecisions, mesh: Mesh, defined: dict[ir.Value, Sharding]) -> Iterator[_Resharding]:
    _define(defined, block.arguments, decisions.arguments)
    for view, decision in zip(block.operations, decisions.ops, strict=True):
        op = view.operation
        for value, target in zip(op.operands, decision.operands, strict=False):
            source = defined.get(value)
            if source is not None and target is not None and source != target:
                yield _Resharding(op, value, source, target, decision.why)
        for index, target in enumerate(decision.results):
            made = decision.computed(index, mesh)
            if made is not None and target is not None and made != target:
                yield _Resharding(op, op.results[index], made, target, decision.why)
        _define(defined, op.results, decision.results)
        for region, inner in zip(op.regions, decision.regions, strict=False):
            yield from _inside(region.blocks[0], inner, mesh, defined)


def _define(defined: dict[ir.Value, Sharding], values: object, shardings: Shardings) -> None:
    for value, sharding in zip(values, shardings, strict=False):  # type: ignore[call-overload]
        if sharding is not None:
            defined[value] = sharding


TERMS = 1200
"""More additions in a chain than Python lets functions call each other."""


def test_a_long_sum_with_a_partial_value_in_it_is_reduced_once() -> None:
    """The norm of all gradients of a model adds as many values as the model has parameters."""
    squares = "\n".join(
        f"  %r{i} = stablehlo.reduce({'%x' if i < TERMS - 1 else '%y'} init: %zero) applies stablehlo.add across "
        f"dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>"
        for i in range(TERMS)
    )
    names = ["%r0", *(f"%s{i}" for i in range(1, TERMS))]
    sums = "\n".join(f"  %s{i} = stablehlo.add {names[i - 1]}, %r{i} : tensor<f32>" for i in range(1, TERMS))
    text = f"""sdy.mesh @mesh = <["a"=8]>
func.func @main(%x: tensor<64xf32>, %y: tensor<64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}]>}}) -> tensor<f32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
{squares}
{sums}
  return {names[-1]} : tensor<f32>
}}"""
    module = parse(text, "sums.mlir", context())
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    assert str(module).count("mesh.all_reduce") == 1
