"""Worked examples of "How To Scale Your Model" (https://jax-ml.github.io/scaling-book), with their answers and ours.

The book computes with peaks of GPUs and measured rates of TPUs, and leaves out starts of collectives: so do the machines here.
Where it drops a factor of (n - 1)/n, for groups of n devices, `kept` is that factor, which we keep. Everything agrees within 1 %,
or says why not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from benchmarks import scaling_book
from meshbridge.cost.permutes import permute_time
from meshbridge.cost.seconds import Time, collective_time, op_time
from meshbridge.ir.sharding import Mesh
from meshbridge.machines import layout, machine, target
from meshbridge.machines.layout import Placement
from meshbridge.machines.machine import Machine
from meshbridge.sharding_search.clock import Work

HBM = {"v4": 1.23e12, "v5e": 8.1e11, "v5p": 2.8e12, "v6e": 1.6e12, "a100": 2.0e12, "h100": 3.35e12, "h200": 4.8e12, "b200": 8e12}
"""Bytes per second, as the book has them."""

BF16 = {
    "v4": 2.75e14,
    "v5e": 1.97e14,
    "v5p": 4.59e14,
    "v6e": 9.2e14,
    "a100": 3.1e14,
    "h100": 9.9e14,
    "h200": 9.9e14,
    "b200": 2.25e15,
}
INT8 = {"v4": 2.75e14, "v5e": 3.94e14, "v5p": 9.18e14, "v6e": 1.84e15, "a100": 6.2e14, "h100": 2e15, "h200": 2e15, "b200": 4.5e15}
"""FLOPs per second."""

PORT = {"v4": 4.5e10, "v5e": 4.5e10, "v5p": 9e10, "v6e": 9e10, "a100": 3e11, "h100": 4.5e11, "h200": 4.5e11, "b200": 9e11}
"""Bytes per second of a link of the torus, one way, or of a GPU into its node: measured ones of TPUs, peaks of GPUs."""

PER_NODE = 4e11
"""Bytes per second from a node of eight GPUs."""


def of_the_book(found: Machine) -> Machine:
    """A machine with the book's numbers."""
    assert found.network is not None
    port, network = PORT[found.name], 2.5e10 / 4 if found.platform == "tpu" else PER_NODE / 8
    return replace(
        found,
        flops={"bf16": BF16[found.name], "i8": INT8[found.name], "f8": INT8[found.name]},
        memory_bandwidth=HBM[found.name],
        link=replace(found.link, bandwidth=port, efficiency=1.0, launch=0.0, reduction=1.0),
        network=replace(found.network, bandwidth=network, efficiency=1.0, launch=0.0),
    )


V4, V5E, V5P, V6E, H100, B200 = (of_the_book(machine.named(name)) for name in ("v4", "v5e", "v5p", "v6e", "h100", "b200"))


def on(text: str, layout_text: str = "", **sizes: int) -> Placement:
    """A mesh of these axes on one of the book's machines."""
    found = target.of_machine(text, layout_text)
    mesh = Mesh("m", tuple(sizes.values()), tuple(sizes))
    return layout.place(mesh, replace(found, machine=of_the_book(found.machine)))


def over(kind: str, operand: float, placement: Placement, *axes: int) -> float:
    """Seconds of the link that is busy longest."""
    return max(collective_time(kind, operand, axes or (0,), placement).busy.values())


def sharp(placement: Placement) -> Placement:
    """The same with switches that add up, 1.75 times as fast in theory."""
    link = replace(placement.dimensions[-1].link, reduction=1.75)
    dimensions = tuple(replace(each, link=link) if each.link.name == link.name else each for each in placement.dimensions)
    parts = tuple(tuple(replace(part, dimension=dimensions[-1]) for part in parts) for parts in placement.parts)
    return replace(placement, dimensions=dimensions, parts=parts)


@dataclass(frozen=True)
class Row:
    """An example. `book` is the answer as the book computes it, before it rounds; `printed` what it prints."""

    chapter: str
    question: str
    printed: str
    book: float
    ours: float
    kept: float = 1.0
    note: str = ""
    "Why the two differ otherwise: by a `factor`, or by more than 1 %."
    factor: float = 1.0
    within: float = 0.01


def rooflines() -> Iterator[Row]:
    """Chapters on one chip: what is read and computed."""
    yield Row("roofline", "1e12 FLOPs in bf16 on an H100", "1.01 ms", 1e12 / 9.89e14, op_time(1e12, "bf16", 0, H100))
    yield Row(
        "roofline",
        "the same on a v6e",
        "1.1 ms",
        1e12 / 9.1e14,
        op_time(1e12, "bf16", 0, V6E),
        note="a rounded peak",
        within=0.02,
    )
    weight = op_time(0, "bf16", 2, V5E) / op_time(2, "bf16", 0, V5E)
    yield Row("roofline", "batch from which a bf16 product on a v5e is bound by compute", "240", 1.97e14 / 8.1e11, weight)
    weight = op_time(0, "i8", 1, V5E) / op_time(2, "i8", 0, V5E)
    yield Row("roofline", "the same in int8", "243", 3.94e14 / 8.1e11 / 2, weight)
    sizes = (1024, 8192, 4096)  # B, D, F
    summed = over("all_reduce", 2 * sizes[0] * sizes[2], on("v5e:1x2", x=2))
    yield Row("roofline", "partial products exchanged by two v5e", "2BF / 4.5e10", 2 * sizes[0] * sizes[2] / 4.5e10, summed)
    deep = 2 * summed / op_time(2 * sizes[0] * sizes[2], "bf16", 0, V5E)
    yield Row("roofline", "contracted size from which that is bound by compute", "8755", 2 * 1.97e14 / 4.5e10, deep)
    yield Row("tpus", "400 GB of weights read by 32 v4", "10 ms", 12.5e9 / 1.23e12, op_time(0, "bf16", 400e9 / 32, V4))
    for batch, printed in ((64, "bytes"), (512, "FLOPs")):
        read, flops = 16384 * 4096 + batch * (4096 + 16384), 2 * 16384 * 4096 * batch
        book = max(read / 8.1e11, flops / 3.94e14)
        yield Row("tpus", f"int8[16384, 4096] times a batch of {batch} on a v5e", printed, book, op_time(flops, "i8", read, V5E))
    yield Row("tpus", "16 GB read by a v5e", "19 ms", 16e9 / 8.1e11, op_time(0, "i8", 16e9, V5E))
    yield Row("tpus", "a batch of 8 times that matrix", "1.3 ms", 2 * 8 * 2**34 / 1.97e14, op_time(2 * 8 * 2**34, "bf16", 0, V5E))
    yield Row("applied-training", "a token of LLaMA 3-70B on a v5p", "1 ms", 4.2e11 / 4.59e14, op_time(6 * 70e9, "bf16", 0, V5P))
    days = op_time(6.3e24 / 8960 / 0.4, "bf16", 0, V5P) / 86400
    yield Row("applied-training", "its training on 8,960 v5p at 40 %", "44 days", 3.8e6 / 86400, days)
    book = (4 * 819e6 + 30e9) / (16 * 8.1e11)
    yield Row(
        "inference",
        "a step of decoding 4 sequences of a 30B model",
        "2.5 ms",
        book,
        op_time(0, "i8", (4 * 819e6 + 30e9) / 16, V5E),
    )
    book = 256 * 819e6 / (16 * 8.1e11) + 2 * 256 * 30e9 / (16 * 1.97e14)
    ours = op_time(0, "i8", 256 * 819e6 / 16, V5E) + op_time(2 * 256 * 30e9 / 16, "bf16", 30e9 / 16, V5E)
    yield Row("inference", "the same of 256 sequences", "21 ms", book, ours)
    prefill = 2 * 70e9 * 8192 / 16
    yield Row("applied-inference", "a prefill of 8,192 on 16 v5e at 40 %", "0.91 s", 0.91, op_time(prefill / 0.4, "bf16", 0, V5E))
    weights, flops = 2 * 8192 * 28672 / 32, 2 * 64 * 8192 * 28672 / 32
    yield Row(
        "applied-inference", "weights of a product read by 32 v5e", "18 us", weights / 8.1e11, op_time(0, "bf16", weights, V5E)
    )
    yield Row("applied-inference", "FLOPs of that product", "4 us", flops / 1.97e14, op_time(flops, "bf16", 0, V5E))
    for name, found, dtype, width, book in (
        ("an H100", H100, "bf16", 2, 295),
        ("a B200", B200, "bf16", 2, 281),
        ("an H100", H100, "f8", 1, 590),
    ):
        ours = op_time(0, dtype, width, found) / op_time(width, dtype, 0, found)
        yield Row(
            "gpus",
            f"FLOPs for each byte in {dtype} on {name}",
            str(book),
            book,
            ours,
            within=0.015,
            note="a rounded peak of float8",
        )
    for batch, printed in ((64, "8.6 us"), (512, "15 us")):
        read, flops = 2 * (batch * 4096 + 4096 * 8192 + batch * 8192), 2 * batch * 4096 * 8192
        book = max(read / 8e12, flops / 2.25e15)
        yield Row("gpus", f"fp16[{batch}, 4096] x [4096, 8192] on a B200", printed, book, op_time(flops, "f16", read, B200))
    yield Row("gpus", "adding two f32[2^30] on an H100", "3.84 ms", 12 * 2**30 / 3.35e12, op_time(0, "f32", 12 * 2**30, H100))


def on_a_torus() -> Iterator[Row]:
    """Chapters on sharded matrices and training, on TPUs."""
    corner = permute_time(2 * 8 * 128 * 8192, np.array([0]), np.array([15]), (0, 1), on("v5e:4x4", x=4, y=4))
    yield Row(
        "tpus",
        "bytes of 16.8 MB from a corner of a v5e 4x4 to the opposite one",
        "188 us",
        2**24 / 9e10,
        max(corner.busy.values()),
    )
    yield Row("tpus", "the first of them", "6 us", 6e-6, corner.latency)
    yield Row("tpus", "all of them", "194 us", 2**24 / 9e10 + 6e-6, corner.seconds)
    yield Row("tpus", "16 GB on a v5e 4x4 gathered", "167 ms", 15e9 / 9e10, over("all_gather", 1e9, on("v5e:4x4", x=16)))

    four = on("v5e:8x4", X=8, Y=4)
    yield Row(
        "sharding",
        "34 MB gathered along 4 of a v5e 8x4",
        "560 us",
        3 * 8.39e6 / 4.5e10,
        over("all_gather", 2048 * 8192 * 2 / 4, four, 1),
    )
    small = collective_time("all_gather", 256 * 256 * 2 / 4, (1,), four)
    note = "a line, which it is, as the book says next: its ends have one port of a ring's two"
    ours = over("all_gather", 2048 * 8192 * 2 / 4, four, 1)
    yield Row("sharding", "the same at first", "377 us", 33.55e6 / 9e10, ours, 3 / 4, note, factor=2)
    yield Row("sharding", "128 KB instead: three hops", "3 us", 3e-6, small.latency)

    cube, array = on("v4:4x4x4", X=4, Y=4, Z=4), 2 * 1024 * 4096
    yield Row(
        "sharding",
        "8 MB sharded over X and Y, gathered along X of a v4 4x4x4",
        "23 us",
        array / 4 / 9e10,
        over("all_gather", array / 16, cube, 0),
        3 / 4,
    )
    yield Row("sharding", "the same along X and Y", "46 us", array / 18e10, over("all_gather", array / 16, cube, 0, 1), 15 / 16)
    note = "the answer leaves out that the array is sharded over X and Y: of all of it"
    yield Row(
        "sharding", "the same all-reduced along Z", "190 us", 2 * array / 9e10, over("all_reduce", array, cube, 2), 3 / 4, note
    )
    yield Row("sharding", "256 bytes gathered along X", "2 us", 2e-6, collective_time("all_gather", 64, (0,), cube).latency)
    ring = on("v5e:16x16", x=16, y=16)
    yield Row(
        "sharding",
        "an all-to-all of 1 GB on a ring",
        "a quarter of a gather",
        1e9 / 9e10 / 4,
        over("all_to_all", 1e9 / 16, ring, 0),
    )
    ratio = over("all_reduce", 1e9, ring, 0) / over("all_gather", 1e9 / 16, ring, 0)
    yield Row("sharding", "an all-reduce of an array and its gather", "2", 2, ratio)

    mlp = 1024 * 4096  # D x F; each layer has two such matrices, each of which is all-reduced in the backward pass
    token = op_time(8 * mlp, "bf16", 0, V5P)
    pod = on("v5p:16x16x16", "one=x,two=y,three=z", one=16, two=16, three=16)
    book = 4.59e14 / 1.8e11
    yield Row(
        "training",
        "tokens of a v5p to hide data parallelism on one axis",
        "2550",
        book,
        2 * over("all_reduce", 2 * mlp, pod, 0) / token,
        15 / 16,
    )
    yield Row("training", "on three axes", "850", book / 3, 2 * over("all_reduce", 2 * mlp, pod, 0, 1, 2) / token, 4095 / 4096)
    gathered = over("all_gather", 2 * mlp / 16, pod, 0) / op_time(2 * mlp, "bf16", 0, V5P)
    yield Row("training", "tokens of a v5p to hide the gathers of FSDP", "2550", book, gathered, 15 / 16)
    batch, depth = 4096, 8192
    moved = over("all_gather", 2 * batch * depth / 16, pod, 0) + over("reduce_scatter", 2 * batch * depth, pod, 0)
    hidden = moved / op_time(4 * batch * depth, "bf16", 0, V5P)
    yield Row("training", "hidden size for each way of tensor parallelism", "2550", book, hidden, 15 / 16)
    mesh, batch, hidden = on("v5p:4x4x4", "X=x+y,Y=z", X=16, Y=4), 48000, 32768
    fsdp = 2 * over("all_gather", 2 * depth * hidden / 64, mesh, 0)
    yield Row(
        "training",
        "gathers of weights, FSDP 16 x TP 4 on 4x4x4",
        "4DF / (Y W M)",
        4 * depth * hidden / (4 * 1.8e11 * 2),
        fsdp,
        15 / 16,
    )
    tensor = 2 * over("all_gather", 2 * batch * depth / 64, mesh, 1)
    yield Row("training", "gathers of activations there", "4BD / (X W M)", 4 * batch * depth / (16 * 1.8e11), tensor, 3 / 4)
    slices = on("v5p:2x16x20x28", "slices=dcn", slices=2, data=8960)
    tokens = 2 * over("all_reduce", 2 * mlp / 8960, slices, 0) / (token / 8960)
    note = "8,960 chips with 2,240 hosts, which the book rounds to 8,400 with 2,000"
    yield Row("training", "tokens of a v5p to hide data parallelism over DCN", "76,000", 7.6e4, tokens, 1 / 2, note, within=0.05)
    yield Row(
        "applied-inference",
        "activations of a batch of 64 gathered on a v5e 4x8",
        "11 us",
        2 * 64 * 8192 / 9e10,
        over("all_gather", 2 * 64 * 8192 / 32, on("v5e:4x8", x=32)),
        31 / 32,
    )


def on_nodes() -> Iterator[Row]:
    """The chapter on GPUs, between them."""
    node, array = on("h100:1x1x8", x=8), 2 * 4096 * 65536
    yield Row("gpus", "bf16[4096, 65536] gathered in a node", "1.04 ms", array * 7 / 3.6e12, over("all_gather", array / 8, node))
    array = 2 * 1024 * 16384
    yield Row(
        "gpus", "bf16[1024, 16384] gathered in a node", "65 us", array * 7 / (8 * 450e9), over("all_gather", array / 8, node)
    )
    yield Row("gpus", "the same, roughly", "75 us", array / 450e9, over("all_gather", array / 8, node), 7 / 8)
    yield Row("gpus", "an all-to-all of it", "B 7/64 / W", array * 7 / (64 * 450e9), over("all_to_all", array / 8, node))
    yield Row("gpus", "an all-reduce of it", "2B / W", 2 * array / 450e9, over("all_reduce", array, node), 7 / 8)
    yield Row("gpus", "that with switches that add up, in theory", "B / W", array / 450e9, over("all_reduce", array, sharp(node)))
    unit = on("h100:1x32x8", x=256)
    yield Row("gpus", "1 GB gathered in a unit of 32 nodes", "B / 413 GB/s", 1e9 / 413e9, over("all_gather", 1e9 / 256, unit))
    yield Row("gpus", "a reduce-scatter of it", "B / 413 GB/s", 1e9 / 413e9, over("reduce_scatter", 1e9, unit))
    pair = on("h100:1x2x8", x=16)
    yield Row(
        "gpus",
        "1 GB gathered in two nodes: their switches count",
        "B / 514 GB/s",
        1e9 / 514e9,
        over("all_gather", 1e9 / 16, pair),
    )
    between = collective_time("all_gather", 1e9 / 16, (0,), pair).busy["infiniband"]
    yield Row("gpus", "the network meanwhile", "B / 800 GB/s", 1e9 / 800e9, between)
    for nodes, placement in ((2, pair), (32, unit)):
        book = 1e9 * (nodes - 1) / (nodes**2 * 400e9)
        yield Row(
            "gpus",
            f"1 GB all-to-all in {nodes} nodes",
            "B (M - 1) / (M^2 W)",
            book,
            over("all_to_all", 1e9 / (8 * nodes), placement),
        )
    array = 2 * 8192 * 32768
    for inner, book, kept in ((8, array * 31 / (32 * 400e9), 1.0), (32, array / (32 * 50e9), 7 / 8)):
        mesh = on("h100:1x32x8", X=256 // inner, Y=inner)
        yield Row(
            "gpus",
            f"bf16[8192 X, 32768 Y] gathered along X, Y = {inner} inside",
            "",
            book,
            over("all_gather", array / 256, mesh, 0),
            kept,
        )

    matrix = 4096 * 14336
    for found, text, collective, printed, kept in (
        (H100, "h100:1x1x8", 450e9, "2200", 7 / 8),
        (H100, "h100:1x32x8", 400e9, "2475", 31 / 32),
        (B200, "b200:1x1x8", 900e9, "2500", 7 / 8),
        (B200, "b200:1x32x8", 400e9, "5625", 31 / 32),
    ):
        moved = over("all_reduce", 2 * matrix, on(text, x=target.of_machine(text).devices))
        ours = moved / op_time(4 * matrix, "bf16", 0, found)
        yield Row(
            "gpus", f"tokens of a GPU to hide data parallelism on {text}", printed, found.flops["bf16"] / collective, ours, kept
        )
    time = collective_time("all_reduce", 2 * matrix, (0,), pair)
    ours = time.busy["infiniband"] / op_time(4 * matrix, "bf16", 0, H100)
    note = "of the network alone: the nodes' switches take longer, as the book's own quiz finds"
    assert time.busy["nvlink"] > time.busy["infiniband"]
    yield Row("gpus", "the same in two nodes", "1237", 9.9e14 / 400e9 / 2, ours, note=note)
    mesh = on("h100:1x512x8", data=64, pipeline=8, model=8)
    tokens = over("all_gather", 2 * matrix / 4096, mesh, 0) / op_time(2 * matrix, "bf16", 0, H100)
    yield Row("gpus", "the same of gathers where a model spans 8 nodes", "309", 9.9e14 / 3.2e12, tokens, 63 / 64)


ROWS = [*rooflines(), *on_a_torus(), *on_nodes()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.chapter}: {row.question}")
def test_the_book_s_answer(row: Row) -> None:
    assert row.ours == pytest.approx(row.book * row.kept * row.factor, rel=row.within)


def test_there_are_enough_of_them() -> None:
    assert len({(row.chapter, row.question) for row in ROWS}) == len(ROWS) >= 50
    exact = [row for row in ROWS if row.kept == 1 and row.within == 0.01 and not row.note]
    assert len(exact) >= 30
    assert all(row.note for row in ROWS if row.within > 0.01 or row.factor != 1)


@pytest.mark.parametrize("name", HBM)
def test_our_files_have_the_book_s_numbers(name: str) -> None:
    """Within 5 %: the book rounds, and has the data sheet's memory of a B200 where XLA has a device's own."""
    found = machine.named(name)
    assert found.memory_bandwidth == pytest.approx(HBM[name], rel=0.05)
    assert found.flops["bf16"] == pytest.approx(BF16[name], rel=0.02)
    assert found.flops["i8"] == pytest.approx(INT8[name], rel=0.02)
    if found.platform == "tpu":
        assert found.link.rate == pytest.approx(PORT[name])
    else:
        assert found.link.bandwidth == PORT[name]


def test_a_gpu_s_switch_in_practice() -> None:
    """Measured in the book, of 10 GB: some 370 of 450 GB/s, and 480 GB/s of bus bandwidth with switches that add up. What XLA's
    tables have of up to 512 MB, over 2 to 8 devices, is less."""
    h100 = machine.named("h100").link
    placement = layout.place(Mesh("m", (8,), ("x",)), target.of_machine("h100:1x1x8"))
    time = collective_time("all_reduce", 1e10, (0,), placement)
    assert 0.7 * 370e9 < h100.rate < 370e9
    assert 0.5 * 480e9 < 1e10 * 2 * 7 / 8 / time.seconds < 480e9
    assert time != Time()


def test_the_book_s_tensor_parallelism_of_a_llama_of_70_billion_parameters() -> None:
    """1,618 ways of FSDP on 8,960 chips, which it rounds so that 4 are left for tensor parallelism; on fewer chips as many."""
    book = scaling_book.derived(8960, 4.19e6, 28672)
    assert 8960 / book == pytest.approx(1618, rel=0.001)
    ours = scaling_book.derived(scaling_book.CHIPS, scaling_book.CHIPS * scaling_book.TOKENS, scaling_book.SIZE.hidden)
    assert scaling_book.rounded(book) == scaling_book.rounded(ours) == 4


@pytest.mark.slow
@pytest.mark.long
def test_a_search_chooses_the_book_s_tensor_parallelism() -> None:
    found = {row.tensor: row.found.best.seconds for row in scaling_book.rows((1, 2, 4, 8), seconds=1.0, clock=Work())}
    assert min(found, key=lambda tensor: found[tensor]) == 4
    assert all(seconds > 1.05 * found[4] for tensor, seconds in found.items() if tensor != 4)
