"""Composites with a sharding rule: split as a whole, then replaced by their bodies on shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.ir.mlir import context, parse, walk_all
from meshbridge.ops import sharding_rules
from tests.operations.differential import Spec, assert_close, device_mesh, run_sharded

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    """The rules that a test registers are gone after it."""
    with sharding_rules.USER_RULES.restored():
        yield


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def normalized(x: Any) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal: what it masks depends on positions, which a shard has to know."""
    scores = jnp.einsum("bshd,bthd->bhst", q, k) * 0.3
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)), scores, -1e9)
    return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v)


def rotated(x: Any) -> Any:
    return x * jnp.cos(jnp.arange(x.shape[0])[:, None] * jnp.arange(x.shape[1])[None] * 0.1)


def moments(x: Any, scale: Any) -> Any:
    return x.sum(0) * scale, x.astype(np.int32).sum(0)


def kinds_of(function: Function, operands: list[np.ndarray], specs: list[Spec], out: Any) -> list[str]:
    mesh = device_mesh((2, 4))
    placed = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (tuple(specs), out), is_leaf=lambda leaf: isinstance(leaf, Spec)
    )
    with jax.set_mesh(mesh):
        exported = jax.export.export(jax.jit(function, in_shardings=placed[0], out_shardings=placed[1]))(*operands)
    return [collective.kind for collective in meshbridge.report(exported, machine="bytes").collectives]


NEED_J = {"need_replication_factors": ["j"]}
SUM_J = {"reduction_factors": ["j"]}
ATTENTION = "b s h d, b t h d, b t h e -> b s h e"
QKV = [floats(4, 8, 4, 16), floats(4, 8, 4, 16) * 2, floats(4, 8, 4, 16) - 1]

CASES: dict[str, tuple[Function, str, dict[str, Any], list[np.ndarray], list[Spec], Any, list[str]]] = {
    "moves what must be whole": (
        normalized, "i j -> i j", NEED_J, [floats(8, 16)], [Spec("a", "b")], Spec("a", "b"), ["all_to_all", "all_to_all"]
    ),
    "groups of dimensions": (normalized, "... j -> ... j", NEED_J, [floats(8, 4, 16)], [Spec("a", "b")], Spec("a", "b"), []),
    "positions": (rotated, "s d -> s d", {}, [floats(8, 16)], [Spec("b", "a")], Spec("b", "a"), []),
    "reduction finished": (
        jnp.matmul, "i j, j k -> i k", SUM_J, [floats(8, 16), floats(16, 24)], [Spec("a", "b"), Spec("b")], Spec("a"),
        ["all_reduce"],
    ),
    "reduction scattered": (
        jnp.matmul, "i j, j k -> i k", SUM_J, [floats(8, 16), floats(16, 24)], [Spec("a", "b"), Spec("b")], Spec("a", "b"),
        ["reduce_scatter"],
    ),
    "largest of shards": (
        lambda x: x.max(1), "i j -> i", {"reduction_factors": {"j": "max"}}, [floats(8, 16)], [Spec("a", "b")], Spec("a"),
        ["all_reduce"],
    ),
    "several results and a scalar": (
        moments, "j i, -> i, i", SUM_J, [floats(16, 8) * 9, np.float32(2)], [Spec("b", "a"), Spec()], (Spec("a"), Spec("a")),
        ["all_reduce", "all_reduce"],
    ),
    "attention by heads": (
        attention, ATTENTION, {"need_replication_factors": ["s", "t"]}, QKV, [Spec("a", None, "b")] * 3, Spec("a", None, "b"), []
    ),
    "merged dimensions": (
        lambda x: x.reshape(-1, x.shape[-1]), "a b c -> (a b) c", {}, [floats(4, 4, 8)], [Spec("b", "a")], Spec(("b", "a")), []
    ),
    "permutation": (
        lambda x: jnp.cumsum(x, 0), "i j -> i j", {"permutation_factors": ["i"]}, [floats(16, 64)], [Spec("b", "a")],
        Spec("b", "a"), ["all_to_all", "all_to_all"],
    ),
}  # fmt: skip
"""Body, rule, its keywords, operands, how they and the results lie, and what is then sent."""


@pytest.mark.parametrize("case", CASES)
def test_split_as_the_rule_says(case: str) -> None:
    body, rule, keywords, operands, specs, out, kinds = CASES[case]
    meshbridge.register_sharding_rule("test.body", rule, **keywords)
    composite = lax.composite(body, name="test.body")
    assert kinds_of(composite, operands, specs, out) == kinds
    assert_close(*run_sharded(composite, operands, device_mesh((2, 4)), specs, out, compare_with=body))


@pytest.mark.parametrize("case", CASES)
def test_any_shardings(case: str) -> None:
    """The rule says how the composite is split, not how its operands lie."""
    body, rule, keywords, operands, _, out, _ = CASES[case]
    meshbridge.register_sharding_rule("test.body", rule, **keywords)
    for axes in ((), ("b", "a")):
        specs = [Spec(*[axes if size % 8 == 0 else None for size in operand.shape[:1]]) for operand in operands]
        got = run_sharded(lax.composite(body, name="test.body"), operands, device_mesh((2, 4)), specs, out, compare_with=body)
        assert_close(*got)


def test_without_a_rule_it_is_inlined() -> None:
    """Then a dimension may be split that the rule above keeps whole, for less."""
    composite = lax.composite(normalized, name="test.body")
    x = floats(8, 512)
    assert "all_to_all" not in kinds_of(composite, [x], [Spec("a", "b")], Spec("a", "b"))
    assert_close(*run_sharded(composite, [x], device_mesh((2, 4)), [Spec("a", "b")], Spec("a", "b"), compare_with=normalized))


def test_an_axis_in_two() -> None:
    """Two heads on four devices: the axis is cut, as for a reshape, where a rule has two factors along a dimension."""
    meshbridge.register_sharding_rule("test.body", "b (h e) -> b h e")

    def body(x: Any) -> Any:
        return x.reshape(64, 2, 64) * 2

    def summed(split: Function) -> Function:
        return lambda x: jnp.exp(split(x)).sum((1, 2))

    function, operands, specs = summed(lax.composite(body, name="test.body")), [floats(64, 128)], [Spec("a", "b")]
    assert kinds_of(function, operands, specs, Spec("a")) == ["all_reduce"]
    assert_close(*run_sharded(function, operands, device_mesh((2, 4)), specs, Spec("a"), compare_with=summed(body)))


def test_uneven_reduction() -> None:
    """Three devices hold three elements of ten, the last one holds one; what pads its shard does not count."""
    meshbridge.register_sharding_rule("test.body", "i j -> i", **SUM_J)
    composite = lax.composite(lambda x: jnp.exp(x).sum(1), name="test.body")

    def function(x: Any) -> Any:
        return composite(constrained(x @ x.T, Spec("a", "b")))

    x = floats(10, 8) * 0.2
    mesh = device_mesh((2, 4))
    assert "all_reduce" in kinds_of(function, [x], [Spec("a")], Spec("a"))
    assert_close(*run_sharded(function, [x], mesh, [Spec("a")], Spec("a"), compare_with=lambda x: jnp.exp(x @ x.T).sum(1)))


def test_a_rule_that_promises_too_much() -> None:
    """The body of each shard needs its whole row, which the rule denies; what the body fetches makes the numbers right."""
    meshbridge.register_sharding_rule("test.body", "i j -> i j")
    composite = lax.composite(normalized, name="test.body")
    assert kinds_of(composite, [floats(8, 16)], [Spec("a", "b")], Spec("a", "b"))
    assert_close(*run_sharded(composite, [floats(8, 16)], device_mesh((2, 4)), [Spec("a", "b")], compare_with=normalized))


def test_a_reduction_that_is_none() -> None:
    """One is added to each shard's part of the sum: as the rule has it four times, as the body has it once."""
    meshbridge.register_sharding_rule("test.body", "i j, j k -> i k", **SUM_J)

    def body(x: Any, y: Any) -> Any:
        return x @ y + 1

    operands, specs = [floats(8, 16), floats(16, 12)], [Spec("a", "b"), Spec("b")]
    assert_close(*run_sharded(lax.composite(body, name="test.body"), operands, device_mesh((2, 4)), specs, compare_with=body))


REDUCED: dict[str, Function] = {
    "sum": lambda x: x.sum(1),
    "largest": lambda x: x.max(1),
    "product": lambda x: x.prod(1),
    "mean": lambda x: x.mean(1),
    "negative": lambda x: -x.sum(1),
    "first": lambda x: x[:, 0],
    "two": lambda x: x.max(1) * 2 + x.sum(1),
}


@pytest.mark.parametrize("kind", ["sum", "max", "min", "product", "average"])
@pytest.mark.parametrize("body", REDUCED)
def test_kinds_of_reductions(body: str, kind: str) -> None:
    """Of whatever kind the rule says that the reduction is, each of the body's own is finished once."""
    meshbridge.register_sharding_rule("test.body", "i j -> i", reduction_factors={"j": kind})
    composite = lax.composite(REDUCED[body], name="test.body")
    operands, specs = [floats(8, 16)], [Spec("a", "b")]
    assert kinds_of(composite, operands, specs, Spec("a")) == ["all_reduce"] * (2 if body == "two" else 1)
    assert_close(*run_sharded(composite, operands, device_mesh((2, 4)), specs, Spec("a"), compare_with=REDUCED[body]))


def in_loop(norm: Function) -> Function:
    return lambda x, w: lax.scan(lambda h, each: (norm(h @ each), None), x, w)[0]


def in_branches(norm: Function) -> Function:
    return lambda x, w: lax.cond(x.sum() > w.sum(), norm, lambda y: norm(norm(y * 2)), x)


def several_times(norm: Function) -> Function:
    return lambda x, w: norm(norm(x) @ w[0]) + norm(x) + norm(x.T).T


def padded(norm: Function) -> Function:
    """Six rows on four devices."""
    return lambda x, w: 2 * norm(constrained(x[:6] @ w[0], Spec("b", "a")))


def manual(norm: Function) -> Function:
    return lambda x, w: jax.shard_map(norm, in_specs=Spec("a"), out_specs=Spec("a"), axis_names={"a"})(x @ w[0])


def constrained(x: Any, spec: Spec) -> Any:
    return lax.with_sharding_constraint(x, spec) if not jax.sharding.get_abstract_mesh().empty else x


@pytest.mark.parametrize("around", [in_loop, in_branches, several_times, padded, manual])
def test_places(around: Callable[[Function], Function]) -> None:
    meshbridge.register_sharding_rule("test.norm", "i j -> i j", **NEED_J)
    function = around(lax.composite(normalized, name="test.norm"))
    plain = (lambda x, w: normalized(x @ w[0])) if around is manual else around(normalized)
    specs = [Spec("a", "b"), Spec(None, None, "b")]
    assert_close(*run_sharded(function, [floats(8, 16), floats(3, 16, 16)], device_mesh((2, 4)), specs, compare_with=plain))


@pytest.mark.parametrize("rules", [("test.outer",), ("test.inner",), ("test.outer", "test.inner")])
def test_composites_in_composites(rules: tuple[str, ...]) -> None:
    for name in rules:
        meshbridge.register_sharding_rule(name, "i j -> i j", **NEED_J)
    inner = lax.composite(normalized, name="test.inner")
    outer = lax.composite(lambda x: inner(x) * 2 + inner(x * 3 + 1), name="test.outer")
    plain = lambda x: normalized(x) * 2 + normalized(x * 3 + 1)  # noqa: E731
    assert_close(*run_sharded(outer, [floats(8, 16)], device_mesh((2, 4)), [Spec("a", "b")], compare_with=plain))


TEXT = """
sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) -> tensor<8xf32> {
  %1 = stablehlo.composite "test.sum" %0 {decomposition = @body RULE} : (tensor<8x16xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @body(%0: tensor<8x16xf32>) -> tensor<8xf32> {
  %1 = BODY
  %2 = stablehlo.constant dense<0.0> : tensor<f32>
  %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [1]
    : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}
"""
CARRIED = ", sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=8, j=16} reduction={j}, custom>"


def program(rule: str = "") -> Any:
    return parse(TEXT.replace("RULE", rule).replace("BODY", "stablehlo.exponential %0 : tensor<8x16xf32>"), "t.mlir", context())


def test_rule_that_the_composite_carries() -> None:
    module = program(CARRIED)
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    names = [op.name for op in walk_all(module)]
    assert names.count("func.func") == 1
    assert [name for name in names if name.startswith("mesh.") and name != "mesh.mesh"] == ["mesh.all_reduce"]


def test_stage_between_can_be_continued() -> None:
    """Annotated IR keeps the composite as one op, with its option; partitioning goes on from there."""
    module = program(CARRIED)
    partitioning.partition_module(module, pipeline.Options(emit="annotated"))
    (composite,) = [op for op in walk_all(module) if op.name == "stablehlo.composite"]
    assert str(composite.attributes["meshbridge.sharding_option"]) == "#mesh.axisarray<[[0], [1]]>"
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    assert "stablehlo.composite" not in {op.name for op in walk_all(module)}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("i -> i", "has operands of rank 2, but its sharding rule names 1"),
        ("i j, k -> i", "has 1 operands, but its sharding rule has 2"),
        ("j i -> i", "has a dimension of 8 where its sharding rule has i = 16"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rule: str, message: str) -> None:
    meshbridge.register_sharding_rule("test.sum", rule)
    with pytest.raises(meshbridge.OpError, match=rf":4:8: error: 'stablehlo.composite' op {message}"):
        partitioning.partition_module(program(), pipeline.Options(emit="mesh"))


def test_recursion_is_refused() -> None:
    meshbridge.register_sharding_rule("test.sum", "i j -> i")
    meshbridge.register_sharding_rule("test.self", "i j -> i j")
    body = 'stablehlo.composite "test.self" %0 {decomposition = @again} : (tensor<8x16xf32>) -> tensor<8x16xf32>'
    text = TEXT.replace("RULE", "").replace("BODY", body)
    text += f"func.func private @again(%0: tensor<8x16xf32>) -> tensor<8x16xf32> {{ %1 = {body} return %1 : tensor<8x16xf32> }}"
    with pytest.raises(meshbridge.OpError, match="calls @again recursively"):
        partitioning.partition_module(parse(text, "t.mlir", context()), pipeline.Options(emit="mesh"))


def test_public_body_goes_too() -> None:
    """It is what the composite does, and no program of its own."""
    text = TEXT.replace("RULE", CARRIED).replace("private ", "").replace("BODY", "stablehlo.negate %0 : tensor<8x16xf32>")
    module = parse(text, "t.mlir", context())
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    assert [op.name for op in walk_all(module)].count("func.func") == 1
