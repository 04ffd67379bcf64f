"""What the user says is law: shardings of arguments and results by patterns of their paths; and which results become which
arguments of the next step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import NamedTuple

from meshbridge.dialect import reannotate
from meshbridge.dialect.names import names_in
from meshbridge.dialect.ops import ShardingOp
from meshbridge.dialect.patterns import keys_of, matches
from meshbridge.ir.mlir import MeshError, function_type, ir, main_function, walk
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.pipeline import Options
from meshbridge.search import clock as clocks
from meshbridge.search.clock import Clock
from meshbridge.search.shapes import in_parts

_ENTRY = re.compile(r"\s*(\(([^()]*)\)|[^,()]+)\s*(?:,|$)")


class Fixed(NamedTuple):
    """A sharding for the arguments and results whose paths match a pattern."""

    pattern: str
    "`params/**/kernel`: `*` stands for any key, `**` for any number of them."
    spec: tuple[tuple[str, ...], ...]
    "By dimension, the names of the axes that split it; further dimensions are split along none."

    @classmethod
    def parse(cls, text: str) -> Fixed:
        """The notation `PATTERN=P(None,'model')`. Raises MeshError for another one."""
        pattern, equals, spec = text.partition("=")
        inner = re.fullmatch(r"\s*P\((.*)\)\s*", spec)
        if not (pattern.strip() and equals and inner):
            raise MeshError(f"error: expected PATTERN=P(…), as in \"params/**/kernel=P(None,'model')\", found '{text}'")
        return cls(pattern.strip(), tuple(_axes(entry) for entry in _entries(inner[1], text)))

    @classmethod
    def of(cls, pattern: str, spec: Iterable[object]) -> Fixed:
        """The same of a `jax.sharding.PartitionSpec`."""
        return cls(pattern, tuple(() if each is None else (each,) if isinstance(each, str) else tuple(each) for each in spec))  # type: ignore[arg-type]

    def in_parts(self, parts: Mapping[str, Sequence[str]]) -> Fixed:
        """The same where some axes are in parts, by name."""
        return self._replace(
            spec=tuple(tuple(chain.from_iterable(parts.get(name, (name,)) for name in names)) for names in self.spec)
        )


def _entries(text: str, whole: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            raise MeshError(f"error: expected axes, None, or axes in parentheses in a sharding, found '{whole}'")
        found.append(entry[2] if entry[2] is not None else entry[1])
        position = entry.end()
    return found


def _axes(entry: str) -> tuple[str, ...]:
    names = (part.strip().strip("'\"") for part in entry.split(","))
    return tuple(name for name in names if name and name != "None")


@dataclass(frozen=True)
class Asked:
    """What a search is asked for. Raises MeshError for a machine of which no time is known, and for a limit that is none."""

    machine: str
    "One of which time is known; without a topology, one of as many devices as the mesh is taken."
    layout: str = ""
    memory_limit: float | str | None = None
    "By default what the machine has."
    fixed: tuple[Fixed, ...] = ()
    keeps: bool = True
    "Whether the annotations of the program stay."
    seconds: float = 60.0
    "After which no further plan is tried."
    data_axes: tuple[str, ...] = ()
    "Axes along which arguments are split as the user's shardings of others propagate, and not otherwise."
    constraints: int = 0
    "How many constraints to name at most; none are looked for otherwise. That takes as many seconds again at most."
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    "What the axes are called that make up an axis, by its name, on meshes where it is in parts."
    divides: bool = True
    "Whether an axis may be in parts that nobody has named, where products are as many as only a part of it divides."
    clock: Clock = field(default_factory=lambda: clocks.usual())
    "What the seconds are of."

    def on(self, meshes: Sequence[Mesh], sub_axes: Mapping[str, Sequence[int]]) -> tuple[Sequence[Mesh | None], Asked]:
        """The meshes to search on, that of the program if none is given: where some axes are in parts, and as they are; and what
        is asked there. Raises MeshError where the parts do not fit."""
        if not sub_axes:
            return meshes or [None], self
        if not meshes:
            raise MeshError("error: sub-axes have no effect on the mesh that a program is sharded on: name the mesh")
        cut, parts = in_parts(meshes, sub_axes)
        return [*cut, *meshes], replace(self, parts=parts)

    def for_mesh(self, mesh: Mesh) -> Asked:
        """The same in names of its axes: those that are in parts on it are the parts."""
        parts = {name: found for name, found in self.parts.items() if name not in mesh.runs}
        fixed = tuple(each.in_parts(parts) for each in self.fixed)
        return replace(
            self, fixed=fixed, data_axes=tuple(chain.from_iterable(parts.get(name, (name,)) for name in self.data_axes))
        )

    @property
    def options(self) -> Options:
        """How plans are partitioned."""
        return Options(emit="mesh", machine=self.machine, layout=self.layout, memory_limit=self.memory_limit)


@dataclass(frozen=True)
class BoundaryPaths:
    """The arguments and results of a program, by their paths."""

    main: ir.Operation
    arguments: tuple[str, ...]
    "Their paths; where they have none, `argument 3`."
    results: tuple[str, ...]

    @classmethod
    def of(cls, main: ir.Operation) -> BoundaryPaths:
        """Those of a module's entry point."""
        names = names_in(main)
        return cls(
            main,
            tuple(name or f"argument {number}" for number, name in enumerate(names.arguments)),
            tuple(name or f"result {number}" for number, name in enumerate(names.results)),
        )

    def types(self, side: str) -> list[ir.Type]:
        """Those of the `arguments` or `results`."""
        kind = function_type(self.main)
        return list(kind.inputs if side == "arguments" else kind.results)

    def alike(self) -> list[tuple[int, int]]:
        """Arguments and the results that they become in the next step: of one type, with paths that end in the same keys. Of
        several, those are paired first that have more keys in common."""
        arguments, results = self.types("arguments"), self.types("results")
        own, others = ([keys_of(path)[1:] for path in side] for side in (self.results, self.arguments))
        by_type: dict[ir.Type, list[int]] = {}
        for argument, type_ in enumerate(arguments):
            by_type.setdefault(type_, []).append(argument)
        common = [
            (-shared, result, argument)
            for result, keys in enumerate(own)
            for argument in by_type.get(results[result], ())
            if (shared := _shared(keys, others[argument]))
        ]
        found: dict[int, int] = {}
        taken: set[int] = set()
        for _, result, argument in sorted(common):
            if result not in found and argument not in taken:
                found[result] = argument
                taken.add(argument)
        return [(argument, result) for result, argument in sorted(found.items())]


def _shared(keys: Sequence[str], others: Sequence[str]) -> int:
    """How many keys they end in."""
    pairs = zip(reversed(keys), reversed(others), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def fix(module: ir.Module, mesh: Mesh, fixed: Iterable[Fixed]) -> None:
    """Writes the shardings into an annotated module, in place of what stands there.

    Raises MeshError for a pattern that matches nothing, an axis that the mesh does not have, and uneven shards.
    """
    leaves = BoundaryPaths.of(main_function(module))
    writers = {"arguments": reannotate.annotate_argument, "results": reannotate.annotate_result}
    for each in fixed:
        found = [
            (side, place) for side in writers for place, path in enumerate(getattr(leaves, side)) if matches(each.pattern, path)
        ]
        if not found:
            known = ", ".join((*leaves.arguments[:4], *(("…",) if len(leaves.arguments) > 4 else ())))
            raise MeshError(f"error: no argument and no result matches '{each.pattern}': the arguments are {known}")
        for side, place in found:
            split = _split(each, getattr(leaves, side)[place], leaves.types(side)[place], mesh)
            writers[side](leaves.main, place, Sharding(mesh.name, split))


def refuse_unused(module: ir.Module, mesh: Mesh, data_axes: Iterable[str]) -> None:
    """Raises MeshError for an axis of data that the mesh does not have, and for one along which an annotated module splits
    nothing: the search would leave it idle."""
    used = {
        axis
        for op in walk(main_function(module))
        if op.name == ShardingOp.OPERATION_NAME
        for axis in ShardingOp(op).value.used_axes
    }
    for name in data_axes:
        if name not in mesh.runs:
            raise MeshError(f"error: data-axis is '{name}', expected an axis of the mesh: {', '.join(mesh.runs)}")
        if used.isdisjoint(mesh.runs[name]):
            raise MeshError(
                f"error: data-axis is '{name}', along which nothing is sharded: fix the batch, as in \"batch/**=P('{name}')\""
            )


def _split(fixed: Fixed, what: str, type_: ir.Type, mesh: Mesh) -> Split:
    shape = tuple(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else ()
    if len(fixed.spec) > len(shape):
        raise MeshError(f"error: '{fixed.pattern}' names {len(fixed.spec)} dimensions, {what} has {len(shape)}")
    runs: Mapping[str, tuple[int, ...]] = mesh.runs
    if unknown := [name for names in fixed.spec for name in names if name not in runs]:
        raise MeshError(f"error: '{fixed.pattern}': the mesh has no axis '{unknown[0]}', expected one of {', '.join(runs)}")
    named = [name for names in fixed.spec for name in names]
    if len({*named}) < len(named):
        raise MeshError(f"error: '{fixed.pattern}' names an axis twice: {', '.join(named)}")
    split = tuple(tuple(axis for name in names for axis in runs[name]) for names in fixed.spec)
    split += ((),) * (len(shape) - len(split))
    for dim, (size, axes) in enumerate(zip(shape, split, strict=True)):
        if size % mesh.group_size(axes):
            devices = f"{mesh.group_size(axes)} devices"
            raise MeshError(f"error: '{fixed.pattern}': dimension {dim} of {what} has size {size}, which {devices} do not divide")
    return split
