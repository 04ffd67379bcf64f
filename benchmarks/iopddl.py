"""The solver of sharding problems on the problems of Google's IOPDDL contest, which are those of XLA's own production.

    python -m benchmarks.iopddl --fetch DIR --seconds 60      # DIR/asplos-2025-iopddl-A.json.gz, …, from github.com/google/iopddl
    python -m benchmarks.iopddl --generate 1000 65000         # problems of so many variables, for machines without a network

`--fetch` takes what is in DIR already, and downloads what is not; `--names A G` takes some. Prints a table: our cost and bound,
the best published cost, how far ours is above it, and the gap between our cost and our bound. The seconds count from the first
byte of the file; with `--processor` they are those that the solver works, and not those in which other work is on the machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshbridge.ir.errors import MeshError
from meshbridge.solver.problem import Problem
from meshbridge.solver.solve import solve

SOURCE = "https://raw.githubusercontent.com/google/iopddl/main/benchmarks"

FORBIDDEN = 1e17
"""Costs from here on stand for infinite ones: the contest writes 10^18."""

BEST = {
    "A": 6548641531, "B": 532843, "C": 84102445200, "D": 309396217000, "E": 331239394812, "F": 361354466823, "G": 217039,
    "H": 527715404257, "I": 583706456444, "J": 1325097240000, "K": 2242635780, "L": 1970993742, "M": 49928157500,
    "N": 199470115000, "O": 219518764980, "P": 651833115436, "Q": 526776842042, "R": 351826900528, "S": 1521949310,
    "T": 656798881333, "U": 2443995950,
    "V": 1617084, "W": 11614976869921, "X": 278109753000, "Y": 595085773000,
}  # fmt: skip
"""The least costs in github.com/ti2-group/iopddl_experiments: of all contestants, and of later runs; some to 9 digits only."""


COLUMNS = [
    "problem", "variables", "edges", "cost", "best published", "above it", "bound", "gap", "peak / limit",
    "reading, s", "seconds",
]  # fmt: skip


def parsed(problem: dict[str, Any]) -> Problem:
    """A problem of the contest's JSON; raises KeyError where a part is missing."""
    nodes, edges = problem["nodes"], problem["edges"]
    costs = tuple(_costs(each) for each in nodes["costs"])
    matrices: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    pairs = []
    for (i, j), entries in zip(edges["nodes"], edges["costs"], strict=True):
        key = costs[i].size, tuple(entries)
        if key not in matrices:
            matrices[key] = _costs(entries).reshape(costs[i].size, costs[j].size)
        pairs.append((i, j, matrices[key]))
    held = tuple(np.array(each, dtype=np.float64) for each in nodes["usages"])
    lifetimes = tuple((begin, end) for begin, end in nodes["intervals"])
    return Problem(costs, tuple(pairs), held, lifetimes, float(problem.get("usage_limit", np.inf)))


def _costs(entries: list[int]) -> np.ndarray:
    costs = np.array(entries, dtype=np.float64)
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def generated(count: int) -> Problem:
    """A problem of so many variables in repeated layers: reshardings along a chain, skips over it, and leaves.

    Two thirds of the variables are leaves, as in the contest's problems; the memory limit is halfway between the bytes at the
    peak of the smallest choices and of the choices that cost least alone. The same in each run.
    """
    random = np.random.default_rng(count)
    kinds = [_kind(random) for _ in range(24)]  # the variables of one layer
    moves = {(a, b): _moves(random, kinds[a][0].size, kinds[b][0].size) for a in range(24) for b in range(24)}
    costs, held, lifetimes, edges = [], [], [], []
    for v in range(count):
        own, held_by = kinds[v % 24]
        costs.append(own)
        held.append(held_by)
        core = v - v % 3
        lifetimes.append((v, v + (4 if v % 3 else int(random.choice([6, 12, count // 3])))))
        for u in {core - 3, core - 3 * int(random.integers(2, 9))} if v == core else {core}:
            if u >= 0:
                edges.append((u, v, moves[u % 24, v % 24]))
    problem = Problem(tuple(costs), tuple(edges), tuple(held), tuple(lifetimes))
    least = problem.peak([int(each.argmin()) for each in held])
    cheapest = problem.peak([int(each.argmin()) for each in costs])
    return Problem(problem.costs, problem.edges, problem.bytes, problem.lifetimes, (least + cheapest) / 2)


def _kind(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    size = int(random.integers(2, 13))
    parts = np.sort(random.choice([1.0, 2.0, 4.0, 8.0, 16.0], size))
    return parts * random.integers(0, 50, size), np.floor(1e6 * random.integers(1, 9) / parts)


def _moves(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    matrix = random.integers(0, 1000, (rows, columns)).astype(np.float64)
    matrix[np.arange(rows), np.arange(rows) % columns] = 0.0
    matrix[random.random((rows, columns)) < 0.2] = np.inf
    matrix[-1], matrix[:, -1] = 900.0, 900.0  # the one of the fewest bytes goes with everything
    return matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--fetch", type=Path, metavar="DIR")
    source.add_argument("--generate", type=int, nargs="+", metavar="COUNT")
    parser.add_argument("--names", nargs="+", choices=sorted(BEST), default=sorted(BEST))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processor", action="store_true", help="count the seconds of the processor, where other work is on it")
    options = parser.parse_args()
    clock: Clock = time.process_time if options.processor else time.monotonic
    problems = _fetched(options.fetch, options.names, clock) if options.fetch else _generated(options.generate, clock)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, problem, reading in problems:
        print(_row(name, problem, reading, options.seconds, clock), flush=True)


Clock = Callable[[], float]

Read = tuple[str, Problem, float]
"""A name, its problem, and the seconds of reading it."""


def _generated(counts: list[int], clock: Clock) -> Iterator[Read]:
    for count in counts:
        started = clock()
        yield str(count), generated(count), clock() - started


def _fetched(folder: Path, names: list[str], clock: Clock) -> Iterator[Read]:
    for name in names:
        path = folder / f"asplos-2025-iopddl-{name}.json.gz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".part")
            urllib.request.urlretrieve(f"{SOURCE}/{path.name}", partial)
            partial.rename(path)
        started = clock()
        with gzip.open(path) as file:
            problem = parsed(json.load(file)["problem"])
        yield name, problem, clock() - started


def _row(name: str, problem: Problem, reading: float, seconds: float, clock: Clock) -> str:
    started = clock()
    best = BEST.get(name)
    published = f"{best:,}" if best else "-"
    sizes = f"{name} | {len(problem.costs):,} | {len(problem.edges):,}"
    try:
        found = solve(problem, seconds=max(0.0, seconds - reading), clock=clock)
    except MeshError as error:
        costs = f"{error} | {published} | - | - | - | -"
    else:
        above = f"{found.cost / best - 1:.2%}" if best else "-"
        costs = (
            f"{found.cost:,.0f} | {published} | {above} | {found.bound:,.0f} | {found.gap:.2%} | {found.peak / problem.limit:.3f}"
        )
    taken = f"{reading:.0f} | {reading + clock() - started:.0f}"
    return f"| {sizes} | {costs} | {taken} |"


if __name__ == "__main__":
    main()
