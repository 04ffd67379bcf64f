"""What a user asks of a search: the machine, the time, shardings of arguments and results by patterns of their paths; and which
results become which arguments of the next step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import NamedTuple

from meshbridge.dialect import reannotate
from meshbridge.dialect.names import names_in
from meshbridge.dialect.ops import ShardingOp
from meshbridge.dialect.patterns import keys_of, matches, no_match
from meshbridge.ir.mlir import MeshError, function_type, ir, main_function, walk
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import Options
from meshbridge.sharding_search import clock as clocks
from meshbridge.sharding_search.clock import Clock
from meshbridge.sharding_search.mesh_notation import in_parts
from meshbridge.text import did_you_mean

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
        """The `jax.sharding.PartitionSpec` in the same notation."""
        entries = (() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in spec)  # type: ignore[arg-type]
        return cls(pattern, tuple(entries))

    def in_parts(self, parts: Mapping[str, Sequence[str]]) -> Fixed:
        """The sharding where some axes are split into sub-axes, by name."""
        return self._replace(
            spec=tuple(tuple(chain.from_iterable(parts.get(name, (name,)) for name in names)) for names in self.spec)
        )


def _entries(text: str, whole: str) -> list[str]:
    entry_texts, position = [], 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            raise MeshError(f"error: expected axes, None, or axes in parentheses in a sharding, found '{whole}'")
        entry_texts.append(entry[2] if entry[2] is not None else entry[1])
        position = entry.end()
    return entry_texts


def _axes(entry: str) -> tuple[str, ...]:
    names = (part.strip().strip("'\"") for part in entry.split(","))
    return tuple(name for name in names if name and name != "None")


@dataclass(frozen=True)
class SearchRequest:
    """A request for a search. Raises MeshError for a machine without known times, and for an invalid memory limit."""

    target: CompileTarget
    "A device. Without a topology, it has as many devices as the mesh. The default memory limit is the memory of the machine."
    fixed: tuple[Fixed, ...] = ()
    keeps: bool = True
    "Whether to keep the annotations of the program."
    seconds: float = 60.0
    "No plan is tried after this time."
    data_axes: tuple[str, ...] = ()
    "Axes that split arguments only as the user's shardings of other arguments propagate."
    constraints: int = 0
    "The most constraints to name; 0 looks for none. Looking for them takes up to as many seconds again."
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    "The names of the sub-axes of each axis that is split on some meshes."
    divides: bool = True
    "Whether to split an axis that nobody has split, if only a sub-axis divides the batch dimension of a product."
    clock: Clock = field(default_factory=lambda: clocks.usual())
    "The clock that counts the seconds."

    def on(self, meshes: Sequence[Mesh], sub_axes: Mapping[str, Sequence[int]]) -> tuple[Sequence[Mesh | None], SearchRequest]:
        """The meshes to search on, None being the mesh of the program, and the request for them. With sub-axes, each mesh is
        searched split and unsplit. Raises MeshError where the sub-axes do not fit."""
        if not sub_axes:
            return meshes or [None], self
        if not meshes:
            raise MeshError("error: sub-axes have no effect on the mesh that a program is sharded on: name the mesh")
        split_meshes, parts = in_parts(meshes, sub_axes)
        return [*split_meshes, *meshes], replace(self, parts=parts)

    def for_mesh(self, mesh: Mesh) -> SearchRequest:
        """The request in the axis names of this mesh: split axes are their sub-axes."""
        parts = {name: names for name, names in self.parts.items() if name not in mesh.runs}
        fixed = tuple(entry.in_parts(parts) for entry in self.fixed)
        return replace(
            self, fixed=fixed, data_axes=tuple(chain.from_iterable(parts.get(name, (name,)) for name in self.data_axes))
        )

    @property
    def options(self) -> Options:
        """The options with which plans are partitioned."""
        return Options(emit="mesh", target=self.target)


@dataclass(frozen=True)
class BoundaryPaths:
    """The arguments and results of a program, by their paths."""

    main: ir.Operation
    arguments: tuple[str, ...]
    "Their paths; `argument 3` for one without a path."
    results: tuple[str, ...]

    @classmethod
    def of(cls, main: ir.Operation) -> BoundaryPaths:
        """The boundary of a module's entry point."""
        names = names_in(main)
        return cls(
            main,
            tuple(name or f"argument {number}" for number, name in enumerate(names.arguments)),
            tuple(name or f"result {number}" for number, name in enumerate(names.results)),
        )

    def types(self, side: str) -> list[ir.Type]:
        """The types of the `arguments` or `results`."""
        kind = function_type(self.main)
        return list(kind.inputs if side == "arguments" else kind.results)

    def carried_pairs(self) -> list[tuple[int, int]]:
        """Pairs of an argument and the result that becomes it in the next step: of one type, with paths that end in the same
        keys. Pairs with more keys in common come first."""
        arguments, results = self.types("arguments"), self.types("results")
        result_keys, argument_keys = ([keys_of(path)[1:] for path in side] for side in (self.results, self.arguments))
        by_type: dict[ir.Type, list[int]] = {}
        for argument, type_ in enumerate(arguments):
            by_type.setdefault(type_, []).append(argument)
        common = [
            (-shared, result, argument)
            for result, keys in enumerate(result_keys)
            for argument in by_type.get(results[result], ())
            if (shared := _shared(keys, argument_keys[argument]))
        ]
        argument_of: dict[int, int] = {}
        paired: set[int] = set()
        for _, result, argument in sorted(common):
            if result not in argument_of and argument not in paired:
                argument_of[result] = argument
                paired.add(argument)
        return [(argument, result) for result, argument in sorted(argument_of.items())]


def _shared(keys: Sequence[str], other_keys: Sequence[str]) -> int:
    """The number of keys that two paths have in common at their ends."""
    pairs = zip(reversed(keys), reversed(other_keys), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def fix(module: ir.Module, mesh: Mesh, fixed: Iterable[Fixed]) -> None:
    """Writes the shardings into an annotated module, and replaces its annotations there.

    Raises MeshError for a pattern that matches nothing, an axis that the mesh does not have, and uneven shards.
    """
    leaves = BoundaryPaths.of(main_function(module))
    writers = {"arguments": reannotate.annotate_argument, "results": reannotate.annotate_result}
    for sharding in fixed:
        matched = [
            (side, i) for side in writers for i, path in enumerate(getattr(leaves, side)) if matches(sharding.pattern, path)
        ]
        if not matched:
            raise MeshError(no_match(sharding.pattern, (*leaves.arguments, *leaves.results)))
        for side, index in matched:
            split = _split(sharding, getattr(leaves, side)[index], leaves.types(side)[index], mesh)
            writers[side](leaves.main, index, Sharding(mesh.name, split))


def refuse_unused(module: ir.Module, mesh: Mesh, data_axes: Iterable[str]) -> None:
    """Raises MeshError for a data axis that the mesh does not have, and for one along which the annotated module shards nothing:
    the search would leave it idle."""
    used = {
        axis
        for op in walk(main_function(module))
        if op.name == ShardingOp.OPERATION_NAME
        for axis in ShardingOp(op).value.used_axes
    }
    for name in data_axes:
        if name not in mesh.runs:
            known = f"{', '.join(mesh.runs)}{did_you_mean(name, mesh.runs)}"
            raise MeshError(f"error: data-axis is '{name}', expected an axis of the mesh: {known}")
        if used.isdisjoint(mesh.runs[name]):
            raise MeshError(
                f"error: data-axis is '{name}', along which nothing is sharded: fix the batch, as in \"batch/**=P('{name}')\""
            )


def _split(fixed: Fixed, name: str, type_: ir.Type, mesh: Mesh) -> Split:
    shape = tuple(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else ()
    if len(fixed.spec) > len(shape):
        raise MeshError(f"error: '{fixed.pattern}' names {len(fixed.spec)} dimensions, {name} has {len(shape)}")
    runs: Mapping[str, tuple[int, ...]] = mesh.runs
    if unknown := [name for names in fixed.spec for name in names if name not in runs]:
        known = f"{', '.join(runs)}{did_you_mean(unknown[0], runs)}"
        raise MeshError(f"error: '{fixed.pattern}': the mesh has no axis '{unknown[0]}', expected one of {known}")
    named = [*chain.from_iterable(fixed.spec)]
    if len({*named}) < len(named):
        raise MeshError(f"error: '{fixed.pattern}' names an axis twice: {', '.join(named)}")
    split = tuple(tuple(axis for name in names for axis in runs[name]) for names in fixed.spec)
    split += ((),) * (len(shape) - len(split))
    for dim, (size, axes) in enumerate(zip(shape, split, strict=True)):
        if size % mesh.group_size(axes):
            devices = f"{mesh.group_size(axes)} devices"
            raise MeshError(f"error: '{fixed.pattern}': dimension {dim} of {name} has size {size}, which {devices} do not divide")
    return split
