"""A program that is mapped to meshes, as a function: what `meshbridge.pipelined` returns for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge.pipelines import prediction, proof
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.function import Run, load, refuse_traced
from meshbridge.pipelines.mapped import read_mapped
from meshbridge.pipelines.mpmd_reader import is_mapped
from meshbridge.pipelines.prediction import PipelineReport
from meshbridge.pipelines.proof import Proof
from meshbridge.read import formats
from meshbridge.read.formats import Program
from meshbridge.runtime import devices as jax_devices
from meshbridge.runtime import pjrt
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.runtime.pjrt import ShardedPort


@dataclass(eq=False)
class MappedPipeline:
    """A program that is mapped to meshes, on the first of the `devices`: each mesh has as many as it needs, in the order of the
    topology. `options` are those of `pipeline.Options`."""

    program: Program
    devices: tuple[Any, ...]
    options: Mapping[str, Any]
    compiler_options: CompilerOptions

    def __call__(self, *arrays: Any) -> list[jax.Array]:
        """Runs the program on arrays of global shapes, in the order of its arguments. Each result is on the devices of the mesh
        that computes it.

        Raises MeshError for arrays of other numbers, shapes or types, and for too few devices.
        """
        refuse_traced(arrays)
        pjrt.check_number(self.inputs, arrays)
        return self._runner(arrays, [f"argument {number}" for number in range(len(arrays))])

    def report(self) -> PipelineReport:
        """The predicted step, the memory of each mesh, and what crosses. Raises MeshError."""
        return prediction.report(self.lower())

    def verify(self, source: object = None) -> Proof:
        """Proves that each fragment on its devices computes what it computes on global arrays and, with the program that was
        mapped as `source`, such as a `jax.export.Exported`, that all together compute what that computes. Raises MeshError."""
        opened = None if source is None else formats.unpack(source, context()).module
        return proof.verify(self.lower(), source=opened)

    def lower(self) -> StagedPipeline:
        """The pipeline. Raises OpError for an op that is not understood."""
        return self._pipeline

    @cached_property
    def inputs(self) -> Sequence[ShardedPort]:
        """The arguments on global shapes."""
        return pjrt.boundary(self._pipeline.source.module)[0]

    @cached_property
    def _pipeline(self) -> StagedPipeline:
        options = {"machine": jax_devices.of(self.devices).name, **self.options}
        return read_mapped(
            self.program, pipeline.Options.of(emit="local", compiler_options=self.compiler_options.chosen, **options)
        )

    @cached_property
    def _runner(self) -> Run:
        return load(self._pipeline, self.devices, self.compiler_options)


def mapped(
    program: Program | ir.Module,
    devices: Sequence[Any] | None,
    options: Mapping[str, Any],
    compiler_options: CompilerOptions,
) -> MappedPipeline:
    """A program that is mapped to meshes as a function; `options` are those of `pipeline.Options`. Raises MeshError for invalid
    values, and for a program that is not mapped."""
    pipeline.Options.of(**options)
    opened = formats.unpack(program, context())
    if not is_mapped(opened.module):
        raise MeshError(
            "error: expected a function, or a program that is mapped to meshes in Shardy's MPMD dialect, found another program"
            "\n  hint: meshbridge.compile compiles a program for one mesh"
        )
    used = tuple(jax.devices() if devices is None else devices)
    return MappedPipeline(opened, used, options, compiler_options)
