"""Which results are gathered by rows that columns are exchanged for: those whose copy takes longer, on the machines that copy."""

from __future__ import annotations

import pytest

from meshbridge import pipeline
from meshbridge.collectives.gather_rows import GatherRows
from meshbridge.cost.collective_ops import arranged_bytes
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, find, ir
from meshbridge.ir.tiles import memory_order

PROGRAM = """
mesh.mesh @m(shape = 4x16)
func.func @main(%x: tensor<{rows}x256xbf16>) -> tensor<{rows}x{columns}xbf16> {{
  %0 = mesh.all_gather %x on @m mesh_axes = [{axis}] gather_axis = 1 : tensor<{rows}x256xbf16> -> tensor<{rows}x{columns}xbf16>
  return %0 : tensor<{rows}x{columns}xbf16>
}}
"""


def program(rows: int, axis: int) -> ir.Module:
    return read(PROGRAM.format(rows=rows, axis=axis, columns=256 * (4, 16)[axis]), "gather.mlir", context())


def exchanges(module: ir.Module, machine: str) -> int:
    pipeline.run([GatherRows(machine)], module)
    return len(find(module.operation, {"mesh.all_to_all"}))


@pytest.mark.parametrize("machine", ["v5e", "v5p", "v6e", "v5p:4x4x4", "v5e:8x8"])
def test_large_results_are_exchanged_on_tpus(machine: str) -> None:
    assert exchanges(program(32000, 1), machine) == 1


@pytest.mark.parametrize(("machine", "rows"), [("v5p:4x4x4", 64), ("v5e:8x8", 16), ("h100", 32000), ("h100:1x8x8", 32000)])
def test_small_ones_stay_and_those_of_machines_that_copy_nothing(machine: str, rows: int) -> None:
    module = program(rows, 1)
    once = str(module)
    assert exchanges(module, machine) == 0
    assert str(module) == once


def test_copies_count_for_the_order_in_memory_of_what_is_returned() -> None:
    module = program(32000, 1)
    (gather,) = find(module.operation, {"mesh.all_gather"})
    assert arranged_bytes(gather) == 2 * 2 * 32000 * 4096
    pipeline.run([GatherRows()], module)
    (gather,) = find(module.operation, {"mesh.all_gather"})
    assert arranged_bytes(gather) == 0


def test_the_order_in_memory_is_that_of_less_padding() -> None:
    assert memory_order((32064, 4096)) == memory_order((100, 100)) == [0, 1]
    assert memory_order((4096, 32064)) == [1, 0]
    assert memory_order((2, 4096, 100)) == [0, 2, 1]
    assert memory_order((7,)) == [0]
    assert memory_order(()) == []
