"""What meshbridge makes of programs, verified against its source: every op, test programs, every stage, many devices."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np
import pytest

from meshbridge import partitioning, pipeline
from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.read import formats
from meshbridge.verification.verdict import Verdict, verify
from testdata.catalogue import BUILDERS, build
from tests.mesh_axes import needs_mesh_axes
from tests.operations.cases import export
from tests.operations.differential import device_mesh
from tests.operations.sample_cases import MESHES, case
from tests.operations.samples import SAMPLES, Sample
from tests.programs.varied import PROGRAMS

WITHOUT_VALUES = ("stablehlo.tuple", "stablehlo.get_tuple_element")
"""Ops of tuples, which have no exact evaluation."""

RUN = [sample for sample in SAMPLES if sample.runs and sample.op not in WITHOUT_VALUES]
GROUPS = [RUN[start : start + 8] for start in range(0, len(RUN), 8)]

QUICK = ("accumulation", "beam_search", "graph", "loop_power", "pipeline", "poisson")
QUICK_VARIED = ("partly_manual", "complex_numbers", "sorts", "segments", "pooling_gradient", "batched_solve", "bits")


def quickly(names: Iterable[str], quick: tuple[str, ...], *others: pytest.MarkDecorator) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=[pytest.mark.slow, *others]) for name in names]


def partitioned(source: ir.Module, emit: str = "exported") -> ir.Module:
    copy = formats.copy_module(source)
    partitioning.partition_module(copy, pipeline.Options(emit=emit))
    return copy


def verified(exported: jax.export.Exported, emit: str = "exported") -> Verdict:
    source = formats.unpack(exported, mlir.context()).module
    return verify(source, partitioned(source, emit), runs=1)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].op)
@pytest.mark.parametrize(
    "mesh_shape", [MESHES[0], *(pytest.param(shape, marks=pytest.mark.slow) for shape in MESHES[1:])], ids=str
)
def test_every_op(group: list[Sample], mesh_shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        assert verified(export([case(sample, mesh_shape) for sample in group], device_mesh(mesh_shape))).equal


@pytest.mark.parametrize("emit", ["exported", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quickly(BUILDERS, QUICK, pytest.mark.long))
def test_programs(name: str, emit: str) -> None:
    assert verified(build(name).export(), emit).equal


@pytest.mark.parametrize("name", quickly(PROGRAMS, QUICK_VARIED))
def test_varied_programs(name: str) -> None:
    assert verified(PROGRAMS[name].export()).equal


@pytest.mark.parametrize("name", quickly(BUILDERS, ("pipeline",), pytest.mark.long))
def test_every_stage(name: str) -> None:
    source = formats.unpack(build(name).export(), mlir.context()).module
    module = formats.copy_module(source)
    verdicts: dict[str, bool] = {}

    def check(step: Pass, changed: ir.Module) -> None:
        verdicts[step.name] = verify(source, changed, runs=1).equal

    partitioning.partition_module(module, on_pass=check)
    assert {"import-shardings", "mesh-spmdization", "optimize-collectives", "lower-collectives", "wrap-local"} <= set(verdicts)
    assert not [step for step, equal in verdicts.items() if not equal]


LAYER = """
sdy.mesh @mesh = <[MESH]>
func.func @main(%x: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"c"}]>},
                %w: tensor<48x96xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c"}, {"b"}]>})
    -> (tensor<64x96xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c"}, {"b", "a"}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x48xf32>, tensor<48x96xf32>) -> tensor<64x96xf32>
  %1 = stablehlo.tanh %0 : tensor<64x96xf32>
  return %1 : tensor<64x96xf32>
}
"""


@pytest.mark.parametrize("emit", ["mesh", "local", "exported"])
@pytest.mark.parametrize(
    "mesh", ['"a"=4, "b"=4, "c"=4', '"a"=8, "b"=8, "c"=8', '"a"=3, "b"=5, "c"=7', '"a"=4, "b"=2, "c"=4, "d"=2'], ids=str
)
def test_more_devices_than_run_here(mesh: str, emit: str) -> None:
    source = assembly.read(LAYER.replace("MESH", mesh), "layer.mlir", mlir.context())
    assert verify(source, partitioned(source, emit)).equal


RELABELLED = """
sdy.mesh @mesh = <["a"=8, "b"=4, "c"=16]>
func.func @main(%x: tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"c"}]>},
                %y: tensor<96x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}, {"c"}]>})
    -> (tensor<64x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c"}, {"a"}]>},
        tensor<96x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}, {"c"}]>}) {
  %0 = stablehlo.tanh %x : tensor<64x48xf32>
  %1 = stablehlo.tanh %y : tensor<96x64xf32>
  return %0, %1 : tensor<64x48xf32>, tensor<96x64xf32>
}
"""


@needs_mesh_axes
def test_relabelling_without_lists_of_devices() -> None:
    """On 512 devices all-to-alls do it, whose groups name axes."""
    source = assembly.read(RELABELLED, "relabelled.mlir", mlir.context())
    found = partitioned(source)
    names = [op.name for op in mlir.walk_all(found)]
    assert "stablehlo.all_to_all" in names
    assert "stablehlo.collective_permute" not in names
    assert verify(source, found).equal


def test_a_wrong_device_among_many_is_found() -> None:
    source = assembly.read(LAYER.replace("MESH", '"a"=4, "b"=4, "c"=4'), "layer.mlir", mlir.context())
    wrong = partitioned(source)
    op = next(op for op in mlir.walk_all(wrong) if op.name == "stablehlo.reduce_scatter")
    groups = np.array(op.attributes["replica_groups"])
    groups[0, :2] = groups[0, 1::-1]
    with wrong.context:
        op.attributes["replica_groups"] = ir.DenseIntElementsAttr.get(groups)
    assert not verify(source, wrong).equal
