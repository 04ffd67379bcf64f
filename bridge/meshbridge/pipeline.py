"""The stages from a sharded program to one with explicit collectives, the passes of each stage, and the checks in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from meshbridge.collectives.broadcast_in_loops import BroadcastInLoops
from meshbridge.collectives.canonicalize import Simplify
from meshbridge.collectives.delay_slices import DelaySlices
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.collectives.raise_collectives import RaiseCollectives
from meshbridge.collectives.reduction_move_up import ReductionMoveUp
from meshbridge.collectives.update_whole import UpdateWhole
from meshbridge.cost.objective import objective
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect import verifier
from meshbridge.ir import mlir
from meshbridge.ir.garbage import rare_collections
from meshbridge.ir.groups import Form, Spelling
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.passes import Analyses, Pass, Recomputable
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.legalize.legalize import Legalize
from meshbridge.lowering.largest_as_floats import LargestAsFloats
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.lowering.plain_stablehlo import PlainStablehlo, check_version
from meshbridge.lowering.wrap_local import WrapLocal
from meshbridge.machines.compile_target import DEFAULT_TARGET, PARTS, CompileTarget
from meshbridge.machines.machine import Machine
from meshbridge.overlap.attention.delay_scaling import DelayScaling
from meshbridge.overlap.attention.ring_attention import RingAttention
from meshbridge.overlap.chunking.rows_in_pieces import RowsInPieces
from meshbridge.overlap.loops.prefetch_gathers import HIDDEN_ASIDE, PrefetchGathers
from meshbridge.overlap.matmul.collective_matmul import CollectiveMatmul
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization, Resharding
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.read.unite_meshes import UniteMeshes
from meshbridge.resharding import Objective
from meshbridge.text import did_you_mean

LEGALIZE: tuple[Pass, ...] = (
    InlineCalls(),
    Legalize(),
)

Emit = Literal["annotated", "mesh", "local", "exported", "shard_map"]
"""The forms of the result."""

Collectives = Literal["on", "off"]
"""Whether collectives are optimised, and overlapped with computation."""

Inside = Literal["open", "closed"]
"""Whether values inside a program may be split along more axes than their constraints name."""


@dataclass(frozen=True)
class Options:
    """How to partition a program. Raises MeshError for an invalid value."""

    emit: Emit = "exported"
    """The form: decisions as annotations, one device's program on the mesh dialect, lowered for PJRT or for JAX, or Python below
    `jax.shard_map`, for which the pipeline makes one device's program with a reason for each collective."""
    resharding: Resharding = "cheapest"
    "The resharding plans: the cheapest by bytes and number of collectives, or the fewest bytes in any number."
    target: CompileTarget = DEFAULT_TARGET
    """The target of the plan, which minimises `bytes` on the wire, these and the launches of collectives (`neutral`), or time on
    a device, whose topology has the devices of the mesh (docs/planning.md).

    Under the `best` compiler options more collectives overlap with kernels; they must be set when the plan is compiled. Of plans
    within the memory limit, the one under the lowest price of memory is taken. Arguments, results and temporaries count
    (docs/report.md). The default limit is the memory of the machine's device, which only warns if nothing fits."""
    collectives: Collectives = "on"
    inside: Inside = "open"
    """With a topology of a device whose file has `refines_constraints`: whether values inside may be split along more axes than
    their constraints name, if the predicted step gets shorter. Arguments and results are split as written."""
    replica_groups: Spelling = "auto"
    "The form of device groups: device numbers, mesh axes, or `auto`: mesh axes on more than `DENSE_DEVICES`."
    explain: bool = False
    "Whether the location of every collective contains its reason."
    stablehlo_version: str | None = None
    "With the form `local`: write plain StableHLO ops only, in this version."
    ops: tuple[str, ...] = ()
    "With a version: the names of the permitted ops; empty for all."

    def __post_init__(self) -> None:
        for name, choices in option_choices().items():
            if self.written(name) not in choices:
                option = name.replace("_", "-")
                found = getattr(self, name)
                near = did_you_mean(str(found), choices)
                raise MeshError(f"error: {option} is {found!r}, expected one of {', '.join(choices)}{near}")
        self._check_memory_limit(objective(self.target))
        self.target.check_layout()
        if self.stablehlo_version is None:
            if self.ops:
                raise MeshError("error: ops has no effect without stablehlo-version")
            return
        check_version(self.stablehlo_version)
        if self.emit != "local":
            raise MeshError(f"error: stablehlo-version has no effect on the form '{self.emit}', expected the form 'local'")
        if self.replica_groups == "mesh-axes":
            raise MeshError(
                "error: replica-groups is 'mesh-axes', which has no effect with stablehlo-version: groups are lists there"
            )

    def _check_memory_limit(self, weights: Objective) -> None:
        if self.target.written_limit == inf:
            return
        if not weights.memory:
            raise MeshError(f"error: memory-limit has no effect on machine '{self.target.name}', for which memory has no price")
        if self.emit == "annotated":
            raise MeshError("error: memory-limit has no effect on the form 'annotated', which is not partitioned yet")

    @classmethod
    def of(cls, **options: Any) -> Options:
        """Options as users write them: `machine`, `layout`, `compiler_options` and `memory_limit` like `CompileTarget.of`, others
        by the names of the fields. Raises MeshError."""
        return cls().but(**options)

    def but(self, **changed: Any) -> Options:
        """A copy with changed options, written as for `of`. Raises MeshError."""
        parts = {name: changed.pop(name) for name in PARTS if name in changed}
        return replace(self, target=self.target.but(**parts) if parts else self.target, **changed)

    def limited(self, memory_limit: float | None) -> Options:
        """A copy with another memory limit, in bytes; infinite for no limit, None for that of the machine."""
        return replace(self, target=replace(self.target, memory_limit=memory_limit))

    def written(self, name: str) -> Any:
        """The value of an option by the name that users write."""
        return self.target.written(name) if name in PARTS else getattr(self, name)

    def all_written(self) -> dict[str, Any]:
        """The values of all options by the names that users write."""
        names = (*PARTS, *(field.name for field in fields(self) if field.name != "target"))
        return {name: self.written(name) for name in names}


@cache
def option_choices() -> dict[str, tuple[str, ...]]:
    """The values of those Options, and of their target's fields, with a fixed set of values."""
    kinds = get_type_hints(Options) | get_type_hints(CompileTarget)
    return {name: get_args(kind) for name, kind in kinds.items() if get_origin(kind) is Literal}


DEFAULTS = Options()


@dataclass(frozen=True)
class Stage:
    """A named state of the program, and the passes that lead to it from the stage before."""

    name: str
    passes: tuple[Pass, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Stages in order."""

    stages: tuple[Stage, ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of all stages, in order."""
        return tuple(step for stage in self.stages for step in stage.passes)

    def until(self, name: str) -> Pipeline:
        """The stages up to the one of that name."""
        return Pipeline(self.stages[: self._index(name) + 1])

    def starting_at(self, name: str) -> Pipeline:
        """The stages after the one of that name."""
        return Pipeline(self.stages[self._index(name) + 1 :])

    def replacing(self, name: str, *passes: Pass) -> Pipeline:
        """The same stages, with other passes for the one of that name."""
        return Pipeline(tuple(replace(stage, passes=passes) if stage.name == name else stage for stage in self.stages))

    def _index(self, name: str) -> int:
        return [stage.name for stage in self.stages].index(name)


class PlanVariant(NamedTuple):
    """How a program is planned, if several plans are compared."""

    link_prices: bool = True
    "With a topology, whether bytes are priced by the links on which they are sent; if not, all links cost the same."
    memory_factor: float = 1.0
    "A factor on the machine's price of memory."
    hides: bool = False
    "Whether collectives that can overlap with products cost less."
    keeps_queries: bool = False
    "Whether attention keeps the annotated split of its queries, so that keys and values travel around the devices."
    inside_open: bool = False
    "Whether values inside may be split along more axes than their constraints say."


def build(options: Options = DEFAULTS, variant: PlanVariant | None = None) -> Pipeline:
    """The stages from any source to the form of the options, planned in a variant; the default one has no special prices."""
    variant = variant or PlanVariant()
    target, machine = options.target, options.target.machine
    priced = target if variant.link_prices else target.without_topology
    combine = 0 if machine is not None and machine.combines_collectives else OptimizeCollectives.combine
    move_up = ReductionMoveUp(transposes=machine is None or not machine.copies_to_reorder)
    after_combining = (
        move_up,
        BroadcastInLoops(),
        DelaySlices(),
        *(() if machine is None else (*_updates(machine), *_overlap(target, machine))),
    )
    optimize = OptimizeCollectives(combine, target)
    raised, shorten = (
        ((RaiseCollectives(),), (optimize, *after_combining)) if options.collectives == "on" else ((), (BroadcastInLoops(),))
    )
    decide = ShardingRefinement(
        target=priced,
        memory_factor=variant.memory_factor,
        hides=variant.hides,
        keep_queries=variant.keeps_queries,
        inside_open=variant.inside_open,
        annotate=options.emit == "annotated",
    )
    stages = [
        Stage("source"),
        Stage("annotated", (ImportShardings(), UniteMeshes())),
        Stage("legal", LEGALIZE),
        Stage("decided", (decide,)),
    ]
    if options.emit != "annotated":
        partition = MeshSpmdization(
            boundary=True,
            resharding=options.resharding,
            target=priced,
            explain=options.explain or options.emit == "shard_map",
        )
        stages += [
            Stage("partitioned", (partition,)),
            # Equal gathers of one value for several readers are merged, including gathers of the program's own.
            Stage("optimised", (*raised, Simplify(), *shorten)),
        ]
    if options.emit in get_args(Form):
        spelling = "dense" if options.stablehlo_version else options.replica_groups
        lower = LowerCollectives(form=cast(Form, options.emit), replica_groups=spelling, target=target)
        stages.append(Stage("lowered", (LargestAsFloats(), lower, *_finish(options))))
    return Pipeline(tuple(stages))


def _updates(machine: Machine) -> tuple[Pass, ...]:
    """Gathers a term of an update instead of the updated argument, on machines that copy such a gather."""
    update = UpdateWhole(machine.aliased_gather_copy_bytes)
    return (update,) if update.least < inf else ()


def _overlap(target: CompileTarget, machine: Machine) -> tuple[Pass, ...]:
    """The passes that overlap collectives with computation on the machine of the target."""
    ring = RingAttention(target, faster=machine.prefers_ring_attention)
    attention = (ring,) if machine.async_permute else ()
    ahead: dict[str, tuple[Pass, ...]] = {
        "none": (),
        "offloaded": (PrefetchGathers(again=True, largest=HIDDEN_ASIDE),),
        "all": (PrefetchGathers(target=target),),
    }
    prefetch = ahead[machine.collective_pipelining]
    matmul = CollectiveMatmul(target, whole=target.compiler_options == "best")
    pieces = (RowsInPieces(target),) if machine.async_reductions else ()  # else nothing overlaps with the pieces of a reduction
    divide = (*pieces, matmul) if machine.collective_matmul else ()  # gathers that are prefetched need not be divided
    together = (DelayScaling(target),) if machine.combines_collectives else ()
    keep = (KeepSchedule(target),) if machine.late_scheduled else ()
    return (*together, *attention, *prefetch, *divide, *keep)


def _finish(options: Options) -> tuple[Pass, ...]:
    """The passes after the lowering, for the consumer of the program."""
    if options.stablehlo_version is not None:
        return (PlainStablehlo(options.stablehlo_version, ",".join(options.ops)),)
    return (WrapLocal(),) if options.emit == "exported" else ()


@dataclass(frozen=True)
class Timing:
    """The time of one pass, in seconds, and of the verification after it."""

    name: str
    seconds: float
    verify_seconds: float


Verify = Literal["each", "last", "dialect", "none"]
"""The passes after which a module is verified; `dialect`: after the last, by the mesh dialect's verifier alone."""

VERIFIED: dict[str, Verify] = {"annotated": "dialect", "partitioned": "dialect"}
"""Stages that are verified besides the last one: in the first, users' annotations are in the dialect's terms for the first time,
and in the second every collective is new. Verifying takes as long as a pass with little work; tests verify every stage in
full."""

OnPass = Callable[[Pass, ir.Module], None]
OnStage = Callable[[str, ir.Module], None]


def verify(module: ir.Module) -> None:
    """Verifies `module` with MLIR's verifier and the mesh dialect's.

    Raises MeshError with a located diagnostic.
    """
    mlir.verify(module)
    verifier.verify(module)


@rare_collections()
def run(
    steps: Sequence[Pass],
    module: ir.Module,
    *,
    verified: Verify = "each",
    analyses: Analyses | None = None,
    on_pass: OnPass | None = None,
) -> list[Timing]:
    """Runs `steps` in order, verifying after each, after the last or not at all; returns their timings.

    `analyses` are those of earlier passes of the run.

    Raises RuntimeError if a pass changes the module and keeps an analysis of it that cannot be made again.
    """
    timings: list[Timing] = []
    analyses = {} if analyses is None else analyses
    unverified = False
    for step in steps:
        started, before = time.perf_counter(), dict(analyses)
        changed = step.run_with(module, analyses) is not False
        if changed:
            for kind in [kind for kind in analyses if issubclass(kind, Recomputable)]:
                del analyses[kind]
            if stale := [kind.__name__ for kind in analyses if analyses[kind] is before.get(kind)]:
                raise RuntimeError(f"{step.name} changes a program but keeps the analyses {', '.join(stale)}")
        done = time.perf_counter()
        unverified |= changed
        if unverified and (verified == "each" or (verified != "none" and step is steps[-1])):
            (verifier.verify if verified == "dialect" else verify)(module)
            unverified = False
        timings.append(Timing(step.name, done - started, time.perf_counter() - done))
        if on_pass is not None:
            on_pass(step, module)
    return timings
