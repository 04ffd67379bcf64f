"""What a constant of meshbridge does to programs: wire bytes, collectives and the time of partitioning for several values of it.

    python -m benchmarks.constants decide.choice.CONTRACTION_PRICE 0 1/256 1/64 1/4
    python -m benchmarks.constants decide.sharding_refinement.ShardingRefinement.moves 500 8000 --programs gpt12

The comment of a constant that trades one of these for another has the figures that chose it. A field of a pass is varied as its
default.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from meshbridge import pipeline
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.reports import partition_and_report
from testdata.catalogue import build

PROGRAMS = ("gpt12", "llama_scan_fsdp", "llama_scan_fsdp_tp", "moe_grad", "resnet_spatial", "vocab_ce", "cp_attn_grad")
"""Programs of every kind, each partitioned in seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("constant", help="module below meshbridge, and name: decide.choice.CONTRACTION_PRICE")
    parser.add_argument("values", nargs="+", type=Fraction)
    parser.add_argument("--programs", nargs="+", default=PROGRAMS)
    options = parser.parse_args()
    programs = {name: build(name).export() for name in options.programs}
    vary = _setter(options.constant)
    print(f"{options.constant:40} {'program':20} {'wire KB':>10} {'collectives':>11} {'executed':>8} {'seconds':>8}")
    for value in options.values:
        number = int(value) if value.denominator == 1 else float(value)
        with vary(number):
            for name, program in programs.items():
                _forget()
                started = time.process_time()
                module = formats.unpack(program, context(), (), {}).module
                report, _ = partition_and_report(module, pipeline.Options.of(emit="mesh", machine="bytes"))
                seconds = time.process_time() - started
                counts = f"{len(report.collectives):11} {report.executions:8}"
                print(f"{value!s:40} {name:20} {report.wire_bytes / 1e3:10,.1f} {counts} {seconds:8.2f}")


def _setter(path: str) -> Callable[[float], Any]:
    """A context manager in which the constant has a value. Raises SystemExit for a path that names none."""
    holder_path, _, name = path.rpartition(".")
    home, _, last = holder_path.rpartition(".")
    owner: Any
    if last[:1].isupper():
        owner = getattr(importlib.import_module(f"meshbridge.{home}"), last)
        names = [parameter for parameter in inspect.signature(owner.__init__).parameters if parameter != "self"]
        index = names.index(name)
    else:
        owner, index = importlib.import_module(f"meshbridge.{holder_path}"), None
    if not hasattr(owner, name):
        raise SystemExit(f"benchmarks.constants: error: {holder_path} has no '{name}'")

    @contextmanager
    def vary(value: float) -> Iterator[None]:
        if index is None:
            before = getattr(owner, name)
            setattr(owner, name, value)
        else:
            before = owner.__init__.__defaults__
            owner.__init__.__defaults__ = (*before[:index], value, *before[index + 1 :])
        try:
            yield
        finally:
            if index is None:
                setattr(owner, name, before)
            else:
                owner.__init__.__defaults__ = before

    return vary


def _forget() -> None:
    """Empties the caches of meshbridge: an earlier value of the constant may be in what they hold."""
    for entry in gc.get_objects():
        if isinstance(entry, functools._lru_cache_wrapper) and getattr(entry, "__module__", "").startswith("meshbridge"):
            entry.cache_clear()


if __name__ == "__main__":
    main()
