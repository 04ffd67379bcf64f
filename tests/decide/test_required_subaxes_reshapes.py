"""Reshapes that cut a dimension inside a mesh axis: parts of the axis go with it, and no caller sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshbridge
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError

HEADS, GROUPS, WIDTH = 8, 2, 8
"""Heads of the queries; heads of keys and values, fewer than the four devices; width of one."""

PAIR = PartitionSpec("data", "model")


def sent(
    function: Callable[..., jax.Array], mesh: Mesh, specs: Sequence[PartitionSpec], *shapes: tuple[int, ...]
) -> tuple[float, float]:
    """Bytes on the wire per device, ours and XLA's; asserts that the numbers are those of one device."""
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    jitted = jax.jit(function, in_shardings=shardings)
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    partitioned = meshbridge.partition(export.export(jitted)(*avals), machine="bytes")
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = jax.jit(partitioned.call)(*map(jax.device_put, arguments, shardings))
    np.testing.assert_allclose(found, jax.jit(function)(*arguments), rtol=1e-4, atol=1e-4)
    ours, theirs = jax.jit(partitioned.call, in_shardings=shardings), jitted
    texts = [each.lower(*avals).compile().as_text() or "" for each in (ours, theirs)]
    mine, xla = (communication(hlo.read(text)).wire_bytes for text in texts)
    return mine, xla


@pytest.mark.parametrize(("heads", "part"), [(2, 0.0), (4, 0.0), (6, 1.0)])
def test_splitting_heads_sends_what_lies_across_them(mesh: Mesh, heads: int, part: float) -> None:
    """Six heads on four devices are three on each pair, which exchange theirs; others need not."""

    def waves(x: jax.Array) -> jax.Array:
        return jnp.sin(x.reshape(8, heads, 12).swapaxes(0, 1)).swapaxes(0, 1).reshape(8, heads * 12)

    shard = 8 * heads * 12 * 4 / 4
    assert sent(waves, mesh, [PartitionSpec(None, "model")], (8, heads * 12))[0] == part * shard


def grouped_attention(x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array, wo: jax.Array) -> jax.Array:
    """Several heads of queries share one of keys and values."""
    batch, length, _ = x.shape
    q = (x @ wq).reshape(batch, length, HEADS, WIDTH)
    k, v = ((x @ w).reshape(batch, length, GROUPS, WIDTH).repeat(HEADS // GROUPS, 2) for w in (wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k), -1)
    return jnp.einsum("bhst,bthd->bshd", weights, v).reshape(batch, length, HEADS * WIDTH) @ wo


def test_fewer_heads_than_devices(mesh: Mesh) -> None:
    columns = PartitionSpec(None, "model")
    specs = [PartitionSpec("data"), columns, columns, columns, PartitionSpec("model", None)]
    many, few = (32, HEADS * WIDTH), (32, GROUPS * WIDTH)
    ours, xla = sent(grouped_attention, mesh, specs, (4, 16, 32), many, few, few, many[::-1])
    assert ours <= xla


def test_manual_computations_go_along(mesh: Mesh) -> None:
    """What is manual along an axis is so along its parts."""

    def doubled(w: jax.Array) -> jax.Array:
        by_hand = jax.shard_map(lambda x: x + lax.psum(x, "model"), mesh=mesh, in_specs=PAIR, out_specs=PAIR)
        return by_hand(w)

    def attention(x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array, wo: jax.Array) -> jax.Array:
        return grouped_attention(x, wq, doubled(wk), wv, wo)

    columns = PartitionSpec(None, "model")
    specs = [PartitionSpec("data"), columns, PAIR, columns, PartitionSpec("model", None)]
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    many, few = (32, HEADS * WIDTH), (32, GROUPS * WIDTH)
    shapes = ((4, 16, 32), many, few, few, many[::-1])
    arguments = [np.random.default_rng(7).standard_normal(shape).astype(np.float32) / 4 for shape in shapes]
    jitted = jax.jit(attention, in_shardings=shardings)
    exported = export.export(jitted)(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])
    placed = [jax.device_put(argument, sharding) for argument, sharding in zip(arguments, shardings, strict=True)]
    np.testing.assert_allclose(jax.jit(meshbridge.partition(exported).call)(*placed), jitted(*placed), rtol=1e-4, atol=1e-4)


def test_results_lie_along_whole_axes(mesh: Mesh) -> None:
    """JAX could not name a part of an axis."""
    spec = [PartitionSpec("model")]
    ours, _ = sent(lambda x: jnp.sin(x).reshape(2, 12), mesh, spec, (24,))
    assert ours == 24 * 4 * 3 / 4
    exported = export.export(jax.jit(lambda x: x.reshape(2, 12).T.reshape(24), in_shardings=NamedSharding(mesh, spec[0])))
    executable = meshbridge.compile(exported(jax.ShapeDtypeStruct((24,), jnp.float32)))
    assert executable.jax_mesh.axis_names == mesh.axis_names


ASKED = """
sdy.mesh @m = <["x"=4, "y"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}, %y: tensor<8x16xf32> {
      sdy.sharding = #sdy.sharding<@m, [{"x":(2)2}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x":(1)2}, {}]>},
        tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x":(2)2}, {"x":(1)2, "y"}]>},
        tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {"x"}]>}) {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  %1 = stablehlo.multiply %x, %y : tensor<8x16xf32>
  %2 = stablehlo.subtract %x, %y : tensor<8x16xf32>
  return %0, %1, %2 : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>
}
"""


def test_a_caller_may_ask_for_sub_axes() -> None:
    """In what is exported they stand as they are written; a JAX array is on a mesh that has them for axes."""
    exported = str(meshbridge.partition(mlir.parse(ASKED, "asked.mlir", mlir.context())))
    assert 'in_shardings=[<@m, [{"x"}, {}], replicated={"y"}>, <@m, [{"x":(2)2}, {}], replicated={"x":(1)2, "y"}>]' in exported
    assert (
        'out_shardings=[<@m, [{"x":(1)2}, {}], replicated={"x":(2)2, "y"}>, <@m, [{"x":(2)2}, {"x":(1)2, "y"}]>,'
        ' <@m, [{"y"}, {"x"}]>]' in exported
    )
    executable = meshbridge.compile(mlir.parse(ASKED, "asked.mlir", mlir.context()))
    x, y = (np.arange(128.0, dtype=np.float32).reshape(8, 16) * sign for sign in (1, -3))
    results = executable(x, y)
    for found, expected in zip(results, (x + y, x * y, x - y), strict=True):
        np.testing.assert_array_equal(found, expected)
    halves, fourths, plain = (result.sharding for result in results)
    assert halves.spec == PartitionSpec("x:(1)2", None)
    assert halves.mesh.axis_names == fourths.mesh.axis_names == ("x:(1)2", "x:(2)2", "y")
    assert fourths.spec == PartitionSpec("x:(2)2", ("x:(1)2", "y"))
    assert (plain.spec, plain.mesh.axis_names) == (PartitionSpec("y", "x"), ("x", "y"))
    rows = {device.id: indices[0] for device, indices in halves.devices_indices_map((8, 16)).items()}
    assert [rows[device] for device in range(8)] == [slice(0, 4)] * 4 + [slice(4, 8)] * 4


BY_HAND = """
mesh.mesh @m(shape = 2x4) {meshbridge.axis_names = ["d", "x"]}
func.func @main(%x: tensor<8x6xf32>) -> (tensor<2x4x6xf32>, tensor<8x6xf32>) {
  %s = mesh.sharding @m split_axes = [[1], [0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8x6xf32>
  %1 = stablehlo.reshape %0 : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
  %2 = stablehlo.sine %1 : tensor<2x4x6xf32>
  %u = mesh.shard %0 to %s annotate_for_users : tensor<8x6xf32>
  %3 = sdy.manual_computation(%u) in_shardings=[<mesh<["d"=2, "x"=4]>, [{"x"}, {?}]>]
      out_shardings=[<mesh<["d"=2, "x"=4]>, [{"x"}, {?}]>] manual_axes={"x"} (%a: tensor<2x6xf32>) {
    %root = arith.constant 3 : index
    %b = mesh.shift %a on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<2x6xf32> -> tensor<2x6xf32>
    %c = mesh.broadcast %b on @m mesh_axes = [1] root = [%root] : (tensor<2x6xf32>, index) -> tensor<2x6xf32>
    %d = mesh.all_gather %c on @m mesh_axes = [1] gather_axis = 0 : tensor<2x6xf32> -> tensor<8x6xf32>
    %e = mesh.reduce_scatter %d on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x6xf32> -> tensor<2x6xf32>
    sdy.return %e : tensor<2x6xf32>
  } {meshbridge.manual_axes = array<i16: 1>, meshbridge.mesh = @m} : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %4 = mesh.shard %3 to %s : tensor<8x6xf32>
  return %2, %4 : tensor<2x4x6xf32>, tensor<8x6xf32>
}
"""


def test_collectives_of_manual_computations_go_along() -> None:
    """The axis that the reshape cuts is one that mesh collectives name. Along the other, `d`, what they pass on stays sharded."""
    module = assembly.read(BY_HAND, "by_hand.mlir", mlir.context())
    assert "all_gather_dim = 1" not in str(meshbridge.partition(module))
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    reshaped, by_hand = meshbridge.compile(module)(x)
    np.testing.assert_allclose(reshaped, np.sin(x).reshape(2, 4, 6), rtol=1e-5)
    np.testing.assert_array_equal(by_hand, np.tile(4 * x[4:6], (4, 1)))


def test_mesh_collectives_along_other_axes_are_refused() -> None:
    module = assembly.read(BY_HAND.replace("mesh_axes = [1] root", "mesh_axes = [0] root"), "by_hand.mlir", mlir.context())
    with pytest.raises(MeshError, match=r"'mesh.broadcast' op stands in a program that is not partitioned yet"):
        meshbridge.partition(module)
