"""The report of a partitioned program: its communication and the reasons for it, redundant work, memory and time."""

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
from meshbridge.cost.step import PredictedStep, predict_with_collectives
from meshbridge.dialect.boundary import read_boundary
from meshbridge.dialect.module_mesh import declared_meshes, find_mesh, mesh_or_single
from meshbridge.dialect.names import Names, names_of
from meshbridge.dialect.ops import GATHERED
from meshbridge.ir.locations import SourceLocation, location_of, without_reason
from meshbridge.ir.mlir import MeshError, display_name, entries, function_type, ir, main_function, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import Target
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import DEFAULTS, OnStage, Options, Timing
from meshbridge.reports.tables import By, remarks_on, report_table
from meshbridge.text import Tabular, counted, public, size_text, time_text

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotPartitioned:
    """An operation that runs replicated on gathered operands, because it has no sharding rule."""

    operation: str
    "Its name; a custom call's with its target: `stablehlo.custom_call @Qr`."
    location: SourceLocation


@dataclass(frozen=True)
class ShardedArray:
    """A sharded argument or result. Device number p of the mesh has the shard of its coordinates; if shards are uneven, the last
    ones end in padding."""

    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    element_type: str
    "In MLIR's spelling: `f32`."
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the mesh axes along which it is split, outer first."
    unreduced: tuple[str, ...]
    "The axes along which devices hold terms of a sum."
    name: str = ""
    "Its path in the tree that the function takes or returns: `params['head']`, `result[0]`; empty if it has no name."


@dataclass(frozen=True)
class CountedBranch:
    """A `case` or `if` of which the report counts the branch that sends most, numbered from 0."""

    operation: str
    branch: int
    branches: int
    location: SourceLocation


@dataclass(frozen=True)
class Suggestion:
    """A change of the program, with the figures of the changed program."""

    change: str
    "What to do: `shard params['head'] as P(None, \"model\") instead of P(None, None)`."
    arguments: tuple[str, ...]
    "The names of the arguments that it is about, `argument 3` for one without."
    results: tuple[str, ...]
    sharding: tuple[tuple[str, ...], ...] | None
    "Their new sharding, as `ShardedArray.sharding`; None if it is left to meshbridge, and for a constraint."
    constraint: SourceLocation | None
    "The line of the user's source with the constraint to remove."
    wire_bytes: float
    seconds: float | None
    "Of the predicted step, on a machine with a topology."
    peak_bytes: float


@public
@dataclass(frozen=True, repr=False)
class Report(Tabular, Communication):
    """The report of a partitioned program. Bytes and operations are those of one device and one run, which takes the most
    expensive branches: those that send most for bytes, those that compute most for work."""

    mesh: Mesh
    arguments: tuple[ShardedArray, ...]
    results: tuple[ShardedArray, ...]
    work: OpWork
    "The work of one device."
    needed_work: OpWork | None
    "The work of the program before it is partitioned, divided by the devices; None if it came partitioned."
    memory: Memory
    not_partitioned: tuple[NotPartitioned, ...]
    unknown_loops: tuple[SourceLocation, ...]
    "Loops without a known trip count: their bodies are counted once."
    unknown_branches: tuple[CountedBranch, ...] = ()
    "Branches of which any may be taken, and which do not send the same number of bytes."
    step: PredictedStep | None = None
    "The predicted step, on a machine with a topology."
    model_products: Mapping[str, float] | None = None
    """FLOPs of all products of the program before it was partitioned, by the element type of the operands, without
    rematerialised ones; None if it came partitioned."""
    machine: str = DEFAULTS.target.name
    "The machine that the plan is made for, unless the program came partitioned."
    compiler_options: OptionSet = "default"
    "The set of XLA's options of the plan and the predicted step."
    why_machine: str = ""
    "Why the plan is for this machine; empty if the user chose it, and for the default."
    unpredicted: str = ""
    "Why there is no predicted step on a machine with a topology."
    tokens: float | None = None
    "The tokens that one step processes on all devices, as given by the caller."
    suggestions: tuple[Suggestion, ...] = ()
    "Changes of the program, the best first, if they were requested."
    tried: int = 0
    "How many changes were tried for the suggestions."

    @property
    def headline(self) -> str:
        """What a device sends in one step and in how many collectives, and the predicted step."""
        sent = f"{size_text(self.wire_bytes)} on the wire per device and step, in {counted(self.executions, 'collective')}"
        return sent if self.step is None else f"{sent}; a step of {time_text(self.step.seconds)} on {self.step.target.text}"

    @property
    def modules(self) -> ModuleTraffic:
        """The traffic of each module of the model: the tree of modules, with the whole program as its root."""
        return by_module(self.collectives)

    @property
    def redundant_work(self) -> OpWork | None:
        """The work of one device beyond its share: replicated work, and padding of uneven shards."""
        return None if self.needed_work is None else self.work - self.needed_work

    @property
    def seconds(self) -> float | None:
        """The predicted step; None without one."""
        return None if self.step is None else self.step.seconds

    @property
    def exposed_seconds(self) -> float | None:
        """The seconds in which a device waits for communication; None without a predicted step."""
        return None if self.step is None else self.step.exposed_seconds

    @property
    def compute_seconds(self) -> float | None:
        """The seconds in which a device computes; None without a predicted step."""
        return None if self.step is None else self.step.compute_seconds

    @property
    def communication_seconds(self) -> float | None:
        """The seconds of all collectives, exposed or not; None without a predicted step."""
        return None if self.step is None else self.step.communication_seconds

    @property
    def peak_bytes(self) -> float:
        """The most memory that a device needs at one time."""
        return self.memory.peak

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the predicted step that `model_products` would take at the devices' peak; None
        if either is unknown."""
        if self.step is None or self.model_products is None or not self.step.seconds:
            return None
        machine = self.step.target.machine
        ideal = sum(flops / machine.peak(kind) for kind, flops in self.model_products.items())
        return ideal / self.mesh.size / self.step.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all devices in the predicted step; None if that or `tokens` is unknown."""
        return None if self.tokens is None or not self.seconds else self.tokens / self.seconds

    def perfetto(self) -> str:
        """The predicted step as a Chrome trace in JSON for Perfetto (docs/report.md).

        Raises MeshError without a predicted step.
        """
        if self.step is None:
            hint = "error: there is no predicted step, expected a machine with a topology, as in h100:1x1x8"
            raise MeshError(self.unpredicted or hint)
        return trace.chrome_trace(self.step)

    def table(self, by: By = "collective") -> str:
        """The report as text. By collective: equal collectives of one source line together, most bytes first, each with its
        reason, and the modules of most traffic. Or by module, or by source line. Totals, work, memory and remarks follow.

        Raises MeshError for another value of `by`."""
        return report_table(self, by)

    def remarks(self) -> tuple[str, ...]:
        """What deserves attention, one sentence each: what does not fit, is not partitioned, or could not be counted."""
        return tuple(remarks_on(self))

    def to_html(self, name: str = "program") -> str:
        """The report as an HTML page: one file that needs no network (docs/report.md). `name` is the title of the program."""
        from meshbridge.pages.report_page import report_page  # loads templates

        return report_page(json.loads(self.to_json()), name=name, remarks=self.remarks(), step=self.step)

    def _repr_html_(self) -> str:
        """The report in a notebook: the headlines, and the source lines that send most."""
        from meshbridge.pages.report_page import notebook_page

        return notebook_page(json.loads(self.to_json()), remarks=self.remarks())

    def to_json(self) -> str:
        """The report as docs/report-json.md describes it; collectives in program order."""
        return _json(self)


def partition_and_report(
    module: ir.Module, options: Options = DEFAULTS, *, tokens: float | None = None, on_stage: OnStage | None = None
) -> tuple[Report, list[Timing]]:
    """Partitions `module` like `partition_module`, and reports on it. A step processes `tokens` tokens.

    Raises MeshError with a located diagnostic, also for the form `annotated`, which does not communicate yet, and for `tokens`
    without a predicted step.
    """
    if options.emit == "annotated":
        raise MeshError("error: a program in the form 'annotated' is not partitioned yet, there is nothing to report")
    needed: OpWork | None = None
    model_products: dict[str, float] | None = None
    phases: Phases | None = None
    names: Names | None = None
    target = options.target.devices
    if tokens is not None:
        _check_tokens(tokens, target)
    reports: list[Report] = []

    def observe(stage: str, module: ir.Module) -> None:
        nonlocal needed, model_products, phases, names
        if stage == "source":
            names = names_of(module)
        if stage == "legal":  # annotations would stand between a loop and its trip count
            phases = Phases.read(module)
            ops = list(executed(module, find_mesh(module), weigh=amount))
            needed, model_products = work(ops), products(ops, once=True)
        if stage == "optimised":
            report = report_of(module, needed, target, phases=phases, names=names)
            report = replace(report, machine=options.target.name, compiler_options=options.target.compiler_options)
            reports.append(replace(report, model_products=model_products, tokens=tokens))
            _strip_reasons(module)
        if on_stage is not None:
            on_stage(stage, module)

    timings = partition_module(module, replace(options, explain=True), on_stage=observe)
    if tokens is not None and reports[0].unpredicted:
        raise MeshError(reports[0].unpredicted)
    return reports[0], timings


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
    """The report of a local program (stages 3 to 5). `needed` is the work of the program before it was partitioned; `phases` and
    `names` are used if the program has none itself. The step is predicted on a `target`.

    Raises MeshError if the step of a program that came partitioned cannot be predicted."""
    step, seconds, unpredicted = _predict(module, target, is_asked=needed is None)
    ops = list(executed(module))
    meshes = declared_meshes(module.body)
    mesh, main = mesh_or_single(module), main_function(module)
    weigh, names = wire_bytes_on(meshes), names or names_of(module)
    sending = list(executed(module, weigh=weigh))
    return Report(
        collectives=tuple(_collectives(sending, meshes, phases or Phases.read(module), seconds)),
        mesh=mesh,
        arguments=tuple(sharded_arrays(main, "arguments", mesh, names.arguments)),
        results=tuple(sharded_arrays(main, "results", mesh, names.results)),
        work=work(executed(module, weigh=amount)),
        needed_work=None if needed is None else needed / mesh.size,
        memory=memory(main),
        not_partitioned=tuple(NotPartitioned(display_name(op), location_of(op)) for op, _ in ops if GATHERED in op.attributes),
        unknown_loops=tuple(location_of(op) for op, _ in ops if is_unknown_loop(op)),
        unknown_branches=tuple(_counted_branches(sending, weigh)),
        step=step,
        unpredicted=unpredicted,
    )


def _predict(
    module: ir.Module, target: Target | None, *, is_asked: bool
) -> tuple[PredictedStep | None, Mapping[ir.Operation, float], str]:
    """The step on a `target` and the seconds of each collective, or the reason that there is none. Raises MeshError with the
    reason if `is_asked`."""
    if target is None:
        return None, {}, ""
    try:
        return *predict_with_collectives(module, target), ""
    except MeshError as error:
        if is_asked:
            raise
        return None, {}, str(error)


_STEP = ("seconds", "exposed_seconds", "compute_seconds", "communication_seconds", "mfu", "tokens_per_second", "peak_bytes")
"""The keys of the predicted step in the JSON."""

_TOTALS = ("total_bytes", "total_seconds")
"""The keys of a collective's totals in the JSON."""

_SIDES = {"arguments": "arg_attrs", "results": "res_attrs"}


def _collectives(
    ops: Iterable[Execution], meshes: dict[str, Mesh], phases: Phases, seconds: Mapping[ir.Operation, float]
) -> Iterator[Collective]:
    for op, _, _, collective in communicating(ops, meshes):
        yield replace(collective, origins=origins_of(op, phases), seconds=seconds.get(op))


def sharded_arrays(main: ir.Operation, side: str, mesh: Mesh, names: Sequence[str]) -> Iterator[ShardedArray]:
    """The sharded `arguments` or `results` of a partitioned function, without tokens."""
    kind = function_type(main)
    types = kind.inputs if side == "arguments" else kind.results
    for type_, entry, name in zip(types, entries(main, _SIDES[side]), names, strict=True):
        if isinstance(type_, ir.RankedTensorType):  # not a token
            boundary = read_boundary(entry, type_)
            *split, unreduced = (tuple(mesh.labels(axes)) for axes in (*boundary.split, boundary.partial))
            yield ShardedArray(boundary.shape, tuple(type_.shape), str(type_.element_type), tuple(split), unreduced, name)


def _counted_branches(ops: Iterable[Execution], weigh: Weigh) -> Iterator[CountedBranch]:
    for op, _ in ops:
        weights = branch_weights(op, weigh)
        if len(set(weights)) > 1:
            yield CountedBranch(op.name, weights.index(max(weights)), len(weights), location_of(op))


def _strip_reasons(module: ir.Module) -> None:
    """Removes the reasons from locations, which the lowered program keeps."""
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
        "suggestions": [asdict(suggestion) for suggestion in report.suggestions],
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
