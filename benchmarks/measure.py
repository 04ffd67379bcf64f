"""One contestant on one program: what the compiled executable sends, holds and computes, and whether its numbers are right."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

import jax
import numpy as np

from benchmarks.clock import shortest
from benchmarks.contestants import CONTESTANTS
from meshbridge.analysis.hlo_figures import HloFigures, figures
from meshbridge.tools import trial
from testdata.program import Program, Tree


@dataclass(frozen=True)
class Measurement(HloFigures):
    """Everything per device. `error` holds a diagnostic, in which case nothing else is known."""

    program: str = ""
    contestant: str = ""
    error: str = ""
    ideal_bytes: float = 0.0
    temporary_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    pass_seconds: dict[str, float] = field(default_factory=dict)
    relative_error: float = 0.0
    tolerance: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether there is no program, or it computes wrong numbers."""
        return bool(self.error) or not self.relative_error <= self.tolerance


def measure(program: Program, contestant: str, expected: Tree) -> Measurement:
    """Builds and runs `program`; `expected` is what `unsharded` gave. A program that it cannot build is a result, too."""
    try:
        built = CONTESTANTS[contestant](program)
        arguments = placed(program)
        results = built.compiled(*arguments)
        _, spent = shortest(lambda: jax.block_until_ready(built.compiled(*arguments)))
    except Exception as error:  # one program that a contestant breaks on must not end the run; the table shows it
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return Measurement(program=program.name, contestant=contestant, error=text, ideal_bytes=program.ideal_bytes)
    return Measurement(
        **vars(figures(built.compiled.as_text())),
        program=program.name,
        contestant=contestant,
        ideal_bytes=program.ideal_bytes,
        temporary_bytes=built.compiled.memory_analysis().temp_size_in_bytes,
        seconds=built.seconds | {"run": spent.wall},
        pass_seconds=built.passes,
        relative_error=relative_error(results, expected),
        tolerance=program.tolerance,
    )


def placed(program: Program) -> Tree:
    """The example arguments on the program's mesh."""
    return jax.device_put(program.example_arguments(), program.jit_shardings(program.mesh())[0])


def unsharded(program: Program) -> Tree:
    """The results on one device, as numpy arrays."""
    return jax.tree.map(np.asarray, program.lower(program.one_device_mesh()).compile()(*program.example_arguments()))


def relative_error(results: Tree, expected: Tree) -> float:
    """The largest difference of any output, relative to that output's largest value; infinite where types or shapes differ, or
    where something is not finite that should be, or is another thing than it should be."""
    (found, kind), (wanted, same) = (jax.tree.flatten(tree) for tree in (results, expected))
    if kind != same:
        return float("inf")
    return trial.worst([np.asarray(value) for value in found], [np.asarray(value) for value in wanted]).relative
