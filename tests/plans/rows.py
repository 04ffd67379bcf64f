"""Which plans are golden: a program, how it is annotated, the machine and the options of the compiler that it is planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import get_args

from jax.export import Exported

from benchmarks.cases import TARGETS
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import has_topology, of_machine
from meshbridge.pipeline import Options
from meshbridge.runtime.targets import EXPORT_PLATFORM
from testdata import catalogue
from testdata.program import Program
from testdata.realistic import catalogue as realistic

WRITTEN = "as written"
"""The only annotation of a program of `testdata/catalogue.py`."""

OF_PRICES = ("bytes", "neutral")
"""Machines without a topology: every program is planned for them."""

TOPOLOGIES = ("h100:1x1x8", "h100:1x2x8", "v5e:2x4", "v5p:4x4x4", "v6e:4x4")

MACHINES = OF_PRICES + TOPOLOGIES

PROGRAMS = tuple(dict.fromkeys((*catalogue.BUILDERS, *realistic.BUILDERS)))

SMALL_DEVICES = 8
"""Devices of the programs of `testdata/catalogue.py`, and of others on machines without a topology."""


@dataclass(frozen=True, order=True)
class Source:
    """A program as it is exported: `annotation` is WRITTEN for one of `testdata/catalogue.py`."""

    program: str
    annotation: str
    devices: int
    platform: str
    "What jax.export calls it."

    def build(self) -> Program:
        """The program. Raises ValueError if no program has that name."""
        if self.annotation == WRITTEN:
            return catalogue.build(self.program)
        return realistic.build(self.program, self.annotation, self.devices)

    def export(self) -> Exported:
        """The traced program, for devices that need not be there."""
        return self.build().export_for(self.platform)


@dataclass(frozen=True, order=True)
class Row:
    """One plan."""

    program: str
    annotation: str
    machine: str
    options: OptionSet = "default"

    @property
    def key(self) -> str:
        """What the golden file calls it."""
        return ", ".join((self.program, self.annotation, self.machine, self.options))

    @property
    def planned(self) -> Options:
        """How it is planned."""
        return Options.of(machine=self.machine, compiler_options=self.options)

    @property
    def source(self) -> Source:
        """What is planned."""
        if not has_topology(self.machine):
            return Source(self.program, self.annotation, SMALL_DEVICES, "cpu")
        target = of_machine(self.machine)
        return Source(self.program, self.annotation, target.devices, EXPORT_PLATFORM[target.machine.platform])


LONG = (("gpt48", WRITTEN), ("resnet50", "inputs"), ("unet", "constrained"), ("unet", "inputs"))
"""Programs that are planned without a topology only, where a plan takes a few seconds and not half a minute."""

FULL = (
    *("llama32_scan_fsdp_tp", "llama32_scan_fsdp", "llama4_fsdp_tp", "llama4_fsdp", "gpt8_scan_dp_tp", "gpt8_scan_sp"),
    *("gpt8_scan_fsdp_tp", "gpt4_dp_tp", "moe_lm", "resnet50", "cp_attention", "vocab_loss", "decode_heads", "decode_sequence"),
    *("unet", "adam_zero1"),
)
"""The programs of `testdata/realistic` that are planned for every topology and set of options; others are planned for MEASURED
topologies and by default, which already doubles what all plans take."""

MEASURED = {text.partition(":")[2] for text in TARGETS}
"""The topologies that docs/benchmarks.md has tables of: it takes today's plans from the golden file."""


@cache
def every_row() -> tuple[Row, ...]:
    """All golden plans, in the order of the golden file: of every program without a topology and on the topologies of
    SMALL_DEVICES devices; on larger ones of those of `testdata/realistic` whose activations are constrained. Without
    constraints, no program is planned for the best options."""
    programs = [(name, WRITTEN) for name in catalogue.BUILDERS]
    programs += [(name, annotation) for name in realistic.BUILDERS for annotation in realistic.variants(name)]
    rows = [Row(*program, machine) for program in programs for machine in OF_PRICES]
    for machine in TOPOLOGIES:
        is_small = of_machine(machine).devices == SMALL_DEVICES
        planned = [each for each in programs if each not in LONG and (is_small or each[1] == "constrained")]
        pairs = [(each, options) for each in planned for options in get_args(OptionSet)]
        rows += [
            Row(*each, machine, options)
            for each, options in pairs
            if (each[1], options) != ("inputs", "best") and (_in_full(each[0]) or (machine in MEASURED and options == "default"))
        ]
    return tuple(sorted(rows))


def _in_full(program: str) -> bool:
    return program not in realistic.BUILDERS or program in FULL


SAMPLE = (
    Row("accumulation", WRITTEN, "h100:1x1x8"),
    Row("adam_zero1", "constrained", "bytes"),
    Row("causal_conv", WRITTEN, "neutral"),
    Row("cp_attention", "constrained", "h100:1x2x8"),
    Row("cp_attention", "constrained", "neutral"),
    Row("cp_attention", "inputs", "v5e:2x4"),
    Row("decode_heads", "constrained", "v5p:4x4x4"),
    Row("decode_seq", WRITTEN, "bytes"),
    Row("decode_sequence", "constrained", "v6e:4x4", "best"),
    Row("gpt3", WRITTEN, "neutral"),
    Row("gpt8_scan_dp_tp", "inputs", "bytes"),
    Row("llama32_scan_fsdp", "constrained", "h100:1x1x8"),
    Row("loop_kmeans", WRITTEN, "neutral"),
    Row("loop_stencil", WRITTEN, "neutral"),
    Row("lstm", WRITTEN, "neutral"),
    Row("misc_sort", WRITTEN, "h100:1x1x8", "best"),
    Row("mixed_fsdp", WRITTEN, "neutral"),
    Row("moe_fwd", WRITTEN, "neutral"),
    Row("moe_lm", "constrained", "h100:1x2x8", "best"),
    Row("pipeline", WRITTEN, "neutral"),
    Row("resnet_spatial", WRITTEN, "neutral"),
)
"""What `make test` plans again: quick plans of all machines and most passes."""


def part_of(rows: Sequence[Row], number: int, count: int) -> list[Row]:
    """The rows of every `count`-th program, from that `number` on: rows of one program share its export."""
    sources = sorted({row.source for row in rows})
    chosen = set(sources[number::count])
    return [row for row in rows if row.source in chosen]
