"""The objective of planning for a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from meshbridge.cost.collective_ops import COPY_TRAFFIC
from meshbridge.cost.seconds import collective_time
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import Placement, place
from meshbridge.machines.target import Target
from meshbridge.resharding import BYTES, LinkCost, Objective

MEMORY = 0.1
"""The cost of holding a byte throughout the program, in sent bytes. It is low: it decides between plans that send nearly as much.

Measured on the programs of `testdata/realistic`, 77 plans for three targets: with 0.1 none sends more than with 0, and
temporaries become up to 7 % less in plans of as many bytes; a GPT of two axes without constraints sends 1,949 MB instead of
2,358. With 1 two plans send 10 to 14 % more, one of which needs 5.5 GB instead of 9.9."""

HELD = 20.0
"""The factor on the price of memory of a tensor that loops carry unchanged, for each execution of the loops that read it, and for
what it needs beyond what is stored anyway. By it a byte that is gathered before such an execution, and held through it, costs two
sent ones: a forward and a backward pass gather each layer for themselves. A machine's `held_price` replaces it.

Measured on 8 devices. `neutral`, without the factor: a step of low-rank adapters on a frozen llama needs 14.8 GB of temporaries
instead of 3.6, and sends 10.2 GB instead of 20.1, which is what XLA with Shardy needs and sends; a llama that adds up the
gradients of 4 microbatches needs 7.8 GB instead of 5.3, and sends 13.6 GB instead of 30.9; one with 32 layers 6.3 GB instead of
5.2 for as many bytes. On H100s XLA:GPU models 347 ms instead of 333 for the microbatches, with 3.7 GB exposed instead of 0.7:
gathers before a loop have nothing beside them."""

COMBINED_BYTES = 30e6
"""Bytes up to which compilers combine independent gathers, or independent reductions, into one launch: the thresholds of XLA:GPU
(openxla/xla, xla/service/collective_utils.h). Deciding assumes them for TPUs too, where XLA combines all-reduces alone.

Measured on 37 models of other libraries, each under three shardings: with 2.25 MB the plans are the same except for one, which
has 22 launches instead of 20."""

HIDDEN_SHARE = 0.75
"""The share of its time that a collective costs if products can run beside it.

Measured on the programs of `testdata/realistic`, 31 plans each for 8 H100 and 8 v5e: predicted steps are 0.6 and 0.9 % shorter
(the geometric means; 12 % at most), and send 2.3 and 1.5 % more bytes. With 0.5 they are 0.8 and 1.4 % shorter and send 4.5 and
3.7 % more bytes, and annotated llamas send up to a quarter more."""

NEUTRAL = Objective(launch=1e5, memory=MEMORY, held_factor=HELD)
"""The objective without a machine: a collective starts in a microsecond, and a link carries 100 GB in a second.

Measured on the programs of `testdata/realistic`, 8 devices: compared with `bytes` they send 0.02 % more (the geometric mean; 0.9
% at most), and annotated GPT steps of two axes execute 65, 96 and 158 collectives instead of 118, 183 and 246."""

_WITHOUT_DEVICE = {"bytes": BYTES, "neutral": NEUTRAL}
"""Objectives by the names of NO_DEVICE."""


def objective(target: CompileTarget, mesh: Mesh | None = None, *, hides: bool = False) -> Objective:
    """The objective for a target. With a topology, the cost of bytes along each axis of the `mesh` depends on the links of the
    layout. With `hides`, collectives that run beside products cost HIDDEN_SHARE of their time.

    Raises MeshError if the mesh does not fit the topology.
    """
    machine = target.machine
    if machine is None:
        return _WITHOUT_DEVICE[target.name]
    rates = _rates(mesh, target.devices) if mesh is not None and target.devices is not None else None
    hidden = dict.fromkeys(machine.async_collectives, HIDDEN_SHARE) if hides else {}
    return Objective(
        machine.link.launch_bytes,
        MEMORY,
        HELD if target.held_price is None else target.held_price / MEMORY,
        is_thorough=True,
        rates=rates,
        combined_bytes=COMBINED_BYTES if machine.combines_collectives else 0.0,
        hidden_gathers=hidden.get("all_gather", 1.0),
        hidden_reductions=hidden.get("reduce_scatter", 1.0),
    )


@dataclass(eq=False)
class LinkRates:
    """The costs of collectives along the axes of a mesh on a machine, relative to a single link of the machine."""

    placement: Placement
    runs: Mapping[str, Axes]
    "By the name of a user's axis, its mesh axes."
    _found: dict[tuple[str, frozenset[str]], LinkCost] = field(default_factory=dict)

    def gathering(self, axes: frozenset[str]) -> LinkCost:
        """The cost of gathers and reductions."""
        return self._of("all_gather", axes)

    def exchanging(self, axes: frozenset[str]) -> LinkCost:
        """The cost of all-to-alls."""
        return self._of("all_to_all", axes)

    def _of(self, kind: str, axes: frozenset[str]) -> LinkCost:
        if (cost := self._found.get((kind, axes))) is None:
            link, across = (
                self.placement.target.machine.link,
                tuple(axis for name in self.runs for axis in self.runs[name] if name in axes),
            )
            other_devices = prod(part.size for part in self.placement.across(across)) - 1
            received = other_devices if kind == "all_gather" else other_devices / (other_devices + 1)
            time = collective_time(kind, 1.0, across, self.placement)
            copying = COPY_TRAFFIC / self.placement.target.machine.copy_bandwidth if kind == "all_to_all" else 0.0
            seconds = (max(time.busy.values()) + copying) / received
            cost = self._found[kind, axes] = LinkCost(link.ports * link.rate * seconds, time.latency / link.launch)
        return cost


@lru_cache(maxsize=64)
def _rates(mesh: Mesh, target: Target) -> LinkRates:
    """Raises MeshError if the mesh does not fit the target."""
    return LinkRates(place(mesh, target), mesh.runs)
