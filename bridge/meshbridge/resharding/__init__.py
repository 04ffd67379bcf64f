"""Resharding: from a source and a target sharding to the collectives that send the fewest bytes (the resharding spec).

`plan` chooses, `cost` prices, `bound` says what no plan can beat, `emit` writes. `alignment` puts both shardings in one number
system, `aligned` plans where there is one, `tiles` where there is none.
"""

from __future__ import annotations

from meshbridge.resharding.bound import Bound, bound
from meshbridge.resharding.emit import emit
from meshbridge.resharding.objective import ALONE, BYTES, Beside, Objective, Work
from meshbridge.resharding.plan import Options, Plan
from meshbridge.resharding.planner import cost, plan
from meshbridge.resharding.price import floor
from meshbridge.resharding.slowness import Slowness

__all__ = [
    "ALONE",
    "BYTES",
    "Beside",
    "Bound",
    "Objective",
    "Options",
    "Plan",
    "Slowness",
    "Work",
    "bound",
    "cost",
    "emit",
    "floor",
    "plan",
]
