"""Cutting an axis costs no second walk over the program, and reaches what was decided before it."""

from __future__ import annotations

import pytest

from meshbridge.decide.build_graph import GraphBuilder
from meshbridge.decide.graph import Graph
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect.attributes import axis_array
from meshbridge.dialect.ops import OPTION, MeshOp
from meshbridge.ir.mlir import context, ir, walk_all
from meshbridge.read import formats

PLAIN = """
func.func @plain(%x: tensor<8xf32>) -> tensor<8xf32> {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8xf32>
  %1 = stablehlo.tanh %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""

HEADS = """
func.func @heads(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<2x4xf32> {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8xf32>
  %1 = stablehlo.add %0, %y : tensor<8xf32>
  %2 = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
"""

SPLITS = {f"#mesh.axisarray<{split}>" for split in ("[[0, 1]]", "[[0], [1]]", "[[], []]")}
"Of what is whole, of what is reshaped, and of that where it is returned: callers have no name for a part of an axis."


def _builds(monkeypatch: pytest.MonkeyPatch, *functions: str) -> tuple[ir.Module, int]:
    """The functions, partitioned on one mesh of 4, and how many graphs that took."""
    built: list[Graph] = []
    build = GraphBuilder.build

    def counted(self: GraphBuilder) -> Graph:
        built.append(build(self))
        return built[-1]

    monkeypatch.setattr(GraphBuilder, "build", counted)
    module = formats.read("\n".join(["mesh.mesh @m(shape = 4)", *functions]).encode(), "a.mlir", context()).module
    ShardingRefinement().run(module)
    return module, len(built)


def _splits(module: ir.Module) -> set[str]:
    assert [view.value.shape for view in module.body.operations if isinstance(view, MeshOp)] == [(2, 2)]
    return {str(op.attributes["split_axes"]) for op in walk_all(module) if op.name == "mesh.sharding"}


def test_one_function_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, count = _builds(monkeypatch, HEADS)
    assert count == 1
    assert _splits(module) == SPLITS


def test_the_mesh_of_another_function_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first function has been propagated on whole axes when the second one asks for their parts."""
    module, count = _builds(monkeypatch, PLAIN, HEADS)
    assert count > 2
    assert _splits(module) == SPLITS


def test_later_functions_begin_with_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    module, count = _builds(monkeypatch, HEADS, PLAIN)
    assert count == 2
    assert _splits(module) == SPLITS


def test_given_options_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "stablehlo.add %0, %y {meshbridge.sharding_option = #mesh.axisarray<[[0]]>}"
    module, count = _builds(monkeypatch, HEADS.replace("stablehlo.add %0, %y", given))
    assert count == 1
    assert _splits(module) == SPLITS
    add = next(op for op in walk_all(module) if op.name == "stablehlo.add")
    assert axis_array(add.attributes[OPTION]) == ((0, 1),)
