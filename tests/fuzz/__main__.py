"""`python -m tests.fuzz`: mutates programs, runs commands on the mutants, and reports every one that ended badly.

Exit status 1 if there is one. Its input and what it wrote are kept, to be run again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from meshbridge import pass_names
from meshbridge.read import formats
from meshbridge.tools import cli, commands, mesh_opt
from tests.fuzz import runner, sources, upstream
from tests.fuzz.mutators import MUTATORS, mutant

COMMANDS = (
    "convert {} --to mesh",
    "convert {} --to sdy",
    "convert {} --to gspmd",
    "convert {} --to sdy --closed",
    "partition {} --emit mesh",
    "mesh-opt {} --mesh-simplifications --mesh-resharding --cse",
)

MESH_OPT = "mesh-opt "
"""What begins a command that is not one of `meshbridge`."""


def main() -> int:
    """The command; returns the exit status."""
    options = _options()
    # Once, not in every child. The import of `commands` is for that, too: `cli` leaves it to the command that is given.
    pass_names.registered_passes(), formats.formats(), formats.notations(), commands.OPTIONS
    found = sources.collect(options.paths, options.kind or MUTATORS, options.written_as or ())
    random, started = Random(options.seed), time.monotonic()
    ends: Counter[str] = Counter()
    for number in range(options.count):
        if options.seconds and time.monotonic() - started > options.seconds:
            break
        source, command = random.choice(found), random.choice(options.command or COMMANDS)
        data = mutant(source, options.seed * 1_000_003 + number)
        entry, arguments = (mesh_opt.main, command[len(MESH_OPT) :]) if command.startswith(MESH_OPT) else (cli.main, command)
        outcome = runner.run(arguments.split(), data, entry)
        fault = outcome.fault or (upstream.refusal(source, data) if outcome.status == 0 else "")
        ends["accepted" if outcome.status == 0 else "refused" if not fault else "at fault"] += 1
        if fault:
            ends["at fault"] += outcome.status == 0
            _keep(options.keep, f"{options.seed}-{number}", source.kind, data, f"{command}\n{fault}\n{outcome.errors}")
            print(
                f"{options.seed}-{number} {source.name} ({source.kind}), {command}: {fault}: {_last(outcome.errors)}", flush=True
            )
    print(f"{sum(ends.values())} mutants of {len(found)} programs: {dict(ends)}, {time.monotonic() - started:.0f} s")
    return 1 if ends["at fault"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="files and folders of programs")
    parser.add_argument("--count", type=int, default=200, help="how many mutants")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=MUTATORS, help="text or bytes (default: both)")
    parser.add_argument("--written-as", action="append", metavar="FORMAT", help="mutate what that format makes of the programs")
    parser.add_argument("--command", action="append", metavar="ARGUMENTS", help="of meshbridge or mesh-opt, {} for the input")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where inputs that ended badly are kept")
    return parser.parse_args()


def _keep(folder: Path, name: str, kind: str, data: bytes, report: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.{'mlir' if kind == 'text' else 'bin'}").write_bytes(data)
    (folder / f"{name}.txt").write_text(report)


def _last(errors: str) -> str:
    """The line of the output that says most: the first with an error in it."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "Check failed" in line), lines[0] if lines else "")[:200]


if __name__ == "__main__":
    sys.exit(main())
