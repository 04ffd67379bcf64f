"""The tables of `make bench-targets`: figures of programs compiled for targets, ours beside Shardy's.

A page has the rows of today's plans, with their means, and the number of programs whose figures are of older plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from benchmarks.cases import FLOPS_PER_CYCLE, TARGETS, Contestant, Found, modelled_seconds
from benchmarks.table import geometric_mean
from meshbridge.machines.target import Target
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata.realistic.catalogue import BUILDERS

EQUAL = 1.001
"""Ratios up to this are no loss: figures of one plan differ by as much where two compilers pad differently."""


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

    def is_comparable(self, both: Mapping[str, Contestant]) -> bool:
        """Whether both count the same: not where a compiler's model has no estimate of more instructions of one than of the
        other, which count as nothing."""
        values = [both[name].get(self.key) for name in (OURS, PEER)]
        return len({value.get("without_estimate", 0) for value in values if isinstance(value, Mapping)}) < 2

    def ratio(self, both: Mapping[str, Contestant]) -> float | None:
        """Ours over Shardy's, None where one is not known or stands as zero in the table, or they are not comparable."""
        ours, peer = (self.value(both[name]) for name in (OURS, PEER))
        least = self.unit * 10**-self.digits / 2
        return None if ours is None or peer is None or min(ours, peer) < least or not self.is_comparable(both) else ours / peer

    def is_loss(self, both: Mapping[str, Contestant]) -> bool:
        """Whether Shardy's plan has less of it."""
        ours, peer = (self.value(both[name]) for name in (OURS, PEER))
        if ours is None or peer is None:
            return False
        return self.is_plan and self.is_comparable(both) and ours > EQUAL * peer

    def cell(self, both: Mapping[str, Contestant], *, ratio: bool = True) -> str:
        """Both, and their ratio if that is asked for; bold where it is a loss."""
        if any(both[name].get("error") for name in both):
            return " / ".join("failed" if both[name].get("error") else self.text(both[name]) for name in (OURS, PEER))
        over = self.ratio(both) if ratio else None
        between = " / " if self.is_comparable(both) else " ≈ "
        text = f"{self.text(both[OURS])}{between}{self.text(both[PEER])}" + (f" = {over:.2f}" if over else "")
        return f"**{text}**" if self.is_loss(both) else text

    def ratio_text(self, both: Mapping[str, Contestant]) -> str:
        """The ratio alone; bold where it is more than SHOWN allows."""
        ratio = self.ratio(both)
        text = "-" if ratio is None else f"{ratio:.2f}"
        return f"**{text}**" if ratio is not None and ratio > SHOWN[self.key] else text


MODELLED = {"cycles": 1e-6, "microseconds": 1e-3, "seconds": 1e3}
"""How many of the table's units, millions of cycles or milliseconds, are in one of a compiler's."""

TEMPORARIES = Figure("temporaries MB", "temporary_bytes", 1e6)
MODEL = Figure("modelled", "modelled", digits=1)

FIGURES = (
    Figure("wire MB", "wire_bytes", 1e6, 1),
    Figure("exposed MB", "exposed_bytes", 1e6, 1),
    TEMPORARIES,
    MODEL,
    Figure("collectives", "executed"),
    Figure("compile s", "compile_seconds", is_plan=False),
)

STEP = Figure("step ms", "step", digits=1)
"""Of a TPU, whose model holds no communication: the modelled step with the exposed bytes."""

_AFTER_MODEL = FIGURES.index(MODEL) + 1
WITH_STEP = (*FIGURES[:_AFTER_MODEL], STEP, *FIGURES[_AFTER_MODEL:])
"""The columns of TPUs, and of tables in which they stand beside GPUs."""


def figures_of(target: Target) -> tuple[Figure, ...]:
    """The columns of a target's table."""
    return WITH_STEP if target.device in FLOPS_PER_CYCLE else FIGURES


def _with_step(target: Target, found: Contestant) -> Contestant:
    """With the figure of STEP, where it is known."""
    if target.device not in FLOPS_PER_CYCLE or not found.get("modelled") or "exposed_bytes" not in found:
        return found
    link = target.machine.link
    seconds = modelled_seconds(found, target, link.ports * link.rate)
    return {**found, STEP.key: {**found["modelled"], "total": seconds, "unit": "seconds"}}


SHOWN = {"modelled": 1.01, "step": 1.01, "temporary_bytes": 1.05}
"""Ratios, by a figure's key, above which a program counts as lost on a page."""


def tables(found: Found, figures: Sequence[Figure] = ()) -> str:
    """A table for each target, by default of its columns, with geometric means, and what failed."""
    return "\n\n".join("\n".join(_table(target, _of(target, found), figures or figures_of(target))) for target in _targets(found))


def page(today: Found, older: Found) -> str:
    """What the page shows of XLA's defaults: the ratios of all programs with constraints on all targets, the means of each
    target, what fails, and how many rows are of older plans."""
    remarks = (line for target in _targets(today) for line in _remarks(target, _of(target, today)))
    return "\n\n".join(part for part in ("\n".join(_ratios(today)), means(today, older), "\n".join(remarks)) if part)


def _ratios(today: Found) -> Iterator[str]:
    """A row for each program: its ratios of time and of memory on each target."""
    columns = [(target, _of(target, today, "constrained"), figure) for target in _targets(today) for figure in _shortly(target)]
    heads = [f"{target.device}:{target.text.rpartition(':')[2]}: {figure.heading.split()[0]}" for target, _, figure in columns]
    yield f"| ratios of | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for name in BUILDERS:
        rows = ([both for case, both in found.items() if case.name == name] for _, found, _ in columns)
        cells = [figure.ratio_text(*both) if both else "" for both, (*_, figure) in zip(rows, columns, strict=True)]
        if any(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def _shortly(target: Target) -> tuple[Figure, Figure]:
    """The time of a step and its memory."""
    return (STEP if STEP in figures_of(target) else MODEL, TEMPORARIES)


def not_measured(older: Found) -> Iterator[str]:
    """A line with the number of programs whose figures are of older plans, by target; `--measured` prints their rows."""
    if older:
        counts = ", ".join(f"{len(_of(target, older))} on {target.text}" for target in _targets(older))
        yield f"- Not measured since its plan changed, or without a plan on record: {counts}."


def _of(target: Target, found: Found, annotation: str = "") -> Found:
    chosen = {case: both for case, both in found.items() if case.target == target and annotation in ("", case.annotation)}
    return {case: {name: _with_step(target, figures) for name, figures in both.items()} for case, both in chosen.items()}


def _targets(found: Found) -> list[Target]:
    """Those of TARGETS in that order, then others."""
    order = {text: number for number, text in enumerate(TARGETS)}
    return sorted(dict.fromkeys(case.target for case in found), key=lambda target: order.get(target.text, len(order)))


def _table(target: Target, found: Found, figures: Sequence[Figure]) -> Iterator[str]:
    yield from (_title(target), "", *_heading(figures), *_rows(found, figures), *_means(found, figures), "")
    yield from _remarks(target, found)


def _title(target: Target) -> str:
    return f"**{target.text}**: {target.devices} of {target.machine.summary}"


def _heading(figures: Sequence[Figure]) -> Iterator[str]:
    yield f"| {' | '.join(('program', 'annotated', *(figure.heading for figure in figures)))} |"
    yield f"|---|---|{'---:|' * len(figures)}"


def _rows(found: Found, figures: Sequence[Figure]) -> Iterator[str]:
    for case, both in found.items():
        yield f"| {' | '.join((case.name, case.annotation, *(figure.cell(both) for figure in figures)))} |"


def _means(found: Found, figures: Sequence[Figure], of: str = "*geometric mean*") -> Iterator[str]:
    for annotation in dict.fromkeys(case.annotation for case in found):
        chosen = [both for case, both in found.items() if case.annotation == annotation]
        yield f"| {of} | *{annotation}* | {' | '.join(_mean(figure, chosen) for figure in figures)} |"


def overview(today: Found, older: Found) -> str:
    """Of each target the geometric mean of wire bytes, ours over Shardy's, of the programs with constraints: of today's plans,
    and apart from them of older ones."""
    of_older = f"\n(of older plans: {figures})" if (figures := _overview(older)) else ""
    return (
        f"Geometric mean of bytes sent, ours over XLA's with Shardy, by number of steps: {_overview(today) or 'not measured'}"
        f"{of_older}.\nTraining and decoding steps with constraints; compiled ahead of time, not run."
    )


def _overview(found: Found) -> str:
    wire, *_ = FIGURES
    shown = []
    for target in _targets(found):
        ratios = [ratio for both in _of(target, found, "constrained").values() if (ratio := wire.ratio(both))]
        if ratios:
            device = target.machine.summary.partition(",")[0]
            shown.append(f"**{geometric_mean(ratios):.2f}** of {len(ratios)} on {target.devices} {device}")
    return ", ".join(shown)


def summary(found: Found, figures: Sequence[Figure] = FIGURES, *, losses: float = inf) -> str:
    """A table for each target: the geometric means, and the rows in which a figure is more than `losses` times Shardy's."""
    return "\n\n".join("\n".join(_summary(target, found, figures, losses)) for target in _targets(found))


def _summary(target: Target, found: Found, figures: Sequence[Figure], losses: float) -> Iterator[str]:
    own = _of(target, found)
    worst = {case: both for case, both in own.items() if any((f.ratio(both) or 0) > losses for f in figures if f.is_plan)}
    lines = list(_rows(worst, figures)) + list(_means(own, figures))
    yield from (_title(target), "", *_heading(figures), *lines)


def means(today: Found, older: Found) -> str:
    """A table with the means of each target, and how many programs are of older plans."""
    rows = [row for target in _targets(today) for row in _means(_of(target, today), WITH_STEP, target.text)]
    parts = ([*_heading(WITH_STEP), *rows] if rows else [], [*not_measured(older)])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _mean(figure: Figure, chosen: Sequence[Mapping[str, Contestant]]) -> str:
    """Of the ratios, and how many programs lose."""
    ratios = [ratio for both in chosen if (ratio := figure.ratio(both))]
    losses = sum(figure.is_loss(both) for both in chosen)
    return (f"{geometric_mean(ratios):.2f} of {len(ratios)}" if ratios else "-") + (f", {losses} lost" if losses else "")


def _remarks(target: Target, found: Found) -> Iterator[str]:
    for case, both in found.items():
        row = f"- {target.text}, {case.name}, {case.annotation}"
        for name, figures in both.items():
            of = f"{row}: {name}"
            if error := figures.get("error"):
                yield f"{of} failed: {' '.join(error.split())[:300]}"
            elif figures.get("peak_bytes", 0) > target.machine.memory_bytes:
                yield f"{of} needs {figures['peak_bytes'] / 1e9:.1f} GB, a device has {target.machine.memory_bytes / 1e9:.1f}"
            if loops := figures.get("unknown_loops"):
                yield f"{of}: bodies of {', '.join(loops)} counted once"
        if outside := list(_outside(both)):
            shares = " and ".join(outside)
            yield f"{row}: of the modelled time, {shares} is in loops and branches without collectives, by their kernels"


NOTABLE = 0.01
"""A share of a modelled step, from which on a remark tells what it is of."""


def _outside(both: Mapping[str, Contestant]) -> Iterator[str]:
    """Of each contestant, what of the modelled step is in computations that the compiler's scheduler does not time."""
    for name, figures in both.items():
        modelled = figures.get("modelled") or {}
        outside = modelled.get("outside", 0.0)
        if modelled and outside > NOTABLE * modelled["total"]:
            yield f"{outside / modelled['total']:.0%} of {name}'s"
