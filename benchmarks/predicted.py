"""The predicted step beside what the compilers of accelerators model, for the programs that `make bench-targets` has compiled.

From the repository's root: `python -m benchmarks.predicted [--targets TARGET…] [--page FILE]`. Nothing is compiled: each program
of whose plan figures are on record is partitioned for the target's device, and its step is predicted. Figures of older plans are
left out, and named. So is the step of Shardy's plan predicted: meshbridge partitions the program again, without its passes over
collectives, after Shardy's have given every value its sharding. That is XLA's plan where it sends as many bytes; elsewhere XLA's
partitioner has other ideas, and the prediction is of no use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import Any

from jaxlib.mlir.passmanager import PassManager
from scipy.stats import spearmanr

import meshbridge
from benchmarks import marked
from benchmarks.cases import TARGETS, Case, Found, export, known, modelled_seconds, recorded, split
from benchmarks.table import geometric_mean
from benchmarks.target_tables import not_measured
from meshbridge.machines.target import Target, parse
from meshbridge.reports import Report
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata.realistic.catalogue import ANNOTATIONS, BUILDERS, variants

COMMAND = "make bench-predicted"

ALIKE = 0.1
"""By how much of its bytes the plan that is predicted for Shardy may differ from that which XLA has compiled."""


@dataclass(frozen=True)
class Pair:
    """What is predicted of a program on a target, and what its compiler models."""

    case: Case
    seconds: float
    modelled_seconds: float
    peak_bytes: float
    allocated_bytes: float
    peer: tuple[float, float] | None = None
    "Seconds of Shardy's plan, predicted and modelled."

    @property
    def ratio(self) -> float:
        """Of seconds: predicted over modelled."""
        return self.seconds / self.modelled_seconds

    @property
    def memory_ratio(self) -> float:
        """Of the peak of memory: predicted over allocated."""
        return self.peak_bytes / self.allocated_bytes


def measure(case: Case) -> Pair | None:
    """None where the compiler models nothing of the case. Raises CalledProcessError where the program cannot be exported."""
    both = known(case)
    found = both[OURS]
    if found.get("error") or not found.get("modelled"):
        return None
    if not case.program.exists():
        export(case).check_returncode()
    report, theirs = (predict(case, shardy=shardy) for shardy in (False, True))
    assert report.seconds is not None
    modelled = modelled_seconds(found, case.target, _sending(report))
    peer = _peer(both.get(PEER, {"error": "not measured"}), theirs, case.target)
    return Pair(case, report.seconds, modelled, report.peak_bytes, found["peak_bytes"], peer)


def predict(case: Case, *, shardy: bool) -> Report:
    """The report of a program on its target, of our plan or of that which follows from Shardy's propagation."""
    program = meshbridge.load(str(case.program))
    if shardy:
        with program.module.context:
            PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(program.module.operation)
    topology = "x".join(map(str, case.target.topology))
    machine = f"{case.target.device}:{topology}"
    if shardy:  # what it has given a value is its plan, and no constraint that ours might open
        return meshbridge.report(program, machine=machine, inside="closed", collectives="off")
    return meshbridge.report(program, machine=machine)


def _peer(found: Mapping[str, Any], report: Report, target: Target) -> tuple[float, float] | None:
    """None where nothing is modelled, or XLA has compiled another plan."""
    if found.get("error") or not found.get("modelled") or report.seconds is None:
        return None
    if abs(report.wire_bytes - found["wire_bytes"]) > ALIKE * found["wire_bytes"]:
        return None
    return report.seconds, modelled_seconds(found, target, _sending(report))


def _sending(report: Report) -> float:
    """Bytes per second that the predicted step's collectives send."""
    return report.wire_bytes / report.communication_seconds if report.communication_seconds else inf


def page(pairs: Sequence[Pair], older: Found) -> str:
    """Tables: of the targets, of plans of one program, and of the worst predictions; then how many rows are of older plans, which
    are left out."""
    parts = (_summary(pairs), _plans(pairs), _furthest(pairs), not_measured(older))
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _summary(pairs: Sequence[Pair]) -> Iterator[str]:
    yield "| target | programs | rank correlation | predicted / modelled seconds | predicted / allocated bytes |"
    yield "|---|---:|---:|---:|---:|"
    chosen = {target: [pair for pair in pairs if pair.case.target.text == target] for target in TARGETS}
    for target, own in {**chosen, "all": list(pairs)}.items():
        if own:
            times, sizes = ([get(pair) for pair in own] for get in _RATIOS)
            ranks = f"{rank_correlation(own):.3f}" if len(own) > 1 else "-"
            yield f"| {target} | {len(own)} | {ranks} | {_spread(times)} | {_spread(sizes)} |"


def _plans(pairs: Sequence[Pair]) -> Iterator[str]:
    """Of each program, seconds of our plan over those of Shardy's, as predicted and as modelled."""
    yield "| target | programs | rank correlation of ours / Shardy's | predicted | modelled | predicted / modelled |"
    yield "|---|---:|---:|---:|---:|---:|"
    for target in (*TARGETS, "all"):
        own = [(pair, pair.peer) for pair in pairs if pair.peer is not None and target in (pair.case.target.text, "all")]
        if len(own) > 1:
            predicted = [pair.seconds / peer[0] for pair, peer in own]
            modelled = [pair.modelled_seconds / peer[1] for pair, peer in own]
            apart = [ours / theirs for ours, theirs in zip(predicted, modelled, strict=True)]
            found = f"{float(spearmanr(predicted, modelled).statistic):.3f}"
            yield f"| {target} | {len(own)} | {found} | {_spread(predicted)} | {_spread(modelled)} | {_spread(apart)} |"


_RATIOS: tuple[Callable[[Pair], float], ...] = (lambda pair: pair.ratio, lambda pair: pair.memory_ratio)


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Spearman's, of predicted and modelled seconds."""
    return float(spearmanr([pair.seconds for pair in pairs], [pair.modelled_seconds for pair in pairs]).statistic)


def _spread(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def programs(pairs: Sequence[Pair]) -> Iterator[str]:
    """A table of all programs, which the command prints and the page leaves out."""
    targets = [target for target in TARGETS if any(pair.case.target.text == target for pair in pairs)]
    yield f"| program | annotated | {' | '.join(f'{target}: ms | GB' for target in targets)} |"
    yield f"|---|---|{'---:|---:|' * len(targets)}"
    for annotation in ANNOTATIONS:
        for name in BUILDERS:
            own = {pair.case.target.text: pair for pair in pairs if (pair.case.name, pair.case.annotation) == (name, annotation)}
            if own:
                yield f"| {name} | {annotation} | {' | '.join(_cells(own.get(target)) for target in targets)} |"


FURTHEST = 5
"""How many programs are named whose predicted step is furthest off."""


def _furthest(pairs: Sequence[Pair]) -> Iterator[str]:
    """The programs whose predicted step is the largest factor above or below the modelled one."""
    yield "| furthest off | annotated | target | predicted ms | modelled ms | predicted / modelled |"
    yield "|---|---|---|---:|---:|---:|"
    for pair in sorted(pairs, key=lambda pair: -abs(log(pair.ratio)))[:FURTHEST]:
        case, times = pair.case, (pair.seconds * 1e3, pair.modelled_seconds * 1e3)
        shown = " | ".join(f"{milliseconds:,.1f}" for milliseconds in times)
        yield f"| {case.name} | {case.annotation} | {case.target.text} | {shown} | {pair.ratio:.2f} |"


def _cells(pair: Pair | None) -> str:
    if pair is None:
        return " | "
    times = f"{pair.seconds * 1e3:,.1f} / {pair.modelled_seconds * 1e3:,.1f} = {pair.ratio:.2f}"
    return f"{times} | {pair.peak_bytes / 1e9:.1f} / {pair.allocated_bytes / 1e9:.1f} = {pair.memory_ratio:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds the tables")
    options = parser.parse_args(argv)
    cases = (Case(name, annotation, parse(t)) for t in options.targets for name in BUILDERS for annotation in variants(name))
    today, older = split(recorded(cases))
    pairs = [pair for case in today if (pair := measure(case))]
    text = page(pairs, older)
    print(text, *programs(pairs), sep="\n")
    if options.page:
        options.page.write_text(marked.replaced(options.page, "predicted", COMMAND, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
