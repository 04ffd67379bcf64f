"""Every op that is written as Python computes what one device computes, and every other is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import meshbridge
from meshbridge.dialect import attributes
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_SPLIT
from meshbridge.emit.python.program import write
from meshbridge.ir import mlir
from meshbridge.ir.mlir import OpError, ir
from meshbridge.read import formats
from tests.emit.python.running import run
from tests.emit.python.table import REFUSED
from tests.lowering.cases import OPERATIONS, Expectation, meshes
from tests.lowering.harness import _Program
from tests.operations import families
from tests.operations.cases import Case, Operand, compare, examples, expected, export
from tests.operations.differential import Spec, device_mesh
from tests.operations.drawing import FAMILIES, batches
from tests.operations.sample_cases import EVEN, UNEVEN, case
from tests.operations.samples import SAMPLES, Sample

assert families.__all__

TOGETHER = 8
"""Samples in one program."""

RUN = [sample for sample in SAMPLES if sample.runs and sample.op not in REFUSED]
GROUPS = [RUN[start : start + TOGETHER] for start in range(0, len(RUN), TOGETHER)]


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def check(cases: Sequence[Case], mesh_shape: Sequence[int]) -> None:
    """All cases in one program, written as Python and run, beside what one device computes by plain `jax.jit`."""
    mesh = device_mesh(mesh_shape)
    found = run(meshbridge.partition(export(cases, mesh), emit="shard_map"), examples(cases))
    for each, wanted in zip(cases, expected(cases, mesh), strict=True):
        mine, found = found[: len(wanted)], found[len(wanted) :]
        compare(each, mine, wanted)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].op)
@pytest.mark.parametrize("mesh_shape", [UNEVEN, pytest.param(EVEN, marks=pytest.mark.slow)], ids=str)
def test_samples_equal_one_device(group: list[Sample], mesh_shape: tuple[int, ...]) -> None:
    check([case(sample, mesh_shape) for sample in group], mesh_shape)


def test_the_gradient_of_a_pooling() -> None:
    (sample,) = (each for each in SAMPLES if each.op in REFUSED)
    check([case(sample, EVEN)], EVEN)
    with pytest.raises(
        OpError, match=r"'stablehlo.select_and_scatter' op selects or adds up in a way that JAX has no function for"
    ):
        check([case(sample, UNEVEN)], UNEVEN)


ALGORITHMS = (
    *(each for each in lax.DotAlgorithmPreset if each is not lax.DotAlgorithmPreset.DEFAULT),
    lax.DotAlgorithm(jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float32, allow_imprecise_accumulation=True),  # type: ignore[arg-type]
)
OPERANDS = {"F16": "float16", "TF32": "float32", "F64": "float64", "ANY": "float8_e4m3fn"}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_products_by_an_algorithm_come_back(algorithm: Any) -> None:
    dtype = OPERANDS.get(str(algorithm).split("_")[0], "bfloat16" if "BF16_BF16_BF16" in str(algorithm) else "float32")
    mesh, operand = device_mesh((8,)), jax.ShapeDtypeStruct((8, 8), dtype)
    product = jax.jit(
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=algorithm),
        in_shardings=(jax.NamedSharding(mesh, Spec("a")), None),
    )
    defined: dict[str, Any] = {}
    exec(str(meshbridge.partition(product, operand, operand, platform="cuda", emit="shard_map")), defined)
    before, after = (
        re.findall("algorithm = <.*?>.*->", each.trace(operand, operand).lower(lowering_platforms=("cuda",)).as_text())
        for each in (product, jax.jit(defined["main"]))
    )
    assert len(before) == len(after) == 1
    assert before[0].split(">")[0] == after[0].split(">")[0]


WITHOUT_EQUIVALENT = {
    "ragged_and_approximate": "custom_call",
    "scatter_variadic": "scatters 2 arrays",
}
"""Families of drawn cases, most of which have an op that JAX lacks, and what is said of it."""

NOT_ORDERED = "sort_descending"
"""A comparator that gives NaN no place: what XLA makes of one depends on how it sorts."""

QUICK = ("binary", "bitcast", "dot_general", "gather", "reduce", "scatter")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != NOT_ORDERED]
)
def test_drawn_cases_equal_one_device(name: str) -> None:
    """Or are refused, with the op that JAX has no equivalent of."""

    @settings(max_examples=3)
    @given(drawn=batches(FAMILIES[name], 3))
    def drawn_case(drawn: tuple[tuple[int, ...], list[Case]]) -> None:
        mesh_shape, cases = drawn
        if (said := refusal(cases, mesh_shape)) is None:
            check(cases, mesh_shape)
        else:
            assert "error: 'stablehlo." in said
            assert name not in QUICK or name == "scatter", said
            assert WITHOUT_EQUIVALENT.get(name, "") in said

    drawn_case()


def refusal(cases: Sequence[Case], mesh_shape: Sequence[int]) -> str | None:
    """What is said where the cases cannot be written."""
    try:
        meshbridge.partition(export(cases, device_mesh(mesh_shape)), emit="shard_map")
    except OpError as error:
        return str(error)
    return None


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_sorts_by_several_keys(dtype: str) -> None:
    """The keys in any order among the operands; equal ones stay as they were."""

    def function(x: Any, y: Any, z: Any) -> Any:
        return lax.sort((x, y, z), dimension=0, num_keys=2), jnp.lexsort((z, x, y), axis=0)

    operands = [Operand((12, 4), dtype, Spec("a", "b"), "whole", special=dtype == "float32") for _ in range(3)]
    check([Case("sort by two and three keys", function, tuple(operands))], EVEN)


def sharded_over_all(text: str, mesh: object) -> ir.Module:
    """A program of one device whose arguments and results are shards along the first dimension, over all axes of its mesh."""
    module = mlir.parse(text, "case.mlir", mlir.context())
    main = mlir.main_function(module)
    with module.context, ir.Location.unknown():
        kinds = mlir.function_type(main)
        for side, types in zip(mlir.SIDES, (kinds.inputs, kinds.results), strict=True):
            mlir.set_entries(main, side, [_boundary(ir.RankedTensorType(each), mesh) for each in types])
    return module


def _boundary(shard: ir.RankedTensorType, mesh: object) -> dict[str, ir.Attribute]:
    whole = ir.RankedTensorType.get([shard.shape[0] * mesh.size, *shard.shape[1:]], shard.element_type)  # type: ignore[attr-defined]
    split = (tuple(range(mesh.rank)), *[()] * (shard.rank - 1))  # type: ignore[attr-defined]
    return {
        BOUNDARY_GLOBAL: ir.TypeAttr.get(whole),
        BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(mesh.name),  # type: ignore[attr-defined]
        BOUNDARY_SPLIT: attributes.axis_array_attr(split),
    }


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=2)
@given(data=st.data())
def test_mesh_operations_equal_the_simulator(operation: str, data: st.DataObject) -> None:
    """All of the dialect that runs on devices, on meshes in any order of devices."""
    size = data.draw(st.sampled_from([2, 4, 6, 8]))
    order = data.draw(st.one_of(st.just(()), st.permutations(range(size)).map(tuple)))
    mesh = data.draw(meshes(size, order))
    cases: list[Expectation] = [data.draw(OPERATIONS[operation](mesh)) for _ in range(4)]
    program = _Program.of([each.case for each in cases])
    text = write(formats.Program(sharded_over_all(program.local_text(), mesh), formats.TEXT))
    given_values = [np.concatenate(list(values)) for values in program.stacked(by="position")]
    found = [each.reshape(size, -1, *each.shape[1:]) for each in run(text, given_values)]
    for expectation, results in zip(cases, program.results(found, by="position"), strict=True):
        expectation.check(results)
