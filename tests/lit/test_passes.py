"""Every function of the collective passes' lit tests gives the same numbers before and after its pass, on 8 virtual devices,
and communicates no more."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from meshbridge import pass_names, pipeline
from meshbridge.cost.communication import communication
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, function_type, ir, main_function
from meshbridge.lowering.lower_collectives import LowerCollectives
from tests.lowering.harness import run_local

LIT = Path(__file__).parent / "passes"
PASSES = (
    "all-gather-move-down",
    "all-gather-move-up",
    "all-reduce-folder",
    "all-reduce-reassociate",
    "all-reduce-split",
    "collective-matmul",
    "combine-collectives",
    "delay-reductions",
    "fold-collectives",
    "hoist-collectives",
    "merge-collectives",
    "mesh-simplifications",
    "prefetch-gathers",
    "reduce-scatter-reassociate",
    "reduce-scatter-redirect",
    "reduction-move-up",
    "ring-attention",
    "rows-in-pieces",
)
OPTIONS = {"prefetch-gathers": "least=0", "collective-matmul": "least=1", "rows-in-pieces": "least=1"}
"""Of passes that leave small values alone."""

DEVICES = 8


def file_of(name: str) -> Path:
    return LIT / f"{name.replace('-', '_')}.mlir"


def functions(name: str) -> list[str]:
    """The names of the public functions in the lit test of a pass; the private ones have no form that XLA runs."""
    lines = file_of(name).read_text().splitlines()
    return [line.split("@")[1].split("(")[0] for line in lines if line.startswith("func.func @")]


def program(name: str, function: str) -> ir.Module:
    """The lit test of pass `name` with that function alone, as the program of one of `DEVICES` replicas."""
    module = read(file_of(name).read_text(), file_of(name).name, context())
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for view in list(module.body.operations):
            op = view.operation
            if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value != function:
                op.erase()
        main_function(module).attributes["sym_name"] = ir.StringAttr.get("main")
        for key, value in (("mhlo.num_replicas", DEVICES), ("mhlo.num_partitions", 1)):
            module.operation.attributes[key] = ir.IntegerAttr.get(number, value)
    return module


def arguments(module: ir.Module) -> list[np.ndarray]:
    """For each argument an array per device, all different."""
    rng = np.random.default_rng(0)
    found = []
    for type_ in function_type(main_function(module)).inputs:
        tensor = ir.RankedTensorType(type_)
        dtype = jnp.dtype(
            {"f32": "float32", "bf16": "bfloat16", "i16": "int16", "i32": "int32", "i1": "bool"}[str(tensor.element_type)]
        )
        found.append(np.asarray(rng.integers(-3, 4, (DEVICES, *tensor.shape))).astype(dtype))
    return found


def results(module: ir.Module, values: list[np.ndarray]) -> list[np.ndarray]:
    """What the devices compute."""
    LowerCollectives(form="local").run(module)
    for view in list(module.body.operations):
        if view.operation.name == "mesh.mesh":
            view.operation.erase()
    return run_local(module, values, DEVICES)


@pytest.mark.parametrize(("name", "function"), [(name, each) for name in PASSES for each in functions(name)])
def test_a_pass_keeps_the_numbers(name: str, function: str) -> None:
    before, after = program(name, function), program(name, function)
    values = arguments(before)
    pipeline.run([pass_names.make_pass(name, OPTIONS.get(name, ""))], after)
    once = str(after)
    moved_before, moved_after = communication(before).wire_bytes, communication(after).wire_bytes
    assert moved_after <= moved_before
    pipeline.run([pass_names.make_pass(name, OPTIONS.get(name, ""))], after)
    assert str(after) == once, "a second run finds more to do"
    for expected, found in zip(results(before, values), results(after, values), strict=True):
        assert expected.dtype == found.dtype
        whole, other = expected.astype(np.float64), found.astype(np.float64)
        np.testing.assert_allclose(other, whole, rtol=1e-5, atol=1e-6 * np.abs(whole).max(initial=1))
