"""The function that `meshbridge.pipelined` returns: a step that runs as a pipeline on several groups of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipelines import prediction, proof
from meshbridge.pipelines.build import Pipeline, build
from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.prediction import PipelineReport
from meshbridge.pipelines.proof import Proof
from meshbridge.pipelines.run import BoundFragment, Runner
from meshbridge.pipelines.schedules import Schedule
from meshbridge.read import formats
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import pjrt, processes
from meshbridge.runtime.compiler_options import CompilerOptions


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
    _runners: dict[Any, tuple[formats.Program, Runner]] = field(default_factory=dict)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs a step. Each result is on the devices of the stage that computes it.

        Raises MeshError if the step cannot be cut into stages, and for arguments of other shapes or types than it takes.
        """
        key = _kind_of((arguments, named))
        if key not in self._runners:
            self._runners[key] = self._load(self.lower(*arguments, **named))
        program, runner = self._runners[key]
        assert program.calling is not None, "the program of a function"
        leaves = program.calling.flatten(arguments, named)
        return program.calling.unflatten(runner(leaves, program.calling.labels()))

    def report(self, *arguments: Any, **named: Any) -> PipelineReport:
        """The predicted step, the memory of each stage, and what crosses. Raises MeshError."""
        return prediction.report(self.lower(*arguments, **named))

    def verify(self, *arguments: Any, **named: Any) -> Proof:
        """Proves that the pipeline computes what the step computes, by exact evaluation. Raises MeshError."""
        return proof.verify(self.lower(*arguments, **named))

    def lower(self, *arguments: Any, **named: Any) -> Pipeline:
        """The pipeline for arguments, which may be `jax.ShapeDtypeStruct`s. Raises MeshError."""
        shapes = jax.tree.map(_abstract, (arguments, named))
        program = formats.unpack(self.function, context(), *shapes)
        program = formats.for_platform(program, jax_devices.platform(self.devices[0]))
        options = {"machine": jax_devices.of(self.devices).name, **self.options}
        how = pipeline.Options.of(emit="local", compiler_options=self.compiler_options.chosen, **options)
        return build(program, how, self.stages, self.schedule)

    def _load(self, built: Pipeline) -> tuple[formats.Program, Runner]:
        under = self.compiler_options.on(jax_devices.machine_of(self.devices, built.options.target.machine), explicit=True)
        fragments = {
            fragment: BoundFragment(pjrt.load(built.partitioned(fragment, "local"), self._devices_of(built, fragment), under))
            for fragment in built.plan.fragments
        }
        return built.source, Runner(built.plan, fragments, built.donated)

    def _devices_of(self, built: Pipeline, fragment: Fragment) -> Sequence[Any]:
        return built.devices_of(fragment.group, self.devices)


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
    used = tuple(jax.devices() if devices is None else devices)
    if not used:
        raise MeshError("error: expected devices, found none")
    if len(having := processes.of(used)) > 1:
        raise MeshError(f"error: a pipeline runs in one process, its devices belong to {processes.named(having)}")
    jitted = function if not jit_options and hasattr(function, "lower") else jax.jit(function, **jit_options)
    return Pipelined(jitted, stages, schedule, used, options, compiler_options)


def _kind_of(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves)


def _abstract(leaf: Any) -> Any:
    """The shape and type of an array, and its sharding if that names axes; other devices may have it than those of the step."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
