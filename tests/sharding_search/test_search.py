"""Shardings that a search finds: as fast as those that experts write, right when they run, and within what the user says."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.sharding_search import mesh_search, search, trial
from meshbridge.sharding_search.trial import Trial
from testdata.catalogue import build as small
from testdata.realistic.catalogue import build as realistic

Tree = Any
LONG = ("decode_heads", "decode_sequence", "gpt8_scan_dp_tp", "moe_lm", "llama32_scan_fsdp_tp")
WIDTH, HIDDEN, ROWS = 256, 1024, 512
UNLIMITED = 3600.0
"""Seconds in which every search here ends by itself, so that what it finds does not hang on how busy the machine is."""


def loss(params: Tree, x: Any, y: Any) -> Any:
    for layer in params["layers"]:
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return jnp.mean((x @ params["head"] - y) ** 2)


def step(state: Tree, batch: Tree) -> Tree:
    """A training step with momenta, whose results are named as its arguments."""
    value, gradients = jax.value_and_grad(loss)(state["params"], batch["x"], batch["y"])
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, state["momenta"], gradients)
    return {"params": jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momenta), "momenta": momenta}, value


def state_of(make: Any, scale: int = 1) -> tuple[Tree, Tree]:
    width, hidden, rows = WIDTH * scale, HIDDEN * scale, ROWS * scale

    def weights() -> Tree:
        layers = [{"up": make(width, hidden), "down": make(hidden, width)} for _ in range(2)]
        return {"layers": layers, "head": make(width, 64)}

    return {"params": weights(), "momenta": weights()}, {"x": make(rows, width), "y": make(rows, 64)}


def shapes(scale: int = 1) -> tuple[Tree, Tree]:
    return state_of(lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32), scale)


def arrays() -> tuple[Tree, Tree]:
    rng = np.random.default_rng(0)
    return state_of(lambda *shape: jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32))


def find(function: Any = step, arguments: Any = None, **more: Any) -> meshbridge.SearchedPlan:
    more = {"mesh": {"data": 4, "model": 2}, "machine": "h100", "seconds": UNLIMITED} | more
    return meshbridge.search(jax.jit(function), *(arguments or shapes(8)), **more)


@pytest.fixture(scope="module")
def plan() -> meshbridge.SearchedPlan:
    return find()


def specs(tree: Tree) -> list[P]:
    return jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, P))


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("vocab_loss", "cp_attention")),
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long]) for name in LONG),
    ],
)
def test_found_plans_are_as_fast_as_those_of_experts(name: str) -> None:
    exported = realistic(name, "constrained", 8).export()
    written = meshbridge.report(exported, machine="v5p:2x2x2")
    found = meshbridge.search(exported, machine="v5p:2x2x2", keep_annotations=False, seconds=UNLIMITED)
    assert found.seconds <= 1.002 * written.seconds  # nearly equal plans are told apart by partitioning a few of them
    assert found.gap <= (0.08 if name == "cp_attention" else 0.05)  # prices know nothing of the rings that make it faster
    assert meshbridge.report(found.annotated, machine=found.machine).seconds == pytest.approx(found.seconds)


def test_what_is_found_runs_and_gives_the_numbers_of_one_device() -> None:
    given = arrays()
    plan = find(arguments=given, machine="v5p")
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    placed = jax.tree.map(lambda spec, leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), plan.in_shardings, given)
    partitioned = meshbridge.partition(plan.annotated, machine=plan.machine)
    for found, expected in zip(
        jax.tree.leaves(jax.jit(partitioned.call)(*placed)), jax.tree.leaves(jax.jit(step)(*given)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_shardings_are_trees_like_the_arguments_and_results(plan: meshbridge.SearchedPlan) -> None:
    given = shapes(8)
    is_spec = lambda leaf: isinstance(leaf, P)  # noqa: E731
    assert jax.tree.structure(plan.in_shardings, is_leaf=is_spec) == jax.tree.structure(given)
    assert jax.tree.structure(plan.out_shardings, is_leaf=is_spec) == jax.tree.structure(jax.eval_shape(step, *given))
    assert any(spec != P() for spec in specs(plan.in_shardings))
    assert pickle.loads(pickle.dumps(plan.in_shardings)) == plan.in_shardings


def test_what_a_step_hands_on_comes_out_as_it_came_in(plan: meshbridge.SearchedPlan) -> None:
    assert plan.out_shardings[0] == plan.in_shardings[0]


@pytest.mark.slow
def test_the_same_program_gives_the_same_plan(plan: meshbridge.SearchedPlan) -> None:
    again = find()
    assert (plan.in_shardings, plan.seconds, plan.tried) == (again.in_shardings, again.seconds, again.tried)


def test_parameters_are_split_where_memory_is_short() -> None:
    def infer(layers: Tree, x: Any) -> Any:
        for layer in layers:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return x

    arguments = [{"up": f32(1024, 4096), "down": f32(4096, 1024)} for _ in range(8)], f32(32768, 1024)
    free = find(infer, arguments)
    assert set(specs(free.in_shardings[0])) == {P()}
    limit = free.peak_bytes / 2
    tight = find(infer, arguments, memory_limit=limit)
    assert P() not in specs(tight.in_shardings[0])
    assert tight.peak_bytes <= limit
    assert tight.seconds > free.seconds


def test_what_cannot_fit_says_by_how_much_and_what_takes_it() -> None:
    with pytest.raises(MeshError, match=r"needs .* of memory on a device, .* more than the limit of 1\.0 KB .* most of it for"):
        find(memory_limit="1KB")


def test_what_is_fixed_stays() -> None:
    plan = find(seconds=2.0, fixed={"state/**/up": P(None, "model"), "batch/*": P("data")})
    layers, batch = plan.in_shardings[0]["params"]["layers"], plan.in_shardings[1]
    assert [layer["up"] for layer in layers] == [P(None, "model")] * len(layers)
    assert batch == {"x": P("data"), "y": P("data")}


def test_what_is_annotated_stays_unless_the_user_says_otherwise() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    given = shapes(8)
    held = NamedSharding(mesh, P(None, "model"))
    given[0]["params"]["layers"][0]["up"] = jax.ShapeDtypeStruct((2048, 8192), jnp.float32, sharding=held)
    batch = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P("data")))
        for name, leaf in given[1].items()
    }
    plan = meshbridge.search(jax.jit(step), given[0], batch, machine="h100", seconds=2.0)
    assert plan.in_shardings[0]["params"]["layers"][0]["up"] == P(None, "model")
    assert plan.in_shardings[1] == {"x": P("data"), "y": P("data")}


def test_annotations_of_the_functions_that_a_program_calls_are_ignored_too() -> None:
    """Where a layer is computed again in the backward pass, its constraints are in a function of its own."""
    given = [scanned(constrained=constrained) for constrained in (True, False)]
    assert "closed_call" in given[0].as_text()
    plans = [meshbridge.search(each, machine="h100", keep_annotations=False, seconds=UNLIMITED) for each in given]
    assert len({(repr(plan.in_shardings), plan.seconds) for plan in plans}) == 1


def scanned(*, constrained: bool) -> Any:
    mesh = mesh_of(4, 2)

    @jax.checkpoint
    def block(x: Any, weight: Any) -> Any:
        hidden = jnp.tanh(x @ weight)
        return jax.lax.with_sharding_constraint(hidden, P()) if constrained else hidden

    def total(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, weight: (block(x, weight), None), x, weights)[0])

    with jax.set_mesh(mesh):
        held = NamedSharding(mesh, P("data"))
        return jax.jit(jax.grad(total), in_shardings=(None, held)).lower(f32(3, 256, 256), f32(4096, 256))


def mesh_of(data: int, model: int) -> Any:
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_annotations_of_functions_that_a_manual_computation_calls_stay() -> None:
    mesh = mesh_of(4, 2)

    @jax.jit
    def called(x: Any, weight: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ weight), P(None, "model"))

    def local(x: Any, weight: Any) -> Any:
        return jax.lax.psum(called(called(x, weight), weight), "data")

    manual = jax.shard_map(local, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), axis_names={"data"}, check_vma=False)
    with jax.set_mesh(mesh):
        lowered = jax.jit(manual, in_shardings=(NamedSharding(mesh, P("data")), None)).lower(f32(512, 256), f32(256, 256))
    plan = meshbridge.search(lowered, machine="h100", keep_annotations=False, seconds=UNLIMITED)
    assert '[{}, {"model"}]' in str(plan.program.module).partition("func.func private @called")[2]


@pytest.mark.parametrize("side", ["in_shardings", "out_shardings"])
def test_what_a_step_hands_on_is_sharded_as_the_user_says_of_one_side(side: str) -> None:
    mesh = mesh_of(4, 2)
    held, rows = ({"w": NamedSharding(mesh, P(None, "model"))}, NamedSharding(mesh, P("data")))
    said = {"in_shardings": (None, rows), "out_shardings": None} | {side: (held, rows) if side == "in_shardings" else held}
    descend = jax.grad(lambda params, x: jnp.sum(jnp.tanh(x @ params["w"]) ** 2))
    plan = meshbridge.search(jax.jit(descend, **said), {"w": f32(256, 256)}, f32(65536, 256), machine="v5p", seconds=UNLIMITED)
    assert plan.in_shardings[0] == plan.out_shardings == {"w": P(None, "model")}


def half_annotated(name: str, kept: slice) -> Any:
    """A program of which some arguments are sharded as its expert says, by their numbers, and no results."""
    program = small(name)
    mesh = program.mesh()
    said, tree = jax.tree.flatten(program.jit_shardings(mesh)[0])
    avals = jax.tree.leaves(program.avals())
    avals[kept] = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=held) for aval, held in zip(avals[kept], said[kept], strict=True)
    ]
    with jax.set_mesh(mesh):
        return jax.jit(program.function).lower(*jax.tree.unflatten(tree, avals))


@pytest.mark.parametrize(("name", "first", "step"), [("vocab_ce", 1, 2), ("cp_attn_grad", 0, 2)])
def test_a_search_is_never_worse_than_what_the_annotations_alone_give(name: str, first: int, step: int) -> None:
    """Whatever time there is: it begins with that."""
    program = half_annotated(name, slice(first, None, step))
    alone = meshbridge.report(program, machine="v5e:2x4")
    plan = meshbridge.search(program, machine="v5e:2x4", seconds=0.001)
    assert alone.seconds is not None
    assert plan.seconds <= alone.seconds
    again = meshbridge.report(plan.annotated, machine=plan.machine)
    assert again.seconds == plan.seconds
    assert [leaf.sharding for leaf in again.arguments] == [leaf.sharding for leaf in plan.arguments]


@pytest.mark.slow
def test_what_annotations_lead_to_is_handed_on_as_it_came_in() -> None:
    """Where `partition` decides otherwise, the plan keeps to that."""
    program = half_annotated("moe_grad", slice(1, None, 2))
    alone = meshbridge.report(program, machine="v5e:2x4")
    plan = meshbridge.search(program, machine="v5e:2x4", seconds=0.001)
    argument, result = alone.arguments[0], alone.results[1]  # its gradient, after the loss
    assert (argument.shape, argument.element_type) == (result.shape, result.element_type)
    assert argument.sharding != result.sharding
    assert plan.arguments[0].sharding == plan.results[1].sharding


def test_what_annotations_lead_to_is_tried() -> None:
    held = NamedSharding(mesh_of(4, 2), P("data"))
    program = jax.jit(step, in_shardings=(None, {"x": held, "y": held})).lower(*shapes(2))
    tried: list[Trial] = []
    plan = meshbridge.search(program, machine="v5p", seconds=UNLIMITED, on_trial=lambda trial, number: tried.append(trial))
    assert tried[0].variant is None
    assert plan.seconds <= tried[0].seconds


@pytest.mark.parametrize(
    ("fixed", "text"),
    [
        ({"state/**/sideways": P("data")}, "no argument and no result matches 'state/\\*\\*/sideways'"),
        ({"batch/x": P("rows")}, "the mesh has no axis 'rows', expected one of data, model"),
        ({"batch/x": P(None, None, "data")}, "names 3 dimensions, batch\\['x'\\] has 2"),
        ({"batch/*": P("data")}, "dimension 0 of batch\\['x'\\] has size 510, which 4 devices do not divide"),
    ],
)
def test_what_cannot_be_fixed_says_why(fixed: dict[str, P], text: str) -> None:
    def uneven(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(510 if size == ROWS else size for size in shape), jnp.float32)

    with pytest.raises(MeshError, match=text):
        find(arguments=state_of(uneven), fixed=fixed)


@pytest.mark.parametrize("machine", ["bytes", "neutral"])
def test_a_machine_without_time_is_refused(machine: str) -> None:
    with pytest.raises(MeshError, match=f"a search minimises time, which machine '{machine}' says nothing of"):
        find(machine=machine)


def test_a_program_without_a_mesh_needs_one() -> None:
    with pytest.raises(MeshError, match="names no mesh to search on"):
        find(mesh=None)


def test_another_mesh_than_that_of_the_program_is_refused() -> None:
    with pytest.raises(MeshError, match="is sharded on the mesh data=4, model=2 already"):
        meshbridge.search(small("llama_fsdp_tp").export(), mesh="4x2", machine="h100")


@pytest.mark.slow
def test_a_number_of_devices_tries_meshes_of_one_and_two_axes() -> None:
    plan = find(mesh="8")
    alone = [find(mesh=mesh) for mesh in ("x=8", "2x4", "4x2")]
    assert plan.seconds == min(each.seconds for each in alone)


def test_who_interrupts_a_search_gets_the_best_so_far() -> None:
    def interrupt(trial: Any, number: int) -> None:
        raise KeyboardInterrupt

    assert find(on_trial=interrupt).tried == 1


@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupted_search_partitions_nothing_more(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is there already: the user waits for it."""
    planned = trial.planned

    def interrupt(tried: Any, number: int) -> None:
        if number == at:
            monkeypatch.setattr(trial, "planned", lambda *arguments: pytest.fail("partitioned"))
            monkeypatch.setattr(mesh_search, "planned", lambda *arguments: pytest.fail("partitioned"))
            raise KeyboardInterrupt

    plan = find(on_trial=interrupt)
    assert plan.tried == at
    assert planned is not trial.planned


def test_an_interruption_of_the_solver_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = mesh_search.solve
    monkeypatch.setattr(mesh_search, "solve", lambda *given, **named: replace(solve(*given, **named), is_interrupted=True))
    assert find().tried == 1


def test_one_interruption_ends_the_search_on_all_meshes() -> None:
    met: list[int] = []

    def interrupt(trial: Any, number: int) -> None:
        met.append(number)
        raise KeyboardInterrupt

    assert find(mesh="8", on_trial=interrupt).mesh == {"x": 8}
    assert met == [1]


def test_who_interrupts_before_there_is_a_plan_on_a_further_mesh_gets_that_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    annotated, met = search._annotated, []

    def interrupted(module: Any, mesh: Any, request: Any) -> Any:
        met.append(mesh)
        if len(met) > 1:
            raise KeyboardInterrupt
        return annotated(module, mesh, request)

    monkeypatch.setattr(search, "_annotated", interrupted)
    assert find(mesh="8", seconds=0.001).mesh == {"x": 8}
    assert len(met) == 2


def test_who_interrupts_the_last_step_gets_the_plan_as_it_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = mesh_search.attempt

    def interrupted(*arguments: Any) -> Any:
        if arguments[-1] is None:  # as users get it
            raise KeyboardInterrupt
        return attempt(*arguments)

    monkeypatch.setattr(mesh_search, "attempt", interrupted)
    assert find(seconds=0.001).tried == 1


def test_keys_unused_arguments_and_arguments_by_name_have_their_places() -> None:
    def noisy(key: Any, x: Any, unused: Any, *, scale: Any) -> Any:
        return x + scale * jax.random.normal(key, x.shape)

    plan = find(noisy, (jax.eval_shape(jax.random.key, 0), f32(1024, 1024), f32(3)), kwargs={"scale": f32()})
    assert len(plan.in_shardings) == 3
    assert plan.in_shardings[2] == P()
    assert plan.kwarg_shardings == {"scale": P()}


def test_dimensions_of_no_elements_and_the_words_of_keys_are_not_split() -> None:
    def parts(x: Any, keys: Any, seed: Any) -> Any:
        noise = jax.vmap(lambda key: jax.random.normal(key, (4096,)))(keys)
        return jnp.tanh(x + noise), x[:0, :], x[:, 4096:], x[:0, :3], x[:1, :4] + jax.random.normal(seed, (1, 4))

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4096))
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    plan = find(parts, (x, keys, jax.ShapeDtypeStruct((2,), jnp.uint32)), seconds=5.0)
    assert plan.out_shardings[0] != P()
    for leaf in (*plan.arguments, *plan.results):
        assert all(not axes for size, axes in zip(leaf.shape, leaf.sharding, strict=True) if size in (0, 1))
    assert plan.out_shardings[3] == P()
    assert len(plan.in_shardings[1]) <= 1
    assert plan.in_shardings[2] == P()


def test_programs_with_manual_computations_keep_what_those_say() -> None:
    plan = meshbridge.search(small("pipeline").export(), machine="h100", keep_annotations=False, seconds=10.0)
    assert plan.seconds > 0


def test_json_says_what_the_plan_is(plan: meshbridge.SearchedPlan) -> None:
    found = json.loads(plan.to_json())
    assert found["seconds"] == plan.seconds
    assert found["peak_bytes"] == plan.peak_bytes
    assert {leaf["name"]: leaf["sharding"] for leaf in found["in_shardings"]}["batch['x']"] == list(
        map(list, plan.arguments[-2].sharding)
    )


def test_the_gap_is_between_what_was_found_and_what_no_plan_is_below(plan: meshbridge.SearchedPlan) -> None:
    assert 0 < plan.bound_seconds <= plan.seconds
    assert plan.gap == pytest.approx(1 - plan.bound_seconds / plan.seconds)


def test_a_program_that_cuts_an_axis_is_annotated_along_the_axes_that_it_names() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def heads(x: Any, w: Any) -> Any:
        return jnp.tanh(x.reshape(2, 2, -1).sum(2)), jnp.tanh(x @ w)

    x = jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    given = x, jax.ShapeDtypeStruct((4096, 65536), jnp.float32)
    plan = meshbridge.search(jax.jit(heads), *given, machine="h100")
    assert plan.in_shardings[0] == P("model")
    assert plan.in_shardings[1] != P()
    report = meshbridge.report(plan.annotated, machine=plan.machine)
    assert [leaf.sharding for leaf in report.arguments] == [leaf.sharding for leaf in plan.arguments]
    assert report.seconds == pytest.approx(plan.seconds)


def test_a_mesh_that_only_dropped_annotations_name_is_dropped_with_them() -> None:
    """JAX declares a mesh of one device for arguments without a sharding, here the counter of the optimizer's state."""
    rows = NamedSharding(mesh_of(4, 2), P("data"))
    counted = jax.jit(lambda count, x: (count + 1, x.sum()), in_shardings=(None, rows))
    plan = meshbridge.search(
        counted, jnp.zeros((), jnp.int32), f32(64, 64), machine="h100", keep_annotations=False, seconds=UNLIMITED
    )
    assert plan.mesh == {"data": 4, "model": 2}
