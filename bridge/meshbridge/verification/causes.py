"""A plausible cause of a wrong value: hypotheses about faults that partitioners make, tried one after the other.

A hypothesis predicts what the devices hold if its fault was made, and is accepted if they hold exactly that. Elements are random,
so a wrong hypothesis hardly ever fits. If too few elements differ (`TELLING`), no hypothesis is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, permutations

import numpy as np

from meshbridge.verification.field import Array, Field
from meshbridge.verification.layout import DeviceMesh, Digit, Dims, cut, pieces

TELLING = 18
"""Bits that must differ before a hypothesis is accepted."""

FARTHEST = 16
"""The largest offset that is tried."""

LAYOUTS = 64
"""The most shardings that are tried for a value of which only the shape of a shard is known."""


@dataclass(frozen=True)
class Case:
    """A wrong value: the global one that it should be, without a device dimension, and what devices hold as (devices, *shard).

    `dims` says how the value is sharded. `again` is what the devices hold where the padding of the arguments is another one.
    """

    field: Field
    mesh: DeviceMesh
    dims: Dims
    value: Array
    found: Array
    again: Array | None = None

    def shards(self, value: Array) -> Array:
        """The shards of a global value on each device, with the padding of `found`."""
        return self.mesh.everywhere(cut(value[None], self.dims, self.mesh, padding=self.mesh.everywhere(self.found)))

    @cached_property
    def expected(self) -> Array:
        return self.shards(self.value)

    @cached_property
    def valid(self) -> Array:
        """Which elements are not padding."""
        return self.mask(np.True_)

    def mask(self, of_value: Array | np.bool_) -> Array:
        """The shards of a mask of the global value; False in the padding."""
        return self.mesh.everywhere(cut(np.broadcast_to(of_value, (1, *self.value.shape)), self.dims, self.mesh))

    @cached_property
    def wrong(self) -> Array:
        """The devices that hold something other than their shard."""
        return np.flatnonzero((self.found != self.expected).reshape(self.mesh.size, -1).any(axis=1))

    @property
    def tells(self) -> bool:
        """Whether enough elements differ to choose between hypotheses."""
        bits = {"b": 1, "i": 3, "u": 3}.get(self.found.dtype.kind, 20)
        return bits * int((self.found != self.expected).sum()) >= TELLING

    def holds(self, supposed: Array) -> bool:
        """Whether the devices hold this value, apart from padding."""
        return bool(((self.found == supposed) | ~self.valid).all())

    def agrees(self, supposed: Array) -> bool:
        """Whether every device would be right if it held this value, apart from padding."""
        return bool(((self.expected == supposed) | ~self.valid).all())

    def over(self, names: Sequence[str], combine: Callable[[Array], Array], value: Array) -> Array:
        """The result of an all-reduce of `value` along these axes."""
        groups, everywhere = self.mesh.groups_along(names), self.mesh.everywhere(value)
        result = np.empty_like(everywhere)
        result[groups] = combine(everywhere[groups])[:, None]
        return result

    def add_up(self, members: Array) -> Array:
        """The sum over dimension 1."""
        if members.dtype.kind in "fc":
            return self.field.sum(members, (1,))
        return np.asarray(members.any(axis=1) if members.dtype.kind == "b" else members.sum(axis=1, dtype=members.dtype))

    def extreme(self, members: Array, largest: bool) -> Array:
        """The first or last element in the order along dimension 1."""
        places = self.field.order(members) if members.dtype.kind == "f" else members.astype(np.int64)
        chosen = places.argmax(axis=1) if largest else places.argmin(axis=1)
        return np.asarray(np.take_along_axis(members, chosen[:, None], axis=1)[:, 0])


Hypothesis = Callable[[Case], str | None]
"""Describes the fault if it is the one that was made."""


def listed(names: Sequence[str]) -> str:
    """Axes as text."""
    return " and ".join(f'"{name}"' for name in names)


def padding_is_read(case: Case) -> str | None:
    """Values beyond the end of a shard take part in the result."""
    if case.again is None or not ((case.found != case.again) & case.valid).any():
        return None
    return "the padding beyond the end of an uneven shard is read: the value changes with what the padding holds"


def partial_along(case: Case) -> tuple[str, tuple[str, ...]] | None:
    """The missing reduction over devices (sum, maximum or minimum), and its axes; None if no reduction gives the shards."""
    if not case.tells:
        return None
    kinds: dict[str, Callable[[Array], Array]] = {"sum": case.add_up}
    if case.found.dtype.kind != "c":
        kinds["maximum"] = lambda members: case.extreme(members, True)
        kinds["minimum"] = lambda members: case.extreme(members, False)
    for names in case.mesh.choices():
        for kind, combine in kinds.items():
            if case.agrees(case.over(names, combine, case.found)):
                return kind, names
    return None


def left_partial(case: Case) -> str | None:
    """Devices keep a partial sum, maximum or minimum."""
    if (partial := partial_along(case)) is None:
        return None
    kind, names = partial
    done = "summing" if kind == "sum" else f"taking the {kind}"
    along = "axis" if len(names) == 1 else "axes"
    return f"equal after {done} over {along} {listed(names)}: an all-reduce or reduce-scatter is missing"


def summed_too_often(case: Case) -> str | None:
    """A reduction over devices that all hold the sum already, or over shards that are not terms of one sum."""
    if case.found.dtype.kind == "b":
        return None
    sizes = dict(case.mesh.axes)
    for names in case.mesh.choices():
        if case.holds(case.over(names, case.add_up, case.expected)):
            count = int(np.prod([sizes[name] for name in names]))
            if case.agrees(case.over(names, lambda members: members[:, 0], case.expected)):
                return f"summed {count} times: every element is {count} times what it should be, as after one all-reduce too many"
            return f"the shards along {listed(names)} are summed, though they are not partial values: one all-reduce too many"
    for count in range(2, case.mesh.size + 1):
        times = case.field.reduce(case.expected * float(count)) if case.found.dtype.kind in "fc" else case.expected * count
        if case.holds(times):
            return f"summed {count} times: every element is {count} times what it should be"
    return None


def nothing_received(case: Case) -> str | None:
    """Zeros, as on a device that a collective-permute sends nothing to."""
    if case.found[case.wrong].any():
        return None
    return f"{devices(case.wrong)} only zeros: no device sends them anything, or a mask hides the valid elements"


def devices(numbers: Sequence[int] | Array) -> str:
    """The subject of a sentence about these devices."""
    shown = ", ".join(str(int(number)) for number in numbers[:8]) + (", …" if len(numbers) > 8 else "")
    return f"device {shown} holds" if len(numbers) == 1 else f"devices {shown} hold"


def permuted(case: Case) -> str | None:
    """Devices hold the shards of other devices."""
    owners = {row.tobytes(): device for device, row in reversed(list(enumerate(case.expected)))}
    holders = [owners.get(case.found[device].tobytes()) for device in case.wrong]
    if any(owner is None for owner in holders):
        return None
    pairs = [f"device {device} holds what device {owner} should" for device, owner in zip(case.wrong, holders, strict=True)]
    if len(set(holders)) == 1 and len(pairs) > 1:
        return f"{devices(case.wrong)} the shard of device {holders[0]}: the offset of a device's own shard is missing"
    ellipsis = ", …" if len(pairs) > 4 else ""
    text = "the devices hold each other's shards: " + ", ".join(pairs[:4])
    return f"{text}{ellipsis}: a permutation, or the order of a group's members, is wrong"


def out_of_order(case: Case) -> str | None:
    """The pieces of a shard are in another order."""
    counts = sorted({int(np.prod([dict(case.mesh.axes)[name] for name in names])) for names in case.mesh.choices()})
    for dim, size in enumerate(case.found.shape[1:]):
        for count in (count for count in counts if size % count == 0):
            split = (case.mesh.size, *case.found.shape[1 : dim + 1], count, size // count, *case.found.shape[dim + 2 :])
            sides = [np.moveaxis(side.reshape(split), dim + 1, 1) for side in (case.found, case.expected)]
            if all(_same_pieces(*rows) for rows in zip(*sides, strict=True)):
                return f"the {count} pieces of a shard along dimension {dim} come in another order: that of a gather's group"
    return None


def _same_pieces(found: Array, expected: Array) -> bool:
    piece_bytes, right = ([piece.tobytes() for piece in side] for side in (found, expected))
    return sorted(piece_bytes) == sorted(right)


def shifted(case: Case) -> str | None:
    """Elements are shifted along a dimension. A device whose start is clamped may hold the right ones."""
    for dim, size in enumerate(case.value.shape):
        position = np.arange(size).reshape(-1, *(1,) * (case.value.ndim - dim - 1))
        for step in (sign * far for far in range(1, min(size - 1, FARTHEST) + 1) for sign in (1, -1)):
            inside = case.mask((position + step >= 0) & (position + step < size))[case.wrong]
            equal = case.found[case.wrong] == case.shards(np.roll(case.value, -step, dim))[case.wrong]
            if (equal | ~inside).all() and 2 * inside.sum() >= case.valid[case.wrong].sum():
                count = f"{abs(step)} element{'s' if abs(step) > 1 else ''}"
                return f"off by {count} along dimension {dim}: element i holds what element i {'+-'[step < 0]} {abs(step)} should"
    return None


HYPOTHESES: tuple[Hypothesis, ...] = (
    padding_is_read,
    nothing_received,
    left_partial,
    summed_too_often,
    permuted,
    out_of_order,
    shifted,
)
"""The most specific come first."""


def cases_of_shape(field: Field, mesh: DeviceMesh, value: Array, found: Array, again: Array | None = None) -> list[Case]:
    """A case for each sharding that gives shards of the shape of `found`, if the sharding of the value is unknown."""
    if value.dtype != found.dtype or value.ndim != found.ndim - 1:
        return []
    shardings = islice(layouts(mesh, value.shape, found.shape[1:]), LAYOUTS)
    return [Case(field, mesh, dims, value, found, again) for dims in shardings]


def explain_any(cases: Sequence[Case]) -> str:
    """The first hypothesis that fits one of the cases; empty if none fits, or if one of the cases is no fault."""
    if not all(len(case.wrong) for case in cases):
        return ""
    return next((text for hypothesis in HYPOTHESES for case in cases if case.tells and (text := hypothesis(case))), "")


def layouts(mesh: DeviceMesh, shape: Sequence[int], local: Sequence[int]) -> Iterator[Dims]:
    """The ways in which axes may split a tensor of `shape` into shards of shape `local`."""
    axes = [mesh.digit(name) for name, size in mesh.axes if size > 1]

    def layouts_from(dim: int, free: list[Digit]) -> Iterator[Dims]:
        if dim == len(shape):
            yield ()
            return
        for count in range(len(free) + 1):
            for chosen in permutations(free, count):
                if -(-shape[dim] // pieces(chosen)) == local[dim]:
                    for later_dims in layouts_from(dim + 1, [axis for axis in free if axis not in chosen]):
                        yield (chosen, *later_dims)

    yield from layouts_from(0, axes)
