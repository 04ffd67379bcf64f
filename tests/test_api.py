"""What `partition`, `report` and `compile` take and give back, and on which mesh a program runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import api, pipeline
from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.read import formats
from meshbridge.runtime.pjrt import Executable
from meshbridge.tools import commands, console

X = np.arange(128, dtype=np.float32).reshape(8, 16)


@pytest.fixture(scope="module")
def jitted(mesh: jax.sharding.Mesh) -> Any:
    rows = NamedSharding(mesh, P("data", None))
    return jax.jit(lambda x, scale: {"sum": (x * scale).sum(axis=0)}, in_shardings=(rows, None))


@pytest.fixture(scope="module")
def artifact(jitted: Any) -> export.Exported:
    return export.export(jitted)(X, 2.0)


KEYWORDS = {
    "jit": {*api.JitKeywords.__annotations__, "compiler_options"},
    "partition": {*api.PartitionKeywords.__annotations__, *inspect.signature(api.partition).parameters},
    "search": set(inspect.signature(api.search).parameters),
}


@pytest.mark.parametrize("function", KEYWORDS)
def test_editors_complete_keywords(function: str) -> None:
    jedi = pytest.importorskip("jedi")
    code = f"import meshbridge\nmeshbridge.{function}(step, "
    completed = jedi.Script(code).complete(2, len(code.splitlines()[1]))
    found = {each.name.removesuffix("=") for each in completed if each.name.endswith("=")}
    assert found == KEYWORDS[function] - {"program", "arguments", "options"}


def module_of(artifact: export.Exported) -> ir.Module:
    return formats.unpack(artifact, mlir.context()).module


def saved(artifact: export.Exported, folder: Path) -> meshbridge.Program:
    (folder / "program").write_bytes(artifact.serialize())
    return meshbridge.load(str(folder / "program"))


KINDS: dict[str, Callable[[Any, export.Exported, Path], tuple[Any, tuple[Any, ...]]]] = {
    "exported": lambda jitted, artifact, folder: (artifact, ()),
    "program": lambda jitted, artifact, folder: (saved(artifact, folder), ()),
    "module": lambda jitted, artifact, folder: (module_of(artifact), ()),
    "lowered": lambda jitted, artifact, folder: (jitted.lower(X, jnp.float32(2)), ()),
    "jitted": lambda jitted, artifact, folder: (jitted, (X, 2.0)),
    "jitted for shapes": lambda jitted, artifact, folder: (jitted, (jax.ShapeDtypeStruct((8, 16), jnp.float32), 2.0)),
}


def text(program: Any) -> str:
    """What must not change."""
    if isinstance(program, export.Exported):
        return program.mlir_module()
    module = program.module if isinstance(program, meshbridge.Program) else program
    return str(module.compiler_ir("stablehlo") if isinstance(program, jax.stages.Lowered) else module)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_program(kind: str, jitted: Any, artifact: export.Exported, tmp_path: Path) -> None:
    program, arguments = KINDS[kind](jitted, artifact, tmp_path)
    before = "" if program is jitted else text(program)
    partitioned = meshbridge.partition(program, *arguments)
    wanted = {"lowered": ir.Module, "jitted": export.Exported, "jitted for shapes": export.Exported}
    assert isinstance(partitioned, wanted.get(kind, type(program)))
    assert partitioned is not program
    assert "sdy.manual_computation" in text(partitioned)
    assert meshbridge.report(program, *arguments).wire_bytes == meshbridge.report(artifact).wire_bytes > 0
    executable = meshbridge.compile(program, *arguments)
    found = executable(X, 2.0)
    np.testing.assert_allclose(found[0] if kind == "module" else found["sum"], 2 * X.sum(axis=0), rtol=1e-5)
    assert before == ("" if program is jitted else text(program))


def test_save_takes_what_partition_gives(artifact: export.Exported, tmp_path: Path) -> None:
    loaded = saved(artifact, tmp_path)
    for index, program in enumerate([meshbridge.partition(loaded), meshbridge.partition(artifact)]):
        meshbridge.save(program, str(tmp_path / f"{index}.jax_export"))
        assert (
            "manual_computation" in export.deserialize(bytearray((tmp_path / f"{index}.jax_export").read_bytes())).mlir_module()
        )
    meshbridge.save(meshbridge.partition(module_of(artifact)), str(tmp_path / "module.mlir"))
    assert "sdy.manual_computation" in (tmp_path / "module.mlir").read_text()


def test_options_are_those_of_the_command(artifact: export.Exported, jitted: Any, tmp_path: Path) -> None:
    """By the same names, with the same defaults; what is given is left as it is."""
    partition, report = (_choices(command) for command in ("partition", "report"))
    del partition["schedule"]  # of a mapped program, which is what `pipelined(…).mpmd` gives
    partition["emit"][0].remove("mpmd")
    assert {*partition, "layout", "machine", "memory_limit"} == {"emit", *meshbridge.api.PartitionKeywords.__annotations__}
    for command, choices in ((meshbridge.partition, partition), (meshbridge.report, report)):
        functions = (command, meshbridge.Report.table, meshbridge.pipelined)  # how a report prints, and of what schedule
        names = {name for each in functions for name in inspect.signature(each).parameters} | {
            *meshbridge.api.PartitionKeywords.__annotations__
        }
        assert set(choices) <= names
    for name, (values, default) in partition.items():
        assert default == pipeline.DEFAULTS.written(name)
        for value in values:
            pipeline.Options.of(**{name: value})  # raises for one that it does not know
    before = text(artifact)
    assert "mesh.all_reduce" in str(meshbridge.partition(artifact, emit="mesh"))
    assert "mesh.all_reduce" in str(meshbridge.partition(jitted, X, 2.0, emit="mesh", collectives="off", resharding="exact"))
    saved_as_text = meshbridge.partition(saved(artifact, tmp_path), emit="annotated")
    assert b"mesh.shard" in saved_as_text.serialize()
    assert text(artifact) == before
    with pytest.raises(MeshError, match=r"error: resharding is 'fastest', expected one of cheapest, exact"):
        meshbridge.partition(artifact, resharding="fastest")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="colectives"):
        meshbridge.partition(artifact, colectives="off")  # type: ignore[call-overload]


def _choices(command: str) -> dict[str, tuple[list[str], str]]:
    """The options of a command that have choices: these, and the default."""
    parser = console.Parser()
    commands.OPTIONS[command](parser)
    return {action.dest: (list(action.choices), action.default) for action in parser._actions if action.choices}


def test_arguments_that_a_function_takes_by_name(mesh: jax.sharding.Mesh) -> None:
    """Also one that is called like an option."""
    rows = NamedSharding(mesh, P("data"))
    function = jax.jit(lambda x, emit: jax.lax.with_sharding_constraint(x, rows).sum() * emit)
    kwargs = {"emit": 2.0}
    assert meshbridge.partition(function, X, kwargs=kwargs).in_tree == jax.tree.structure(((X,), kwargs))
    assert meshbridge.report(function, X, kwargs=kwargs).wire_bytes > 0
    assert meshbridge.convert(function, X, kwargs=kwargs, to="mesh").serialize()
    np.testing.assert_allclose(meshbridge.compile(function, X, kwargs=kwargs)(X, emit=2.0), 2 * X.sum())


def test_convert_says_the_same_in_another_notation(artifact: export.Exported, tmp_path: Path) -> None:
    before = text(artifact)
    assert b"mhlo.sharding = \"{mesh['data'=2,'model'=4]" in meshbridge.convert(module_of(artifact), to="gspmd").serialize()
    assert b'mhlo.sharding = "{devices=[' in meshbridge.convert(module_of(artifact), to="gspmd", plain=True).serialize()
    in_artifact = export.deserialize(meshbridge.convert(artifact, to="gspmd").serialize())
    assert 'mhlo.sharding = "{devices=[' in in_artifact.mlir_module()  # XLA compiles it
    assert b"mesh.shard" in meshbridge.convert(artifact, to="mesh").serialize()
    closed = meshbridge.convert(artifact, to="sdy", closed=True)
    meshbridge.save(closed, tmp_path / "closed.jax_export")
    assert meshbridge.load(tmp_path / "closed.jax_export").format.name == "jax-export"
    assert text(artifact) == before
    with pytest.raises(MeshError, match=r"error: unknown kind 'klingon', expected one of mesh, "):
        meshbridge.convert(artifact, to="klingon")
    with pytest.raises(MeshError, match=r"error: 'sdy' has no plain form, expected one of gspmd with plain"):
        meshbridge.convert(artifact, to="sdy", plain=True)


@pytest.mark.parametrize("call", [meshbridge.partition, meshbridge.report, meshbridge.compile])
def test_other_values_are_refused(call: Callable[..., Any], artifact: export.Exported) -> None:
    with pytest.raises(MeshError, match=r"expected a jax.export.Exported, .* or a jitted function, found int"):
        call(3)
    with pytest.raises(MeshError, match=r"found function\n  hint: compile it with jax.jit first"):
        call(lambda x: x, X)
    with pytest.raises(MeshError, match=r"found str\n  hint: meshbridge\.load reads a program from a file"):
        call("step.jax_export")
    for program in (artifact, module_of(artifact)):
        with pytest.raises(MeshError, match="expected arguments with a jitted function alone, found some with"):
            call(program, X, 2.0)


def test_python_callbacks_are_refused(mesh: jax.sharding.Mesh) -> None:
    """XLA ends a process that runs one which it has not been given."""
    rows = NamedSharding(mesh, P("data"))
    doubled = jax.jit(lambda x: jax.pure_callback(lambda y: 2 * np.asarray(y), x, x), in_shardings=rows)
    with pytest.raises(MeshError, match=r"error: jax.export cannot export the function: serialization of host_callbacks"):
        meshbridge.compile(doubled, X)
    with pytest.raises(MeshError, match=r"test_api.py:\d+:\d+: error: .* calls a Python function, which no module holds\n  hint"):
        meshbridge.compile(doubled.lower(X))


def test_arguments_that_do_not_fit(artifact: export.Exported, mesh: jax.sharding.Mesh) -> None:
    executable = meshbridge.compile(artifact)
    with pytest.raises(MeshError, match=r"error: expected arguments of the structure PyTreeDef.*, found PyTreeDef"):
        executable(X)
    with pytest.raises(MeshError, match=r"error: args\[0\]: expected float32\[8, 16\], found float32\[16, 8\]"):
        executable(X.T, 2.0)
    with pytest.raises(MeshError, match=r"error: args\[1\]: expected float32\[\], found complex"):
        executable(X, 2j)
    with pytest.raises(MeshError, match=r"args\[0\]: expected float32\[8, 16\], found key<fry>\[\]"):
        executable(jax.random.key(0), 2.0)
    with pytest.raises(MeshError, match=r"error: args\[0\]: expected float32\[8, 16\], found str"):
        executable("x", 2.0)
    rows = NamedSharding(mesh, P("data"))
    keyed = meshbridge.compile(jax.jit(lambda x, key: (x, key), in_shardings=(rows, None)), X, jax.random.key(0))
    with pytest.raises(MeshError, match=r"args\[1\]: expected key<fry>\[\], found uint32\[2\]\n  hint: jax.random.key"):
        keyed(X, jax.random.PRNGKey(0))
    counted = meshbridge.compile(jax.jit(lambda x, n: x * n, in_shardings=(rows, None)), X, np.int8(0))
    with pytest.raises(MeshError, match=r"args\[1\]: 1000 does not fit in int8"):
        counted(X, 1000)
    with pytest.raises(MeshError, match=r"args\[1\]: expected int8\[\], found bool"):
        counted(X, True)


def test_a_module_is_called_with_arrays_by_position(artifact: export.Exported) -> None:
    executable: Executable = meshbridge.compile(module_of(artifact))
    with pytest.raises(MeshError, match="the arguments of a module have no names, found scale"):
        executable(X, scale=2.0)
    with pytest.raises(MeshError, match=r"argument 0: expected float32.*, found list"):
        executable([1, 2], 2.0)
    with pytest.raises(MeshError, match=r"cannot be part of a function that JAX traces\n  hint: compile a jax.export.Exported"):
        jax.jit(executable)(X, 2.0)


def test_executables_are_part_of_traced_functions(artifact: export.Exported, jitted: Any) -> None:
    executable = meshbridge.compile(artifact)
    found = jax.jit(lambda x: jnp.sin(executable(x + 1, 2.0)["sum"]))(X)
    np.testing.assert_allclose(found, np.sin(2 * (X + 1).sum(axis=0)), rtol=1e-3, atol=1e-3)
    gradient = jax.grad(lambda x: (executable(x, 3.0)["sum"] ** 2).sum())(jnp.asarray(X))
    np.testing.assert_allclose(gradient, np.broadcast_to(18 * X.sum(axis=0), X.shape), rtol=1e-5)
    with pytest.raises(MeshError, match=r"an executable of a jax.stages.Lowered cannot be traced"):
        jax.jit(meshbridge.compile(jitted.lower(X, jnp.float32(2))))(X, 2.0)


def by_platform(mesh: jax.sharding.Mesh, *platforms: str) -> export.Exported:
    def function(x: jax.Array) -> jax.Array:
        inside = jax.jit(lambda x: lax.platform_dependent(x, cpu=lambda x: x * 2, default=lambda x: x.sum() + x))
        return lax.fori_loop(0, 3, lambda _, x: inside(x), x)

    return export.export(jax.jit(function, in_shardings=NamedSharding(mesh, P("data"))), platforms=platforms)(X)


@pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("tpu", "cuda", "cpu")])
def test_the_platform_is_chosen_before_anything_is_decided(platforms: tuple[str, ...], mesh: jax.sharding.Mesh) -> None:
    artifact = by_platform(mesh, *platforms)
    executable = meshbridge.compile(artifact)
    assert len(executable.inputs) == 1
    assert "all-reduce" not in executable.hlo_text()
    np.testing.assert_allclose(executable(X), 8 * X)
    for platform, reduces in (("cpu", False), ("tpu", True)):
        chosen = formats.for_platform(formats.unpack(artifact, mlir.context()), platform)
        assert "stablehlo.case" not in str(chosen.module)
        assert bool(meshbridge.report(chosen).collectives) == reduces
        partitioned: Any = formats.pack(meshbridge.partition(chosen))
        assert partitioned.platforms == (platform,)
        assert len(partitioned.in_avals) == 1
        if platform == "cpu":
            np.testing.assert_allclose(jax.jit(partitioned.call)(jax.device_put(X, NamedSharding(mesh, P("data")))), 8 * X)


def test_a_platform_that_the_artifact_is_not_for(mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(MeshError, match="the artifact is for the platforms tpu, cuda, not for cpu\n  hint: name it among"):
        meshbridge.compile(by_platform(mesh, "tpu", "cuda"))


TWO_MESHES = """
sdy.mesh @unused = <["a"=16]>
sdy.mesh @single = <["one"=1]>
sdy.mesh @empty = <[]>
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %s: tensor<f32> {sdy.sharding = #sdy.sharding<@empty, []>},
                %t: tensor<4xf32> {sdy.sharding = #sdy.sharding<@single, [{"one"}]>}) -> tensor<4xf32> {
  %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %1 = stablehlo.multiply %x, %0 : tensor<8x4xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = stablehlo.add %2, %t : tensor<4xf32>
  return %3 : tensor<4xf32>
}
"""


def test_meshes_of_one_device_and_unused_ones_do_not_count(ctx: ir.Context) -> None:
    module = assembly.read(TWO_MESHES, "test.mlir", ctx)
    report = meshbridge.report(module)
    assert (report.mesh.name, report.mesh.size) == ("mesh", 8)
    executable = meshbridge.compile(module)
    assert (executable.mesh.name, executable.mesh.size) == ("mesh", 8)
    x, t = np.ones((8, 4), np.float32), np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(executable(x, 2, t)[0], 16 + t)
    text = assembly.write(meshbridge.partition(module))
    assert meshbridge.compile(assembly.read(text, "again.mlir", mlir.context())).mesh.size == 8


def test_a_program_that_names_no_mesh_runs_on_the_largest(ctx: ir.Context) -> None:
    text = """
    sdy.mesh @one = <["a"=2]>
    sdy.mesh @other = <["b"=4]>
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
    """
    module = assembly.read(text, "test.mlir", ctx)
    assert meshbridge.report(module).mesh.size == meshbridge.compile(module).mesh.size == 4


def test_two_meshes_in_use_are_refused(ctx: ir.Context) -> None:
    text = TWO_MESHES.replace('@single, [{"one"}]', '@unused, [{"a"}]')
    for call in (meshbridge.partition, meshbridge.report, meshbridge.compile):
        with pytest.raises(MeshError, match=r"@(unused|mesh) \(.*\) is a second mesh beside @(unused|mesh) \("):
            call(assembly.read(text, "test.mlir", ctx))


def test_options_of_the_compiler(artifact: export.Exported) -> None:
    """By XLA's names, beside its defaults; what it does not take is one diagnostic."""
    default, unfused = (
        meshbridge.compile(artifact, compiler_options=each) for each in ("best", {"xla_disable_all_hlo_passes": True})
    )
    assert "fused_computation" in default.hlo_text()
    assert "fused_computation" not in unfused.hlo_text()
    for options, message in (
        ({"xla_foo": True}, "error: XLA does not take the compiler options: INVALID_ARGUMENT: No such compile option: 'xla_foo'"),
        ({"xla_backend_optimization_level": "high"}, "'high' is not a valid int32 value"),
        ("bset", "error: compiler-options is 'bset', expected one of default, best"),
    ):
        with pytest.raises(MeshError, match=re.escape(message)):
            meshbridge.compile(artifact, compiler_options=options)  # type: ignore[arg-type]


def test_values_say_what_they_are_in_a_line(artifact: export.Exported, jitted: Any, tmp_path: Path) -> None:
    meshbridge.save(artifact, tmp_path / "step.mlir")
    program = meshbridge.load(tmp_path / "step.mlir")
    assert repr(program) == "<Program: MLIR text, the mesh dialect's own syntax included>"
    assert repr(meshbridge.compile(artifact)) == "<Executable: 2 arguments, 1 result, on the mesh data=2, model=4>"
    with meshbridge.patch() as planned:
        jitted(X, 2.0)
    assert repr(planned[0]) == "<Planned: jit(<lambda>) on 8 devices>"
