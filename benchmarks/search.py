"""What a search finds for programs as if nothing were sharded, beside what experts have written: predicted steps, memory, gaps.

    python -m benchmarks.search --machine v5p:4x4x4 --devices 64 llama32_scan_fsdp_tp moe_lm
    python -m benchmarks.search --machine h100:1x1x8 --devices 8
    python -m benchmarks.search --unrolled 80
    python -m benchmarks.search --compile --machine v5e:2x4 --devices 8 --memory 1.2GB vocab_loss

Programs are those of `testdata/realistic`; of an expert's shardings those of inputs and constraints are meant. `--unrolled` is
the GPT of `gpt4_dp_tp` with so many layers, one after the other, as a program without `lax.scan` has them. `--compile` prints, of
what is found, the memory that the machine's own compiler allocates beside what was predicted and what there is, and leaves the
plan as a table in `build/search`; it needs what `make .venv-targets/.ready` installs. `solve, s` are the seconds in which the
relaxed problem is made and solved: those that there are, at most `MOST_SECONDS` of `meshbridge.sharding_search.mesh_search`,
unless it is solved exactly before.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compiled import allocated

os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from jax.export import Exported

    from meshbridge.sharding_search.plan import SearchedPlan
    from testdata.program import Program

FOLDER = Path(__file__).parent.parent / "build" / "search"

STEP = ("program", "expert, ms", "found, ms", "found / expert", "memory, GB", "gap", "tried", "solve, s", "seconds")
MEMORY = ("program", "machine", "limit, GB", "step, ms", "predicted, GB", "held, GB", "allocated, GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="all by default")
    parser.add_argument("--machine", default="v5p:4x4x4")
    parser.add_argument("--devices", type=int, default=64, help="as many as the machine's topology has")
    parser.add_argument("--unrolled", type=int, nargs="+", default=[], metavar="LAYERS", help="GPTs instead of programs")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument(
        "--processor", action="store_true", help="seconds are those of the processor: others' work does not count"
    )
    parser.add_argument("--memory", metavar="SIZE", help="what a device may need, as in 12GB; by default what it has")
    parser.add_argument("--compile", action="store_true", help="compile what is found by the machine's own compiler")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

    from testdata.realistic.catalogue import BUILDERS
    from testdata.realistic.gpt import gpt

    if unknown := {*options.programs} - {*BUILDERS}:
        parser.error(f"no program is named {', '.join(sorted(unknown))}; there are {', '.join(BUILDERS)}")
    programs = {name: BUILDERS[name] for name in options.programs or ([] if options.unrolled else BUILDERS)}
    programs |= {f"gpt{layers}_dp_tp": partial(gpt, "dp_tp", layers=layers, scan=False) for layers in options.unrolled}
    headings, row = (MEMORY, _compiled) if options.compile else (STEP, _beside_expert)
    print("|", " | ".join(headings), "|")
    print("|---" * len(headings) + "|")
    for name, build in programs.items():
        print("|", " | ".join([name, *row(name, build(devices=options.devices, annotated=True), options)]), "|", flush=True)


def _beside_expert(name: str, program: Program, options: argparse.Namespace) -> list[str]:
    """The columns of STEP after the name."""
    import meshbridge

    exported = program.export()
    written = meshbridge.report(exported, machine=options.machine)
    clock = time.process_time if options.processor else time.monotonic
    began = clock()
    found = _found(exported, options)
    took = clock() - began
    assert written.seconds is not None
    return [
        f"{written.seconds * 1e3:.2f}",
        f"{found.seconds * 1e3:.2f}",
        f"{found.seconds / written.seconds:.3f}",
        f"{written.peak_bytes / 1e9:.2f} -> {found.peak_bytes / 1e9:.2f}",
        f"{found.gap:.1%}",
        str(found.tried),
        f"{found.solving_seconds:.0f}",
        f"{took:.0f}",
    ]


def _compiled(name: str, program: Program, options: argparse.Namespace) -> list[str]:
    """The columns of MEMORY after the name: the plan, and what the compiler of its machine allocates for it."""
    import meshbridge
    from meshbridge.machines.compile_target import bytes_in
    from meshbridge.machines.target import of_machine
    from meshbridge.runtime.targets import EXPORT_PLATFORM

    machine = of_machine(options.machine).machine
    found = _found(program.export_for(EXPORT_PLATFORM[machine.platform]), options)
    limit = None if options.memory is None else bytes_in(options.memory)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.{options.machine.replace(':', '_')}.jax_export"
    meshbridge.save(found.annotated, path)
    path.with_suffix(".txt").write_text(found.table())
    took = allocated(path, f"{machine.platform}:{options.machine}", limit, path.with_suffix(".log"))
    row = [f"{options.devices} {options.machine.partition(':')[0]}", f"{(limit or machine.memory_bytes) / 1e9:.2f}"]
    row += [f"{found.seconds * 1e3:.2f}", f"{found.peak_bytes / 1e9:.2f}"]
    if took.error:
        return [*row, took.error, ""]
    parts = f"{took.arguments / 1e9:.2f} + {(took.results - took.aliased) / 1e9:.2f} + {took.temporaries / 1e9:.2f}"
    return [*row, f"{took.peak / 1e9:.2f}", f"{took.total / 1e9:.2f} = {parts}"]


def _found(exported: Exported, options: argparse.Namespace) -> SearchedPlan:
    """As `meshbridge.search` finds it, whose seconds are always those of the wall."""
    from meshbridge import conversion
    from meshbridge.ir.mlir import context
    from meshbridge.machines.compile_target import CompileTarget
    from meshbridge.read import formats
    from meshbridge.sharding_search.plan import plan_of
    from meshbridge.sharding_search.request import SearchRequest
    from meshbridge.sharding_search.search import best_of

    opened = formats.unpack(exported, context(), (), None, None)
    clock = time.process_time if options.processor else time.monotonic
    target = CompileTarget.of(options.machine, memory_limit=options.memory)
    request = SearchRequest(target, keeps=False, seconds=options.seconds, clock=clock)
    found = best_of(opened.module, [None], request)
    return plan_of(found, conversion.convert(replace(opened, module=found.annotated), "sdy"))


if __name__ == "__main__":
    main()
