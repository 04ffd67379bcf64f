"""Every pass that rewrites SPMD programs, on drawn programs that it takes and on near misses: alone, and for named machines.

Results are those of one device, NaN and infinities in place. `MESHBRIDGE_EXAMPLES=long` draws 200 programs a pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshbridge
from meshbridge import machines, pass_names, pipeline
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, ir, main_function
from meshbridge.lowering.lower_collectives import LowerCollectives
from tests.lowering.harness import run_local
from tests.rewrites import spmd
from tests.rewrites.drawn import Program, differences, inputs
from tests.rewrites.families import attention, collectives, overlap, softmaxes
from tests.rewrites.spmd import Local

LOCAL: dict[str, Callable[[Random], Local]] = {
    "all-gather-move-down": collectives.all_gather_move_down,
    "all-gather-move-up": collectives.all_gather_move_up,
    "all-reduce-folder": collectives.all_reduce_folder,
    "all-reduce-reassociate": collectives.all_reduce_reassociate,
    "all-reduce-split": collectives.all_reduce_split,
    "broadcast-in-loops": collectives.broadcast_in_loops,
    "collective-matmul": overlap.collective_matmul,
    "combine-collectives": collectives.combine_collectives,
    "delay-reductions": collectives.delay_reductions,
    "delay-slices": collectives.delay_slices,
    "fold-collectives": collectives.fold_collectives,
    "hoist-collectives": collectives.hoist_collectives,
    "keep-schedule": overlap.keep_schedule,
    "largest-as-floats": softmaxes.softmaxes,
    "merge-collectives": collectives.merge_collectives,
    "merge-permutes": collectives.merge_permutes,
    "mesh-simplifications": collectives.mesh_simplifications,
    "prefetch-gathers": overlap.prefetch_gathers,
    "reduce-scatter-reassociate": collectives.reduce_scatter_reassociate,
    "reduce-scatter-redirect": collectives.reduce_scatter_redirect,
    "reduction-move-up": collectives.reduction_move_up,
    "rows-in-pieces": overlap.rows_in_pieces,
    "update-whole": overlap.update_whole,
}
"""By pass, what draws programs of one device of several."""

GLOBAL: dict[str, Callable[[Random], Program]] = {
    "delay-scaling": attention.delayed,
    "ring-attention": attention.rings,
}
"""By pass, what draws JAX programs that are partitioned first."""

ELSEWHERE = {
    "canonicalize": "MLIR's own",
    "cse": "MLIR's own",
    "simplify": "MLIR's own",
    "local-program": "renames what a program of one device says",
    "lower-collectives": "tests/lowering/test_lower_collectives.py draws every collective against a simulator",
    "optimize-collectives": "runs here for every machine, after what each generator draws",
    "order-collectives": "tests/backends/test_xla_cpu.py",
    "plain-stablehlo": "tests/lowering/test_plain_stablehlo.py",
    "raise-collectives": "tests/collectives/test_raise_collectives.py compares programs below `jax.shard_map` with `jax.jit`",
    "test-mesh-simplifications": "another name of mesh-simplifications",
    "wrap-local": "moves a program into a manual computation",
}
"""Passes of these folders that have no generator, and what holds them instead."""

NAMED = ("h100", "a100", "b200", "v5e", "v5p", "v6e")
LONG = os.environ.get("MESHBRIDGE_EXAMPLES") == "long"
COUNT = int(os.environ.get("MESHBRIDGE_DRAWS", "200")) if LONG else 10
FIRST = int(os.environ.get("MESHBRIDGE_SEED", "0")) if LONG else 0


def test_every_pass_has_a_generator() -> None:
    folders = ("collectives", "overlap", "lowering", "backends")
    passes = {name for name, each in pass_names.registered_passes().items() if each.__module__.split(".")[1] in folders}
    assert passes == {*LOCAL, *GLOBAL, *ELSEWHERE}


@pytest.fixture(scope="session")
def slow_links(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A machine whose links are slow and begin at once, so that small programs look large."""
    text = (Path(machines.__file__).parent / "gpu" / "h100.toml").read_text()
    head, link = text.split("[link]")
    link = re.sub(r"(?m)^(latency|launch) = \S+$", r"\1 = 1e-12", link)
    link = re.sub(r"(?m)^bandwidth = (\S+)$", lambda found: f"bandwidth = {float(found.group(1)) / 1e6}", link)
    path = tmp_path_factory.mktemp("machines") / "slow.toml"
    path.write_text(f"{head}[link]{link}")
    return str(path)


def chosen_machines(seed: int, slow_links: str) -> Sequence[str]:
    """The machines whose pipeline a drawn program passes through: two of all in turn, or for every third program one."""
    every = (*NAMED, slow_links)
    if LONG:
        return every[seed % len(every)], every[(seed + 3) % len(every)]
    return (every[seed // 3 % len(every)],) if seed % 3 == 0 else ()


@pytest.mark.parametrize("name", LOCAL)
def test_programs_of_one_device(name: str, slow_links: str) -> None:
    fired = 0
    for seed in range(FIRST, FIRST + COUNT):
        program = LOCAL[name](Random(f"{name}{seed}"))
        module = read(program.module_text(), f"{name}_{seed}.mlir", context())
        pipeline.verify(module)
        source = str(module)
        options = program.options.replace("{slow h100}", slow_links)
        pipeline.run((pass_names.make_pass(name, options),), module)
        rewritten = [] if str(module) == source else [(name, module)]
        fired += len(rewritten)
        for machine in chosen_machines(seed, slow_links):
            planned = read(source, "planned.mlir", context())
            pipeline.run(optimised(machine), planned)
            rewritten.append((machine, planned))
        for what, changed in rewritten:
            check_local(program, changed, seed, f"{program.what}, seed {seed}, by {what}")
    assert 2 * fired >= COUNT, f"{name} changed {fired} of {COUNT} programs"


@pytest.mark.parametrize("name", GLOBAL)
def test_jax_programs(name: str, slow_links: str) -> None:
    fired = 0
    for seed in range(FIRST, FIRST + COUNT):
        program = GLOBAL[name](Random(f"{name}{seed}"))
        module = program.partitioned()
        source = str(module)
        pipeline.run((pass_names.make_pass(name, program.options),), module)
        rewritten = [] if str(module) == source else [(name, module)]
        fired += len(rewritten)
        rewritten += [(machine, program.planned(machine)) for machine in chosen_machines(seed, slow_links)]
        for what, changed in rewritten:
            check_global(program, changed, seed, f"{program.what}, seed {seed}, by {what}")
    assert 2 * fired >= COUNT, f"{name} changed {fired} of {COUNT} programs"


def optimised(machine: str) -> tuple[Any, ...]:
    """The passes that make communication less and hide it."""
    (stage,) = (each for each in pipeline.build(pipeline.Options.of(machine=machine)).stages if each.name == "optimised")
    return stage.passes


def check_local(program: Local, module: ir.Module, seed: int, what: str) -> None:
    """Runs the program of each device, on numbers of which some may be special."""
    rank, size = len(program.writer.mesh), int(np.prod(program.writer.mesh))
    lowered = as_replicas(module, size)
    kind, arguments = [*spmd.values(program, seed, 5)][seed % 5]
    right = [each.reshape(size, *each.shape[rank:]) for each in program.alone(arguments)]
    found = run_local(lowered, [each.reshape(size, *each.shape[rank:]) for each in arguments], size)
    narrow = any(each.dtype == jnp.bfloat16 for each in arguments)
    assert not (said := differences(found, right, jnp.bfloat16 if narrow else jnp.float32)), f"{what}, {kind}: {said}"


def as_replicas(module: ir.Module, size: int) -> ir.Module:
    """The program that each of `size` replicas runs."""
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for name, count in (("mhlo.num_replicas", size), ("mhlo.num_partitions", 1)):
            module.operation.attributes[name] = ir.IntegerAttr.get(number, count)
    LowerCollectives(form="local").run(module)
    for view in list(module.body.operations):
        if view.operation.name == "mesh.mesh":
            view.operation.erase()
    main = main_function(module)
    if "arg_attrs" in main.attributes:  # how callers shard arguments
        del main.attributes["arg_attrs"]
    return module


def check_global(program: Program, module: ir.Module, seed: int, what: str) -> None:
    """Runs the partitioned program and that of one device on arguments of every kind."""
    run, one_device = meshbridge.compile(module), jax.jit(lambda *values: program.function(lambda value, _: value, *values))
    for kind, arguments in inputs(program, seed, 5):
        found, right = ([np.asarray(each) for each in jax.tree.leaves(f(*arguments))] for f in (run, one_device))
        narrow = any(each.dtype == jnp.bfloat16 for each in arguments)
        assert not (said := differences(found, right, jnp.bfloat16 if narrow else jnp.float32)), f"{what}, {kind}: {said}"
