"""The same JAX function, exported with Shardy and with GSPMD, is the same mesh IR up to the names of axes and symbols."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import xla_client

from meshbridge.ir import mlir
from meshbridge.ir.errors import ShardingWarning
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.upstream.sharding_propagation import ShardingPropagation
from meshbridge_converters import group_meshes, gspmd, hlo_shardings, mesh_inference, sdy
from tests.converters import jax_programs as programs


def lowered(program: Callable[[Mesh, jax.Array], jax.Array], shardy: bool, out: P | None = None) -> str:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax._src.config.use_shardy_partitioner(shardy):
        out_shardings = None if out is None else NamedSharding(mesh, out)
        jitted = jax.jit(partial(program, mesh), in_shardings=NamedSharding(mesh, P("data")), out_shardings=out_shardings)
        return str(jitted.lower(programs.X).as_text())


def imported(text: str, convert: Callable[[ir.Module], None]) -> str:
    """Mesh IR without calls and names."""
    module = mlir.parse(text, "program.mlir", mlir.context())
    with module.context:
        group_meshes.list_devices(module)  # as JAX does for GSPMD
    convert(module)
    InlineCalls().run(module)
    module.operation.verify()
    printed = str(module).replace('"data"', '"0"').replace('"model"', '"1"')
    printed = re.sub(r'.*sym_name = "mesh_0".*\n', "", printed)  # of groups that jax 0.12 had along axes
    printed = re.sub(r"group_id=\d+", "group_id=0", printed)  # JAX counts groups per process
    return re.sub(
        r'meshbridge.axis_names = \["0", "1"\], |, stablehlo.mesh = .*(?=, sym_name)| \{jax.result_info[^}]*\}',
        "",
        printed,
    )


SAID_ALIKE = [each for each in programs.PROGRAMS if each is not programs.nested or jax.__version_info__ < (0, 11)]
"""From 0.11 on JAX adds to a nested `shard_map` a constraint that says nothing, and leaves it out for GSPMD."""


@pytest.mark.parametrize("program", SAID_ALIKE, ids=lambda program: program.__name__)
def test_same_as_from_shardy(program: Callable[[Mesh, jax.Array], jax.Array]) -> None:
    from_shardy = imported(lowered(program, True), sdy.import_module)
    from_gspmd = imported(lowered(program, False), gspmd.import_module)
    assert "mhlo.sharding" not in from_gspmd
    assert from_gspmd == from_shardy


def shape_and_order(*annotations: str, devices: int = 8) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The mesh that is inferred for some tilings."""
    tilings = [tiling for text in annotations for tiling in hlo_shardings.parse(text)]
    mesh = mesh_inference.infer(tilings, devices)
    return mesh.shape, mesh.device_ids


@pytest.mark.parametrize(
    ("annotations", "shape", "order"),
    [
        (["{replicated}"], (8,), ()),
        (["{devices=[8,1]<=[8]}"], (8,), ()),
        (["{devices=[2,4]<=[8]}"], (2, 4), ()),
        (["{devices=[4,2]<=[2,4]T(1,0)}"], (2, 4), ()),
        (["{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[8,1]<=[8]}"], (2, 4), ()),
        (["{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"], (2, 2, 2), ()),
        (["{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"], (2, 4), ()),
        (["{devices=[2,4]<=[4,2]T(1,0) last_tile_dims={unreduced}}"], (4, 2), ()),
        (["{devices=[2,4]0,1,2,3,4,5,6,7}"], (2, 4), ()),
        (["{devices=[2,4]7,6,5,4,3,2,1,0}"], (2, 4), (7, 6, 5, 4, 3, 2, 1, 0)),
        # Devices of one replicated group are listed in any order, here in that of their numbers.
        (
            ["{devices=[2,1,4]4,5,6,7,0,1,2,3 last_tile_dim_replicate}", "{devices=[2,4]4,6,5,7,0,2,1,3}"],
            (2, 4),
            (4, 6, 5, 7, 0, 2, 1, 3),
        ),
        (["{{devices=[2,4]<=[8]}, {manual}, {maximal device=3}}"], (2, 4), ()),
    ],
)
def test_coarsest_mesh(annotations: list[str], shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    assert shape_and_order(*annotations) == (shape, order)


ARGUMENT = """
  module attributes {mhlo.num_partitions = 8 : i32} {
    func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x16xf32> {
      %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
        : (tensor<8x16xf32>) -> tensor<8x16xf32>
      %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "ANNOTATION"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %1 : tensor<8x16xf32>
    }
  }"""


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("nonsense", "not an HloSharding: expected '{', found 'nonsense' at character 0"),
        ("{}", "it is empty"),
        ("{devices=[2,4]<=[9]}", "devices=[2,4] has 8 tiles, but <=[9] has 9 devices"),
        ("{devices=[2,4]<=[2,4]T(0,0)}", "T(0,0) is not a permutation of the dimensions of [2,4]"),
        ("{devices=[2,2]0,1,1,2}", "devices=[2,2] needs the devices 0 to 3, each once, found 0,1,1,2"),
        ("{devices=[0,2]<=[0]}", "expected an integer of at least 1 and at most 18 digits, found '0' at character 10"),
        ("{devices=[100000000000,1]<=[100000000000]}", "has 100000000000 tiles, expected at most 1048576"),
        ("{devices=[2,2,2]<=[8] last_tile_dims={manual} last_tile_dim_replicate}", "says both last_tile_dims and last_tile"),
        ("{devices=[2]<=[2] last_tile_dims={manual,replicated}}", "last_tile_dims names 2 dimensions, devices has 1"),
        ("{maximal}", "maximal needs device"),
        ("{maximal device=-1}", "expected an integer of at least 0 and at most 18 digits, found '-1'"),
        ("{maximal device=8}", "carries a sharding on device 8, expected one of 0 to 7"),
        ("{replicated manual}", "it says both replicated and manual"),
        ("{replicated metadata={op_name=\\22f\\22}", "expected '}', found its end"),
        ("{replicated metadata={op_name=f", "expected '}' after the metadata, found its end"),
        ("{metadata={op_name=\\22f\\22}}", "expected one of replicated, manual, unreduced, unknown, maximal, devices in it"),
        ("{mesh['x'=2], [{'z'}, {}]}", "unknown axis 'z', expected one of the mesh's axes: 'x'"),
        ("{mesh['x'=2,'y'=4], [{'x'}, {'x'}]}", 'the axis "x" is used twice'),
        ("{mesh['x'=8], [{'x':(1)2,'x':(2)2}, {}]}", '"x":(1)2 and "x":(2)2 stand side by side, expected them as one'),
        ("{mesh['x'=8], [{'x':(1)8}, {}]}", "\"x\":(1)8 is not a part of the axis 'x' of size 8"),
        ("{mesh['x'=2,'x'=4], [{}, {}]}", "two axes of one name"),
        ("{mesh['x'=100000000000], [{'x'}, {}]}", "the mesh has 100000000000 devices, expected at most 1048576"),
        ("{mesh['x'=8], [{'x'}, {}]}", "carries a tiling by device numbers, while other shardings of the module name mesh axes"),
        ("{devices=[4,1]<=[4]}", "devices=[4,1]0,1,2,3 has 4 devices, expected 8"),
        ("{devices=[8,1]0,1,2,3,4,5,7,6}", "devices=[8,1]0,1,2,3,4,5,7,6 is not a mesh of axes"),
        ("{devices=[8]<=[8]}", "carries a tiling of 1 dimensions for a value of rank 2"),
        ("{{replicated}, {replicated}}", "carries a tuple of 2 shardings, expected one"),
        (
            "{manual}",
            "carries a sharding that is manual along the mesh axes 0, 1, but stands in no manual",
        ),
        ("{devices=[2,1,4]<=[8] last_tile_dims={manual}}", "carries a sharding that is manual along the mesh axes 1, but"),
    ],
)
def test_malformed_annotation(annotation: str, message: str) -> None:
    module = mlir.parse(ARGUMENT.replace("ANNOTATION", annotation), "input.mlir", mlir.context())
    with pytest.raises(OpError) as caught:
        gspmd.import_module(module)
    assert message in str(caught.value)
    line = 4 if "device numbers" in message else 6
    assert re.match(rf"[^:]*:{line}:12: error: 'stablehlo.custom_call' op ", str(caught.value))


WITH_METADATA = {
    r"""{replicated metadata={op_name="a } b" source_line=3}}""": "{replicated}",
    r"""{metadata={{op_name="a"}, {op_name="b \"c\""}} devices=[2,4]<=[8]}""": "{devices=[2,4]<=[8]}",
    r"""{devices=[2,2]<=[4] metadata={op_name="f"} last_tile_dim_replicate}""": "{devices=[2,2]<=[4] last_tile_dim_replicate}",
    r"""{mesh['x'=2,'y'=4], [{'x'}], metadata={op_name="f"}, unreduced={'y'}}""": "{mesh['x'=2,'y'=4], [{'x'}], unreduced={'y'}}",
    r"""{mesh['x'=2], [{'x'}, {}], metadata={op_name="f"}}""": "{mesh['x'=2], [{'x'}, {}]}",
    r"""{mesh['x'=2], replicated, metadata={op_name="f"}}""": "{mesh['x'=2], replicated}",
    r"""{maximal_mesh[device_id=3], metadata={op_name="f"}}""": "{maximal_mesh[device_id=3]}",
}


@pytest.mark.parametrize(("annotation", "without"), WITH_METADATA.items())
def test_metadata_is_read_over(annotation: str, without: str) -> None:
    assert hlo_shardings.parse(annotation) == hlo_shardings.parse(without)
    if jax.__version_info__ >= (0, 10):  # before, XLA read no names of axes
        assert str(xla_client.HloSharding.from_string(annotation)) == str(xla_client.HloSharding.from_string(without))


def test_metadata_is_warned_of_once() -> None:
    text = WORDS.replace("ANNOTATION", r"{devices=[2,4]<=[8] metadata={op_name=\22f\22}}").replace("RESULT", "{replicated}")
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.warns(ShardingWarning) as caught:
        gspmd.import_module(module)
    (warning,) = caught
    expected = "'func.func' op carries metadata in mhlo.sharding (and so do 2 more annotations)"
    assert re.match(rf"[^:]*:3:5: warning: {re.escape(expected)}, which", str(warning.message))
    gspmd.export_module(module)
    assert str(module).count('mhlo.sharding = "{devices=[2,4]<=[8]}"') == 3


WORDS = """
  module attributes {mhlo.num_partitions = 8 : i32} {
    func.func @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "ANNOTATION"}) -> (tensor<8x16xf32> {mhlo.sharding = "RESULT"}) {
      %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "ANNOTATION"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
      %1 = stablehlo.tanh %0 {mhlo.sharding = "ANNOTATION"} : tensor<8x16xf32>
      return %1 : tensor<8x16xf32>
    }
  }"""


@pytest.mark.parametrize(
    "annotation",
    [
        "{replicated}",
        "{unknown}",
        "{unreduced}",
        "{maximal device=3}",
        "{devices=[2,1,4]<=[8] last_tile_dims={unreduced}}",
        "{replicated shard_as 3}",
        "{devices=[2,4]<=[8] shard_like 3}",
        "{mesh['x'=2,'y'=4], [{'y'}, {?}]}",
        "{mesh['x'=2,'y'=4], [{'y', ?}, {'x'}]}",
        "{mesh['x'=2,'y'=4], [{}, {}]}",
        "{mesh['x'=2,'y'=4], device_ids=(7,6,5,4,3,2,1,0), [{'x'}, {}], replicated={'y':(1)2}, unreduced={'y':(2)2}}",
        "{mesh['x'=2,'y'=4], [{'y':(2)2, 'y':(1)2}, {}]}",
    ],
)
def test_every_word_comes_back(annotation: str) -> None:
    result = re.sub(r" shard_(as|like) \d+", "", annotation)  # results are in no group
    text = WORDS.replace("ANNOTATION", annotation).replace("RESULT", result)
    module, expected = (mlir.parse(text, "input.mlir", mlir.context()) for _ in range(2))
    gspmd.import_module(module)
    assert "mhlo.sharding" not in str(module)
    gspmd.export_module(module)
    module.operation.verify()
    assert str(module) == str(expected)


@pytest.mark.parametrize("word", ["shard_as", "shard_like"])
def test_a_call_that_only_names_a_group_comes_back(word: str) -> None:
    text = ARGUMENT.replace("ANNOTATION", f"{{unknown {word} 3}}")
    module = mlir.parse(text, "input.mlir", mlir.context())
    gspmd.import_module(module)
    gspmd.export_module(module)
    assert f'mhlo.sharding = "{{unknown {word} 3}}"' in str(module)


def test_a_group_on_a_result_is_refused() -> None:
    text = WORDS.replace("ANNOTATION", "{replicated}").replace("RESULT", "{replicated shard_as 1}")
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(OpError, match="has shard_as or shard_like on result 0, expected it on a @Sharding call"):
        gspmd.import_module(module)


def test_unreduced_over_unknown_devices_is_refused() -> None:
    text = (
        WORDS.replace("ANNOTATION", "{unreduced}").replace("RESULT", "{replicated}").replace("mhlo.num_partitions = 8 : i32", "")
    )
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(OpError, match=r"carries \{unreduced\}, but nothing says over which devices"):
        gspmd.import_module(module)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(%arg0) {", "(%arg0, %arg0) {", "with 2 operands and 1 results, expected one and one"),
        ("-> tensor<8x16xf32>\n      return", "-> tensor<8x8xf32>\n      return", "expected the same type"),
        ('backend_config = ""', 'backend_config = "unspecified_dims=[2]"', "leaves dimensions [2] open of a value of rank 2"),
        ('backend_config = ""', 'backend_config = "other"', "has backend_config 'other', expected nothing or"),
        ('backend_config = ""', 'backend_config = "\\FE"', "has backend_config '\ufffd', expected nothing or"),
        ('mhlo.sharding = "ANNOTATION"', "mhlo.sharding = 5", "carries mhlo.sharding = 5 : i64, expected a string"),
    ],
)
def test_calls_that_say_nothing_we_know(old: str, new: str, message: str) -> None:
    text = """
    func.func @main(%arg0: tensor<8x16xf32>) {
      %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "ANNOTATION"}
        : OPERANDS -> tensor<8x16xf32>
      return
    }"""
    assert old in text
    text = text.replace(old, new).replace("ANNOTATION", "{replicated}")
    text = text.replace("OPERANDS", "(tensor<8x16xf32>, tensor<8x16xf32>)" if "%arg0, " in text else "(tensor<8x16xf32>)")
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(OpError, match=re.escape(message)):
        gspmd.import_module(module)


REGION = """
  func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<4x4xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<4x4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4x4xf32>
    BODY
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
      : (tensor<4x4xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.custom_call @use(%c) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %4 : tensor<8x16xf32>
  }"""


MANUAL = '{mhlo.sharding = "{manual}"}'
PARTLY_MANUAL = '{mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}'


def with_body(body: str) -> str:
    return REGION.replace("BODY", body)


def test_region_without_a_call_shares_literals_with_what_is_outside() -> None:
    module = mlir.parse(with_body("%2 = stablehlo.add %1, %c : tensor<4x4xf32>"), "input.mlir", mlir.context())
    gspmd.import_module(module)
    module.operation.verify()
    text = str(module)
    assert text.count("stablehlo.constant") == 2
    assert "custom_call @S" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_body("%2 = stablehlo.add %1, %arg1 : tensor<4x4xf32>"), "uses a block argument inside a manual region"),
        (
            with_body("%2 = stablehlo.tanh %1 : tensor<4x4xf32>").replace("Shape(%0)", "Shape(%arg0)"),
            "no @Sharding says the sharding",
        ),
        (
            with_body("%2 = stablehlo.tanh %1 : tensor<4x4xf32>").replace(f"(%2) {MANUAL}", f"(%2) {PARTLY_MANUAL}"),
            "agree on no one set of manual axes, found",
        ),
    ],
    ids=["value from outside", "no sharding", "manual axes differ"],
)
def test_regions_that_are_not_closed(text: str, message: str) -> None:
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(MeshError, match=re.escape(message)):
        gspmd.import_module(module)


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)
def test_comes_back(program: Callable[[Mesh, jax.Array], jax.Array]) -> None:
    text = lowered(program, False)
    module = mlir.parse(text, "program.mlir", mlir.context())
    unsaid = re.sub(r'(@(?:Sharding|SPMD\w+)\(\S+\) \{)backend_config = "", ', r"\1", text)  # which is the default
    expected = mlir.parse(unsaid, "program.mlir", mlir.context())
    gspmd.import_module(module)
    gspmd.export_module(module)
    module.operation.verify()
    for one in (module, expected):
        InlineCalls().run(one)
    if program is not programs.alike:  # a member of a group is used as it is, not as the call that says so returns it
        assert str(module) == str(expected)
    gspmd.import_module(module)
    gspmd.import_module(expected)
    assert str(module) == str(expected)


def partitioned_by_xla(text: str, argument: np.ndarray) -> np.ndarray:
    """Runs a program whose one argument and result are split by rows over `data`, on 8 devices, with GSPMD."""
    devices = jax.devices()
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, 8
    build = options.executable_build_options
    build.num_replicas, build.num_partitions, build.use_spmd_partitioning = 1, 8, True
    ids = np.array([device.id for device in devices]).reshape(1, 8)
    options.device_assignment = build.device_assignment = xla_client.DeviceAssignment.create(ids)
    loaded = devices[0].client.compile_and_load(text, xla_client.DeviceList(tuple(devices)), options)
    mesh = Mesh(np.array(devices).reshape(2, 4), ("data", "model"))
    sharded = jax.device_put(argument, NamedSharding(mesh, P("data")))
    (shards,) = loaded.execute_sharded([sharded]).disassemble_into_single_device_arrays()
    return np.concatenate([np.asarray(shards[0]), np.asarray(shards[4])])


@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("program", [programs.loops, programs.all_axes, programs.nested], ids=lambda program: program.__name__)
def test_closed_export_runs_on_the_partitioner_of_xla(program: Callable[[Mesh, jax.Array], jax.Array], propagated: bool) -> None:
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
    source = lowered(program, False, out=P("data"))
    module = mlir.parse(source, "program.mlir", mlir.context())
    gspmd.import_module(module)
    InlineCalls().run(module)
    if propagated:
        ShardingPropagation().run(module)
    gspmd.export_module(module, closed=True)
    assert "unspecified" not in str(module)
    np.testing.assert_allclose(partitioned_by_xla(str(module), x), partitioned_by_xla(source, x), rtol=1e-6, atol=1e-6)
