"""Verifies a program after each pass that changes it, up to the first that changes its meaning."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.read import formats
from meshbridge.text import Tabular, public
from meshbridge.verification.verdict import MEMORY, Verdict, verify


@public
@dataclass(frozen=True, repr=False)
class PassVerdicts(Tabular):
    """The verdict after each pass that changed the program, with the name of the pass, in order. Only the last pass may change
    the meaning."""

    verdicts: tuple[tuple[str, Verdict], ...]

    @property
    def equal(self) -> bool:
        """Whether no pass changes the meaning."""
        return all(verdict.equal for _, verdict in self.verdicts)

    @property
    def headline(self) -> str:
        """How many passes keep the meaning, or which one changes it."""
        return f"equal, passes verified: {len(self.verdicts)}" if self.equal else line(*self.verdicts[-1])

    def table(self) -> str:
        """A line for each pass, and what differs after one that changes the meaning."""
        return "\n".join(text(name, verdict) for name, verdict in self.verdicts)

    def to_json(self) -> str:
        """The verdicts as JSON."""
        passes = [{"pass": name, **verdict.record()} for name, verdict in self.verdicts]
        return json.dumps({"equal": self.equal, "passes": passes}, indent=2)


def line(name: str, verdict: Verdict) -> str:
    """Whether a pass keeps the meaning."""
    return f"{name}: {'equal' if verdict.equal else 'changes the meaning'}"


def text(name: str, verdict: Verdict) -> str:
    """The same, with what differs."""
    return line(name, verdict) if verdict.equal else f"{line(name, verdict)}\n{verdict.table()}"


def verify_passes(
    source: ir.Module,
    options: pipeline.Options = pipeline.DEFAULTS,
    *,
    seed: int = 0,
    memory: float = MEMORY,
    on_verdict: Callable[[str, Verdict], None] | None = None,
) -> PassVerdicts:
    """Partitions a copy of `source`, and verifies it after each pass. `on_verdict` is called with each verdict, `memory` is in
    gigabytes. Raises MeshError like `partition_module` and `verify`."""
    module, last_content = formats.copy_module(source), [mlir.to_bytecode(source)]
    verdicts: list[tuple[str, Verdict]] = []

    def check(step: Pass, changed: ir.Module) -> None:
        if verdicts and not verdicts[-1][1].equal:
            return
        content = mlir.to_bytecode(changed)
        if content == last_content[0]:
            return
        last_content[0] = content
        verdicts.append((step.name, verify(source, changed, seed=seed, memory=memory)))
        if on_verdict is not None:
            on_verdict(*verdicts[-1])

    partitioning.partition_module(module, options, on_pass=check)
    return PassVerdicts(tuple(verdicts))
