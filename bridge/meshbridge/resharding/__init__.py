"""Resharding: from a source and a target sharding to the collectives that send the fewest bytes (the resharding spec).

`plan` chooses, `cost` prices, `bound` says what no plan can beat, `emit` writes. `alignment` puts both shardings in one number
system, `aligned` plans where there is one, `tiles` where there is none.
"""

from __future__ import annotations

from meshbridge.resharding.bound import Bound, bound
from meshbridge.resharding.emit import emit
from meshbridge.resharding.link_costs import LinkCost
from meshbridge.resharding.objective import ALONE, BYTES, ComputeCosts, Concurrency, Objective
from meshbridge.resharding.plan import PlanOptions, ReshardingPlan
from meshbridge.resharding.planner import cost, plan
from meshbridge.resharding.price import floor

Plan, Options = ReshardingPlan, PlanOptions
"""The names that these had before."""

__all__ = [
    "ALONE",
    "BYTES",
    "Bound",
    "ComputeCosts",
    "Concurrency",
    "LinkCost",
    "Objective",
    "Options",
    "Plan",
    "PlanOptions",
    "ReshardingPlan",
    "bound",
    "cost",
    "emit",
    "floor",
    "plan",
]
