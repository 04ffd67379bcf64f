"""What is minimised on a machine, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, prod

from meshbridge.cost.collective_ops import COPIED
from meshbridge.cost.seconds import collective_time
from meshbridge.ir.groups import Forms
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines import machine
from meshbridge.machines.layout import Placement, place
from meshbridge.machines.machine import Machine, OptionSet
from meshbridge.machines.stages import inner_sizes
from meshbridge.machines.target import Target, has_topology, of_machine
from meshbridge.resharding import BYTES, LinkCost, Objective

MEMORY = 0.1
"""Bytes sent that it costs as much to hold a byte throughout the program: little, so that of plans that send nearly as much, the
one that needs less memory is taken.

Measured on the programs of `testdata/realistic`, 77 plans for three targets: with 0.1 none sends more than with 0, and
temporaries become up to 7 % less in plans of as many bytes; a GPT of two axes without constraints sends 1,949 MB instead of
2,358. With 1 two plans send 10 to 14 % more, one of which needs 5.5 GB instead of 9.9."""

JOINED = 30e6
"""Bytes up to which compilers join independent gathers, or independent reductions, into one launch: the thresholds of
XLA:GPU (openxla/xla, xla/service/collective_utils.h), which are assumed for TPUs.

Measured on 37 models of other libraries, each under three shardings: with 2.25 MB the plans are the same but for one, which has
22 launches instead of 20."""

HIDDEN = 0.75
"""The part of their time that collectives are taken to cost beside which products can run.

Measured on the programs of `testdata/realistic`, 31 plans each for 8 H100 and 8 v5e: predicted steps are 0.6 and 0.9 % shorter
(the geometric means; 12 % at most), of 2.3 and 1.5 % more bytes. With 0.5 they are 0.8 and 1.4 % shorter, of 4.5 and 3.7 % more
bytes, and annotated llamas send up to a quarter more."""

NEUTRAL = Objective(launch=1e5, memory=MEMORY)
"""Where no machine is named: a collective starts in a microsecond, and a link carries 100 GB in a second.

Measured on the programs of `testdata/realistic`, 8 devices: against `bytes` they send 0.02 % more (the geometric mean; 0.9 % at
most), and annotated GPT steps of two axes execute 65, 96 and 158 collectives instead of 118, 183 and 246."""

DEFAULT = "neutral"
"""The machine that a plan is made for unless somebody names one, or JAX's devices imply one."""

UNNAMED = {"bytes": BYTES, DEFAULT: NEUTRAL}
"""Machines that are no devices."""


def objective(
    name: str, mesh: Mesh | None = None, layout: str = "", *, hides: bool = False, compiler_options: OptionSet = "default"
) -> Objective:
    """The objective of a machine: `neutral`, `bytes`, the name of a device of `machines`, or the path of its file, perhaps with a
    topology, as in `h100:1x1x8`: then bytes cost what they take along each axis of the `mesh`, where `layout` says that they are.
    If it `hides`, collectives that the machine runs beside products under that set of options cost HIDDEN of their time.

    Raises MeshError where there is none, and where the mesh does not fit the topology.
    """
    if not isinstance(name, str):
        raise MeshError(f"error: machine is {name!r}, expected the name of one or the path of its file, as a string")
    if name in UNNAMED:
        return UNNAMED[name]
    rates = _rates(mesh, of_machine(name, layout)) if mesh is not None and has_topology(name) else None
    combined_bytes = JOINED if combines(name) else 0.0
    hidden = dict.fromkeys(device(name, compiler_options).async_collectives, HIDDEN) if hides else {}
    return Objective(
        device(name).link.launch_bytes,
        MEMORY,
        is_thorough=True,
        rates=rates,
        combined_bytes=combined_bytes,
        hidden_gathers=hidden.get("all_gather", 1.0),
        hidden_reductions=hidden.get("reduce_scatter", 1.0),
    )


def combines(name: str) -> bool:
    """Whether the compiler of the machine combines small collectives. Else they are combined by copying their operands together:
    on a v5e the copies took a quarter of a decoding step's cycles. Raises MeshError as `objective` does."""
    return name not in UNNAMED and device(name).combines_collectives


def prefetches(name: str, compiler_options: OptionSet = "default") -> str:
    """What loops are to gather ahead on the machine, of PREFETCHED. Raises MeshError as `objective` does."""
    return "none" if name in UNNAMED else device(name, compiler_options).collective_pipelining


def divides(name: str, compiler_options: OptionSet = "default") -> bool:
    """Whether products are to be divided on the machine beside their collectives. Raises MeshError as `objective` does."""
    return name not in UNNAMED and device(name, compiler_options).collective_matmul


def opens(name: str) -> bool:
    """Whether values inside a program may be split further on the machine than constraints on them say. Raises MeshError as
    `objective` does."""
    return name not in UNNAMED and device(name).refines_constraints


def shifts(name: str, compiler_options: OptionSet = "default") -> bool:
    """Whether permutes run beside products on the machine. Raises MeshError as `objective` does."""
    return name not in UNNAMED and "collective_permute" in device(name, compiler_options).async_collectives


def arranges(name: str) -> bool:
    """Whether the machine's compiler copies what it exchanges or has reduced into order. Raises MeshError as `objective` does."""
    return name not in UNNAMED and device(name).copy_bandwidth < inf


def copied_bytes(name: str) -> float:
    """From how many bytes on the compiler of the machine copies an all-gather that is written over an argument; infinite where it
    does not. Raises MeshError as `objective` does."""
    return inf if name in UNNAMED else device(name).aliased_gather_copy_bytes


def reduces_beside(name: str, compiler_options: OptionSet = "default") -> bool:
    """Whether reductions run beside products on the machine. Raises MeshError as `objective` does."""
    return name not in UNNAMED and not {"all_reduce", "reduce_scatter"}.isdisjoint(
        device(name, compiler_options).async_collectives
    )


def puts_off(name: str, compiler_options: OptionSet = "default") -> str:
    """Which of the collectives that run beside products the compiler of the machine begins so late that others have nothing
    beside them: XLA:GPU `reductions` that no product waits for, XLA:TPU `gathers` on the SparseCores; "" for none. Raises
    MeshError as `objective` does."""
    if name in UNNAMED:
        return ""
    found = device(name, compiler_options)
    if found.platform == "gpu":
        return "reductions" if reduces_beside(name, compiler_options) else ""
    return "gathers" if found.collective_pipelining == "offloaded" else ""


def rings(name: str, compiler_options: OptionSet = "default") -> bool:
    """Whether attention may take less time as a ring on the machine: XLA:GPU models products of one shard of keys at more than
    their share of the whole product's time. Raises MeshError as `objective` does."""
    return shifts(name, compiler_options) and device(name, compiler_options).platform != "gpu"


def forms(name: str, devices: int) -> Forms:
    """The collectives on so many devices that the compiler of the machine keeps. Two for one take a launch more, which those of
    fewer bytes than a device receives meanwhile are not worth. Raises MeshError as `objective` does."""
    if name in UNNAMED:
        return Forms()
    found, target = device(name), of_machine(name) if has_topology(name) else None
    topology = target.topology if target is not None and target.devices == devices else ()
    return Forms(inner_sizes(found, devices, topology), found.link.launch_bytes, found.platform == "tpu")


def device(name: str, compiler_options: OptionSet = "default") -> Machine:
    """The machine of a device's name, or in a file, perhaps with a topology, as steps run on it that are compiled under that set
    of options. Raises MeshError as `objective` does."""
    try:
        return (of_machine(name).machine if has_topology(name) else machine.named(name)).under(compiler_options)
    except MeshError as error:
        if machine.is_path(name):
            raise
        raise MeshError(str(error).replace("expected one of", f"expected one of {', '.join(UNNAMED)},")) from None


@dataclass(eq=False)
class LinkRates:
    """What collectives take along the axes of a mesh that lies on a machine, beside one of its own links by itself."""

    placement: Placement
    runs: Mapping[str, Axes]
    "The axes that each of the user's is, by its name."
    _found: dict[tuple[str, frozenset[str]], LinkCost] = field(default_factory=dict)

    def gathering(self, axes: frozenset[str]) -> LinkCost:
        """Of gathers and reductions."""
        return self._of("all_gather", axes)

    def exchanging(self, axes: frozenset[str]) -> LinkCost:
        """Of all-to-alls."""
        return self._of("all_to_all", axes)

    def _of(self, kind: str, axes: frozenset[str]) -> LinkCost:
        if (found := self._found.get((kind, axes))) is None:
            link, across = (
                self.placement.target.machine.link,
                tuple(axis for name in self.runs for axis in self.runs[name] if name in axes),
            )
            others = prod(part.size for part in self.placement.across(across)) - 1
            received = others if kind == "all_gather" else others / (others + 1)
            time = collective_time(kind, 1.0, across, self.placement)
            copying = COPIED / self.placement.target.machine.copy_bandwidth if kind == "all_to_all" else 0.0
            seconds = (max(time.busy.values()) + copying) / received
            found = self._found[kind, axes] = LinkCost(link.ports * link.rate * seconds, time.latency / link.launch)
        return found


@lru_cache(maxsize=64)
def _rates(mesh: Mesh, target: Target) -> LinkRates:
    """Raises MeshError where the mesh does not fit the target."""
    return LinkRates(place(mesh, target), mesh.runs)
