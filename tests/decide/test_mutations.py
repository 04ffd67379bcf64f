"""Mutations: operations that are named take new sharding options, and the program still computes what it did."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import Mutation
from meshbridge.decide.mutation_script import read_mutations
from meshbridge.dialect.attributes import axis_array
from meshbridge.dialect.ops import OPTION, ShardingOp
from meshbridge.ir.mlir import MeshError, ParseError, walk_all
from meshbridge.read.formats import Program
from meshbridge.tools import mesh_opt

DOT = "stablehlo.dot_general"


@pytest.fixture(scope="module")
def split(mesh: jax.sharding.Mesh) -> Callable[..., NamedSharding]:
    return lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))


def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    with jax.named_scope("first"):
        hidden = jnp.tanh(x @ up)
    with jax.named_scope("second"):
        return hidden @ down


@pytest.fixture(scope="module")
def exported(split: Callable[..., NamedSharding]) -> export.Exported:
    jitted = jax.jit(mlp, in_shardings=(split("data"), None, None))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 32), (32, 64), (64, 32))]
    return export.export(jitted)(*shapes)


@pytest.fixture(scope="module")
def artifact(exported: export.Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mutations") / "mlp.jax_export"
    path.write_bytes(exported.serialize())
    return path


def options_of(program: Program) -> dict[int, Any]:
    """The options that a mutated program gives, by the index of the operation."""
    return {each.index: each.option for each in meshbridge.operations(program) if each.option is not None}


def test_operations_are_listed_with_their_loops(exported: export.Exported) -> None:
    first, tanh, second = meshbridge.operations(exported)
    assert [each.name for each in (first, tanh, second)] == [DOT, "stablehlo.tanh", DOT]
    assert [(loop.size, loop.reduction) for loop in first.loops] == [(16, ""), (64, ""), (32, "sum")]
    assert first.scope.endswith("first/dot_general")
    assert first.location.file == __file__
    assert (first.option, [each.index for each in (first, tanh, second)]) == (None, [0, 1, 2])
    assert next(first.options()) == ((), (), ())
    assert len(list(first.options())) == 16  # each of two axes on one of three loops, or on none


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        ({"op": DOT}, {0, 2}),
        ({"op": DOT, "index": 1}, {2}),
        ({"index": 2}, {2}),
        ({"location": "second"}, {2}),
        ({"location": "second/dot_general"}, {2}),
        ({"location": "first", "op": DOT}, {0}),
        ({"location": "dot_general", "index": 0}, {0}),
    ],
)
def test_names_select_operations(selected: dict[str, Any], expected: set[int], exported: export.Exported) -> None:
    mutated = meshbridge.mutate(exported, mutations=[Mutation([["data"], [1]], **selected)])
    assert options_of(mutated) == dict.fromkeys(expected, ((0,), (1,)))


def test_a_source_line_selects_operations(exported: export.Exported) -> None:
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "hidden @ down" in text)
    for location in (f"test_mutations.py:{line}", f"{__file__}:{line}"):
        assert set(options_of(meshbridge.mutate(exported, mutations=[Mutation([[0]], location=location)]))) == {2}


def test_the_name_of_an_operation_selects_it() -> None:
    text = """
        mesh.mesh @m(shape = 4)
        func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.tanh %a : tensor<8xf32> loc("mine")
          %1 = stablehlo.tanh %0 : tensor<8xf32>
          return %1 : tensor<8xf32>
        }"""
    from meshbridge.read import files

    program = files.parse_program(text.encode(), "named.mlir")
    assert options_of(meshbridge.mutate(program, mutations=[Mutation([[0]], location="mine")])) == {0: ((0,),)}


def test_mutations_add_up_and_the_last_one_counts(exported: export.Exported) -> None:
    once = meshbridge.mutate(exported, mutations=[Mutation([["data"], ["model"]], index=0)])
    again = meshbridge.mutate(once, mutations=[Mutation([[], [], ["model"]], index=2), Mutation([["model"]], index=0)])
    assert options_of(again) == {0: ((1,),), 2: ((), (), (1,))}
    assert options_of(once) == {0: ((0,), (1,))}  # what is given is left as it is


def test_what_is_decided_follows_the_mutation(exported: export.Exported) -> None:
    option = ((1,), (0,), ())  # nothing that anybody would choose
    mutated = meshbridge.mutate(exported, mutations=[Mutation(option, index=0)])
    decided = meshbridge.partition(mutated, emit="annotated").module
    given = [axis_array(op.attributes[OPTION]) for op in walk_all(decided) if op.name == DOT]
    assert given[0] == option
    assert meshbridge.report(mutated).wire_bytes > meshbridge.report(exported).wire_bytes


def test_a_program_whose_shardings_are_decided_is_mutated_at_one_operation(exported: export.Exported) -> None:
    start = meshbridge.mutate(exported, mutations=())
    decided = meshbridge.partition(start, emit="annotated")
    assert set(options_of(decided)) == {0, 1, 2}
    mutated = meshbridge.mutate(decided, mutations=[Mutation([[], ["model"], ["data"]], index=2)])
    assert options_of(mutated) == options_of(decided) | {2: ((), (1,), (0,))}
    arrays = [np.random.default_rng(0).standard_normal(aval.shape, np.float32) for aval in exported.in_avals]
    np.testing.assert_allclose(meshbridge.compile(mutated)(*arrays), mlp(*arrays), rtol=1e-4, atol=1e-4)
    assert meshbridge.report(mutated).wire_bytes > meshbridge.report(decided).wire_bytes


def test_a_mutated_program_is_still_an_artifact(exported: export.Exported, mesh: jax.sharding.Mesh) -> None:
    mutated = meshbridge.mutate(exported, mutations=[Mutation([["data"], ["model"]], index=0)])
    again = export.deserialize(bytearray(meshbridge.partition(mutated).serialize()))
    arrays = [np.random.default_rng(0).standard_normal(aval.shape, np.float32) for aval in exported.in_avals]
    placed = [jax.device_put(array, sharding) for array, sharding in zip(arrays, again.in_shardings_jax(mesh), strict=True)]
    np.testing.assert_allclose(jax.jit(again.call)(*placed), mlp(*arrays), rtol=1e-4, atol=1e-4)


def train(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1]) ** 2)

    return [weight - 0.1 * gradient for weight, gradient in zip(weights, jax.grad(loss)(weights), strict=True)]


def scanned(x: jax.Array, weights: jax.Array) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum(1)), x, weights)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def convolved(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), y.max((1, 2))


def indexed(x: jax.Array) -> tuple[jax.Array, ...]:
    y, z = jnp.sort(x, axis=1), jnp.cumsum(x, 0)
    taken = jnp.take(x, jnp.array([0, 3, 5]), axis=0)
    return y[:, ::2] + z[:, 1::2], jnp.concatenate([x, y], 0).reshape(-1), jnp.pad(x, ((1, 2), (0, 3)))[::-1], taken


def branching(x: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.cond(index > 0, lambda a: (a @ a.T).sum(0), lambda a: 2 * a.sum(1), x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "train": (train, ([(None, "model"), ()], ("data",)), ([(24, 12), (12, 6)], (12, 24))),
    "scanned": (scanned, (("data",), ()), ((8, 16), (3, 16, 16))),
    "attention": (attention, (("data",),) * 3, ((4, 6, 4, 8),) * 3),
    "convolved": (convolved, (("data",), ()), ((4, 8, 8, 3), (3, 3, 3, 6))),
    "indexed": (indexed, (("data",),), ((10, 8),)),
    "branching": (branching, (("data",), ()), ((8, 6), ())),
}
"""Functions, the shardings of their arguments, and shapes: also such as axes do not divide."""


def check_drawn_mutations(name: str, seeds: range, split: Callable[..., NamedSharding]) -> None:
    """Programs whose operations have been mutated at random compute what the unsharded program computes on one device."""
    function, specs, shapes = PROGRAMS[name]
    generator = np.random.default_rng(0)

    def array(shape: Any) -> Any:
        if isinstance(shape, list):
            return [array(each) for each in shape]
        return generator.standard_normal(shape).astype(np.float32) if shape else np.int32(1)

    def sharding(spec: Any) -> Any:
        return [sharding(each) for each in spec] if isinstance(spec, list) else split(*spec)

    arrays = [array(shape) for shape in shapes]
    jitted = jax.jit(function, in_shardings=tuple(map(sharding, specs)))
    expected = jax.tree.leaves(jax.jit(function)(*jax.device_put(arrays, jax.devices()[0])))
    operations = meshbridge.operations(jitted, *arrays)
    for seed in seeds:
        drawn = random.Random(seed)
        chosen = drawn.sample(operations, min(3, len(operations)))
        mutations = [Mutation(drawn.choice(list(each.options())), index=each.index) for each in chosen]
        mutated = meshbridge.mutate(jitted, *arrays, mutations=mutations)
        found = jax.tree.leaves(meshbridge.compile(mutated)(*arrays))
        for have, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-4, err_msg=str(mutations))


@pytest.mark.parametrize("name", PROGRAMS)
def test_mutated_programs_compute_the_same(name: str, split: Callable[..., NamedSharding]) -> None:
    check_drawn_mutations(name, range(2), split)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_more_mutated_programs_compute_the_same(name: str, split: Callable[..., NamedSharding]) -> None:
    check_drawn_mutations(name, range(2, 40), split)


@pytest.mark.parametrize("option", [[["data"]], [[], ["data"]], [["model"], ["data"]]])
def test_linear_operations_split_along_the_axes_of_their_partial_operands(
    option: list[list[str]], split: Callable[..., NamedSharding]
) -> None:
    """The gradient of a weight is a sum over the batch, which its transposition would leave to be reduced after it."""
    function, _, _ = PROGRAMS["train"]
    jitted = jax.jit(function, in_shardings=([split(None, "model"), split()], split("data")))
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal(shape, np.float32) for shape in ((24, 12), (12, 6))]
    x = generator.standard_normal((12, 24), np.float32)
    transposed = [each.index for each in meshbridge.operations(jitted, weights, x) if each.name == "stablehlo.transpose"]
    expected = train([jnp.asarray(weight) for weight in weights], jnp.asarray(x))
    for index in transposed:
        mutated = meshbridge.mutate(jitted, weights, x, mutations=[Mutation(option, index=index)])
        for have, want in zip(meshbridge.compile(mutated)(weights, x), expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


def test_operations_in_manual_computations_take_other_axes(mesh: jax.sharding.Mesh) -> None:
    rows = PartitionSpec("data")
    mapped = jax.shard_map(lambda x, w: jnp.tanh(x @ w), mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows,
                           axis_names={"data"})  # fmt: skip
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((8, 16), (16, 32))]
    jitted = jax.jit(mapped)
    product = next(each for each in meshbridge.operations(jitted, *arrays) if each.name == DOT)
    assert product.manual == {0}
    assert {axis for option in product.options() for axes in option for axis in axes} == {1}
    mutated = meshbridge.mutate(jitted, *arrays, mutations=[Mutation([[], ["model"]], index=product.index)])
    np.testing.assert_allclose(meshbridge.compile(mutated)(*arrays), np.tanh(arrays[0] @ arrays[1]), rtol=1e-4, atol=1e-4)
    with pytest.raises(MeshError, match='is in a manual computation along "data", expected an option along other axes'):
        meshbridge.mutate(jitted, *arrays, mutations=[Mutation([["data"]], index=product.index)])


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (Mutation([[0]]), "a mutation names no operation, expected op, location or index"),
        (Mutation([[0]], op="stablehlo.add"), "selects no operation: the program has stablehlo.dot_general, stablehlo.tanh"),
        (Mutation([[0]], location="third"), "the mutation of location third selects no operation"),
        (Mutation([[0]], op=DOT, index=2), "is beyond the 2 operations of that name and location"),
        (Mutation([[0]], index=-1), "is beyond the 3 operations"),
        (Mutation([["rows"]], index=0), 'found the axis \'rows\', expected "data", "model", or a number from 0 to 1'),
        (Mutation([[2]], index=0), "found the axis 2, expected"),
        (Mutation([[0], [0]], index=0), "its loops are parallel 16, parallel 64, reduction_sum 32; an axis can split one loop"),
        (Mutation([[0], [], [], []], index=0), "has a sharding option for 4 loops, but it has 3"),
        (Mutation([[0]], index=0, result=0, operand=0), "names a result and an operand, expected one of them"),
        (Mutation([[0]], index=0, result=1), "has 1 results, but the mutation names result 1, from 0"),
        (Mutation([[0]], index=0, operand=-1), "has 2 operands, but the mutation names operand -1, from 0"),
        (Mutation([[], [], [], [0]], index=0, result=0), "4 lists of axes, expected at most 3 with that of a partial sum"),
        (Mutation([[0], [0]], index=0, result=0), "cannot have result 0 sharded as [[0], [0]]: mesh axis duplicated"),
    ],
)
def test_bad_mutations(mutation: Mutation, message: str, exported: export.Exported) -> None:
    with pytest.raises(MeshError) as error:
        meshbridge.mutate(exported, mutations=[mutation])
    assert message in str(error.value)


def test_programs_without_operations_to_mutate(exported: export.Exported) -> None:
    plain = export.export(jax.jit(jnp.tanh))(jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(MeshError, match="the program has no mesh"):
        meshbridge.operations(plain)
    partitioned = meshbridge.partition(exported, emit="mesh")
    with pytest.raises(MeshError, match="partitioned already"):
        meshbridge.mutate(partitioned, mutations=[Mutation([[0]], index=0)])


# The script of mesh-opt.

HANDLES = """
module attributes {transform.with_named_sequence} {
  "transform.named_sequence"() <{sym_name = "__transform_main", function_type = (!transform.any_op) -> ()}> ({
  ^bb0(%module: !transform.any_op):
    %dots = "transform.structured.match"(%module) <{ops = ["stablehlo.dot_general"]}> : (!transform.any_op) -> !transform.any_op
    "transform.mesh.mutate"(%dots) {option = [[0], [1]], index = 0} : (!transform.any_op) -> ()
    "transform.mesh.mutate"() {option = #mesh.axisarray<[[0], [], [1]]>, location = "second"} : () -> ()
    "transform.yield"() : () -> ()
  }) : () -> ()
}
"""


def test_scripts_are_read() -> None:
    first, second = read_mutations(HANDLES, "script.mlir")
    assert first == Mutation(((0,), (1,)), DOT, index=0, written="script.mlir:6:5")
    assert second == Mutation(((0,), (), (1,)), location="second", written="script.mlir:7:5")
    (named,) = read_mutations('"transform.mesh.mutate"() {option = [["data"], []], op = "a.b"} : () -> ()', "s")
    assert named.option == (("data",), ())


PRETTY = """
module attributes {transform.with_named_sequence} {  // as transform.named_sequence has it
  transform.named_sequence @__transform_main(
      %module: !transform.any_op {transform.readonly}, %other: !transform.any_op) attributes {"transform.yield"} {
    %dots = transform.structured.match ops{["stablehlo.dot_general",
        "stablehlo.tanh"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.mesh.mutate %dots, [[0], [1]] {location = "transform.mesh.mutate"} : !transform.any_op
    %dot = transform.structured.match ops{["stablehlo.dot_general"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.mesh.mutate %dot operand 1, [["data"]] {index = 0} : (!transform.any_op) -> ()
    transform.mesh.mutate #mesh.axisarray<[[0], [], [1]]> {location = "second"}
    transform.mesh.mutate result 0, [[], [], ["data"]] {index = 2}
    transform.yield
  }
}
"""


def test_scripts_are_read_in_their_own_syntax() -> None:
    """As in generic form, comments, strings and names of attributes left alone, and lines where they were."""
    both = [Mutation(((0,), (1,)), op, "transform.mesh.mutate", written="script.mlir:7:5") for op in (DOT, "stablehlo.tanh")]
    assert read_mutations(PRETTY, "script.mlir") == (
        *both,
        Mutation((("data",),), DOT, index=0, operand=1, written="script.mlir:9:5"),
        Mutation(((0,), (), (1,)), location="second", written="script.mlir:10:5"),
        Mutation(((), (), ("data",)), index=2, result=0, written="script.mlir:11:5"),
    )
    (alone,) = read_mutations("transform.sequence failures(propagate) {\n^bb0(%a: !transform.any_op):\n"
                              "  transform.mesh.mutate [[0]] {index = 0}\n}", "s")  # fmt: skip
    assert alone == Mutation(((0,),), index=0, written="s:3:3")


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation([["data"], ["model"]], op=DOT, index=0, result=0),
        Mutation([["model"], ["data"]], op=DOT, index=0, result=0),
        Mutation([[], [], ["model"]], op=DOT, index=0, result=0),
        Mutation([[], [], ["model"]], op=DOT, index=1, result=0),
        Mutation([["model"]], op=DOT, index=1, operand=1),
        Mutation([["model", "data"]], op="stablehlo.tanh", operand=0),
        Mutation([[]], op="stablehlo.tanh", operand=0),
    ],
    ids=str,
)
def test_tensors_take_annotations(mutation: Mutation, exported: export.Exported) -> None:
    """The decision has the annotation, and the program computes what it did."""
    mutated = meshbridge.mutate(exported, mutations=[mutation])
    decided = meshbridge.partition(mutated, emit="annotated").module
    of_kind = [op for op in walk_all(decided) if op.name == mutation.op][mutation.index or 0]
    if mutation.result is not None:
        (use,) = of_kind.results[mutation.result].uses
        shard = use.owner.operation
    else:
        assert mutation.operand is not None
        shard = of_kind.operands[mutation.operand].owner.operation
    assert shard.name == "mesh.shard"
    found = ShardingOp(shard.operands[1].owner.operation).value.padded(2)
    numbers = {"data": 0, "model": 1}
    *split, partial = (tuple(numbers[str(axis)] for axis in axes) for axes in [*mutation.option, [], [], []][:3])
    assert (found.split_axes, found.partial_axes) == (tuple(split), partial)
    arrays = [np.random.default_rng(0).standard_normal(aval.shape, np.float32) for aval in exported.in_avals]
    np.testing.assert_allclose(meshbridge.compile(mutated)(*arrays), mlp(*arrays), rtol=1e-4, atol=1e-4)


def test_the_last_annotation_of_a_tensor_counts(exported: export.Exported) -> None:
    once = [Mutation([["data"]], op=DOT, index=0, result=0), Mutation([["data"]], op="stablehlo.tanh", operand=0)]
    again = [Mutation([["model"]], op=DOT, index=0, result=0), Mutation([[]], op="stablehlo.tanh", operand=0)]
    mutated = meshbridge.mutate(meshbridge.mutate(exported, mutations=once), mutations=again)
    assert str(mutated.module) == str(meshbridge.mutate(exported, mutations=again).module)


def test_mesh_opt_prints_metrics_and_the_mutated_program(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, output = tmp_path / "script.mlir", tmp_path / "out.mlir"
    script.write_text(HANDLES)
    assert mesh_opt.main([str(artifact), "--mutate", str(script), "--json", "-o", str(output)]) == 0
    found = json.loads(capsys.readouterr().out)
    before, after = meshbridge.load(str(artifact)), meshbridge.load(str(output))
    for side, program in (("before", before), ("after", after)):
        report = meshbridge.report(program)
        assert found[side]["wire_bytes"] == report.wire_bytes == sum(found[side]["by_kind"].values())
        assert found[side]["peak_bytes"] == report.peak_bytes
        assert report.redundant_work is not None
        assert found[side]["redundant_flops"] == 8 * report.redundant_work.contractions
    assert options_of(after) == {0: ((0,), (1,)), 2: ((0,), (), (1,))}
    # All four rows of "model" computed both products as a whole: three times 2 * 2 * 16 * 32 * 64 too many.
    assert (found["before"]["redundant_flops"], found["after"]["redundant_flops"]) == (3 * 2 * 2 * 16 * 32 * 64, 0)
    assert found["after"]["by_kind"] == {"all_reduce": 8 * 32 * 4 * 2 * 3 / 4}

    assert mesh_opt.main([str(artifact), "--mutate", str(script), "--sharding-refinement", "--mesh-spmdization"]) == 0
    out, err = capsys.readouterr()
    assert "mesh.all_reduce" in out
    assert err.split()[:4] == ["metric", "before", "after", "change"]
    assert any(line.startswith("redundant FLOPs, all devices") and line.endswith("-100.0%") for line in err.splitlines())
    assert any(line.startswith("  all_reduce") and line.endswith("new") for line in err.splitlines())


def test_mesh_opt_prints_operations(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mesh_opt.main([str(artifact), "--print-operations"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["index", "op", "loops", "option", "location", "name"]
    assert rows[0].split()[:6] == ["0", DOT, "16", "64", "sum:32", "-"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("", "script.mlir: error: expected an op 'transform.mesh.mutate', found none"),
        ("func.func @f() {", "script.mlir:1:"),
        ('"transform.mesh.mutate"() {index = 0} : () -> ()', "script.mlir:1:1: error: 'transform.mesh.mutate' op expected"),
        ('"transform.mesh.mutate"() {option = 3, index = 0} : () -> ()', "expected an option as in [[0], []]"),
        ('"transform.mesh.mutate"() {option = [[0.5]], index = 0} : () -> ()', "expected an option as in [[0], []]"),
        ('"transform.mesh.mutate"() {option = [[0]], line = 0} : () -> ()', "found the attribute 'line', expected option, op"),
        ('"transform.mesh.mutate"() {option = [[0]], index = "a"} : () -> ()', "expected a number as 'index'"),
        ('"transform.mesh.mutate"() {option = [[0]], op = 3} : () -> ()', "expected a text as 'op'"),
        ("transform.tile %x", "script.mlir:1:1: error: found the op 'transform.tile', expected one of transform.mesh.mutate"),
        ("transform.mesh.mutate {index = 0}", "script.mlir:1:23: error: expected an option as in [[0], []], found '{'"),
        ("transform.mesh.mutate result 0 [[0]]", "script.mlir:1:32: error: expected ',', found '['"),
        ("transform.mesh.mutate %op, [[0]]", "script.mlir:1:23: error: use of undeclared SSA value name"),
        ("transform.structured.match interface{X} in %x", "script.mlir:1:28: error: expected 'ops', found 'interface'"),
        ("transform.mesh.mutate [[0]] {index = 0, result = 0, operand = 0}", "names a result and an operand, expected one"),
        (
            "transform.named_sequence @a() {\n}\ntransform.named_sequence @b() {\n}",
            "script.mlir:3:1: error: 'transform.named_sequence' op @b is a second sequence beside @a, expected one",
        ),
        ('"transform.tile"() : () -> ()', "found the op 'transform.tile', expected 'transform.mesh.mutate'"),
        (
            '"transform.mesh.mutate"() {option = [[7]], index = 0} : () -> ()',
            "script.mlir:1:1: error: the mutation of index 0 cannot be made\nerror: found the axis 7",
        ),
    ],
)  # fmt: skip
def test_bad_scripts(
    script: str, message: str, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.mlir").write_text(script)
    assert mesh_opt.main([str(artifact), "--mutate", "script.mlir", "-o", "out.mlir"]) == 1
    assert message in capsys.readouterr().err
    assert not Path("out.mlir").exists()


def test_options_that_need_a_script(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mesh_opt.main([str(artifact), "--json"]) != 0
    assert "--json has no effect without --mutate" in capsys.readouterr().err


def test_a_script_that_is_no_mlir() -> None:
    with pytest.raises(ParseError, match=r"script.mlir:1:5: error: expected operation name in quotes"):
        read_mutations("%a = 3", "script.mlir")


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    """From a batch that is sharded, the search finds the shardings of Megatron for both weights."""
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "search_by_hand.py"), run_name="__main__")
    assert "P('data', None), P(None, 'model'), P('model', None)" in capsys.readouterr().out.replace("PartitionSpec", "P")
