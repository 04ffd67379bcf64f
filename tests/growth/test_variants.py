"""What variants of a plan have in common is worked out once for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from meshbridge import partitioning, plan_variants
from meshbridge.cost import step
from meshbridge.decide import decide, routes
from meshbridge.ir.mlir import context
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule
from meshbridge.pipeline import Options
from meshbridge.read import formats
from testdata.gpt import gpt


def _counted(owner: Any, name: str, counts: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., object] = getattr(owner, name)

    def counted(*args: object, **options: object) -> object:
        counts[name] += 1
        return original(*args, **options)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("compiler_options", ["default", "best"])
def test_plans_for_a_topology_share_what_does_not_depend_on_prices(
    compiler_options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Annotations are propagated once. The variants of the same prices begin with the same refinements. A plan is predicted at
    most twice: before a pass that changes it, and to be compared. Passes that keep the step run on the plan that is taken."""
    counts: Counter[str] = Counter()
    for owner, name in (
        (decide, "propagated"),
        (routes, "_refined"),
        (plan_variants.VariantPlanner, "_compared"),
        (step, "_body"),
        (KeepSchedule, "run_with"),
    ):
        _counted(owner, name, counts, monkeypatch)
    module = formats.unpack(gpt(2).export_for("cpu"), context()).module
    options = Options.of(machine="h100:1x2x4", compiler_options=compiler_options, memory_limit="none")
    partitioning.partition_module(module, options)
    variants = len(plan_variants.plan_variants(options))
    assert counts["_compared"] == variants >= 3
    assert counts["run_with"] == 1
    assert counts["propagated"] == 1
    # Two routes: of 1 and 2 objectives if all links are alike, of 2 and 3 by their prices, which begin with those of the former
    # unless what products hide costs less. Queries are not split, so the variant that keeps their split refines nothing.
    assert counts["_refined"] == (1 + 2) + (1 + 1) + (2 + 3)
    assert counts["_body"] <= 2 * variants
