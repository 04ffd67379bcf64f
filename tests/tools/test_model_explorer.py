"""Node data for Model Explorer: operations are numbered as it numbers them, and every byte is at the one that asked for it."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import context
from meshbridge.tools import cli
from meshbridge.tools.model_explorer import ExplorerGraph, node_data, nodes
from testdata.catalogue import build

PROGRAM = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%y = %x, %i = %zero) : tensor<8x4xf32>, tensor<i32> cond {
    %five = stablehlo.constant dense<5> : tensor<i32>
    %more = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %sum = stablehlo.reduce(%y init: %none) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %wide = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
    %less = stablehlo.subtract %y, %wide : tensor<8x4xf32>
    stablehlo.return %less, %next : tensor<8x4xf32>, tensor<i32>
  }
  %1 = sdy.manual_computation(%0#0) in_shardings=[<@mesh, [{"x"}, {}]>]
      out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%a: tensor<4x4xf32>) {
    %b = stablehlo.tanh %a : tensor<4x4xf32>
    sdy.return %b : tensor<4x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = call @total(%1) : (tensor<8x4xf32>) -> tensor<4xf32>
  return %1, %2 : tensor<8x4xf32>, tensor<4xf32>
}
func.func private @total(%x: tensor<8x4xf32>) -> tensor<4xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %none) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""

NUMBERED = {
    "main": [
        "stablehlo.constant",
        "stablehlo.constant",
        "stablehlo.while",
        "stablehlo.constant",
        "stablehlo.compare",
        "Outputs",
        "stablehlo.constant",
        "stablehlo.add",
        "stablehlo.reduce",
        "stablehlo.broadcast_in_dim",
        "stablehlo.subtract",
        "Outputs",
        "sdy.manual_computation",
        "stablehlo.tanh",
        "Outputs",
        "func.call",
        "Outputs",
    ],
    "total": ["stablehlo.constant", "stablehlo.reduce", "stablehlo.add", "Outputs", "Outputs"],
}
"""The nodes of PROGRAM by number, as `ConvertMlirToJson` of ai-edge-model-explorer-adapter 0.2.1 gives them. It calls terminators
Outputs."""


def test_operations_are_numbered_as_model_explorer_does() -> None:
    found: dict[str, list[str]] = {}
    for _, node in nodes(assembly.read(PROGRAM, "program.mlir", context())):
        of_function = found.setdefault(node.graph, [])
        assert node.id == str(len(of_function))
        of_function.append("Outputs" if node.label.endswith("return") else node.label)
    assert found == NUMBERED


def written(path: Path, *options: str) -> tuple[dict[str, dict[str, float]], float]:
    """What `meshbridge report --model-explorer` writes of a program: values by graph and node; and the report's bytes."""
    out = path.with_suffix(".json")
    assert cli.main(["report", str(path), "--machine", "bytes", "--model-explorer", str(out), *options]) == 0
    read = json.loads(out.read_text())
    assert {key for each in read.values() for key in each} == {"name", "results", "gradient"}
    values = {graph: {id_: node["value"] for id_, node in each["results"].items()} for graph, each in read.items()}
    return values, meshbridge.report(meshbridge.load(path), machine="bytes").wire_bytes


def test_program_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of MLIR text an operation's line is all that is known of it."""
    (tmp_path / "program.mlir").write_text(PROGRAM)
    values, wire = written(tmp_path / "program.mlir")
    assert NUMBERED["total"][int(*values["total"])] == "stablehlo.reduce"
    assert wire > 0
    assert sum(value for graph in values.values() for value in graph.values()) == wire
    assert "on the wire" in capsys.readouterr().out


def test_program_of_jax(tmp_path: Path, mesh: jax.sharding.Mesh) -> None:
    """A product in the body of a scan, which is a function of its own, counts for each of its executions, at the product."""

    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    specs = PartitionSpec("data"), PartitionSpec(None, "model", None)
    jitted = jax.jit(lambda x, ws: jax.lax.scan(step, x, ws)[0], in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs))
    shapes = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((3, 16, 16), jnp.float32)
    path = tmp_path / "scan.jax_export"
    path.write_bytes(export.export(jitted)(*shapes).serialize())
    values, wire = written(path)
    labels = {(node.graph, node.id): node.label for _, node in nodes(meshbridge.load(path).module)}
    sent = {labels[graph, id_]: value for graph, found in values.items() for id_, value in found.items()}
    assert max(sent, key=sent.__getitem__) == "stablehlo.dot_general"
    assert sum(sent.values()) == pytest.approx(wire)


@pytest.mark.parametrize("name", ["mlp_ws2d", "moe_grad", pytest.param("llama_scan_fsdp_tp", marks=pytest.mark.slow)])
def test_every_byte_is_somewhere(name: str) -> None:
    exported = build(name).export()
    report = meshbridge.report(exported, machine="bytes")
    read = json.loads(node_data(ExplorerGraph.read(meshbridge.convert(exported, to="bytecode").module), report.collectives))
    values = [node["value"] for graph in read.values() for node in graph["results"].values()]
    assert sum(values) == pytest.approx(report.wire_bytes)
    assert {graph["name"] for graph in read.values()} == {"wire bytes per device and step"}


def test_what_no_operation_asked_for_is_in_the_name(mesh: jax.sharding.Mesh) -> None:
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), (None, "data")))
    exported = export.export(jax.jit(lambda x: x, in_shardings=rows, out_shardings=columns))(
        jax.ShapeDtypeStruct((8, 8), jnp.float32)
    )
    report = meshbridge.report(exported, machine="bytes")
    assert report.wire_bytes
    (graph,) = json.loads(node_data(ExplorerGraph(), report.collectives)).values()
    assert graph["results"] == {}
    assert graph["name"] == f"wire bytes per device and step, beside {report.wire_bytes:.0f} B of no operation"
