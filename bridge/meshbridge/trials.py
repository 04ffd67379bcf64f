"""meshbridge's functions for Python callers that try a program out: they run, verify and compile it, also as XLA partitions it.

Each is a command of `meshbridge`, and its result prints what the command prints. As in `api`, options are keywords with the names
of the command's options, and each function imports its modules when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from meshbridge.api import PartitionKeywords
from meshbridge.ir.errors import MeshError

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec
    from jax.stages import Wrapped

    from meshbridge.api import Local, Named, Source
    from meshbridge.decide.mutations import Mutation
    from meshbridge.partitioner.mesh_spmdization import Resharding
    from meshbridge.read.formats import Program
    from meshbridge.reports.measured import Measured
    from meshbridge.runtime.compiler_options import CompilerOptions, Given
    from meshbridge.tools.compare.comparison import Comparison, TargetComparison
    from meshbridge.tools.pass_verdicts import PassVerdicts
    from meshbridge.tools.reshard import ReshardReport
    from meshbridge.tools.trial import RunResult
    from meshbridge.verification.verdict import Verdict


def run(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    seed: int = 0,
    check: bool = False,
    tolerance: float = 1e-4,
    local: Local = False,
) -> RunResult:
    """Runs a program once on JAX's devices. `compile` gives an executable to call again.

    It runs on `arguments` and `kwargs`, also if `program` is no function. It runs on random ones from `seed` if there are none,
    and if a function's are `jax.ShapeDtypeStruct`s. With `check`, results are compared with those of the unsharded program on one
    device. `local` is as for `partition`.

    Raises MeshError like `compile`, and with `check` if a result differs by more than `tolerance`, relative to the largest
    magnitude of the reference.
    """
    from meshbridge.tools import trial

    opened, inputs = _with_inputs(program, arguments, kwargs, local)
    ran = trial.run(opened.module, inputs, seed=seed, check=check)
    ran.require(tolerance)
    return ran


def _with_inputs(
    program: Any, arguments: Sequence[Any], kwargs: Named, local: Local = False
) -> tuple[Program, Sequence[Any] | None]:
    """The program for CPUs or JAX's platform, and the arrays that its entry point takes; None without values for them."""
    from meshbridge.api import annotated_if_local
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats

    traced = (arguments, kwargs) if callable(program) else ()
    opened = annotated_if_local(formats.unpack(program, context(), *traced), local)
    if not (arguments or kwargs) or not _have_values((arguments, kwargs)):
        return opened, None
    if opened.calling is not None:
        return opened, opened.calling.flatten(arguments, kwargs or {})
    if kwargs:
        raise MeshError("error: expected arguments by position, the program has no names for them")
    return opened, list(arguments)


def _have_values(tree: Any) -> bool:
    import jax

    return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree))


def verify(
    program: Source | Wrapped,
    *arguments: Any,
    partitioned: Source | None = None,
    kwargs: Named = None,
    platform: str | None = None,
    seed: int = 0,
    memory: float = 8.0,
    local: Local = False,
    **options: Unpack[PartitionKeywords],
) -> Verdict:
    """Whether `partitioned` computes what `program` does, exactly: both are evaluated on random inputs over finite fields.

    By default `program` is partitioned, with these `options`. No device is needed. `seed` is that of the inputs; at most `memory`
    gigabytes of values are alive at once. With `local`, `partitioned`, or `program` alone, is one device's, as for `partition`.

    Raises MeshError for programs with different arguments or results, and for those that have no exact evaluation
    (docs/verify.md).
    """
    from meshbridge.api import annotated_if_local, partition
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats
    from meshbridge.verification import verdict

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    if partitioned is None:
        module = annotated_if_local(opened, local).module
        other = partition(module, **options)
    else:
        if options:
            raise MeshError(f"error: {next(iter(options))} has no effect on a program that is partitioned already")
        module = opened.module
        other = annotated_if_local(formats.unpack(partitioned, context()), local).module
    return verdict.verify(module, other, seed=seed, memory=memory)


def verify_passes(
    program: Source | Wrapped,
    *arguments: Any,
    kwargs: Named = None,
    platform: str | None = None,
    seed: int = 0,
    memory: float = 8.0,
    **options: Unpack[PartitionKeywords],
) -> PassVerdicts:
    """Verifies the program after each pass of `partition` that changes it, up to the first that changes its meaning. Options are
    those of `verify`. Raises MeshError like `verify`."""
    from meshbridge.ir.mlir import context
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.runtime.devices import implied
    from meshbridge.tools import pass_verdicts

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    options.setdefault("machine", implied(opened.platforms).name)
    return pass_verdicts.verify_passes(opened.module, Options.of(emit="exported", **options), seed=seed, memory=memory)


@overload
def compare(
    program: Source | Wrapped,
    *arguments: Any,
    target: None = ...,
    kwargs: Named = ...,
    machine: str | None = ...,
    seed: int = ...,
    timeout: float | None = ...,
    process_memory: float | None = ...,
) -> Comparison: ...
@overload
def compare(
    program: Source | Wrapped,
    *arguments: Any,
    target: str,
    kwargs: Named = ...,
    machine: str | None = ...,
    without: Sequence[str] = ...,
    compiler_options: Given = ...,
    timeout: float | None = ...,
    process_memory: float | None = ...,
) -> TargetComparison: ...
def compare(
    program: Source | Wrapped,
    *arguments: Any,
    target: str | None = None,
    kwargs: Named = None,
    machine: str | None = None,
    seed: int = 0,
    without: Sequence[str] = (),
    compiler_options: Given = "default",
    timeout: float | None = None,
    process_memory: float | None = None,
) -> Comparison | TargetComparison:
    """What meshbridge and XLA's partitioners make of a program: bytes, collectives, memory, times and differences of the results.

    It runs on as many virtual CPU devices as the program's mesh has, in processes of their own, on `arguments` or on random
    inputs from `seed`. With a `target`, such as `"tpu:v5e:2x4"`, it is compiled for that, and nothing runs; `without` leaves out
    some of XLA's partitioners, and `compiler_options` are XLA's. Our plan is for `machine`, by default the target's. A process
    may take `timeout` seconds, for a target 600 by default, and `process_memory` gigabytes.

    Raises MeshError for a program that is partitioned, or does not fit the arguments or the target, and if a compiler is not
    installed or refuses an option.
    """
    from meshbridge import pipeline
    from meshbridge.read import formats
    from meshbridge.tools import trial
    from meshbridge.tools.compare import command

    if target is not None:
        for_one = {"machine": machine, "without": without, "limits": _limits(timeout, process_memory, target)}
        opened, _ = _with_inputs(program, arguments, kwargs)
        return command.compare_for(opened, [_target(target)], compiler_options=_compiler_options(compiler_options), **for_one)[0]
    if without or compiler_options != "default":
        raise MeshError(f"error: {'without' if without else 'compiler_options'} has no effect without a target")
    opened, inputs = _with_inputs(program, arguments, kwargs)
    module = formats.for_platform(opened, "cpu").module
    with trial.archived(inputs) as archive:
        return command.compare(
            module,
            devices=None,
            machine=machine or pipeline.DEFAULTS.target.name,
            seed=seed,
            inputs=archive,
            limits=_limits(timeout, process_memory),
        )


def compile_for(
    program: Source | Wrapped,
    *arguments: Any,
    target: str,
    kwargs: Named = None,
    machine: str | None = None,
    compiler_options: Given = "best",
    timeout: float | None = None,
    process_memory: float | None = None,
) -> bytes:
    """The executable of the partitioned program for a target that need not be here, such as `"tpu:v5e:2x4"`, as the target's
    runtime serializes it. Options are those of `compare`.

    Raises MeshError like `compare`, and if the program cannot be compiled within the limits.
    """
    from meshbridge.tools.compare import command

    opened, _ = _with_inputs(program, arguments, kwargs)
    under, limits = _compiler_options(compiler_options), _limits(timeout, process_memory, target)
    return command.executable_for(opened, _target(target), machine=machine, compiler_options=under, limits=limits)


def _target(text: str) -> Any:
    from meshbridge.machines.target import parse

    return parse(text)


def _limits(timeout: float | None, process_memory: float | None, target: str = "") -> Any:
    from meshbridge.tools.compare.process import Limits
    from meshbridge.tools.compare_commands import TIMEOUT

    return Limits(TIMEOUT if timeout is None and target else timeout, process_memory)


def _compiler_options(given: Given) -> CompilerOptions:
    from meshbridge.runtime.compiler_options import CompilerOptions

    return CompilerOptions.of(given)


def measure(
    program: Source | Wrapped,
    *arguments: Any,
    mutations: Iterable[Mutation],
    kwargs: Named = None,
    platform: str | None = None,
    machine: str | None = None,
    resharding: Resharding = "cheapest",
    collectives: Literal["on", "off"] = "on",
) -> Measured:
    """The metrics of the partitioned program before and after mutations (docs/mutations.md).

    It accepts the same programs as `partition`, and does not change them. Raises MeshError like `mutate` and `report`.
    """
    from meshbridge.ir.mlir import context
    from meshbridge.pipeline import Options
    from meshbridge.read import formats
    from meshbridge.reports.measured import mutate_and_measure
    from meshbridge.runtime.devices import implied

    opened = formats.unpack(program, context(), arguments, kwargs, platform)
    name = implied(opened.platforms).name if machine is None else machine
    options = Options.of(emit="mesh", machine=name, resharding=resharding, collectives=collectives)
    return mutate_and_measure(opened.module, list(mutations), options)


def reshard(
    shape: str,
    mesh: str | Mapping[str, int],
    source: str | PartitionSpec,
    target: str | PartitionSpec,
    *,
    run: bool = False,
    resharding: Resharding = "cheapest",
    alpha: float | None = None,
    beta: float | None = None,
) -> ReshardReport:
    """The collectives between two shardings of an array, their cost and its lower bound.

    `shape` has the element type, `"96x192xf32"`. `mesh` gives the sizes of its axes, by name for shardings that are
    PartitionSpecs, `{"data": 2, "model": 4}`; `"2x4"` for those that number the axes, `"[[0], [1]]"` or
    `"[[0], []] partial = sum [1]"`. `alpha` are the seconds of a collective, `beta` those of a received byte. With `run`, the
    plan is executed on JAX's devices, and the data compared.

    Raises MeshError for an invalid shape, mesh or sharding, for a pair without a plan, and for a run with wrong data.
    """
    from meshbridge.resharding.plan import DEFAULTS, PlanOptions
    from meshbridge.tools import reshard as resharding_tool

    exact = resharding == "exact"
    if exact and (alpha is not None or beta is not None):
        raise MeshError('error: alpha and beta have no effect with resharding="exact", which counts bytes first')
    costs = PlanOptions(
        alpha=DEFAULTS.alpha if alpha is None else alpha, beta=DEFAULTS.beta if beta is None else beta, exact=exact
    )
    axes = tuple(mesh) if isinstance(mesh, Mapping) else ()
    sizes = "x".join(str(size) for size in mesh.values()) if isinstance(mesh, Mapping) else mesh
    rank = shape.count("x")
    return resharding_tool.reshard(shape, sizes, _numbered(source, axes, rank), _numbered(target, axes, rank), costs, run=run)


def _numbered(sharding: str | PartitionSpec, axes: Sequence[str], rank: int) -> str:
    """A sharding as text that numbers the axes. Raises MeshError for a PartitionSpec of other axes or dimensions."""
    if isinstance(sharding, str):
        return sharding
    entries = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in sharding]
    if len(entries) > rank or any(name not in axes for entry in entries for name in entry):
        known = ", ".join(axes) or "named axes"
        raise MeshError(f"error: expected a sharding of {rank} dimensions along {known}, found {sharding}")
    return str([[axes.index(name) for name in entry] for entry in (*entries, *[()] * (rank - len(entries)))])
