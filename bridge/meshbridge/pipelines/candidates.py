"""What a search over pipelines chooses among: stages, the mesh of one stage, microbatches and schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from meshbridge.dialect.mesh_sizes import fixed_axes, resize
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import Options, build, run
from meshbridge.pipelines.build import PreparedStep
from meshbridge.pipelines.named_computations import read_named_computations
from meshbridge.pipelines.schedules import FORMS, Schedule, named
from meshbridge.read.formats import Program, copy_module
from meshbridge.sharding_search.mesh_notation import divisors

Axes = tuple[tuple[str, int], ...]
"""The names and sizes of a mesh's axes."""


@dataclass(frozen=True)
class Candidate:
    """A pipeline that may be built."""

    stages: int
    mesh: Axes
    "Of one stage; empty for one device without a mesh."
    microbatches: int
    schedule: str
    chunks: int

    @property
    def mesh_text(self) -> str:
        """The mesh of a stage."""
        return ", ".join(f"{name}={size}" for name, size in self.mesh) or "1 device"

    @property
    def label(self) -> str:
        """The candidate in a few words."""
        chunks = f" of {self.chunks} chunks" if self.chunks != self.stages else ""
        return f"{self.schedule}{chunks}, {self.stages} stages on {self.mesh_text}, {self._microbatches_text}"

    @property
    def _microbatches_text(self) -> str:
        return "1 microbatch" if self.microbatches == 1 else f"{self.microbatches} microbatches"

    def ordered(self) -> Schedule:
        """The schedule, unless it is `stacked`. Raises MeshError for numbers that it does not have."""
        return named(self.schedule, self.stages, self.chunks, self.microbatches)


@dataclass(frozen=True)
class StageRequest:
    """What a search over pipelines may choose. Raises MeshError for a machine without a topology, and for other values."""

    options: Options
    stages: tuple[int, ...] = ()
    "Numbers of stages; empty for all that divide the devices."
    schedules: tuple[str, ...] = FORMS
    seconds: float = 60.0
    "No candidate is begun after this time, once there is a best one."

    def __post_init__(self) -> None:
        if self.options.target.devices is None:
            raise MeshError(
                f"error: a search over stages divides the devices of a machine, which '{self.options.target.name}' does not "
                "number: name a topology, as in v5p:4x4x4 or h100:1x1x8"
            )
        if unknown := [name for name in self.schedules if name not in FORMS]:
            raise MeshError(f"error: schedule is {unknown[0]!r}, expected one of {', '.join(FORMS)}")
        for count in self.stages:
            if count < 1 or self.devices % count:
                raise MeshError(f"error: {count} stages do not divide the {self.devices} devices of '{self.target.name}'")

    @property
    def target(self) -> CompileTarget:
        """The devices of all stages."""
        return self.options.target

    @property
    def devices(self) -> int:
        """The number of devices of all stages."""
        assert self.options.target.devices is not None, "__post_init__"
        return self.options.target.devices.devices

    @property
    def stage_counts(self) -> tuple[int, ...]:
        """The numbers of stages to try: at least two, unless others are asked for."""
        return self.stages or tuple(divisors(self.devices)[1:])


@dataclass(eq=False)
class SizedStep:
    """A step with some number of microbatches, whose mesh may get other sizes."""

    source: Program
    imported: ir.Module = field(init=False)
    "The same on the mesh dialect."

    def __post_init__(self) -> None:
        self.imported = copy_module(self.source.module)
        read_named_computations(self.imported)
        with self.imported.context, ir.Location.unknown():
            run(build(Options(emit="mesh")).until("annotated").passes, self.imported, verified="none")

    def meshes(self, devices: int) -> list[Axes]:
        """The meshes of so many devices that have the axes of the program's. Raises MeshError if there is none."""
        mesh = find_mesh(self.imported)
        if mesh is None:
            if devices > 1:
                raise MeshError(
                    f"error: the step names no mesh, so that each stage has one device, not {devices}"
                    "\n  hint: shard the step on a mesh of one stage, or ask for as many stages as there are devices"
                )
            return [()]
        fixed = fixed_axes(self.imported, mesh)
        options = [[fixed[name][0]] if name in fixed else divisors(devices) for name, _ in mesh.named_axes]
        shapes = [sizes for sizes in product(*options) if prod(sizes) == devices]
        if not shapes:
            why = "; ".join(f"axis '{name}' stays {size}, since {reason}" for name, (size, reason) in fixed.items())
            raise MeshError(f"error: no mesh with the axes of the step has {devices} devices: {why}")
        return [tuple((name, size) for (name, _), size in zip(mesh.named_axes, sizes, strict=True)) for sizes in shapes]

    def on(self, mesh: Axes) -> Program:
        """The step on a mesh of other sizes."""
        module = copy_module(self.imported)
        own = find_mesh(module)
        if own is not None:
            changed = {name: size for name, size in mesh if dict(own.named_axes)[name] != size}
            with module.context:
                resize(module, own, changed)
        return Program(module, self.source.format)


def candidates(request: StageRequest, step: SizedStep, given: PreparedStep) -> Iterator[Candidate]:
    """The candidates of a step with the stages that it is prepared for. Raises MeshError if there are none."""
    stages, microbatches = given.stages, given.undecided_loop(given.stages).microbatches
    meshes, counts = step.meshes(request.devices // stages), given.chunk_counts()
    for schedule in request.schedules:
        own = _interleaved(counts, stages, microbatches) if schedule == "interleaved" else [stages]
        for chunks, mesh in product(own, meshes):
            yield Candidate(stages, mesh, microbatches, schedule, chunks)


def _interleaved(counts: Sequence[int], stages: int, microbatches: int) -> list[int]:
    """The numbers of chunks of an interleaved schedule: several for each stage, in rounds of as many microbatches as stages."""
    return [count for count in counts if count > stages and microbatches % stages == 0]


@dataclass(frozen=True)
class BatchSymbols:
    """The symbolic dimensions of a step that are its number of microbatches and the size of one, and the batch: their product."""

    microbatches: str
    rows: str
    batch: int

    @classmethod
    def parse(cls, text: str) -> BatchSymbols:
        """The notation `m*b=32`. Raises MeshError for another one."""
        symbols = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\*\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d*)\s*", text)
        if symbols is None or symbols[1] == symbols[2]:
            raise MeshError(
                "error: expected the symbols of the number of microbatches and of the size of one, and their product, the batch, "
                f"as in m*b=32, found '{text}'"
            )
        return cls(symbols[1], symbols[2], int(symbols[3]))

    def counts(self) -> list[int]:
        """The numbers of microbatches that divide the batch."""
        return divisors(self.batch)

    def sizes(self, count: int) -> dict[str, int]:
        """The symbols with so many microbatches."""
        return {self.microbatches: count, self.rows: self.batch // count}


StepOf = Callable[[int], Program]
"""The step with that many microbatches."""


def code_for(candidate: Candidate, machine: str, sizes: Mapping[str, int]) -> str:
    """Lines that build a candidate. `sizes` are the symbols or arguments by which the step has its microbatches."""
    lines: list[str] = []
    if sizes:
        lines.append(f"# {', '.join(f'{name}={size}' for name, size in sizes.items())}")
    if candidate.mesh:
        shape, names = (
            _tuple(values) for values in zip(*((str(size), f'"{name}"') for name, size in candidate.mesh), strict=True)
        )
        count = prod(size for _, size in candidate.mesh)
        lines.append(f"mesh = jax.make_mesh({shape}, {names}, devices=jax.devices()[:{count}])  # of one stage")
    schedule = f'"{candidate.schedule}"'
    if candidate.schedule == "interleaved":
        lines.insert(0, "from meshbridge.pipelines import schedules\n")
        schedule = f"schedules.interleaved({candidate.stages}, {candidate.microbatches}, {candidate.chunks})"
    lines.append(f'pipelined = meshbridge.pipelined(step, stages={candidate.stages}, schedule={schedule}, machine="{machine}")')
    return "\n".join(lines)


def _tuple(values: Iterable[str]) -> str:
    texts = list(values)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
