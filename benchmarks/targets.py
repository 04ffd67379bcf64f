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
from dataclasses import dataclass
from datetime import date
from functools import partial
from math import inf
from pathlib import Path
from typing import get_args

from benchmarks import marked
from benchmarks.cases import (
    FOLDER,
    MEASURED,
    Case,
    Contestant,
    Found,
    export,
    is_current,
    keep,
    known,
    python,
    recorded,
    versions,
    write,
)
from benchmarks.table import geometric_mean
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import Target, parse
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata.realistic.catalogue import ANNOTATIONS, BUILDERS, variants

COMMAND = "make bench-targets"
TARGETS = ("tpu:v5e:2x4", "tpu:v5p:4x4x4", "gpu:h100:1x1x8")

EQUAL = 1.001
"""Ratios up to this are no loss: figures of one plan differ by as much where two compilers pad differently."""


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


@dataclass(frozen=True)
class Figure:
    """A column: its heading, the key in the JSON, and how many units of that are one of the table's."""

    heading: str
    key: str
    unit: float = 1.0
    digits: int = 0
    is_plan: bool = True
    """Whether more of it is a loss; compile time says how fast a compiler is, not how good a plan."""

    def value(self, found: Contestant) -> float | None:
        """None where it is not known."""
        value = None if found.get("error") else found.get(self.key)
        if isinstance(value, Mapping):  # what a compiler models has a unit of its own
            value = value["total"] * MODELLED[value["unit"]]
        return None if value is None else float(value)

    def text(self, found: Contestant) -> str:
        """In the table's unit."""
        value = self.value(found)
        return "-" if value is None else f"{value / self.unit:,.{self.digits}f}"

    def ratio(self, both: Mapping[str, Contestant]) -> float | None:
        """Ours over Shardy's, None where one is not known or stands as zero in the table."""
        ours, peer = (self.value(both[name]) for name in (OURS, PEER))
        least = self.unit * 10**-self.digits / 2
        return None if ours is None or peer is None or min(ours, peer) < least else ours / peer

    def is_loss(self, both: Mapping[str, Contestant]) -> bool:
        """Whether Shardy's plan has less of it."""
        ours, peer = (self.value(both[name]) for name in (OURS, PEER))
        return self.is_plan and ours is not None and peer is not None and ours > EQUAL * peer

    def cell(self, both: Mapping[str, Contestant], *, ratio: bool = True) -> str:
        """Both, and their ratio if that is asked for; bold where it is a loss."""
        if any(both[name].get("error") for name in both):
            return " / ".join("failed" if both[name].get("error") else self.text(both[name]) for name in (OURS, PEER))
        over = self.ratio(both) if ratio else None
        text = f"{self.text(both[OURS])} / {self.text(both[PEER])}" + (f" = {over:.2f}" if over else "")
        return f"**{text}**" if self.is_loss(both) else text


MODELLED = {"cycles": 1e-6, "microseconds": 1e-3}
"""How many of the table's units, millions of cycles or milliseconds, are in one of a compiler's."""

FIGURES = (
    Figure("wire MB", "wire_bytes", 1e6, 1),
    Figure("exposed MB", "exposed_bytes", 1e6, 1),
    Figure("temporaries MB", "temporary_bytes", 1e6),
    Figure("modelled", "modelled", digits=1),
    Figure("collectives", "executed"),
    Figure("compile s", "compile_seconds", is_plan=False),
)


def tables(found: Found, figures: Sequence[Figure] = FIGURES) -> str:
    """A table for each target, with geometric means, and what failed."""
    return "\n\n".join(
        "\n".join(_table(target, {c: both for c, both in found.items() if c.target == target}, figures))
        for target in _targets(found)
    )


def page(found: Found) -> str:
    """What the page shows of XLA's defaults: every row of programs with constraints, and the means and failures of the others."""
    return "\n\n".join("\n".join(_page(target, found)) for target in _targets(found))


def _page(target: Target, found: Found) -> Iterator[str]:
    own = {case: both for case, both in found.items() if case.target == target}
    constrained = {case: both for case, both in own.items() if case.annotation == "constrained"}
    yield from (_title(target), "", *_heading(FIGURES), *_rows(constrained, FIGURES), *_means(own, FIGURES), "")
    yield from _remarks(target, own)


def _targets(found: Found) -> list[Target]:
    return list(dict.fromkeys(case.target for case in found))


def _table(target: Target, found: Found, figures: Sequence[Figure]) -> Iterator[str]:
    yield from (_title(target), "", *_heading(figures), *_rows(found, figures), *_means(found, figures), "")
    yield from _remarks(target, found)


def _title(target: Target) -> str:
    return f"**{target.text}**: {target.devices} of {target.machine.summary}"


def _heading(figures: Sequence[Figure]) -> Iterator[str]:
    yield f"| program | annotated | {' | '.join(figure.heading for figure in figures)} |"
    yield f"|---|---|{'---:|' * len(figures)}"


def _rows(found: Found, figures: Sequence[Figure]) -> Iterator[str]:
    for case, both in found.items():
        yield f"| {case.name} | {case.annotation} | {' | '.join(figure.cell(both) for figure in figures)} |"


def _means(found: Found, figures: Sequence[Figure]) -> Iterator[str]:
    for annotation in dict.fromkeys(case.annotation for case in found):
        chosen = [both for case, both in found.items() if case.annotation == annotation]
        yield f"| *geometric mean* | *{annotation}* | {' | '.join(_mean(figure, chosen) for figure in figures)} |"


def overview(found: Found) -> str:
    """One sentence: of each target the geometric mean of wire bytes, ours over Shardy's, of the programs with constraints."""
    wire, *_ = FIGURES
    shown, counts = [], []
    for target in dict.fromkeys(case.target for case in found):
        chosen = [both for case, both in found.items() if (case.target, case.annotation) == (target, "constrained")]
        ratios = [ratio for both in chosen if (ratio := wire.ratio(both))]
        counts.append(len(ratios))
        shown.append(f"**{geometric_mean(ratios):.2f}** on {target.devices} {target.machine.summary.partition(',')[0]}")
    return (
        f"Geometric mean of bytes sent, ours over XLA's with Shardy: {', '.join(shown)}\n"
        f"(up to {max(counts)} training and decoding steps with constraints; compiled ahead of time, not run)."
    )


def summary(found: Found, figures: Sequence[Figure] = FIGURES, *, losses: float = inf) -> str:
    """A table for each target: the geometric means, and the rows in which a figure is more than `losses` times Shardy's."""
    return "\n\n".join("\n".join(_summary(target, found, figures, losses)) for target in _targets(found))


def _summary(target: Target, found: Found, figures: Sequence[Figure], losses: float) -> Iterator[str]:
    own = {case: both for case, both in found.items() if case.target == target}
    worst = {case: both for case, both in own.items() if any((f.ratio(both) or 0) > losses for f in figures if f.is_plan)}
    lines = list(_rows(worst, figures)) + list(_means(own, figures))
    yield from (_title(target), "", *_heading(figures), *lines)


def _left_out(cases: Sequence[Case]) -> Iterator[str]:
    for target in dict.fromkeys(case.target for case in cases):
        names = [f"{case.name} ({case.annotation})" for case in cases if case.target == target]
        yield f"Not measured on {target.text}: {', '.join(names)}."


def _mean(figure: Figure, chosen: Sequence[Mapping[str, Contestant]]) -> str:
    """Of the ratios, and how many programs lose."""
    ratios = [ratio for both in chosen if (ratio := figure.ratio(both))]
    losses = sum(figure.is_loss(both) for both in chosen)
    return (f"{geometric_mean(ratios):.2f} of {len(ratios)}" if ratios else "-") + (f", {losses} lost" if losses else "")


def _remarks(target: Target, found: Found) -> Iterator[str]:
    for case, both in found.items():
        for name, figures in both.items():
            of = f"- {case.name}, {case.annotation}: {name}"
            if error := figures.get("error"):
                yield f"{of} failed: {' '.join(error.split())[:300]}"
            elif figures.get("peak_bytes", 0) > target.machine.memory_bytes:
                yield f"{of} needs {figures['peak_bytes'] / 1e9:.1f} GB, a device has {target.machine.memory_bytes / 1e9:.1f}"
            if loops := figures.get("unknown_loops"):
                yield f"{of}: bodies of {', '.join(loops)} counted once"


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
    cases = _cases(options.targets, options.annotations, options.programs, options.compiler_options)
    found = recorded(cases) if options.measured else {case: _asked(options)(case, options.limit) for case in cases}
    print(_text(found, cases))
    write_json(found, options.json)
    cases = _cases(TARGETS, ANNOTATIONS, BUILDERS, options.compiler_options)
    shown = recorded(cases)
    if options.page:
        is_default = options.compiler_options == "default"
        mark = "targets" if is_default else f"targets, {options.compiler_options} options"
        text = page(shown) if is_default else summary(shown)
        options.page.write_text(marked.replaced(options.page, mark, COMMAND, text))
    if options.overview:
        options.overview.write_text(marked.replaced(options.overview, "overview", COMMAND, overview(shown)))
    return 1 if any(both[OURS].get("error") for both in found.values()) else 0


def _asked(options: argparse.Namespace) -> Callable[[Case, int], Mapping[str, Contestant]]:
    """How cases are measured."""
    if options.changed:
        return measure_changed
    return partial(measure, kept=[PEER] if options.ours else MEASURED if options.keep else [])


def _cases(targets: Iterable[str], annotations: Iterable[str], names: Iterable[str], options: OptionSet) -> list[Case]:
    return [
        Case(name, annotation, parse(target), options)
        for target in targets
        for annotation in annotations
        for name in names
        if annotation in variants(name)
    ]


def _text(found: Found, cases: Sequence[Case]) -> str:
    """The tables, and what of the cases they lack on the targets that they are of."""
    measured = {case.target for case in found}
    return "\n\n".join([tables(found), *_left_out([case for case in cases if case.target in measured and case not in found])])


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
