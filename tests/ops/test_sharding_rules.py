"""Rules for custom calls: registered for a target, in either notation, or carried by the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

import meshbridge
from meshbridge.ir.mlir import context, parse, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.ops import known_calls, sharding_rules
from meshbridge.ops.option import is_legal
from meshbridge.ops.rule import Interface, Loop
from tests.operations.differential import Spec, assert_close, device_mesh, run_sharded
from tests.operations.numpy_calls import numpy_call
from tests.operations.raw import raw


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    """The rules that a test registers are gone after it."""
    with sharding_rules.USER_RULES.restored():
        yield


MESH = (2, 4)


def factor(x: jax.Array) -> jax.Array:
    """LAPACK's Cholesky factors by a direct call, which carries no rule (jnp.linalg.cholesky's does)."""
    by_columns = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi",
        (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:-2], np.int32)),
        input_layouts=[by_columns],
        output_layouts=[by_columns, None],
    )
    return call(x, uplo=np.uint8(ord("L")))[0]


@pytest.fixture(autouse=True, scope="module")
def _lapack() -> None:
    """JAX finds LAPACK's routines when it lowers the first op that needs one; before, a direct call would jump to nowhere."""
    jax.jit(jax.numpy.linalg.cholesky).lower(jax.ShapeDtypeStruct((4, 4), np.float32))


def positive_matrices(shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((*shape, 4, 4)).astype(np.float32)
    return values @ values.swapaxes(-1, -2) + 4 * np.eye(4, dtype=np.float32)


def export(function: Any, *arguments: np.ndarray, specs: list[Spec], out: Any, target: str) -> jax.export.Exported:
    mesh = device_mesh(MESH)
    placed = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (tuple(specs), out), is_leaf=lambda leaf: isinstance(leaf, Spec)
    )
    with jax.set_mesh(mesh):
        return jax.export.export(
            jax.jit(function, in_shardings=placed[0], out_shardings=placed[1]),
            disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(target)],
        )(*arguments)


def run(exported: jax.export.Exported, *arguments: np.ndarray) -> Any:
    placed = [jax.device_put(*entry) for entry in zip(arguments, exported.in_shardings_jax(device_mesh(MESH)), strict=True)]
    return jax.tree.map(np.asarray, jax.jit(meshbridge.partition(exported, machine="bytes").call)(*placed))


@pytest.mark.parametrize("rule", ["... i j -> ... i j, ...", "a b i j -> a b i j, a b"])
def test_registered_rule_splits_a_real_call(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(known_calls.UNBATCHED_RANKS, "lapack_spotrf_ffi")
    x = positive_matrices((4, 8))
    exported = export(factor, x, specs=[Spec("a", "b")], out=Spec("a", "b"), target="lapack_spotrf_ffi")
    unknown = meshbridge.report(exported)
    assert [found.operation for found in unknown.not_partitioned] == ["stablehlo.custom_call @lapack_spotrf_ffi"]
    assert unknown.wire_bytes > 0

    meshbridge.register_sharding_rule("lapack_spotrf_ffi", rule, need_replication_factors=["i", "j"])
    known = meshbridge.report(exported)
    assert not known.not_partitioned
    assert known.wire_bytes == 0
    np.testing.assert_allclose(np.tril(run(exported, x)), np.linalg.cholesky(x), atol=1e-5)


def test_unknown_call_is_gathered_and_right() -> None:
    x = positive_matrices((4, 8))
    exported = export(factor, x, specs=[Spec("a", "b")], out=Spec("a", "b"), target="lapack_spotrf_ffi")
    np.testing.assert_allclose(np.tril(run(exported, x)), np.linalg.cholesky(x), atol=1e-5)


def test_rule_that_the_call_carries() -> None:
    x = positive_matrices((4, 8))
    assert_close(*run_sharded(jax.numpy.linalg.cholesky, [x], device_mesh(MESH), [Spec("a", "b")]))


# Numbers: numpy functions as custom calls, which see local shapes.


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


class Call:
    """A numpy function as a custom call, which writes down the shapes that it is called with."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = f"test.{name}"
        self.function = function
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()
        self.call = numpy_call(self.name, self._noted, self._types)
        _CURRENT[self.name] = self

    def _noted(self, *operands: np.ndarray) -> Any:
        current = _CURRENT[self.name]
        current.shapes.add(tuple(operand.shape for operand in operands))
        return current.function(*operands)

    def _types(self, *operands: Any) -> Any:
        made = self.function(*(np.zeros(operand.shape, operand.dtype) for operand in operands))
        return jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), made)

    def check(
        self, operands: list[np.ndarray], specs: list[Spec], out: Any, shapes: tuple[tuple[int, ...], ...], kinds: list[str]
    ) -> None:
        """The partitioned call equals the plain one, is called with operands of `shapes`, and moves data by `kinds` alone."""
        exported = export(self.call, *operands, specs=specs, out=out, target=self.name)
        assert [collective.kind for collective in meshbridge.report(exported, machine="bytes").collectives] == kinds
        self.shapes.clear()
        assert_close(run(exported, *operands), self.function(*operands))
        assert self.shapes == {shapes}


_CURRENT: dict[str, Call] = {}
"""By name, the call of the test that is running: XLA keeps the first handler of a name."""


@pytest.mark.parametrize(
    ("specs", "out", "shapes", "kinds"),
    [
        ([Spec("a", "b"), Spec("b")], Spec("a"), ((4, 4), (4, 12)), ["all_reduce"]),
        ([Spec("a", "b"), Spec("b")], Spec("a", "b"), ((4, 4), (4, 12)), ["reduce_scatter"]),
        ([Spec(None, ("a", "b")), Spec(("a", "b"))], None, ((8, 2), (2, 12)), ["all_reduce"]),
        ([Spec("a"), Spec(None, "b")], Spec("a", "b"), ((4, 16), (16, 3)), []),
    ],
)
def test_reduction_factor_stays_split(specs: list[Spec], out: Spec, shapes: Any, kinds: list[str]) -> None:
    call = Call("product", lambda x, y: x @ y)
    meshbridge.register_sharding_rule(call.name, "i j, j k -> i k", reduction_factors=["j"])
    call.check([floats(8, 16), floats(16, 12)], specs, out, shapes, kinds)


REDUCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "sum": lambda x: np.exp(x).sum(1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "product": lambda x: x.prod(1),
    "average": lambda x: x.mean(1),
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_kinds_of_reductions(kind: str) -> None:
    """What follows the call, an op that sums pass through, reads the finished result."""
    call = Call(kind, REDUCTIONS[kind])
    meshbridge.register_sharding_rule(call.name, "i j -> i", reduction_factors={"j": kind})
    x = floats(8, 16)
    call.check([x], [Spec("a", "b")], Spec("a"), ((4, 4),), ["all_reduce"])
    exported = export(lambda x: -2 * call.call(x), x, specs=[Spec("a", "b")], out=Spec("a"), target=call.name)
    assert_close(run(exported, x), -2 * REDUCTIONS[kind](x))


def test_reduction_is_never_padded() -> None:
    """Three devices of four would hold three elements of ten, the last one; nobody knows what keeps padding out of the call."""
    call = Call("sum", REDUCTIONS["sum"])
    meshbridge.register_sharding_rule(call.name, "i j -> i", reduction_factors=["j"])
    x = floats(8, 10)
    exported = export(
        lambda x: call.call(jax.lax.with_sharding_constraint(x * 2, Spec("a", "b"))),
        x,
        specs=[Spec("a")],
        out=Spec("a"),
        target=call.name,
    )
    assert_close(run(exported, x), REDUCTIONS["sum"](2 * x))
    assert {columns for ((_, columns),) in call.shapes} == {10}


def test_reductions_of_two_kinds_are_not_split_at_once() -> None:
    meshbridge.register_sharding_rule("t", "i j k -> i", reduction_factors={"j": "min", "k": "sum"})
    rule = loops_of_call(["4x8x8xf32"], ["4xf32"])
    mesh = Mesh("m", MESH)
    assert is_legal(rule, ((0,), (1,), ()), mesh)
    assert is_legal(rule, ((0,), (), (1,)), mesh)
    assert not is_legal(rule, ((), (0,), (1,)), mesh)


def test_several_results_and_a_scalar() -> None:
    """Every result of a call with a split reduction factor is partial."""
    call = Call("moments", lambda x, s: (s * x.sum(0), (x * x).sum(0)))
    meshbridge.register_sharding_rule(call.name, "j i, -> i, i", reduction_factors=["j"])
    operands = [floats(16, 8), np.float32(3)]
    call.check(operands, [Spec("b", "a"), Spec()], (Spec("a"), Spec("a")), ((4, 4), ()), ["all_reduce"])


@pytest.mark.parametrize("kind", ["need_replication_factors", "permutation_factors"])
def test_gathered_factors(kind: str) -> None:
    """The axes of a factor that must be whole move to one that need not, and the result is split as it was wanted."""
    call = Call("sort", lambda x: np.sort(x, 1))
    meshbridge.register_sharding_rule(call.name, "i j -> i j", **{kind: ["j"]})  # type: ignore[arg-type]
    call.check([floats(8, 16)], [Spec("a", "b")], Spec("a", "b"), ((1, 16),), ["all_to_all", "all_to_all"])


def test_products_run_on_shards() -> None:
    """Of a product, the major factor is split first; one after a factor that stays whole is not."""
    call = Call("merge", lambda x: np.swapaxes(x, 0, 1).reshape(-1, x.shape[2]))
    meshbridge.register_sharding_rule(call.name, "j i k -> (i j) k", need_replication_factors=["j"])
    call.check([floats(3, 4, 4)], [Spec(None, "b", "a")], Spec("b", "a"), ((3, 1, 2),), [])
    sharding_rules.USER_RULES.clear()
    meshbridge.register_sharding_rule(call.name, "j i k -> (i j) k", need_replication_factors=["i"])
    call.check([floats(3, 4, 4)], [Spec(None, "b", "a")], Spec(None, "a"), ((3, 4, 2),), ["all_gather"])


def test_uneven_batches() -> None:
    """A dimension of independent elements may be padded: what the call makes of the padding is cut off."""
    call = Call("sort", lambda x: np.sort(x, 1))
    meshbridge.register_sharding_rule(call.name, "... j -> ... j", need_replication_factors=["j"])
    x = floats(6, 16)
    exported = export(
        lambda x: 2 * jax.lax.with_sharding_constraint(call.call(x), Spec("b")),
        x,
        specs=[Spec("a")],
        out=Spec("a"),
        target=call.name,
    )
    assert_close(run(exported, x), 2 * np.sort(x, 1))


def row_major(types: str) -> str:
    """The layouts in which numpy expects tensors."""
    ranks = [one.count("x") for one in types.split(", ")]
    return ", ".join(f"dense<{[*reversed(range(rank))]}> : tensor<{rank}xindex>" for rank in ranks)


def carried(call: Call, rule: str, operands: str, results: str, types: list[tuple[tuple[int, ...], str]]) -> Callable[..., Any]:
    """A JAX function whose custom call carries `rule` in its attribute."""
    names = ", ".join(f"%{index}" for index in range(operands.count("tensor")))
    body = f"""%r = stablehlo.custom_call @{call.name}({names})
        {{api_version = 4 : i32, operand_layouts = [{row_major(operands)}], result_layouts = [{row_major(results)}],
        sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>}} : ({operands}) -> {results}"""
    return lambda *arguments: raw(body, [(one.shape, str(one.dtype)) for one in arguments], types)(*arguments)[0]


def test_reduction_factor_of_a_carried_rule() -> None:
    call = Call("product", lambda x, y: x @ y)
    rule = "([i, k], [k, j])->([i, j]) {i=8, j=12, k=16} reduction={k}, custom"
    function = carried(call, rule, "tensor<8x16xf32>, tensor<16x12xf32>", "tensor<8x12xf32>", [((8, 12), "float32")])
    x, y = floats(8, 16), floats(16, 12)
    exported = export(function, x, y, specs=[Spec("a", "b"), Spec("b")], out=Spec("a", "b"), target=call.name)
    assert [found.kind for found in meshbridge.report(exported).collectives] == ["reduce_scatter"]
    assert_close(run(exported, x, y), x @ y)
    assert call.shapes == {((4, 4), (4, 12))}


@pytest.mark.parametrize("kind", ["need_replication", "permutation"])
def test_gathered_factors_of_a_carried_rule(kind: str) -> None:
    call = Call("sort", lambda x: np.sort(x, 1))
    rule = f"([i, j])->([i, j]) {{i=8, j=16}} {kind}={{j}}, custom"
    function = carried(call, rule, "tensor<8x16xf32>", "tensor<8x16xf32>", [((8, 16), "float32")])
    x = floats(8, 16)
    assert_close(run(export(function, x, specs=[Spec("a", "b")], out=Spec("a", "b"), target=call.name), x), np.sort(x, 1))
    assert call.shapes == {((1, 16),)}


@pytest.mark.parametrize("is_carried", [False, True])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_blocked_propagation(is_carried: bool, is_blocked: bool) -> None:
    """The call's result, of which nothing is said, is split like the operand only if the rule lets it be."""
    call = Call("sort", lambda x: np.sort(x, 1))
    blocked = "blocked_propagation={i}" if is_blocked else ""
    rule = f"([i, j])->([i, j]) {{i=8, j=16}} need_replication={{j}} {blocked}, custom"
    function = carried(call, rule, "tensor<8x16xf32>", "tensor<8x16xf32>", [((8, 16), "float32")]) if is_carried else call.call
    names = ["i"] if is_blocked else []
    meshbridge.register_sharding_rule(call.name, "i j -> i j", need_replication_factors=["j"], blocked_propagation_factors=names)
    x = floats(8, 16)
    exported = export(lambda x: function(x) * 2, x, specs=[Spec("a")], out=None, target=call.name)
    (out,) = meshbridge.partition(exported).out_shardings_jax(device_mesh(MESH))
    assert ("a" in out.spec) is not is_blocked
    assert_close(run(exported, x), np.sort(x, 1) * 2)
    wanted = export(lambda x: function(x) * 2, x, specs=[Spec("a")], out=Spec("a"), target=call.name)
    assert not meshbridge.report(wanted).collectives  # split by the user on both sides, nothing is carried over


def test_scales_of_blocks() -> None:
    """A factor of dimensions of 32 and 4, as JAX writes scaled products: eight values share a scale."""
    call = Call("scaled", lambda x, s: (x.reshape(len(x), -1, 8) * s[:, :, None]).sum((1, 2)))
    rule = "([i, j], [i, j])->([i]) {i=8, j=4} reduction={j}, custom"
    function = carried(call, rule, "tensor<8x32xf32>, tensor<8x4xf32>", "tensor<8xf32>", [((8,), "float32")])
    x, s = floats(8, 32), floats(8, 4)
    exported = export(function, x, s, specs=[Spec(None, "b"), Spec(None, "b")], out=Spec(), target=call.name)
    assert_close(run(exported, x, s), call.function(x, s))
    assert {(values, scales) for (_, values), (_, scales) in call.shapes} == {(8, 1)}


@pytest.mark.parametrize(
    ("rule", "keywords", "operands", "results"),
    [
        ("... i j, j k -> ... i k", {"reduction_factors": ("j",)}, [(8, 2, 16), (16, 4)], [(8, 2, 4)]),
        ("b s d, d (h e) -> b s h e", {"need_replication_factors": ("d",)}, [(8, 2, 16), (16, 12)], [(8, 2, 4, 3)]),
        ("(i j) k, -> i (j k), k", {"j": 4, "permutation_factors": ("k",)}, [(8, 3), ()], [(2, 12), (3,)]),
        ("... i, ...1 i -> ..., ...1", {"reduction_factors": ("i",)}, [(4, 2, 16), (8, 16)], [(4, 2), (8,)]),
    ],
)
def test_notation_is_that_of_jax(rule: str, keywords: dict[str, Any], operands: list[Any], results: list[Any]) -> None:
    """What `custom_partitioning` puts on its call has the loops that the same rule has when it is registered."""

    def function(*_: Any) -> Any:
        return tuple(jax.numpy.zeros(shape) for shape in results)

    partitioned = custom_partitioning(function)
    partitioned.def_partition(partition=lambda *_: None, sharding_rule=rule, **keywords)
    mesh = device_mesh(MESH)
    with jax.set_mesh(mesh):
        lowered = jax.jit(partitioned, in_shardings=NamedSharding(mesh, Spec())).lower(*(np.zeros(shape) for shape in operands))
    module = parse(lowered.as_text(), "t.mlir", context())
    (call,) = [op for op in walk_all(module) if op.name == "stablehlo.custom_call"]
    carried = Interface().rule(call)
    assert carried.loops
    del call.attributes["sdy.sharding_rule"]
    meshbridge.register_sharding_rule("CustomSPMDPartitioning", rule, **keywords)
    assert Interface().rule(call) == carried


PRODUCT = "([i, j], [j, k])->([i, k]) {i=8, j=16, k=12}"


@pytest.mark.parametrize(
    ("rule", "is_split"),
    [
        (f"{PRODUCT} reduction={{j}}, custom", True),
        (f"{PRODUCT} need_replication={{j}}, custom", False),
        (f"{PRODUCT}, custom", False),
        (f"{PRODUCT} need_replication={{j}}", True),
    ],
)
def test_rule_of_an_op_that_is_known(rule: str, is_split: bool) -> None:
    """The user's rule takes from the loops that the op has; one that no user has written says nothing."""
    body = f"""%r = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
        {{sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>}} : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>"""
    function = raw(body, [((8, 16), "float32"), ((16, 12), "float32")], [((8, 12), "float32")])
    x, y = floats(8, 16), floats(16, 12)
    exported = export(function, x, y, specs=[Spec("a", "b"), Spec("b")], out=[Spec("a")], target="")
    assert ("all_reduce" in {found.kind for found in meshbridge.report(exported).collectives}) is is_split
    assert_close(run(exported, x, y), x @ y)


def loops_of_call(operands: list[str], results: list[str], attributes: str = "") -> Any:
    arguments = ", ".join(f"%{index}: tensor<{kind}>" for index, kind in enumerate(operands))
    names = ", ".join(f"%{index}" for index in range(len(operands)))
    types = (", ".join(f"tensor<{kind}>" for kind in kinds) for kinds in (operands, results))
    text = (
        f"func.func @f({arguments}) {{ %r:{len(results)} = stablehlo.custom_call @t({names}) {attributes} : ({next(types)}) -> "
    )
    module = parse(f"{text}({next(types)}) return }}", "t.mlir", context())
    (call,) = [op for op in walk_all(module) if op.name == "stablehlo.custom_call"]
    return Interface().rule(call)


def test_matrix_product_in_both_notations() -> None:
    meshbridge.register_sharding_rule("t", "... i j, j k -> ... i k", reduction_factors=["j"])
    by_name = loops_of_call(["2x4x8xf32", "8x16xf32"], ["2x4x16xf32"])
    sharding_rules.USER_RULES.clear()
    types = ["parallel", "parallel", "reduction_sum", "parallel"]
    maps = "(d0, d1, d2), (d2, d3) -> (d0, d1, d3)"
    meshbridge.register_sharding_rule("t", meshbridge.LoopsAndMaps(types, maps))
    assert loops_of_call(["2x4x8xf32", "8x16xf32"], ["2x4x16xf32"]) == by_name
    assert by_name.loops == (Loop(2), Loop(4), Loop(8, "sum"), Loop(16))
    assert by_name.operands == (((0,), (1,), (2,)), ((2,), (3,)))


def test_products_of_factors() -> None:
    meshbridge.register_sharding_rule("t", "(i j) k -> i (j k)", j=4)
    rule = loops_of_call(["8x3xf32"], ["2x12xf32"])
    assert rule.loops == (Loop(2), Loop(4), Loop(3))
    assert rule.operands == (((0, 1), (2,)),)
    assert rule.results == (((0,), (1, 2)),)
    sharding_rules.USER_RULES.clear()
    meshbridge.register_sharding_rule("t", meshbridge.LoopsAndMaps(["parallel"] * 3, "(d0 * 4 + d1, d2) -> (d0, d1 * 3 + d2)"))
    assert loops_of_call(["8x3xf32"], ["2x12xf32"]) == rule


def test_factors_that_stay_whole() -> None:
    """One that only operands or only results have, one that must be replicated."""
    meshbridge.register_sharding_rule("t", "i j k -> i k l", need_replication_factors=["k"])
    rule = loops_of_call(["4x8x2xf32"], ["4x2x6xf32"])
    assert rule.operands == (((0,), (), ()),)
    assert rule.results == (((0,), (), ()),)


def test_groups_of_leading_dimensions() -> None:
    """`...` and `...0` are one group, `...1` is another; a 1 is walked by nothing."""
    meshbridge.register_sharding_rule("t", "... i, ...1 i 1 -> ...0 i, ...1 i")
    rule = loops_of_call(["2x4x8xf32", "3x8x1xf32"], ["2x4x8xf32", "3x8xf32"])
    assert rule.loops == (Loop(2), Loop(4), Loop(8), Loop(3))
    assert rule.operands == (((0,), (1,), (2,)), ((3,), (2,), ()))
    assert rule.results == (((0,), (1,), (2,)), ((3,), (2,)))


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("i j", {}, "expected 'operands -> results'"),
        ("i [j] -> i", {}, "expected names"),
        ("2i -> i", {}, "expected names"),
        ("i ... -> i", {}, "expected names"),
        ("(i j -> i", {}, "expected '\\)'"),
        ("(i (j)) -> i", {}, "expected names"),
        ("i i -> i", {}, "a factor twice"),
        ("i j -> i", {"reduction_factors": ["k"]}, "has no factor 'k'"),
        ("i j -> i", {"need_replication_factors": ["k"]}, "has no factor 'k'"),
        ("i j -> i", {"permutation_factors": ["k"]}, "has no factor 'k'"),
        ("i j -> i", {"blocked_propagation_factors": ["k"]}, "has no factor 'k'"),
        ("i j -> i", {"k": 3}, "has no factor 'k'"),
        ("(i j) -> i", {"j": 0}, "expected 1 or more"),
        ("i j -> i", {"reduction_factors": {"j": "median"}}, "expected one of sum, max"),
        ("i j -> i", {"reduction_factors": {"j": "generic"}}, "expected one of sum, max"),
        ("i j -> i", {"reduction_factors": ["i"]}, "but a result"),
        ("i j -> i", {"reduction_factors": ["j"], "need_replication_factors": ["j"]}, "is of two kinds"),
        ("i j -> i", {"reduction_factors": "j"}, "expected a list"),
        (meshbridge.LoopsAndMaps(["parallel"], "(d0, d1) -> (d0)"), {}, "there are 1 loops"),
        (meshbridge.LoopsAndMaps(["parallel", "sum"], "(d0, d1) -> (d0)"), {}, "expected parallel, invalid or reduction_"),
        (meshbridge.LoopsAndMaps(["parallel"], "(d0 - 1) -> (d0)"), {}, "expected loops as d0"),
        (meshbridge.LoopsAndMaps(["parallel"], "(d0) -> (d0)"), {"reduction_factors": ["d0"]}, "by the types of its loops"),
    ],
)
def test_unreadable_rules_are_refused(rule: Any, options: Any, message: str) -> None:
    with pytest.raises(meshbridge.MeshError, match=message):
        meshbridge.register_sharding_rule("t", rule, **options)


@pytest.mark.parametrize(
    ("rule", "sizes", "message"),
    [
        ("i, j -> i j", {}, "has 1 operands, but its sharding rule has 2"),
        ("i j -> ", {}, "of rank 2, but its sharding rule names 0"),
        ("i j -> i j, ", {}, "has 1 results, but its sharding rule has 2"),
        ("i -> i", {}, "of rank 2"),
        ("... i j k -> ... i j k", {}, "of rank 2"),
        ("... i -> ... i k", {}, "'...' of its sharding rule is 1 and 0 dimensions"),
        ("i j -> j i", {}, "has a dimension of 5 where its sharding rule has j = 8"),
        ("i j -> i 1", {}, "has a dimension of 8 where its sharding rule has 1 = 1"),
        ("i (j k) -> i j", {"k": 3}, "has a dimension of 8 where its sharding rule has j x k = 24"),
        ("i (j k) -> i (j k)", {}, "leaves the sizes of j, k open"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rule: str, sizes: dict[str, int], message: str) -> None:
    meshbridge.register_sharding_rule("t", rule, **sizes)
    with pytest.raises(meshbridge.OpError, match=message) as caught:
        loops_of_call(["5x8xf32"], ["5x8xf32"])
    assert ":1:44: error: 'stablehlo.custom_call' op" in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("([i, j], [i])->([i, j]) {i=5, j=8}, custom", "number of operands and mappings must match"),
        ("([i])->([i, j]) {i=5, j=8}, custom", "mapping rank must match"),
        ("([i, k])->([i, j]) {i=5, j=8}, custom", "expecting factor indices to be within"),
        ("([i, j])->([i, j]) {i=5, j=8} reduction={j}, custom", "reduction factor cannot be in result"),
        ("([i, j])->([i, j]) {i=6, j=8}, custom", "has a dimension of 5 where its sharding rule has i = 6"),
        ("([i, jk])->([i, jk]) {i=5, j=4, k=4}, custom", "has a dimension of 8 where its sharding rule has j x k = 16"),
    ],
)
def test_carried_rules_that_do_not_fit_are_refused(rule: str, message: str) -> None:
    with pytest.raises(meshbridge.MeshError, match=message) as caught:
        loops_of_call(["5x8xf32"], ["5x8xf32"], f"{{sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>}}")
    assert ":1:44: error: 'stablehlo.custom_call' op" in str(caught.value)


def test_second_rule_is_refused() -> None:
    meshbridge.register_sharding_rule("t", "i -> i")
    with pytest.raises(meshbridge.MeshError, match="sharding rule of 't' is registered already"):
        meshbridge.register_sharding_rule("t", "i -> i")
