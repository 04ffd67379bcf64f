"""What the collective passes change: bytes and collectives in the optimised HLO of each program, without and with them.

From the repository's root: `python -m benchmarks.collectives [--programs NAME…]`. Exit status 1 if numbers differ from the
unsharded run, or if a program sends more bytes or starts more collectives with the passes than without.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax

from benchmarks.measure import placed, relative_error, unsharded
from meshbridge import partitioning, pipeline
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import HloCommunication, communication
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from testdata.catalogue import BUILDERS, MEASURED, build
from testdata.program import Program


@dataclass(frozen=True)
class Outcome:
    """What one program sends, and the largest error of its results against one device, relative to the largest value."""

    sent: HloCommunication
    error: float


def outcome(program: Program, collectives: pipeline.Collectives) -> Outcome:
    """The program partitioned, compiled and run."""
    opened = formats.unpack(program.export(), context())
    partitioning.partition_module(opened.module, pipeline.Options.of(machine="bytes", collectives=collectives))
    exported: Any = formats.pack(opened)
    arguments, results = program.jit_shardings(program.mesh())
    jax.clear_caches()
    compiled = jax.jit(exported.call, in_shardings=arguments, out_shardings=results).lower(*program.avals()).compile()
    sent = communication(hlo.read(compiled.as_text() or ""))
    return Outcome(sent, relative_error(compiled(*placed(program)), unsharded(program)))


def main() -> int:
    """The command: one line for each program that changes, and a last one that counts the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(BUILDERS), default=list(MEASURED), metavar="NAME")
    unchanged, failed = 0, False
    print("| program | wire KB | started | in the HLO |\n|---|---|---|---|")
    for name in parser.parse_args().programs:
        program = build(name)
        off, on = outcome(program, "off"), outcome(program, "on")
        figures = [(each.sent.wire_bytes, each.sent.executed, len(each.sent.collectives)) for each in (off, on)]
        worse = figures[1][0] > figures[0][0] * (1 + 1e-9) or figures[1][1] > figures[0][1]
        wrong = on.error > program.tolerance
        failed |= worse or wrong
        if figures[0] == figures[1] and not wrong:
            unchanged += 1
            continue
        cells = [f"{before / 1e3:.1f} → {after / 1e3:.1f}" for before, after in [(figures[0][0], figures[1][0])]]
        cells += [f"{before} → {after}" for before, after in zip(figures[0][1:], figures[1][1:], strict=True)]
        mark = " **worse**" if worse else f" **error {on.error:.1e}**" if wrong else ""
        print(f"| {name}{mark} | {' | '.join(cells)} |", flush=True)
    print(f"\n{unchanged} other programs do not change.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
