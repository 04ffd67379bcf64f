"""What is read off optimised HLO of the TPU's and the GPU's compiler, by excerpts of real texts in `tests/analysis/hlo`.

An excerpt holds the lines that matter, as jax 0.10.2 printed them, without metadata and without most of backend_config. What its
instructions read but it does not hold became parameters. Its second line says what was compiled, and for what: the contestants of
`meshbridge compare PROGRAM --target TARGET`, and functions of a few lines under `shard_map` or `jit`.

All numbers here are counted by hand: the bytes of an array, times n - 1 over n for a group of n devices, twice for an all-reduce.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshbridge.analysis import hlo, hlo_cost
from meshbridge.analysis.hlo_communication import communication
from meshbridge.analysis.hlo_figures import figures
from meshbridge.analysis.hlo_flops import count_flops, flops
from tests.work import lines_run

EXCERPTS = Path(__file__).parent / "hlo"

SQUARE = 2048 * 2048 * 2
"""Bytes of bfloat16[2048,2048], which most excerpts of an MLP hold."""


def excerpt(name: str) -> str:
    return (EXCERPTS / name).read_text()


def roofline(_flops: float, _element: str, _memory_bytes: float) -> float:
    """Microseconds of a kernel, of which these tests have none that is priced so."""
    return 0.0


def test_gpu_collectives_say_whether_they_are_synchronous() -> None:
    found = figures(excerpt("gpu_start_done.hlo"))
    gathered = 3 * SQUARE / 2  # three results, groups of two
    reduced = 2 * SQUARE * 3 / 4  # groups of four
    assert found.bytes_by_kind == {"all-gather": gathered, "all-reduce": 3 * reduced}
    assert (found.synchronous, found.asynchronous) == (2, 2)
    # The first all-reduce has nothing but a transposition beside it, the last one a product.
    assert (found.exposed_bytes, found.overlapped_bytes) == (gathered + 2 * reduced, reduced)
    assert found.flops == 2 * 2048**3


def test_an_all_reduce_that_a_tpu_fusion_slices_is_a_reduce_scatter_of_the_padded_operand() -> None:
    found = figures(excerpt("tpu_all_reduce_scatter.hlo"))
    assert found.bytes_by_kind == {
        "all-gather": SQUARE / 2 + SQUARE * 3 / 4,
        "reduce-scatter": 2112 * 2048 * 2 * 3 / 4,  # 2,048 rows, padded to 2,112
        "collective-permute": 48 * 2048 * 2 * 6 / 8,  # six of eight devices send
    }
    assert found.scattered_bytes == found.wire_bytes
    assert (found.synchronous, found.asynchronous, found.overlapped_bytes) == (3, 1, 0)  # only the permute, and nothing beside it


def test_a_chain_of_tpu_fusions_that_repeat_a_collective_is_one() -> None:
    text = excerpt("tpu_chain.hlo")
    found = figures(text)
    gathered = 4 * 64 * 256 * 2 * 3 / 4
    assert found.bytes_by_kind == {"all-gather": gathered}
    assert (found.synchronous, found.asynchronous, found.overlapped_bytes) == (0, 1, gathered)
    # [3,2,32,256] results of 4 x 64 terms: the window's four elements, and 64 features.
    assert found.flops == 2 * (3 * 2 * 32 * 256) * (4 * 64)
    alone = text.replace("convolution(%fusion.506, %fusion.505)", "bitcast(%fusion.506)")
    assert figures(alone).overlapped_bytes == 0
    assert figures(alone).asynchronous == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [("AsyncCollectiveDone", "begun 1 and ended 0 times"), ("AsyncCollectiveStart", r"\['0'\] are ended but not begun")],
)
def test_a_chain_without_an_end_is_an_error(target: str, message: str) -> None:
    with pytest.raises(hlo.HloError, match=message):
        figures(excerpt("tpu_chain.hlo").replace(target, "Something"))


CHAIN_IN_A_LOOP = """
%body (p: s32[]) -> s32[] {
  %state = (s32[]{:T(128)}, bf16[4,64,64]{2,1,0:T(8,128)}) parameter(0)
  %carried = bf16[4,64,64]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %async-collective-done = bf16[4,64,256]{2,1,0:T(8,128)} fusion(%carried), kind=kCustom, calls=%fused_computation.566
  %computed = f32[64,64]{1,0:T(8,128)} sine(%carried)
  %async-collective-start = bf16[4,64,64]{2,1,0:T(8,128)} fusion(%carried), kind=kCustom, calls=%fused_computation.564
  ROOT %next = (s32[]{:T(128)}, bf16[4,64,64]{2,1,0:T(8,128)}) tuple(%state, %async-collective-start)
}
"""


@pytest.mark.parametrize(("computes", "overlapped"), [("sine", 0), ("bitcast", 0)])
def test_a_chain_that_ends_in_the_next_iteration_has_what_lies_around_the_edge_beside_it(computes: str, overlapped: int) -> None:
    """The loop is made up, its fusions are real. What computes stands between the done and the start, where nothing is sent."""
    head, _, _ = excerpt("tpu_chain.hlo").partition("ENTRY")
    until = "%until (p: s32[]) -> pred[] {\n  ROOT %go = pred[] constant(true)\n}\n"
    loop = "  %p = s32[] parameter(0)\n  ROOT %w = s32[] while(%p), condition=%until, body=%body\n"
    loop = f"ENTRY %main (p: s32[]) -> s32[] {{\n{loop}}}\n"
    body = CHAIN_IN_A_LOOP.replace("sine", computes)
    found = figures(head + body + until + loop)
    assert (found.asynchronous, found.overlapped_bytes, found.unknown_loops) == (1, overlapped, ("w",))
    moved = body.replace("  %computed", "  %later").replace(
        "  ROOT", f"  %last = f32[64,64]{{1,0:T(8,128)}} {computes}(%carried)\n  ROOT"
    )
    assert figures(head + moved + until + loop).overlapped_bytes == (found.wire_bytes if computes == "sine" else 0)


def test_collectives_on_the_tpus_sparse_core_are_asynchronous() -> None:
    found = figures(excerpt("tpu_sparse_core.hlo"))
    assert found.bytes_by_kind == {"all-gather": SQUARE / 2, "all-reduce": 2 * SQUARE * 3 / 4}
    assert (found.synchronous, found.asynchronous) == (0, 2)
    assert found.overlapped_bytes == 0  # the product runs after the gather that it needs, and before the all-reduce of it
    assert found.flops == 2 * 2048**3


def test_trip_counts_of_tpu_loops_are_read_off_their_conditions() -> None:
    text = excerpt("tpu_loops.hlo")
    found = communication(hlo.read(text))
    # 1, 4, … 19: seven. 9, 7, … 1: five. As long as a sum is positive: nobody knows, counted once.
    assert sorted(c.executions for c in found.collectives) == [1, 5, 7]
    assert found.unknown_loops == ("while.29",)
    assert found.wire_bytes == 512 * 512 * 4 * 2 * ((7 + 1) * 3 / 4 + 5 * 1 / 2)


@pytest.mark.parametrize(
    ("change", "executions"),
    [
        ({"constant(20)": "constant(19)"}, 6),  # 1, 4, … 16
        ({"direction=LT": "direction=LE"}, 7),
        ({"constant(20)": "constant(19)", "direction=LT": "direction=LE"}, 7),
        ({"constant(20)": "constant(22)", "direction=LT": "direction=NE"}, 7),
        ({"constant(20)": "constant(1)"}, 0),
        ({"compare(%get-tuple-element.49, %constant.4.clone.1), direction=LT":
          "compare(%constant.4.clone.1, %get-tuple-element.49), direction=GT"}, 7),
        ({"add(%get-tuple-element.74, %constant.2.clone.1..sunk)": "add(%constant.2.clone.1..sunk, %get-tuple-element.74)"}, 7),
        # The step is what the loop carries along: not a constant of the body.
        ({"add(%get-tuple-element.74, %constant.2.clone.1..sunk)": "add(%get-tuple-element.74, %get-tuple-element.79)"}, None),
        ({"add(%get-tuple-element.74, ": "multiply(%get-tuple-element.74, "}, None),
    ],
)  # fmt: skip
def test_every_way_in_which_a_counter_is_compared(change: dict[str, str], executions: int | None) -> None:
    text = excerpt("tpu_loops.hlo")
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    found = communication(hlo.read(text))
    counted = [c.executions for c in found.collectives if c.name == "psum.24"]
    assert counted == ([1] if executions is None else [executions] if executions else [])
    assert ("while.30" in found.unknown_loops) == (executions is None)


def test_a_limit_that_the_loop_carries_along_is_known() -> None:
    text = excerpt("tpu_loops.hlo").replace(
        "compare(%get-tuple-element.49, %constant.4.clone.1)", "compare(%get-tuple-element.49, %limit)"
    )
    limit = "  %limit = s32[]{:T(128)} get-tuple-element(%wide.param.1), index=2\n  ROOT %lt.3"
    found = communication(hlo.read(text.replace("  ROOT %lt.3", limit)))
    assert [c.executions for c in found.collectives if c.name == "psum.24"] == [1]  # 1 is below 3, 4 is not
    assert "while.30" not in found.unknown_loops


def test_collectives_in_conditions_of_loops_count() -> None:
    summed = "all-reduce(%constant.10.clone), replica_groups=[1,8]<=[8]"
    text = excerpt("tpu_loops.hlo").replace("reduce(%param.5, %constant.10.clone), dimensions={0,1}", summed)
    assert [c.wire_bytes for c in communication(hlo.read(text)).collectives if c.name == "reduce_sum.9"] == [2 * 4 * 7 / 8]


def test_gpu_loops_have_their_trip_counts_written_down() -> None:
    found = figures(excerpt("gpu_scan.hlo"))
    # The second loop has lost an iteration to the entry: XLA peels it.
    assert found.bytes_by_kind == {
        "all-gather": 4 * 2 * SQUARE / 2 + 3 * SQUARE * 3 / 4,
        "all-to-all": 4 * 256 * 4 * 2048 * 2 * 3 / 4,
    }
    assert (found.asynchronous, found.unknown_loops) == (4 + 3 + 1, ())


def test_a_ring_of_permutes_in_a_loop_runs_beside_its_products() -> None:
    found = figures(excerpt("gpu_ring_loop.hlo"))
    sent = 4 * 4096 * 2048 * 2
    assert found.bytes_by_kind == {"collective-permute": sent}
    assert (found.asynchronous, found.exposed_bytes, found.overlapped_bytes) == (4, 0, sent)
    assert found.flops == 4 * 2 * 2048 * 2048 * 4096


def test_the_permutes_of_a_windowed_einsum() -> None:
    found = figures(excerpt("tpu_windowed_einsum.hlo"))
    assert found.bytes_by_kind == {"collective-permute": 3 * SQUARE}
    assert (found.asynchronous, found.exposed_bytes) == (3, SQUARE)  # the first has to come before the first product
    assert found.flops == 2 * (2 * 2048**3) * 2  # two products, each of two blocks of 2,048 terms


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("tpu_branches.hlo", 1024 * 1024 * 4 * 2 * (3 / 4 + 1 / 2)),  # the branch of two sums
        ("gpu_branches.hlo", 1024 * 1024 * 4 * 2 * 7 / 8),  # XLA:GPU has made one of them
    ],
)
def test_of_branches_the_dearest_counts_each_figure_by_itself(name: str, sent: float) -> None:
    found = figures(excerpt(name))
    assert (found.wire_bytes, found.exposed_bytes) == (sent, sent)
    assert found.flops == 2 * 1024**3  # that of the other branch


def test_library_calls_of_the_gpu_compute_products() -> None:
    assert flops(hlo.read(excerpt("gpu_library_products.hlo"))) == 2 * 2048**3
    forward = 2 * (2 * 32 * 32 * 16) * (3 * 3 * 3)
    with_bias = 2 * (2 * 8 * 8 * 32) * (1 * 1 * 16)
    # Strided ones by the 8 x 8 positions of the forward convolution.
    backward_filter = 2 * (2 * 8 * 8 * 32) * (1 * 1 * 16)
    backward_input = 2 * (2 * 8 * 8 * 32) * (3 * 3 * 16)
    assert flops(hlo.read(excerpt("gpu_convolutions.hlo"))) == forward + with_bias + backward_filter + backward_input
    # In 8 groups, each of 128 results sees 8 of 64 features.
    assert flops(hlo.read(excerpt("gpu_grouped_convolution.hlo"))) == 2 * (8 * 32 * 32 * 128) * (3 * 3 * 8)


def test_products_of_16_bits_with_32_in_their_results_are_told_apart() -> None:
    text = excerpt("gpu_library_products.hlo")
    assert figures(text).widened_flops == 0
    widened = figures(text.replace("(bf16[2048,2048]{1,0}, s8", "(f32[2048,2048]{1,0}, s8"))
    assert (widened.widened_flops, widened.flops) == (2 * 2048**3, 2 * 2048**3)


def test_attention_of_cudnn_computes_products() -> None:
    # 4 x 2 heads of 1,024 x 1,024 scores and width 64: two products forwards, five backwards.
    assert flops(hlo.read(excerpt("gpu_attention.hlo"))) == (2 + 5) * 2 * (4 * 2 * 1024 * 1024) * 64


def test_dot_products_that_the_tpu_writes_as_convolutions() -> None:
    """Heads and batches are windows over padding or holes, of which each position sees one element."""
    tokens, width, heads = 4 * 64, 256, 3 * 2 * 32
    projection = 2 * tokens * heads * width  # size=1x3x2 pad=0_0x2_2x1_1 rhs_reversal=0x1x1
    back = 2 * tokens * width * heads  # size=3x1x2
    gradient = 2 * 256 * 64 * tokens  # size=4
    attention = 2 * (4 * 2) * 32 * 64 * 64  # size=4x2 stride=3x1 lhs_dilate=4x2
    assert flops(hlo.read(excerpt("tpu_products.hlo"))) == projection + back + gradient + attention


def test_holes_of_strided_convolutions_are_not_multiplied() -> None:
    """The gradient by the image is written as a window over a result with holes, three of four places; that by the kernel as one
    with them. All three compute the same products."""
    assert flops(hlo.read(excerpt("tpu_strided_convolution.hlo"))) == 3 * 2 * (8 * 16 * 16 * 128) * (3 * 3 * 64)


def test_kernels_say_what_they_compute_or_are_named() -> None:
    text = excerpt("tpu_kernel.hlo")
    assert figures(text).flops == 12345
    found = count_flops(hlo.read(text.replace('"cost_estimate"', '"another"')))
    assert (found.total, found.uncounted) == (0, ("shard_map.12 (tpu_custom_call)",))
    solved = excerpt("gpu_library_products.hlo").replace("__cublas$lt$matmul", "__cublas$triangularSolve")
    assert figures(solved).uncounted_calls == ("custom-call.23 (__cublas$triangularSolve)",)


def test_kinds_that_are_rarely_seen() -> None:
    assert figures(excerpt("gpu_broadcast.hlo")).bytes_by_kind == {"collective-broadcast": 256 * 512 * 4 * 3 / 4}
    for name in ("gpu_ragged_all_to_all.hlo", "tpu_ragged_all_to_all.hlo"):
        assert figures(excerpt(name)).bytes_by_kind == {
            "ragged-all-to-all": 64 * 128 * 4 * 3 / 4
        }  # if all that there is room for is sent


def test_tpu_cycles_count_loop_bodies_as_often_as_they_run() -> None:
    text = excerpt("tpu_loops.hlo")
    # Seven sines, five cosines, and one sum in the condition of the last loop.
    assert hlo_cost.tpu_cost(text) == hlo_cost.TpuCost(7 * 4076 + 5 * 4076 + 6144, 0)
    assert hlo_cost.tpu_cost(excerpt("tpu_branches.hlo")).cycles == 31668
    # The compiler has no estimate for two fusions, and writes the largest number that it has.
    assert hlo_cost.tpu_cost(excerpt("tpu_no_estimate.hlo")) == hlo_cost.TpuCost(0, 2)
    nothing = text.replace('sine(%get-tuple-element.75), backend_config={"estimated_cycles":"4076"',
                           'sine(%get-tuple-element.75), backend_config={"estimated_cycles":"9223372036854775807"')  # fmt: skip
    assert hlo_cost.tpu_cost(nothing) == hlo_cost.TpuCost(5 * 4076 + 6144, 7)
    with pytest.raises(hlo.HloError, match="no instruction has estimated_cycles"):
        hlo_cost.tpu_cost(excerpt("gpu_scan.hlo"))


def test_gpu_time_weighs_loop_bodies_by_their_trip_counts() -> None:
    text, log = excerpt("gpu_scan.hlo"), excerpt("gpu_scan.log")
    found = hlo_cost.gpu_time(text, log, roofline)
    assert found.total == pytest.approx(759.69 + 4 * 233.704 + 3 * 252.751)
    assert found.wasted == pytest.approx(479.825 + 4 * 153.418 + 3 * 104.311)
    assert (found.outside, found.unmodelled) == (0, ())


def test_gpu_loops_without_communication_count_their_kernels() -> None:
    """The scheduler times the entry alone. The loop counts what the scheduler's model says of its kernels, each in 12 iterations:
    a slice, a product, a tangent and a sum, and a comparison. The entry's two kernels count once, by the log."""
    text, log = excerpt("gpu_loop_without_collectives.hlo"), excerpt("gpu_loop_without_collectives.log")
    found = hlo_cost.gpu_time(text, log, roofline)
    loop = 12 * (1.251 + 8.496 + 3.13425 + 0.001 + 0.001)
    assert found.outside == pytest.approx(loop)
    assert found.total == pytest.approx(114.056 + loop)
    assert found.wasted == pytest.approx(95.1355)
    assert found.unmodelled == ()


def test_gpu_kernels_without_an_estimate_count_by_the_roofline() -> None:
    """A product of 1024 x 1024 by cuBLAS: its FLOPs, and the bytes of two operands, a result and a workspace. A fusion of which
    nothing is known is named."""
    text, log = excerpt("gpu_loop_without_collectives.hlo"), excerpt("gpu_loop_without_collectives.log")
    without = re.sub(r'(custom-call\.1 = .*)"exec_time_us":8.496', r"\1", text)
    asked: list[tuple[float, str, float]] = []

    def noted(flops: float, element: str, memory_bytes: float) -> float:
        asked.append((flops, element, memory_bytes))
        return 10.0

    found = hlo_cost.gpu_time(without, log, noted)
    assert asked == [(2 * 1024**3, "bf16", 3 * 1024**2 * 2 + 4194304)]
    assert found.outside == pytest.approx(12 * (1.251 + 10 + 3.13425 + 0.001 + 0.001))
    unknown = hlo_cost.gpu_time(text.replace('"exec_time_us":3.13425', ""), log, noted)
    assert unknown.unmodelled == ("loop_convert_fusion",)
    assert unknown.outside == pytest.approx(12 * (1.251 + 8.496 + 0.001 + 0.001))


def test_a_log_that_breaks_off_is_refused() -> None:
    text, log = excerpt("gpu_scan.hlo"), excerpt("gpu_scan.log")
    with pytest.raises(hlo.HloError, match="breaks off in what it says of"):
        hlo_cost.gpu_time(text, log[: log.rindex("Total cycles")], roofline)


def test_a_log_lacks_only_computations_without_communication() -> None:
    """The scheduler passes over them. A computation that does communicate is in the log, or the log is not of this program."""
    text, log = excerpt("gpu_scan.hlo"), excerpt("gpu_scan.log")
    without_entry = log.replace("main.0_spmd", "another")
    with pytest.raises(hlo.HloError, match=r"nothing of %main.0_spmd, which has the all-to-all-start %all-to-all-start"):
        hlo_cost.gpu_time(text, without_entry, roofline)
    silent = text.replace("all-to-all-start(", "sine(").replace("all-to-all-done(", "cosine(")
    found = hlo_cost.gpu_time(silent, without_entry, roofline)
    assert found.total == pytest.approx(4 * 233.704 + 3 * 252.751)
    with pytest.raises(hlo.HloError, match="says nothing of"):
        hlo_cost.gpu_time(text, "", roofline)


GROUPS = {
    "channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true": 2,
    "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true": 4,
    "channel_id=3, replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_2'}, use_global_device_ids=true": 4,
    "channel_id=1, replica_groups={{0}}": 8,  # of replicas, each with all its partitions
    "channel_id=1, replica_groups={}": 8,
}


@pytest.mark.parametrize(("groups", "size"), GROUPS.items())
@pytest.mark.parametrize(
    ("kind", "layout"),
    [("all-reduce", "{1,0}"), ("all-reduce", "{1,0:T(8,128)(2,1)S(1)}"), ("all-reduce-start", "{1,0}"), ("all-reduce", "")],
)
def test_groups_of_every_notation_in_every_layout(groups: str, size: int, kind: str, layout: str) -> None:
    array = f"bf16[8,16]{layout}"
    done = f"\n  ROOT %d = {array} all-reduce-done(%r)" if kind.endswith("-start") else ""
    text = f"""HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (p: bf16[8,16]) -> bf16[8,16] {{
  %p = {array} parameter(0)
  %r = {array} {kind}(%p), {groups}, to_apply=%add{done}
}}
"""
    (found,) = communication(hlo.read(text)).collectives
    assert (found.group, found.wire_bytes) == (size, 8 * 16 * 2 * 2 * (size - 1) / size)


def test_collectives_of_several_types_count_each_by_itself() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (p: bf16[8,16]) -> bf16[8,16] {
  %p = bf16[8,16]{1,0} parameter(0)
  %q = s4[8,16]{1,0:E(4)} parameter(1)
  %r = (bf16[32,16]{1,0}, s4[32,16]{1,0:E(4)}) all-gather(%p, %q), replica_groups=[2,4]<=[8], dimensions={0}
}
"""
    assert figures(text).bytes_by_element == {"all-gather": {"bf16": 32 * 16 * 2 * 3 / 4, "s4": 32 * 16 / 2 * 3 / 4}}


ASYNC = """HloModule m, is_scheduled=true, num_partitions=8

%wrapped (p: f32[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0} parameter(0)
  ROOT %r = f32[8,16]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %x = f32[8,16]{1,0} parameter(0)
  %s = ((f32[8,16]{1,0}), f32[8,16]{1,0}) async-start(%x), calls=%wrapped
  %u = ((f32[8,16]{1,0}), f32[8,16]{1,0}) async-update(%s)
  %y = f32[8,16]{1,0} OPCODE(%x)
  ROOT %d = f32[8,16]{1,0} async-done(%u)
}
"""


@pytest.mark.parametrize(("opcode", "overlapped"), [("sine", 768), ("copy", 0), ("transpose", 0)])
def test_a_computation_that_is_begun_and_waited_for(opcode: str, overlapped: float) -> None:
    """The general notation, which XLA prints where it has no shorter one; made up."""
    found = figures(ASYNC.replace("OPCODE", opcode))
    assert (found.wire_bytes, found.asynchronous, found.overlapped_bytes) == (2 * 512 * 3 / 4, 1, overlapped)


def test_what_devices_send_without_a_collective_is_an_error() -> None:
    sent = "send(%x), channel_id=1, is_host_transfer=HOST"
    assert figures(ASYNC.replace("OPCODE(%x)", sent.replace("HOST", "true"))).asynchronous == 1
    with pytest.raises(hlo.HloError, match=r"send %y: what devices send each other by send and recv is not read"):
        figures(ASYNC.replace("OPCODE(%x)", sent.replace(", is_host_transfer=HOST", "")))


def test_groups_of_several_sizes_are_an_error() -> None:
    text = excerpt("gpu_broadcast.hlo").replace("{{1,0,2,3},{5,4,6,7}}", "{{1,0},{5,4,6,7,2,3}}")
    with pytest.raises(hlo.HloError, match=r"%collective-broadcast-start has groups of \[2, 6\] devices"):
        figures(text)


def test_a_computation_that_is_missing_is_an_error() -> None:
    with pytest.raises(hlo.HloError, match=r"fusion %fusion.502 runs %async_collective_fusion.502, which the text does not hold"):
        figures(excerpt("tpu_chain.hlo").replace("%async_collective_fusion.502 (p", "%renamed (p"))


def test_reading_takes_work_in_proportion_to_the_text() -> None:
    """Layers that call fusions of their own: eight times as many run about eight times as many lines."""

    def work(layers: int) -> int:
        parts = ["HloModule m, is_scheduled=true, num_partitions=8"]
        lines = ["  %x0 = bf16[2048,2048]{1,0} parameter(0)"]
        for n in range(layers):
            parts.append(
                f"%f{n} (p: s32[]) -> s32[] {{\n  %p = bf16[2048,2048]{{1,0}} parameter(0)\n"
                "  ROOT %d = bf16[2048,2048]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}"
            )
            lines.append(f"  %s{n} = bf16[2048,2048]{{1,0}} all-reduce-start(%x{n}), replica_groups=[2,4]<=[8], to_apply=%add")
            lines.append(f"  %y{n} = bf16[2048,2048]{{1,0}} fusion(%x{n}), kind=kCustom, calls=%f{n}")
            lines.append(f"  %x{n + 1} = bf16[2048,2048]{{1,0}} all-reduce-done(%s{n})")
        text = "\n\n".join([*parts, "ENTRY %main (p: s32[]) -> s32[] {\n" + "\n".join(lines) + "\n}"])
        assert figures(text).overlapped_bytes == layers * 2 * SQUARE * 3 / 4
        return lines_run(lambda: figures(text))

    assert work(800) < 9 * work(100)


KERNEL = """HloModule kernel, is_scheduled=true, entry_computation_layout={(f32[8,128]{1,0:T(8,128)})->f32[8,128]{1,0:T(8,128)}}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %k = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", kernel_metadata={
{
  "text": "a brace } and a \\" quote {",
  "block": {"q": 512,
"kv": 128
}}
}, backend_config={"custom_call_config":{"body":"TUzv"}}
  %c = s32[2,2]{1,0} constant({
    { 1, 2 },
    { 3, 4 }
  })

  ROOT %r = f32[8,128]{1,0:T(8,128)} negate(%k)
}
"""


def test_attributes_of_kernels_stand_on_several_lines() -> None:
    found = hlo.read(KERNEL).computations["main"]
    assert [each.opcode for each in found.instructions.values()] == ["parameter", "custom-call", "constant", "negate"]
    assert found.root.operands == ("k",)
    assert found.instructions["k"].attribute("custom_call_target") == "tpu_custom_call"
    with pytest.raises(hlo.HloError, match="expected the end of a computation, found that of the text in '  %k"):
        hlo.read(KERNEL[: KERNEL.index("TUzv")])
