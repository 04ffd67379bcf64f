"""What the user says is law: shardings of arguments and results by patterns of their paths, axes that are reserved, and what is to
be sharded alike on its way in and out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from meshbridge.dialect import reannotate
from meshbridge.dialect.names import names_in
from meshbridge.ir.mlir import MeshError, function_type, ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding, Split

_KEY = re.compile(r"\[([^\]]*)\]|\.(\w+)")
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
class Leaves:
    """The arguments and results of a program, by their paths."""

    main: ir.Operation
    arguments: tuple[tuple[str, ...], ...]
    "The keys of each path, its root first; where it has none, `arguments` and its number."
    results: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, main: ir.Operation) -> Leaves:
        """Those of a module's entry point."""
        names = names_in(main)
        return cls(main, *(tuple(_keys(name) or (side, str(n)) for n, name in enumerate(getattr(names, side))) for side in ("arguments", "results")))

    def types(self, side: str) -> list[ir.Type]:
        """Those of the `arguments` or `results`."""
        kind = function_type(self.main)
        return list(kind.inputs if side == "arguments" else kind.results)

    def matching(self, pattern: str, side: str) -> list[int]:
        """The places of those whose paths match."""
        expected = _regex(pattern)
        return [place for place, keys in enumerate(getattr(self, side)) if expected.fullmatch("/".join(keys) + "/")]

    def alike(self) -> list[tuple[int, int]]:
        """Arguments and the results that they become in the next step: of one type, with paths that end in the same keys. Of
        several, those are paired first that have more keys in common."""
        arguments, results = self.types("arguments"), self.types("results")
        common = [
            (-shared, result, argument)
            for result, own in enumerate(self.results)
            for argument, other in enumerate(self.arguments)
            if results[result] == arguments[argument] and (shared := _shared(own[1:], other[1:]))
        ]
        found: dict[int, int] = {}
        for _, result, argument in sorted(common):
            if result not in found and argument not in found.values():
                found[result] = argument
        return [(argument, result) for result, argument in sorted(found.items())]


def _keys(name: str) -> tuple[str, ...]:
    root = re.match(r"\w*", name)
    return ((root[0] if root else ""), *((index or attribute).strip("'\"") for index, attribute in _KEY.findall(name))) if name else ()


def _shared(keys: Sequence[str], others: Sequence[str]) -> int:
    """How many keys they end in."""
    count = 0
    for key, other in zip(reversed(keys), reversed(others), strict=False):
        if key != other:
            break
        count += 1
    return count


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = {"**": r"(?:[^/]+/)*"}
    return re.compile("".join(parts.get(key) or re.escape(key).replace(r"\*", "[^/]*") + "/" for key in pattern.split("/")))


def fix(module: ir.Module, mesh: Mesh, fixed: Iterable[Fixed]) -> None:
    """Writes the shardings into an annotated module, in place of what stands there.

    Raises MeshError for a pattern that matches nothing, an axis that the mesh does not have, and a dimension that does not divide.
    """
    leaves = Leaves.of(main_function(module))
    writers = {"arguments": reannotate.annotate_argument, "results": reannotate.annotate_result}
    for each in fixed:
        found = [(side, place) for side in writers for place in leaves.matching(each.pattern, side)]
        if not found:
            known = ", ".join("/".join(keys) for keys in leaves.arguments[:4])
            raise MeshError(f"error: no argument and no result matches '{each.pattern}': the arguments are {known}{', …' if len(leaves.arguments) > 4 else ''}")
        for side, place in found:
            keys, type_ = getattr(leaves, side)[place], leaves.types(side)[place]
            split = _split(each, f"{side[:-1]} {'/'.join(keys)}", type_, mesh)
            writers[side](leaves.main, place, Sharding(mesh.name, split))


def _split(fixed: Fixed, what: str, type_: ir.Type, mesh: Mesh) -> Split:
    shape = tuple(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else ()
    if len(fixed.spec) > len(shape):
        raise MeshError(f"error: '{fixed.pattern}' names {len(fixed.spec)} dimensions, {what} has {len(shape)}")
    runs: Mapping[str, tuple[int, ...]] = mesh.runs
    if unknown := [name for names in fixed.spec for name in names if name not in runs]:
        raise MeshError(f"error: '{fixed.pattern}': the mesh has no axis '{unknown[0]}', expected one of {', '.join(runs)}")
    split = tuple(tuple(axis for name in names for axis in runs[name]) for names in fixed.spec)
    split += ((),) * (len(shape) - len(split))
    for dim, (size, axes) in enumerate(zip(shape, split, strict=True)):
        if size % mesh.group_size(axes):
            raise MeshError(
                f"error: '{fixed.pattern}': dimension {dim} of {what} has size {size}, which does not divide by {mesh.group_size(axes)} devices"
            )
    return split
