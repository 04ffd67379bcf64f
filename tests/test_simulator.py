"""The simulator against the pictures of the dialect's document, with the document's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tests import simulator
from tests.simulator import Index, Values


def on_devices(arrays: dict[Index, Sequence[Sequence[int]] | Sequence[int]], dtype: type = np.int8) -> Values:
    return {device: np.array(rows, dtype) for device, rows in arrays.items()}


def same(found: Values, expected: dict[Index, Iterable[object]]) -> None:
    assert found.keys() == expected.keys()
    for device, rows in expected.items():
        np.testing.assert_array_equal(found[device], np.array(rows))


TWO_BY_TWO = on_devices(
    {(0, 0): [[1, 2], [3, 4]], (0, 1): [[5, 6], [7, 8]], (1, 0): [[9, 10], [11, 12]], (1, 1): [[13, 14], [15, 16]]}
)


def test_groups_are_ordered_by_the_list_of_axes() -> None:
    """Device groups: on 2x3x4x5 with axes [0, 1], (1, 0, 2, 3) and (1, 1, 2, 3) share a group, (1, 0, 2, 4) has another one."""
    by_device = {device: group for group in simulator.groups((2, 3, 4, 5), [0, 1]) for device in group}
    assert by_device[1, 0, 2, 3] is by_device[1, 1, 2, 3]
    assert by_device[1, 0, 2, 3] is not by_device[1, 0, 2, 4]
    # "If we have an axis list [3, 1] then device (i, 1, k, 0) will precede both devices (i, 0, k, 1) and (i, 2, k, 0)."
    group = next(group for group in simulator.groups((2, 3, 4, 5), [3, 1]) if (1, 1, 2, 0) in group)
    assert group.index((1, 1, 2, 0)) < group.index((1, 0, 2, 1))
    assert group.index((1, 1, 2, 0)) < group.index((1, 2, 2, 0))


def test_an_in_group_device_is_named_along_the_group_axes() -> None:
    """On a 3D mesh with mesh_axes = [0, 2], in-group device (i, j) of the group with index g is (i, g, j)."""
    for group in simulator.groups((2, 3, 4), [0, 2]):
        assert simulator.root_of(group, [0, 2], (1, 3)) == (1, group[0][1], 3)


def test_all_gather() -> None:
    upper, lower = [[1, 2, 5, 6], [3, 4, 7, 8]], [[9, 10, 13, 14], [11, 12, 15, 16]]
    expected = {(0, 0): upper, (0, 1): upper, (1, 0): lower, (1, 1): lower}
    same(simulator.all_gather((2, 2), TWO_BY_TWO, [1], 1), expected)


def test_all_slice_undoes_all_gather() -> None:
    gathered = simulator.all_gather((2, 2), TWO_BY_TWO, [1], 1)
    same(simulator.all_slice((2, 2), gathered, [1], 1), TWO_BY_TWO)


def test_all_to_all() -> None:
    before = on_devices(
        {(0,): [[11, 12], [13, 14], [15, 16]], (1,): [[21, 22], [23, 24], [25, 26]], (2,): [[31, 32], [33, 34], [35, 36]]}
    )
    after = {(0,): [[11, 12], [21, 22], [31, 32]], (1,): [[13, 14], [23, 24], [33, 34]], (2,): [[15, 16], [25, 26], [35, 36]]}
    same(simulator.all_to_all((3,), before, [0], 0, 0), after)


def test_broadcast() -> None:
    before = on_devices({(0, 0): [1, 2], (0, 1): [3, 4], (1, 0): [0, 0], (1, 1): [0, 0]})
    same(simulator.broadcast((2, 2), before, [0], (0,)), {(0, 0): [1, 2], (0, 1): [3, 4], (1, 0): [1, 2], (1, 1): [3, 4]})


def test_gather_is_undefined_off_the_root() -> None:
    gathered = simulator.gather((2, 2), TWO_BY_TWO, [1], 1, (1,))
    same(gathered, {(0, 1): [[1, 2, 5, 6], [3, 4, 7, 8]], (1, 1): [[9, 10, 13, 14], [11, 12, 15, 16]]})


def test_reduce_scatter_follows_the_text() -> None:
    """The document's picture shows sums ([[6, 8]], [[10, 12]], …) under an operation that says `reduction = <max>`, and types
    (`tensor<3x4xf32> -> tensor<1x4xf64>`) that its 2x2 tensors do not have. The text decides: max gives max. With sum, the
    picture's numbers come out.
    """
    pictured = {(0, 0): [[6, 8]], (0, 1): [[10, 12]], (1, 0): [[22, 24]], (1, 1): [[26, 28]]}
    same(simulator.reduce_scatter((2, 2), TWO_BY_TWO, [1], "sum", np.dtype(np.float64), 0), pictured)
    meant = {(0, 0): [[5, 6]], (0, 1): [[7, 8]], (1, 0): [[13, 14]], (1, 1): [[15, 16]]}
    same(simulator.reduce_scatter((2, 2), TWO_BY_TWO, [1], "max", np.dtype(np.float64), 0), meant)


def test_scatter() -> None:
    before = on_devices({(0, 0): [[0, 0], [0, 0]], (0, 1): [[0, 0], [0, 0]], (1, 0): [[1, 2], [3, 4]], (1, 1): [[5, 6], [7, 8]]})
    expected = {(0, 0): [[1, 2]], (0, 1): [[5, 6]], (1, 0): [[3, 4]], (1, 1): [[7, 8]]}
    same(simulator.scatter((2, 2), before, [0], 0, (1,)), expected)


def test_shift_with_rotation() -> None:
    """An offset of 2 on an axis of 4 looks alike in both directions; "shift by an offset" is read as data moving up."""
    row = on_devices({(i, j): [4 * i + j + 1] for i in range(2) for j in range(4)})
    expected = {(0, 0): [3], (0, 1): [4], (0, 2): [1], (0, 3): [2], (1, 0): [7], (1, 1): [8], (1, 2): [5], (1, 3): [6]}
    same(simulator.shift((2, 4), row, 1, 2, rotate=True), expected)
    assert set(simulator.shift((2, 4), row, 1, 2, rotate=False)) == {(0, 2), (0, 3), (1, 2), (1, 3)}


def test_linear_index() -> None:
    """In a mesh of shape (10, 20, 30), the device (1, 2, 3) has linear index 3 + 30*2 + 20*30*1."""
    assert simulator.process_linear_index((10, 20, 30))[1, 2, 3] == 3 + 30 * 2 + 20 * 30 * 1


def test_neighbours() -> None:
    """The document gives 633 and 693 for (1, 1, 3) and (1, 3, 3); by its own formula for the linear index that is right."""
    assert simulator.neighbors_linear_indices((10, 20, 30), (1, 2, 3), [1]) == (633, 693)
    assert simulator.neighbors_linear_indices((10, 20, 30), (1, 0, 3), [1])[0] < 0
    assert simulator.neighbors_linear_indices((10, 20, 30), (1, 19, 3), [1])[1] < 0


def test_shard_shapes_with_offsets() -> None:
    """32x32x32 with offsets [0, 24, 32, 0, 20, 32]: the first device has 24x20x32. 4x14 over 4 devices: 4x2, 4x3, 4x4, 4x5.

    The document gives the second device 8x12x32; that is the last one, (1, 1).
    """
    offsets = [0, 24, 32, 0, 20, 32]
    assert simulator.shard_shape((2, 2), (32, 32, 32), [[0], [1]], [], offsets, (0, 0)) == [24, 20, 32]
    assert simulator.shard_shape((2, 2), (32, 32, 32), [[0], [1]], [], offsets, (1, 1)) == [8, 12, 32]
    widths = [simulator.shard_shape((4,), (4, 14), [[], [0]], [], [0, 2, 5, 9, 14], (k,)) for k in range(4)]
    assert widths == [[4, 2], [4, 3], [4, 4], [4, 5]]


def test_halo_of_a_split_dimension() -> None:
    """halo_sizes = [1, 2]: one cell before, two after. Cells outside of the whole tensor keep what they held."""
    held = on_devices({(k,): [-1, 10 * k, 10 * k + 1, -2, -3] for k in range(3)})
    expected = {(0,): [-1, 0, 1, 10, 11], (1,): [1, 10, 11, 20, 21], (2,): [11, 20, 21, -2, -3]}
    same(simulator.update_halo((3,), held, [[0]], [1, 2]), expected)
