"""The realistic programs compiled for accelerators that need not be there: partitioned by meshbridge, and by XLA with Shardy.

From the repository's root: `python -m benchmarks.targets [--programs NAME…] [--targets TARGET…] [--json FILE] [--page FILE]`,
with `--compiler-options best` for each under the options of XLA that are its best.
Nothing runs. Each program is exported from shapes and handed to `meshbridge compare --target`, whose figures end up in a table
for each target. `make bench-targets` writes those into docs/benchmarks.md. What was measured is in `benchmarks/measured`: the
tables of a page hold all programs where a run measures some.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import get_args

from benchmarks import marked
from benchmarks.cases import (
    FOLDER,
    MEASURED,
    TARGETS,
    Case,
    Contestant,
    Found,
    export,
    is_current,
    keep,
    known,
    python,
    recorded,
    split,
    versions,
    write,
)
from benchmarks.target_tables import means, overview, page, tables
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import parse
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata.realistic.catalogue import ANNOTATIONS, BUILDERS, variants

COMMAND = "make bench-targets"


def measure(case: Case, limit: int, *, kept: Sequence[str]) -> dict[str, Contestant]:
    """The figures of each contestant, by name; of those `kept` as they are on record, if they are."""
    found = {name: figures for name, figures in known(case).items() if name in kept}
    if len(found) < len(MEASURED):
        found = _measured(case, limit, [*found]) | found
        keep(case, found)
    return {name: found[name] for name in MEASURED}


def measure_changed(case: Case, limit: int) -> dict[str, Contestant]:
    """The figures of each contestant, of today's plan by the compiler that is installed. What is on record of that stays; a
    peer's figures stay as long as the program does."""
    found, today = known(case), versions(case.target)
    if all(found.get(name, {}).get("versions") == today for name in MEASURED) and is_current(case, found):
        return found
    peer = found.get(PEER, {})
    if peer.get("program") and peer.get("versions") == today:
        ours = _measured(case, limit, [PEER])
        if ours[OURS].get("program") == peer["program"]:
            keep(case, found := ours | {PEER: peer})
            return found
    return measure(case, limit, kept=())


def _measured(case: Case, limit: int, without: Sequence[str]) -> dict[str, Contestant]:
    """The figures of all MEASURED but those `without`."""
    print(f"{case.name}, {case.annotation}, {case.target.text}", file=sys.stderr, flush=True)
    exported = export(case)
    if exported.returncode:
        return _failed(exported.stderr, exported.returncode)
    compared = python(case.comparing(limit, without=["xla-gspmd", *without]))
    if not compared.stdout.startswith("{"):
        return _failed(compared.stderr, compared.returncode)
    (target,) = json.loads(compared.stdout)["targets"]
    under = {"program": target["program"], "versions": versions(case.target), "measured": date.today().isoformat()}
    return {contestant["name"]: contestant | under for contestant in target["contestants"]}


def _failed(stderr: str, status: int) -> dict[str, Contestant]:
    """Nobody's figures: the program itself could not be made, or not be read."""
    error = (stderr.strip().splitlines() or [f"ended with status {status}"])[-1]
    return {name: {"error": error} for name in MEASURED}


def _left_out(cases: Sequence[Case]) -> Iterator[str]:
    for target in dict.fromkeys(case.target for case in cases):
        names = [f"{case.name} ({case.annotation})" for case in cases if case.target == target]
        yield f"Not measured on {target.text}: {', '.join(names)}."


def write_json(found: Found, path: Path) -> None:
    """All figures; the file appears whole or not at all."""
    content = [
        {"program": case.name, "annotation": case.annotation, "target": case.target.text, "contestants": both}
        for case, both in found.items()
    ]
    write(path, json.dumps(content, indent=1))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if our program did not compile somewhere."""
    options = _options(argv)
    cases = cases_of(options.targets, options.annotations, options.programs, options.compiler_options)
    found = recorded(cases) if options.measured else {case: _asked(options)(case, options.limit) for case in cases}
    print(_text(*split(found), cases))
    write_json(found, options.json)
    if options.page or options.overview:
        today, older = split(recorded(cases_of(TARGETS, ANNOTATIONS, BUILDERS, options.compiler_options)))
    if options.page:
        is_default = options.compiler_options == "default"
        mark = "targets" if is_default else f"targets, {options.compiler_options} options"
        text = page(today, older) if is_default else means(today, older)
        options.page.write_text(marked.replaced(options.page, mark, COMMAND, text))
    if options.overview:
        options.overview.write_text(marked.replaced(options.overview, "overview", COMMAND, overview(today, older)))
    return 1 if any(both[OURS].get("error") for both in found.values()) else 0


def _asked(options: argparse.Namespace) -> Callable[[Case, int], Mapping[str, Contestant]]:
    """How cases are measured."""
    if options.changed:
        return measure_changed
    return partial(measure, kept=[PEER] if options.ours else MEASURED if options.keep else [])


def cases_of(targets: Iterable[str], annotations: Iterable[str], names: Iterable[str], options: OptionSet) -> list[Case]:
    """All cases, those of a target together, then those of an annotation."""
    return [
        Case(name, annotation, parse(target), options)
        for target in targets
        for annotation in annotations
        for name in names
        if annotation in variants(name)
    ]


def _text(today: Found, older: Found, cases: Sequence[Case]) -> str:
    """The tables of today's plans, those of older ones, and what of the cases they lack on the targets that they are of."""
    found = {**today, **older}
    measured = {case.target for case in found}
    missing = _left_out([case for case in cases if case.target in measured and case not in found])
    return "\n\n".join(
        [part for part in (tables(today), *(["Of older plans:", tables(older)] if older else []), *missing) if part]
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=list(BUILDERS), default=list(BUILDERS), metavar="NAME")
    parser.add_argument("--annotations", nargs="+", choices=list(ANNOTATIONS), default=list(ANNOTATIONS))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    help_ = "XLA's options: its own defaults, or those under which collectives overlap (default: default)"
    parser.add_argument("--compiler-options", choices=get_args(OptionSet), default="default", help=help_)
    parser.add_argument("--limit", type=int, default=600, metavar="SECONDS", help="what one compilation may take (default: 600)")
    help_ = "measure what is not on record of today's plan, and by the compiler that is installed"
    parser.add_argument("--changed", action="store_true", help=help_)
    parser.add_argument("--keep", action="store_true", help="take what is on record, where it is")
    parser.add_argument("--ours", action="store_true", help="the same, but of XLA with Shardy alone")
    parser.add_argument("--measured", action="store_true", help="measure nothing, show what is on record")
    parser.add_argument("--json", type=Path, default=FOLDER.with_suffix(".json"), metavar="FILE", help="all figures")
    help_ = "the Markdown page that holds what is on record: rows with constraints and means; of the best options means alone"
    parser.add_argument("--page", type=Path, metavar="FILE", help=help_)
    parser.add_argument("--overview", type=Path, metavar="FILE", help="the Markdown page that says the means in a sentence")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
