"""The bound of the sharding problem: no plan that a search meets costs less."""

from __future__ import annotations

import pytest

import meshbridge
from meshbridge.search import search
from meshbridge.search.trial import Trial
from testdata.catalogue import build


@pytest.mark.parametrize("name", ["mlp_ws2d", "vocab_ce", "graph", "cp_attn_fwd", "recommender"])
def test_no_plan_costs_less_than_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []
    least_part = search._Seeking.least_part

    def spied(seeking: search._Seeking, best: Trial) -> float:
        free, pricing = seeking.free, seeking.pricing
        prices = [free.priced(plan.tensors, pricing).total for plan in seeking.plans.values()]
        prices += [free.priced(start, pricing).total for start in free.starts()]
        seen.append((seeking.bound, min(prices)))
        return least_part(seeking, best)

    monkeypatch.setattr(search._Seeking, "least_part", spied)
    meshbridge.search(build(name).export(), machine="h100", keep_annotations=False, seconds=1.0)
    ((bound, least),) = seen
    assert 0 < bound <= least * (1 + 1e-9)
