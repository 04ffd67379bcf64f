"""How partitioning grows with a program's ops and with its devices, each measurement in a process of its own.

From the repository's root: `python -m benchmarks.scale [--only NAME…] [--json FILE] [--page FILE]`. Nothing is compiled, and no
device is needed. Times are seconds of CPU time, of the first call in a process; what `make bench-scale` prints ends up in
docs/performance.md, with the curves as a picture beside it.
"""

from __future__ import annotations

import argparse
import compileall
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path

from benchmarks import fresh, marked
from benchmarks.fresh import Probe
from meshbridge.text import table

COMMAND = "make bench-scale"
PROGRAMS = fresh.ROOT / "build" / "scale"
"""Where programs are kept between runs: to trace 128 layers takes longer than to partition them."""


@dataclass(frozen=True)
class Case:
    """A program to partition: `testdata.scaled` in some size, or an artifact of testdata where `kept` names one."""

    name: str
    layers: int = 0
    mesh: str = ""
    sizes: str = "llama"
    kept: str = ""
    propagation: bool = False
    targets: tuple[str, ...] = ()
    "What it is also planned for: machines with a topology, perhaps with a set of compiler options behind a slash."

    @property
    def devices(self) -> int:
        """How many devices its mesh has."""
        data, model = map(int, self.mesh.split("x"))
        return data * model

    @property
    def path(self) -> Path:
        """The file of its text."""
        return PROGRAMS / (f"{self.kept}.mlir" if self.kept else f"{self.layers}_{self.mesh}_{self.sizes}.mlir")

    @property
    def making(self) -> list[str]:
        """The Python command that writes the file."""
        if self.kept:
            return ["-m", "meshbridge", "convert", f"testdata/{self.kept}.jax_export", "--to", "mlir", "-o", str(self.path)]
        size = ["--layers", str(self.layers), "--mesh", self.mesh, "--sizes", self.sizes]
        return ["-m", "testdata.scaled", str(self.path), *size]

    @property
    def source(self) -> Path:
        """What the file is made from: it is made anew where that is younger."""
        return fresh.ROOT / "testdata" / (f"{self.kept}.jax_export" if self.kept else "scaled.py")


@dataclass(frozen=True)
class Suite:
    """What is measured together: a step beside Shardy's propagation, one large program, growth with ops and with devices, and
    plans for topologies."""

    step: Case
    large: Case
    growth: tuple[Case, ...]
    meshes: Mapping[str, tuple[Case, ...]]
    topologies: tuple[Case, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """All programs."""
        return (
            self.step,
            self.large,
            *self.growth,
            *(case for cases in self.meshes.values() for case in cases),
            *self.topologies,
        )


V5P, H100 = (tuple(f"{machine}{options}" for options in ("", "/best")) for machine in ("v5p:4x4x4", "h100:1x8x8"))
"""64 devices of each kind, under both sets of compiler options."""


def _suite(
    step: str, large: Case, growth: tuple[str, Sequence[int]], layers: int, meshes: Sequence[str], topologies: tuple[Case, ...]
) -> Suite:
    return Suite(
        Case(step, kept=step, mesh="2x4", propagation=True),
        large,
        tuple(Case(f"growth-{count}", count, growth[0]) for count in growth[1]),
        {sizes: tuple(Case(f"{sizes}-{mesh}", layers, mesh, sizes) for mesh in meshes) for sizes in ("even", "uneven")},
        topologies,
    )


FULL = _suite(
    "gpt12",
    Case("large", 32, "16x16", propagation=True),
    ("64x16", (13, 39, 128)),
    2,
    ("2x4", "16x16", "64x64", "256x256"),
    (
        Case("topologies-8", 8, "16x4", targets=(*V5P, *H100)),
        Case("topologies-32", 32, "16x4", targets=(*V5P, *H100)),
        Case("topologies-65536", 2, "256x256", "even", targets=("v5p:16x16x16x16", "h100:1x8192x8")),
    ),
)
SMALL = _suite(
    "gpt3", Case("large", 2, "4x2"), ("4x2", (1, 2)), 1, ("1x2", "4x4"), (Case("topologies-1", 1, "16x4", targets=V5P),)
)
"""A minute's worth, to see that the command works."""


def prepare(case: Case) -> str:
    """Writes the program's file unless it is there; what went wrong, or nothing."""
    if case.path.exists() and case.path.stat().st_mtime > case.source.stat().st_mtime:
        return ""
    case.path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, *case.making], cwd=fresh.ROOT, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["no program"])[-1] if done.returncode else ""


def measure(case: Case, limit: int) -> Probe:
    """The figures of one program, within so many seconds of CPU time."""
    print(case.name, file=sys.stderr, flush=True)
    if error := prepare(case):
        return Probe(error=error)
    repeats = 1 if case.targets else 3  # ratios within one process
    return fresh.probe(case.path, limit=limit, repeats=repeats, propagation=case.propagation, targets=case.targets)


Probes = Mapping[str, Probe]
"""What was measured, by the name of the case."""


@dataclass(frozen=True)
class Figure:
    """One figure: what it says, with its unit; the first call in a process and the second; what is to be reached."""

    what: str
    first: float | None
    second: float | None = None
    target: float | None = None
    unit: str = ""
    error: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """As a row of the table."""
        within = "" if self.target is None or self.first is None else "yes" if self.first <= self.target else "no"
        return (self.what, self.error or self._text(self.first), self._text(self.second), self._text(self.target), within)

    def _text(self, value: float | None) -> str:
        return "" if value is None else f"{value:.2f}{self.unit}"


HEADING = ("figure", "first call", "second call", "target", "reached")


def figures(suite: Suite, probes: Probes, imports: Mapping[str, float]) -> Iterator[Figure]:
    """Every figure of which something was measured."""
    for command, seconds in imports.items():
        target = None if command.startswith("all") else IMPORT_TARGET
        yield Figure(f"{command}, CPU time", seconds, target=target, unit=" s")
    if found := probes.get(suite.step.name):
        yield from _beside_propagation(suite.step, found, (1.5, 1.0))
    if found := probes.get(suite.large.name):
        yield _seconds(suite.large, found, 1.5)
        yield from _beside_propagation(suite.large, found, (None, None))
    yield from _growth(suite, probes)
    for cases in suite.meshes.values():
        yield from _devices([(case, probes[case.name]) for case in cases if case.name in probes])
    for case in suite.topologies:
        if found := probes.get(case.name):
            yield from _planned(case, found)


def _planned(case: Case, found: Probe) -> Iterator[Figure]:
    """Plans for topologies, as multiples of the second call for neutral devices in the same process."""
    yield _seconds(case, found, None)
    for target in case.targets:
        first, second = (
            (call.cpu / found.second.cpu for call in found.planned[target]) if found.second and found.planned else (None, None)
        )
        yield Figure(f"{_title(case, found)}: {target}, over neutral devices", first, second, 2.5, "x", found.error)


def _title(case: Case, found: Probe) -> str:
    program = case.kept or f"llama, {case.layers} layers, {case.sizes} sizes"
    return f"{program}, {found.operations or '?':,} ops, mesh {case.mesh}" if found.operations else f"{program}, mesh {case.mesh}"


def _beside_propagation(case: Case, found: Probe, targets: tuple[float | None, float | None]) -> Iterator[Figure]:
    """How many times Shardy's propagation the first call takes, and the second."""
    if found.propagation is None:
        yield Figure(f"{_title(case, found)}: over sdy-propagation-pipeline", None, error=found.error or "not measured")
        return
    for call, spent, target in (("first", found.first, targets[0]), ("second", found.second, targets[1])):
        what = f"{_title(case, found)}: {call} call over sdy-propagation-pipeline ({found.propagation.cpu:.2f} s)"
        yield Figure(what, spent.cpu / found.propagation.cpu if spent else None, target=target, unit="x", error=found.error)


def _seconds(case: Case, found: Probe, target: float | None) -> Figure:
    first, second = (spent.cpu if spent else None for spent in (found.first, found.second))
    return Figure(_title(case, found), first, second, target, " s", "" if first else found.error)


def _growth(suite: Suite, probes: Probes) -> Iterator[Figure]:
    """Seconds and memory by ops, and how far from linear."""
    measured = [(case, probes[case.name]) for case in suite.growth if case.name in probes]
    for case, found in measured:
        yield _seconds(case, found, 8.0 if case is suite.growth[-1] else None)
    done = [(found.first.cpu / found.operations) for _, found in measured if found.first and found.operations]
    if measured and len(done) == len(suite.growth):
        yield Figure("CPU time an op, largest over smallest of these", done[-1] / done[0], target=1.2, unit="x")
    if measured and (largest := measured[-1][1]).peak_bytes:
        yield Figure(f"{_title(*measured[-1])}: peak memory", largest.peak_bytes / 1e9, target=4.0, unit=" GB")
        an_op = largest.peak_bytes / max(largest.operations, 1) / 1e3
        yield Figure(f"{_title(*measured[-1])}: peak memory an op", an_op, target=20, unit=" KB")


def _devices(measured: Sequence[tuple[Case, Probe]]) -> Iterator[Figure]:
    """Seconds and size of the text by devices, and both over those on the fewest devices; those of the most have a target."""
    if not measured:
        return
    yield from starmap(lambda case, found: _seconds(case, found, None), measured)
    (_, base), *others = measured
    for case, found in others:
        what = f"{_title(case, found)}: over {measured[0][0].devices} devices"
        if not (base.first and found.first and base.text_bytes and found.text_bytes):
            yield Figure(what, None, error=found.error or base.error)
            continue
        second = found.second.cpu / base.second.cpu if found.second and base.second else None
        seconds_target, text_target = (1.2, 2.0) if case is others[-1][0] else (None, None)
        yield Figure(what, found.first.cpu / base.first.cpu, second, seconds_target, "x")
        yield Figure(f"{what}, lowered text", found.text_bytes / base.text_bytes, None, text_target, "x")


def profile(probes: Probes) -> str:
    """CPU seconds of the first call by stage, a row for each program."""
    done = {name: found for name, found in probes.items() if found.stages}
    stages = list(dict.fromkeys(stage for found in done.values() for stage in found.stages))
    rows = [[name, *(f"{found.stages.get(stage, 0):.2f}" for stage in stages)] for name, found in done.items()]
    return table([["s per stage", *stages], *rows], left=(0,))


IMPORTS = {
    "import meshbridge": ["-c", "import meshbridge"],
    "meshbridge --help": ["-m", "meshbridge", "--help"],
    "all imports of a first call": [
        "-c",
        "from meshbridge import pipeline; from meshbridge.read import formats; formats.formats()",
    ],
}
"""What is imported when, as arguments to Python; partitioning needs MLIR's bindings and numpy, which need a third of the last."""
IMPORT_TARGET = 0.3
"""Seconds of CPU time for what is paid before anything is partitioned."""


def import_seconds() -> dict[str, float]:
    """CPU seconds of whole processes that import."""
    return {name: fresh.command_seconds(arguments) for name, arguments in IMPORTS.items()}


def compile_sources() -> None:
    """Compiles our modules to bytecode, as installing does: each process would do so anew where Python may not write it."""
    for package in ("bridge", "converters"):
        compileall.compile_dir(fresh.ROOT / package, quiet=1)


def write_json(probes: Probes, imports: Mapping[str, float], path: Path) -> None:
    """All figures; the file appears whole or not at all."""
    content = {"imports": imports, "programs": {name: asdict(found) for name, found in probes.items()}}
    beside = path.with_name(f"{path.name}.partly")
    beside.write_text(json.dumps(content, indent=1))
    beside.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a measurement did not come to its end."""
    options = _options(argv)
    suite = SMALL if options.small else FULL
    chosen = {case.name: case for case in suite.cases if not options.only or case.name.startswith(tuple(options.only))}
    compile_sources()
    imports = import_seconds() if not options.only or "imports" in options.only else {}
    probes = {name: measure(case, options.limit) for name, case in chosen.items()}
    found = [*figures(suite, probes, imports)]
    print(f"{_table(found)}\n\n{profile(probes)}")
    if options.json:
        write_json(probes, imports, options.json)
    if options.page:
        from benchmarks import curves  # imports matplotlib, whose memory would count as that of the processes measured

        curves.draw(suite, probes, options.page.with_suffix(".svg"))
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        if left_out := [case.name for case in suite.cases if case.name not in probes]:
            machine += f", without {', '.join(left_out)}"
        text = _table([figure for figure in found if figure.target is not None])
        options.page.write_text(
            marked.replaced(options.page, "figures", COMMAND, f"Measured on {machine}.\n\n```text\n{text}\n```")
        )
    return 1 if any(found.error for found in probes.values()) else 0


def _table(shown: Sequence[Figure]) -> str:
    return table([HEADING, *(figure.row for figure in shown)], left=(0,))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(("imports", *(case.name for case in FULL.cases)))
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"what begins with one of these names: {names}")
    parser.add_argument("--small", action="store_true", help="small programs and meshes")
    parser.add_argument("--limit", type=int, default=180, help="seconds of CPU time of each process (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write what has a target between the marks of this page, the picture beside"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
