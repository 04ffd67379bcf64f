"""Train steps of other people's codebases, as they stand, under `meshbridge.patch()`: are the numbers those of `jax.jit`?

From the repository's root: `python -m benchmarks.codebases [PROGRAM…] [--measured] [--page FILE]`. Each program runs in a process
of its own, first as it is, then patched, on 8 virtual CPU devices; its functions are then compiled once more by XLA alone. `make
bench-codebases` writes docs/codebases.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import marked
from benchmarks.cases import RECORDS
from benchmarks.table import geometric_mean
from testdata.codebases.catalogue import WITHOUT_PROGRAM, Program, chosen, programs
from testdata.codebases.install import missing, versions

COMMAND = "make bench-codebases"
RECORD = RECORDS / "codebases.json"

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
"""What an element may differ by, relative to the largest one of its array, by type; elements of other types are equal."""

LEAST = 1e-3
"""Where all elements of an array are smaller than this, they may differ relative to this: a gradient that is zero but for
rounding has no digit that is right."""

LIMIT_S = 900


@dataclass(frozen=True)
class Ran:
    """A program that ran as it is and patched. Seconds are of the CPU, those of all threads added up; bytes are of one device."""

    functions: int
    "How many functions were partitioned."
    step: str
    "The one of them that partitioning takes longest for: the figures of the step are its own."
    leaves: int
    "How many arrays were compared."
    error: float
    "The largest difference, as a part of what it may be."
    worst: str
    "The array that it is in."
    partition_s: float
    xla_s: float
    "What XLA takes to partition and compile the same functions, as JAX has lowered them."
    step_partition_s: float
    step_xla_s: float
    wire_bytes: float
    xla_wire_bytes: float
    "What all functions send, each run once."
    temporary_bytes: int
    xla_temporary_bytes: int
    "What the step holds beside arguments and results."
    versions: Mapping[str, str]

    @property
    def is_right(self) -> bool:
        """Whether something was partitioned, and all numbers are those of `jax.jit`."""
        return self.functions > 0 and self.error <= 1


def run(program: Program) -> Ran:
    """Runs a program in this process, which has run none before. Raises ValueError if it gives no numbers to compare."""
    import meshbridge

    train = getattr(importlib.import_module(f"testdata.codebases.{program.module}"), program.function)
    expected = _results(train())
    if not any(each.dtype.kind in "fV" and each.any() for each in expected.values()):
        raise ValueError(f"expected {program.name} to give numbers to compare")
    with meshbridge.patch() as planned:
        found = _results(train())
    error, worst = _largest_error(expected, found)
    costs = {each: _Costs.of(each) for each in planned}
    if not costs:
        raise ValueError(f"nothing of {program.name} was partitioned")
    step = max(costs, key=lambda each: costs[each].partition_s)
    return Ran(
        functions=len(costs),
        step=step.name,
        leaves=len(expected),
        error=error,
        worst=worst,
        partition_s=sum(each.partition_s for each in costs.values()),
        xla_s=sum(each.xla_s for each in costs.values()),
        step_partition_s=costs[step].partition_s,
        step_xla_s=costs[step].xla_s,
        wire_bytes=sum(each.wire_bytes for each in costs.values()),
        xla_wire_bytes=sum(each.xla_wire_bytes for each in costs.values()),
        temporary_bytes=costs[step].temporary_bytes,
        xla_temporary_bytes=costs[step].xla_temporary_bytes,
        versions=versions(program.module),
    )


@dataclass(frozen=True)
class _Costs:
    """A function, partitioned by us and by XLA."""

    partition_s: float
    xla_s: float
    wire_bytes: float
    xla_wire_bytes: float
    temporary_bytes: int
    xla_temporary_bytes: int

    @staticmethod
    def of(planned: Any) -> _Costs:
        import jax

        from benchmarks.clock import shortest
        from meshbridge import partitioning

        jax.clear_caches()  # of two functions alike, JAX compiles one
        _, partition = shortest(lambda: partitioning.partition_module(planned.source(), planned.options), 1)
        theirs, compiling = shortest(lambda: planned.unreplaced().compile(), 1)
        ours = planned.compile()
        return _Costs(partition.cpu, compiling.cpu, _sent(ours), _sent(theirs), *(_temporaries(each) for each in (ours, theirs)))


def _sent(executable: Any) -> float:
    from meshbridge.analysis import hlo
    from meshbridge.analysis.hlo_communication import communication

    return communication(hlo.read(executable.as_text())).wire_bytes


def _temporaries(executable: Any) -> int:
    return int(executable.memory_analysis().temp_size_in_bytes)


def _results(tree: Any) -> dict[str, Any]:
    """The arrays of a tree, on the host, by their paths; keys of random numbers by their data."""
    import jax
    import numpy as np

    def on_host(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return {jax.tree_util.keystr(path): on_host(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _largest_error(expected: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[float, str]:
    if list(expected) != list(found):
        return float("inf"), "the trees differ"
    return max(((_error(expected[path], found[path]), path) for path in expected), default=(float("inf"), "no array"))


def _error(expected: Any, found: Any) -> float:
    """The largest difference, as a part of what it may be; infinite where shapes or types differ, or only one is finite."""
    import numpy as np

    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return float("inf")
    tolerance = TOLERANCE.get(str(expected.dtype))
    if tolerance is None:
        return 0.0 if np.array_equal(expected, found) else float("inf")
    one, other = expected.astype(np.float64), found.astype(np.float64)
    if not np.array_equal(np.isnan(one), np.isnan(other)) or not np.array_equal(one[np.isinf(one)], other[np.isinf(one)]):
        return float("inf")
    finite = np.isfinite(one)
    largest = np.max(np.abs(one[finite]), initial=LEAST)
    return float(np.max(np.abs(one[finite] - other[finite]), initial=0.0) / largest / tolerance)


FLAGS = "--xla_force_host_platform_device_count=8"


def run_apart(program: Program, flags: Sequence[str] = ()) -> Ran:
    """The same in a process of its own. Raises RuntimeError with the end of what it says if it fails."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join((FLAGS, *flags)),
        "JAX_ENABLE_X64": str(int(program.codebase.is_double)),
    }
    command = [sys.executable, "-m", "benchmarks.codebases", program.name, "--here"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return Ran(**json.loads(done.stdout.splitlines()[-1]))


def recorded() -> dict[str, Ran]:
    """What is on record, by program."""
    rows = json.loads(RECORD.read_text())["ran"] if RECORD.exists() else {}
    return {name: Ran(**row) for name, row in rows.items()}


def refused() -> dict[str, str]:
    """What could not be installed or did not run as it is, by codebase, and why."""
    found: dict[str, str] = json.loads(RECORD.read_text())["refused"] if RECORD.exists() else {}
    return found


def keep(ran: Mapping[str, Ran], why: Mapping[str, str]) -> None:
    """Puts figures on record, in place of what stood there; the file appears whole or not at all."""
    rows = recorded() | dict(ran)
    reasons = {
        name: text for name, text in (refused() | dict(why)).items() if not any(key.startswith(f"{name}.") for key in rows)
    }
    text = {"ran": {name: asdict(rows[name]) for name in sorted(rows)}, "refused": dict(sorted(reasons.items()))}
    beside = RECORD.with_name(f"{RECORD.name}.partly")
    beside.write_text(json.dumps(text, indent=1) + "\n")
    beside.replace(RECORD)


def table(found: Mapping[str, Ran]) -> Iterator[str]:
    """One row for each program."""
    yield "| program | functions | arrays | error | partitioning s | XLA s | share | step's share | wire KB | temporaries KB |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, ran in found.items():
        cells = [
            f"[`{name}`](../testdata/codebases/{name.partition('.')[0]}.py)",
            str(ran.functions),
            str(ran.leaves),
            _bold(f"{ran.error:.3f}", not ran.is_right),
            f"{ran.partition_s:.2f}",
            f"{ran.xla_s:.2f}",
            _bold(f"{_share(ran):.2f}", _share(ran) > SHARE),
            _bold(f"{_step_share(ran):.2f}", _step_share(ran) > SHARE),
            _beside(ran.wire_bytes, ran.xla_wire_bytes, 1),
            _beside(ran.temporary_bytes, ran.xla_temporary_bytes, MEMORY),
        ]
        yield f"| {' | '.join(cells)} |"


SHARE, MEMORY = 0.2, 1.1
"""What partitioning should take at most of XLA's time, and a step hold at most beside XLA's."""


def _beside(ours: float, theirs: float, most: float) -> str:
    ratio = f" = {ours / theirs:.2f}" if theirs else ""
    return _bold(f"{ours / 1e3:,.1f} / {theirs / 1e3:,.1f}{ratio}", ours > most * theirs)


def _bold(text: str, is_loss: bool) -> str:
    return f"**{text}**" if is_loss else text


def summary(found: Mapping[str, Ran]) -> Iterator[str]:
    """The rows in which a figure is more than it is to be, and the geometric means of all."""
    yield from table({name: ran for name, ran in found.items() if _is_notable(ran)})
    shares = [geometric_mean([get(ran) for ran in found.values()]) for get in (_share, _step_share)]
    both = (_wire(found), _held(found))
    ratios = [geometric_mean([ours / theirs for ours, theirs in each if ours and theirs]) for each in both]
    means = " | ".join(f"{mean:.2f}" for mean in (*shares, *ratios))
    yield f"| *geometric mean of all {len(found)}* | | | | | | {means} |"


def _is_notable(ran: Ran) -> bool:
    slow = max(_share(ran), _step_share(ran)) > SHARE
    large = ran.wire_bytes > ran.xla_wire_bytes or ran.temporary_bytes > MEMORY * ran.xla_temporary_bytes
    return not ran.is_right or slow or large


def _share(ran: Ran) -> float:
    return ran.partition_s / ran.xla_s


def _step_share(ran: Ran) -> float:
    return ran.step_partition_s / ran.step_xla_s


def _wire(found: Mapping[str, Ran]) -> list[tuple[float, float]]:
    return [(ran.wire_bytes, ran.xla_wire_bytes) for ran in found.values()]


def _held(found: Mapping[str, Ran]) -> list[tuple[float, float]]:
    return [(ran.temporary_bytes, ran.xla_temporary_bytes) for ran in found.values()]


def versions_table(found: Mapping[str, Ran]) -> Iterator[str]:
    """What the codebases were measured with: a row for each Python and jax."""
    yield "| Python, jax | codebases, and the versions of what they need |"
    yield "|---|---|"
    rows: dict[str, list[str]] = {}
    for name, known in {name.partition(".")[0]: ran.versions for name, ran in found.items()}.items():
        texts = [f"{package} {version}" for package, version in known.items()]
        own = ", ".join(text for text in texts if not text.startswith(("Python ", "jax ")))
        rows.setdefault(", ".join(text for text in texts if text.startswith(("Python ", "jax "))), []).append(f"{name} ({own})")
    yield from (f"| {key} | {', '.join(names)} |" for key, names in rows.items())


def reasons_table(why: Mapping[str, str]) -> Iterator[str]:
    """What did not run, and why."""
    yield "| codebase | why it does not run |"
    yield "|---|---|"
    yield from (f"| {name} | {reason} |" for name, reason in why.items())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a number is wrong, or a program that runs as it is fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="such as nnx, or nnx.convolutions (default: all)")
    parser.add_argument("--here", action="store_true", help="run one program in this process, and print its figures as JSON")
    parser.add_argument("--measured", action="store_true", help="run nothing: print what is on record")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds the tables")
    options = parser.parse_args(argv)
    asked = chosen(options.programs)
    if options.here:
        (program,) = asked
        print(json.dumps(asdict(run(program))))
        return 0
    status = 0
    for program in asked if not options.measured else ():
        if (why := missing(program.module)) is not None:
            keep({}, {program.module: why})
            print(f"{program.name}: {why}", flush=True)
            continue
        try:
            ran = run_apart(program)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            status = 1
            continue
        keep({program.name: ran}, {})
        status |= not ran.is_right
        print(*table({program.name: ran}), sep="\n", flush=True)
    if options.measured:
        known = recorded()
        print(*table({each.name: known[each.name] for each in asked if each.name in known}), sep="\n")
    if options.page:
        write(options.page)
    return status


def write(page: Path) -> None:
    """Writes what is on record into the page."""
    known = recorded()
    shown = {each.name: known[each.name] for each in programs() if each.name in known}
    for name, rows in (
        ("programs", summary(shown)),
        ("versions", versions_table(shown)),
        ("missing", reasons_table(refused() | WITHOUT_PROGRAM)),
    ):
        page.write_text(marked.replaced(page, name, COMMAND, "\n".join(rows)))


if __name__ == "__main__":
    sys.exit(main())
