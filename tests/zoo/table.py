"""Writes `docs/xla-faults.md`: public reports of faults in XLA's sharding, what XLA does with them today, and what is done here.

From the repository's root, with the newest jax that is supported: `python -m tests.zoo.table`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from tests.zoo import FAULTS, Fault
from tests.zoo.observe import Observation, all_of_xla, ours

PAGE = Path(__file__).parents[2] / "docs" / "xla-faults.md"

_TEXT = """# Faults of XLA's sharding

Public reports of programs that XLA partitions wrongly, refuses, or lets send what they need not, each as a small program of our
own in `tests/zoo`. Every one is partitioned here, on virtual CPU devices, and compared with the function on one device:
all results are right, and `tests/zoo/test_zoo.py` holds that and the bytes.

Written by `python -m tests.zoo.table`. XLA's column is what jax {version} does with the program on the CPU backend with its
default partitioner, Shardy; many reports are of other versions and backends. Bytes are what one device puts on the wire in one
run (ring model), counted in the compiled HLO, with an all-reduce that is only sliced counted as a reduce-scatter.
*rematerializes* means that XLA warns of an involuntary full rematerialization.

{summary}

| program | report | what it shows | XLA | XLA's bytes | bytes here |
|---|---|---|---|---:|---:|
"""


def page(xla: dict[str, Observation], here: dict[str, Observation]) -> str:
    """The whole page."""
    rows = [_row(fault, xla[name], here[name]) for name, fault in FAULTS.items()]
    text = _TEXT.format(version=jax.__version__, summary=_summary(xla, here))
    return text + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(fault: Fault, xla: Observation, here: Observation) -> list[str]:
    return [*described(fault), xla.outcome, _bytes(xla), _bytes(here)]


def described(fault: Fault) -> list[str]:
    """The cells that say what the program is."""
    report = f"[{fault.issue}]({fault.url})" if fault.issue else "none found"
    return [f"`{fault.name}`", report, fault.shows]


def _bytes(observation: Observation) -> str:
    return "" if observation.scattered_bytes is None else f"{observation.scattered_bytes:,.0f}"


def _summary(xla: dict[str, Observation], here: dict[str, Observation]) -> str:
    bad = [one for one in xla.values() if not one.right]
    wrong = sum(one.outcome.startswith("wrong") for one in bad)
    right = [(one.scattered_bytes, here[name].scattered_bytes) for name, one in xla.items() if one.right]
    less = sum(other < one for one, other in right if one is not None and other is not None)
    return (
        f"Of {len(xla)} programs, XLA computes wrong numbers in {wrong}, ends in an abort or an error in {len(bad) - wrong}, "
        f"and sends more than is sent here in {less} of the others."
    )


def recorded() -> dict[str, list[str]]:
    """The rows of the page by the program's name."""
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): [cell.strip() for cell in row] for row in rows}


def recorded_version() -> str:
    """The version of jax that the page speaks of."""
    found = re.search(r"what jax (\S+) does", PAGE.read_text())
    assert found is not None
    return found[1]


def recorded_bytes(cell: str) -> float | None:
    """A number as the page writes it."""
    return float(cell.replace(",", "")) if cell else None


if __name__ == "__main__":
    os.chdir(PAGE.parents[1])
    PAGE.write_text(page(all_of_xla(FAULTS), {name: ours(fault) for name, fault in FAULTS.items()}))
