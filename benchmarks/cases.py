"""A program on a target, what is on record of it, and whether that is of today's plan.

A record names the plan that was compiled, the program, and the versions of the compiler. Figures of another plan than today's
are older ones: tables print them apart, and no mean holds them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import Target
from meshbridge.runtime.targets import EXPORT_PLATFORM
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEER

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "targets"
"""Where exported programs are kept."""

RECORDS = ROOT / "benchmarks" / "measured"
"""Where figures are kept: a file for each target and set of XLA's options."""

TARGETS = ("tpu:v5e:2x4", "tpu:v5p:4x4x4", "gpu:h100:1x1x8", "gpu:h100:1x2x8")
"""What the realistic programs are compiled for, in the order of the tables."""

MEASURED = (OURS, PEER)
"""Whom the tables hold."""

FLOPS_PER_CYCLE = {"v5e": 4 * 2 * 128**2, "v5p": 2 * 4 * 2 * 128**2}
"""Of a TPU's matrix units, each of 128 x 128 multiply-adds: the peak of bfloat16 over them is the clock that cycles count."""

Contestant = Mapping[str, Any]
"""What the JSON of `compare` says of one: its figures by key, or an `error`."""


@dataclass(frozen=True)
class Case:
    """A program, how it is annotated, what it is compiled for, and under which set of XLA's options."""

    name: str
    annotation: str
    target: Target
    options: OptionSet = "default"

    @property
    def program(self) -> Path:
        """The file of the exported program."""
        return FOLDER / f"{self.name}.{self.annotation}.{self.platform}.{self.target.devices}.jax_export"

    @property
    def platform(self) -> str:
        """What jax.export calls the target's platform."""
        return EXPORT_PLATFORM[self.target.machine.platform]

    @property
    def record(self) -> Path:
        """The file that holds its figures."""
        under = "" if self.options == "default" else f".{self.options}"
        return RECORDS / f"{self.target.text.replace(':', '_')}{under}.json"

    @property
    def key(self) -> str:
        """What they stand under there."""
        return f"{self.name}, {self.annotation}"

    @property
    def golden(self) -> str:
        """What the golden file calls its plan."""
        return ", ".join((self.key, self.target.text.partition(":")[2], self.options))

    @property
    def exporting(self) -> list[str]:
        """The Python command that writes the program."""
        said = ["--devices", str(self.target.devices), "--platform", self.platform, "--annotation", self.annotation]
        return ["-m", "testdata.realistic.export", str(self.program), self.name, *said]

    def comparing(self, limit: int, *, without: Iterable[str]) -> list[str]:
        """The Python command that compiles the program by each contestant but some, for up to so many seconds each."""
        left_out = [word for name in without for word in ("--without", name)]
        said = ["--target", self.target.text, *left_out, "--compiler-options", self.options, "--timeout", str(limit)]
        return ["-m", "meshbridge", "compare", str(self.program), *said, "--json", "--quiet"]


Found = Mapping[Case, Mapping[str, Contestant]]

KEPT = (
    "error",
    "wire_bytes",
    "exposed_bytes",
    "temporary_bytes",
    "peak_bytes",
    "modelled",
    "executed",
    "flops",
    "compile_seconds",
    "unknown_loops",
    "program",
    "plan",
    "versions",
    "measured",
)
"""What is kept of a contestant's figures. `program` and `plan` are hashes, `measured` is a date."""

_NOTHING: tuple[object, ...] = (None, "", [], {})


def known(case: Case) -> dict[str, Contestant]:
    """What is on record of each contestant, by name; nothing where nothing was measured."""
    found: dict[str, Contestant] = record_of(case.record).get(case.key, {})
    return found


def modelled_seconds(found: Contestant, target: Target, bytes_per_second: float) -> float:
    """A step by its compiler's model. A GPU's scheduler counts microseconds. The cycles of a TPU hold no communication: to them
    comes what the compiler exposes, at that rate."""
    total: float = found["modelled"]["total"]
    if found["modelled"]["unit"] == "microseconds":
        return total * 1e-6
    clock = target.machine.flops["bf16"] / FLOPS_PER_CYCLE[target.device]
    return total / clock + found["exposed_bytes"] / bytes_per_second


def recorded(cases: Iterable[Case]) -> Found:
    """The cases of which figures are on record."""
    return {case: found for case in cases if (found := known(case))}


def keep(case: Case, found: Mapping[str, Contestant]) -> None:
    """Puts figures on record, in place of what stood there."""
    rows = record_of(case.record)
    rows[case.key] = {
        name: {key: figures[key] for key in KEPT if figures.get(key) not in _NOTHING} for name, figures in found.items()
    }
    lines = [f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    write(case.record, "{\n" + ",\n".join(lines) + "\n}\n")


def record_of(path: Path) -> dict[str, Any]:
    """What a file of RECORDS holds, by key; nothing where there is no such file."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.partly")
    beside.write_text(text)
    beside.replace(path)


def export(case: Case) -> subprocess.CompletedProcess[str]:
    """Writes the program in a process of its own."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return python(case.exporting)


def python(arguments: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Runs Python from the repository's root."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


_PACKAGES = {"tpu": ("jax", "libtpu"), "gpu": ("jax", "jax-cuda12-plugin", "jax-cuda13-plugin")}
"""What makes the compilers of a platform, as far as it is installed."""


def versions(target: Target) -> str:
    """The installed versions of what compiles for a target."""
    return ", ".join(f"{name} {found}" for name in _PACKAGES[target.machine.platform] if (found := _version(name)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def is_current(case: Case, both: Mapping[str, Contestant]) -> bool:
    """Whether figures are of today's plan, beside a peer's of the same program by the same compiler."""
    ours, peer = (both.get(name, {}) for name in MEASURED)
    alike = all(ours.get(key) == peer.get(key) for key in ("program", "versions"))
    return alike and bool(ours.get("plan")) and ours["plan"] == todays_plan(case)


def split(found: Found) -> tuple[Found, Found]:
    """Figures of today's plans, and older ones."""
    current = {case: both for case, both in found.items() if is_current(case, both)}
    return current, {case: both for case, both in found.items() if case not in current}


@cache
def todays_plan(case: Case) -> str:
    """The hash of the plan that meshbridge makes of a case now: that of the golden file, which tests hold to be today's; what
    has no row there is planned. Raises CalledProcessError if the program cannot be exported."""
    if on_record := golden_plans().get(case.golden):
        return str(on_record["lowered"])
    print(f"planning {case.golden}", file=sys.stderr, flush=True)
    export(case).check_returncode()
    module = command.for_target(meshbridge.load(str(case.program)), case.target).module
    machine = command.machine_of(case.target, case.target.devices)
    partitioning.partition_module(module, pipeline.Options.of(machine=machine, compiler_options=case.options))
    return mlir.digest(module)


@cache
def golden_plans() -> dict[str, Any]:
    """The golden file, by the keys of its plans."""
    return record_of(ROOT / "tests" / "plans" / "golden.json")
