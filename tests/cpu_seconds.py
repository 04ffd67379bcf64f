"""A plugin of pytest that says where the CPU seconds of a run go, by file and by kind.

`python -m pytest -p tests.cpu_seconds --cpu-seconds FILE` writes JSON into FILE: for each test file its seconds (user and system,
children included), and how many of them each of KINDS took. `python -m tests.cpu_seconds FILE` prints them as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

OPTION = "--cpu-seconds"
"""Names the file to be written."""

KINDS = ("compile", "trace", "partition", "verify", "children")
"""XLA's compilations, JAX's traces and lowerings, `partition_module`, the exact evaluation of `verify`, other processes."""

STARTING = "(imports and collection)"
_SECONDS = "cpu seconds"


def now() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def children() -> float:
    """CPU seconds of the children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


class Seconds:
    """What one process has spent on each kind since the test began; of nested kinds, the innermost counts."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._open: list[list[float]] = []

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """What is spent inside is spent on that kind."""
        began, inner = time.process_time(), [0.0]
        self._open.append(inner)
        try:
            yield
        finally:
            took = time.process_time() - began
            self._open.pop()
            self.spent[kind] += took - inner[0]
            if self._open:
                self._open[-1][0] += took

    def counting(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds count, with all its attributes: JAX's caches have methods."""

        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            with self.on(kind):
                return function(*arguments, **named)

        for name in set(dir(function)) - set(dir(run)):
            setattr(run, name, getattr(function, name))
        return run


class Recorder:
    """In each process that runs tests: notes the seconds of each test in its report."""

    def __init__(self) -> None:
        self.seconds = Seconds()
        self.began = 0.0
        self.children = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The functions are replaced when tests have imported what they need, and JAX has its flags."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[STARTING] = now()
        from jax._src import compiler
        from jax._src.interpreters import partial_eval, pxla

        from meshbridge import partitioning, pipeline
        from meshbridge.runtime import xla
        from meshbridge.verification import program

        for owner, name, kind in (
            (compiler, "backend_compile_and_load", "compile"),
            (xla, "_compile", "compile"),
            (partial_eval, "trace_to_jaxpr", "trace"),
            (pxla, "lower_sharding_computation", "trace"),
            (pipeline, "run", "partition"),
            (partitioning, "partition_module", "partition"),
            (program.VerifiedProgram, "evaluate", "verify"),
        ):
            setattr(owner, name, self.seconds.counting(kind, getattr(owner, name)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.seconds.spent.clear()
        self.began, self.children = now(), children()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            kinds = dict(self.seconds.spent) | {"children": children() - self.children}
            item.user_properties.append((_SECONDS, {"all": now() - self.began} | kinds))


class Controller:
    """In the process that sees all reports: adds up and writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, found in report.user_properties:
            if name == _SECONDS and report.when == "teardown":
                self.files[report.nodeid.split("::")[0]].update(found | {"tests": 1})

    def pytest_testnodedown(self, node: Any) -> None:
        self.files[STARTING].update({"all": getattr(node, "workeroutput", {}).get(STARTING, 0.0)})

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.files, indent=1, sort_keys=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", help="write where the CPU seconds of this run go")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if not path:
        return
    worker = hasattr(config, "workerinput")
    if not worker:
        config.pluginmanager.register(Controller(Path(path)))
    if worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder())


def table(files: dict[str, dict[str, float]], most: int) -> Iterator[str]:
    """A line for each of the dearest files, and the sum of all."""
    yield f"| file | tests | CPU s | {' | '.join(KINDS)} | other |"
    yield f"|---|---:|---:|{'---:|' * (len(KINDS) + 1)}"
    total: Counter[str] = Counter()
    for found in files.values():
        total.update(found)
    dearest = sorted(files, key=lambda name: -files[name]["all"])[:most]
    for name, found in [("all", total), *((name, files[name]) for name in dearest)]:
        kinds = [found.get(kind, 0.0) for kind in KINDS]
        shown = (f"{seconds:.0f}" for seconds in (found["all"], *kinds, found["all"] - sum(kinds)))
        yield f"| {name} | {found.get('tests', 0):.0f} | {' | '.join(shown)} |"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--most", type=int, default=20, help="files that get a line")
    options = parser.parse_args()
    print("\n".join(table(json.loads(options.file.read_text()), options.most)))
    print(f"\nsdy-propagation-pipeline takes {propagation():.2f} s of CPU time on gpt12 here: hosts can be compared by that.")


def propagation() -> float:
    """CPU seconds of Shardy's propagation on `testdata/gpt12.jax_export`, the fastest of three runs."""
    import meshbridge
    from benchmarks.clock import sdy_propagation

    program = meshbridge.load(str(Path(__file__).parents[1] / "testdata" / "gpt12.jax_export"))
    return sdy_propagation(str(program.module)).cpu


if __name__ == "__main__":
    main()
