"""Writes a partitioned module as a Python file: the mesh, one device's function, and the function on global arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from meshbridge.analysis.executions import executed
from meshbridge.cost.communication import Collective, communicating, wire_bytes_on
from meshbridge.dialect.boundary import Boundary, read_boundary
from meshbridge.dialect.donation import is_donated
from meshbridge.dialect.module_mesh import declared_meshes, mesh_or_single
from meshbridge.emit.python import (  # noqa: F401  they fill WRITINGS
    collectives,
    contractions,
    control,
    elementwise,
    indexing,
    libraries,
    reductions,
    shapes,
    sorts,
)
from meshbridge.emit.python.code import (
    INDENT,
    Code,
    call,
    docstring,
    function_head,
    literal,
    returned,
    statement,
    tuple_of,
)
from meshbridge.emit.python.helpers import helper_sources
from meshbridge.emit.python.literals import WIDE_NAMES, dtype_name
from meshbridge.emit.python.names import UniqueNames, argument_name, identifier
from meshbridge.emit.python.scope import Scope, Script, ValueCode
from meshbridge.ir.builder import shape_of
from meshbridge.ir.groups import Groups
from meshbridge.ir.mlir import MeshError, OpError, entries, ir, main_function, terminator_operands, walk_all
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.lowering.blocks import lower_module
from meshbridge.read.formats import Calling, Program, copy_module
from meshbridge.text import size_text

MOST_OPS = 20_000
"""The most ops of a program: 1.5 times those of a training step of a GPT with 48 layers."""


NAME = "main"
"""The name of the function on global arrays; `main_on_shards` is the one on one device's shards."""


def write(program: Program) -> str:
    """The text of a Python file whose function `main` computes the partitioned program on global arrays, with the same
    collectives. Its arguments are the leaves of the program's arguments. The program is not changed.

    Raises OpError for an op that has no equivalent in JAX, for a constant of many numbers, and for an argument or result that is
    unreduced; MeshError for more than MOST_OPS ops, and for a program for several platforms.
    """
    if len(program.platforms) > 1:
        message = f"error: the program is for the platforms {', '.join(program.platforms)}, expected one in Python"
        raise MeshError(f"{message}\n  hint: choose one by --platform, or platform=")
    ours = copy_module(program.module)
    _refuse_many(ours)
    with ours.context, ir.Location.unknown():
        lower_module(ours, Groups("exported", "dense"), is_kept=collectives.is_written)
        return _File(ours, program.calling).text()


def _refuse_many(module: ir.Module) -> None:
    if (count := len(walk_all(module))) > MOST_OPS:
        hint = "--emit mesh and --emit local write programs of any size"
        raise MeshError(f"<module>: error: the program has {count} ops, expected at most {MOST_OPS} in Python\n  hint: {hint}")


@dataclass(frozen=True)
class _BoundaryArray:
    """An argument or result: its name, type and sharding."""

    name: str
    label: str
    dtype: str
    shard: tuple[int, ...]
    boundary: Boundary

    def padded(self, mesh: Mesh) -> tuple[int, ...]:
        """The shape of all shards together."""
        return tuple(size * mesh.group_size(axes) for size, axes in zip(self.shard, self.boundary.split, strict=True))

    def excess(self, mesh: Mesh) -> tuple[int, ...]:
        """The padding of each dimension."""
        return tuple(padded - size for padded, size in zip(self.padded(mesh), self.boundary.shape, strict=True))


class _File:
    """The parts of the file in order."""

    def __init__(self, module: ir.Module, calling: Calling | None) -> None:
        self.main = main_function(module)
        self.mesh = mesh_or_single(module)
        self.axis_names = _axis_names(self.mesh)
        self.names = UniqueNames()
        self.names.exactly(NAME)
        self.names.exactly(f"{NAME}_on_shards")
        self.script = Script(self.mesh, self.axis_names, self.names, _collectives(module), _functions(module))
        block = self.main.regions[0].blocks[0]
        count = len(block.arguments)
        labels = calling.labels() if calling else [f"arg{number}" for number in range(count)]
        self.arguments = self._arrays(block.arguments, "arg_attrs", labels)
        returned_values = terminator_operands(block)
        self.results = self._arrays(returned_values, "res_attrs", [f"result {number}" for number in range(len(returned_values))])
        self.block = block
        given_away = [is_donated(entry) for entry in entries(self.main, "arg_attrs")]
        argument_places = list(calling.kept) if calling else list(range(count))
        self.donated = tuple(place for place, is_donated in zip(argument_places, given_away, strict=True) if is_donated)
        named = dict(zip(argument_places, (argument.name for argument in self.arguments), strict=True))
        places = range(calling.count if calling else count)
        self.parameters = [named[place] if place in named else self.names.numbered("unread") for place in places]

    def _arrays(self, values: Iterable[ir.Value], side: str, labels: Sequence[str]) -> list[_BoundaryArray]:
        arrays = []
        for value, entry, label in zip(values, entries(self.main, side), labels, strict=True):
            if not isinstance(value.type, ir.RankedTensorType):
                raise OpError(self.main, f"takes or gives a {value.type}, expected tensors", "--emit local writes any type")
            boundary = read_boundary(entry, ir.RankedTensorType(value.type))
            if boundary.partial:
                hint = "give it a sharding without unreduced axes"
                raise OpError(self.main, f"has {label} unreduced, which jax.shard_map takes no specs of without check_vma", hint)
            name = self._argument(value, label) if side == "arg_attrs" else ""
            dtype = dtype_name(ir.RankedTensorType(value.type).element_type, self.main)
            arrays.append(_BoundaryArray(name, label, dtype, tuple(shape_of(value)), boundary))
        return arrays

    def _argument(self, value: ir.Value, label: str) -> str:
        name = self.names.exactly(argument_name(ir.BlockArgument(value), label))
        self.script.values[value] = ValueCode(Code(name))
        return name

    def text(self) -> str:
        """The whole file."""
        on_shards, outer = self._on_shards(), self._outer()
        parts = [
            self._docstring(),
            self._imports(),
            *helper_sources(self.script.helpers),
            "\n".join(self._make_mesh()),
            "\n".join(on_shards),
            "\n".join(outer),
        ]
        return "\n\n\n".join(part.strip("\n") for part in parts).replace('"""\n\n\n', '"""\n\n', 1) + "\n"

    def _docstring(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in zip(self.axis_names, self._sizes, strict=True))
        traffic = size_text(sum(collective.total_bytes for collective in self.script.collectives.values()))
        lines = [
            f"The partitioned program on a mesh of {mesh}: what each device computes, and every collective.",
            "",
            f"A device sends {traffic} in a run. Call `{NAME}` with global arrays, the leaves of the arguments in order:",
            "",
            *_table(self.arguments, self._spec),
            *self._unread(),
            "",
            "It gives:" if self.results else "It gives nothing.",
            *(["", *_table(self.results, self._spec)] if self.results else []),
        ]
        return docstring(line.rstrip() for line in lines)

    def _imports(self) -> str:
        return f"from functools import partial\n{_IMPORTS}" if self.donated else _IMPORTS

    def _unread(self) -> list[str]:
        count = len(self.parameters) - len(self.arguments)
        return ["", f"It does not read {count} more, `unread_1` and so on."] if count else []

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.mesh.shape or (1,)

    def _make_mesh(self) -> list[str]:
        count = prod(self._sizes)
        chosen = (
            f"[list(devices)[i] for i in {list(self.mesh.device_ids)}]" if self.mesh.device_ids else f"list(devices)[:{count}]"
        )
        shape = ", ".join(map(str, self._sizes))
        return [
            "def make_mesh(devices=None):",
            f'{INDENT}"""The mesh on `devices`, by default the first {count} that JAX has."""',
            f"{INDENT}devices = jax.devices() if devices is None else devices",
            f"{INDENT}return Mesh(np.array({chosen}).reshape({shape}), {literal(self.axis_names)})",
        ]

    def _on_shards(self) -> list[str]:
        scope = Scope(self.script, INDENT)
        scope.write_block(self.block)
        parameters = [f"{argument.name}" for argument in self.arguments]
        head = function_head(f"{NAME}_on_shards", parameters, "")
        begins_with_function = scope.lines[0].lstrip().startswith("def ")
        doc = [f'{INDENT}"""One device\'s part, on its shards."""', *([""] if begins_with_function else [])]
        return [*head, *doc, *scope.lines]

    def _outer(self) -> list[str]:
        decorator = f"@partial(jax.jit, donate_argnums={literal(self.donated)})" if self.donated else "@jax.jit"
        lines = [decorator, *function_head(NAME, self.parameters, "")]
        lines.append(f'{INDENT}"""The program on global arrays."""')
        if self._has_wide_boundary:
            lines += [
                f"{INDENT}if not jax.config.jax_enable_x64:",
                f'{INDENT * 2}raise ValueError("{NAME} takes or gives elements of 64 bits: set JAX_ENABLE_X64=1")',
            ]
        for argument in self.arguments:
            if any(excess := argument.excess(self.mesh)):
                pads = literal(tuple((0, size) for size in excess))
                lines.append(f"{INDENT}{argument.name} = {call('jnp.pad', argument.name, pads)}  # to equal shards")
        specs = [tuple_of([self._spec(array) for array in side]) for side in (self.arguments, self.results)]
        out = specs[1] if len(self.results) != 1 else self._spec(self.results[0])
        call_shard_map = call(
            "jax.shard_map",
            f"{NAME}_on_shards",
            mesh="make_mesh()",
            in_specs=specs[0],
            out_specs=out,
            check_vma="False",
        )
        lines += statement(["on_mesh"], call_shard_map, INDENT)
        applied = call("on_mesh", *[argument.name for argument in self.arguments])
        names = [self.names.numbered("out") for _ in self.results]
        is_cut = any(any(result.excess(self.mesh)) for result in self.results)
        indent = INDENT
        if self.script.is_wide and not self._has_wide_boundary:
            lines.append(f"{INDENT}with jax.enable_x64(True):  # some elements inside have 64 bits")
            indent = INDENT * 2
        if not is_cut:
            return [*lines, *returned(applied, indent)]
        return [*lines, *statement(names, applied, indent), *returned(self._without_padding(names), INDENT)]

    @property
    def _has_wide_boundary(self) -> bool:
        """True if an argument or result has elements that JAX has only if `jax_enable_x64` is set."""
        return any(array.dtype in WIDE_NAMES for array in (*self.arguments, *self.results))

    def _without_padding(self, names: list[str]) -> Code:
        """The results without the padding of their shards."""
        slices = []
        for name, result in zip(names, self.results, strict=True):
            entries_of = [
                f":{size}" if excess else ":"
                for size, excess in zip(result.boundary.shape, result.excess(self.mesh), strict=True)
            ]
            slices.append(Code(f"{name}[{', '.join(entries_of)}]" if any(result.excess(self.mesh)) else name))
        return slices[0] if len(slices) == 1 else tuple_of(slices)

    def _spec(self, array: _BoundaryArray) -> Code:
        """`P("data")`, without trailing `None`s."""
        entries_of = [self._entry(axes) for axes in array.boundary.split]
        while entries_of and entries_of[-1].text == "None":
            entries_of.pop()
        return call("P", *entries_of)

    def _entry(self, axes: Axes) -> Code:
        names = [literal(self.axis_names[axis]) for axis in axes]
        return names[0] if len(names) == 1 else tuple_of(names) if names else Code("None")


_IMPORTS = """
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
"""


def _axis_names(mesh: Mesh) -> tuple[str, ...]:
    """The user's names; sub-axes of an axis have numbers, outer ones first."""
    if not mesh.rank:
        return ("device",)
    names = UniqueNames()
    axis_names: list[str] = []
    for name, run in mesh.runs.items():
        base = identifier(name, "axis")
        axis_names += [names.exactly(base)] if len(run) == 1 else [names.exactly(f"{base}_{part}") for part in range(len(run))]
    return tuple(axis_names)


def _functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions of a module by symbol."""
    functions = [view.operation for view in module.body.operations if view.operation.name == "func.func"]
    return {ir.StringAttr(function.attributes["sym_name"]).value: function for function in functions}


def _collectives(module: ir.Module) -> dict[ir.Operation, Collective]:
    """The collectives of the program by op."""
    meshes = declared_meshes(module.body)
    runs = executed(module, weigh=wire_bytes_on(meshes))
    return {op: collective for op, *_, collective in communicating(runs, meshes)}


def _table(arrays: Sequence[_BoundaryArray], spec: Callable[[_BoundaryArray], Code]) -> list[str]:
    """One line for each array: its name, its type, its sharding, and its path if it differs from the name."""
    rows = []
    for array in arrays:
        kind = f"{array.dtype}[{','.join(map(str, array.boundary.shape))}]"
        path = array.label if array.name not in ("", array.label) else ""
        rows.append((array.name or array.label, kind, spec(array).text, path))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return ["    " + "  ".join(text.ljust(width) for text, width in zip(row, (*widths, 0), strict=True)) for row in rows]
