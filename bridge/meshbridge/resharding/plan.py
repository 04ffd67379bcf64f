"""A resharding plan: its steps and their cost, without IR."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.groups import LISTED_DEVICES, names_axes
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.resharding.notation import sharding_text
from meshbridge.resharding.steps import Reshape, Shape, Slice, Step


@dataclass(frozen=True)
class PlanOptions:
    """How to choose among plans: the one with the least `alpha * collectives + beta * bytes received`.

    The defaults describe a slow link (1 GB/s, ten-gigabit Ethernet) and a very fast launch (0.1 microseconds): a collective
    costs as much as 100 bytes, so that only tensors of half a KB or less give up bytes for fewer collectives. A faster link or a
    slower launch needs a larger alpha / beta. The defaults favour few bytes; that they are fastest anywhere is not measured.
    """

    alpha: float = 1e-7
    "Seconds per collective."
    beta: float = 1e-9
    "Seconds per byte received by the busiest device."
    rounds: int = 16
    """Most permutes of an exchange, where another plan takes fewer: an all-to-all fused with a relabelling, or tiles."""
    pairs: int = 1024
    """Most pairs of devices that these permutes may list. Each lists every device of the mesh: beyond 64 devices fewer permutes
    are allowed, beyond 512 one. A bound on the size of the program, not a measurement."""
    listed: int = LISTED_DEVICES
    """Most devices of a mesh that a permute lists, where all-to-alls can name axes instead (`steps.Relay`)."""
    exact: bool = False
    "Insist on the lower bound: alpha only decides between plans of equal bytes."
    scratch: int | None = None
    """Bytes that a plan may hold beyond `ReshardingPlan.peak_bound` to save collectives; None is 256 KB, or 0 if `exact`. If
    every plan holds more, the one that holds least is taken."""
    slowest: Axes = ()
    "Axes along which bytes take longer, the slowest first: gathers along them come first, while shards are small."
    check: bool = True
    "Execute every plan symbolically before it is used."

    @cached_property
    def _hash(self) -> int:
        limits = (self.rounds, self.pairs, self.listed, self.scratch)
        return hash((self.alpha, self.beta, *limits, self.exact, self.slowest, self.check))

    def __hash__(self) -> int:
        """The hash, computed once: prices are looked up by options."""
        return self._hash

    def permutes(self, mesh: Mesh) -> int:
        """Most permutes of one exchange on `mesh`; 0 if permutes may list no devices."""
        if mesh.size > self.listed and names_axes(mesh):
            return 0
        return min(self.rounds, max(1, self.pairs // mesh.size))

    def lists(self, mesh: Mesh) -> bool:
        """Whether permutes may list the devices of `mesh`."""
        return self.exact or self.permutes(mesh) > 0

    @property
    def slack(self) -> int:
        """`scratch`, or its default."""
        return self.scratch if self.scratch is not None else 0 if self.exact else 1 << 18


DEFAULTS = PlanOptions()


@dataclass(frozen=True)
class ReshardingPlan:
    """The steps from a device's shard of `source` to its shard of `target`. All bytes are per device."""

    shape: Shape
    dtype: str
    mesh: Mesh
    source: Sharding
    target: Sharding
    start: Shape
    "Shape of the local shard of `source`."
    steps: tuple[Step, ...]

    @cached_property
    def _before(self) -> tuple[int, ...]:
        """Elements of the local buffer before each step."""
        return tuple(prod(shape) for shape in (self.start, *(step.shape for step in self.steps)))

    @cached_property
    def received_by_step(self) -> tuple[float, ...]:
        """Bytes that the busiest device receives in each step."""
        return tuple(self._bytes(step.received(n)) for step, n in zip(self.steps, self._before, strict=False))

    @cached_property
    def wire_bytes(self) -> float:
        """Wire bytes of the busiest device (ring model): what it receives."""
        return sum(self.received_by_step)

    @cached_property
    def sent_bytes(self) -> float:
        """The sum over steps of the bytes that the busiest sender sends. Uneven shards may send more than they receive."""
        return self._bytes(sum(step.sent(n) for step, n in zip(self.steps, self._before, strict=False)))

    @cached_property
    def total_bytes(self) -> float:
        """Bytes that all devices together receive."""
        devices = self.mesh.size
        return self._bytes(sum(step.total(n, devices) for step, n in zip(self.steps, self._before, strict=False)))

    @cached_property
    def peak_bytes(self) -> float:
        """Bytes alive at the worst step: the buffers before and after it, and its temporaries."""
        buffer = peak = self._before[0]
        moving = [
            (step, after) for step, after in zip(self.steps, self._before[1:], strict=True) if not isinstance(step, Reshape)
        ]
        for (step, after), (following, _) in pairwise([*moving, (None, 0)]):
            if isinstance(step, Slice) and isinstance(following, Slice):
                continue  # consecutive slices are one slice
            assert step is not None
            peak = max(peak, step.peak(buffer, after))
            buffer = after
        return self._bytes(peak)

    @cached_property
    def peak_bound(self) -> float:
        """The most that a lean plan holds: the source shard, the target shard, and a buffer no larger than the smaller one."""
        ends = (self._before[0], self._before[-1])
        return self._bytes(sum(ends) + min(ends))

    @cached_property
    def collectives(self) -> int:
        """Number of collective operations."""
        return sum(step.collectives for step in self.steps)

    def seconds(self, options: PlanOptions) -> float:
        """Modelled time: a step is over when its busiest sender and its busiest receiver are done."""
        return options.alpha * self.collectives + options.beta * max(self.wire_bytes, self.sent_bytes)

    def _bytes(self, elements: float) -> float:
        return elements * element_bytes(self.dtype)

    def __str__(self) -> str:
        head = f"{'x'.join(map(str, (*self.shape, self.dtype)))} {sharding_text(self.source)} -> {sharding_text(self.target)}"
        head += f" on {'x'.join(map(str, self.mesh.shape))}: {self.collectives} collectives, {self.wire_bytes:.0f} bytes received"
        lines = [head, f"  {'':48} {_shape(self.start)}"]
        for step, received in zip(self.steps, self.received_by_step, strict=True):
            receives = f"  receives {received:.0f} bytes" if step.collectives else ""
            lines.append(f"  {step.text(self.mesh):48} {_shape(step.shape)}{receives}")
        return "\n".join(lines)


def _shape(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"
