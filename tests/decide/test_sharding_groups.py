"""Members of sharding groups, constants among them, are sharded as Shardy shards them, and compute what one device computes."""

from __future__ import annotations

import numpy as np
import pytest

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.runtime import reference

T = "tensor<8x16xf32>"
PROGRAM = """
sdy.mesh @m = <["x"=4, "y"=2]>
func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{"y"}}]>}}, %s: tensor<f32>) -> ({types}) {{
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
{body}
  return {results} : {types}
}}
"""
ZEROS = "%z = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<8x16xf32>"
X_AND_Z = f"""
  sdy.sharding_group %x group_id=0 : {T}
  sdy.sharding_group %z group_id=0 : {T}"""
WAVES = "\n".join(
    f"  %{name}0 = stablehlo.iota dim = {dim} : {T}\n  %{name} = stablehlo.cosine %{name}0 : {T}"
    for dim, name in enumerate(("a", "b"))
)


def _groups(*groups: str) -> str:
    return "\n".join(
        f"  sdy.sharding_group %{name} group_id={number} : {T}" for number, names in enumerate(groups) for name in names
    )


CASES = {
    "zeros that are returned": (ZEROS + X_AND_Z, "%x, %z"),
    "zeros that are returned twice": (ZEROS + X_AND_Z, "%z, %z"),
    "zeros that are also computed with": (f"{ZEROS}{X_AND_Z}\n  %0 = stablehlo.add %z, %x : {T}", "%0, %z"),
    "a group after the other reader": (f"{ZEROS}\n  %0 = stablehlo.exponential %z : {T}{X_AND_Z}", "%0, %z"),
    "a splat": (f"%z = stablehlo.constant dense<3.0> : {T}{X_AND_Z}", "%x, %z"),
    "a scalar argument, broadcast": (
        f"%z = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {T}{X_AND_Z}",
        "%z, %z",
    ),
    "an iota": (f"%z = stablehlo.iota dim = 1 : {T}{X_AND_Z}\n  %0 = stablehlo.negate %z : {T}", "%0, %z"),
    "a table": (f"%z0 = stablehlo.iota dim = 1 : {T}\n  %z = stablehlo.add %z0, %z0 : {T}{X_AND_Z}", "%z, %z0"),
    "zeros after a barrier": (f"{ZEROS}{X_AND_Z}\n  %0 = stablehlo.optimization_barrier %z : {T}", "%0, %z"),
    "zeros with a constraint on one use": (
        f'{ZEROS}{X_AND_Z}\n  %0 = sdy.sharding_constraint %z <@m, [{{"y"}}, {{"x"}}]> : {T}\n  %1 = stablehlo.add %0, %z : {T}',
        "%0, %z",
    ),
    "zeros with an annotation": (
        f'%z = stablehlo.constant {{sdy.sharding = #sdy.sharding_per_value<[<@m, [{{"y"}}, {{?}}]>]>}} dense<0.0> : {T}\n'
        f"  %0 = stablehlo.iota dim = 0 : {T}\n  sdy.sharding_group %0 group_id=0 : {T}\n"
        f"  sdy.sharding_group %z group_id=0 : {T}",
        "%0, %z, %z",
    ),
    "zeros of a loop": (
        f"""{ZEROS}{X_AND_Z}
  %i0 = stablehlo.constant dense<0> : tensor<i32>
  %i1 = stablehlo.constant dense<1> : tensor<i32>
  %i3 = stablehlo.constant dense<3> : tensor<i32>
  %w:2 = stablehlo.while(%i = %i0, %c = %z) : tensor<i32>, {T}
    cond {{
      %t = stablehlo.compare LT, %i, %i3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, %i1 : tensor<i32>
      %d = stablehlo.add %c, %x : {T}
      stablehlo.return %n, %d : tensor<i32>, {T}
    }}""",
        "%z, %w#1",
    ),
    "two groups, the second with the first member": (f"{WAVES}\n{_groups('ab', 'xb')}", "%a, %b"),
    "two groups, the first with the first member": (f"{WAVES}\n{_groups('xb', 'ab')}", "%a, %b"),
    "three groups in a chain": (f"{WAVES}\n  {ZEROS}\n{_groups('az', 'zb', 'bx')}", "%a, %b, %z, %z"),
    "three groups that the last one joins": (f"{WAVES}\n  {ZEROS}\n{_groups('xa', 'bz', 'za')}", "%a, %b, %z, %z"),
}


def _parsed(name: str) -> ir.Module:
    body, results = CASES[name]
    types = ", ".join([T] * (results.count(",") + 1))
    return mlir.parse(PROGRAM.format(T=T, body=body, results=results, types=types), "groups.mlir", mlir.context())


def _shardings(module: ir.Module) -> list[list[list[str]]]:
    """The axes of each dimension of each result. Shardy does not annotate what is replicated."""
    found: list[list[list[str]]] = []
    for result in mlir.entries(mlir.main_function(module), "res_attrs"):
        if "sdy.sharding" not in result:
            found.append([[], []])
            continue
        tensor = mlir.sdy.TensorShardingAttr(result["sdy.sharding"])
        dims = [mlir.sdy.DimensionShardingAttr(dim) for dim in tensor.dimension_shardings]
        found.append([[str(mlir.sdy.AxisRefAttr(axis).name) for axis in dim.axes] for dim in dims])
    return found


@pytest.mark.parametrize("name", CASES)
def test_members_are_sharded_as_by_shardy(name: str) -> None:
    shardy = _parsed(name)
    mlir.run_stock_passes(shardy, "builtin.module(sdy-propagation-pipeline)")
    assert _shardings(meshbridge.partition(_parsed(name))) == _shardings(shardy)


@pytest.mark.parametrize("name", CASES)
def test_members_have_the_values_of_one_device(name: str) -> None:
    x, s = np.arange(128, dtype=np.float32).reshape(8, 16), np.float32(2.5)
    expected = reference.unsharded(_parsed(name), [x, s])
    for result, wanted in zip(meshbridge.compile(_parsed(name))(x, s), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
