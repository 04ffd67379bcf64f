"""Elementwise ops of LLVM's own dialects run on shards. XLA compiles none of them, so that no sample runs them."""

from __future__ import annotations

from types import ModuleType

import pytest
from jaxlib.mlir.dialects import arith, math

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import context, find
from meshbridge.ops.rule import RULES

PROGRAM = """
mesh.mesh @devices(shape = 4)
func.func @main(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {{
  %rows = mesh.sharding @devices split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x6xf32>
  %1 = {name} {operands} : tensor<8x6xf32>
  return %1 : tensor<8x6xf32>
}}"""
OPERANDS = {"arith.flush_denormals": "%0", "arith.maximumnumf": "%0, %0", "math.exp": "%0"}


def names_of(dialect: ModuleType) -> set[str]:
    return {known.OPERATION_NAME for known in vars(dialect).values() if hasattr(known, "OPERATION_NAME")}


@pytest.mark.parametrize("dialect", [arith, math], ids=["arith", "math"])
def test_every_op_of_the_bindings_has_a_rule(dialect: ModuleType) -> None:
    names = names_of(dialect)
    assert len(names) > 20
    assert names - set(RULES) == set()


@pytest.mark.parametrize("name", sorted(OPERANDS.keys() & (names_of(arith) | names_of(math))))
def test_an_op_runs_on_shards(name: str) -> None:
    with context() as ctx:
        program = assembly.read(PROGRAM.format(name=name, operands=OPERANDS[name]), "program.mlir", ctx)
        partitioned = meshbridge.partition(program, emit="mesh")
        (op,) = find(partitioned.operation, {name})
        assert str(op.results[0].type) == "tensor<2x6xf32>"
