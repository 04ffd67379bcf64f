"""The report: that its bytes are those of the program XLA runs, its FLOPs those of the mathematics, its memory near XLA's, and
that its reasons name the operation, the operand and the shardings.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import api, partitioning, pipeline
from meshbridge.analysis import hlo, hlo_communication, hlo_flops
from meshbridge.cost.communication import communication
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge.read import formats
from meshbridge.reports import Report, partition_and_report, report_of
from meshbridge.runtime import pjrt
from meshbridge.tools import cli
from testdata.catalogue import build
from tests.operations.differential import device_mesh

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "decode_seq", "llama_scan_fsdp_tp")]
PROGRAMS = ["mlp_ws2d", "moe_grad", "misc_cumsum", "adam_zero1", "loop_power", *SLOW]
"""Programs whose communication takes all kinds of collectives, inside and outside of loops."""

MEMORY_FACTOR = 2
"""How far the estimate of peak memory may be from what XLA allocates; docs/report.md says so."""


@cache
def reported(name: str) -> tuple[Report, pjrt.Executable]:
    """A program's report, and the same program compiled."""
    exported = build(name).export()
    return meshbridge.report(exported), api.compile(exported)


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_are_those_of_the_optimised_hlo(name: str) -> None:
    report, executable = reported(name)
    found = hlo_communication.communication(hlo.read(executable.hlo_text()))
    assert report.wire_bytes == pytest.approx(found.wire_bytes, rel=1e-9)
    assert not report.unknown_loops
    kinds = {kind.replace("_", "-").replace("permute", "collective-permute") for kind in report.bytes_by_kind()}
    assert {kind.replace("collective-collective", "collective") for kind in kinds} == set(found.bytes_by_kind())


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_are_those_of_the_optimised_hlo(name: str) -> None:
    report, executable = reported(name)
    assert report.work.contractions == hlo_flops.flops(hlo.read(executable.hlo_text()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_near_what_xla_allocates(name: str) -> None:
    report, executable = reported(name)
    stats = executable.loaded.memory
    assert report.memory.arguments == stats.argument_size_in_bytes
    allocated = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes - stats.alias_size_in_bytes
    assert allocated / MEMORY_FACTOR < report.memory.peak < allocated * MEMORY_FACTOR


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_collective_has_a_reason_and_a_place(name: str) -> None:
    for collective in reported(name)[0].collectives:
        assert collective.why
        assert collective.location.file.endswith(".py") or "of the function" in collective.why, collective
        assert set(collective.axes) <= {axis for axis, _ in build(name).axes}


def exported(function: Callable[..., Any], shapes: list[tuple[int, ...]], specs: list[Any], out: Any = None) -> export.Exported:
    """`function` on a mesh of 2 by 4, axes `a` and `b`."""
    mesh = device_mesh((2, 4))
    shardings = tuple(NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs)
    how = {} if out is None else {"out_shardings": NamedSharding(mesh, PartitionSpec(*out))}
    jitted = jax.jit(function, in_shardings=shardings, **how)
    return export.export(jitted)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def test_reason_of_a_gathered_operand() -> None:
    report = meshbridge.report(exported(lambda x, w: x @ w, [(16, 32), (32, 64)], [("a", None), ("b", None)], ("a", None)))
    reasons = [collective.why for collective in report.collectives]
    line = "test_report.py:" + str(_line("meshbridge.report(exported(lambda x, w: x @ w, [(16, 32), (32, 64)]"))
    assert any(line in why for why in reasons), reasons
    assert all("dot_general" in why for why in reasons), reasons
    assert {axis for collective in report.collectives for axis in collective.axes} <= {"a", "b"}
    assert all(collective.location.function.startswith("test_reason_of_a_gathered_operand") for collective in report.collectives)


def test_reason_of_a_partial_sum() -> None:
    report = meshbridge.report(
        exported(lambda x, w: x @ w, [(16, 512), (512, 8)], [(None, ("a", "b")), (("a", "b"), None)], (None, None))
    )
    (collective,) = report.collectives
    assert collective.kind == "all_reduce"
    assert collective.axes == ("a", "b")
    assert re.match(r"dot_general at test_report\.py:\d+ contracts a split dimension: partial sum over a, b; ", collective.why)
    assert collective.wire_bytes == 2 * 7 / 8 * 16 * 8 * 4


def _of(shape: tuple[int, ...], spec: list[Any]) -> export.Exported:
    mesh = device_mesh(shape)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return export.export(jax.jit(jnp.tanh, in_shardings=sharding))(jax.ShapeDtypeStruct((16, 32), jnp.float32))


def test_a_program_that_is_not_sharded_says_so() -> None:
    """`0 B on the wire` is for programs that are sharded and do not communicate."""
    shape = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    without = meshbridge.report(export.export(jax.jit(jnp.tanh))(shape))
    reports = [
        (without, "nothing is sharded: the program names no mesh, and runs on one device"),
        (meshbridge.report(_of((1,), ["a"])), "nothing is sharded: the mesh has one device"),
        (meshbridge.report(_of((2, 4), [])), "nothing is sharded: each of the 8 devices computes the whole program"),
    ]
    for report, said in reports:
        assert report.table().splitlines()[0] == report.remarks()[0] == said
        assert "on the wire" not in report.table()
        assert said in report.to_html()
    sharded = meshbridge.report(_of((2, 4), ["a"]))
    assert not sharded.remarks()
    assert "0 B on the wire per device and step, in 0 collectives" in sharded.table()


def test_reason_of_a_result() -> None:
    report = meshbridge.report(exported(lambda x: jnp.tanh(x), [(16, 32)], [("a", None)], (None, "b")))
    assert report.collectives
    assert all(
        re.search(r'result 0 of the function needs P\(None, "b"\) but is sharded as ', each.why) for each in report.collectives
    )


def test_reason_of_a_constraint() -> None:
    mesh = device_mesh((2, 4))

    def function(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.with_sharding_constraint(jnp.cos(x), NamedSharding(mesh, PartitionSpec(None, "a"))))

    report = meshbridge.report(exported(function, [(16, 32)], [("a", None)], (None, "a")))
    assert report.collectives
    line = _line("jax.lax.with_sharding_constraint(jnp.cos(x)")
    assert all(
        f'test_report.py:{line} needs P(None, "a") but is sharded as P("a", None)' in each.why for each in report.collectives
    )


def test_collectives_of_library_functions_have_the_place_of_their_call() -> None:
    """JAX's own functions name no file: what they communicate is the caller's doing."""
    report = meshbridge.report(exported(lambda x: jnp.cumsum(x, axis=0), [(16, 8)], [("a", None)], ("a", None)))
    line = _line("meshbridge.report(exported(lambda x: jnp.cumsum(x, axis=0)")
    assert {collective.location.line for collective in report.collectives} == {line}


def test_trips_of_loops_multiply() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = NamedSharding(device_mesh((2, 4)), PartitionSpec("a", "b"))
        return jax.lax.fori_loop(0, 7, lambda _, x: jax.lax.with_sharding_constraint(jnp.tanh(x @ w), whole), x)

    report = meshbridge.report(exported(function, [(16, 32), (32, 32)], [("a", None), (None, "b")], ("a", None)))
    assert report.collectives
    assert {collective.executions for collective in report.collectives} <= {1, 7}
    assert max(collective.executions for collective in report.collectives) == 7
    assert report.wire_bytes == sum(collective.wire_bytes * collective.executions for collective in report.collectives)
    assert report.work.contractions * 8 == 7 * 2 * 16 * 32 * 32


BRANCHES = [lambda x: x, lambda x: x - x.sum(axis=0), lambda x: x @ x.T @ x]
"""They send nothing, little, and much."""


def _switch(x: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.switch(index, BRANCHES, x)


def _exported_switch(function: Callable[..., Any]) -> export.Exported:
    rows = NamedSharding(device_mesh((2, 4)), PartitionSpec(("a", "b")))
    jitted = jax.jit(function, in_shardings=(rows, NamedSharding(rows.mesh, PartitionSpec())), out_shardings=rows)
    return export.export(jitted)(jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))


def _each_branch() -> list[Report]:
    return [meshbridge.report(_exported_switch(lambda x, _, branch=branch: branch(x))) for branch in BRANCHES]


def test_the_most_expensive_branch_counts() -> None:
    """A run takes one branch: bytes and work are those of the most expensive one, in the report and in XLA's HLO alike."""
    nothing, little, much = (report.wire_bytes for report in _each_branch())
    assert nothing < little < much
    source = _exported_switch(_switch)
    report = meshbridge.report(source)
    assert report.wire_bytes == much
    assert report.work.contractions == _each_branch()[2].work.contractions
    assert report.needed_work is not None
    assert report.needed_work.contractions * 8 == 2 * 2 * 64 * 64 * 32
    (choice,) = report.unknown_branches
    assert (choice.branch, choice.branches, choice.location.file.endswith("test_report.py")) == (2, 3, True)
    assert f"most expensive branch, branch 2 of 3: stablehlo.case at {choice.location}" in report.table()
    assert json.loads(report.to_json())["unknown_branches"][0]["branch"] == 2
    found = hlo_communication.communication(hlo.read(api.compile(source).hlo_text()))
    assert found.wire_bytes == report.wire_bytes


def test_branches_within_branches_and_loops() -> None:
    """In each of 5 iterations at most two all-reduces of eight numbers: the first of two branches, within the second of two."""
    text = """
      mesh.mesh @m(shape = 4)
      func.func @main(%x: tensor<8xf32>, %p: tensor<i1>) -> tensor<8xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %0:2 = stablehlo.while(%y = %x, %i = %zero) : tensor<8xf32>, tensor<i32> cond {
          %five = stablehlo.constant dense<5> : tensor<i32>
          %more = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %more : tensor<i1>
        } do {
          %one = stablehlo.constant dense<1> : tensor<i32>
          %next = stablehlo.add %i, %one : tensor<i32>
          %1 = "stablehlo.if"(%p) ({
            %2 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
            stablehlo.return %2 : tensor<8xf32>
          }, {
            %2 = "stablehlo.if"(%p) ({
              %3 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
              %4 = mesh.all_reduce %3 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
              stablehlo.return %4 : tensor<8xf32>
            }, {
              stablehlo.return %y : tensor<8xf32>
            }) : (tensor<i1>) -> tensor<8xf32>
            stablehlo.return %2 : tensor<8xf32>
          }) : (tensor<i1>) -> tensor<8xf32>
          stablehlo.return %1, %next : tensor<8xf32>, tensor<i32>
        }
        return %0#0 : tensor<8xf32>
      }"""
    module = assembly.read(text, "nested.mlir", context())
    assert communication(module).wire_bytes == 5 * 2 * (2 * 3 / 4 * 8 * 4)
    report = report_of(module, None)
    assert [(choice.branch, choice.branches) for choice in report.unknown_branches] == [(1, 2), (0, 2)]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3])
def test_a_known_branch_counts(index: int) -> None:
    """Also where the index comes from another branch, as for the platforms of an artifact; one out of range takes the last."""
    text = f"""
      mesh.mesh @m(shape = 4)
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
        %two = stablehlo.constant dense<2> : tensor<i32>
        %given = stablehlo.constant dense<{index}> : tensor<i32>
        %true = stablehlo.constant dense<true> : tensor<i1>
        %index = "stablehlo.if"(%true) ({{ stablehlo.return %given : tensor<i32> }}, {{ stablehlo.return %two : tensor<i32> }})
          : (tensor<i1>) -> tensor<i32>
        %0 = "stablehlo.case"(%index) ({{
          stablehlo.return %x : tensor<8xf32>
        }}, {{
          %1 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
          stablehlo.return %1 : tensor<8xf32>
        }}, {{
          %1 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
          %2 = mesh.all_reduce %1 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
          stablehlo.return %2 : tensor<8xf32>
        }}) : (tensor<i32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }}"""
    found = communication(assembly.read(text, "known.mlir", context()))
    assert len(found.collectives) == (index if 0 <= index <= 2 else 2)


def test_trips_of_an_annotated_loop_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever annotations stand between a loop's counter and its end."""
    saved = tmp_path / "annotated.mlir"
    (tmp_path / "program").write_bytes(build("loop_power").export().serialize())
    assert cli.main(["partition", str(tmp_path / "program"), "--emit", "annotated", "--machine", "bytes", "-o", str(saved)]) == 0
    work = []
    for path in (tmp_path / "program", saved):
        assert cli.main(["report", str(path), "--machine", "bytes", "--json"]) == 0
        work.append(json.loads(capsys.readouterr().out)["work"])
        assert work[-1]["redundant"]["contractions"] == 0
    assert work[0]["needed"]["contractions"] == work[1]["needed"]["contractions"]


def test_a_loop_without_a_trip_count_is_named() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda carried: carried.sum() < 100, lambda carried: carried * 2, x)

    report = meshbridge.report(exported(function, [(16, 32)], [("a", None)]))
    (loop,) = report.unknown_loops
    assert loop.line == _line("jax.lax.while_loop(lambda carried: carried.sum()")
    assert f"test_report.py:{loop.line}" in report.table()


@pytest.mark.parametrize(
    ("specs", "redundant"),
    [((("a", None), (None, "b")), 0), ((("a", None), (None, None)), 3 / 4), (((None, None), (None, None)), 7 / 8)],
)
def test_flops_of_a_matrix_product(specs: tuple[Any, Any], redundant: float) -> None:
    """Annotations of all that there is leave no choice of how to share the product out."""
    out = (specs[0][0], specs[1][1])
    report = meshbridge.report(exported(lambda x, w: x @ w, [(16, 32), (32, 64)], list(specs), out))
    assert report.needed_work is not None
    assert report.needed_work.contractions * 8 == 2 * 16 * 32 * 64
    assert report.redundant_work is not None
    assert report.redundant_work.contractions <= redundant * report.work.contractions
    assert report.work.contractions == report.needed_work.contractions + report.redundant_work.contractions


def test_flops_of_a_convolution() -> None:
    def function(image: jax.Array, kernel: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=numbers)

    report = meshbridge.report(exported(function, [(8, 10, 12, 3), (3, 5, 3, 16)], [("a",), ()], ("a",)))
    assert report.needed_work is not None
    assert report.needed_work.contractions * 8 == 2 * (8 * 8 * 8 * 16) * (3 * 5 * 3)


def test_what_has_no_rule_is_named() -> None:
    text = """
    mesh.mesh @m(shape = 8)
    func.func @main(%x: tensor<16xf32> {meshbridge.note = "x"}) -> tensor<16xf32> {
      %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
      %0 = mesh.shard %x to %s : tensor<16xf32>
      %1 = stablehlo.custom_call @unknown(%0) : (tensor<16xf32>) -> tensor<16xf32>
      return %1 : tensor<16xf32>
    }
    """
    module = assembly.read(text, "program.mlir", context())
    report = meshbridge.report(module)
    (op,) = report.not_partitioned
    assert (op.operation, op.location.file, op.location.line) == ("stablehlo.custom_call @unknown", "program.mlir", 6)
    assert "not partitioned: stablehlo.custom_call @unknown at program.mlir:6" in report.table()


KINDS = """
mesh.mesh @m(shape = 2x4)
func.func @main(%x: tensor<8x6xf32> {meshbridge.global = tensor<8x6xf32>, meshbridge.mesh = @m,
                                     meshbridge.split_axes = #mesh.axisarray<[[], []]>}) -> tensor<8x6xf32> {
"""


@pytest.mark.parametrize(
    ("line", "kind", "axes", "wire"),
    [
        (
            "mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 1 : tensor<8x6xf32> -> tensor<8x6xf32>",
            "shift",
            ("1",),
            3 / 4 * 192,
        ),
        (
            "mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 2 rotate : tensor<8x6xf32> -> tensor<8x6xf32>",
            "shift",
            ("1",),
            192,
        ),
        (
            "mesh.update_halo %x on @m split_axes = [[1], []] halo_sizes = [2, 1] : tensor<8x6xf32>",
            "update_halo",
            ("1",),
            3 / 4 * 3 * 24,
        ),
        ("mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8x6xf32> -> tensor<8x6xf32>", "all_reduce", ("0",), 192),
        (
            "mesh.permute %x on @m mesh_axes = [0, 1] target_axes = [1, 0] : tensor<8x6xf32> -> tensor<8x6xf32>",
            "permute",
            ("0", "1"),
            6 / 8 * 192,
        ),
    ],
)
def test_bytes_of_each_kind(line: str, kind: str, axes: tuple[str, ...], wire: float) -> None:
    """As counted by hand, and as XLA's own program says where it keeps the collective."""
    module = assembly.read(f"{KINDS}  %0 = {line}\n  return %0 : tensor<8x6xf32>\n}}\n", "kinds.mlir", context())
    (found,) = communication(module).collectives
    assert (found.kind, found.axes, found.wire_bytes) == (kind, axes, pytest.approx(wire))
    compiled = hlo_communication.communication(hlo.read(api.compile(module).hlo_text()))
    assert compiled.wire_bytes == pytest.approx(wire)


def test_axes_of_device_groups_are_named() -> None:
    """A manual computation's collectives are StableHLO's, whose groups are lists of devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))

    def total(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(jax.lax.psum(x, "a"), "b", [(0, 1), (1, 0), (2, 2)])

    inside = jax.shard_map(
        total, mesh=mesh, in_specs=PartitionSpec("a", "b"), out_specs=PartitionSpec(None, "b"), check_vma=False
    )
    report = meshbridge.report(export.export(jax.jit(inside))(jax.ShapeDtypeStruct((16, 32), jnp.float32)))
    assert [(each.kind, each.axes, each.why) for each in report.collectives] == [
        ("all_reduce", ("a",), "the program's own"),
        ("collective_permute", ("b",), "the program's own"),
    ]
    assert [each.wire_bytes for each in report.collectives] == [8 * 8 * 4, 4 / 8 * 8 * 8 * 4]


SCHEMA: dict[str, Any] = {
    "schema": int,
    "mesh": {"axes": dict, "devices": int, "device_ids": (list, type(None))},
    "arguments": list,
    "results": list,
    "wire_bytes": float,
    "by_kind": dict,
    "collectives": list,
    "work": {
        "device": {"contractions": float, "elements": float},
        "needed": {"contractions": float, "elements": float},
        "redundant": {"contractions": float, "elements": float},
    },
    "memory": {"arguments": float, "results": float, "temporaries": float, "donated": float, "peak": float},
    "modules": dict,
    "suggestions": list,
    "tried": int,
    "unpredicted": str,
    "planned_for": {"machine": str, "why": str},
    "compiler_options": str,
    "machine": type(None),
    "seconds": type(None),
    "exposed_seconds": type(None),
    "compute_seconds": type(None),
    "communication_seconds": type(None),
    "mfu": type(None),
    "tokens_per_second": type(None),
    "peak_bytes": float,
    "not_partitioned": list,
    "unknown_loops": list,
    "unknown_branches": list,
}
LOCATION: dict[str, Any] = {"file": str, "line": int, "column": int, "function": str}
COLLECTIVE: dict[str, Any] = {
    "kind": str,
    "axes": list,
    "group_size": int,
    "wire_bytes": float,
    "executions": int,
    "total_bytes": float,
    "location": LOCATION,
    "why": str,
    "asked": str,
    "origins": list,
    "seconds": type(None),
    "total_seconds": type(None),
}
ORIGIN: dict[str, Any] = {"modules": list, "phase": str, "location": LOCATION, "scope": str, "share": float}
MODULE: dict[str, Any] = {
    "path": list,
    "wire_bytes": float,
    "own_bytes": float,
    "share": float,
    "by_phase": dict,
    "executions": int,
    "seconds": type(None),
    "modules": list,
}
HELD: dict[str, Any] = {"shape": list, "shard_shape": list, "element_type": str, "sharding": list, "unreduced": list, "name": str}


def assert_shape(value: Any, shape: Any) -> None:
    """Exactly these keys, with values of these types."""
    if isinstance(shape, dict):
        assert value.keys() == shape.keys()
        for key, inner in shape.items():
            assert_shape(value[key], inner)
    else:
        assert isinstance(value, shape)


def test_json_schema() -> None:
    report = reported("moe_grad")[0]
    read = json.loads(report.to_json())
    assert_shape(read, SCHEMA)
    assert read["schema"] == 1
    assert read["mesh"] == {"axes": {"x": 8}, "devices": 8, "device_ids": None}
    for collective in read["collectives"]:
        assert_shape(collective, COLLECTIVE)
        for origin in collective["origins"]:
            assert_shape(origin, ORIGIN)
    assert_shape(read["modules"], MODULE)
    for held in (*read["arguments"], *read["results"]):
        assert_shape(held, HELD)
    totals = [(entry["wire_bytes"], entry["collectives"], entry["executions"]) for entry in read["by_kind"].values()]
    assert tuple(map(sum, zip(*totals, strict=True))) == (read["wire_bytes"], len(read["collectives"]), len(read["collectives"]))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.jax_export"
    path.write_bytes(
        exported(lambda x, w: x @ w, [(16, 512), (512, 8)], [(None, ("a", "b")), (("a", "b"), None)], (None, None)).serialize()
    )
    return path


def test_partition_reports_and_writes_the_same_program(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons travel in locations while the program is partitioned; none is left in what is written."""
    plain, with_report = tmp_path / "plain.mlir", tmp_path / "with_report.mlir"
    assert cli.main(["partition", str(program), "-o", str(plain)]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["partition", str(program), "-o", str(with_report), "--report"]) == 0
    assert "partial sum over a, b" in capsys.readouterr().out
    assert plain.read_bytes() == with_report.read_bytes()
    for explain in (False, True):
        module = formats.unpack(export.deserialize(bytearray(program.read_bytes())), context()).module
        if explain:
            partition_and_report(module)
        else:
            partitioning.partition_module(module)
        assert "contracts a split" not in module.operation.get_asm(enable_debug_info=True)


@pytest.mark.parametrize("name", ["moe_grad", "loop_power"])
def test_reasons_keep_no_operations_apart(name: str) -> None:
    """Operations that differ in their reasons alone still merge: the same program comes out, operation by operation."""
    texts = []
    for explain in (False, True):
        module = formats.unpack(build(name).export(), context()).module
        partitioning.partition_module(module, pipeline.Options(emit="mesh", explain=explain))
        texts.append(assembly.write(module))
    assert texts[0] == texts[1]


def test_the_report_makes_way_for_a_program_on_standard_output(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", str(program), "--emit", "mesh", "--report", "--json"]) == 0
    captured = capfd.readouterr()
    assert captured.out.startswith("mesh.mesh") or "mesh.all_reduce" in captured.out
    assert json.loads(captured.err)["by_kind"]["all_reduce"]["collectives"] == 1


def test_later_stages_are_reported_as_they_stand(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals = []
    for emit in ("annotated", "mesh", "local"):
        saved = tmp_path / f"{emit}.mlir"
        assert cli.main(["partition", str(program), "--emit", emit, "-o", str(saved)]) == 0
        assert cli.main(["report", str(saved), "--json"]) == 0
        read = json.loads(capsys.readouterr().out)
        totals.append(read["wire_bytes"])
        assert (read["work"]["needed"] is None) == (emit != "annotated")
    assert totals[0] > 0
    assert totals == totals[:1] * 3


@pytest.mark.parametrize("content", [b"", b"ML\xefRnonsense", b"func.func @main() {"])
def test_bad_input_is_one_diagnostic(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert cli.main(["report", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(str(path))


def test_a_program_of_replicas_has_no_exported_form(program: Path, tmp_path: Path) -> None:
    module = formats.unpack(export.deserialize(bytearray(program.read_bytes())), context()).module
    partitioning.partition_module(module, pipeline.Options(emit="local"))
    with pytest.raises(MeshError, match="speaks of replicas"):
        partitioning.partition_module(module)
    with pytest.raises(MeshError, match="partitioned already"):
        partitioning.partition_module(module, pipeline.Options(emit="annotated"))


def test_sizes_that_only_a_run_knows_count_for_nothing() -> None:
    text = """
    func.func @main(%a: tensor<?x2xf32>) -> tensor<?x2xf32> {
      %0 = stablehlo.negate %a : tensor<?x2xf32>
      return %0 : tensor<?x2xf32>
    }
    """
    report = meshbridge.report(assembly.read(text, "dynamic.mlir", context()))
    assert (report.work.elements, report.memory.peak) == (0, 0)


def test_a_program_without_a_mesh_reports_nothing() -> None:
    with context():
        module = ir.Module.parse("func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
    report = meshbridge.report(module)
    assert (report.collectives, report.wire_bytes, report.memory.arguments) == ((), 0, 8)


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "report.py"
    runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr().out
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "hidden @ weights[1]" in text)
    assert f"dot_general at report.py:{line} contracts a split dimension" in output


def _line(text: str) -> int:
    """The line of this file that contains `text` first."""
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)
