"""One device's part of training and decoding steps for eight GPUs, run on one GPU: kernels and memory beside the models of them.

From the repository's root, on a machine with a GPU: `python -m benchmarks.on_gpu [--minutes 12] [--page docs/benchmarks.md]`.
JAX mocks the other seven devices, and collectives do nothing: what is measured are the kernels of a step and the memory of a
device, of our plans and of XLA's with Shardy. Beside them stand what XLA models and what meshbridge predicts. The record is
written after each program. `--fit` prints the `efficiency` of the machine's file that the record gives. `--dry-run` goes the same
way with tiny programs on virtual CPU devices, where collectives run; its figures say nothing of a GPU, and no page holds them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import marked
from benchmarks.cases import FOLDER, MEASURED, RECORDS, ROOT, Case, export, versions, write
from benchmarks.one_device import ERRORS, RESULT, Request
from benchmarks.table import geometric_mean
from meshbridge.machines.target import parse
from meshbridge.runtime import targets
from meshbridge.tools.compare import process
from meshbridge.tools.compare.contestants import OURS

COMMAND = "python -m benchmarks.on_gpu"
TARGET = parse("gpu:h100:1x1x8")
MOCK = "1x8x1"
"""The topology that JAX mocks: eight hosts of one device, as this machine has one."""

RECORD = RECORDS / "on_gpu.json"
DRY_RECORD = ROOT / "build" / "on_gpu.dry.json"

PROGRAMS = (
    "llama32_scan_fsdp_tp",
    "llama4_fsdp_tp",
    "llama4_fsdp",
    "gpt4_dp_tp",
    "moe_lm",
    "decode_heads",
    "decode_sequence",
    "cp_attention",
    "vocab_loss",
    "llama32_scan_fsdp",
    "gpt8_scan_fsdp_tp",
    "adam_zero1",
)
"""In the order in which they run, until the time is up: 45 seconds each, compilation included."""

TINY = ("gpt3", "decode_seq", "moe_fwd")
"""Programs of `testdata` that a dry run takes instead."""

NUMBERS = ("gpt3", "llama_scan_fsdp", "moe_grad", "decode_seq")
"""Programs of `testdata` whose results are compared with those of `jax.jit` on the one device."""

LONGEST = 240.0
"""Seconds after which a program is given up."""


@dataclass(frozen=True)
class TinyCase(Case):
    """A program of `testdata` as it is written, exported for CPUs."""

    @property
    def program(self) -> Path:
        """The file of the exported program."""
        return FOLDER / f"{self.name}.jax_export"

    @property
    def exporting(self) -> list[str]:
        """The Python command that writes the program."""
        return ["-m", "testdata.export", self.name, "--to", str(FOLDER)]


@dataclass(frozen=True)
class Setting:
    """What is run, and how: on a GPU, or on CPUs to try the way there."""

    cases: tuple[Case, ...]
    request: Request
    environment: Mapping[str, str]
    collectives: str


def on_a_gpu(names: Sequence[str]) -> Setting:
    """Realistic programs on the GPU of this machine."""
    cases = tuple(Case(name, "constrained", TARGET) for name in names)
    logged = targets.environment(TARGET) | {"JAX_PLATFORMS": "cuda,cpu"}
    return Setting(cases, Request(mock=MOCK), logged, "mocked: they do nothing")


def dry(names: Sequence[str]) -> Setting:
    """Tiny programs on virtual CPU devices, once."""
    cases = tuple(TinyCase(name, "as written", TARGET) for name in names)
    virtual = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    return Setting(cases, Request(repeats=1, warm=0), virtual, "run on virtual CPU devices")


def run(setting: Setting, minutes: float, path: Path) -> dict[str, Any]:
    """Runs all there is time for, and writes the record into `path` after each program. What there was no time for is named."""
    ends = time.monotonic() + 60 * minutes
    record: dict[str, Any] = {
        "measured": date.today().isoformat(),
        "versions": versions(TARGET),
        "target": TARGET.text,
        "collectives": setting.collectives,
    }
    checked = child(replace(setting.request, mock="", numbers=NUMBERS), setting, ends - time.monotonic())
    record |= {"device": checked.pop("device", ""), "numbers": checked, "rows": {}}
    for number, case in enumerate(setting.cases):
        record["not_run"] = [each.key for each in setting.cases[number:]]
        _keep(record, path)
        if time.monotonic() >= ends:
            print(f"time is up: {len(record['not_run'])} programs are left", file=sys.stderr, flush=True)
            return record
        print(case.key, file=sys.stderr, flush=True)
        record["rows"][case.key] = row(case, setting, ends)
    record["not_run"] = []
    _keep(record, path)
    return record


def row(case: Case, setting: Setting, ends: float) -> dict[str, Any]:
    """The figures of each contestant on a program. One that has no time left says so."""
    exported = export(case)
    if exported.returncode:
        return {name: {"error": exported.stderr.strip().splitlines()[-1]} for name in MEASURED}
    found = {}
    for name in MEASURED:
        request = replace(setting.request, program=str(case.program), contestant=name, target=case.target.text)
        found[name] = child(request, setting, ends - time.monotonic())
        found[name].pop("device", None)
    return found


def child(request: Request, setting: Setting, seconds: float) -> dict[str, Any]:
    """The result of a process of its own; an `error` where it left none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "benchmarks.one_device", name, json.dumps(asdict(request))]
        limits = process.Limits(seconds=max(1.0, min(LONGEST, seconds)))
        error = process.run(command, folder / ERRORS, limits, os.environ | setting.environment)
        if error or not (folder / RESULT).exists():
            return {"error": error or "it left no result"}
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
        return found


def _keep(record: Mapping[str, Any], path: Path) -> None:
    write(path, json.dumps(record, indent=1) + "\n")


def page(record: Mapping[str, Any] | None) -> str:
    """What the page says of a record, or of there being none."""
    if record is None:
        return "Nobody has run it yet: there is no record, and no figure here is measured on a GPU."
    return "\n".join(_page(record))


def _page(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{record['device']}, {record['measured']}, {record['versions']}; collectives {record['collectives']}."
    yield from ("", *_numbers(record["numbers"]), "", *_table(record["rows"]))
    remarks = [f"- {key}: {name} failed: {error}" for key, name, error in _failed(record["rows"])]
    if record["not_run"]:
        remarks.append(f"- Not run, for want of time: {'; '.join(record['not_run'])}.")
    if remarks:
        yield from ("", *remarks)


def _numbers(checked: Mapping[str, Any]) -> Iterator[str]:
    if error := checked.get("error"):
        yield f"Numbers were not compared: {error}"
        return
    worst = max(checked["numbers"].values())
    found = "equal those of" if worst <= checked["tolerance"] else "**differ from** those of"
    names = ", ".join(checked["numbers"])
    yield f"On the one device, results of {names} through every pass {found} `jax.jit` (largest relative difference {worst:.1e})."


def _failed(rows: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, both in rows.items():
        yield from ((key, name, figures["error"]) for name, figures in both.items() if "error" in figures)


def _table(rows: Mapping[str, Any]) -> Iterator[str]:
    yield "| program | by | step ms | kernels ms | XLA models ms | predicted ms | allocated GB | by the compiler GB |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for key, both in rows.items():
        for name, figures in both.items():
            if "error" not in figures:
                yield f"| {key} | {name} | {' | '.join(_cells(figures))} |"


def _cells(figures: Mapping[str, Any]) -> Iterator[str]:
    """Modelled and predicted times are those of kernels, without what waits for communication."""
    model = figures["modelled"] or {}
    modelled = (model["total"] - model["wasted"]) * 1e-6 if "total" in model else None
    predicted = figures["predicted"].get("compute_seconds")
    for seconds in (figures["step_seconds"], figures["kernel_seconds"], modelled, predicted):
        yield "-" if seconds is None else f"{seconds * 1e3:,.2f}"
    for size in (figures["allocated_bytes"], figures["peak_bytes"]):
        yield "-" if size is None else f"{size / 1e9:.2f}"


def fit(record: Mapping[str, Any]) -> float:
    """The share of their peaks that kernels reach, by which predicted kernels take as long as measured ones: the geometric mean
    over the programs of our plans. Raises ValueError where no program has both."""
    shares = []
    for both in record["rows"].values():
        figures = both[OURS]
        if figures.get("kernel_seconds"):
            left = figures["kernel_seconds"] - figures["predicted"]["launch_seconds"]
            if left > 0:
                shares.append(figures["predicted"]["work_seconds"] / left)
    if not shares:
        raise ValueError("the record has no program with measured kernels")
    return geometric_mean(shares)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a program failed or numbers differ."""
    options = _options(argv)
    path = options.record or (DRY_RECORD if options.dry_run else RECORD)
    if options.fit or options.measured:
        record = json.loads(path.read_text()) if path.exists() else None
    else:
        setting = dry(options.programs or TINY) if options.dry_run else on_a_gpu(options.programs or PROGRAMS)
        record = run(setting, options.minutes, path)
    if options.fit:
        return _fit(record, path)
    text = page(record)
    print(text)
    if options.page:
        options.page.write_text(marked.replaced(options.page, "on one GPU", COMMAND, text))
    return 1 if record is not None and not is_right(record) else 0


def is_right(record: Mapping[str, Any]) -> bool:
    """Whether all programs ran, and numbers are those of `jax.jit`."""
    checked = record["numbers"]
    numbers = "error" not in checked and max(checked["numbers"].values()) <= checked["tolerance"]
    return numbers and not list(_failed(record["rows"]))


def _fit(record: Mapping[str, Any] | None, path: Path) -> int:
    try:
        if record is None:
            raise ValueError("there is no record")
        print(f"efficiency = {fit(record):.2f}")
    except ValueError as error:
        print(f"{COMMAND}: error: {path.name}: {error}", file=sys.stderr)
        return 1
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="what to run, in this order")
    help_ = "no program is begun after so many minutes, and none runs on (default: 12)"
    parser.add_argument("--minutes", type=float, default=12.0, help=help_)
    parser.add_argument("--dry-run", action="store_true", help="tiny programs once, on virtual CPU devices")
    parser.add_argument("--record", type=Path, metavar="FILE", help=f"where figures are kept (default: {RECORD.name})")
    parser.add_argument("--measured", action="store_true", help="run nothing: show what is on record")
    parser.add_argument("--fit", action="store_true", help="run nothing: print the efficiency that the record gives")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds the table")
    options = parser.parse_args(argv)
    if options.dry_run and options.page:
        parser.error("argument --page: not allowed with argument --dry-run")
    return options


if __name__ == "__main__":
    sys.exit(main())
