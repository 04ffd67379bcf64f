"""The price of a resharding, a formula, is what its plan sends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from meshbridge import resharding
from meshbridge.ir.digits import axis_digits, group_index
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.candidates import padded_shape
from meshbridge.resharding.plan import PlanOptions
from meshbridge.resharding.steps import fixed_devices
from meshbridge.resharding.uneven import even_candidate
from tests.mesh_axes import needs_mesh_axes

MESHES = ((2, 4), (2, 3), (2, 2, 2), (2, 4, 2))
LARGER = (*MESHES, (8,), (8, 4), (2, 8, 2), (3, 2, 3), (4, 4, 4), (2, 2, 2, 2), (2, 3, 4), (32, 2), (1, 6))

BYTES = PlanOptions(alpha=0, scratch=1 << 60, check=False)
"""Nothing but bytes counts, as when tensors are large."""


def _drawn(chooser: random.Random, mesh: Mesh, rank: int, *, pending: bool) -> Sharding:
    homes = [chooser.randrange(-2 if pending else -1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    split = tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))
    return Sharding(mesh.name, split, tuple(axis for axis in range(mesh.rank) if homes[axis] == -2))


def _kept(chooser: random.Random, target: Sharding, partial: tuple[int, ...]) -> Sharding:
    """`target`, partial too now and then along some of the axes that the source is."""
    free = tuple(axis for axis in partial if axis not in target.used_axes and chooser.random() < 0.3)
    return Sharding(target.mesh, target.split_axes, free)


def _agrees(chooser: random.Random, options: PlanOptions = BYTES) -> bool:
    """Draws a pair of even shardings and compares; whether they have a common number system."""
    mesh, rank = Mesh("m", chooser.choice(LARGER)), chooser.randint(1, 3)
    sizes = tuple(mesh.size * chooser.choice((1, 2, 3, 64)) for _ in range(rank))
    source, target = (_drawn(chooser, mesh, rank, pending=pending) for pending in (True, False))
    target = _kept(chooser, target, source.partial_axes)
    way = even_candidate(sizes, "i8", mesh, source, target, options)
    if way is None:
        return False
    sent = resharding.plan(sizes, "i8", mesh, source, target, options).total_bytes / mesh.size
    assert way.received == pytest.approx(sent, rel=1e-12), (sizes, mesh.shape, source, target)
    return True


@pytest.mark.parametrize("seed", range(4))
def test_formula_is_what_the_plan_sends(seed: int) -> None:
    chooser = random.Random(seed)
    assert sum(_agrees(chooser) for _ in range(300)) > 200


@pytest.mark.parametrize("seed", range(4))
def test_formula_is_what_the_plan_sends_without_lists_of_devices(seed: int) -> None:
    chooser, unlisted = random.Random(seed), replace(BYTES, listed=0)
    assert sum(_agrees(chooser, unlisted) for _ in range(300)) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 30))
def test_formula_is_what_ten_thousand_plans_send(seed: int) -> None:
    chooser = random.Random(seed)
    assert sum(_agrees(chooser) for _ in range(500)) > 400


@needs_mesh_axes
def test_formula_does_not_see_devices() -> None:
    """65,536 devices are priced like 4: nothing is planned, and nothing is computed for each. A swap of two axes is a permute of
    all devices there, and three all-to-alls over one of them here."""
    for side, times in ((2, 1), (256, 3)):
        mesh = Mesh("m", (side, side))
        source, target = Sharding("m", ((0,), (1,))), Sharding("m", ((1,), (0,)))
        moved = resharding.cost((side, side, side), "i8", mesh, source, target)
        assert moved == pytest.approx(times * side * (1 - 1 / side))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_is_what_the_default_plan_sends(shape: tuple[int, ...], seed: int) -> None:
    """But for what small tensors give up: as many bytes for each collective less as it takes to pay for one.

    An uneven pair may be sent as the even pair of the padded tensor, which gives up something then.
    """
    chooser, mesh = random.Random(seed), Mesh("m", shape)
    for _ in range(25):
        sizes = tuple(chooser.choice((1, 3, 4, 6, 8, 12, 16)) for _ in range(chooser.randint(1, 4)))
        source, target = (_drawn(chooser, mesh, len(sizes), pending=pending) for pending in (True, False))
        fewest, found = (resharding.plan(sizes, "f32", mesh, source, target, options) for options in (BYTES, PlanOptions()))
        padded = padded_shape(sizes, mesh, source.padded(len(sizes)).split_axes, target.padded(len(sizes)).split_axes)
        even = resharding.plan(padded, "f32", mesh, source, target, BYTES)
        given_up = 100 * (fewest.collectives - found.collectives if padded == sizes else even.collectives)
        saved = max(fewest.collectives, even.collectives) - found.collectives
        price = resharding.cost(sizes, "f32", mesh, source, target)
        sent = found.total_bytes / mesh.size
        assert sent <= price + 100 * max(saved, 0) + 1e-6, (sizes, source, target)
        assert price - 1e-6 <= max(sent, fewest.total_bytes / mesh.size) <= price + max(given_up, 0) + 1e-6, (
            sizes,
            source,
            target,
        )


def test_devices_that_a_relabelling_leaves_alone() -> None:
    """Counted by a formula as by going through them; a number along 3x2 is rarely one along 2x3."""
    chooser = random.Random(0)
    for _ in range(200):
        mesh = Mesh("m", tuple(chooser.choice((2, 3, 4, 6)) for _ in range(chooser.randint(1, 4))))
        sources, targets = (axis_digits(mesh, tuple(chooser.sample(range(mesh.rank), mesh.rank))) for _ in range(2))
        alone = sum(group_index(sources, device) == group_index(targets, device) for device in range(mesh.size))
        assert fixed_devices(sources, targets, mesh.size) == pytest.approx(alone)
