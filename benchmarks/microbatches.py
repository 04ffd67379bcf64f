"""Predicted steps of programs that add up the gradients of 4 microbatches, before and after the last one is peeled.

From the repository's root: `python -m benchmarks.microbatches`. Prints the table of docs/collective-passes.md. Nothing runs.
"""

from __future__ import annotations

from functools import partial

from meshbridge import pipeline
from meshbridge.cost.memory import memory
from meshbridge.cost.step import Step, predict
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, main_function, walk
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import of_machine
from meshbridge.overlap.peel_last_microbatch import PeelLastMicrobatch
from meshbridge.read import formats
from meshbridge.runtime.targets import EXPORT_PLATFORM
from testdata.realistic.accumulated import accumulated
from testdata.realistic.gpt import gpt
from testdata.realistic.llama import llama

MICROBATCHES = 4

PROGRAMS = {
    "GPT, 8 layers under scan, data parallel": partial(gpt, "dp", layers=8, scan=True),
    "GPT, 4 layers unrolled, data parallel": partial(gpt, "dp", layers=4, scan=False),
    "GPT, 8 layers under scan, fully sharded": partial(gpt, "fsdp", layers=8, scan=True),
    "GPT, 8 layers under scan, data and tensor parallel": partial(gpt, "dp_tp", layers=8, scan=True),
    "llama, 8 layers under scan, fully sharded and tensor parallel": partial(llama, "fsdp_tp", layers=8, scan=True),
}

MACHINES: tuple[tuple[str, OptionSet], ...] = (("h100:1x1x8", "default"), ("h100:1x8x8", "default"), ("v5p:4x4x4", "best"))


def main() -> None:
    """Prints the table, row by row."""
    print("| program | devices | step, ms | exposed, ms | temporaries, MB | operations | chosen |\n|---|---|---|---|---|---|---|")
    for name in PROGRAMS:
        for machine, options in MACHINES:
            print(_row(name, machine, options), flush=True)


def _row(name: str, machine: str, options: OptionSet) -> str:
    target = of_machine(machine, "", options)
    program = accumulated(PROGRAMS[name](devices=target.devices, annotated=True), MICROBATCHES)
    before = _planned(
        formats.unpack(program.export_for(EXPORT_PLATFORM[target.machine.platform]), mlir.context()).module, machine, options
    )
    after, chosen = formats.copy_module(before), formats.copy_module(before)
    pipeline.run((PeelLastMicrobatch(),), after)
    pipeline.run((PeelLastMicrobatch(machine, "", options),), chosen)
    steps: tuple[Step, ...] = tuple(predict(each, target) for each in (before, after))
    columns = [
        _change(*(f"{step.seconds * 1e3:,.1f}" for step in steps)),
        _change(*(f"{step.exposed_seconds * 1e3:,.1f}" for step in steps)),
        _change(*(f"{memory(main_function(each)).temporaries / 1e6:,.0f}" for each in (before, after))),
        _change(*(f"{sum(1 for _ in walk(main_function(each))):,}" for each in (before, after))),
        "yes" if str(chosen) != str(before) else "no",
    ]
    devices = machine if options == "default" else f"{machine}, {options} options"
    return f"| {' | '.join((name, devices, *columns))} |"


def _change(before: str, after: str) -> str:
    return f"{before} → {after}"


def _planned(module: ir.Module, machine: str, options: OptionSet) -> ir.Module:
    """The program at the stage at which loops are peeled."""
    how = pipeline.Options(emit="mesh", machine=machine, compiler_options=options)
    passes = pipeline.build(how).passes
    pipeline.run(passes[: [step.name for step in passes].index(PeelLastMicrobatch.name)], module, verified="last")
    return module


if __name__ == "__main__":
    main()
