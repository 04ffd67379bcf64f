"""The report: what a program communicates once it is partitioned, and why; what it computes twice; how much memory
and time it needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf

from meshbridge.analysis.executions import Execution, Weigh, branch_weights, executed, is_unknown_loop
from meshbridge.analysis.origins import Phases, origins_of
from meshbridge.cost import trace
from meshbridge.cost.by_module import ModuleTraffic, by_module
from meshbridge.cost.communication import Collective, Communication, communicating, wire_bytes_on
from meshbridge.cost.flops import OpWork, amount, products, work
from meshbridge.cost.memory import Memory, memory
from meshbridge.cost.step import PredictedStep, collective_times, predict
from meshbridge.dialect.boundary import read_boundary
from meshbridge.dialect.module_mesh import declared_meshes, find_mesh, mesh_or_single
from meshbridge.dialect.names import Names, names_of
from meshbridge.dialect.ops import GATHERED
from meshbridge.ir.locations import SourceLocation, location_of, without_reason
from meshbridge.ir.mlir import MeshError, entries, function_type, ir, main_function, title, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import Target
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import DEFAULTS, OnStage, Options, Timing
from meshbridge.reports.tables import By, remarks_on, report_table

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotPartitioned:
    """An operation that runs replicated on gathered operands, because nothing says how to partition it."""

    operation: str
    "Its name; a custom call's with its target: `stablehlo.custom_call @Qr`."
    location: SourceLocation


@dataclass(frozen=True)
class Held:
    """An argument or result: how devices hold it. The one of number p in the mesh has the shard of its coordinates; where shares
    are uneven, the last shards end in padding."""

    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    element_type: str
    "As MLIR writes it: `f32`."
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the mesh axes along which it is split, outer first."
    unreduced: tuple[str, ...]
    "The axes along which devices hold terms of a sum."
    name: str = ""
    "Its path in the tree that the function takes or returns: `params['head']`, `result[0]`; empty where it has no name."


@dataclass(frozen=True)
class Choice:
    """A `case` or `if` of which the report counts the branch that sends most, the first of number 0."""

    operation: str
    branch: int
    branches: int
    location: SourceLocation


@dataclass(frozen=True)
class Suggestion:
    """A change of the program, and what it makes of it. Figures are those of the report of the changed program."""

    change: str
    "What to do: `shard params['head'] as P(None, \"model\") instead of P(None, None)`."
    arguments: tuple[str, ...]
    "The names of the arguments that it is about, `argument 3` for one without."
    results: tuple[str, ...]
    sharding: tuple[tuple[str, ...], ...] | None
    "How each of them is to be sharded, as `Held.sharding`; None where that is left to meshbridge, and for a constraint."
    constraint: SourceLocation | None
    "The line of the user's source with the constraint to take out."
    wire_bytes: float
    seconds: float | None
    "Of the predicted step, on a machine with a topology."
    peak_bytes: float


@dataclass(frozen=True)
class Report(Communication):
    """A partitioned program. Bytes and operations are those of one device and one run, which takes the most expensive branches:
    those that send most where bytes are counted, those that compute most where work is."""

    mesh: Mesh
    arguments: tuple[Held, ...]
    results: tuple[Held, ...]
    work: OpWork
    "What one device computes."
    needed_work: OpWork | None
    "What the program computes before it is partitioned, divided by the devices; None if it came partitioned."
    memory: Memory
    not_partitioned: tuple[NotPartitioned, ...]
    unknown_loops: tuple[SourceLocation, ...]
    "Loops without a known trip count: their bodies are counted once."
    unknown_branches: tuple[Choice, ...] = ()
    "Where nothing says which of several branches is taken, and they do not send the same number of bytes."
    step: PredictedStep | None = None
    "The predicted step, on a machine whose topology was given."
    model_products: Mapping[str, float] | None = None
    """FLOPs of all products of the program before it was partitioned, by the element type of the operands, but for those that it
    computes again to save memory; None if it came partitioned."""
    machine: str = DEFAULTS.machine
    "What the plan is made for, unless the program came partitioned."
    compiler_options: OptionSet = "default"
    "The set of XLA's options that the plan is made for, and the step predicted under."
    why_machine: str = ""
    "Why it is made for that; empty where somebody said so, and for the default."
    unpredicted: str = ""
    "Why there is no predicted step on a machine with a topology."
    tokens: float | None = None
    "What one step processes, on all devices, as whoever asked has said."
    suggestions: tuple[Suggestion, ...] = ()
    "What to change in the program, the best first, where that was asked for."
    tried: int = 0
    "How many changes were tried for that."

    @property
    def modules(self) -> ModuleTraffic:
        """What each module of the model communicates: the tree of modules, the whole program on top."""
        return by_module(self.collectives)

    @property
    def redundant_work(self) -> OpWork | None:
        """What one device computes beyond its share: the same as another one, or padding of uneven shards."""
        return None if self.needed_work is None else self.work - self.needed_work

    @property
    def seconds(self) -> float | None:
        """Of the predicted step; None without one."""
        return None if self.step is None else self.step.seconds

    @property
    def exposed_seconds(self) -> float | None:
        """In which a device waits for communication; None without a predicted step."""
        return None if self.step is None else self.step.exposed_seconds

    @property
    def compute_seconds(self) -> float | None:
        """In which a device computes; None without a predicted step."""
        return None if self.step is None else self.step.compute_seconds

    @property
    def communication_seconds(self) -> float | None:
        """That collectives take, one after the other, exposed or not; None without a predicted step."""
        return None if self.step is None else self.step.communication_seconds

    @property
    def peak_bytes(self) -> float:
        """The most memory that a device needs at one time."""
        return self.memory.peak

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the predicted step that `model_products` would take at the devices' peak; None
        where either is unknown."""
        if self.step is None or self.model_products is None or not self.step.seconds:
            return None
        machine = self.step.target.machine
        ideal = sum(flops / machine.peak(kind) for kind, flops in self.model_products.items())
        return ideal / self.mesh.size / self.step.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Of all devices in the predicted step; None where that or `tokens` is unknown."""
        return None if self.tokens is None or not self.seconds else self.tokens / self.seconds

    def perfetto(self) -> str:
        """The predicted step as a Chrome trace in JSON, which Perfetto shows: docs/report.md says of what.

        Raises MeshError without a predicted step.
        """
        if self.step is None:
            hint = "error: there is no predicted step, expected a machine with a topology, as in h100:1x1x8"
            raise MeshError(self.unpredicted or hint)
        return trace.chrome_trace(self.step)

    def table(self, by: By = "collective") -> str:
        """The report for people: equal collectives of one source line together, most bytes first, each with its reason, and what
        the modules send that send most; or all modules, or the lines of the user's source. Then totals, work and memory, then
        what deserves a look. Raises MeshError for rows of another kind."""
        return report_table(self, by)

    def remarks(self) -> tuple[str, ...]:
        """What deserves a look, a sentence each: what does not fit, is not partitioned, or could not be counted."""
        return tuple(remarks_on(self))

    def to_html(self, name: str = "program") -> str:
        """The report as a page: one file that needs no network (docs/report.md). `name` is what it calls the program."""
        from meshbridge.pages.report_page import report_page  # templates, which only pages need

        return report_page(json.loads(self.to_json()), name=name, remarks=self.remarks(), step=self.step)

    def _repr_html_(self) -> str:
        """What a notebook shows: the headlines, and the source lines that send most."""
        from meshbridge.pages.report_page import notebook_page

        return notebook_page(json.loads(self.to_json()), remarks=self.remarks())

    def to_json(self) -> str:
        """The report as docs/report.md describes it; collectives in program order."""
        return _json(self)


def partition_and_report(
    module: ir.Module, options: Options = DEFAULTS, *, tokens: float | None = None, on_stage: OnStage | None = None
) -> tuple[Report, list[Timing]]:
    """`partition_module`, and the report of what it did; the module is what it would be without. A step processes so many
    `tokens`.

    Raises MeshError with a located diagnostic, also for a form that says nothing of communication yet, and for tokens of which
    nothing follows.
    """
    if options.emit == "annotated":
        raise MeshError("error: a program in the form 'annotated' is not partitioned yet, there is nothing to report")
    needed: OpWork | None = None
    asked: dict[str, float] | None = None
    phases: Phases | None = None
    names: Names | None = None
    target = options.target
    if tokens is not None:
        _check_tokens(tokens, target)
    found: list[Report] = []

    def observe(stage: str, module: ir.Module) -> None:
        nonlocal needed, asked, phases, names
        if stage == "source":
            names = names_of(module)
        if stage == "legal":  # annotations would stand between a loop and its trip count
            phases = Phases.read(module)
            ops = list(executed(module, find_mesh(module), weigh=amount))
            needed, asked = work(ops), products(ops, once=True)
        if stage == "optimised":
            report = report_of(module, needed, target, phases=phases, names=names)
            report = replace(report, machine=options.machine, compiler_options=options.compiler_options)
            found.append(replace(report, model_products=asked, tokens=tokens))
            _forget_reasons(module)
        if on_stage is not None:
            on_stage(stage, module)

    timings = partition_module(module, replace(options, explain=True), on_stage=observe)
    if tokens is not None and found[0].unpredicted:
        raise MeshError(found[0].unpredicted)
    return found[0], timings


def _check_tokens(tokens: float, target: Target | None) -> None:
    if not isinstance(tokens, int | float) or not 0 < tokens < inf:
        raise MeshError(f"error: tokens is {tokens!r}, expected a positive number")
    if target is None:
        raise MeshError("error: tokens has no effect without a machine of a topology, as in v5p:4x4x4")


def report_of(
    module: ir.Module,
    needed: OpWork | None,
    target: Target | None = None,
    *,
    phases: Phases | None = None,
    names: Names | None = None,
) -> Report:
    """The report of a local program (stages 3 to 5), which before it was partitioned took `needed` work in all, and had these
    `phases` and `names`, if it has not its own. Its step is predicted on the devices of a `target`.

    Raises MeshError where that of a program that came partitioned cannot be."""
    step, unpredicted = _predicted(module, target, is_asked=needed is None)
    ops = list(executed(module))
    meshes = declared_meshes(module.body)
    mesh, main = mesh_or_single(module), main_function(module)
    weigh, names = wire_bytes_on(meshes), names or names_of(module)
    sending = list(executed(module, weigh=weigh))
    return Report(
        collectives=tuple(_collectives(module, sending, meshes, phases or Phases.read(module), step)),
        mesh=mesh,
        arguments=tuple(held(main, "arguments", mesh, names.arguments)),
        results=tuple(held(main, "results", mesh, names.results)),
        work=work(executed(module, weigh=amount)),
        needed_work=None if needed is None else needed / mesh.size,
        memory=memory(main),
        not_partitioned=tuple(NotPartitioned(title(op), location_of(op)) for op, _ in ops if GATHERED in op.attributes),
        unknown_loops=tuple(location_of(op) for op, _ in ops if is_unknown_loop(op)),
        unknown_branches=tuple(_choices(sending, weigh)),
        step=step,
        unpredicted=unpredicted,
    )


def _predicted(module: ir.Module, target: Target | None, *, is_asked: bool) -> tuple[PredictedStep | None, str]:
    """The step on a `target`, or why there is none. Raises MeshError instead if somebody asked for nothing else."""
    try:
        return None if target is None else predict(module, target), ""
    except MeshError as error:
        if is_asked:
            raise
        return None, str(error)


_STEP = ("seconds", "exposed_seconds", "compute_seconds", "communication_seconds", "mfu", "tokens_per_second", "peak_bytes")
"""What the JSON has of the predicted step."""

_TOTALS = ("total_bytes", "total_seconds")
"""What the JSON has of all executions of a collective."""

_SIDES = {"arguments": "arg_attrs", "results": "res_attrs"}


def _collectives(
    module: ir.Module, ops: Iterable[Execution], meshes: dict[str, Mesh], phases: Phases, step: PredictedStep | None
) -> Iterator[Collective]:
    times = {} if step is None else collective_times(module, step.target.machine, step.target)
    for op, _, _, collective in communicating(ops, meshes):
        seconds = times[op].seconds if op in times else None
        yield replace(collective, origins=origins_of(op, phases), seconds=seconds)


def held(main: ir.Operation, side: str, mesh: Mesh, names: Sequence[str]) -> Iterator[Held]:
    """How devices hold the `arguments` or `results` of a partitioned function; tokens are left out."""
    kind = function_type(main)
    types = kind.inputs if side == "arguments" else kind.results
    for type_, entry, name in zip(types, entries(main, _SIDES[side]), names, strict=True):
        if isinstance(type_, ir.RankedTensorType):  # not a token
            found = read_boundary(entry, type_)
            *split, unreduced = (tuple(mesh.labels(axes)) for axes in (*found.split, found.partial))
            yield Held(found.shape, tuple(type_.shape), str(type_.element_type), tuple(split), unreduced, name)


def _choices(ops: Iterable[Execution], weigh: Weigh) -> Iterator[Choice]:
    for op, _ in ops:
        weights = branch_weights(op, weigh)
        if len(set(weights)) > 1:
            yield Choice(op.name, weights.index(max(weights)), len(weights), location_of(op))


def _forget_reasons(module: ir.Module) -> None:
    """Locations go on into the lowered program, where reasons have no business."""
    for op in walk_all(module):
        op.location = without_reason(op.location)


def _json(report: Report) -> str:
    counts = report.count_by_kind()
    whole = {
        "schema": SCHEMA,
        "mesh": {
            "axes": dict(report.mesh.named_axes),
            "devices": report.mesh.size,
            "device_ids": report.mesh.device_ids or None,
        },
        **{side: list(map(asdict, getattr(report, side))) for side in _SIDES},
        "wire_bytes": report.wire_bytes,
        "by_kind": {
            kind: {"wire_bytes": wire, "collectives": counts[kind], "executions": _executions(report, kind)}
            for kind, wire in report.bytes_by_kind().items()
        },
        "collectives": [asdict(entry) | {key: getattr(entry, key) for key in _TOTALS} for entry in report.collectives],
        "modules": asdict(report.modules),
        "work": {
            "device": asdict(report.work),
            "needed": None if report.needed_work is None else asdict(report.needed_work),
            "redundant": None if report.redundant_work is None else asdict(report.redundant_work),
        },
        "memory": asdict(report.memory) | {"peak": report.memory.peak},
        "suggestions": [asdict(each) for each in report.suggestions],
        "tried": report.tried,
        "unpredicted": report.unpredicted,
        "planned_for": None if report.needed_work is None else {"machine": report.machine, "why": report.why_machine},
        "compiler_options": report.compiler_options,
        "machine": None if report.step is None else report.step.target.text,
        **{key: getattr(report, key) for key in _STEP},
        **{kind: list(map(asdict, getattr(report, kind))) for kind in ("not_partitioned", "unknown_loops", "unknown_branches")},
    }
    return json.dumps(whole, indent=2)


def _executions(report: Report, kind: str) -> int:
    return sum(collective.executions for collective in report.collectives if collective.kind == kind)
