"""Where collectives come from: modules, phases and lines of the user's source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.analysis.origins import Origin, Phases, modules_of, origins_of
from meshbridge.cost.by_module import by_module
from meshbridge.cost.communication import Collective
from meshbridge.dialect import assembly
from meshbridge.ir.locations import (
    Member,
    SourceLocation,
    Trail,
    combined_location,
    members,
    reason_at,
    requester_at,
    trail_at,
    with_reason,
    without_reason,
)
from meshbridge.ir.mlir import MeshError, context, ir, main_function
from meshbridge.reports import Report
from meshbridge.tools import cli
from tests.operations.differential import device_mesh

STACKS = [
    # linen: methods, modules that call themselves, checkpointing, scans over layers and recurrent cells
    (["jit(step)/jvp(LM)/Dense_1/dot_general"], ("LM", "Dense_1")),
    (["jit(step)/transpose(jvp(LM))/SelfAttention_0/SelfAttention_0/query/transpose"], ("LM", "SelfAttention_0", "query")),
    (["jit(step)/jvp(LM)/LM.head/embed.attend/dot_general"], ("LM", "embed")),
    (["jit(step)/transpose(jvp(LM))/jvp(LM)/checkpoint/last/Dense_1/transpose"], ("LM", "last", "Dense_1")),
    (
        ["jit(step)/jvp(LM)/while/body/closed_call", "checkpoint/rematted_computation/blocks/Dense_1/add"],
        ("LM", "blocks", "Dense_1"),
    ),
    (["jit(f)/jvp(R)/RNN_0/while/body/closed_call", "LSTM_0.scan_fn/LSTM_0/tanh"], ("R", "RNN_0", "LSTM_0")),
    # haiku, einsums, and names that transformations stand around
    (["jit(f)/transpose(jvp(multi_head_attention))/...thd,...Thd->...htT/dot_general"], ("multi_head_attention",)),
    (["jit(f)/jvp(mlp)/linear_0/add"], ("mlp", "linear_0")),
    # older JAX, and what JAX calls by itself
    (["jit(f)/jit(main)/jvp(LM)/Dense_0/jit(_where)"], ("LM", "Dense_0")),
    (["jit(f)/jvp(LM)/cond/branch_1_fun/Dense_0/mul"], ("LM", "Dense_0")),
    (["jit(f)/jvp(jit(take_along_axis))"], ()),
    (["jit(f)/transpose(jvp(LM))/custom_vjp_call/Norm_0/reduce_sum"], ("LM", "Norm_0")),
    # a module may be called what JAX calls the parts of a loop
    (["jit(f)/jvp(LM)/body/add"], ("LM", "body")),
    (["jit(f)/add"], ()),
    ([], ()),
]


@pytest.mark.parametrize(("stacks", "modules"), STACKS)
def test_modules_of_name_stacks(stacks: list[str], modules: tuple[str, ...]) -> None:
    assert modules_of(Trail(tuple(stacks), ())) == modules


def test_functions_stand_for_modules() -> None:
    """Equinox names the classes of its layers, nnx nothing: then the user's functions say where one is."""
    called = ("Linear.__call__", "Block.__call__", "Model.encode", "train.<locals>.loss", "train.<locals>.step", "main")
    library = "/venv/lib/python3.11/site-packages/equinox/nn/_linear.py"
    lines = tuple(SourceLocation("model.py" if at else library, at + 1, 1, name) for at, name in enumerate(called))
    stacks = ("jit(step)/jvp(vmap(vmap(eqx.nn.MLP)))/eqx.nn.Linear/dot_general",)
    assert modules_of(Trail(stacks, lines)) == ("loss()", "Model.encode()", "Block", "eqx.nn.MLP", "eqx.nn.Linear")
    assert modules_of(Trail(("jit(step)/add",), lines[-2:])) == ()
    twice = (*lines[1:], *lines[3:])  # as JAX repeats the calls around a loop
    assert modules_of(Trail(("jit(step)/jvp()/while/body/mul",), twice)) == ("loss()", "Model.encode()", "Block")


@pytest.mark.parametrize(
    "path",
    [
        "/home/u/.venv/lib/python3.12/site-packages/flax/linen/linear.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "C:\\envs\\jax\\Lib\\site-packages\\haiku\\basic.py",
        "/usr/lib/python3.11/functools.py",
        "<frozen importlib._bootstrap>",
    ],
)
def test_the_users_line_is_outside_of_packages(path: str) -> None:
    inner, outer = SourceLocation(path, 1, 1, "f"), SourceLocation("/home/u/lib/model.py", 2, 2, "g")
    assert inner.is_library
    assert not outer.is_library
    assert Trail((), (inner, outer)).user_line == outer
    assert Trail((), (inner,)).user_line == inner
    assert Trail((), ()).user_line == SourceLocation()


def test_the_users_line_is_within_the_compiled_function() -> None:
    """A trainer that is installed is the user's code, where nothing outside of packages is compiled; what calls it is not."""
    package = "/venv/lib/python3.12/site-packages"
    calls = [
        (f"{package}/flax/nnx/linear.py", "Linear.__call__"),
        (f"{package}/trainer/layers.py", "Block.__call__"),
        (f"{package}/trainer/train.py", "loss"),
        (f"{package}/trainer/train.py", "make.<locals>.step"),
        (meshbridge.ir.locations.__file__, "lower"),
        ("/home/u/run.py", "main"),
    ]
    lines = tuple(SourceLocation(file, number, 1, name) for number, (file, name) in enumerate(calls, 1))
    compiled = Trail(("jit(step)/jvp()/dot_general",), lines)
    assert compiled.user_line == lines[1]
    assert modules_of(compiled) == ("loss()", "Block")
    assert Trail(("jit(other)/add",), lines).user_line == lines[5], "the compiled function is not among the calls"
    assert Trail(("jit(step)/add",), lines[:4]).user_line == lines[1]
    model = SourceLocation("/home/u/model.py", 7, 1, "Model.__call__")
    assert Trail(("jit(step)/add",), (*lines[:2], model, *lines[3:])).user_line == model


def _location(stack: str, line: int, file: str = "model.py") -> ir.Location:
    return ir.Location.name(stack, ir.Location.name("loss", ir.Location.file(file, line, 5)))


def test_locations_keep_what_travels_together() -> None:
    with context():
        first, second = _location("jit(f)/LM/a/add", 1), _location("jit(f)/LM/b/add", 2)
        one = with_reason('it "needs"\\ that', first, "chosen here: é")
        both = combined_location("2 in one", "you", [Member(second, 64), Member(one, 32), Member(second, 32)])
        op = ir.Operation.create("stablehlo.constant", loc=both)
        assert (reason_at(op), requester_at(op)) == ("2 in one", "you")
        assert [(part.location, part.weight) for part in members(both)] == [(second, 0.75), (first, 0.25)]
        assert without_reason(both) == second
        assert without_reason(one) == first == without_reason(first)
        more = combined_location("3 in one", "", [Member(both, 96), Member(_location("jit(f)/c", 3), 32)])
        assert [part.weight for part in members(more)] == [0.5625, 0.1875, 0.25]
        origins = origins_of(ir.Operation.create("stablehlo.constant", loc=more), Phases())
        assert [(origin.modules, origin.location.line, origin.share) for origin in origins] == [
            (("LM", "b"), 2, 0.5625),
            (("LM", "a"), 1, 0.1875),
            (("loss()",), 3, 0.25),
        ]
        unicode = trail_at(_location("jit(f)/Größe/add", 4, "/home/jürgen/model.py"))
        assert unicode.user_line.file == "/home/jürgen/model.py"
        assert modules_of(unicode) == ("Größe",)


def test_phases_follow_values() -> None:
    """What a derivative depends on is before it, whatever JAX calls it; the rest outside is the update."""
    text = """
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = stablehlo.abs %x : tensor<8xf32> loc("jit(f)/abs"("f"("m.py":1:1)))
        %1 = stablehlo.sine %0 : tensor<8xf32> loc("jit(f)/jvp(LM)/sin"("f"("m.py":2:1)))
        %2 = stablehlo.cosine %1 : tensor<8xf32> loc("jit(f)/transpose(jvp(LM))/cos"("f"("m.py":3:1)))
        %3 = stablehlo.negate %2 : tensor<8xf32> loc("jit(f)/neg"("f"("m.py":4:1)))
        %4 = stablehlo.exponential %x : tensor<8xf32> loc("jit(f)/exp"("f"("m.py":5:1)))
        %5 = stablehlo.tanh %1 : tensor<8xf32> loc("jit(f)/transpose(jvp(LM))/rematted_computation/tanh"("f"("m.py":6:1)))
        %6 = stablehlo.add %3, %4 : tensor<8xf32> loc("jit(f)/abs"("f"("m.py":1:1)))
        return %6 : tensor<8xf32> loc(unknown)
      }"""
    module = assembly.read(text, "phases.mlir", context())
    phases = Phases.read(module)
    ops = [view.operation for view in main_function(module).regions[0].blocks[0].operations][:-1]
    found = [phases.of(op.location) for op in ops]
    assert found == ["unknown", "forward", "backward", "update", "update", "rematerialised", "unknown"]  # two at one location


def _mlp(x: jax.Array, weights: Any) -> jax.Array:
    with jax.named_scope("MLP"):
        with jax.named_scope("up"):
            hidden = jnp.tanh(x @ weights["up"])
        with jax.named_scope("down"):
            return x + hidden @ weights["down"]


def _loss(params: Any, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(lambda x, layer: (jax.checkpoint(_mlp)(x, layer), None), x, params["layers"])
    return jnp.square(x @ params["head"]).mean()  # the head


def _step(params: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(_loss)(params, x)
    norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in jax.tree.leaves(grads)))  # the norm
    return {"loss": loss, "params": jax.tree.map(lambda p, g: p - 0.1 * g / norm, params, grads)}


def _line(text: str) -> int:
    source = __file__
    with open(source, encoding="utf-8") as lines:
        return next(number for number, line in enumerate(lines, 1) if text in line)


def _trained(**options: Any) -> Report:
    mesh = device_mesh((2, 4))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, "b"), (None, None, "b")))
    weights = {"layers": {"up": columns, "down": rows}, "head": rows}
    shapes = {"layers": {"up": (3, 64, 256), "down": (3, 256, 64)}, "head": (64, 512)}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=lambda leaf: type(leaf) is tuple
    )
    jitted = jax.jit(_step, in_shardings=(weights, NamedSharding(mesh, PartitionSpec("a"))))
    return meshbridge.report(jitted, params, jax.ShapeDtypeStruct((16, 64), jnp.float32), **options)


@cache
def trained() -> Report:
    return _trained(machine="bytes")


def test_a_training_step_by_module_and_phase() -> None:
    """The scopes of a scan's body continue those of the loop, in each phase; what has none is where the user's function is."""
    origins = [origin for collective in trained().collectives for origin in collective.origins]
    found = {(origin.modules, origin.phase) for origin in origins}
    assert {modules for modules, _ in found} <= {(), ("_loss()",), ("MLP",), ("MLP", "up"), ("MLP", "down")}
    assert {phase for modules, phase in found if modules[:1] == ("MLP",)} >= {"forward", "backward"}
    assert {phase for modules, phase in found if not modules} == {"update"}
    assert {origin.location.file for origin in origins} == {__file__}
    assert any(origin.location.line == _line("# the head") for origin in origins)
    assert any(origin.location.line == _line("# the norm") and origin.phase == "update" for origin in origins)
    assert all(origin.scope.startswith("jit(_step)") for origin in origins)
    for collective in trained().collectives:
        assert sum(origin.share for origin in collective.origins) == pytest.approx(1)


def test_the_tree_of_modules_has_all_bytes() -> None:
    report = trained()
    whole = report.modules
    assert whole.wire_bytes == pytest.approx(report.wire_bytes)
    assert whole.share == pytest.approx(1)
    for module in whole.walk():
        assert module.wire_bytes == pytest.approx(module.own_bytes + sum(inner.wire_bytes for inner in module.modules))
        assert module.wire_bytes == pytest.approx(sum(module.by_phase.values()))
        assert module.share == pytest.approx(module.wire_bytes / report.wire_bytes)
        assert all(inner.path[:-1] == module.path for inner in module.modules)
        assert module.seconds is None
    assert any(module.path == ("MLP", "down") for module in whole.walk())


def test_modules_share_what_travels_together() -> None:
    def origin(path: tuple[str, ...], share: float) -> Origin:
        return Origin(path, "forward", SourceLocation(), "", share)

    both = Collective(
        "all_reduce", ("x",), 8, 100.0, 2, SourceLocation(), origins=(origin(("A",), 0.75), origin(("A", "b"), 0.25))
    )
    whole = by_module([both, Collective("all_gather", ("x",), 8, 0.0, 1, SourceLocation(), origins=(origin((), 1.0),))])
    assert (whole.wire_bytes, whole.own_bytes, whole.executions) == (200.0, 0.0, 3)
    (module,) = whole.modules
    assert (module.wire_bytes, module.own_bytes, module.executions) == (200.0, 150.0, 2)
    assert (module.modules[0].wire_bytes, module.modules[0].share) == (50.0, 0.25)
    assert by_module([]).share == 0.0


def test_time_on_a_machine() -> None:
    report = _trained(machine="h100:1x1x8")
    assert report.communication_seconds == pytest.approx(report.modules.seconds)
    assert report.communication_seconds == pytest.approx(sum(each.total_seconds or 0.0 for each in report.collectives))
    assert "time" in report.table("module").splitlines()[0].split()


def test_a_sum_belongs_to_what_made_it_partial() -> None:
    """The all-reduce of a gradient is the module's, although the update reads it."""
    mesh = device_mesh((2, 4))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((("a", "b"),), ()))

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("head"):
            return jnp.square(x @ w).sum()

    jitted = jax.jit(lambda w, x: w - jax.grad(loss)(w, x), in_shardings=(whole, rows), out_shardings=whole)
    report = meshbridge.report(jitted, jnp.zeros((8, 4)), jnp.zeros((4096, 8)), machine="bytes")
    sums = [each for each in report.collectives if "partial sum" in each.why]
    assert sums
    for origin in (origin for each in sums for origin in each.origins):
        assert (origin.modules, origin.phase, origin.share) == (("head",), "backward", 1.0)
        assert origin.location.line == _line("return jnp.square(x @ w).sum()")


def test_functions_that_are_called_twice_know_their_callers() -> None:
    """JAX compiles a jitted function once; what it sends belongs to each call."""
    mesh = device_mesh((2, 4))
    layer = jax.jit(lambda x: jnp.sin(x).sum(axis=0) + x)

    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope("first"):
            x = layer(x)
        with jax.named_scope("second"):
            return layer(x)

    rows = NamedSharding(mesh, PartitionSpec(("a", "b")))
    report = meshbridge.report(jax.jit(f, in_shardings=rows, out_shardings=rows), jnp.zeros((16, 8)))
    assert {origin.modules for each in report.collectives for origin in each.origins} == {("first",), ("second",)}
    assert {origin.phase for each in report.collectives for origin in each.origins} == {"forward"}


def test_combined_collectives_list_a_few_lines_and_count_the_others() -> None:
    def f(x: jax.Array) -> jax.Array:
        a, b, c = jnp.sin(x).sum(axis=0), jnp.cos(x).sum(axis=0), jnp.tan(x).sum(axis=0)  # three sums
        d = jnp.square(x).sum(axis=0)
        e = jnp.exp(x).sum(axis=0)
        g = jnp.tanh(x).sum(axis=0)
        return jnp.stack([a, b, c, d, e, g, jnp.log(x).sum(axis=0)])

    rows, whole = (NamedSharding(device_mesh((2, 4)), PartitionSpec(*spec)) for spec in ((("a", "b"),), ()))
    report = meshbridge.report(jax.jit(f, in_shardings=rows, out_shardings=whole), jnp.zeros((16, 48)))
    (why,) = {each.why.partition("; ")[0] for each in report.collectives if "in one" in each.why}
    first = _line("# three sums")
    lines = [f"test_origins.py:{first + offset}" for offset in (1, 2, 3)]
    assert why == f"7 collectives in one: test_origins.py:{first} (3 times), {', '.join(lines)} and 1 more"


def test_combined_collectives_keep_all_origins() -> None:
    mesh = device_mesh((2, 4))

    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        with jax.named_scope("one"):
            first = x.sum(axis=0)
        with jax.named_scope("two"):
            return first, y.sum(axis=0)

    rows, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((("a", "b"),), ()))
    report = meshbridge.report(
        jax.jit(f, in_shardings=(rows, rows), out_shardings=(whole, whole)), jnp.zeros((16, 96)), jnp.zeros((16, 32))
    )
    (collective,) = report.collectives
    first, second = (f"test_origins.py:{_line(text)}" for text in ("first = x.sum(axis=0)", "return first, y.sum(axis=0)"))
    assert collective.why.startswith(f"2 collectives in one: {first}, {second}; of the last: ")
    assert {(origin.modules, origin.share) for origin in collective.origins} == {(("one",), 0.75), (("two",), 0.25)}
    assert collective.origin is not None
    assert collective.origin.modules == ("one",)
    assert {module.path: module.wire_bytes for module in report.modules.modules} == {
        ("one",): collective.total_bytes * 0.75,
        ("two",): collective.total_bytes * 0.25,
    }
    assert "and 1 more" in report.table()


def _asked(function: Callable[..., Any], out: Any) -> set[str]:
    mesh = device_mesh((2, 4))
    rows = NamedSharding(mesh, PartitionSpec("a"))
    shardings = {} if out is None else {"out_shardings": jax.tree.map(lambda spec: NamedSharding(mesh, spec), out)}
    exported = export.export(jax.jit(function, in_shardings=rows, **shardings))(jnp.zeros((16, 32)))
    return {each.asked for each in meshbridge.report(exported, machine="bytes").collectives}


def test_who_asked() -> None:
    columns = NamedSharding(device_mesh((2, 4)), PartitionSpec(None, "a"))

    def constrained(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.with_sharding_constraint(jnp.cos(x), columns))  # the constraint

    assert _asked(constrained, None) == {f"your constraint at test_origins.py:{_line('# the constraint')}"}
    assert _asked(lambda x: {"y": jnp.tanh(x)}, {"y": PartitionSpec(None, "b")}) == {"your sharding of result['y']"}
    assert _asked(lambda x: jnp.tanh(x @ x.T) @ x, PartitionSpec("a")) == {
        "chosen here; next best: all-to-all operand 0, reduce-scatter the result, +256 B"
    }


def test_arguments_and_results_have_names() -> None:
    report = trained()
    names = {each.name for each in report.arguments}
    assert names == {"params['head']", "params['layers']['down']", "params['layers']['up']", "x"}
    assert report.results[0].name == "result['loss']"
    assert "result['params']['layers']['up']" in {each.name for each in report.results}
    unnamed = assembly.read("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", "a", context())
    assert [each.name for each in (*meshbridge.report(unnamed).arguments, *meshbridge.report(unnamed).results)] == ["", ""]


@pytest.mark.parametrize("by", ["collective", "module", "line"])
def test_tables(by: Any) -> None:
    report = trained()
    text = report.table(by)
    assert "on the wire per device and step" in text
    if by == "line":
        assert f"test_origins.py:{_line('# the norm')}" in text
    else:
        assert "the program" in text
        assert any(line.split()[0] == "MLP" for line in text.splitlines() if line.strip())


def test_a_module_alone_in_another_shares_its_row() -> None:
    def origin(*path: str) -> tuple[Origin]:
        return (Origin(path, "forward", SourceLocation(), "", 1.0),)

    at = ("all_reduce", ("x",), 8, 100.0, 1, SourceLocation())
    paths = (("A", "b", "c"), ("A", "b", "d", "e"), ("F",))
    report = replace(trained(), collectives=tuple(Collective(*at, origins=origin(*path)) for path in paths))
    names = [line[:9].rstrip() for line in report.table("module").splitlines()[1:6]]
    assert names == ["the progr", "  A/b", "    c", "    d/e", "  F"]


def test_tables_of_nothing() -> None:
    """A program that sends nothing has no modules."""
    module = assembly.read("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", "a", context())
    report = meshbridge.report(module)
    assert (report.modules.wire_bytes, report.modules.modules) == (0, ())
    for by in ("collective", "module", "line"):
        lines = report.table(by).splitlines()  # type: ignore[arg-type]
        assert lines[0] == "nothing is sharded: the program names no mesh, and runs on one device"
    with pytest.raises(MeshError, match="by is 'layer', expected one of collective, module, line"):
        report.table("layer")  # type: ignore[arg-type]


def test_a_program_that_came_partitioned_keeps_its_origins(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
      mesh.mesh @m(shape = 8)
      func.func @main(%x: tensor<8xf32> {meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m,
                                         meshbridge.split_axes = #mesh.axisarray<[[]]>}) -> tensor<8xf32> {
        %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32> loc("jit(f)/jvp(LM)/add"("f"("m.py":2:1)))
        return %0 : tensor<8xf32>
      }"""
    path = tmp_path / "partitioned.mlir"
    path.write_text(text)
    assert cli.main(["report", str(path), "--by", "module"]) == 0
    assert "LM" in capsys.readouterr().out
    assert cli.main(["report", str(path), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["modules"]["modules"][0]["path"] == ["LM"]
    assert read["collectives"][0]["origins"][0]["location"]["line"] == 2
