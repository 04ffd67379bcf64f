"""From a sharded program to one with explicit collectives: the stages, the passes of each, and what is checked in between."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from math import inf
from threading import RLock
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from meshbridge.collectives.broadcast_in_loops import BroadcastInLoops
from meshbridge.collectives.canonicalize import Simplify
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.collectives.reduction_move_up import ReductionMoveUp
from meshbridge.collectives.update_whole import UpdateWhole
from meshbridge.cost.memory import memory
from meshbridge.cost.objective import (
    DEFAULT,
    UNNAMED,
    arranges,
    combines,
    copied_bytes,
    device,
    divides,
    objective,
    opens,
    prefetches,
    puts_off,
    reduces_beside,
    rings,
    shifts,
)
from meshbridge.cost.ways import FACTORS, UNLIMITED, Plan, Way, best_plan, bytes_in, misfit
from meshbridge.decide.decisions import Decisions
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect import verifier
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.ir import mlir
from meshbridge.ir.errors import MemoryWarning
from meshbridge.ir.garbage import rare_collections
from meshbridge.ir.groups import Form, Spelling
from meshbridge.ir.mlir import MeshError, OpError, ir, main_function
from meshbridge.ir.passes import PASSES, Known, Pass
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.legalize.legalize import Legalize
from meshbridge.lowering.largest_as_floats import LargestAsFloats
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.lowering.plain_stablehlo import PlainStablehlo, check_version
from meshbridge.lowering.replicas import find_replicas
from meshbridge.lowering.wrap_local import WrapLocal
from meshbridge.machines.layout import place
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import Target, has_topology, of_machine
from meshbridge.overlap.attention.delay_scaling import DelayScaling
from meshbridge.overlap.attention.ring_attention import RingAttention
from meshbridge.overlap.chunking.rows_in_pieces import RowsInPieces
from meshbridge.overlap.loops.prefetch_gathers import HIDDEN_ASIDE, PrefetchGathers
from meshbridge.overlap.matmul.collective_matmul import CollectiveMatmul
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule
from meshbridge.partition.mesh_spmdization import MeshSpmdization, Resharding
from meshbridge.read.formats import copy_module, replace_content
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.read.unite_meshes import UniteMeshes
from meshbridge.resharding import Objective

LOG = logging.getLogger("meshbridge")
"""Says when a program is partitioned (INFO), and when each of its stages is reached (DEBUG), with seconds."""

LEGALIZE: tuple[Pass, ...] = (
    InlineCalls(),
    Legalize(),
)

Emit = Literal["annotated", "mesh", "local", "exported", "shard_map"]
"""The forms in which a program can be had."""

Collectives = Literal["on", "off"]
"""Whether collectives are made fewer and smaller, and hidden behind computation."""

Inside = Literal["open", "closed"]
"""Whether values inside a program may be split along more axes than the constraints on them name."""


@dataclass(frozen=True)
class Options:
    """How a program is partitioned. Raises MeshError for a value that an option cannot have."""

    emit: Emit = "exported"
    """The form: with decisions as annotations, as one device's program on the mesh dialect, lowered, for PJRT or for JAX, or as
    Python below `jax.shard_map`, of which the pipeline makes one device's program with a reason for each collective."""
    resharding: Resharding = "cheapest"
    "Which resharding plans to take: the cheapest by bytes and number of collectives, or the fewest bytes whatever the number."
    machine: str = DEFAULT
    """What is minimised: `bytes` on the wire, those and the launches of collectives (`neutral`), or time on a device of this
    name, or in this file (docs/targets.md), of which a topology, as in `h100:1x1x8`, has the devices of the mesh."""
    layout: str = ""
    """With a topology: which links the axes of the mesh are on, as in `data=dcn,model=ici` (docs/machines.md). Axes that it does
    not name take what is left."""
    compiler_options: OptionSet = "default"
    """Under which of XLA's options the step will be compiled: its defaults, or those that the machine's file names beside them,
    under which more collectives run beside kernels. The plan makes use of that; whoever compiles it has to set the options."""
    memory_limit: float | str | None = None
    """The most memory that the program may need on a device, in bytes or as in `80GB`: of plans that need no more, the one under
    the least price of memory is taken. What is counted are arguments, results and temporaries (docs/report.md). By default what
    a device of the machine has, which only warns where nothing fits; `none` for no limit."""
    collectives: Collectives = "on"
    inside: Inside = "open"
    """With a topology of a device whose file has `opens`: whether values inside may be split along more axes than the constraints
    on them name, where that makes the predicted step shorter. Arguments and results are split as is written."""
    replica_groups: Spelling = "auto"
    "How device groups are written: device numbers, mesh axes, or `auto`: mesh axes on more than `DENSE_DEVICES`."
    explain: bool = False
    "Whether the location of every collective says why it is there."
    stablehlo_version: str | None = None
    "With the form `local`: the version of StableHLO in which it is written, of which nothing but plain ops is left."
    ops: tuple[str, ...] = ()
    "With a version: the names of the ops that it may have; empty for all."

    def __post_init__(self) -> None:
        for name, choices in option_choices().items():
            if getattr(self, name) not in choices:
                option = name.replace("_", "-")
                raise MeshError(f"error: {option} is {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        self._check_memory_limit(objective(self.machine))
        if self.target is None and self.layout:
            raise MeshError("error: layout has no effect without a machine of a topology, as in v5p:4x4x4")
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
        if self.written_limit == inf:
            return
        if not weights.memory:
            raise MeshError(f"error: memory-limit has no effect on machine '{self.machine}', for which memory has no price")
        if self.emit == "annotated":
            raise MeshError("error: memory-limit has no effect on the form 'annotated', which is not partitioned yet")

    @property
    def written_limit(self) -> float:
        """The limit of memory that somebody has written, in bytes; infinite where nobody has. Raises MeshError for no size."""
        return inf if self.memory_limit in (None, UNLIMITED) else bytes_in(self.memory_limit)

    @property
    def implied_limit(self) -> float:
        """The memory of a device of the machine, in bytes, where nobody has written a limit; infinite where it is not known."""
        if self.memory_limit is not None or self.machine in UNNAMED:
            return inf
        return float(device(self.machine).memory_bytes)

    @property
    def target(self) -> Target | None:
        """The devices that `machine` gives a topology of."""
        return of_machine(self.machine, self.layout, self.compiler_options) if has_topology(self.machine) else None


@cache
def option_choices() -> dict[str, tuple[str, ...]]:
    """The values that those of the Options can have which have no others."""
    kinds = get_type_hints(Options)
    return {name: get_args(kind) for name, kind in kinds.items() if get_origin(kind) is Literal}


DEFAULTS = Options()


@dataclass(frozen=True)
class Stage:
    """A state of the program that has a name, and the passes that lead to it from the stage before."""

    name: str
    passes: tuple[Pass, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order in which a program passes through them."""

    stages: tuple[Stage, ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of all stages, in order."""
        return tuple(step for stage in self.stages for step in stage.passes)

    def until(self, name: str) -> Pipeline:
        """The stages up to the one of that name."""
        return Pipeline(self.stages[: self._index(name) + 1])

    def starting_at(self, name: str) -> Pipeline:
        """The stages that follow for a program which is at the stage of that name."""
        return Pipeline(self.stages[self._index(name) + 1 :])

    def replacing(self, name: str, *passes: Pass) -> Pipeline:
        """The same stages, of which the one of that name is reached by other passes."""
        return Pipeline(tuple(replace(stage, passes=passes) if stage.name == name else stage for stage in self.stages))

    def _index(self, name: str) -> int:
        return [stage.name for stage in self.stages].index(name)


def build(options: Options = DEFAULTS, way: Way | None = None) -> Pipeline:
    """The stages from any source to the form that the options name, planned in some way: that of the options."""
    way = way or Way(options.machine)
    combine = 0 if combines(options.machine) else OptimizeCollectives.combine
    optimize = OptimizeCollectives(combine, machine=options.machine, layout=options.layout)
    update = UpdateWhole(copied_bytes(options.machine))
    move_up = ReductionMoveUp(transposes=not arranges(options.machine))
    behind = (move_up, BroadcastInLoops(), *((update,) if update.least < inf else ()), *_overlap(options))
    shorten = (optimize, *behind) if options.collectives == "on" else (BroadcastInLoops(),)
    decide = ShardingRefinement(
        machine=way.machine,
        layout=options.layout,
        memory_factor=way.memory_factor,
        compiler_options=options.compiler_options,
        hides=way.hides,
        keep_queries=way.keeps_queries,
        inside_open=way.inside_open,
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
            machine=way.machine,
            layout=options.layout,
            explain=options.explain or options.emit == "shard_map",
        )
        stages += [
            Stage("partitioned", (partition,)),
            # Gathers of one value that several readers wanted become one.
            Stage("optimised", (Simplify(), *shorten)),
        ]
    if options.emit in get_args(Form):
        spelling = "dense" if options.stablehlo_version else options.replica_groups
        lower = LowerCollectives(form=cast(Form, options.emit), replica_groups=spelling, machine=options.machine)
        stages.append(Stage("lowered", (LargestAsFloats(), lower, *_finish(options))))
    return Pipeline(tuple(stages))


def _overlap(options: Options) -> tuple[Pass, ...]:
    """The passes that hide collectives behind computation on the machine."""
    under = options.machine, options.compiler_options
    limit = 0.0 if options.written_limit == inf else options.written_limit
    ring = RingAttention(options.machine, options.layout, options.compiler_options, limit, faster=rings(*under))
    attention = (ring,) if shifts(*under) else ()
    ahead: dict[str, tuple[Pass, ...]] = {
        "none": (),
        "aside": (PrefetchGathers(again=True, largest=HIDDEN_ASIDE),),
        "all": (PrefetchGathers(),),
    }
    prefetch = ahead[prefetches(*under)]
    whole = options.compiler_options == "best"
    matmul = CollectiveMatmul(options.machine, options.layout, options.compiler_options, whole=whole)
    rows = RowsInPieces(options.machine, options.layout, options.compiler_options)
    pieces = (rows,) if reduces_beside(*under) else ()  # else nothing hides the pieces of what is reduced
    divide = (*pieces, matmul) if divides(*under) else ()  # what is gathered ahead need not be divided
    together = (DelayScaling(*under),) if combines(options.machine) else ()
    keep = (KeepSchedule(options.machine, options.layout, options.compiler_options),) if puts_off(*under) else ()
    return (*together, *attention, *prefetch, *divide, *keep)


def _finish(options: Options) -> tuple[Pass, ...]:
    """The passes behind the lowering, for whoever reads the program."""
    if options.stablehlo_version is not None:
        return (PlainStablehlo(options.stablehlo_version, ",".join(options.ops)),)
    return (WrapLocal(),) if options.emit == "exported" else ()


@dataclass(frozen=True)
class Timing:
    """How long one pass took, in seconds, and the verification after it."""

    name: str
    seconds: float
    verify_seconds: float


PASSES_IN = ("read", "legalize", "decide", "partition", "collectives", "overlap", "lowering", "upstream")
"""The folders that hold passes."""

Verify = Literal["each", "last", "dialect", "none"]
"""After which passes of several a module is verified; `dialect`: after the last, by the mesh dialect's verifier alone."""

VERIFIED: dict[str, Verify] = {"annotated": "dialect", "partitioned": "dialect"}
"""Stages that are verified once they are reached, beside the last one: what users wrote is in the dialect's terms for the first
time, and every collective is new. Verifying costs as much as a pass that has little to do; tests verify every stage in full."""

OnPass = Callable[[Pass, ir.Module], None]
OnStage = Callable[[str, ir.Module], None]


@cache
def registered_passes() -> dict[str, type[Pass]]:
    """Every pass by name: each file of a folder of PASSES_IN registers its own."""
    for folder in PASSES_IN:
        package = importlib.import_module(f"meshbridge.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(PASSES.items()))


@cache
def passes_by_any_name() -> dict[str, type[Pass]]:
    """Every pass by its name and by those that LLVM has for it."""
    passes = registered_passes()
    return {other: step for step in passes.values() for other in step.also} | passes


_partitioning = RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets other threads wait: the warnings of a plan are looked through, which Python catches for all threads."""
    with _partitioning:
        yield


@one_at_a_time()
@rare_collections()
def partition_module(
    module: ir.Module,
    options: Options = DEFAULTS,
    *,
    on_pass: OnPass | None = None,
    on_stage: OnStage | None = None,
) -> list[Timing]:
    """Partitions `module` in place as far as `options.emit` says, and says how long each pass took; where plans are compared, for
    a topology or a limit of memory, the passes of all of them.

    A module that is partitioned already goes on from there. It is verified, and so are the stages of VERIFIED and what comes out.
    `on_pass` sees the module after each pass, `on_stage` after each stage, whose name it is told. Of plans that are
    compared, `on_pass` sees all, and `on_stage` the one that is taken, once it is optimised.
    Threads wait for each other. Raises MeshError with a located diagnostic, also where a mesh does not fit the machine, or a plan
    the limit of memory.
    """
    stages = build(options)
    if is_partitioned(module):
        verify(module)
        _refuse_partitioned(module, options)
        stages = stages.starting_at("partitioned")
    timings: list[Timing] = []
    known: Known = {}
    legal: ir.Module | None = None
    waiting = deque(stages.stages)
    began = time.perf_counter()
    while waiting:
        stage, stage_began = waiting.popleft(), time.perf_counter()
        verified = VERIFIED.get(stage.name, "none") if waiting else "last"
        timings += run(stage.passes, module, verified=verified, known=known, on_pass=on_pass)
        if legal is not None and stage.name == "optimised":
            fitting = _fitting(module, legal, options, timings, on_pass)
            if fitting is not None:
                replace_content(module, fitting.module)
        if stage.name == "annotated" and options.target is not None and (mesh := find_mesh(module)) is not None:
            place(mesh, options.target)
        if on_stage is not None:
            on_stage(stage.name, module)
        LOG.debug("stage '%s' is reached after %.3f s", stage.name, time.perf_counter() - stage_began)
        if stage.name == "legal" and options.target is None and options.emit != "annotated" and options.implied_limit < inf:
            legal = copy_module(module)
        if stage.name == "legal" and (options.target is not None or options.written_limit < inf):
            plan = _best_plan(module, options, timings, on_pass)
            LOG.debug("plans are compared after %.3f s, of them is taken %s", time.perf_counter() - stage_began, plan.way)
            waiting = deque(build(options, plan.way).starting_at("legal").stages)
            if options.emit != "annotated":
                replace_content(module, plan.module)
                waiting = deque(stages.starting_at("optimised").stages)
                (verifier.verify if waiting else verify)(module)
                if on_stage is not None:
                    on_stage("optimised", module)
    took = time.perf_counter() - began
    LOG.info("a program is partitioned to the form '%s' for machine '%s' in %.3f s", options.emit, options.machine, took)
    return timings


def _best_plan(module: ir.Module, options: Options, timings: list[Timing], on_pass: OnPass | None) -> Plan:
    """The best plan of a legal module. With a topology it is sought as if all links were alike, by prices of links, which goes
    wrong where the plan that they promise is not the one that follows, and with what can run beside products costing less; with
    queries kept for rings, and with constraints inside as the least that is split. Adds to the `timings`, and warns of what is
    to be said of that plan. Raises MeshError where nothing keeps the limit of memory that somebody has written."""
    target, said, seen = options.target, dict[Way, list[warnings.WarningMessage]](), set[bytes]()
    ways = [Way(options.machine)]
    if target is not None:
        ways = [Way(target.device), Way(options.machine), Way(options.machine, hides=True)]
        ways += (*ring_ways(options), *opened(ways, options))

    def planned(way: Way) -> ir.Module | None:
        copy = copy_module(module)
        with warnings.catch_warnings(record=True) as said[way]:
            warnings.simplefilter("always")
            in_mesh = replace(options, emit="mesh", stablehlo_version=None, ops=())
            return copy if plan_in(copy, in_mesh, way, timings, seen=seen, on_pass=on_pass) else None

    plan = best_plan(ways, target, options.written_limit, planned)
    fitting = _fitting(plan.module, module, options, timings, on_pass)
    if fitting is not None:
        return fitting
    for each in said[plan.way]:
        warnings.warn(each.message, stacklevel=2)
    return plan


def _fitting(
    planned: ir.Module, legal: ir.Module, options: Options, timings: list[Timing], on_pass: OnPass | None
) -> Plan | None:
    """The best plan that needs no more memory than a device of the machine has, where the one that is `planned` needs more; None
    where that fits, and where no plan does, of which it warns. None is sought where arguments and results alone are too large,
    or where the plan under the highest price of memory is."""
    limit = options.implied_limit
    needed = memory(main_function(planned)) if limit < inf else None
    if needed is None or needed.peak <= limit:
        return None
    limited = replace(options, memory_limit=limit)
    if needed.peak - needed.temporaries <= limit:
        frugal, in_mesh = copy_module(legal), replace(limited, emit="mesh", stablehlo_version=None, ops=())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a plan that nobody gets
            plan_in(frugal, in_mesh, Way(options.machine, memory_factor=FACTORS[-1]), timings, on_pass=on_pass)
        if memory(main_function(frugal)).peak <= limit:
            return _best_plan(legal, limited, timings, on_pass)
    text = misfit(planned, limit).replace("the limit of", f"'{options.machine}' has,")
    warnings.warn(f"warning: {text}; memory-limit 'none' plans as if it fitted", MemoryWarning, stacklevel=2)
    return None


def ring_ways(options: Options) -> tuple[Way, ...]:
    """The way in which attention is planned for rings, on machines that have such."""
    has_rings = options.collectives == "on" and rings(options.machine, options.compiler_options)
    return (Way(options.machine, hides=True, keeps_queries=True),) if has_rings else ()


def opened(ways: Iterable[Way], options: Options) -> tuple[Way, ...]:
    """The same ways, in which values inside may be split along more axes than constraints say, if they may on this machine."""
    may_open = options.inside == "open" and opens(options.machine)
    return tuple(way._replace(inside_open=True) for way in ways) if may_open else ()


def plan_in(
    module: ir.Module,
    options: Options,
    way: Way,
    timings: list[Timing] | None = None,
    *,
    seen: set[bytes] | None = None,
    on_pass: OnPass | None = None,
) -> bool:
    """Partitions a legal `module` in place, to a form that the options name, in that way, and adds to `timings` how long each
    pass took; False where that way has no plan of its own, or one of those `seen` in other ways, hashes of programs as they are
    partitioned, to which it is added. Raises MeshError with a located diagnostic."""
    known = Known()
    for stage in build(options, way).starting_at("legal").stages:
        took = run(stage.passes, module, verified="none", known=known, on_pass=on_pass)
        if timings is not None:
            timings += took
        if stage.name == "decided" and not known[Decisions].is_own:
            return False
        if stage.name == "partitioned" and seen is not None:
            if (plan := sha256(mlir.to_bytecode(module)).digest()) in seen:
                return False
            seen.add(plan)
    return True


def _refuse_partitioned(module: ir.Module, options: Options) -> None:
    """Raises MeshError where a program that is partitioned already has no such form."""
    if options.emit == "annotated":
        raise MeshError(f"<module>: error: the program is partitioned already, it has no form '{options.emit}'")
    if options.written_limit < inf:
        raise MeshError("<module>: error: the program is partitioned already, memory-limit has no effect on it")
    if options.emit == "exported" and (op := find_replicas(module)) is not None:
        raise OpError(
            op, "speaks of replicas, as the form 'local' does; no other form is made of that", "start from the form 'mesh'"
        )


def verify(module: ir.Module) -> None:
    """Checks `module` by MLIR's verifier and by the mesh dialect's.

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
    known: Known | None = None,
    on_pass: OnPass | None = None,
) -> list[Timing]:
    """Runs `steps` in order, verifying after each, after the last or not at all; returns their timings.

    `known` is what earlier passes of the run hand on.

    Raises RuntimeError where a pass changes the module and leaves what is `known` of it as it was: it would be wrong.
    """
    timings: list[Timing] = []
    known = {} if known is None else known
    unverified = False
    for step in steps:
        started, held = time.perf_counter(), dict(known)
        changed = step.run_with(module, known) is not False
        if changed and (stale := [kind.__name__ for kind in held if known.get(kind) is held[kind]]):
            raise RuntimeError(f"{step.name} changes a program of which {', '.join(stale)} are known")
        done = time.perf_counter()
        unverified |= changed
        if unverified and (verified == "each" or (verified != "none" and step is steps[-1])):
            (verifier.verify if verified == "dialect" else verify)(module)
            unverified = False
        timings.append(Timing(step.name, done - started, time.perf_counter() - done))
        if on_pass is not None:
            on_pass(step, module)
    return timings


_PASS = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")
_FUNCTION_PIPELINE = re.compile(r"\s*func\.func\s*\(([^()]*)\)\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """`a,b{option=value other=value}`, bare or within `builtin.module(…)`, as mlir-opt writes pipelines.

    `func.func(a,b)` is `a,b`: every pass here runs on the module and finds its functions itself.
    Raises MeshError for an unknown pass or option.
    """
    inner = re.fullmatch(r"\s*builtin\.module\s*\((.*)\)\s*", text, re.S)
    return tuple(make_pass(name, options) for name, options in _entries(inner.group(1) if inner else text))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        if nested := _FUNCTION_PIPELINE.match(text, position):
            yield from _entries(nested.group(1))
            position = nested.end()
            continue
        found = _PASS.match(text, position)
        if found is None:
            raise MeshError(f"error: expected 'pass' or 'pass{{option=value}}' in pass pipeline, found '{text[position:]}'")
        yield found.group(1), found.group(2) or ""
        position = found.end()


def make_pass(name: str, options: str = "") -> Pass:
    """The pass `name` with `options` as `option=value` pairs separated by spaces.

    Raises MeshError for an unknown pass, an unknown option, or a value that is not one of the option's.
    """
    known = passes_by_any_name()
    if name not in known:
        raise MeshError(f"error: unknown pass '{name}', expected one of {', '.join(sorted(known))}")
    step = known[name]()
    for entry in options.split():
        option, equals, value = entry.partition("=")
        if step.main_option and option.replace("-", "_") not in step.__dataclass_fields__:  # type: ignore[attr-defined]
            option, equals, value = step.main_option, "=", entry
        step = _with_option(step, option, value if equals else "true")
    return step


def _with_option(step: Pass, option: str, text: str) -> Pass:
    """`step` with one option set from its text; dashes and underscores in option names are the same."""
    instance: Any = step
    key = option.replace("-", "_")
    names = [field.name for field in fields(instance)]
    if key not in names:
        known = f"expected one of {', '.join(names)}" if names else "it has none"
        raise MeshError(f"error: pass '{step.name}' has no option '{option}', {known}")
    kind = get_type_hints(type(step))[key]
    try:
        changed: Pass = replace(instance, **{key: _value(kind, text)})
    except MeshError:
        raise
    except (KeyError, ValueError):
        raise MeshError(f"error: option '{option}' of pass '{step.name}' cannot be '{text}', {_expectation(kind)}") from None
    return changed


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _value(kind: Any, text: str) -> object:
    if kind is bool:
        return _BOOLEANS[text]
    if choices := get_args(kind):
        return {str(choice): choice for choice in choices}[text]
    return kind(text)


def _expectation(kind: Any) -> str:
    if kind is bool:
        return "expected true or false"
    if choices := get_args(kind):
        return f"expected one of {', '.join(map(str, choices))}"
    return f"expected {kind.__name__}"
