"""Windows over split dimensions: who sends what to whom, what it costs, and that it computes what one device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding

import meshbridge
from meshbridge.decide import choice
from meshbridge.ir.per_device import members
from meshbridge.ops.affine_access import AffineAccess, CoveredAccess
from meshbridge.ops.permute_rounds import MOST_SHIFTS, permute_rounds
from tests.operations import families
from tests.operations.cases import Case, check
from tests.operations.differential import Spec, device_mesh, run_sharded
from tests.operations.drawing import FAMILIES, batches

assert families.__all__


@st.composite
def accesses(draw: Callable[[st.SearchStrategy[Any]], Any]) -> AffineAccess:
    """Any window of a convolution, slice, pad, concatenation or reversal."""
    number = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    stride = draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
    return AffineAccess(number(1, 30), number(1, 30), stride, number(-40, 40), number(1, 5), draw(st.sampled_from((1, 1, 2, 3))))


@settings(max_examples=300)
@given(access=accesses(), count=st.integers(1, 9))
def test_a_window_holds_what_the_shard_reads(access: AffineAccess, count: int) -> None:
    shard = -(-access.size // count)
    window = access.window(count)
    starts, leads = window.starts(members(count)).values, window.leads(members(count)).values
    for device, start in enumerate(starts.tolist()):
        rows = range(device * shard, (device + 1) * shard)
        places = {access.stride * row - access.low + step for row in rows for step in range(access.extent)}
        read = {place // access.dilation for place in places if place % access.dilation == 0}
        assert all(start <= element < start + window.length for element in read)
        lead = window.lead if window.lead is not None else -int(leads[device])
        assert min(places) + lead == start * access.dilation


@settings(max_examples=300)
@given(access=accesses(), count=st.integers(1, 20))
def test_rounds_bring_every_element_once(access: AffineAccess, count: int) -> None:
    _check_rounds(access, count)


@settings(max_examples=100)
@given(access=accesses(), count=st.integers(2, 20), stride=st.integers(1, 3), extent=st.integers(1, 4), source=st.integers(1, 60))
def test_rounds_bring_what_windows_cover(access: AffineAccess, count: int, stride: int, extent: int, source: int) -> None:
    _check_rounds(CoveredAccess(access, source, stride, 1, extent), count)


def _check_rounds(access: AffineAccess | CoveredAccess, count: int) -> None:
    """Every real element of a window comes from its owner, in rounds that no device sends or receives twice in, by distance or
    not, and arithmetic on a device's number says what it sends and where it puts what it receives."""
    for most_shifts in (MOST_SHIFTS, -count):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("meshbridge.ops.permute_rounds.MOST_SHIFTS", most_shifts)
            _check_numbered(access, count)


def _check_numbered(access: AffineAccess | CoveredAccess, count: int) -> None:
    window, shard = access.window(count), -(-access.source // count)
    starts = window.starts(members(count)).values
    held: list[dict[int, int]] = [{} for _ in range(count)]
    for each in permute_rounds.__wrapped__(access.source, count, window):
        assert len(set(each.receivers.tolist())) == len(each.receivers)
        assert len(set(each.senders.tolist())) == len(each.senders)
        assert all((receiver != sender) == each.moves for receiver, sender in zip(each.receivers, each.senders, strict=True))
        assert np.flatnonzero(each.receives.values).tolist() == sorted(each.receivers.tolist())
        pieces = each.taken.values[each.senders], each.put.values[each.receivers]
        for receiver, sender, taken, put in zip(each.receivers, each.senders, *pieces, strict=True):
            assert 0 <= taken <= shard - each.width
            for step in range(each.width):
                held[receiver][int(put) + step] = int(sender) * shard + int(taken) + step
    for device, start in enumerate(starts.tolist()):
        for place in range(window.length):
            if 0 <= start + place < access.source:
                assert held[device][place] == start + place


def test_few_rounds_on_many_devices() -> None:
    count = 256
    halo, half, turned = (
        AffineAccess(1024, 1024, low=1, extent=3),
        AffineAccess(512, 1024),
        AffineAccess(1024, 1024, stride=-1, low=-1023),
    )
    for access, most in ((halo, 2), (half, 2), (turned, 1), (AffineAccess(1030, 1024, low=3), 3)):
        assert sum(each.moves for each in permute_rounds(access.source, count, access.window(count))) <= most


@pytest.fixture
def free_exchanges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes every op exchange what it can: left alone, propagation gathers small operands where that is cheaper."""

    def price(rule: Any, option: Any, mesh: Any) -> float:
        return -1e9 * sum(bool(option[each.loop]) for each in rule.exchanges)

    monkeypatch.setattr(choice, "exchanged_bytes", price)
    with jax.enable_x64(True):
        yield


WINDOWED = (
    "slices",
    "pad",
    "concatenate",
    "reverse",
    "dynamic_slice",
    "dynamic_update_slice",
    "convolution",
    "convolution_gradient",
    "reduce_window",
    "pooling",
    "select_and_scatter",
)


@pytest.mark.usefixtures("free_exchanges")
@pytest.mark.parametrize("name", WINDOWED)
def test_equals_unsharded(name: str) -> None:
    @settings(max_examples=3 * settings().max_examples // 20)
    @given(drawn=batches(FAMILIES[name], 8))
    def run(drawn: tuple[tuple[int, ...], list[Case]]) -> None:
        mesh, cases = drawn
        check(cases, mesh)

    run()


ROWS, COLUMNS, WIDTH = Spec("a", None), Spec("a", "b"), 4
SIZE = 64
NHWC = ("NHWC", "HWIO", "NHWC")
IMAGE = Spec(None, "a", "b", None)
IMAGE_SHAPE, KERNEL_SHAPE = (1, SIZE, SIZE, 2), (3, 3, 2, 2)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, spread: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", None, (spread, spread), NHWC)


def _max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _row(rows: int, shards: int = 2, columns: int = SIZE // 4, channels: int = 2) -> float:
    """Bytes that a device receives on average of so many rows of a neighbour's shard."""
    return rows * columns * channels * 4 * (shards - 1) / shards


_IMAGES = {
    "same": (lambda x, k: _convolve(x, k), _row(2) + _row(2, 4, SIZE // 2 + 2)),
    "strided": (lambda x, k: _convolve(x, k, 2), _row(1) + _row(1, 4, SIZE // 2 + 1)),
    "dilated": (lambda x, k: _convolve(x, k, 1, 2), _row(4) + _row(4, 4, SIZE // 2 + 4)),
    "transposed": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=NHWC),
        _row(1) + _row(1, 4, SIZE // 2 + 1),
    ),
    "pooled": (lambda x, k: _max_pool(x), _row(1) + _row(1, 4, SIZE // 2 + 1)),
    "kernel": (
        lambda x, k: jnp.sum(jax.grad(lambda k: jnp.sum(_convolve(x, k) ** 2))(k)),
        _row(2) + _row(2, 4, SIZE // 2 + 2) + 2 * 7 / 8 * 4,
    ),
}
"""What is computed of an image of 64x64x2 split 2 by 4, and the bytes that cross to each device on average."""


@pytest.mark.parametrize("name", _IMAGES)
def test_images_exchange_only_their_borders(name: str) -> None:
    function, expected = _IMAGES[name]
    kinds, moved = _communication(function, [(IMAGE_SHAPE, IMAGE), (KERNEL_SHAPE, Spec())], (2, 4))
    assert kinds <= {"shift", "collective_permute", "all_reduce"}
    assert moved == pytest.approx(expected)


@pytest.mark.parametrize("size", [8, 15])
def test_an_infinity_that_no_window_reads_stays_out_of_a_kernels_gradient(size: int) -> None:
    """The kernel is larger than the result, so it is shared out. Padding of 15 elements over 8 devices would multiply it."""
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(2, 1, 16)).astype(np.float32), rng.normal(size=(1, 1, size)).astype(np.float32)
    image[..., -1] = np.inf
    found, expected = run_sharded(
        lambda x, k: lax.conv_general_dilated(x, k, (1,), [(0, size - 16)]),
        [image, kernel],
        device_mesh((8,)),
        [Spec(None, None, "a"), Spec()],
    )
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


_LINES = {
    "roll": (lambda x: jnp.roll(x, 1, 0), 1.0),
    "roll_back": (lambda x: jnp.roll(x, -3, 0), 3.0),
    "difference": (lambda x: jnp.sum((x[1:] - x[:-1]) ** 2), 7 / 8 + 2 * 7 / 8 / WIDTH),
    "shifted": (lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1], 7 / 8),
    "stencil": (lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) - 2 * x, 2.0),
    "strided": (lambda x: x[::2] * x[1::2], 0.0),
    "looked up in steps": (
        lambda x: x.at[jnp.arange(0, SIZE, 2)].get(mode="clip") * x.at[jnp.arange(1, SIZE, 2)].get(mode="clip"),
        0.0,
    ),
    "flipped": (lambda x: x[::-1], 8.0),
    "updated": (lambda x: lax.dynamic_update_slice_in_dim(x, jnp.ones((1, WIDTH)), jnp.argmax(x[0]), 0), 2 * 7 / 8),
}
"""What is computed of 64 rows split over 8 devices, and the rows that cross to each device on average."""


@pytest.mark.parametrize("name", _LINES)
def test_lines_exchange_only_their_borders(name: str) -> None:
    function, expected = _LINES[name]
    kinds, moved = _communication(function, [((SIZE, WIDTH), ROWS)], (8,))
    assert "all_to_all" not in kinds
    assert moved == pytest.approx(expected * WIDTH * 4)


def test_halos_of_all_shards() -> None:
    """Every device reads of every other one, at 15 distances, of which no device has more than 7."""
    size = 64
    sharding = NamedSharding(device_mesh((8,)), Spec("a"))
    window = jax.jit(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2 * size - 3,), (1,), ((size - 2, size - 2),)), in_shardings=sharding
    )
    exported = jax.export.export(window)(jax.ShapeDtypeStruct((size,), np.float32))
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    apart, merged = meshbridge.partition(exported, collectives="off"), meshbridge.partition(exported)
    assert "collective_permute" in apart.mlir_module()
    assert "all_to_all" in merged.mlir_module(), "one launch for the permutes of all rounds"
    expected = [x[max(0, row - size + 2) : row + size - 1].sum() for row in range(size)]
    for partitioned in (apart, merged):
        np.testing.assert_allclose(jax.jit(partitioned.call)(jax.device_put(x, sharding)), expected, atol=1e-5)


def test_a_rotation_is_one_permute() -> None:
    kinds = _collectives(lambda x: jnp.roll(x, 5, 0), [((SIZE, WIDTH), ROWS)], (8,))
    assert kinds == ["shift"]


@pytest.mark.parametrize("padding", [((0, -1), (0, -1)), ((-1, 0), (0, 0)), ((-2, 1), (0, 0))])
def test_replicated_images_are_cropped_by_windows(padding: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """A cropped image would be one more in memory. XLA on CPU misreads padding that crops one side and adds to the other."""
    by_batch = NamedSharding(device_mesh((8,)), Spec("a"))
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(16, 8, 9, 4)).astype(np.float32), rng.normal(size=(3, 3, 4, 8)).astype(np.float32)

    def convolved(image: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(image, kernel, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    jitted = jax.jit(convolved, in_shardings=by_batch, out_shardings=by_batch)
    partitioned = meshbridge.partition(jax.export.export(jitted)(jax.ShapeDtypeStruct(image.shape, np.float32)))
    assert ("stablehlo.pad" in partitioned.mlir_module()) == any(min(edges) < 0 < max(edges) for edges in padding)
    cropped = np.pad(image, [(0, 0), *[(max(low, 0), max(high, 0)) for low, high in padding], (0, 0)])
    (top, bottom), (left, right) = [(-min(low, 0), min(high, 0) or None) for low, high in padding]
    expected = lax.conv_general_dilated(
        cropped[:, top:bottom, left:right], kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = jax.jit(partitioned.call)(jax.device_put(image, by_batch))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def _communication(
    function: Callable[..., Any], operands: list[tuple[tuple[int, ...], Spec]], shape: tuple[int, ...]
) -> tuple[set[str], float]:
    found = _report(function, operands, shape).collectives
    return {each.kind for each in found}, sum(each.total_bytes for each in found)


def _collectives(function: Callable[..., Any], operands: list[tuple[tuple[int, ...], Spec]], shape: tuple[int, ...]) -> list[str]:
    return [each.kind for each in _report(function, operands, shape).collectives]


def _report(function: Callable[..., Any], operands: list[tuple[tuple[int, ...], Spec]], shape: tuple[int, ...]) -> Any:
    mesh = device_mesh(shape)
    result = jax.eval_shape(function, *[jax.ShapeDtypeStruct(size, np.float32) for size, _ in operands])
    first = operands[0]
    out = first[1] if result.ndim == len(first[0]) else Spec()
    jitted = jax.jit(
        function, in_shardings=tuple(NamedSharding(mesh, spec) for _, spec in operands), out_shardings=NamedSharding(mesh, out)
    )
    with jax.set_mesh(mesh):
        return meshbridge.report(jax.export.export(jitted)(*[jax.ShapeDtypeStruct(size, np.float32) for size, _ in operands]))
