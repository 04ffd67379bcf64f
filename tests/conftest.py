"""What all tests share. XLA's flags must stand before anything imports JAX."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.xla_flags import QUICK_TO_COMPILE

os.environ["XLA_FLAGS"] = " ".join(("--xla_force_host_platform_device_count=8", *QUICK_TO_COMPILE))
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, settings
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.sharding_search import clock

# Until all tests are collected, next to nothing that is made becomes garbage.
gc.disable()

# Here every stage of every program is verified.
pipeline.VERIFIED |= {stage.name: "last" for stage in pipeline.build().stages}

# And a search finds the same on a machine that has other things to do.
clock.usual = clock.Work

# The same examples every time: a run says something of the change at hand. The long profile is for finding new ones. Neither
# shrinks: an example compiles for a second or more, and a hundred smaller ones tell less than the first.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "short", max_examples=20, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=500, deadline=None, print_blob=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("MESHBRIDGE_EXAMPLES", "short"))

QUICK = (
    "converters/test_gspmd.py",
    "converters/test_jax_dims.py",
    "converters/test_jax_export.py",
    "converters/test_sdy.py",
    "dialect/test_assembly.py",
    "dialect/test_folds.py",
    "dialect/test_verifier.py",
    "lit/test_lit.py",
    "lit/test_passes.py",
    "operations/test_samples.py",
    "programs/test_walkthrough.py",
    "tools/test_cli.py",
    "tools/test_mesh_opt.py",
)
"""Files of which every test that is not slow belongs to `make quick`: half a minute of CPU time together."""

SAMPLED = frozenset(
    (
        "collectives/test_raise_collectives.py",
        "collectives/test_update_whole.py",
        "converters/test_notations_runs.py",
        "cost/test_memory_limit.py",
        "decide/test_relax_constraints.py",
        "dialect/test_renumber.py",
        "growth/test_devices.py",
        "jitted/test_function_arrays.py",
        "jitted/test_function_transformed.py",
        "emit/python/test_program.py",
        "emit/python/test_table.py",
        "pipelines/test_mpmd_writer.py",
        "lowering/test_largest_as_floats.py",
        "lowering/test_lower_collectives.py",
        "operations/test_families.py",
        "operations/test_interpreter.py",
        "operations/test_preparing.py",
        "operations/test_properties.py",
        "operations/test_samples.py",
        "operations/test_uneven.py",
        "ops/test_composites.py",
        "ops/test_custom_calls.py",
        "ops/test_generic_reductions.py",
        "ops/test_known_calls.py",
        "ops/test_sharding_rules.py",
        "ops/test_windows.py",
        "overlap/attention/test_balanced_ring.py",
        "overlap/attention/test_delay_scaling.py",
        "overlap/attention/test_ring_attention.py",
        "overlap/attention/test_ring_attention_gradients.py",
        "overlap/attention/test_ring_attention_layers.py",
        "overlap/schedule/test_keep_schedule.py",
        "partitioner/test_mesh_spmdization_halos.py",
        "pipelines/test_stacked.py",
        "programs/test_user_programs.py",
        "reports/test_explanation.py",
        "reports/test_symbolic.py",
        "resharding/test_emit.py",
        "resharding/test_planner.py",
        "sharding_search/test_request_axes.py",
        "sharding_search/test_constraints.py",
        "sharding_search/test_search.py",
        "sharding_search/test_sharding_problem.py",
        "tools/test_compare.py",
        "verification/test_verdict_partitioned.py",
        "zoo/test_zoo.py",
    )
)
"""Files whose tests check one idea on many cases, each of which is dear: of the cases of a test, the first and each
`ONE_IN`-th after it belong to `make test`, and the others are slow."""

ONE_IN = 4

NO_SKIPS = "MESHBRIDGE_NO_SKIPS"
"""Environment variable that makes a failure of every skipped test, where all that tests need is known to be there."""


PART = "MESHBRIDGE_PART"
"""Environment variable that chooses a part of the slow tests: `2/5` runs the third of five. The name of a test says its part,
so that it is the same in every run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is slow and what is quick, and leaves out slow tests of other parts."""
    here = Path(__file__).parent
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        file = item.path.relative_to(here).as_posix()
        if file in SAMPLED and isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            if cases[item.path, item.originalname] % ONE_IN:
                item.add_marker(pytest.mark.slow)
            cases[item.path, item.originalname] += 1
        if file in QUICK and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.quick)
    if chosen := os.environ.get(PART):
        number, count = map(int, chosen.split("/"))
        others = [item for item in items if item.get_closest_marker("slow") and crc32(item.nodeid.encode()) % count != number]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Libraries and tests are there for the whole run: no later collection of garbage goes through them, which took a second.
    And tests leave little of it: a collection for every 700 new objects, as Python does it, takes a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


FAILURES = "MESHBRIDGE_FAILURES"
"""Environment variable that names a file which each test that fails writes its name into: a run that is cut short leaves it."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names what has failed."""
    if report.failed and (path := os.environ.get(FAILURES)):
        with open(path, "a") as file:
            print(report.nodeid, file=file)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file has left alive, such as what JAX has traced, stays: later collections do not go through it either. Each of them
    took two seconds at the end of a run, and a diagnostic of a damaged file takes one."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Of a test: skips are failures under NO_SKIPS."""
    return _without_skips((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Of a file: skips are failures under NO_SKIPS."""
    return _without_skips((yield))


def _without_skips(report: Any) -> Any:
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(NO_SKIPS) == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped under {NO_SKIPS}=1: {report.longrepr}"
    return report


@pytest.fixture
def ctx() -> ir.Context:
    """A new context."""
    return mlir.context()


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    """Eight virtual devices as 2x4: `data`, `model`."""
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="session")
def exported(mesh: jax.sharding.Mesh) -> export.Exported:
    """A two-layer network over a dictionary of weights: input split by data, first weight by model, the rest left open."""

    def network(x: jax.Array, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        hidden = jnp.tanh(x @ weights["in"])
        hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(mesh, PartitionSpec("data", "model")))
        return {"out": hidden @ weights["out"], "sum": hidden.sum()}

    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data", None), (None, "model")))
    jitted = jax.jit(network, in_shardings=(rows, {"in": columns, "out": None}))
    weights = {"in": jax.ShapeDtypeStruct((16, 32), jnp.float32), "out": jax.ShapeDtypeStruct((32, 16), jnp.float32)}
    return export.export(jitted)(jax.ShapeDtypeStruct((8, 16), jnp.float32), weights)
