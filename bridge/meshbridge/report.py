"""The report: what a program communicates once it is partitioned, and why; what it computes twice; how much memory it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from meshbridge.analysis.executions import Execution, Weigh, branch_weights, executed, is_unknown_loop
from meshbridge.cost.communication import Communication, collectives, meshes_of, wire_bytes_on
from meshbridge.cost.flops import Work, amount, work
from meshbridge.cost.memory import Memory, memory
from meshbridge.dialect.module_mesh import find_mesh, mesh_or_single
from meshbridge.dialect.ops import GATHERED
from meshbridge.ir.locations import SourceLocation, location_of, without_reason
from meshbridge.ir.mlir import MeshError, ir, main_function, title, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.pipeline import DEFAULTS, Options, Timing, partition_module


@dataclass(frozen=True)
class NotPartitioned:
    """An operation that runs replicated on gathered operands, because nothing says how to partition it."""

    operation: str
    "Its name; a custom call's with its target: `stablehlo.custom_call @Qr`."
    location: SourceLocation


@dataclass(frozen=True)
class Choice:
    """A `case` or `if` of which the report counts the branch that sends most, the first of number 0."""

    operation: str
    branch: int
    branches: int
    location: SourceLocation


@dataclass(frozen=True)
class Report(Communication):
    """A partitioned program. Bytes and operations are those of one device and one run, which takes the most expensive branches:
    those that send most where bytes are counted, those that compute most where work is."""

    mesh: Mesh
    work: Work
    "What one device computes."
    needed_work: Work | None
    "What the program computes before it is partitioned, divided by the devices; None if it came partitioned."
    memory: Memory
    not_partitioned: tuple[NotPartitioned, ...]
    unknown_loops: tuple[SourceLocation, ...]
    "Loops without a known trip count: their bodies are counted once."
    unknown_branches: tuple[Choice, ...] = ()
    "Where nothing says which of several branches is taken, and they do not send the same number of bytes."

    @property
    def redundant_work(self) -> Work | None:
        """What one device computes beyond its share: the same as another one, or padding of uneven shards."""
        return None if self.needed_work is None else self.work - self.needed_work


def partition_and_report(module: ir.Module, options: Options = DEFAULTS) -> tuple[Report, list[Timing]]:
    """`partition_module`, and the report of what it did; the module is what it would be without.

    Raises MeshError with a located diagnostic, also for a form that says nothing of communication yet.
    """
    if options.emit == "annotated":
        raise MeshError("error: a program in the form 'annotated' is not partitioned yet, there is nothing to report")
    needed: Work | None = None
    found: list[Report] = []

    def observe(stage: str, module: ir.Module) -> None:
        nonlocal needed
        if stage == "legal":  # annotations would stand between a loop and its trip count
            needed = work(executed(module, find_mesh(module), weigh=amount))
        if stage == "optimised":
            found.append(report_of(module, needed))
            _forget_reasons(module)

    timings = partition_module(module, replace(options, explain=True), on_stage=observe)
    return found[0], timings


def report_of(module: ir.Module, needed: Work | None) -> Report:
    """The report of a local program (stages 3 to 5), which before it was partitioned took `needed` work in all."""
    ops = list(executed(module))
    meshes = meshes_of(module)
    mesh = mesh_or_single(module)
    weigh = wire_bytes_on(meshes)
    sending = list(executed(module, weigh=weigh))
    return Report(
        collectives=tuple(collectives(sending, meshes)),
        mesh=mesh,
        work=work(executed(module, weigh=amount)),
        needed_work=None if needed is None else needed / mesh.size,
        memory=memory(main_function(module)),
        not_partitioned=tuple(NotPartitioned(title(op), location_of(op)) for op, _ in ops if GATHERED in op.attributes),
        unknown_loops=tuple(location_of(op) for op, _ in ops if is_unknown_loop(op)),
        unknown_branches=tuple(_choices(sending, weigh)),
    )


def _choices(ops: Iterable[Execution], weigh: Weigh) -> Iterator[Choice]:
    for op, _ in ops:
        weights = branch_weights(op, weigh)
        if len(set(weights)) > 1:
            yield Choice(op.name, weights.index(max(weights)), len(weights), location_of(op))


def _forget_reasons(module: ir.Module) -> None:
    """Locations go on into the lowered program, where reasons have no business."""
    for op in walk_all(module):
        op.location = without_reason(op.location)
