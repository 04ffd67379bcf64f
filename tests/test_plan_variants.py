"""Plans in several variants, and what becomes of the one that is taken."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from meshbridge import partitioning
from meshbridge.cost.communication import wire_bytes
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import BARRIER, context, find, main_function
from meshbridge.pipeline import Options
from meshbridge.read import formats
from testdata.scaled import scaled


class _Planned(NamedTuple):
    peak: float
    sent: float
    barriers: int


@pytest.fixture(scope="module")
def exported() -> object:
    """Two layers, whose gradients' products can wait until reductions need something beside them."""
    return scaled(2, 2, 4, adam=False).export_for("cpu")


def _planned(exported: object, memory_limit: str) -> _Planned:
    module = formats.unpack(exported, context()).module
    partitioning.partition_module(module, Options.of(machine="h100:1x1x8", emit="mesh", memory_limit=memory_limit))
    return _Planned(memory(main_function(module)).peak, wire_bytes(module), len(find(module.operation, [BARRIER])))


def test_collectives_stay_free_where_pinning_them_exceeds_the_memory(exported: object) -> None:
    """What pins collectives holds values for longer. A plan that fits without is taken, under the same price of memory."""
    pinned = _planned(exported, "none")
    assert _planned(exported, f"{pinned.peak:.0f}B") == pinned
    free = _planned(exported, f"{pinned.peak - 1:.0f}B")
    assert free.peak < pinned.peak
    assert free.barriers < pinned.barriers
    assert free.sent == pinned.sent
