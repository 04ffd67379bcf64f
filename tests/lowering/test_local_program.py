"""Programs of one device that are handed in: the dialect's examples run on 8 devices as its pictures say, and are verified."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.ir.mlir import MeshError, context, parse
from meshbridge.lowering.local_program import Shardings
from meshbridge.read import files
from meshbridge.read.formats import Program
from meshbridge.tools import cli
from meshbridge.verification.verdict import verify
from tests import simulator
from tests.simulator import Index, Values

ROOT = Path(__file__).parents[2]
RFC = ROOT / "testdata" / "rfc"


def program(text: str) -> Program:
    return files.parse_program(text.encode(), "local.mlir")


def stacked(values: Values) -> np.ndarray:
    """What devices hold, one after the other along dimension 0."""
    return np.concatenate([np.atleast_1d(values[device]) for device in sorted(values)])


def random(mesh: tuple[int, ...], shape: tuple[int, ...]) -> Values:
    draw = np.random.default_rng(0)
    return {device: draw.integers(-9, 9, shape).astype(np.int32) for device in simulator.devices(mesh)}


I32 = np.dtype(np.int32)

EXAMPLES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Callable[[Values], Values]]] = {
    "mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1": (
        *((2, 4), (2, 2), (2, 8)),
        lambda x: simulator.all_gather((2, 4), x, [1], 1),
    ),
    "mesh.all_reduce %x on @m mesh_axes = [1, 0] reduction = max": (
        *((2, 2, 2), (3, 4), (3, 4)),
        lambda x: simulator.all_reduce((2, 2, 2), x, [1, 0], "max", I32),
    ),
    "mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 1": (
        *((2, 2), (2, 4), (2, 2)),
        lambda x: simulator.all_slice((2, 2), x, [1], 1),
    ),
    "mesh.all_to_all %x on @m mesh_axes = [0] split_axis = 0 concat_axis = 0": (
        *((3,), (3, 2), (3, 2)),
        lambda x: simulator.all_to_all((3,), x, [0], 0, 0),
    ),
    "mesh.broadcast %x on @m mesh_axes = [0] root = [0]": (
        *((3, 2), (2,), (2,)),
        lambda x: simulator.broadcast((3, 2), x, [0], (0,)),
    ),
    "mesh.reduce_scatter %x on @m mesh_axes = [1] reduction = max scatter_axis = 0": (
        *((2, 2), (2, 2), (1, 2)),
        lambda x: simulator.reduce_scatter((2, 2), x, [1], "max", I32, 0),
    ),
    "mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 2 rotate": (
        *((2, 4), (2,), (2,)),
        lambda x: simulator.shift((2, 4), x, 1, 2, True),
    ),
    "mesh.update_halo %x on @m split_axes = [[0]] halo_sizes = [1, 2]": (
        *((4, 2), (7,), (7,)),
        lambda x: simulator.update_halo((4, 2), x, [[0]], [1, 2]),
    ),
}
"""Operations as the dialect's document writes them: the mesh, the shapes of operand and result, and what they mean."""


def written(example: str) -> str:
    mesh, operand, result, _ = EXAMPLES[example]
    taken, given = ("x".join(map(str, (*shape, "i32"))) for shape in (operand, result))
    name = example.split()[0]
    operands = {"mesh.update_halo": "", "mesh.broadcast": f"(tensor<{taken}>) -> "}.get(name, f"tensor<{taken}> -> ")
    return f"""
        mesh.mesh @m(shape = {"x".join(map(str, mesh))})
        func.func @main(%x: tensor<{taken}>) -> tensor<{given}> {{
          %0 = {example} : {operands}tensor<{given}>
          return %0 : tensor<{given}>
        }}"""


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documents_operations_run_as_they_stand(example: str) -> None:
    mesh, operand, _, meaning = EXAMPLES[example]
    held = random(mesh, operand)
    executable = meshbridge.compile(program(written(example)), local=True)
    (found,) = executable(stacked(held))
    np.testing.assert_array_equal(np.asarray(found), stacked(meaning(held)))


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documents_operations_are_verified(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "local.mlir"
    path.write_text(written(example))
    assert cli.main(["verify", str(path), "--local"]) == 0
    assert "equal" in capsys.readouterr().out


INDICES = """
    mesh.mesh @m(shape = 2x4)
    func.func @main(%x: tensor<f32>, %i: index, %k: i1) -> (index, index, index, tensor<f32>, tensor<2xi32>, index, index) {
      %a, %b = mesh.process_multi_index on @m : index, index
      %down, %up = mesh.neighbors_linear_indices on @m[%a, %b] split_axes = [1] : index, index
      %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<f32> -> tensor<f32>
      %c = arith.addi %a, %i : index
      %d = arith.select %k, %c, %b : index
      %e = arith.index_cast %a : index to i32
      %f = arith.index_cast %b : index to i32
      %t = tensor.from_elements %e, %f : tensor<2xi32>
      %s = mesh.sharding @m split_axes = [[1], [0]] : !mesh.sharding
      %p = mesh.process_linear_index on @m : index
      %s0, %s1 = mesh.shard_shape 10x7 %s %p : index, index
      return %d, %down, %up, %0, %t, %s0, %s1 : index, index, index, tensor<f32>, tensor<2xi32>, index, index
    }"""


def test_scalars_are_one_element_on_each_device() -> None:
    numbers, chosen = np.arange(8, dtype=np.int32) * 3, np.arange(8) % 2 == 0
    terms = np.arange(8, dtype=np.float32)
    found = [np.asarray(each) for each in meshbridge.compile(program(INDICES), local=True)(terms, numbers, chosen)]
    row, column = np.divmod(np.arange(8), 4)
    sizes = [simulator.shard_shape((2, 4), (10, 7), [[1], [0]], [], [], device) for device in simulator.devices((2, 4))]
    neighbours = [simulator.neighbors_linear_indices((2, 4), device, [1]) for device in simulator.devices((2, 4))]
    expected = [
        np.where(chosen, row + numbers, column),
        *np.array(neighbours).T,
        np.repeat(terms.reshape(2, 4).sum(1), 4),
        np.stack([row, column], 1).ravel(),
        *np.array(sizes).T,
    ]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_scalars_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "indices.mlir"
    path.write_text(INDICES)
    assert cli.main(["verify", str(path), "--local"]) == 0


def test_shard_shapes_and_index_tensors_of_a_run(tmp_path: Path) -> None:
    """Offsets, halo sizes and dimensions that only a run knows, and tensors of indices."""
    text = """
    mesh.mesh @m(shape = 2x4)
    func.func @main(%n: index, %o: i32, %h: i32) -> (tensor<2xindex>, tensor<3xindex>, tensor<2xi32>) {
      %a, %b = mesh.process_multi_index on @m : index, index
      %t = tensor.from_elements %a, %b : tensor<2xindex>
      %cast = arith.index_cast %t : tensor<2xindex> to tensor<2xi32>
      %wide = arith.extsi %o : i32 to i64
      %halo = arith.extsi %h : i32 to i64
      %p = mesh.process_linear_index on @m : index
      %s = mesh.sharding @m split_axes = [[0]] sharded_dims_offsets = [0, %wide, 10] : !mesh.sharding
      %d = mesh.sharding @m split_axes = [[1]] halo_sizes = [1, %halo] : !mesh.sharding
      %0, %1 = mesh.shard_shape ?x7 %s %p : index, index
      %2, %3 = mesh.shard_shape dims = [%n, 8] sharding = %d device = [%a, %b] : index, index
      %sizes = tensor.from_elements %0, %1, %2 : tensor<3xindex>
      return %t, %sizes, %cast : tensor<2xindex>, tensor<3xindex>, tensor<2xi32>
    }"""
    full = (np.full(8, value, np.int32) for value in (10, 4, 2))
    index, sizes, cast = (np.asarray(each) for each in meshbridge.compile(program(text), local=True)(*full))
    devices = simulator.devices((2, 4))
    np.testing.assert_array_equal(index, np.ravel(devices))
    np.testing.assert_array_equal(cast, np.ravel(devices))
    expected = [
        (
            *simulator.shard_shape((2, 4), (10, 7), [[0]], [], [0, 4, 10], device),
            simulator.shard_shape((2, 4), (10, 8), [[1]], [1, 2], [], device)[0],
        )
        for device in devices
    ]
    np.testing.assert_array_equal(sizes, np.ravel(expected))
    path = tmp_path / "sizes.mlir"
    path.write_text(text)
    assert cli.main(["verify", str(path), "--local"]) == 0


INS: Shardings = [[[], [], [0]], [[], [0]], "[[0]]"]
SHARDINGS: tuple[Shardings, Shardings] = (INS, [[[], [], [0]]])


def last_stage() -> Program:
    return meshbridge.load(RFC / "mlp_1d_weight_stationary_partitioned.mlir")


def test_the_rfcs_last_stage_computes_the_first() -> None:
    x, up, down = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((2, 4, 8), (8, 32), (32, 8)))
    (found,) = meshbridge.compile(last_stage(), local=SHARDINGS)(x, up, down)
    np.testing.assert_allclose(np.asarray(found), np.maximum(x @ up, 0) @ down, rtol=1e-5, atol=1e-5)


def test_a_local_program_becomes_what_jax_calls() -> None:
    exported = meshbridge.partition(last_stage(), local=SHARDINGS)
    assert verify(meshbridge.load(RFC / "mlp_1d_weight_stationary.mlir").module, exported.module).equal


def test_a_wrong_local_program_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.mlir"
    wrong.write_text((RFC / "mlp_1d_weight_stationary_partitioned.mlir").read_text().replace("mhlo.maximum", "mhlo.minimum"))
    assert cli.main(["verify", str(RFC / "mlp_1d_weight_stationary.mlir"), str(wrong), "--local"]) == 1
    assert "different" in capsys.readouterr().out


def test_a_local_program_is_reported() -> None:
    report = meshbridge.report(last_stage(), local=True)
    assert report.bytes_by_kind() == {"all_gather": 128, "reduce_scatter": 128}


def test_shardings_that_several_axes_could_be_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On 2x2 devices a shard of half the size is one along either axis."""
    source, local = tmp_path / "source.mlir", tmp_path / "local.mlir"
    function = "func.func @main(%x: tensor<{0}xf32>) -> tensor<{0}xf32> {{ return %x : tensor<{0}xf32> }}"
    source.write_text(function.format(8))
    local.write_text("mesh.mesh @m(shape = 2x2)\n" + function.format(4))
    command = ["verify", str(source), str(local), "--local"]
    assert cli.main(command) == 1
    assert "sharded in 2 ways along the axes of @m\n  hint: say how by --in-shardings" in capsys.readouterr().err
    assert cli.main([*command, "--in-shardings", "[[1]]", "--out-shardings", "[[1]]"]) == 0
    assert cli.main([*command, "--in-shardings", "[[1]]", "--out-shardings", "[[0]]"]) == 1


def test_what_jax_exports_is_no_local_program() -> None:
    exported = jax.export.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((4,), np.float32))
    with pytest.raises(MeshError, match="computes on global arrays, expected one device's program"):
        meshbridge.partition(exported, local=True)


def test_a_program_that_nothing_says_the_devices_of() -> None:
    module = parse("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", "f.mlir", context())
    with pytest.raises(MeshError, match="declares no mesh, and nothing in it says how many devices run it"):
        meshbridge.partition(module, local=True)


def test_devices_of_a_program_without_mesh_run() -> None:
    """StableHLO alone, as other compilers write one device's program."""
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<8xf32> {
      %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64,
        replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}> : (tensor<2xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    x = np.arange(16, dtype=np.float32)
    shards: dict[Index, np.ndarray] = {(number,): x[2 * number : 2 * number + 2] for number in range(8)}
    (results,) = meshbridge.compile(program(text), local=True)(x)
    found = np.asarray(results).reshape(8, 8)
    for number in range(8):
        expected = np.concatenate([shards[other,] for other in range(number % 2, 8, 2)])
        np.testing.assert_array_equal(found[number], expected)
    assert prod(found.shape) == 64
