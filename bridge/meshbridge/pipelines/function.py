"""The function that `meshbridge.pipelined` returns: a step that runs as a pipeline on several groups of devices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import jax
from jax.sharding import NamedSharding

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, context, digest
from meshbridge.machines.machine import OptionValue
from meshbridge.pipelines import forms
from meshbridge.pipelines.prediction import PipelineReport
from meshbridge.pipelines.proof import Proof
from meshbridge.pipelines.run import BoundFragment, Runner
from meshbridge.pipelines.schedules import STACKED, Schedule, check_name
from meshbridge.pipelines.stacked import StackedPipeline
from meshbridge.pipelines.stacked_run import StackedRunner
from meshbridge.pipelines.transfers import is_of_stack
from meshbridge.read import formats
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import pjrt, processes
from meshbridge.runtime.compiler_options import CompilerOptions

Run = Runner | StackedRunner
"""Runs a step on its leaves, called by labels in diagnostics."""


@dataclass(frozen=True)
class StaticArguments:
    """The arguments that are part of a step, by position and by name: a traced step does not take them."""

    positions: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, function: Callable[..., Any], jit_options: Mapping[str, Any]) -> StaticArguments:
        """Those of a function under options of `jax.jit`, which finds positions by names, and names by positions."""
        parameters = list(inspect.signature(function).parameters)
        positions, names = jit_options.get("static_argnums"), jit_options.get("static_argnames")
        given = {range(len(parameters))[each] for each in _several(positions)}
        called = set(_several(names))
        by_name = {parameters.index(name) for name in called if name in parameters}
        return cls(frozenset(given | by_name), frozenset(called | {parameters[each] for each in given}))

    def without(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The other arguments of a call."""
        dynamic = [value for position, value in enumerate(arguments) if position not in self.positions]
        return dynamic, {name: value for name, value in named.items() if name not in self.names}


def _several(given: Any) -> Iterable[Any]:
    """An option of one or several values, or None."""
    return () if given is None else (given,) if isinstance(given, int | str) else given


@dataclass(eq=False)
class Pipelined:
    """A step that is cut into a pipeline for each kind of arguments that it is called with."""

    function: Any
    "Of `jax.jit`."
    stages: int
    schedule: str | Schedule
    devices: tuple[Any, ...]
    options: Mapping[str, Any]
    compiler_options: CompilerOptions
    keeps_shardings: bool
    "Whether the shardings of arguments count, since there are no `in_shardings`."
    static: StaticArguments
    _runners: dict[Any, tuple[formats.Program, Run]] = field(default_factory=dict)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs a step. Each result is on the devices of the stage that computes it.

        Raises MeshError if the step cannot be cut into stages, and for arguments of other shapes or types than it takes.
        """
        refuse_traced((arguments, named))
        key = _kind_of((arguments, named))
        if key not in self._runners:
            built = self.lower(*arguments, **named)
            self._runners[key] = built.source, load(built, self.devices, self.compiler_options)
        program, runner = self._runners[key]
        assert program.calling is not None, "the program of a function"
        leaves = program.calling.flatten(*self.static.without(arguments, named))
        return program.calling.unflatten(runner(leaves, program.calling.labels()))

    def report(self, *arguments: Any, **named: Any) -> PipelineReport:
        """The predicted step, the memory of each stage, and what crosses. Raises MeshError."""
        return forms.report(self.lower(*arguments, **named))

    def verify(self, *arguments: Any, **named: Any) -> Proof:
        """Proves that the pipeline computes what the step computes, by exact evaluation. Raises MeshError."""
        return forms.verify(self.lower(*arguments, **named))

    def lower(self, *arguments: Any, **named: Any) -> forms.Pipeline:
        """The pipeline for arguments, which may be `jax.ShapeDtypeStruct`s. Raises MeshError."""
        shapes = _abstract((arguments, named), sharded=self.keeps_shardings)
        program = formats.unpack(self.function, context(), *shapes)
        program = formats.for_platform(program, jax_devices.platform(self.devices[0]))
        options = {"machine": jax_devices.of(self.devices).name, **self.options}
        how = pipeline.Options.of(emit="local", compiler_options=self.compiler_options.chosen, **options)
        return forms.build(program, how, self.stages, self.schedule)

    def mpmd(self, *arguments: Any, **named: Any) -> formats.Program:
        """The pipeline as a program of Shardy's MPMD dialect that is mapped to meshes, `mesh0` for the first stage; arguments may
        be `jax.ShapeDtypeStruct`s. Raises MeshError."""
        return formats.Program(forms.mapped(self.lower(*arguments, **named)), formats.TEXT)


def load(built: forms.Pipeline, devices: Sequence[Any], compiler_options: CompilerOptions) -> Run:
    """Compiles the fragments of a pipeline, each for the devices of its stage, or the program of all stages. Raises MeshError."""
    under = compiler_options.on(jax_devices.machine_of(devices, built.options.target.machine), explicit=True)
    with processes.Agreement(devices) as agreement:
        if isinstance(built, StackedPipeline):
            program = built.partitioned("local")
            agreement.require(devices, facts={"program": digest(program.module), "schedule": STACKED})
            return StackedRunner(pjrt.load(program, built.devices(devices), under))
        programs = {fragment: built.partitioned(fragment, "local") for fragment in built.plan.fragments}
        facts = {str(fragment.site): digest(program.module) for fragment, program in programs.items()}
        agreement.require(devices, facts={**facts, "schedule": built.plan.schedule})
        fragments = {
            fragment: _bound(program, built.devices_of(fragment.group, devices), fragment.group, under)
            for fragment, program in programs.items()
        }
    return Runner(built.plan, built.stacks, fragments, built.donated)


def _bound(program: formats.Program, devices: Sequence[Any], group: int, under: Mapping[str, OptionValue]) -> BoundFragment:
    """A fragment, compiled for these devices of its stage if they are this process's."""
    having = processes.of(devices)
    if len(having) > 1:
        raise MeshError(
            f"error: the devices of stage {group} belong to {processes.named(having)}, expected those of one process"
            "\n  hint: choose as many stages as processes, or a multiple"
        )
    if having and having[0] != jax.process_index():
        return BoundFragment.elsewhere(program.module, devices)
    return BoundFragment(pjrt.load(program, devices, under))


def pipelined(
    function: Callable[..., Any],
    stages: int,
    schedule: str | Schedule,
    devices: Sequence[Any] | None,
    jit_options: Mapping[str, Any],
    options: Mapping[str, Any],
    compiler_options: CompilerOptions,
) -> Pipelined:
    """A step as a pipeline; `jit_options` are those of `jax.jit`, `options` those of `pipeline.Options`. Raises MeshError for
    invalid values."""
    pipeline.Options.of(**options)
    if not isinstance(schedule, Schedule):
        check_name(schedule)
    try:
        stages = index(stages)
    except TypeError:
        raise MeshError(f"error: stages is {stages!r}, expected a whole number") from None
    if isinstance(function, Pipelined):
        raise MeshError("error: expected a step, found a pipeline\n  hint: give the step that it is made of, with other options")
    used = tuple(jax.devices() if devices is None else devices)
    if not used:
        raise MeshError("error: expected devices, found none")
    jitted = function if not jit_options and hasattr(function, "lower") else jax.jit(function, **jit_options)
    static = StaticArguments.of(function, jit_options)
    return Pipelined(jitted, stages, schedule, used, options, compiler_options, "in_shardings" not in jit_options, static)


def refuse_traced(arguments: Any) -> None:
    """Raises MeshError for values of a function that JAX traces: a pipeline is no part of another program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
        raise MeshError(
            "error: a pipeline is called by a function that JAX traces, such as that of jax.jit or jax.grad, and consists of "
            "several programs\n  hint: call it with arrays, and trace the step alone"
        )


def _kind_of(tree: Any) -> Any:
    """What a step is traced for: the tree of arguments, shapes and types of arrays, and all other leaves, which may be static."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) if _is_array(leaf) else (type(leaf), leaf) for leaf in leaves)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _abstract(tree: Any, *, sharded: bool) -> Any:
    """The shapes and types of arrays, which may be on the devices of any stage; if `sharded`, with their shardings if all of
    these are on one mesh."""
    shardings = [own for leaf in jax.tree.leaves(tree) if not is_of_stack(own := getattr(leaf, "sharding", None))]
    meshes = {each.mesh for each in shardings if isinstance(each, NamedSharding)}

    def abstract(leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        own = getattr(leaf, "sharding", None)
        kept = own if sharded and len(meshes) == 1 and own in shardings and isinstance(own, NamedSharding) else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=kept)

    return jax.tree.map(abstract, tree)
