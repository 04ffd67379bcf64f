"""Seconds of collectives and ops on machines, held to counts of what every link carries."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge import machines
from meshbridge.cost.permutes import permute_time, shift_time
from meshbridge.cost.seconds import Time, collective_time, op_time
from meshbridge.ir.mlir import MeshError
from meshbridge.machines import machine, target
from meshbridge.machines.layout import Placement
from tests.machines.examples import MINE, placed

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
RATE = 45e9  # of a port of a v5e


def times(operand: float, axes: tuple[int, ...], placement: Placement) -> dict[str, Time]:
    """By kind, of operands of as many bytes where all devices have all: a shard of that for a gather."""
    group = prod(part.size for part in placement.across(axes))
    return {kind: collective_time(kind, operand / group if kind == "all_gather" else operand, axes, placement) for kind in KINDS}


def test_on_a_ring_a_line_and_a_switch(tmp_path: Path) -> None:
    """n devices: a ring receives through two ports, a line's end through one, a switch's port carries what a device gets.
    Switches may add up."""
    ring, line = (times(RATE, (0,), placed(text, data=16)) for text in ("v5e:1x16", "v5e:16x1"))
    assert ring == line | ring
    line = times(RATE, (0,), placed("v5e:2x8", "data=y,model=x", data=8, model=2))
    assert ring["all_gather"].busy == ring["reduce_scatter"].busy == {"y": pytest.approx(15 / 16 / 2)}
    assert ring["all_reduce"].busy == {"y": pytest.approx(15 / 16)}
    assert ring["all_to_all"].busy == {"y": pytest.approx(16 / 8)}
    assert line["all_gather"].busy == {"y": pytest.approx(7 / 8)}
    assert line["all_to_all"].busy == {"y": pytest.approx(8 / 4)}
    h100 = machine.named("h100").link
    switch = times(h100.rate, (0,), placed("h100:1x1x8", data=8))
    assert switch["all_gather"].busy == switch["all_to_all"].busy == {"nvlink": pytest.approx(7 / 8)}
    assert switch["all_reduce"].busy == {"nvlink": pytest.approx(7 / 8 * 2)}
    adding = tmp_path / "adding.toml"
    text = (Path(machines.__file__).parent / "gpu" / "h100.toml").read_text()
    adding.write_text(text.replace("reduction = 1\n", "reduction = 1.3\n"))
    added = times(h100.rate, (0,), placed(f"{adding}:1x1x8", data=8))
    assert added["all_reduce"].busy == {"nvlink": pytest.approx(7 / 8 * 2 / 1.3)}
    assert switch["all_to_all"].latency == pytest.approx(h100.launch_of("all_to_all") + h100.latency)
    assert switch["all_gather"].latency == pytest.approx(h100.launch + 3 * h100.latency)


def test_kinds_of_collectives_may_start_and_send_in_times_of_their_own(tmp_path: Path) -> None:
    text = (Path(machines.__file__).parent / "gpu" / "h100.toml").read_text()
    before, after = text.split("[link.kinds]")
    kinds = "all_to_all = { launch = 1.0, efficiency = 0.06 }\ncollective_permute = { launch = 2.0, efficiency = 0.06 }\n"
    path = tmp_path / "mine.toml"
    path.write_text(f"{before}[link.kinds]\n{kinds}\n[network]{after.split('[network]')[1]}")
    link = machine.named(str(path)).link
    found = times(link.rate, (0,), placed(f"{path}:1x1x8", data=8))
    assert found["all_to_all"].latency == pytest.approx(1.0 + link.latency)
    assert found["all_to_all"].busy["nvlink"] == pytest.approx(10 * 7 / 8)
    assert found["reduce_scatter"].busy == {"nvlink": pytest.approx(7 / 8)}
    assert found["reduce_scatter"].latency == pytest.approx(link.launch + 3 * link.latency)
    shifted = shift_time(link.rate, (0,), 1, placed(f"{path}:1x1x8", data=8), rotate=True)
    assert (shifted.latency, shifted.busy) == (pytest.approx(2.0 + link.latency), {"nvlink": pytest.approx(10)})


def test_more_links_take_less_time_together() -> None:
    one = times(RATE, (0,), placed("v5p:4x4x4", "data=x", data=4, rest=16))
    for kind, several in times(RATE, (0,), placed("v5p:4x4x4", data=64)).items():
        assert several.busy.keys() == {"x", "y", "z"}
        if kind != "all_to_all":
            assert several.seconds < one[kind].seconds


def test_groups_that_share_links_take_longer() -> None:
    """Of two axes along one ring the outer one's neighbours are four hops apart, and four groups pass each link."""
    placement = placed("v5e:16x16", outer=4, inner=4, rest=16)
    outer, inner = (collective_time("all_gather", RATE, axes, placement) for axes in ((0,), (1,)))
    assert outer.busy == {"y": pytest.approx(4 * 3 / 2)}
    assert inner.busy == {"y": pytest.approx(3)}
    assert (outer.latency, inner.latency) == (pytest.approx(9e-6), pytest.approx(4e-6))


def test_a_network_carries_what_the_node_has_not() -> None:
    """Each of eight devices of a node sends an eighth over its own port; without the others all of it goes over one."""
    h100 = machine.named("h100")
    placement = placed("h100:1x4x8", data=4, model=8)
    assert h100.network is not None
    both = collective_time("all_gather", 1e6, (0, 1), placement)
    assert both.busy == {
        "infiniband": pytest.approx(3e6 / h100.network.rate),
        "nvlink": pytest.approx(4 * 7e6 / h100.link.rate),
    }
    assert collective_time("all_gather", 1e6, (0,), placement).busy == {"infiniband": pytest.approx(3e6 / h100.network.rate)}
    exchange = collective_time("all_to_all", 32e6, (0, 1), placement)
    assert exchange.busy == {"infiniband": pytest.approx(24e6 / h100.network.rate), "nvlink": pytest.approx(7e6 / h100.link.rate)}


def test_nothing_takes_no_time() -> None:
    placement = placed("v5e:2x4", data=1, model=8)
    for kind in KINDS:
        assert collective_time(kind, 1e6, (0,), placement) == Time()
    assert shift_time(1e6, (1,), 8, placement, rotate=True) == Time()
    assert shift_time(1e6, (1,), 8, placement, rotate=False) == Time()
    assert Time().seconds == 0


MACHINES = ("v5e:16x2", "v5e:4x8", "v5p:4x4x2", "v5p:4x4x4", "v5p:2x4x2x2", "h100:1x4x8", "7x:4x4x1", "a100:2x2x8")


@given(st.data())
def test_twice_the_bytes_keep_links_busy_twice_as_long(data: st.DataObject) -> None:
    """And latency does not depend on bytes; one gather along two axes takes no longer than one after the other."""
    placement = _drawn(data)
    kind = data.draw(st.sampled_from(KINDS))
    axes = tuple(data.draw(st.permutations(range(3)))[: data.draw(st.integers(1, 3))])
    one, two = (collective_time(kind, size, axes, placement) for size in (1e6, 2e6))
    assert one.latency == two.latency
    assert two.busy == {name: pytest.approx(2 * seconds) for name, seconds in one.busy.items()}
    grown, seconds = 1e6, 0.0
    for axis in axes:
        seconds += collective_time("all_gather", grown, (axis,), placement).seconds
        grown *= prod(part.size for part in placement.parts[axis])
    assert collective_time("all_gather", 1e6, axes, placement).seconds <= seconds * 1.0001


def _drawn(data: st.DataObject) -> Placement:
    name = data.draw(st.sampled_from(MACHINES))
    sizes = data.draw(st.sampled_from([(2, 4, 4), (8, 2, 2), (4, 8, 1), (32, 1, 1), (2, 2, 8)]))
    return placed(name, a=sizes[0] * target.of_machine(name).devices // 32, b=sizes[1], c=sizes[2])


def walked(placement: Placement, axes: tuple[int, ...], flows: list[tuple[int, int]]) -> dict[str, float]:
    """How many operands the busiest link of each dimension carries one way, counted hop by hop: in all groups along `axes` the
    first device of each of `flows` sends to the second one."""
    dimensions = placement.dimensions
    shape = [prod(part.size for part in parts) for parts in placement.parts]
    places = {position: _coordinates(placement, position) for position in product(*map(range, shape))}
    sizes = [shape[axis] for axis in axes]
    torus = [at for at, dimension in enumerate(dimensions) if dimension.torus]
    carried: dict[tuple[int, tuple[int, ...], int], float] = {}
    moves = []
    for start, end in flows:
        digits = [np.unravel_index(number, sizes) for number in (start, end)]
        for position in places:
            if all(position[axis] == digits[0][at] for at, axis in enumerate(axes)):
                there = list(position)
                for at, axis in enumerate(axes):
                    there[axis] = int(digits[1][at])
                moves.append((places[position], places[tuple(there)]))
    network = placement.target.machine.network
    near = [(a, b) for a, b in moves if not any(a[at] != b[at] and each.link == network for at, each in enumerate(dimensions))]
    used = [at for at in torus if any(a[at] != b[at] for a, b in near)]
    for a, b in moves:
        for at, dimension in enumerate(dimensions):
            if not dimension.torus and a[at] != b[at] and (dimension.link == network or (a, b) in near):
                key = (at, a, 1)
                carried[key] = carried.get(key, 0) + 1
    for a, b in near:
        for turn in range(len(used)):
            now = list(a)
            for at in used[turn:] + used[:turn]:
                size, ring = dimensions[at].size, dimensions[at].ring
                ahead = (b[at] - now[at]) % size if ring else b[at] - now[at]
                ways = [1] if ahead > 0 else [-1]
                if ring and 2 * ahead >= size:
                    ways = [1, -1] if 2 * ahead == size else [-1]
                for way in ways:
                    along = list(now)
                    while along[at] != b[at]:
                        key = (at, tuple(along), way)
                        carried[key] = carried.get(key, 0) + 1 / len(ways) / len(used)
                        along[at] = (along[at] + way) % size
                now[at] = b[at]
    found: dict[str, float] = {}
    for (at, _, _), load in carried.items():
        found[dimensions[at].name] = max(load, found.get(dimensions[at].name, 0))
    return found


def _coordinates(placement: Placement, position: tuple[int, ...]) -> tuple[int, ...]:
    found = dict.fromkeys(placement.dimensions, 0)
    for parts, number in zip(placement.parts, position, strict=True):
        for part in reversed(parts):
            found[part.dimension] += number % part.size * part.stride
            number //= part.size
    return tuple(found.values())


def loads(time: Time, placement: Placement, operand: float, kind: str) -> dict[str, float]:
    rates = {dimension.name: dimension.link.rate_of(kind) for dimension in placement.dimensions}
    return {name: seconds * rates[name] / operand for name, seconds in time.busy.items()}


@given(st.data())
def test_the_busiest_link_of_a_permute(data: st.DataObject) -> None:
    placement = _drawn(data)
    axes = tuple(data.draw(st.permutations(range(3)))[: data.draw(st.integers(1, 3))])
    size = prod(part.size for axis in axes for part in placement.parts[axis])
    targets = np.array(data.draw(st.permutations(range(size))), np.int64)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    sources = np.arange(size)[keep]
    found = permute_time(1e6, sources, targets[keep], axes, placement)
    expected = walked(placement, axes, [(a, b) for a, b in zip(sources.tolist(), targets[keep].tolist(), strict=True) if a != b])
    assert loads(found, placement, 1e6, "collective_permute") == {name: pytest.approx(load) for name, load in expected.items()}


@pytest.mark.parametrize("machine_text", ["v5e:16x1", "v5e:8x1", "v5e:15x1", "h100:1x1x8"])
def test_the_busiest_link_of_an_all_to_all(machine_text: str) -> None:
    """The formula is the sum of the permutes that an all-to-all is, each of which has the others' share of the operand."""
    devices = prod(int(size) for size in machine_text.partition(":")[2].split("x"))
    placement = placed(machine_text, data=devices)
    found = loads(collective_time("all_to_all", 1e6, (0,), placement), placement, 1e6, "all_to_all")
    if placement.parts[0][0].dimension.torus:
        flows = list(product(range(devices), repeat=2))
        expected = walked(placement, (0,), [(a, b) for a, b in flows if a != b])
        assert found == {name: pytest.approx(load / devices) for name, load in expected.items()}
    else:
        assert found == {"nvlink": pytest.approx((devices - 1) / devices)}


def test_shifts() -> None:
    placement = placed("v5e:16x4", data=16, model=4)
    for offset, rotate, load in ((1, True, 1), (5, True, 5), (15, True, 1), (8, True, 4), (-3, False, 3), (12, False, 4)):
        found = shift_time(RATE, (0,), offset, placement, rotate=rotate)
        assert found.busy == {"x": pytest.approx(load)}, offset
    assert shift_time(RATE, (1,), 3, placement, rotate=False).busy == {"y": pytest.approx(1)}
    assert shift_time(RATE, (1,), 1, placement, rotate=True).latency == pytest.approx(4e-6)


def test_a_permute_in_which_one_device_sends_takes_as_long_as_one_in_which_all_do() -> None:
    placement = placed("v5e:2x2", data=4)
    one = permute_time(1e6, np.array([0]), np.array([1]), (0,), placement)
    all_of_them = permute_time(1e6, np.arange(4), np.array([1, 0, 3, 2]), (0,), placement)
    assert one.busy == all_of_them.busy


def test_the_roofline(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    mine = machine.load(path)
    assert op_time(1e14, "bf16", 0, mine) == op_time(1e14, "f32", 1e12, mine) == 1
    assert op_time(0, "token", 2e12, mine) == 2
    assert op_time(1, "bf16", 2e12, mine) == 2
    with pytest.raises(MeshError, match="machine 'mine' has no FLOP/s for token"):
        op_time(1, "token", 1, mine)


def test_types_are_computed_in_the_first_whose_rate_is_known() -> None:
    h100, v5e = machine.named("h100"), machine.named("v5e")
    assert h100.peak("f32") == h100.flops["tf32"]
    assert h100.peak("f64") == h100.flops["f64"]
    assert h100.peak("f8E5M2") == h100.flops["f8"]
    assert v5e.peak("f32") == v5e.peak("f8E4M3FN") == v5e.flops["bf16"]
    assert v5e.peak("ui8") == v5e.peak("i4") == v5e.flops["i8"]
    assert v5e.peak("si32") == v5e.flops["bf16"]
