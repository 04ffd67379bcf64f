"""Resharding side by side: our planner, XLA after Shardy's and after GSPMD's propagation, and `sdy-reshard-to-collectives`.

    python -m benchmarks.resharding [--cases N] [--by CONTESTANT …] [--memory] [--scale]

Bytes are what all devices together receive in the optimised HLO, against the lower bound (`meshbridge.resharding.bound`). The sdy
pass leaves operations that name no pairs of devices: of those the busiest device counts, against its own bound.
`--memory` measures what XLA holds for our plans, `--scale` planning, up to 65,536 devices. Needs 8 devices:
XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp, log, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshbridge import api
from meshbridge.analysis.hlo import read
from meshbridge.analysis.hlo_communication import communication
from meshbridge.ir import mlir
from meshbridge.ir.sharding import Mesh, Sharding, Split, is_even
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.resharding import Bound, PlanOptions, ReshardingPlan, bound, plan
from meshbridge.text import table
from meshbridge.tools.reshard_trial import program

EXACT = PlanOptions(exact=True)


@dataclass(frozen=True)
class Case:
    """One pair of shardings of one tensor of f32."""

    family: str
    shape: tuple[int, ...]
    mesh: Mesh
    source: Sharding
    target: Sharding

    @property
    def bound(self) -> Bound:
        """The lower bound of the bytes that the busiest device, and all devices, receive."""
        return bound(self.shape, "f32", self.mesh, self.source, self.target)

    @property
    def plan(self) -> ReshardingPlan:
        return plan(self.shape, "f32", self.mesh, self.source, self.target, EXACT)


SPEC = [
    ((192,), (2, 3), [[0, 1]], [[1, 0]]),
    ((192,), (2, 3), [[0, 1]], [[1]]),
    ((64, 96), (2, 3), [[], [0, 1]], [[], [0]]),
    ((64, 128), (2, 2, 2), [[0], [1, 2]], [[0], [2]]),
    ((96, 96), (2, 3), [[0], [1]], [[1], [0]]),
    ((96, 96), (3,), [[0], []], [[], [0]]),
    ((64, 64), (2, 2, 2), [[0], [1, 2]], [[0, 1], [2]]),
]
"""The resharding spec's examples that 8 devices can run, every dimension 16 times as large."""

UNEVEN = [
    ((7, 10), (2, 4), [[0], [1]], [[1], [0]]),
    ((7, 10), (2, 4), [[1], []], [[], [1]]),
    ((7, 10), (2, 4), [[1], [0]], [[], []]),
    ((7, 11), (2, 3), [[0], [1]], [[1], [0]]),
    ((7, 11), (2, 3), [[0, 1], []], [[1], [0]]),
    ((10, 10), (2, 3), [[0], [1]], [[0, 1], []]),
    ((5, 9), (2, 2, 2), [[0], [1, 2]], [[0, 1], [2]]),
    ((13, 17), (2, 2, 2), [[0, 1, 2], []], [[], [0, 1, 2]]),
    ((100, 101), (2, 4), [[0], [1]], [[1], [0]]),
    ((100, 101), (2, 3), [[0], [1]], [[1], [0]]),
    ((1000, 1001), (2, 3), [[0, 1], []], [[], [1, 0]]),
]

EVEN = [(shape, sizes) for shape in ((96, 192), (24, 48, 96)) for sizes in ((2, 4), (2, 3), (2, 2, 2))]


def splits(mesh: Mesh, rank: int) -> list[Split]:
    """Every split of a tensor of `rank` over `mesh`."""
    found = set[Split]()
    for count in range(mesh.rank + 1):
        for axes in itertools.permutations(range(mesh.rank), count):
            for dims in itertools.product(range(rank), repeat=count):
                found.add(tuple(tuple(a for a, d in zip(axes, dims, strict=True) if d == dim) for dim in range(rank)))
    return sorted(found)


def suite(per_family: int) -> Iterator[Case]:
    """The seed's examples, uneven pairs, and `per_family` random pairs of each even family."""
    for family, given in (("the resharding spec", SPEC), ("uneven", UNEVEN)):
        for shape, sizes, source, target in given:
            pair = [Sharding("m", tuple(map(tuple, axes))) for axes in (source, target)]
            yield Case(family, shape, Mesh("m", sizes), *pair)
    for shape, sizes in EVEN:
        mesh, choose = Mesh("m", sizes), random.Random(0)
        pairs = [pair for pair in itertools.product(splits(mesh, len(shape)), repeat=2) if pair[0] != pair[1]]
        for pair in choose.sample(pairs, min(per_family, len(pairs))):
            family = f"rank {len(shape)} on {'x'.join(map(str, sizes))}"
            yield Case(family, shape, mesh, *(Sharding("m", split) for split in pair))


def ours(case: Case) -> float:
    """Our exact plan, emitted, lowered and compiled: its bytes over the bound."""
    module = program(case.plan)
    LowerCollectives(form="local").run(module)
    return _total(api.compile(module).hlo_text(), case)


def xla(case: Case, *, shardy: bool) -> float:
    """XLA's partitioner between two shardings: its bytes over the bound. Uneven ones JAX allows only as constraints inside."""
    grid = np.array(jax.devices()[: case.mesh.size]).reshape(case.mesh.shape)
    devices = jax.sharding.Mesh(grid, tuple(f"x{axis}" for axis in range(case.mesh.rank)))
    source, target = (_named(devices, sharding) for sharding in (case.source, case.target))
    even = all(is_even(case.shape, case.mesh, sharding.split_axes) for sharding in (case.source, case.target))
    value = jax.ShapeDtypeStruct(case.shape, jnp.float32)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        if even:
            jitted = jax.jit(lambda x: x, in_shardings=source, out_shardings=target)
        else:
            jitted = jax.jit(lambda x: _between_constraints(x, source, target))
        return _total(jitted.lower(value).compile().as_text(), case)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def _between_constraints(value: jax.Array, source: NamedSharding, target: NamedSharding) -> jax.Array:
    held = jax.lax.with_sharding_constraint(value, source) * 2
    return (jax.lax.with_sharding_constraint(held, target) ** 2).sum()


def _named(devices: jax.sharding.Mesh, sharding: Sharding) -> NamedSharding:
    return NamedSharding(devices, PartitionSpec(*(tuple(f"x{axis}" for axis in axes) or None for axes in sharding.split_axes)))


def _total(hlo: str, case: Case) -> float:
    """Bytes that all devices receive over the bound, without the all-reduce of a scalar that ends an uneven case."""
    found = communication(read(hlo)).collectives
    received = case.mesh.size * sum(c.wire_bytes for c in found if not (c.kind == "all-reduce" and c.wire_bytes <= 8))
    return _over(received, case.bound.total)


def _over(received: float, needed: float) -> float:
    """The ratio; infinite where nothing is needed and something moves."""
    return received / needed if needed else float("inf") if received else 1.0


def sdy_pass(case: Case) -> float:
    """`sdy-reshard-to-collectives`, which handles even shards alone: bytes of the busiest device over its bound."""
    if not all(is_even(case.shape, case.mesh, sharding.split_axes) for sharding in (case.source, case.target)):
        raise NotImplementedError("uneven shards")
    type_ = f"tensor<{'x'.join(map(str, case.shape))}xf32>"
    axes = ", ".join(f'"x{axis}"={size}' for axis, size in enumerate(case.mesh.shape))
    text = (
        f"sdy.mesh @m = <[{axes}]>\n"
        f"func.func @main(%x: {type_} {{sdy.sharding = #sdy.sharding{_sdy(case.source)}}}) -> {type_} {{\n"
        f"  %0 = sdy.reshard %x {_sdy(case.target)} : {type_}\n  return %0 : {type_}\n}}"
    )
    module = mlir.parse(text, "case", mlir.context())
    mlir.run_stock_passes(module, "builtin.module(func.func(sdy-reshard-to-collectives))")
    received = sum(_sdy_bytes(line, case) for line in str(module).splitlines() if "out_sharding" in line)
    return _over(received, case.bound.busiest)


def _sdy(sharding: Sharding) -> str:
    dims = ["{" + ", ".join(f'"x{axis}"' for axis in axes) + "}" for axes in sharding.split_axes]
    return f"<@m, [{', '.join(dims)}]>"


def _sdy_bytes(line: str, case: Case) -> float:
    """Bytes that the busiest device receives in one collective of the sdy dialect."""
    kind, moved, out = re.search(r"sdy\.(\w+) (.*?)out_sharding=(.*)", line).groups()  # type: ignore[union-attr]
    count, after = _ways(moved.split("%")[0], case.mesh), 4 * prod(case.shape) / _ways(out.split("]>")[0], case.mesh)
    share = {"all_gather": (count - 1) / count, "all_to_all": (count - 1) / count, "collective_permute": 1.0, "all_slice": 0.0}
    return share[kind] * after


def _ways(axes: str, mesh: Mesh) -> int:
    """Devices along all axes and sub-axes (`"x0":(1)2`) in a text."""
    return prod(int(part) if part else mesh.shape[int(axis)] for axis, part in re.findall(r'"x(\d+)"(?::\(\d+\)(\d+))?', axes))


CONTESTANTS: dict[str, Callable[[Case], float]] = {
    "ours": ours,
    "xla-shardy": lambda case: xla(case, shardy=True),
    "xla-gspmd": lambda case: xla(case, shardy=False),
    "sdy-pass": sdy_pass,
}


def ratios_to_bound(cases: list[Case], contestants: list[str]) -> str:
    """Per family and contestant: cases, how many at the bound, mean and worst ratio to it."""
    lines = [("family", "contestant", "cases", "at bound", "geomean", "worst", "not done")]
    families = dict.fromkeys(case.family for case in cases)
    ratios = {(case, name): _ratio(case, name) for case in cases for name in contestants}
    for family in [*families, "all"]:
        for name in contestants:
            found = [ratio for (case, by), ratio in ratios.items() if by == name and family in (case.family, "all")]
            done = [ratio for ratio in found if ratio is not None]
            reached = sum(ratio <= 1 + 1e-9 for ratio in done)
            mean = exp(sum(log(max(ratio, 1)) for ratio in done) / max(1, len(done)))
            worst = max(done, default=0)
            figures = (str(len(found)), str(reached), f"{mean:.2f}", f"{worst:.2f}", str(len(found) - len(done)))
            lines.append((family, name, *figures))
    return table(lines, left=(0, 1))


def _ratio(case: Case, contestant: str) -> float | None:
    """Bytes over the bound; None if the contestant cannot do it."""
    try:
        return CONTESTANTS[contestant](case)
    except NotImplementedError:
        return None


ROWS, COLUMNS, TRANSPOSED = ((0, 1), ()), ((), (0, 1)), ((1,), (0,))

SCALE: list[tuple[str, tuple[int, ...], tuple[int, ...], Split, Split]] = [
    *(("aligned", (65536, 65536), (side, side), ((0,), (1,)), TRANSPOSED) for side in (4, 16, 64, 256)),
    *(("2-way to 3-way", (98304, 98304), (side, 3), ((0,), (1,)), TRANSPOSED) for side in (4, 16, 64, 256)),
    *(("uneven, blocks", (1000, 1001), sizes, ((0,), (1,)), TRANSPOSED) for sizes in ((2, 3), (6, 8), (12, 16), (24, 32))),
    *(("uneven, rows to columns", (1000, 1001), sizes, ROWS, COLUMNS) for sizes in ((2, 3), (6, 8), (12, 16))),
    *(("uneven, rows to replicated", (1000, 1001), sizes, ROWS, ((), ())) for sizes in ((2, 3), (6, 8), (12, 16))),
]
"""Pairs whose planning is timed: name, shape, mesh, source, target."""


def scale() -> str:
    """Planning time of exact plans, checks included, against the number of devices; CPU time, the least of five."""
    lines = [("pair", "devices", "collectives", "plan, ms", "again, us")]
    for name, shape, sizes, *splits_ in SCALE:
        mesh, pair = Mesh("m", sizes), [Sharding("m", split) for split in splits_]
        first = min(_planning_seconds(shape, mesh, *pair) for _ in range(5))
        found = plan(shape, "f32", mesh, *pair, EXACT)
        start = time.process_time()
        for _ in range(1000):
            plan(shape, "f32", mesh, *pair, EXACT)
        again = time.process_time() - start
        lines.append((name, str(mesh.size), str(found.collectives), f"{first * 1e3:.2f}", f"{again * 1e3:.2f}"))
    return table(lines, left=(0,))


def _planning_seconds(shape: tuple[int, ...], mesh: Mesh, source: Sharding, target: Sharding) -> float:
    """Time of a plan that is not in the cache, because its mesh has another name."""
    name = f"m{time.perf_counter_ns()}"
    mesh, source, target = replace(mesh, name=name), replace(source, mesh=name), replace(target, mesh=name)
    start = time.process_time()
    plan(shape, "f32", mesh, source, target, EXACT)
    return time.process_time() - start


def memory(cases: list[Case]) -> str:
    """What XLA holds for our exact plans beside arguments and results, in larger shards, and what the model says that all hold,
    in what it may be. Shards of less than 2 KB are left out: a buffer takes at least 64 bytes."""
    lines = [("family", "cases", "mean", "worst", "model")]
    kept = [case for case in cases if 4 * prod(case.plan.start) >= 2048]
    held = {case: _temporary(case.plan) for case in kept}
    for family in [*dict.fromkeys(case.family for case in kept), "all"]:
        found = [case for case in kept if family in (case.family, "all")]
        shares = [held[case] for case in found]
        model = max(case.plan.peak_bytes / case.plan.peak_bound for case in found)
        lines.append((family, str(len(found)), f"{sum(shares) / len(shares):.2f}", f"{max(shares):.2f}", f"{model:.2f}"))
    return table(lines, left=(0,))


def _temporary(found: ReshardingPlan) -> float:
    """Temporary bytes over those of the larger shard."""
    module = program(found)
    LowerCollectives(form="local").run(module)
    larger = 4 * max(prod(found.start), prod(found.steps[-1].shape if found.steps else found.start))
    return float(api.compile(module).loaded.memory.temp_size_in_bytes / larger)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="random pairs in each even family; 150 takes an hour (default: 20)")
    parser.add_argument("--by", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS), metavar="CONTESTANT")
    parser.add_argument("--scale", action="store_true", help="measure planning time instead")
    parser.add_argument("--memory", action="store_true", help="measure our temporary memory instead")
    options = parser.parse_args()
    if options.scale:
        print(scale())
    else:
        cases = list(suite(options.cases))
        print(memory(cases) if options.memory else ratios_to_bound(cases, options.by))
    return 0


if __name__ == "__main__":
    sys.exit(main())
