"""Rows measured in processes beside each other: each exports a program once, for all of its rows."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import groupby
from typing import NamedTuple

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError
from meshbridge.read import formats
from tests.plans.figures import Figures, measure
from tests.plans.rows import Row, Source


class Measured(NamedTuple):
    """What one process has measured, and the seconds of CPU time that it took."""

    figures: dict[str, Figures]
    "By the keys of rows."
    seconds: float


def measured(rows: Sequence[Row], without: Collection[str] = (), jobs: int | None = None) -> Iterator[Measured]:
    """The figures of `rows`, as they come. Raises MeshError for a program that cannot be planned."""
    ordered = sorted(rows, key=lambda row: row.source)
    groups = [(source, list(group)) for source, group in groupby(ordered, key=lambda row: row.source)]
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from (of_source(source, group, tuple(without)) for source, group in groups)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(of_source, source, group, tuple(without)) for source, group in groups]
        yield from (each.result() for each in as_completed(waiting))


def of_source(source: Source, rows: Sequence[Row], without: Collection[str] = ()) -> Measured:
    """The figures of rows that plan one program."""
    began, exported, found = time.process_time(), source.export(), {}
    for row in rows:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a program does not fit the machine is no part of its plan
            try:
                found[row.key] = measure(row, formats.unpack(exported, mlir.context()).module, without)
            except MeshError as error:
                raise MeshError(f"{row.key}: {error}") from None  # without what no other process can be handed
    return Measured(found, time.process_time() - began)
