"""What a library must not do behind its caller's back: change the process that it runs in, or keep values without bound."""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import meshbridge
import meshbridge_converters
from meshbridge.decide.graph import Graph
from meshbridge.decide.node_costs import KindCosts
from meshbridge.decide.propagate import Propagator
from meshbridge.ir.garbage import rare_collections
from meshbridge.ir.sharding import Mesh

CALLS = """
import gc, os, signal, sys, warnings
import jaxlib.mlir.ir, numpy  # whose own imports change warnings

def state():
    return (dict(os.environ), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(warnings.filters),
            {number: signal.getsignal(number) for number in signal.valid_signals()}, signal.getitimer(signal.ITIMER_REAL))

def no_children(event, arguments):
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
        raise SystemExit(f"{event} in a library call")

before = state()
import meshbridge, meshbridge.ir.mlir
after_import = state()
sys.addaudithook(no_children)
program = meshbridge.load("testdata/gpt3.jax_export")
meshbridge.save(meshbridge.partition(program), "/dev/null")
meshbridge.report(program)
for name, *values in zip(("environment", "gc", "gc", "gc", "warnings", "handlers", "alarm"), before, after_import, state()):
    assert values[0] == values[1] == values[2], name
"""


def test_a_library_call_leaves_the_process_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_deciding_has_found_goes_with_its_last_reader() -> None:
    """And not with a run of the collector, which has then tens of thousands of values to look through."""
    program = meshbridge.load("testdata/gpt3.jax_export")
    gc.collect()
    gc.disable()
    try:
        meshbridge.partition(program)
        left = [type(value).__name__ for value in gc.get_objects() if isinstance(value, (Graph, KindCosts, Propagator))]
    finally:
        gc.enable()
    assert not left


def test_calls_that_overlap_leave_the_collector_as_it_is() -> None:
    """Of two threads, the first to begin may be the first to end."""
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold() != before
    first.__exit__(None, None, None)
    assert gc.get_threshold() != before
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def caches() -> Iterator[tuple[str, Any]]:
    """Every function that remembers its results, in any module or class of ours."""
    for package in (meshbridge, meshbridge_converters):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith("__main__"):
                module = importlib.import_module(info.name)
                classes = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == info.name]
                for holder in (module, *classes):
                    for name, value in vars(holder).items():
                        if hasattr(value, "cache_parameters"):
                            yield f"{info.name}.{name}", value


def test_no_cache_grows_without_bound() -> None:
    """One that takes no arguments holds one value."""
    found = dict(caches())
    assert len(found) > 10
    unbounded = [name for name, cache in found.items() if cache.cache_parameters()["maxsize"] is None]
    assert [name for name in unbounded if inspect.signature(found[name]).parameters] == []


def test_a_mesh_hashes_its_devices_once() -> None:
    class Counted(int):
        hashed = 0

        def __hash__(self) -> int:
            Counted.hashed += 1
            return super().__hash__()

    mesh = Mesh("mesh", (2,), device_ids=(Counted(1), Counted(0)))
    assert len({mesh: 1, Mesh("mesh", (2,), device_ids=(1, 0)): 2}) == 1
    hash(mesh)
    assert Counted.hashed == 2
