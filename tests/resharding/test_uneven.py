"""Uneven shards and shards without a common number system: the price is what the plan sends, and neither grows with devices."""

from __future__ import annotations

import pickle
import random
import re

import pytest

from meshbridge import resharding
from meshbridge.cost.communication import communication
from meshbridge.ir.groups import LISTED_DEVICES
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding.exchange import tile_exchange
from meshbridge.resharding.steps import Permute, Reblock, Rounds, Step
from meshbridge.resharding.tiles import TileExchange
from meshbridge.resharding.uneven import MOST_TILES, best_candidate
from tests.mesh_axes import needs_mesh_axes
from tests.resharding.xla import program

MESHES = ((4,), (7,), (2, 3), (2, 4), (4, 4), (3, 5), (2, 2, 2), (8, 2, 2), (2, 3, 4), (16, 3), (8, 8), (4, 4, 4), (64,))


def _drawn(chooser: random.Random, mesh: Mesh, rank: int, *, partial: bool) -> Sharding:
    homes = [chooser.randrange(-2 if partial else -1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    split = tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))
    return Sharding(mesh.name, split, tuple(axis for axis in range(mesh.rank) if homes[axis] == -2))


def _agree(chooser: random.Random, listed: int = 256) -> None:
    """The price of a drawn pair, and the plan's; the tensor is large, since a small one gives up bytes for fewer
    collectives, and memory does not matter."""
    mesh, rank = Mesh("m", chooser.choice(MESHES)), chooser.randint(1, 3)
    shape = (*(chooser.choice((1, 5, 7, 15, 16, 30, 63, 64, 100, 129, 1000)) for _ in range(rank)), 1_000_000_007)
    source, target = (_drawn(chooser, mesh, rank, partial=partial).padded(rank + 1) for partial in (True, False))
    options = resharding.PlanOptions(scratch=1 << 60, listed=listed, check=False)
    found = resharding.plan(shape, "i8", mesh, source, target, options)
    sent, price = found.total_bytes / mesh.size, best_candidate(shape, "i8", mesh, source, target, options).received
    assert price == pytest.approx(sent, rel=1e-9, abs=1e-3), (shape, mesh.shape, source, target, str(found))


@pytest.mark.parametrize("listed", [256, 0])
@pytest.mark.parametrize("seed", range(4))
def test_price_is_what_the_plan_sends(seed: int, listed: int) -> None:
    chooser = random.Random(seed)
    for _ in range(300):
        _agree(chooser, listed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 30))
def test_price_is_what_ten_thousand_plans_send(seed: int) -> None:
    chooser = random.Random(seed)
    for _ in range(400):
        _agree(chooser)


REGULAR: list[tuple[Split, Split]] = [
    (((0,), ()), ((), ())),
    (((), ()), ((0,), ())),
    (((0,), ()), ((), (0,))),
    (((), (0,)), ((0,), ())),
]


@pytest.mark.parametrize(("before", "after"), REGULAR)
def test_plans_do_not_grow_with_devices(before: Split, after: Split) -> None:
    """One row less than evenly divides: as many steps of the same kinds, no list of devices, no exchange of tiles looked at."""
    sizes = (8, 256, 4096, 65536)
    looked_at = tile_exchange.cache_info()[:2]
    steps, lengths = set[tuple[type[Step], ...]](), []
    for size in sizes:
        pair = Sharding("m", before), Sharding("m", after)
        found = resharding.plan((16 * size - 1, size), "i8", Mesh("m", (size,)), *pair)
        assert resharding.cost(found.shape, "i8", found.mesh, *pair) == found.total_bytes / size
        steps.add(tuple(type(step) for step in found.steps))
        lengths.append(len(pickle.dumps(found)))
    assert len(steps) == 1
    assert max(lengths) - min(lengths) < 200
    assert tile_exchange.cache_info()[:2] == looked_at


def test_no_large_exchange_is_drawn() -> None:
    """Blocks of 3 and of 172 elements have no common number system, and the tiles of 4,096 devices are too many to draw."""
    mesh, chooser = Mesh("m", (64, 64)), random.Random(0)
    for _ in range(200):
        source, target = (_drawn(chooser, mesh, 2, partial=partial) for partial in (True, False))
        found = resharding.plan((11008, 32000), "bf16", mesh, source, target)
        assert resharding.cost(found.shape, "bf16", mesh, source, target) == pytest.approx(found.total_bytes / mesh.size)
        exchanges = [step for step in found.steps if isinstance(step, TileExchange)]
        assert sum(len(tiles) for step in exchanges for each in step.rounds for tiles in each.tiles) <= MOST_TILES


@pytest.mark.parametrize(("before", "after", "halos"), [(((0,), ()), ((0,), ()), (1, 2)), (((0,), ()), ((0, 1), ()), ())])
def test_regular_offsets_are_arithmetic(before: Split, after: Split, halos: tuple[int, ...]) -> None:
    """What each device reads and whether it takes part is computed from its number: no table of 64 entries."""
    pair = Sharding("m", before), Sharding("m", after, halo_sizes=halos)
    found = resharding.plan((50257, 768), "f32", Mesh("m", (8, 8)), *pair, resharding.PlanOptions(exact=True))
    assert any(isinstance(step, TileExchange) for step in found.steps)
    constants = re.findall(r"stablehlo.constant dense<[\[\"]", str(program(found)))
    assert not constants


def _permutes(step: Step) -> int:
    """Permutes of a step, those of a tile in pieces as one."""
    if isinstance(step, TileExchange):
        return sum(not each.local for each in step.rounds)
    is_listed = isinstance(step, Rounds | Permute) or (isinstance(step, Reblock) and step.listed)
    return step.collectives if is_listed else 0


@needs_mesh_axes
def test_large_meshes_list_no_devices() -> None:
    """And what is counted in the program is what the plan says, and the price."""
    chooser = random.Random(3)
    for _ in range(60):
        mesh, rank = Mesh("m", chooser.choice([(16, 32), (512,), (8, 16, 8), (12, 48), (256, 256)])), chooser.randint(1, 3)
        shape = tuple(chooser.choice((4096, 4095, 100, 64, 3840, 32000)) for _ in range(rank))
        source, target = (_drawn(chooser, mesh, rank, partial=partial) for partial in (True, False))
        found = resharding.plan(shape, "f32", mesh, source, target)
        written = program(found)
        assert "source_target_pairs" not in str(written), found
        assert "mesh.permute" not in str(written), found
        sent = sum(each.total_bytes for each in communication(written).collectives)
        assert sent == pytest.approx(found.total_bytes / mesh.size), found
        assert sent == pytest.approx(resharding.cost(shape, "f32", mesh, source, target)), found


@needs_mesh_axes
def test_few_pairs_are_written_down() -> None:
    """A permute lists every device. What takes up to 16 on 64 devices takes few on 256, and none on 4,096."""
    chooser = random.Random(1)
    for _ in range(100):
        mesh = Mesh("m", chooser.choice([(8, 8), (16, 16), (64, 64), (16, 16, 16)]))
        source, target = (_drawn(chooser, mesh, 3, partial=partial) for partial in (True, False))
        found = resharding.plan((4095, 4096, 128), "bf16", mesh, source, target)
        permutes = sum(map(_permutes, found.steps))
        assert permutes <= 32 if mesh.size <= LISTED_DEVICES else not permutes, found
