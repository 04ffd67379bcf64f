"""What is written, and how much work it takes, does not grow with devices: programs on up to 65,536."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from meshbridge import resharding
from meshbridge.ir import groups, mlir, per_device
from meshbridge.ir.mlir import ir
from meshbridge.ops import permute_rounds
from meshbridge.pipeline import Options
from meshbridge.read import formats
from meshbridge.reports import partition_and_report
from meshbridge.resharding import planner, price, uneven
from meshbridge.tools import cli, mesh_opt
from testdata.catalogue import build
from testdata.scaled import scaled
from tests.mesh_axes import SPELLINGS, needs_mesh_axes
from tests.work import lines_run

MESHES = ((2, 4), (16, 16), (64, 64), (256, 256))
WIDTH = 65536


@cache
def step(shape: tuple[int, int]) -> export.Exported:
    """Forward and backward of two layers, of sizes that all of MESHES divide."""
    mesh = AbstractMesh(shape, ("data", "model"))

    def sharded(*spec: object) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def loss(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jax.nn.softmax(jnp.tanh(x @ up) @ down, axis=-1)
        return jnp.mean(jnp.square(x))

    arguments = (
        [tuple(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32) for _ in range(2))] * 2,
        jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
    )
    shardings = ([(sharded("data", "model"), sharded("model", "data"))] * 2, sharded("data", None))
    trained = jax.jit(jax.value_and_grad(loss), in_shardings=shardings, out_shardings=(sharded(), shardings[0]))
    return export.export(trained)(*arguments)


def lowered(shape: tuple[int, int], form: str, spelling: str = "auto") -> tuple[ir.Module, bytes, meshbridge.Report]:
    """The program lowered, in bytes as it is saved, and its report."""
    program = formats.unpack(step(shape), mlir.context())
    report, _ = partition_and_report(program.module, Options(emit=form, replica_groups=spelling))  # type: ignore[arg-type]
    if form == "local":
        return program.module, mlir.to_bytecode(program.module), report
    return program.module, formats.pack(program).mlir_module_serialized, report


@pytest.mark.parametrize("form", ["exported", "local"])
@needs_mesh_axes
def test_what_is_written_does_not_grow(form: str) -> None:
    """Where shards are small, other shardings are decided: as many ops, but not the same."""
    few, few_bytes, _ = lowered(MESHES[0], form)
    for shape in MESHES[1:]:
        many, many_bytes, report = lowered(shape, form)
        assert len(mlir.walk_all(many)) <= 1.1 * len(mlir.walk_all(few))
        assert len(str(many)) <= 2 * len(str(few))
        assert len(many_bytes) <= 1.1 * len(few_bytes)
        assert report.mesh.size == shape[0] * shape[1]
        assert report.wire_bytes > 0


@pytest.mark.slow
@needs_mesh_axes
def test_uneven_programs_do_not_grow() -> None:
    """Sizes that 4,096 does not divide: blocks change lengths, axes change places, and tokens are shifted by one."""
    texts = []
    for data, model in (MESHES[0], MESHES[-1]):
        program = formats.unpack(scaled(1, data, model, "uneven").export_for("cpu"), mlir.context())
        partition_and_report(program.module, Options.of(machine="bytes"))
        texts.append(str(program.module))
    assert PAIRS not in texts[1]
    assert len(texts[1]) <= 2 * len(texts[0])


def test_work_does_not_grow() -> None:
    for shape in (MESHES[0], MESHES[-1]):
        lowered(shape, "exported")  # what is read and computed once
    few, many = (lines_run(partial(lowered, shape, "exported")) for shape in (MESHES[0], MESHES[-1]))
    assert many <= 1.5 * few


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_users_choice_of_spelling_stands(spelling: str) -> None:
    for shape in MESHES[:2]:
        module, _, _ = lowered(shape, "exported", spelling)
        assert {isinstance(each, ir.DenseElementsAttr) for each in written(module)} == {spelling == "dense"}


def written(module: ir.Module) -> list[ir.Attribute]:
    """The device groups of all collectives."""
    return [op.attributes["replica_groups"] for op in mlir.walk_all(module) if "replica_groups" in op.attributes]


ROWS_OF_ONE_AXIS = 2**20


def padded(low: int, high: int, interior: int = 0) -> Callable[[jax.Array], jax.Array]:
    """Padding of rows; less than none cuts some off."""
    return lambda x: jax.lax.pad(x, jnp.float32(0), ((low, high, interior), (0, 0, 0)))


FAMILIES = {
    "halo": lambda x: jax.lax.conv_general_dilated(
        x[None], jnp.ones((5, 4, 4)), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "windows backward": jax.grad(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (2, 1), "SAME").sum()),
    "scan": lambda x: jnp.cumsum(x, axis=0),
    "sort": lambda x: jnp.sort(x, axis=0),
    "argmax": lambda x: jnp.argmax(x, axis=0),
    "roll": lambda x: jnp.roll(x, 3, axis=0),
    "reverse": lambda x: x[::-1],
    "pad": lambda x: jnp.pad(x, ((3, 5), (0, 0))),
    "pad before": padded(1000, 0),
    "pad after": padded(0, 777),
    "crop": padded(-3, -700),
    "crop before, pad after": padded(-500, 900),
    "pad between": padded(5, -3, 2),
    "crop of a pad between": padded(-50, -3, 6),
    "pad of uneven shards": lambda x: jnp.pad(jnp.sin(x[:-701]), ((0, 500), (0, 0))),
    "strided slice": lambda x: x[5:-3:2],
    "uneven strided slice": lambda x: x[5:-3:3],
    "reversed strided slice": lambda x: x[-7:9:-3],
    "half": lambda x: jnp.sin(x[: x.shape[0] // 2 + 9]),
    "dilated convolution": lambda x: jax.lax.conv_general_dilated(
        x[None], jnp.ones((5, 4, 4)), (2,), [(7, 300)], (3,), (2,), dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "uneven pooling": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (3, 1), ((1, 0), (0, 0))),
    "uneven pooling backward": jax.grad(
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (5, 1), (3, 1), ((1, 70), (0, 0))).sum()
    ),
    "dynamic slice": lambda x: jax.lax.dynamic_slice(x, (jnp.int32(x[0, 0]), 0), (4096, 4)),
    "gather": lambda x: x[jnp.arange(4096) * 7],
    "Fourier": lambda x: jnp.fft.fft(x, axis=0),
}
"""One function of each family of ops on an array that is sharded by rows."""

PLANES = {
    "pad of both dimensions": lambda x: jnp.pad(x, ((3, 5), (7, 0))),
    "crop and pad": lambda x: jax.lax.pad(x, jnp.float32(0), ((-3, 99, 0), (70, -30, 0))),
    "strided slice of both dimensions": lambda x: x[5:-3:3, -7:9:-2],
}
"""The same of one that is sharded in both dimensions."""


def family(name: str, devices: int, rows: int = ROWS_OF_ONE_AXIS) -> export.Exported:
    """The function on as many devices, along one axis or two."""
    axes, sizes = [devices], (rows, 4)
    if name in PLANES:
        inner = 1 << (devices.bit_length() // 2)
        axes, sizes = [devices // inner, inner], (rows, rows)
    names = ("x", "y")[: len(axes)]
    sharding = NamedSharding(AbstractMesh(tuple(axes), names), P(*names))
    jitted = jax.jit((FAMILIES | PLANES)[name], in_shardings=sharding)
    return export.export(jitted)(jax.ShapeDtypeStruct(sizes, jnp.float32))


WINDOWS = [name for name in FAMILIES if name not in ("scan", "sort", "argmax", "roll", "dynamic slice", "gather", "Fourier")]
"""Those that read windows over the edges of shards."""

PAIRS = "source_target_pairs"

SHIFTS = ("halo", "windows backward", "roll", "strided slice", "crop", "pad between", "crop of a pad between")
"""Pieces of a few elements go to neighbours in one permute on few devices, in all-to-alls digit by digit on 65,536."""


@cache
def length(name: str, devices: int) -> tuple[int, int]:
    """Ops of the function on as many devices, and the length of their text but for pairs of permutes."""
    program = formats.unpack(family(name, devices), mlir.context())
    partition_and_report(program.module, Options())
    ops = mlir.walk_all(program.module)
    pairs = sum(len(str(op.attributes[PAIRS])) for op in ops if PAIRS in op.attributes)
    text = str(program.module)
    assert all(int(entries) <= per_device.LISTED for entries in TABLE.findall(text))
    return len(ops), len(text) - pairs


TABLE = re.compile(r"stablehlo.constant dense<[\[\"].*> : tensor<(\d+)x")

UNEQUAL = (
    "uneven strided slice",
    "reversed strided slice",
    "dilated convolution",
    "uneven pooling",
    "uneven pooling backward",
    *PLANES,
)
"""On few devices all pieces go to the next one or two, and tables say where they begin. On many devices three rounds of permutes
bring them from further away, and arithmetic says it."""


@pytest.mark.parametrize("devices", [4096, 65536])
@pytest.mark.parametrize("name", [*FAMILIES, *PLANES])
@needs_mesh_axes
def test_families_do_not_grow_but_for_pairs_of_permutes(name: str, devices: int) -> None:
    found = [length(name, count) for count in (8, devices)]
    (few_ops, few_text), (many_ops, many_text) = found
    growth = (7, 10) if name in SHIFTS and devices > groups.SHIFTED_DEVICES else (4, 3) if name in UNEQUAL else (2.2, 2.2)
    assert many_ops <= growth[0] * few_ops
    assert many_text <= growth[1] * few_text


@pytest.mark.parametrize("most_shifts", [permute_rounds.MOST_SHIFTS, -8], ids=["by distance", "by number"])
@pytest.mark.parametrize("name", [*WINDOWS, *PLANES])
def test_what_is_computed_from_a_devices_number_is_right(name: str, most_shifts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic of many devices on 8 of them, and rounds of pieces that go equally far or not."""
    monkeypatch.setattr(per_device, "LISTED", 0)
    monkeypatch.setattr(permute_rounds, "MOST_SHIFTS", most_shifts)
    permute_rounds.permute_rounds.cache_clear()
    rows = 509 * 8 if name not in PLANES else 8 * 29
    partitioned = meshbridge.partition(family(name, 8, rows))
    permute_rounds.permute_rounds.cache_clear()
    assert not TABLE.search(partitioned.mlir_module())
    sizes, names = ((2, 4), ("x", "y")) if name in PLANES else ((8,), ("x",))
    sharding = NamedSharding(jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes)), P(*names))
    x = np.random.default_rng(7).normal(size=partitioned.in_avals[0].shape).astype(np.float32)
    np.testing.assert_allclose(jax.jit(partitioned.call)(jax.device_put(x, sharding)), (FAMILIES | PLANES)[name](x), atol=1e-5)


@pytest.mark.parametrize("name", SHIFTS)
@needs_mesh_axes
def test_shifts_list_few_devices(name: str) -> None:
    """Where a permute to a neighbour is not too long to write, no all-to-alls across the axis take its place."""
    for devices in (4096, 65536):
        program = formats.unpack(family(name, devices), mlir.context())
        partition_and_report(program.module, Options())
        assert any(PAIRS in op.attributes for op in mlir.walk_all(program.module)) == (devices == 4096)


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No permute lists devices, as on large meshes. Prices and plans are made anew: others were made with lists."""

    def forget() -> None:
        for module in (planner, price, permute_rounds, uneven):
            for each in vars(module).values():
                if hasattr(each, "cache_clear"):
                    each.cache_clear()

    monkeypatch.setattr(groups, "LISTED_DEVICES", 0)
    monkeypatch.setattr(groups, "SHIFTED_DEVICES", 0)
    monkeypatch.setattr(resharding.PlanOptions, "permutes", lambda self, mesh: int(not groups.names_axes(mesh)))
    forget()
    yield
    forget()


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("llama_fsdp_tp", "llama_scan_fsdp", "unet")), "loop_stencil"],
)
@pytest.mark.usefixtures("unlisted")
@needs_mesh_axes
def test_programs_without_lists_of_devices_compute_the_same(name: str) -> None:
    program = build(name)
    partitioned = meshbridge.partition(program.export())
    assert PAIRS not in partitioned.mlir_module()
    arguments, results = program.jit_shardings(program.mesh())
    found = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results)(*placed(program))
    assert relative_error(found, unsharded(program)) < program.tolerance


@pytest.mark.parametrize(
    "name", ["vocab_ce", "loop_stencil", pytest.param("vit", marks=pytest.mark.slow), "moe_fwd", "cp_attn_fwd", "misc_sort"]
)
@needs_mesh_axes
def test_groups_by_axes_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 8 devices, which otherwise are listed."""
    monkeypatch.setattr(groups, "DENSE_DEVICES", 0)
    program = build(name)
    partitioned = meshbridge.partition(program.export())
    module = formats.unpack(partitioned, mlir.context()).module
    assert not any(isinstance(each, ir.DenseElementsAttr) for each in written(module))
    arguments, results = program.jit_shardings(program.mesh())
    found = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results)(*placed(program))
    assert relative_error(found, unsharded(program)) < program.tolerance


@needs_mesh_axes
def test_groups_by_axes_within_a_program_on_other_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA keeps one of a module's meshes: groups say the same devices whatever meshes a caller has, or it refuses them."""
    monkeypatch.setattr(groups, "DENSE_DEVICES", 0)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, columns = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y", None))
    matmul = jax.jit(jnp.matmul, in_shardings=(rows, columns), out_shardings=NamedSharding(mesh, P("x", "y")))
    left, right = jnp.arange(64.0).reshape(8, 8), jnp.arange(64.0).reshape(8, 8) % 5
    exported = meshbridge.partition(export.export(matmul)(left, right))
    for sizes, names in (((4, 2), ("y", "x")), ((2, 4), ("y", "x")), ((8,), ("x",)), ((2, 4), ("x", "y"))):
        other = jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
        sharding = NamedSharding(other, P(names))

        @jax.jit
        def outer(a: jax.Array, b: jax.Array, sharding: NamedSharding = sharding) -> jax.Array:
            return exported.call(jax.lax.with_sharding_constraint(a, sharding), b) + 1

        np.testing.assert_allclose(outer(jax.device_put(left, sharding), jax.device_put(right, sharding)), left @ right + 1)


def of_one_tensor(mesh: str, type_: str, body: str = "") -> str:
    """A program of one argument sharded by rows, and a result of its type sharded by columns."""
    sharding = "sdy.sharding = #sdy.sharding<@mesh, "
    return f"""
sdy.mesh @mesh = <[{mesh}]>
func.func @main(%a: {type_} {{{sharding}[{{"x"}}, {{}}]>}}) -> ({type_} {{{sharding}[{{}}, {{"x"}}]>}}) {{
  {body or f"%0 = stablehlo.negate %a : {type_}"}
  return %0 : {type_}
}}"""


ROWS = "tensor<8589934592x16xf32>"
HALF = "tensor<4294967296x16xf32>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of_one_tensor('"x"=65536, "y"=65536', "tensor<65536x8xf32>"), "has 4294967296 devices, expected at most 1048576"),
        (of_one_tensor('"x"=4294967296, "y"=4294967296', "tensor<8x8xf32>"), "has 18446744073709551616 devices, expected"),
        (
            of_one_tensor('"x"=4', "tensor<4294967296x4294967296xf32>"),
            "has a tensor of 7.38e+19 bytes, tensor<4294967296x",
        ),
        (of_one_tensor('"x"=2', "tensor<9223372036854775806x4xi8>"), "has a tensor of 3.69e+19 bytes"),
        (of_one_tensor('"x"=4', "tensor<8589934593x16xf32>"), "needs positions up to 8589934596 in a sharded dimension"),
        (
            of_one_tensor('"x"=4', ROWS, f"%1 = stablehlo.iota dim = 0 : {ROWS}\n  %0 = stablehlo.add %a, %1 : {ROWS}"),
            "needs positions up to 8589934592",
        ),
        (
            of_one_tensor(
                '"x"=4',
                ROWS,
                f"%1 = stablehlo.slice %a [4294967296:8589934592, 0:16] : ({ROWS}) -> {HALF}\n"
                f"  %0 = stablehlo.concatenate %1, %1, dim = 0 : ({HALF}, {HALF}) -> {ROWS}",
            ),
            "needs positions up to 4294967296",
        ),
    ],
)
def test_what_is_too_large_is_refused(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By one diagnostic with a place, what was found and expected, and a way out; and no file is written."""
    (tmp_path / "in.mlir").write_text(text)
    assert cli.main(["partition", str(tmp_path / "in.mlir"), "-o", str(tmp_path / "out.mlir")]) == 1
    found = capsys.readouterr().err
    assert said in found
    assert (found.count("error:"), found.count("hint:"), found.count("\n")) == (1, 1, 2)
    assert "in.mlir:" in found
    assert not (tmp_path / "out.mlir").exists()


def test_large_dimensions_without_positions_are_partitioned() -> None:
    """Even shards are gathered and exchanged by whole pieces, whatever their number of elements."""
    module = formats.read(of_one_tensor('"x"=4', ROWS).encode(), "in.mlir", mlir.context()).module
    partition_and_report(module, Options())
    assert "tensor<2147483648x16xf32>" in str(module)


def test_a_mesh_too_large_to_be_listed_is_not_lowered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.mlir").write_text("""
mesh.mesh @m(shape = 65536x65536)
func.func @main(%x: tensor<65536xf32>) -> tensor<1xf32> {
  %0 = mesh.all_slice %x on @m mesh_axes = [0] slice_axis = 0 : tensor<65536xf32> -> tensor<1xf32>
  return %0 : tensor<1xf32>
}""")
    assert mesh_opt.main([str(tmp_path / "in.mlir"), "--lower-collectives"]) == 1
    assert "has 4294967296 devices, expected at most 1048576" in capsys.readouterr().err


@pytest.mark.slow
@needs_mesh_axes
def test_128_devices_compute_what_one_does() -> None:
    """From an artifact, within callers on two meshes, and by PJRT."""
    command = [sys.executable, "-m", "tests.growth.many_devices"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert found.stdout == "by axes: True by lists: False\n", found.stderr[-2000:]
