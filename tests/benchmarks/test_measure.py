"""The measuring itself: the HLO reader, the ring model, the hand-derived plans, and the programs with their artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

from benchmarks import fresh, plans, run, scale
from benchmarks.clock import Spent
from benchmarks.measure import Measurement, measure, relative_error, unsharded
from benchmarks.table import geometric_mean, render, waste
from meshbridge.analysis import hlo, hlo_flops
from meshbridge.analysis.hlo_communication import communication
from meshbridge.tools.cli import main
from testdata import export
from testdata.catalogue import BUILDERS, MEASURED, build
from testdata.ring import Term, total


def module(*lines: str, devices: int = 8, before: str = "") -> hlo.HloModule:
    """A module whose entry has `lines`, after the computations in `before`."""
    body = "\n".join(f"  {line}" for line in lines)
    header = f"HloModule test, is_scheduled=true, num_partitions={devices}"
    return hlo.read(
        f"{header}\n{before}\nENTRY %main (p: f32[8,16]) -> f32[8,16] {{\n  %p = f32[8,16]{{1,0}} parameter(0)\n{body}\n}}\n"
    )


def wire(*lines: str, devices: int = 8, before: str = "") -> float:
    return communication(module(*lines, devices=devices, before=before)).wire_bytes


SUM = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("{}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['data'=2,'model'=4] {'model'}", 4),
        ("mesh['data'=2,'model'=4] {'data','model'}", 8),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", 4),
        ("mesh['a'=8] {'a':(2)4}", 4),
    ],
)
def test_group_size_in_every_notation(groups: str, size: int) -> None:
    collectives = communication(
        module(f"ROOT %r = f32[8,16]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add", before=SUM)
    )
    assert [c.group for c in collectives.collectives] == [size]


def test_unknown_group_notation_is_an_error() -> None:
    with pytest.raises(hlo.HloError, match="unknown notation"):
        wire("ROOT %r = f32[8,16]{1,0} all-reduce(%p), replica_groups=everybody, to_apply=%add", before=SUM)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[32,16]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}", 3 / 4 * 2048),
        ("f32[8,16]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add", 2 * 3 / 4 * 512),
        ("f32[2,16]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add", 3 / 4 * 512),
        ("f32[8,16]{1,0} all-to-all(%p), replica_groups=[2,4]<=[8], dimensions={0}", 3 / 4 * 512),
        ("(f32[4,16]{1,0}, f32[4,16]{1,0}) all-to-all(%h, %h), replica_groups=[4,2]<=[8]", 1 / 2 * 512),
        ("f32[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,0},{2,2}}", 2 / 8 * 512),
        ("f32[8,16]{1,0} all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add", 0),
        ("f32[8,16]{1,0} collective-permute(%p), source_target_pairs={{3,3}}", 0),
    ],
)
def test_wire_bytes_in_the_ring_model(line: str, expected: float) -> None:
    half = "%h = f32[4,16]{1,0} slice(%p), slice={[0:4], [0:16]}"
    assert wire(half, f"ROOT %r = {line}", before=SUM) == expected


def test_an_asynchronous_collective_counts_once() -> None:
    start = "%s = (f32[8,16]{1,0}, f32[32,16]{1,0}) all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0}"
    assert wire(start, "ROOT %r = f32[32,16]{1,0} all-gather-done(%s)") == 3 / 4 * 2048
    with pytest.raises(hlo.HloError, match="all-gather-start %s: nothing in %main waits for it"):
        wire(start)


LOOP = (
    SUM
    + """
%body (t: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %t = (s32[], f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8,16]{1,0} get-tuple-element(%t), index=1
  %y = f32[8,16]{1,0} all-reduce(%x), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %out = (s32[], f32[8,16]{1,0}) tuple(%i, %y)
}

%condition (u: (s32[], f32[8,16])) -> pred[] {
  %u = (s32[], f32[8,16]{1,0}) parameter(0)
  ROOT %go = pred[] constant(true)
}
"""
)
WHILE = "%w = (s32[], /*index=1*/f32[8,16]{1,0}) while(%t), condition=%condition, body=%body"
TUPLE = ("%zero = s32[] constant(0)", "%t = (s32[], f32[8,16]{1,0}) tuple(%zero, %p)")


def test_loop_bodies_count_as_often_as_they_run() -> None:
    found = communication(module(*TUPLE, WHILE + ', backend_config={"known_trip_count":{"n":"12"}}', before=LOOP))
    assert (len(found.collectives), found.executed, found.unknown_loops) == (1, 12, ())
    assert found.wire_bytes == 12 * 2 * 7 / 8 * 512


def test_loops_without_a_trip_count_are_named() -> None:
    found = communication(module(*TUPLE, WHILE, before=LOOP))
    assert (found.executed, found.unknown_loops) == (1, ("w",))


SLICING = """
%fused (f: f32[8,16], at: s32[]) -> f32[2,16] {
  %f = f32[8,16]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %c = f32[8,16]{1,0} copy(%f)
  ROOT %cut = f32[2,16]{1,0} dynamic-slice(%c, %at, %zero), dynamic_slice_sizes={2,16}
}
"""
REDUCED = "%r = f32[8,16]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add"
AT = "%at = s32[] constant(2)"
FUSION = "%f = f32[2,16]{1,0} fusion(%r, %at), kind=kLoop, calls=%fused"


@pytest.mark.parametrize(
    ("readers", "sliced"),
    [
        ((FUSION,), True),
        (("%d = f32[2,16]{1,0} dynamic-slice(%r, %at, %at), dynamic_slice_sizes={2,16}",), True),
        (("%d = f32[4,16]{1,0} dynamic-slice(%r, %at, %at), dynamic_slice_sizes={4,16}",), False),
        ((FUSION, "%n = f32[8,16]{1,0} negate(%r)"), False),
        ((), False),
    ],
    ids=["in a fusion", "directly", "more than a shard", "also read whole", "not read"],
)
def test_all_reduce_that_is_only_sliced_counts_as_reduce_scatter(readers: tuple[str, ...], sliced: bool) -> None:
    found = communication(module(AT, REDUCED, *readers, before=SUM + SLICING))
    assert found.wire_bytes == 2 * 3 / 4 * 512
    assert found.scattered_bytes == found.wire_bytes / (2 if sliced else 1)


def test_each_part_of_a_combined_all_reduce_is_judged_alone() -> None:
    found = communication(
        module(
            AT,
            "%both = (f32[8,16]{1,0}, f32[8,16]{1,0}) all-reduce(%p, %p), replica_groups=[2,4]<=[8], to_apply=%add",
            "%r = f32[8,16]{1,0} get-tuple-element(%both), index=0",
            "%whole = f32[8,16]{1,0} get-tuple-element(%both), index=1",
            FUSION,
            "%n = f32[8,16]{1,0} negate(%whole)",
            before=SUM + SLICING,
        )
    )
    assert (len(found.collectives), found.wire_bytes, found.scattered_bytes) == (1, 2 * 768, 768 + 384)


def test_floating_point_operations() -> None:
    dot = (
        "%k = f32[16,4]{1,0} constant({...})",
        "%d = f32[8,4]{1,0} dot(%p, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert hlo_flops.flops(module(*dot)) == 2 * 8 * 4 * 16
    convolution = (
        "%i = f32[1,8,8,3]{3,2,1,0} constant({...})",
        "%k = f32[3,3,3,16]{3,2,1,0} constant({...})",
        "%c = f32[1,8,8,16]{3,2,1,0} convolution(%i, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
    )
    assert hlo_flops.flops(module(*convolution)) == 2 * 8 * 8 * 16 * 9 * 3


@pytest.mark.parametrize("text", ["", "module {}", "HloModule nothing"])
def test_what_is_no_optimised_hlo_is_an_error(text: str) -> None:
    with pytest.raises(hlo.HloError):
        hlo.read(text)


IDEALS = {
    "mlp_ws1d": 458752,
    "mlp_ws2d": 458752,
    "gpt12": 29581312,
    "llama_fsdp": 25706240,
    "llama_fsdp_tp": 15742464,
    "llama_scan_fsdp": 36723456,
    "llama_scan_fsdp_tp": 20467200,
    "llama_fsdp_tp_annot": 15742464,
    "llama_scan_fsdp_annot": 36723456,
    "llama_scan_fsdp_tp_annot": 20467200,
    "moe_fwd": 229376,
    "moe_fwd_noannot": 229376,
    "moe_grad": 473088,
    "resnet_batch": 273616,
    "resnet_spatial": 433360,
    "resnet_rows": 273616 + 3 / 4 * 4 * (2 * 128 * 3 + 128 * 16 + 10 * 64 * 16 + 13 * 32 * 32) + 2 * 3 / 4 * 32 * 4,
    "unet": 4
    * 2
    * 16
    * (
        (2 + 1 + 1 + 2 * 2 + 2) * (64 // 4 / 2)
        + (4 + 4 + 1 + 1) * (32 // 4 / 2)
        + 3 / 4 * ((2 * 34 + 33 + 33 + 2 * 2 * 34 + 2 * 34) + (2 * 4 * 20 + 2 * 17))
    )
    + 2 * 7 / 8 * 4 * (9 * 16 * 16 * 6 + 3 * 16 + 12 * 2 * 4),
    "causal_conv": 4 * 32 * 4 * 7 / 8 * (31 + 2 * 30 + 2) + 2 * 7 / 8 * 5 * 2 * 32 * 64 * 4,
    "cp_attn_fwd": 458752,
    "cp_attn_grad": 802816,
    "vocab_ce": 1446400,
    "decode_heads": 114688,
    "decode_seq": 232960,
    "misc_fft2": 114688,
    "misc_sort": 229376,
    "misc_cumsum": 1792,
    "adam_zero1": 14687232,
    "mixed_fsdp": 2 * 7 / 8 * 4 * 2 * 256 * 1024 * 2,
    "accumulation": 2 * 7 / 8 * 2 * 128 * 512 * 4,
    "recommender": 7 / 8 * (4096 + 2 * 262144) + 2 * 7 / 8 * (1024 * 128 + 128) * 4,
    "lstm": 2 * 32 * 3 / 4 * 16 * 256 * 4 + (2 * 256 + 1) * 4 * 64 * 4,
    "vit": 16 * 2 * 3 / 4 * 4 * 65 * 128 * 4
    + 4 * (128 * 48 + 128 + 65 * 128 + 128 * 16 + 4 * (256 + 3 * 4096 + 4096 + 2 * 16384)),
    "graph": 4 * 2 * 7 / 8 * 1024 * 64 * 4 + 2 * 7 / 8 * 2 * 64 * 64 * 4,
    "pipeline": 11 * 16 * 128 * 4 + 2 * 7 / 8 * 4 * 16 * 128 * 4,
    "sample_greedy": 7 / 8 * 8 * 8 * 8,
    "sample_top_k": 7 / 8 * 8 * 8 * 8 * 8,
    "loop_stencil": 10 * (2 * 128 * 4 + 2 * 256 * 4),
    "loop_power": 10 * (3 / 4 * 1024 + 1 / 2 * 512 + 3 / 4 * 256 + 6),
    "loop_kmeans": 10 * 2 * 7 / 8 * 64 * 33 * 4,
    "gaussian_process": 7 / 8 * 256 * 9 * 4,
    "poisson": 2 * 7 / 8 * 32 * 264 * 8,
    "diffusion": 2 * 7 / 8 * (9 * (256 + 512 + 512) + 256) * 4 + 8 * 2 * 3 / 4 * 64 + 10 * 4 * 32 * 16 * 4,
    "beam_search": 2 * 2 * 7 / 8 * 32 + 7 / 8 * 8 * 512 * 4 + 7 / 8 * 64 * 8 + 2 * 7 / 8 * 2048,
}
"""Wire bytes per device of the plans, worked out independently of the code that states them."""


@pytest.mark.parametrize("name", MEASURED)
def test_hand_derived_plan(name: str) -> None:
    assert build(name).ideal_bytes == IDEALS[name]


def test_the_steps_of_a_plan_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m benchmarks.plans moe_grad` names the program, its mesh and its bytes, and then each step."""
    plans.main(["moe_grad"])
    title, *steps = capsys.readouterr().out.splitlines()
    assert title.startswith("moe_grad, ")
    assert title.endswith(f": {build('moe_grad').ideal_bytes / 1e3:.1f} KB per device")
    assert len(steps) == sum(bool(term.times) for term in build("moe_grad").ideal)


def test_ring_total() -> None:
    assert total([Term("all-reduce", 4, 100, 2, ""), Term("all-to-all", 2, 100, 1, "")]) == 2 * 150 + 50


def test_unknown_program_is_named() -> None:
    with pytest.raises(ValueError, match="no program is named 'gpt'"):
        build("gpt")


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "gpt48"])
def test_examples_fit_their_arguments_and_repeat(name: str) -> None:
    """All programs but gpt48, which has the makers of gpt3 and sixteen times the numbers."""
    program = build(name)
    examples = program.example_arguments()
    jax.tree.map(
        lambda aval, array: np.testing.assert_equal((aval.shape, aval.dtype), (array.shape, array.dtype)),
        program.avals(),
        examples,
    )
    jax.tree.map(np.testing.assert_array_equal, examples, program.example_arguments())


@pytest.mark.parametrize("name", export.KEPT)
def test_kept_artifact_is_the_program(name: str) -> None:
    artifact = jax.export.deserialize(bytearray((Path(export.__file__).parent / f"{name}.jax_export").read_bytes()))
    program = build(name)
    assert artifact.nr_devices == program.devices
    assert artifact.in_tree == jax.tree.structure((program.avals(), {}))
    assert [(a.shape, a.dtype) for a in artifact.in_avals] == [(a.shape, a.dtype) for a in jax.tree.leaves(program.avals())]


def test_export_writes_a_readable_artifact(tmp_path: Path) -> None:
    path = export.write("misc_cumsum", tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert jax.export.deserialize(bytearray(path.read_bytes())).nr_devices == 8


def test_relative_error() -> None:
    assert relative_error({"a": np.array([1.0, 2.0])}, {"a": np.array([1.0, 2.5])}) == 0.2
    assert relative_error(np.array([np.inf, 4.0]), np.array([np.inf, 4.0])) == 0
    assert relative_error(np.array([np.nan]), np.array([1.0])) == float("inf")
    assert relative_error(np.zeros(3), np.zeros(4)) == float("inf")
    assert relative_error(np.zeros(0), np.zeros(0)) == 0


def test_waste_of_nothing() -> None:
    assert (waste(0, 0), waste(1, 0), waste(3, 2)) == (1, float("inf"), 1.5)
    assert geometric_mean([1, 4]) == 2


def test_table_shows_failures_and_passes() -> None:
    good = Measurement(
        program="a", contestant="ours", wire_bytes=4000, scattered_bytes=2000, ideal_bytes=2000, pass_seconds={"split": 0.5}
    )
    text = render([good, Measurement(program="b", contestant="theirs", error="MeshError: no")])
    assert "ours: 2.00 times the ideal" in text
    assert "b by theirs failed: MeshError: no" in text
    assert "500.0" in text


@pytest.mark.parametrize("contestant", ["meshbridge", "xla-shardy", "xla-gspmd"])
def test_weight_stationary_mlp(contestant: str, tmp_path: Path) -> None:
    program = build("mlp_ws1d")
    found = measure(program, contestant, unsharded(program))
    assert not found.error
    assert found.relative_error < 1e-5
    assert found.scattered_bytes == program.ideal_bytes
    run.write_json([found], tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["measurements"][0]["contestant"] == contestant


@pytest.mark.slow
def test_scale_measures_in_processes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small suite, of which two programs give every kind of figure that grows with ops; nothing is said of their values."""
    monkeypatch.setattr(scale, "PROGRAMS", tmp_path)
    assert scale.main(["--small", "--only", "growth", "--json", str(tmp_path / "out.json")]) == 0
    programs = json.loads((tmp_path / "out.json").read_text())["programs"]
    assert list(programs) == ["growth-1", "growth-2"]
    for found in programs.values():
        assert found["operations"] > 500
        assert min(found["first"]["cpu"], found["second"]["cpu"], found["text_bytes"]) > 0
        assert found["stages"].keys() >= {"read", "decided", "lowered"}
    assert "largest over smallest" in capsys.readouterr().out


def test_scale_compares_plans_for_topologies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what a neutral plan takes in the same process."""
    monkeypatch.setattr(scale, "PROGRAMS", tmp_path)
    assert scale.main(["--small", "--only", "topologies", "--json", str(tmp_path / "out.json")]) == 0
    (found,) = json.loads((tmp_path / "out.json").read_text())["programs"].values()
    assert list(found["planned"]) == ["v5p:4x4x4", "v5p:4x4x4/best"]
    assert all(call["cpu"] > found["second"]["cpu"] for calls in found["planned"].values() for call in calls)
    assert "v5p:4x4x4/best, over neutral devices" in capsys.readouterr().out


def test_scale_reports_what_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "gpt12.mlir"
    path.write_text("func.func @main() {")
    assert "expected" in fresh.probe(path, limit=60).error
    artifact = Path(export.__file__).parent / "gpt12.jax_export"
    assert main(["convert", str(artifact), "--to", "mlir", "-o", str(path)]) == 0
    found = fresh.probe(path, limit=1, propagation=True)
    assert (found.error, found.propagation) == ("did not end within 1 s", None)  # the three propagations alone take longer


def test_scale_draws_what_was_measured(tmp_path: Path) -> None:
    curves = pytest.importorskip("benchmarks.curves")
    some = Spent(2.0, 1.0)
    probes = {case.name: fresh.Probe(1000 * case.layers, some, some, {}, 1000, 1000) for case in scale.FULL.cases[:-1]}
    curves.draw(scale.FULL, probes | {scale.FULL.cases[-1].name: fresh.Probe(error="did not end")}, tmp_path / "out.svg")
    assert (tmp_path / "out.svg").read_text().count("uneven sizes") >= 1
    curves.draw(scale.FULL, {}, tmp_path / "empty.svg")
    rows = [figure.row for figure in scale.figures(scale.FULL, probes, {"import meshbridge": 0.2})]
    assert ("import meshbridge, CPU time", "0.20 s", "", "0.30 s", "yes") in rows
    assert any("over 8 devices" in row[0] and row[1] == "1.00x" for row in rows)
