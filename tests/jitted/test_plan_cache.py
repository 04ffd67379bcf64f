"""Partitioned modules that are kept in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.jitted import plan_cache
from meshbridge.jitted.plan_cache import CacheWarning
from meshbridge.ops.sharding_rules import USER_RULES
from tests.jitted.programs import W, X, check_same, on_one_device


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(plan_cache.VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the passes that have run."""
    ran: list[str] = []
    run = pipeline.run

    def counted(steps: Any, *arguments: Any, **named: Any) -> Any:
        ran.extend(step.name for step in steps)
        return run(steps, *arguments, **named)

    monkeypatch.setattr(pipeline, "run", counted)
    return ran


def product(mesh: Mesh, **options: Any) -> Any:
    return meshbridge.jit(lambda x, w: x @ w, in_shardings=(NamedSharding(mesh, P(None, "model")), None), **options)


def check(jitted: Any) -> None:
    check_same(jitted(X, W), on_one_device(lambda x, w: x @ w, X, W))


def test_a_plan_is_made_once(mesh: Mesh, folder: Path, passes: list[str]) -> None:
    check(product(mesh))
    assert "mesh-spmdization" in passes
    passes.clear()
    check(product(mesh))
    assert not passes
    assert len(list(folder.iterdir())) == 1


def test_what_a_plan_depends_on(mesh: Mesh, folder: Path, tmp_path: Path) -> None:
    def count() -> int:
        return len(list(folder.iterdir()))

    check(product(mesh))
    check(product(mesh, machine="bytes"))
    check(product(mesh, collectives="off"))
    assert count() == 3
    check_same(product(mesh)(X[:8], W), on_one_device(lambda x, w: x @ w, X[:8], W))
    assert count() == 4
    machine = tmp_path / "machine.toml"
    source = (Path(meshbridge.__file__).parent / "machines" / "gpu" / "h100.toml").read_text()
    for text in (source, source.replace("bandwidth = 3.3", "bandwidth = 2.3")):
        machine.write_text(text)
        check(product(mesh, machine=str(machine)))
    assert count() == 6
    with USER_RULES.restored():
        meshbridge.register_sharding_rule("some_call", "i j -> i j")
        check(product(mesh))
    assert count() == 7


SOURCE = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<SIZExf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<SIZExf32> {
  %0 = stablehlo.FUNCTION %a : tensor<SIZExf32>
  return %0 : tensor<SIZExf32>
}
"""


def partitioned(function: str = "tanh", size: int = 8) -> str:
    """The plan of a small program, out of the cache where it is there."""
    module = mlir.parse(SOURCE.replace("SIZE", str(size)).replace("FUNCTION", function), "program.mlir", mlir.context())
    plan_cache.partition_module(module, pipeline.Options())
    return str(module)


def flipped(data: bytes, index: int) -> bytes:
    return data[:index] + bytes((data[index] ^ 1,)) + data[index + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "text": lambda data: b"text",
    "a bit at the start": lambda data: flipped(data, 0),
    "a bit of the program": lambda data: flipped(data, len(data) // 2),
    "a bit at the end": lambda data: flipped(data, len(data) - 1),
    "truncated": lambda data: data[:-1],
    "the digest alone": lambda data: data[:32],
    "more after it": lambda data: data + b"\0",
    "a digest of the program alone": lambda data: hashlib.sha256(data[32:]).digest() + data[32:],
    "a digest of no program": lambda data: hashlib.sha256(b"").digest(),
}
"""What may stand in an entry instead of what was written."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_made_anew(folder: Path, passes: list[str], damage: str) -> None:
    plan = partitioned()
    (entry,) = folder.iterdir()
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    passes.clear()
    with pytest.warns(CacheWarning, match=r"\.plan: warning: the entry is damaged, or of another program; partitioned anew"):
        assert partitioned() == plan
    assert passes
    passes.clear()
    assert partitioned() == plan
    assert not passes


@pytest.mark.parametrize("other", [("cosine", 8), ("tanh", 16)])
def test_an_entry_of_another_program_is_not_taken(folder: Path, other: tuple[str, int]) -> None:
    """Not of one that computes something else, nor of one of other shapes, whose plan XLA would crash on."""
    partitioned(*other)
    (foreign,) = folder.iterdir()
    plan = partitioned()
    (entry,) = {*folder.iterdir()} - {foreign}
    shutil.copy(foreign, entry)
    with pytest.warns(CacheWarning, match="of another program"):
        assert partitioned() == plan
    assert partitioned() == plan
    os.replace(entry, foreign)
    with pytest.warns(CacheWarning, match="of another program"):
        assert partitioned(*other) != plan


@pytest.mark.parametrize("kind", ["folder", "pipe", "link into nothing", "unreadable"])
def test_what_is_no_file_is_no_entry(folder: Path, kind: str) -> None:
    plan = partitioned()
    (entry,) = folder.iterdir()
    entry.unlink()
    if kind == "folder":
        entry.mkdir()
    elif kind == "pipe":
        os.mkfifo(entry)
    elif kind == "link into nothing":
        entry.symlink_to(folder / "missing")
        assert partitioned() == plan
        return
    else:
        entry.symlink_to(entry)
    with pytest.warns(CacheWarning, match="warning"):
        assert partitioned() == plan


WRITER = """
import warnings
from pathlib import Path
from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.jitted import plan_cache

warnings.simplefilter("error")
plans = set()
for number in range(30):
    source = SOURCE.replace("SIZE", "8").replace("FUNCTION", ("tanh", "cosine")[number % 2])
    module = mlir.parse(source, "program.mlir", mlir.context())
    plan_cache.partition_module(module, pipeline.Options())
    plans.add(str(module))
    for entry in FOLDER.glob("*.plan") if number % 3 == 0 else ():
        entry.unlink(missing_ok=True)
assert len(plans) == 2, plans
"""
"""A process that makes two plans again and again, which it and others throw away and write meanwhile."""


def test_processes_write_at_once(folder: Path) -> None:
    """Two others and this one."""
    folder.mkdir()
    code = f"SOURCE = {SOURCE!r}\n{WRITER.replace('FOLDER', f'Path({str(folder)!r})')}"
    writers = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    plans = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(writer.poll() is None for writer in writers):
            plans.add(partitioned())
            time.sleep(0.1)
        plans.add(partitioned())
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert len(plans) == 1
    assert all(path.suffix == ".plan" for path in folder.iterdir())


def test_an_entry_is_deleted_while_it_is_written_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes it as soon as this one has asked what it is."""
    plan = mlir.parse(partitioned(), "plan.mlir", mlir.context())
    (entry,) = folder.iterdir()
    ask = Path.stat

    def delete(path: Path, **options: bool) -> os.stat_result:
        answer = ask(path, **options)
        if path == entry:
            path.unlink()
        return answer

    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(Path, "stat", delete)
        warnings.simplefilter("error")
        plan_cache._store(entry, plan)
    assert partitioned() == str(plan)


def test_a_folder_that_cannot_be_written_to(mesh: Mesh, folder: Path) -> None:
    folder.write_text("a file")
    with pytest.warns(CacheWarning, match="warning: the plan cannot be kept"):
        check(product(mesh))


def test_threads_share_a_folder(mesh: Mesh, folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: check(product(mesh)), range(4)))
    assert len(list(folder.iterdir())) == 1


def test_calls_within_traced_functions(mesh: Mesh, folder: Path, passes: list[str]) -> None:
    for _ in range(2):
        passes.clear()
        check(jax.jit(product(mesh)))
    assert not passes


def test_each_program_calls_its_own_python_function(mesh: Mesh, folder: Path, passes: list[str]) -> None:
    """Programs that differ in nothing else share a plan."""
    seen: list[int] = []
    for number in range(2):
        passes.clear()

        def function(x: jax.Array, number: int = number) -> jax.Array:
            jax.debug.callback(lambda _: seen.append(number), x)
            return x

        meshbridge.jit(lambda x: function(x), in_shardings=NamedSharding(mesh, P("data")))(X)
        jax.effects_barrier()
    assert seen == [0, 1]
    assert not passes


PROCESS = """
import jax, numpy as np, meshbridge
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from meshbridge import pipeline
from meshbridge.ir import mlir

ran, run = [], pipeline.run
pipeline.run = lambda steps, *rest, **named: (ran.extend(steps), run(steps, *rest, **named))[1]
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
jitted = meshbridge.jit(lambda x: (x @ x.T).sum(axis=0), in_shardings=NamedSharding(mesh, P("data", "model")))
x = np.arange(128, dtype=np.float32).reshape(16, 8) / 100
np.testing.assert_allclose(jitted(x), (x @ x.T).sum(axis=0), rtol=1e-5)
print(len(ran))
"""


@pytest.mark.slow
def test_a_second_process_does_not_partition(folder: Path) -> None:
    """Though its program stands in other lines."""
    ran = [
        int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for code in (PROCESS, "\n\n" + PROCESS)
    ]
    assert ran[0] > 5
    assert ran[1] == 0
