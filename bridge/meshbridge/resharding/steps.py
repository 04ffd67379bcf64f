"""The steps of a plan: what each device does to its local buffer, in terms of digits of its row-major number in the mesh.

Steps name digits, not devices, so that plans for aligned shardings have the same size on 8 devices and on 65,536. Only
`TileExchange` (resharding.tiles) lists devices.

Bytes follow the ring model (`meshbridge.analysis.ring`), per device; a permute counts what crosses a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshbridge.analysis.ring import WIRE_BYTES
from meshbridge.ir.digits import Digit, Digits, Number, group_size, whole_axes
from meshbridge.ir.relays import Relayed, RelayedAllToAll, Swaps, cheapest, relabelled
from meshbridge.ir.sharding import Mesh

Shape = tuple[int, ...]


def describe(mesh: Mesh, digits: Digits) -> str:
    """Digits as text: axis names, and sub-axes as `x:(stride)radix`, as Shardy writes them."""
    axes = whole_axes(mesh, digits)
    if axes is not None:
        return "[" + ", ".join(mesh.labels(axes)) + "]"

    def digit_text(digit: Digit) -> str:
        inner = prod(mesh.shape[digit.axis + 1 :])
        size = mesh.shape[digit.axis]
        if digit.radix == size:
            return mesh.axis_name(digit.axis)
        return f"{mesh.axis_name(digit.axis)}:({size * inner // (digit.stride * digit.radix)}){digit.radix}"

    return "[" + ", ".join(digit_text(digit) for digit in digits) + "]"


@dataclass(frozen=True, slots=True)
class Step:
    """Base of all steps; `shape` is the shape of the local buffer afterwards."""

    shape: Shape

    @property
    def collectives(self) -> int:
        """Number of collective operations."""
        return 0

    def received(self, elements: int) -> float:
        """Elements that the busiest device receives, given the number of elements of the local buffer before the step."""
        return 0.0

    def sent(self, elements: int) -> float:
        """Elements that the busiest device sends: as many as it receives, if all devices do the same."""
        return self.received(elements)

    def total(self, elements: int, devices: int) -> float:
        """Elements that all devices together receive."""
        return self.received(elements) * devices

    def relayed(self, elements: int) -> Relayed | None:
        """The all-to-alls that the step sends in the place of permutes, if any."""
        return None

    def peak(self, before: int, after: int) -> int:
        """Elements alive at the worst moment, given those of the buffers before and after the step."""
        return before + after

    def text(self, mesh: Mesh) -> str:
        """The step in one line."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class CollectiveStep(Step):
    """A step that is one collective operation."""

    @property
    def collectives(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Reshape(Step):
    """Sees the buffer in another shape."""

    def text(self, mesh: Mesh) -> str:
        return "reshape"


@dataclass(frozen=True, slots=True)
class Transpose(Step):
    """Reorders the buffer's dimensions."""

    permutation: tuple[int, ...]

    def text(self, mesh: Mesh) -> str:
        return f"transpose {list(self.permutation)}"


@dataclass(frozen=True, slots=True)
class Pad(Step):
    """Grows the buffer: `low[d]` elements of undefined content before dimension d, the rest after it."""

    low: tuple[int, ...]

    def text(self, mesh: Mesh) -> str:
        return "pad"


@dataclass(frozen=True, slots=True)
class Crop(Step):
    """Keeps `shape` elements from `start` on."""

    start: tuple[int, ...]

    def text(self, mesh: Mesh) -> str:
        return "crop" + (f" from {list(self.start)}" if any(self.start) else "")


@dataclass(frozen=True, slots=True)
class Mask(Step):
    """From reduced to partial: the devices whose `digits` are not all zero take the neutral element of the reduction."""

    digits: Digits
    kind: str

    def text(self, mesh: Mesh) -> str:
        return f"become partial {self.kind} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class Place(Step):
    """From split to partial: each device puts its buffer at its position along `dim` in a buffer of neutral elements of the
    reduction, which spans its group along `digits`."""

    digits: Digits
    dim: int
    kind: str

    def text(self, mesh: Mesh) -> str:
        return f"become partial {self.kind} over {describe(mesh, self.digits)}, each shard in its place of dim {self.dim}"


@dataclass(frozen=True, slots=True)
class Slice(Step):
    """Each device keeps the piece along `dim` that its number along `digits` names."""

    digits: Digits
    dim: int

    def text(self, mesh: Mesh) -> str:
        return f"slice dim {self.dim} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class AllGather(CollectiveStep):
    """Concatenates the buffers of each group along `dim`."""

    digits: Digits
    dim: int

    def received(self, elements: int) -> float:
        n = group_size(self.digits)
        return WIRE_BYTES["all-gather"](n, n * elements)

    def text(self, mesh: Mesh) -> str:
        return f"all-gather dim {self.dim} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class AllReduce(CollectiveStep):
    """Reduces over each group."""

    digits: Digits
    kind: str

    def received(self, elements: int) -> float:
        return WIRE_BYTES["all-reduce"](group_size(self.digits), elements)

    def text(self, mesh: Mesh) -> str:
        return f"all-reduce {self.kind} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class ReduceScatter(CollectiveStep):
    """Reduces over each group and leaves each device its piece along `dim`."""

    digits: Digits
    dim: int
    kind: str

    def received(self, elements: int) -> float:
        return WIRE_BYTES["reduce-scatter"](group_size(self.digits), elements)

    def text(self, mesh: Mesh) -> str:
        return f"reduce-scatter {self.kind} dim {self.dim} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class AllToAll(CollectiveStep):
    """Splits along `split`, exchanges within each group, concatenates along `concat`."""

    digits: Digits
    split: int
    concat: int

    def received(self, elements: int) -> float:
        return WIRE_BYTES["all-to-all"](group_size(self.digits), elements)

    def text(self, mesh: Mesh) -> str:
        return f"all-to-all split {self.split} concat {self.concat} over {describe(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class Permute(CollectiveStep):
    """Relabels buffers: each device receives from the one whose number along `sources` is the receiver's along `targets`.

    Both lists hold the same digits in different orders.
    """

    sources: Digits
    targets: Digits

    def received(self, elements: int) -> float:
        return float(elements)

    def total(self, elements: int, devices: int) -> float:
        return float(elements * (devices - fixed_devices(self.sources, self.targets, devices)))

    def text(self, mesh: Mesh) -> str:
        return f"permute {describe(mesh, self.sources)} to {describe(mesh, self.targets)}"


@dataclass(frozen=True, slots=True)
class Relay(Step):
    """Does what `Permute` does in all-to-alls (`relays`): two over all digits, or three for each of `swaps`."""

    sources: Digits
    targets: Digits

    @property
    def collectives(self) -> int:
        return self.relayed(prod(self.shape)).sent[1]

    @property
    def swaps(self) -> Swaps:
        """Digits that swap, list by list."""
        return cheapest(prod(self.shape), self.sources, self.targets)

    def relayed(self, elements: int) -> Relayed:
        return Relayed(elements, relabelled(self.sources, self.targets))

    def received(self, elements: int) -> float:
        return float(self.relayed(elements).sent[0])

    def text(self, mesh: Mesh) -> str:
        return f"relay {describe(mesh, self.sources)} to {describe(mesh, self.targets)}"


@dataclass(frozen=True, slots=True)
class Rounds(Step):
    """An all-to-all and a relabelling in one: as many permutes as the all-to-all has devices, no byte moves twice.

    In round t device r receives from device s with `sources[i](s) = targets[i](r)`, plus digit i of t modulo the radix at the
    indices i in `rotating`. Each rotating digit splits a dimension in `split` into as many pieces as its radix. The sender sends
    the piece that the receiver's rotating targets number; the receiver puts it along the dimensions in `concat` of the new
    buffer, by the sender's rotating sources.
    """

    sources: Digits
    targets: Digits
    rotating: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    "One dimension for each rotating digit; likewise `concat`."
    concat: tuple[int, ...] = ()

    @property
    def collectives(self) -> int:
        """Number of rounds."""
        return prod(self.sources[i].radix for i in self.rotating)

    def piece(self, shape: Shape, cut: tuple[int, ...]) -> Shape:
        """The shape of a piece of a buffer of `shape`, whose dimensions `cut` are `split` or `concat`."""
        radix = {dim: self.sources[i].radix for i, dim in zip(self.rotating, cut, strict=True)}
        return tuple(size // radix.get(dim, 1) for dim, size in enumerate(shape))

    @property
    def rounds(self) -> list[tuple[int, ...]]:
        """The digits of t, for every round t."""
        listed: list[tuple[int, ...]] = [()]
        for i in self.rotating:
            listed = [(*head, t) for head in listed for t in range(self.sources[i].radix)]
        return listed

    def sender(self, receiver: Number, turn: tuple[int, ...]) -> Number:
        """The device that `receiver` receives from in the round `turn`; for an array of receivers, the array of senders."""
        shifts = dict(zip(self.rotating, turn, strict=True))
        device = receiver
        for i, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            value = (target.of(receiver) + shifts.get(i, 0)) % source.radix
            device = device + (value - source.of(receiver)) * source.stride  # not in place: it may be an array
        return device

    def received(self, elements: int) -> float:
        return float(elements)

    def total(self, elements: int, devices: int) -> float:
        # Elements stay only in round 0 of the untwisted positions, on devices whose twisted digits agree.
        twisted = [i for i, pair in enumerate(zip(self.sources, self.targets, strict=True)) if pair[0] != pair[1]]
        unmoved = fixed_devices(tuple(self.sources[i] for i in twisted), tuple(self.targets[i] for i in twisted), devices)
        return elements * (devices - unmoved / self.collectives)

    def peak(self, before: int, after: int) -> int:
        """Both buffers, the piece that is sent and the piece that arrives."""
        return before + after + 2 * (before // self.collectives)

    def text(self, mesh: Mesh) -> str:
        digits = f"{describe(mesh, self.sources)} to {describe(mesh, self.targets)}"
        return f"exchange in {self.collectives} permutes {digits}"


@dataclass(frozen=True, slots=True)
class Reblock(Step):
    """Changes the block length of dimension `dim`, over the same devices: block b begins at b lengths.

    A device needs rows of devices before it if blocks become shorter, or of devices after it if they become longer. Each receives
    as many rows as the device that needs most, from the nearest devices, one permute from each distance. If not `listed`, two
    all-to-alls do the same: the first gives each device a piece of what every device sends, the second all rows that it needs.
    """

    digits: Digits
    dim: int
    before: int
    "The length of the blocks before."
    listed: bool = True

    @property
    def shift(self) -> int:
        """By how many rows the block length grows."""
        return self.shape[self.dim] - self.before

    @property
    def pieces(self) -> tuple[int, ...]:
        """Rows that come from each distance, the nearest first."""
        distances = group_size(self.digits) - 1
        lacked = min(distances * abs(self.shift), distances * self.before)
        return tuple(min(self.before, lacked - start) for start in range(0, lacked, self.before))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The distinct ones: a device sends one piece of each length."""
        return tuple(dict.fromkeys(self.pieces))

    @property
    def collectives(self) -> int:
        return len(self.pieces) if self.listed else 2

    def relayed(self, elements: int) -> Relayed | None:
        if self.listed:
            return None
        count = group_size(self.digits)
        return Relayed(
            elements // self.before, ((RelayedAllToAll(1, count, self.lengths), RelayedAllToAll(1, count, self.pieces)),)
        )

    def received(self, elements: int) -> float:
        relayed = self.relayed(elements)
        return float(relayed.sent[0] if relayed else sum(self.pieces) * (elements // self.before))

    def total(self, elements: int, devices: int) -> float:
        if not self.listed:
            return self.received(elements) * devices
        # Devices at an end have no neighbour at that distance.
        count = group_size(self.digits)
        rows = sum(rows * (count - distance) for distance, rows in enumerate(self.pieces, 1))
        return rows * (elements // self.before) * devices / count

    def peak(self, before: int, after: int) -> int:
        """The buffer with the received rows, beside both buffers."""
        return 2 * before + int(self.received(before)) + after

    def text(self, mesh: Mesh) -> str:
        return f"blocks of {self.shape[self.dim]} for {self.before} in dim {self.dim} over {describe(mesh, self.digits)}"


def fixed_devices(sources: Digits, targets: Digits, devices: int) -> float:
    """The number of `devices` that a relabelling leaves in place: in every cycle of digits all values agree."""
    if any(source.radix != target.radix for source, target in zip(sources, targets, strict=True)):
        return devices * _fixed_numbers(sources, targets) / group_size(sources)
    follow = dict(zip(sources, targets, strict=True))
    share, visited = 1.0, set[Digit]()
    for start in sources:
        digit, length = start, 0
        while digit not in visited:
            visited.add(digit)
            digit, length = follow[digit], length + 1
        if length:
            share /= start.radix ** (length - 1)
    return devices * share


def _fixed_numbers(sources: Digits, targets: Digits) -> int:
    """How many device numbers along `sources` equal those along `targets`: where the digits, each times the difference of its two
    weights, add up to 0. The largest digit follows from the others."""
    weights = [{digit: group_size(digits[i + 1 :]) for i, digit in enumerate(digits)} for digits in (sources, targets)]
    differences = ((digit.radix, weights[0][digit] - weights[1][digit]) for digit in sources)
    *smaller, largest = sorted(differences, key=lambda pair: pair[0])
    sums = {0: 1}
    for radix, difference in smaller:
        next_sums: dict[int, int] = {}
        for total, count in sums.items():
            for value in range(radix):
                next_sums[total + value * difference] = next_sums.get(total + value * difference, 0) + count
        sums = next_sums
    radix, difference = largest
    if difference == 0:
        return sums.get(0, 0) * radix
    return sum(count for total, count in sums.items() if total % difference == 0 and 0 <= -total // difference < radix)
