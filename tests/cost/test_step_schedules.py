"""The predicted step: schedules, and what the device waits for."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge import pipeline
from meshbridge.cost.schedule import Task, list_schedule
from meshbridge.cost.step import PredictedStep, StepSchedule, predict
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import context
from meshbridge.ir.passes import Analyses
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import of_machine
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule
from meshbridge.pipeline import PlanVariant
from meshbridge.plan_variants import Plan, best_plan
from tests.cost.small_steps import (
    BYTES,
    GPU,
    GPUS,
    PRODUCT,
    SHARD,
    SIZE,
    TENSOR,
    five_iterations,
    gather,
    gathered,
    predicted,
    product,
    read,
)
from tests.mesh_axes import needs_mesh_axes


def test_tasks_take_turns_on_a_resource() -> None:
    """The one that more depends on goes first; those on other resources run beside it."""
    tasks = [
        Task(1.0, {"a": 1.0}),
        Task(1.0, {"a": 1.0}),
        Task(5.0, {"b": 5.0}, (1,)),
        Task(1.0, {"a": 1.0}, (0, 2)),
        Task(2.0, {"a": 2.0, "b": 0.5}, (3,)),
    ]
    assert list_schedule(tasks).starts == [1.0, 0.0, 1.0, 6.0, 7.0]
    assert list_schedule([]).starts == []


def test_a_resource_may_be_free_before_its_task_is_over() -> None:
    assert list_schedule([Task(3.0, {"a": 1.0}), Task(1.0, {"a": 1.0})]).starts == [0.0, 1.0]


def test_what_waits_while_another_starts_is_combined_with_it() -> None:
    """The second waits for the link, and the third is ready before the first is over; the fourth depends on that one, and the
    last is of another group."""
    tasks = [
        Task(3.0, {"a": 3.0}, (), 2.0, "sums"),
        Task(2.5, {"a": 2.5}, (), 2.0, "sums"),
        Task(1.0, {"b": 1.0}),
        Task(2.0, {"a": 2.0}, (2,), 2.0, "sums"),
        Task(2.5, {"a": 2.5}, (0,), 2.0, "sums"),
        Task(2.0, {"a": 2.0}, (4,), 2.0, "gathers"),
    ]
    starts, combined = list_schedule(tasks)
    assert combined == {1, 3}
    assert sum(each.seconds for each in _as_run(tasks, combined)) == 3.0 + 0.5 + 1.0 + 0.0 + 2.5 + 2.0
    assert max(starts) == starts[5] >= 3.0 + 2.5


@st.composite
def some_tasks(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for number in range(draw(st.integers(0, 12))):
        busy = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 5).map(float), max_size=3))
        seconds = max(busy.values(), default=0.0) + draw(st.integers(0, 2))
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        launch = float(draw(st.integers(0, int(min(busy.values(), default=0.0)))))
        tasks.append(Task(seconds, busy, tuple(sorted(after)), launch, draw(st.sampled_from([None, "sums", "gathers"]))))
    return tasks


def _as_run(tasks: list[Task], combined: set[int]) -> list[Task]:
    """Tasks without the launches that they share with others."""
    saved = [task.launch if number in combined else 0.0 for number, task in enumerate(tasks)]
    return [
        Task(task.seconds - launch, {resource: busy - launch for resource, busy in task.busy.items()}, task.after)
        for task, launch in zip(tasks, saved, strict=True)
    ]


def _follows(tasks: list[Task], number: int) -> set[int]:
    """What a task waits for, by way of others too."""
    return {each for before in tasks[number].after for each in (before, *_follows(tasks, before))}


@given(some_tasks())
def test_schedules_are_right_and_leave_nothing_ready_waiting(tasks: list[Task]) -> None:
    """Each task follows those that it waits for, a resource serves one at a time, and a task starts when the last of its
    resources or of those that it waits for lets it."""
    begun, combined = list_schedule(tasks)
    for number in combined:
        alike = {other for other, task in enumerate(tasks) if task.combines == tasks[number].combines}
        assert any(begun[other] <= begun[number] for other in alike - combined - _follows(tasks, number))
    tasks = _as_run(tasks, combined)
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


def placed(after: str) -> PredictedStep:
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
    assert step.compute_seconds == pytest.approx(copies * 2 * BYTES / target.machine.copy_bandwidth)
    assert step.exposed_seconds == pytest.approx(step.communication_seconds)
    assert predict(module, of_machine("h100:1x1x8")).compute_seconds == 0


LOOP = five_iterations(
    {"x": ("a", TENSOR), "v": ("s", SHARD), "u": ("b", TENSOR)},
    gather("w", "v") + product("y", "x", "u") + product("z", "y", "w"),
    "%z, %v, %u",
)


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
    bodies = {
        PlanVariant(): waiting + zeros,
        PlanVariant(hides=True): more + hidden,
        PlanVariant(hides=True, keeps_queries=True): hidden + zeros,
    }
    planned = {way: Plan(way, read(body + end, arguments, results), {}) for way, body in bodies.items()}
    target = CompileTarget.of(GPUS)
    waits, hides, least = planned
    assert best_plan([waits, hides], target, planned.__getitem__).variant == hides
    assert best_plan([waits, hides, least], target, planned.__getitem__).variant == least


def test_a_loop_is_scheduled_once_and_counted_often() -> None:
    step = predicted(LOOP, f"%a: {TENSOR}, %s: {SHARD}, %b: {TENSOR}", TENSOR)
    assert step.seconds == pytest.approx(5 * 2 * PRODUCT)
    dots = [each for each in step.slices if each.name == "stablehlo.dot_general" and each.resource == "compute"]
    assert [each.executions for each in dots] == [5, 5]
    (loop,) = [each for each in step.slices if each.resource == "loops"]
    assert (loop.name, loop.seconds) == ("stablehlo.while of 5 iterations", pytest.approx(step.seconds))


def test_passes_share_a_schedule_until_one_changes_the_program() -> None:
    """The second pass asks for it, too; the third changes the program, and returns None as such passes do."""
    target = CompileTarget.of(GPUS)
    module = read(gather("w", "s") + product("p", "w", "x") + f"return %p : {TENSOR}", f"%s: {SHARD}, %x: {TENSOR}", TENSOR)
    analyses: Analyses = {}
    pipeline.run((KeepSchedule(target),), module, analyses=analyses)
    found = analyses[StepSchedule]
    pipeline.run((KeepSchedule(target),), module, analyses=analyses)
    assert analyses[StepSchedule] is found
    pipeline.run((LowerCollectives(),), module, analyses=analyses)
    assert not analyses


def test_gathers_that_do_not_depend_on_one_another_start_once() -> None:
    """Of two gathers at a time, the second takes no launch; of two in a chain it does. XLA:TPU combines all-reduces alone."""
    small, whole = "tensor<8x8xf32>", "tensor<64x8xf32>"
    of = f"on @m mesh_axes = [0] gather_axis = 0 : {small} -> {whole}"
    again = f"on @m mesh_axes = [0] scatter_axis = 0 : {whole} -> {small}"
    together = f"%w = mesh.all_gather %s {of}\n%v = mesh.all_gather %t {of}\nreturn %w, %v : {whole}, {whole}"
    chained = f"%w = mesh.all_gather %s {of}\n%u = mesh.reduce_scatter %w {again}\n%v = mesh.all_gather %u {of}\n"
    arguments, results = f"%s: {small}, %t: {small}", f"{whole}, {whole}"
    for machine, starts in ((GPUS, 1), ("v5e:2x4", 2), ("cpu8:8", 2)):
        step = predicted(together, arguments, results, machine)
        once = predicted(f"%w = mesh.all_gather %s {of}\nreturn %w, %w : {whole}, {whole}", arguments, results, machine)
        launch = of_machine(machine).machine.link.launch
        assert (step.communication_seconds < 2 * once.communication_seconds - launch / 2) == (starts == 1)
        dependent = predicted(f"{chained}return %w, %v : {whole}, {whole}", arguments, results, machine)
        assert dependent.communication_seconds > 2 * once.communication_seconds


def test_nodes_exchange_on_a_network() -> None:
    """An axis across nodes gathers on the network first, then on each node's switch; each has a track of its own."""
    body = gather("w", "s") + f"return %w : {TENSOR}"
    apart, together = (predicted(body, f"%s: {SHARD}", TENSOR, machine) for machine in ("h100:1x4x2", GPUS))
    assert {each.resource for each in apart.slices} == {"nvlink", "infiniband"}
    assert {each.resource for each in together.slices} == {"nvlink"}
    assert apart.seconds > together.seconds


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


def in_pairs(groups: str, operand: str = SHARD, result: str = f"tensor<{SIZE // 4}x{SIZE}xbf16>") -> PredictedStep:
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
