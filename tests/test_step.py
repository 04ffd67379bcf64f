"""The predicted step: schedules, small programs whose times are counted by hand, its JSON and its trace."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.cost.memory import memory
from meshbridge.cost.schedule import Task, starts
from meshbridge.cost.seconds import collective_time
from meshbridge.cost.step import Step, predict, step_seconds
from meshbridge.cost.ways import Way, best_plan
from meshbridge.dialect import assembly
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.mlir import MeshError, context, ir, main_function
from meshbridge.machines.layout import place
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import of_machine
from meshbridge.tools import cli
from tests.mesh_axes import needs_mesh_axes
from tests.user_programs import PROGRAMS

GPUS = "h100:1x1x8"
SIZE = 4096
TENSOR = f"tensor<{SIZE}x{SIZE}xbf16>"
SHARD = f"tensor<{SIZE // 8}x{SIZE}xbf16>"
BYTES = 2.0 * SIZE * SIZE
GPU = of_machine(GPUS).machine
PRODUCT = GPU.kernel_launch + 2 * SIZE**3 / (GPU.efficiency * GPU.flops["bf16"])


def moving(passes: float, kernels: int = 1, machine: str = GPUS) -> float:
    """Seconds in which so many tensors are read or written, in that many kernels."""
    device = of_machine(machine).machine
    return kernels * device.kernel_launch + passes * BYTES / (device.efficiency * device.memory_bandwidth)


def read(body: str, arguments: str, results: str) -> ir.Module:
    text = f"mesh.mesh @m(shape = 8)\nfunc.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n"
    return assembly.read(text, "step.mlir", context())


def predicted(body: str, arguments: str, results: str, machine: str = GPUS) -> Step:
    module = read(body, arguments, results)
    return predict(module, of_machine(machine))


def gathered(machine: str = GPUS) -> float:
    """Seconds of the all-gather of a tensor."""
    (mesh,) = declared_meshes(read(f"return %a : {TENSOR}", f"%a: {TENSOR}", TENSOR).body).values()
    return collective_time("all_gather", BYTES / 8, (0,), place(mesh, of_machine(machine))).seconds


def product(name: str, left: str, right: str) -> str:
    return f"%{name} = stablehlo.dot_general %{left}, %{right}, contracting_dims = [1] x [0] : ({TENSOR}, {TENSOR}) -> {TENSOR}\n"


def gather(name: str, shard: str) -> str:
    return f"%{name} = mesh.all_gather %{shard} on @m mesh_axes = [0] gather_axis = 0 : {SHARD} -> {TENSOR}\n"


def test_tasks_take_turns_on_a_resource() -> None:
    """The one that more depends on goes first; those on other resources run beside it."""
    tasks = [
        Task(1.0, {"a": 1.0}),
        Task(1.0, {"a": 1.0}),
        Task(5.0, {"b": 5.0}, (1,)),
        Task(1.0, {"a": 1.0}, (0, 2)),
        Task(2.0, {"a": 2.0, "b": 0.5}, (3,)),
    ]
    assert starts(tasks) == [1.0, 0.0, 1.0, 6.0, 7.0]
    assert starts([]) == []


def test_a_resource_may_be_free_before_its_task_is_over() -> None:
    assert starts([Task(3.0, {"a": 1.0}), Task(1.0, {"a": 1.0})]) == [0.0, 1.0]


@st.composite
def some_tasks(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for number in range(draw(st.integers(0, 12))):
        busy = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 5).map(float), max_size=3))
        seconds = max(busy.values(), default=0.0) + draw(st.integers(0, 2))
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        tasks.append(Task(seconds, busy, tuple(sorted(after))))
    return tasks


@given(some_tasks())
def test_schedules_are_right_and_leave_nothing_ready_waiting(tasks: list[Task]) -> None:
    """Each task follows those that it waits for, a resource serves one at a time, and a task starts when the last of its
    resources or of those that it waits for lets it."""
    begun = starts(tasks)
    for task, start in zip(tasks, begun, strict=True):
        followed = [begun[before] + tasks[before].seconds for before in task.after]
        assert all(end <= start for end in followed)
        lets = {0.0, *followed}
        for other, from_ in zip(tasks, begun, strict=True):
            for name in task.busy.keys() & other.busy.keys():
                mine, theirs = start + task.busy[name], from_ + other.busy[name]
                lets.add(theirs)
                assert other is task or theirs <= start or mine <= from_ or start == mine or from_ == theirs
        assert start in lets


def test_a_gather_beside_a_product_is_hidden() -> None:
    """A GPU's all-gather runs while the product that does not need it does; what reads it comes after both."""
    body = product("y", "a", "b") + gather("w", "s") + product("z", "y", "w") + f"return %z : {TENSOR}"
    step = predicted(body, f"%a: {TENSOR}, %b: {TENSOR}, %s: {SHARD}", TENSOR)
    assert gathered() < PRODUCT
    assert step.seconds == pytest.approx(2 * PRODUCT)
    assert step.exposed_seconds == pytest.approx(0)
    assert [each.start for each in step.slices if each.name == "mesh.all_gather"] == [0]


def test_a_gather_that_a_product_needs_is_exposed() -> None:
    body = gather("w", "s") + product("y", "a", "w") + f"return %y : {TENSOR}"
    step = predicted(body, f"%a: {TENSOR}, %s: {SHARD}", TENSOR)
    assert step.exposed_seconds == pytest.approx(gathered())
    assert (step.seconds, step.compute_seconds) == pytest.approx((gathered() + PRODUCT, PRODUCT))
    assert step.communication_seconds == pytest.approx(gathered())


def placed(after: str) -> Step:
    """A product of arguments, and one of the gather and what comes `after` its barrier."""
    body = gather("w", "s") + f"%0:2 = stablehlo.optimization_barrier %a, %{after} : {TENSOR}, {TENSOR}\n"
    body += product("y", "0#0", "b") + product("z", "y", "w") + f"return %z : {TENSOR}"
    return predicted(body, f"%a: {TENSOR}, %b: {TENSOR}, %s: {SHARD}", TENSOR)


def test_what_a_barrier_hands_on_waits_for_all_of_it() -> None:
    """So `jax.checkpoint` computes again once the gradient is there; no memory moves for it."""
    assert placed("b").seconds == pytest.approx(2 * PRODUCT)
    assert placed("w").seconds == pytest.approx(gathered() + 2 * PRODUCT)


@pytest.mark.parametrize(("machine", "hidden"), [("v5e:2x4", True), ("v5p:2x2x2", False), ("7x:2x2x1", True)])
def test_a_device_waits_for_what_its_compiler_makes_synchronous(machine: str, hidden: bool) -> None:
    """libtpu's all-gathers are asynchronous on a v5e, and not on a v5p."""
    body = product("y", "a", "b") + gather("w", "s") + f"return %y, %w : {TENSOR}, {TENSOR}"
    step = predicted(body, f"%a: {TENSOR}, %b: {TENSOR}, %s: {SHARD}", f"{TENSOR}, {TENSOR}", machine)
    waits = max(gathered(machine) - step.compute_seconds, 0) if hidden else gathered(machine)
    assert step.exposed_seconds == pytest.approx(waits)


@pytest.mark.parametrize(
    ("machine", "collective", "hidden"),
    [
        ("v5p:2x2x2", "all_gather", ("best",)),
        ("v6e:2x4", "all_gather", ("best",)),
        ("v5e:2x4", "all_gather", ("default", "best")),
        ("v5e:2x4", "all_reduce", ("best",)),
        ("7x:2x2x1", "all_gather", ("default", "best")),
        ("h100:1x1x8", "all_gather", ("default", "best")),
        ("v5p:2x2x2", "all_to_all", ("best",)),
        ("v6e:2x4", "all_to_all", ("best",)),
    ],
)
def test_under_its_best_options_a_device_waits_for_less(machine: str, collective: str, hidden: tuple[str, ...]) -> None:
    communicated = {
        "all_gather": gather("w", "s"),
        "all_reduce": f"%w = mesh.all_reduce %b on @m mesh_axes = [0] : {TENSOR} -> {TENSOR}\n",
        "all_to_all": f"%w = mesh.all_to_all %b on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : {TENSOR} -> {TENSOR}\n",
    }[collective]
    body = product("y", "a", "b") + communicated + f"return %y, %w : {TENSOR}, {TENSOR}"
    text = f"mesh.mesh @m(shape = 8)\nfunc.func @main(%a: {TENSOR}, %b: {TENSOR}, %s: {SHARD}) -> ({TENSOR}, {TENSOR}) {{{body}}}"
    module = assembly.read(text, "step.mlir", context())
    for under in get_args(OptionSet):
        step = predict(module, of_machine(machine, compiler_options=under))
        communication = (
            max(step.communication_seconds - step.compute_seconds, 0) if under in hidden else step.communication_seconds
        )
        assert step.exposed_seconds == pytest.approx(communication)


@pytest.mark.parametrize(("split", "concat", "copies"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 2)])
def test_pieces_of_an_all_to_all_are_brought_in_order(split: int, concat: int, copies: int) -> None:
    """By kernels, which nothing hides: where they are not of the first dimension, on a machine that says how long it takes."""
    result = f"tensor<{SIZE if split == concat else SIZE // 8 if split == 0 else SIZE * 8}x{{}}xbf16>"
    result = result.format(SIZE if split == concat else SIZE * 8 if split == 0 else SIZE // 8)
    axes = f"mesh_axes = [0] split_axis = {split} concat_axis = {concat}"
    body = f"%w = mesh.all_to_all %b on @m {axes} : {TENSOR} -> {result}\nreturn %w : {result}"
    module = read(body, f"%b: {TENSOR}", result)
    target = of_machine("v5p:2x2x2", compiler_options="best")
    step = predict(module, target)
    assert step.compute_seconds == pytest.approx(copies * 2 * BYTES / target.machine.arranged)
    assert step.exposed_seconds == pytest.approx(step.communication_seconds)
    assert predict(module, of_machine("h100:1x1x8")).compute_seconds == 0


LOOP = f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:4 = stablehlo.while(%i = %zero, %x = %a, %v = %s, %u = %b) : tensor<i32>, {TENSOR}, {SHARD}, {TENSOR}
  cond {{
    %most = stablehlo.constant dense<5> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    {gather("w", "v")}
    {product("y", "x", "u")}
    {product("z", "y", "w")}
    stablehlo.return %next, %z, %v, %u : tensor<i32>, {TENSOR}, {SHARD}, {TENSOR}
  }}
  return %0#1 : {TENSOR}
"""


def test_of_plans_that_take_as_long_one_that_hides_more_may_send_more() -> None:
    """What the device waits for counts as sent once more; of plans that hide as much, the one that sends least is taken."""
    rows = f"tensor<64x{SIZE}xbf16>", f"tensor<512x{SIZE}xbf16>"
    more = f"%m = mesh.all_gather %b on @m mesh_axes = [0] gather_axis = 0 : {rows[0]} -> {rows[1]}\n"
    last = 100  # products, beside which a gather takes less than a percent

    def chained(first: str) -> str:
        return product("p0", "x", first) + "".join(product(f"p{n + 1}", f"p{n}", "x") for n in range(last))

    hidden = f"{gather('g', 'a')}{chained('x')}%s = stablehlo.add %p{last}, %g : {TENSOR}\n"
    waiting = gather("g", "a") + chained("g") + f"%s = stablehlo.add %p{last}, %x : {TENSOR}\n"
    arguments, results = f"%x: {TENSOR}, %a: {SHARD}, %b: {rows[0]}", f"{TENSOR}, {rows[1]}"
    zeros = f"%m = stablehlo.constant dense<0.0> : {rows[1]}\n"
    end = f"return %s, %m : {TENSOR}, {rows[1]}"
    bodies = {Way("waits"): waiting + zeros, Way("hides"): more + hidden, Way("hides and sends less"): hidden + zeros}
    planned = {way: read(body + end, arguments, results) for way, body in bodies.items()}
    target = of_machine(GPUS)
    waits, hides, least = planned
    assert best_plan([waits, hides], target, math.inf, planned.__getitem__).way == hides
    assert best_plan([waits, hides, least], target, math.inf, planned.__getitem__).way == least


def test_a_loop_is_scheduled_once_and_counted_often() -> None:
    step = predicted(LOOP, f"%a: {TENSOR}, %s: {SHARD}, %b: {TENSOR}", TENSOR)
    assert step.seconds == pytest.approx(5 * 2 * PRODUCT)
    dots = [each for each in step.slices if each.name == "stablehlo.dot_general" and each.resource == "compute"]
    assert [each.executions for each in dots] == [5, 5]
    (loop,) = [each for each in step.slices if each.resource == "loops"]
    assert (loop.name, loop.seconds) == ("stablehlo.while of 5 iterations", pytest.approx(step.seconds))


def test_nodes_exchange_on_a_network() -> None:
    """An axis across nodes gathers on the network first, then on each node's switch; each has a track of its own."""
    body = gather("w", "s") + f"return %w : {TENSOR}"
    apart, together = (predicted(body, f"%s: {SHARD}", TENSOR, machine) for machine in ("h100:1x4x2", GPUS))
    assert {each.resource for each in apart.slices} == {"nvlink", "infiniband"}
    assert {each.resource for each in together.slices} == {"nvlink"}
    assert apart.seconds > together.seconds


def test_of_branches_the_dearest_counts() -> None:
    body = f"""
  %0 = "stablehlo.if"(%p) ({{
    %1 = stablehlo.negate %a : {TENSOR}
    stablehlo.return %1 : {TENSOR}
  }}, {{
    {product("y", "a", "b")}
    stablehlo.return %y : {TENSOR}
  }}) : (tensor<i1>) -> {TENSOR}
  return %0 : {TENSOR}
"""
    arguments = f"%p: tensor<i1>, %a: {TENSOR}, %b: {TENSOR}"
    assert predicted(body, arguments, TENSOR).seconds == pytest.approx(PRODUCT)
    known = f"%p = stablehlo.constant dense<true> : tensor<i1>\n{body}"
    assert predicted(known, f"%a: {TENSOR}, %b: {TENSOR}", TENSOR).seconds == pytest.approx(moving(2))


def test_fused_operations_move_their_operands_and_results_alone() -> None:
    """Three operations in one loop: two tensors are read, one is written."""
    body = f"""
  %0 = stablehlo.add %a, %b : {TENSOR}
  %1 = stablehlo.negate %0 : {TENSOR}
  %2 = stablehlo.multiply %1, %1 : {TENSOR}
  return %2 : {TENSOR}
"""
    assert predicted(body, f"%a: {TENSOR}, %b: {TENSOR}", TENSOR).seconds == pytest.approx(moving(3))


SHARED = f"""
  %0 = stablehlo.OP %a : {TENSOR}
  %1 = stablehlo.negate %0 : {TENSOR}
  %2 = stablehlo.abs %0 : {TENSOR}
  return %1, %2 : {TENSOR}, {TENSOR}
"""


@pytest.mark.parametrize(
    ("machine", "op", "passes", "kernels"),
    [(GPUS, "exponential", 4, 2), ("v5e:2x4", "sign", 4, 2), ("v5e:2x4", "exponential", 6, 3)],
)
def test_what_is_cheap_is_computed_by_every_reader(machine: str, op: str, passes: int, kernels: int) -> None:
    """Two readers read the argument instead. XLA:TPU computes an exponential once, writes it, and reads it twice."""
    step = predicted(SHARED.replace("OP", op), f"%a: {TENSOR}", f"{TENSOR}, {TENSOR}", machine)
    assert step.seconds == pytest.approx(moving(passes, kernels, machine))


def test_products_may_write_what_is_made_of_their_results() -> None:
    """Unless two readers want it, of which neither is the last."""
    sums = "%z = stablehlo.constant dense<0.0> : tensor<bf16>\n%s = stablehlo.reduce(%p init: %z) applies stablehlo.add across"
    sums += f" dimensions = [1] : ({TENSOR}, tensor<bf16>) -> tensor<{SIZE}xbf16>\n"
    exponential = product("p", "a", "b") + f"%e = stablehlo.exponential %p : {TENSOR}\n"
    for body, results, passes in (
        (exponential + f"return %e : {TENSOR}", TENSOR, 1),
        (exponential + sums + f"return %e, %s : {TENSOR}, tensor<{SIZE}xbf16>", f"{TENSOR}, tensor<{SIZE}xbf16>", 3),
    ):
        module = read(body, f"%a: {TENSOR}, %b: {TENSOR}", results)
        seconds = step_seconds(module, GPU, of_machine(GPUS), epilogues=True)
        assert seconds == pytest.approx(PRODUCT + moving(passes, passes // 2 + 1), rel=1e-3)


def test_products_are_scaled_as_they_are_written() -> None:
    """By a constant, transposed or not, unless something else reads them as they are."""
    rate = f"%rate = stablehlo.constant dense<0.1> : {TENSOR}\n"
    turned = f"%t = stablehlo.transpose %p, dims = [1, 0] : ({TENSOR}) -> {TENSOR}\n"
    body = rate + product("p", "x", "x") + turned + f"%s = stablehlo.multiply %rate, %t : {TENSOR}\n"
    assert predicted(f"{body}return %s : {TENSOR}", f"%x: {TENSOR}", TENSOR).seconds == pytest.approx(PRODUCT)
    both = predicted(f"{body}return %s, %p : {TENSOR}, {TENSOR}", f"%x: {TENSOR}", f"{TENSOR}, {TENSOR}")
    assert both.seconds == pytest.approx(PRODUCT + moving(2))
    other = predicted(f"{body.replace('%rate, %t', '%x, %t')}return %s : {TENSOR}", f"%x: {TENSOR}", TENSOR)
    assert other.seconds == pytest.approx(PRODUCT + moving(3))


def test_a_normalised_tensor_is_computed_by_every_reader() -> None:
    """Out of one of its size and a vector: four passes, and two of a row, in place of five and one."""
    row = f"tensor<{SIZE}xbf16>"
    body = f"""
  %m = stablehlo.broadcast_in_dim %row, dims = [1] : ({row}) -> {TENSOR}
  {SHARED.replace("stablehlo.OP %a", "stablehlo.subtract %a, %m")}"""
    step = predicted(body, f"%a: {TENSOR}, %row: {row}", f"{TENSOR}, {TENSOR}")
    assert step.seconds == pytest.approx(moving(4 + 2 / SIZE, 2))


def test_arithmetic_of_single_numbers_takes_no_kernel() -> None:
    body = "%0 = stablehlo.add %a, %a : tensor<f32>\n%1 = stablehlo.exponential %0 : tensor<f32>\nreturn %1 : tensor<f32>"
    assert predicted(body, "%a: tensor<f32>", "tensor<f32>").seconds == 0


def test_a_slice_reads_what_it_takes() -> None:
    body = f"%0 = stablehlo.slice %a [0:{SIZE // 8}, 0:{SIZE}] : ({TENSOR}) -> {SHARD}\nreturn %0 : {SHARD}"
    assert predicted(body, f"%a: {TENSOR}", SHARD).seconds == pytest.approx(moving(2 / 8))


@pytest.mark.parametrize(("machine", "kernels"), [(GPUS, 2), ("v5e:2x4", 1)])
def test_products_read_slices_in_place_on_tpus(machine: str, kernels: int) -> None:
    """A GPU copies them: they are read and written beside what the product takes."""
    row = f"tensor<{SIZE // 8}x{SIZE // 8}xbf16>"
    body = f"""
  %0 = stablehlo.slice %a [0:{SIZE // 8}, 0:{SIZE}] : ({TENSOR}) -> {SHARD}
  %1 = stablehlo.dot_general %0, %b, contracting_dims = [1] x [1] : ({SHARD}, {SHARD}) -> {row}
  return %1 : {row}"""
    step = predicted(body, f"%a: {TENSOR}, %b: {SHARD}", row, machine)
    device = of_machine(machine).machine
    flops = 2 * SIZE**3 / 64 / (device.efficiency * device.flops["bf16"])
    read = moving(2 / 8 + 1 / 64, 1, machine)
    assert step.seconds == pytest.approx(max(device.kernel_launch + flops, read) + (kernels - 1) * moving(2 / 8, 1, machine))


def test_what_a_loop_only_reads_is_read_as_it_is_outside() -> None:
    """The mask is a broadcast: no buffer holds it, inside of the loop as little as outside."""
    body = f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %mask = stablehlo.broadcast_in_dim %row, dims = [1] : (tensor<{SIZE}xbf16>) -> {TENSOR}
  %0:3 = stablehlo.while(%i = %zero, %x = %a, %m = %mask) : tensor<i32>, {TENSOR}, {TENSOR}
  cond {{
    %most = stablehlo.constant dense<5> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %y = stablehlo.add %x, %m : {TENSOR}
    stablehlo.return %next, %y, %m : tensor<i32>, {TENSOR}, {TENSOR}
  }}
  return %0#1 : {TENSOR}
"""
    step = predicted(body, f"%a: {TENSOR}, %row: tensor<{SIZE}xbf16>", TENSOR)
    assert step.seconds == pytest.approx(5 * moving(2), rel=1e-3)


@pytest.mark.parametrize(
    ("attributes", "donated"),
    [("", 0), ("{tf.aliasing_output = 0 : i32}", BYTES), ("{jax.buffer_donor = true}", BYTES)],
)
def test_a_result_takes_the_buffer_of_a_donated_argument(attributes: str, donated: float) -> None:
    module = read(f"%0 = stablehlo.negate %a : {TENSOR}\nreturn %0 : {TENSOR}", f"%a: {TENSOR} {attributes}", TENSOR)
    found = memory(main_function(module))
    assert (found.donated, found.peak) == (donated, 2 * BYTES - donated)


def test_a_donor_of_another_type_gives_nothing() -> None:
    module = read(f"return %a : {TENSOR}", f"%a: {TENSOR}, %b: {SHARD} {{jax.buffer_donor = true}}", TENSOR)
    assert memory(main_function(module)).donated == 0


@pytest.mark.parametrize(
    "line",
    [
        "mesh.shift %x on @m shift_axis = 0 offset = 1 rotate : tensor<8x6xf32> -> tensor<8x6xf32>",
        "mesh.update_halo %x on @m split_axes = [[0], []] halo_sizes = [2, 1] : tensor<8x6xf32>",
        "mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8x6xf32> -> tensor<8x6xf32>",
        "mesh.all_to_all %x on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<8x6xf32> -> tensor<8x6xf32>",
        "mesh.permute %x on @m mesh_axes = [0] target_axes = [0] : tensor<8x6xf32> -> tensor<8x6xf32>",
        '"stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [7, 0]]> : tensor<2x2xi64>}'
        " : (tensor<8x6xf32>) -> tensor<8x6xf32>",
    ],
)
@pytest.mark.parametrize("machine", [GPUS, "v5e:2x4"])
def test_collectives_of_every_kind_have_a_time(line: str, machine: str) -> None:
    step = predicted(f"%0 = {line}\nreturn %0 : tensor<8x6xf32>", "%x: tensor<8x6xf32>", "tensor<8x6xf32>", machine)
    assert (step.exposed_seconds > 0) == ("mesh.permute" not in line)  # along one axis nothing moves
    assert step.compute_seconds == 0


def in_pairs(groups: str, operand: str = SHARD, result: str = f"tensor<{SIZE // 4}x{SIZE}xbf16>") -> Step:
    body = f"""%0 = "stablehlo.all_gather"(%a) {{all_gather_dim = 0 : i64, replica_groups = {groups}}} : ({operand}) -> {result}
  return %0 : {result}"""
    return predicted(body, f"%a: {operand}", result)


def test_groups_of_a_part_of_an_axis_send_less() -> None:
    """A gather in pairs on an axis of 8 devices brings each device one shard, not seven."""
    step = in_pairs("dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>")
    launch = GPU.link.launch + 3 * GPU.link.latency
    assert step.seconds - launch == pytest.approx(BYTES / 8 / GPU.link.rate)
    whole = predicted(f"{gather('0', 'a')}return %0 : {TENSOR}", f"%a: {SHARD}", TENSOR)
    assert step.seconds - launch == pytest.approx((whole.seconds - launch) / 7)


@needs_mesh_axes
def test_groups_by_axes_of_a_mesh_in_any_order() -> None:
    """As `jax.make_mesh` numbers devices that are on a ring: no digits say that order."""
    order = "device_ids = dense<[0, 1, 3, 2, 4, 5, 7, 6]> : tensor<8xi64>"
    axes = f'#stablehlo.mesh<axes = [<name = "a", size = 4>, <name = "b", size = 2>], {order}>'
    named = f'#stablehlo.replica_group_mesh_axes<mesh = {axes}, axes = [#stablehlo.axis_ref<name = "b">]>'
    assert in_pairs(named).seconds == in_pairs("dense<[[0, 1], [3, 2], [4, 5], [7, 6]]> : tensor<4x2xi64>").seconds


def exported() -> export.Exported:
    """The gradient of two layers with `jax.checkpoint`, the batch on one axis and the hidden dimension on the other."""
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    specs = [("data", None), (None, "model"), ("model", None)]

    def loss(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(lambda y: jax.nn.gelu(y @ v) @ w)(x) ** 2)

    shapes = [(64, 256), (256, 512), (512, 256)]
    shardings = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return export.export(jax.jit(jax.grad(loss, argnums=(1, 2)), in_shardings=shardings))(*arguments)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.jax_export"
    path.write_bytes(exported().serialize())
    return path


def test_the_report_has_a_step(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = meshbridge.report(exported(), machine=GPUS)
    assert cli.main(["report", str(program), "--machine", GPUS, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    keys = ("seconds", "exposed_seconds", "compute_seconds", "communication_seconds", "mfu", "peak_bytes")
    assert [read[key] for key in keys] == [getattr(report, key) for key in keys]
    assert read["machine"] == GPUS
    assert read["seconds"] == pytest.approx(read["compute_seconds"] + read["exposed_seconds"])
    assert read["peak_bytes"] == read["memory"]["peak"]
    assert f"per step on {GPUS}: computing" in report.table()


def test_mfu_counts_what_is_computed_again_once() -> None:
    """Two products forwards, three backwards, since the argument has no gradient; not the one that the checkpoint repeats."""
    report = meshbridge.report(exported(), machine=GPUS)
    flops = 5 * 2 * 64 * 256 * 512
    assert report.model_products == {"f32": flops}
    assert report.seconds is not None
    assert report.mfu == pytest.approx(flops / 8 / GPU.flops["tf32"] / report.seconds)


def test_tokens_per_second(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = meshbridge.report(exported(), machine=GPUS, tokens=4096)
    assert report.seconds is not None
    assert report.tokens_per_second == pytest.approx(4096 / report.seconds)
    assert f"about {4096 / report.seconds:,.0f} tokens per second, {512 / report.seconds:,.1f} per device" in report.table()
    assert cli.main(["report", str(program), "--machine", GPUS, "--tokens", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_second"] == report.tokens_per_second
    assert meshbridge.report(exported(), machine=GPUS).tokens_per_second is None


@pytest.mark.parametrize(
    ("machine", "tokens", "expected"),
    [(GPUS, 0, "tokens is 0, expected a positive number"), ("h100", 8, "tokens has no effect without a machine of a topology")],
)
def test_tokens_of_which_nothing_follows(machine: str, tokens: float, expected: str) -> None:
    with pytest.raises(MeshError, match=expected):
        meshbridge.report(exported(), machine=machine, tokens=tokens)


def test_without_a_topology_there_is_no_step() -> None:
    for machine in ("neutral", "h100"):
        report = meshbridge.report(exported(), machine=machine)
        assert (report.step, report.seconds, report.exposed_seconds, report.mfu) == (None,) * 4
        assert report.peak_bytes > 0
        with pytest.raises(MeshError, match="there is no predicted step, expected a machine with a topology"):
            report.perfetto()


def test_a_layout_says_which_axis_the_network_is_for(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Across two nodes of four that axis takes longer which is on the network, and nothing says otherwise than by default."""
    machine, seconds = "h100:1x2x4", []
    for layout in ("", "data=infiniband", "model=infiniband+nvlink"):
        assert cli.main(["report", str(program), "--machine", machine, "--layout", layout, "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
        assert meshbridge.report(exported(), machine=machine, layout=layout).seconds == seconds[-1]
    assert seconds[0] == seconds[1] != seconds[2]
    with pytest.raises(MeshError, match="layout has no effect without a machine of a topology"):
        meshbridge.report(exported(), layout="a=nvlink")


def test_trace(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    assert cli.main(["report", str(program), "--machine", "v5e:2x4", "--perfetto", str(path)]) == 0
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    slices = [each for each in events if each["ph"] == "X"]
    assert {"compute", "memory", "loops"} < set(tracks.values())
    assert len(slices) + len(tracks) + 1 == len(events)
    for each in slices:
        assert each.keys() == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert tracks[each["tid"]] == each["cat"]
        assert each["args"].keys() == {"operation", "location", "module", "executions", "total_ms"}
    for track in ("compute", "memory"):  # one after the other
        ends = [(each["ts"], each["ts"] + each["dur"]) for each in slices if each["cat"] == track]
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(ends))
    dots = [each for each in slices if each["args"]["operation"] == "stablehlo.dot_general" and each["cat"] == "compute"]
    assert all(each["name"].startswith("dot_general test_step.py:") for each in dots)
    assert any("rematted_computation" in each["args"]["module"] for each in dots)


def test_a_partitioned_program_has_a_step(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "partitioned.mlir"
    assert cli.main(["partition", str(program), "--machine", GPUS, "--emit", "mesh", "-o", str(saved)]) == 0
    found = []
    for path in (program, saved):
        assert cli.main(["report", str(path), "--machine", GPUS, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["seconds"] == pytest.approx(found[1]["seconds"])
    assert found[1]["mfu"] is None
    local = tmp_path / "local.mlir"
    assert cli.main(["partition", str(program), "--machine", GPUS, "--emit", "local", "-o", str(local)]) == 0
    assert cli.main(["report", str(local), "--machine", GPUS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        (["--machine", "h100:1x1x4"], 1, "error: mesh @mesh has 8 devices, machine 'h100:1x1x4' has 4"),
        (["--machine", "h100:1x8"], 2, "expected a topology of 3 positive numbers with x between them (slices, hosts, devices)"),
        (["--machine", "h900:1x1x8"], 2, "unknown machine 'h900'"),
        (["--perfetto", "step.json"], 2, "--perfetto has no effect without --machine DEVICE:TOPOLOGY, as in h100:1x1x8"),
        (["--tokens", "4096"], 2, "--tokens has no effect without --machine DEVICE:TOPOLOGY"),
        (["--machine", GPUS, "--tokens", "0"], 2, "argument --tokens: expected a positive number, found '0'"),
        (["--layout", "data=nvlink"], 2, "--layout has no effect without --machine DEVICE:TOPOLOGY"),
        (["--machine", GPUS, "--layout", "a"], 2, "argument --layout: expected a layout AXIS=LINK,…, each axis once"),
        (
            ["--machine", GPUS, "--layout", "z=nvlink"],
            1,
            "error: layout of 'z': mesh @mesh has no such axis, expected one of data, model",
        ),
        (["--machine", "h100", "--perfetto", "step.json"], 2, "--perfetto has no effect without --machine DEVICE:TOPOLOGY"),
    ],
)
def test_diagnostics(
    program: Path, said: list[str], status: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [str(tmp_path / word) if word.endswith(".json") else word for word in said]
    assert cli.main(["report", str(program), *said]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("error:") == 1
    assert not (tmp_path / "step.json").exists()


def test_a_mesh_of_one_device_needs_no_place() -> None:
    """JAX declares one beside the program's own for arguments whose sharding nobody gave."""
    user = PROGRAMS["one_axis"]()
    report = meshbridge.report(user.jitted, *user.arguments, kwargs=user.named, machine=GPUS)
    assert "@empty_mesh" in export.export(user.jitted)(*user.arguments, **user.named).mlir_module()
    assert report.seconds is not None


def test_what_does_not_fit_is_said() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    held = NamedSharding(mesh, PartitionSpec())
    doubled = export.export(jax.jit(lambda x: x * 2, in_shardings=held, out_shardings=held))
    report = meshbridge.report(doubled(jax.ShapeDtypeStruct((8, 2**30), np.float32)), machine="v5e:2x4")
    assert "does not fit: a device of v5e:2x4 has 17.2 GB of memory" in report.table()
