"""Partitioned modules that are kept in a folder."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import pipeline
from meshbridge.jitted import plan_cache
from meshbridge.jitted.plan_cache import CacheWarning
from meshbridge.ops.sharding_rules import USER_RULES
from tests.jit.programs import W, X, check_same, on_one_device


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


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_damaged_entries_are_made_anew(mesh: Mesh, folder: Path, passes: list[str], damage: bytes | None) -> None:
    check(product(mesh))
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-7] + b"damaged" if damage is None else damage)
    passes.clear()
    with pytest.warns(CacheWarning, match=r"\.plan: warning: the entry is damaged, partitioned anew"):
        check(product(mesh))
    assert passes
    passes.clear()
    check(product(mesh))
    assert not passes


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
