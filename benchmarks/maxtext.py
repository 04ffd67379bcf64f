"""The predicted step beside what is published of MaxText on TPUs and H100: seconds of training steps of llamas, mixtures of
experts, and MaxText's own sizes of decoders.

From the repository's root: `python -m benchmarks.maxtext [--rows TEXT] [--page FILE]`. Nothing runs: the step of each row is
exported for the chips that it ran on, partitioned, and predicted. One constant for each machine, the share of their peaks that
kernels reach, is fitted on every other row; the others say how well it predicts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path

import meshbridge
from benchmarks import marked
from benchmarks.table import geometric_mean
from meshbridge.cost.step import predict
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import ISSUED
from meshbridge.machines.target import of_machine
from testdata.maxtext import Model, Parallelism, Run, export, training_step

COMMAND = "make bench-maxtext"
MACHINES = ("v6e", "v5p", "v5e", "h100")

LLAMA2_7B = Model(4096, 11008, 32, 32, 32, 32000)
LLAMA2_70B = Model(8192, 28672, 64, 8, 80, 32000)
LLAMA3_8B = Model(4096, 14336, 32, 8, 32, 128256)
LLAMA3_70B = Model(8192, 28672, 64, 8, 80, 128256)
LLAMA3_405B = Model(16384, 53248, 128, 8, 126, 128256)
MIXTRAL_8X7B = Model(4096, 14336, 32, 8, 32, 32000, experts=8)
MIXTRAL_8X22B = Model(6144, 16384, 48, 8, 56, 32768, experts=8)
DEFAULTS = {
    "16B": Model(4096, 28672, 64, 64, 32, 32000),
    "32B": Model(8192, 28672, 64, 64, 32, 32000),
    "64B": Model(8192, 28672, 64, 64, 64, 32000),
    "128B": Model(8192, 57344, 128, 128, 64, 32000),
    "256B": Model(16384, 57344, 128, 128, 64, 32000),
    "512B": Model(16384, 57344, 128, 128, 128, 32000),
}
"""MaxText's own, by `global_parameter_scale`."""

HEADS = ("query", "key", "value")
PRODUCTS = (*HEADS, "out_proj", "mlpwi", "mlpwo")
"""What `remat_policy=minimal` keeps."""

ASYNCHRONOUS = frozenset(ISSUED) - {"all_to_all"}
"""MaxText's flags have libtpu run gathers and reductions beside kernels."""


@dataclass(frozen=True)
class Row:
    """What is published of a training step: its seconds."""

    title: str
    machine: str
    model: Model
    how: Parallelism
    run: Run
    published: float
    network: float = 0.0
    "Bytes per second and device between nodes, where that is not the machine's."

    @cached_property
    def module(self) -> ir.Module:
        """One device's program."""
        program = export(training_step(self.model, self.how, self.run))
        found: ir.Module = meshbridge.partition(program, machine=self.machine, emit="mesh")
        return found

    def seconds(self, efficiency: float) -> float:
        """Of the predicted step, if kernels reach that share of their peaks."""
        target = of_machine(self.machine)
        machine = replace(target.machine, efficiency=efficiency, async_collectives=ASYNCHRONOUS)
        if self.network and machine.network is not None:
            machine = replace(machine, network=replace(machine.network, bandwidth=self.network, efficiency=1.0))
        return predict(self.module, replace(target, machine=machine)).seconds

    def tokens_per_second(self, seconds: float) -> float:
        """Of a device."""
        return self.run.batch * self.run.length / seconds


def of_rate(teraflops: float, model: Model, run: Run) -> float:
    """Seconds of a step of which MaxText says how many teraflops each chip reaches, as it counted them then: three times the
    products of the forward pass, scores without regard to the mask."""
    inner = model.head * (model.heads + 2 * model.key_heads)
    layer = 2 * model.width * (3 * model.hidden + inner + model.head * model.heads) + 4 * run.length * model.head * model.heads
    each = 3 * (model.layers * layer + 2 * model.width * model.vocabulary)
    return run.batch * run.length * each / (teraflops * 1e12)


def published() -> Iterator[Row]:
    """Every row, those of a machine together; docs/machines.md says where they come from."""
    yield from _trillium()
    yield from _v5p()
    yield from _v5e()
    yield from _h100()


def _trillium() -> Iterator[Row]:
    small, large = (*HEADS, "out_proj"), HEADS
    for topology, batch, seconds in (
        ("2x4", 3, 3.443),
        ("4x4", 3, 3.393),
        ("4x8", 3, 3.495),
        ("8x8", 5, 5.652),
        ("8x16", 4, 4.602),
        ("16x16", 4, 4.546),
    ):
        yield _sharded("Llama 3.1 8B", f"v6e:{topology}", LLAMA3_8B, Run(batch, 8192, small), seconds)
    for topology, batch, weights, seconds in (
        ("4x8", 2, "bfloat16", 17.790),
        ("8x8", 2, "float32", 18.688),
        ("8x16", 4, "float32", 34.786),
        ("16x16", 5, "float32", 42.656),
    ):
        yield _sharded("Llama 3.1 70B", f"v6e:{topology}", LLAMA3_70B, Run(batch, 8192, large, weights), seconds)
    yield _sharded("Llama 2 70B", "v6e:16x16", LLAMA2_70B, Run(2, 4096, large, fused=False), 9.052)
    yield _sharded("Llama 3.1 405B", "v6e:2x16x16", LLAMA3_405B, Run(1, 8192, fused=False), 54.803)
    yield _sharded("Mixtral 8x7B", "v6e:16x16", MIXTRAL_8X7B, Run(12, 4096, small, fused=False), 13.484)
    by_expert, run = Parallelism(fsdp=64, expert=4), Run(8, 4096, small, "bfloat16", fused=False)
    yield Row("Mixtral 8x22B", "v6e:16x16", MIXTRAL_8X22B, by_expert, run, 24.706)


def _v5p() -> Iterator[Row]:
    saved = (*HEADS, "out_proj", "mlpwo")
    yield _sharded("Llama 2 70B", "v5p:8x8x8", LLAMA2_70B, Run(2, 4096, saved, fused=False), 2 * 4096 / 692)
    yield _sharded("Llama 3.1 405B", "v5p:8x8x8", LLAMA3_405B, Run(2, 8192, ("context", "mlpwo"), fused=False), 131.474)
    for name, topology, tensor, batch, kept, rates in (
        ("32B", "4x4x4", 4, 7, PRODUCTS, (328, 319)),
        ("64B", "4x4x4", 4, 3, PRODUCTS, (323, 309)),
        ("128B", "4x4x8", 8, 1, PRODUCTS, (315, 305)),
        ("128B", "4x8x8", 8, 1, PRODUCTS, (316, 274)),
        ("256B", "8x8x8", 8, 1, PRODUCTS, (308, 289)),
        ("512B", "8x8x8", 8, 2, (), (294, 282)),
    ):
        yield from _in_slices(name, "v5p", topology, tensor, Run(batch, 2048, kept, fused=False), rates)


def _v5e() -> Iterator[Row]:
    for name, tensor, batch, kept, rates in (
        ("16B", 1, 6, (), (120, 117, 117)),
        ("32B", 1, 4, (), (132, 128, 126)),
        ("64B", 1, 2, (), (118, 112, 110)),
        ("128B", 16, 1, HEADS, (110, 110, 108)),
    ):
        yield from _in_slices(name, "v5e", "16x16", tensor, Run(batch, 2048, kept, fused=False), rates)


A3 = 4 * 25e9 / 8
"""Four ports of 200 Gb/s for the eight GPUs of a node of Google's A3."""


def _h100() -> Iterator[Row]:
    run = Run(4, 4096, (*PRODUCTS, "context"))
    for nodes, rate in ((1, 492), (2, 422), (4, 407), (8, 409), (16, 375)):
        how = Parallelism(data=nodes, fsdp=8)
        seconds = of_rate(rate, LLAMA2_7B, run)
        yield Row("Llama 2 7B", f"h100:1x{nodes}x8", LLAMA2_7B, how, run, seconds, A3)


def _sharded(title: str, machine: str, model: Model, run: Run, seconds: float) -> Row:
    """Parameters and sequences along one axis of all devices."""
    return Row(title, machine, model, Parallelism(fsdp=of_machine(machine).devices), run, seconds)


def _in_slices(name: str, device: str, topology: str, tensor: int, run: Run, rates: Sequence[float]) -> Iterator[Row]:
    """On one slice, two, four, and so on, each of which has all parameters; by teraflops."""
    model, chips = DEFAULTS[name], prod(map(int, topology.split("x")))
    for power, rate in enumerate(rates):
        slices = 2**power
        how = Parallelism(data=slices, fsdp=chips // tensor, tensor=tensor)
        machine = f"{device}:{topology}" if slices == 1 else f"{device}:{slices}x{topology}"
        yield Row(f"decoder of {name}", machine, model, how, run, of_rate(rate, model, run))


def fitted(rows: Sequence[Row]) -> float:
    """The share of their peaks with which the predicted seconds of `rows` are the published ones in the geometric mean."""
    efficiency = 1.0
    for _ in range(STEPS):
        efficiency *= geometric_mean([row.seconds(efficiency) / row.published for row in rows])
    return efficiency


STEPS = 8
"""Each brings the mean nearer by what communication is of a step."""


def page(rows: Sequence[Row]) -> str:
    """A table of the machines, for each half of whose rows the constant is fitted."""
    return "\n".join(_machines(_by_machine(rows)))


def steps(rows: Sequence[Row]) -> str:
    """A table of the rows, the constant fitted on the first half of each machine's."""
    return "\n".join(_rows(_by_machine(rows)))


def _by_machine(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row.machine.startswith(f"{name}:")] for name in MACHINES}


def _machines(own: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "| machine | efficiency | fitted on | predicted / published seconds of the others | within 15 % |"
    yield "|---|---:|---|---:|---:|"
    for name, rows in own.items():
        for first in range(2) if len(rows) > 1 else ():
            chosen, others = rows[first::2], rows[1 - first :: 2]
            efficiency = fitted(chosen)
            ratios = [row.seconds(efficiency) / row.published for row in others]
            near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
            spread = f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            half = f"{len(chosen)} rows, from the {('first', 'second')[first]} on"
            yield f"| {name} | {efficiency:.3f} | {half} | {spread} | {near} of {len(others)} |"


NEAR = 0.15
"""How far from 1 a ratio may be that counts as right."""


def _rows(own: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "| step | chips | tokens of a chip | published: s | tokens/s and chip | predicted / published seconds | |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for rows in own.values():
        efficiency = fitted(rows[::2]) if rows else 1.0
        for number, row in enumerate(rows):
            ratio, rate = row.seconds(efficiency) / row.published, row.tokens_per_second(row.published)
            tokens, use = row.run.batch * row.run.length, "" if number % 2 else "fitted"
            yield f"| {row.title} | {row.machine} | {tokens:,} | {row.published:.2f} | {rate:,.0f} | {ratio:.2f} | {use} |"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT", help="only those whose title or machine contains that")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds the tables")
    options = parser.parse_args(argv)
    rows = [row for row in published() if options.rows in f"{row.title} {row.machine}"]
    text = page(rows)
    print(f"{text}\n\n{steps(rows)}")
    if options.page:
        options.page.write_text(marked.replaced(options.page, "maxtext", COMMAND, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
