"""Writes one Python function: its lines, and the expressions of the values that are visible in it.

A short value with one reader in the same block is written inside the reader's expression; constants and broadcasts are written
wherever they are read. Every other value is a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from meshbridge.cost.communication import Collective
from meshbridge.emit.python.code import INDENT, Code, call, comment, function_head, infix, literal, returned, statement, tuple_of
from meshbridge.emit.python.literals import WIDE, dtype_name
from meshbridge.emit.python.names import UniqueNames, base_name
from meshbridge.emit.python.table import WRITINGS
from meshbridge.ir.builder import element_of, op_of, shape_of
from meshbridge.ir.locations import SourceLocation, location_of
from meshbridge.ir.mlir import OpError, ir, terminator, terminator_operands
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.text import size_text

INLINE = 40
"""The most characters of an expression that is written inside its reader's."""

LONGEST = 64
"""The most characters of both operands of an operator, so that the statement fits a line."""

_STATEMENTS = ops_with(Trait.CONTRACTION, Trait.CONTROL_FLOW)
"""Ops that are always statements of their own."""


_HINT = "the forms mesh, local and exported have every op"

_HINTS = {"stablehlo.custom_call": f"keep calls of compiled libraries out of the function that is partitioned; {_HINT}"}
"""By op that cannot be written: its own hint."""


@dataclass(frozen=True)
class ValueCode:
    """How a value is written. `code` has its shape and type. `loose`, of shape `loose_shape`, may be used beside an operand of
    the full shape, by implicit broadcasting; if it is a Python number (`is_number`), also the type is implicit."""

    code: Code
    loose: Code | None = None
    loose_shape: tuple[int, ...] = ()
    is_number: bool = False


@dataclass
class Script:
    """State that the functions of one file share."""

    mesh: Mesh
    axis_names: tuple[str, ...]
    "The Python name of each axis of `mesh`."
    names: UniqueNames
    collectives: dict[ir.Operation, Collective]
    functions: Mapping[str, ir.Operation]
    "The functions of the module by their symbols."
    values: dict[ir.Value, ValueCode] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    "The helper functions that the program calls."
    is_wide: bool = False
    "True if it has elements of 64 bits."


class Scope:
    """The body of a function, or of a region inside it."""

    def __init__(self, script: Script, indent: str) -> None:
        self.script = script
        self.indent = indent
        self.lines: list[str] = []
        self._line = SourceLocation()
        self._block: ir.Block | None = None

    def write_block(self, block: ir.Block, results: Sequence[int] = ()) -> None:
        """Writes the ops of `block`, and the `return` of the terminator's operands at `results`, by default all."""
        self._block = block
        for view in block.operations:
            if view.operation != terminator(block):
                self._write(view.operation)
        returned_values = terminator_operands(block)
        codes = [self.at(returned_values[index]) for index in results or range(len(returned_values))]
        self.lines += returned(codes[0] if len(codes) == 1 else tuple_of(codes), self.indent)

    def _write(self, op: ir.Operation) -> None:
        if not any(True for result in op.results for _ in result.uses):
            return
        if (writing := WRITINGS.get(op.name)) is None:
            raise self.error(op, "has no equivalent among the functions of JAX", _HINTS.get(op.name, _HINT))
        for kind in {result.type for result in chain(op.operands, op.results)}:
            self._check_type(kind, op)
        codes = writing(op, self)
        if codes is None:
            return
        if isinstance(codes, Code) and len(op.results) == 1:
            self._bind_result(op, codes)
        elif isinstance(codes, Code):
            self.comment(op)
            self.lines += statement([self._variable(result, op) for result in op.results], codes, self.indent)
        else:
            for result, code in zip(op.results, codes, strict=True):
                self.define(result, code)

    def _bind_result(self, op: ir.Operation, code: Code) -> None:
        (result,) = op.results
        if code.text.isidentifier() or self._is_inlined(op, code):
            self.script.values[result] = ValueCode(code)
            return
        self.comment(op)
        self.lines += statement([self._variable(result, op)], code, self.indent)

    def _is_inlined(self, op: ir.Operation, code: Code) -> bool:
        if op.name in _STATEMENTS or op in self.script.collectives or len(code.text) > INLINE:
            return False
        return _is_read_once(op.results[0], op.block)

    def _variable(self, result: ir.Value, op: ir.Operation) -> str:
        """A new variable for `result`."""
        name = self.script.names.numbered(base_name(op))
        self.script.values[result] = ValueCode(Code(name))
        return name

    def define(
        self, value: ir.Value, code: Code, loose: Code | None = None, shape: Sequence[int] = (), *, number: bool = False
    ) -> None:
        """Sets how `value` is written wherever it is read."""
        self.script.values[value] = ValueCode(code, loose, tuple(shape), number)

    def alias(self, value: ir.Value, source: ir.Value) -> None:
        """Writes `value` as `source` is written."""
        self.script.values[value] = self.script.values[source]

    def at(self, value: ir.Value) -> Code:
        """`value` as an expression of its shape and type."""
        return self.script.values[value].code

    def written(self, value: ir.Value) -> ValueCode:
        """How `value` is written."""
        return self.script.values[value]

    def named(self, value: ir.Value) -> Code:
        """`value` as a variable, which is assigned now if it is none yet."""
        code = self.at(value)
        if not code.text.isidentifier():
            name = self.script.names.numbered(_base(value))
            self.lines += statement([name], code, self.indent)
            code = Code(name)
            if block_of(value) == self._block:  # else code after this function would read its local variable
                self.script.values[value] = ValueCode(code)
        return code

    def short(self, value: ir.Value) -> Code:
        """`value` as a short expression: a variable if its own is long."""
        code = self.at(value)
        return code if len(code.text) <= INLINE else self.named(value)

    def _name_operand(self, value: ir.Value) -> None:
        """Assigns a variable for `value`, before broadcasting if it is a broadcast."""
        value_code = self.script.values[value]
        if value_code.loose is None or value_code.is_number or value_code.loose.text.isidentifier():
            self.named(value)
            return
        name = self.script.names.numbered(_base(value))
        self.lines += statement([name], value_code.loose, self.indent)
        shape = tuple(shape_of(value))
        full = Code(name) if value_code.loose_shape == shape else call("jnp.broadcast_to", name, literal(shape))
        if block_of(value) == self._block:
            self.script.values[value] = ValueCode(full, Code(name), value_code.loose_shape)

    def infix(self, op: ir.Operation, sign: str) -> Code:
        """`x + y` on the operands of `op`; if they are too long together, the longer one becomes a variable."""
        lhs, rhs = self.broadcasting(op)
        if len(lhs.text) + len(rhs.text) > LONGEST:
            longer = op.operands[0 if len(lhs.text) > len(rhs.text) else 1]
            self._name_operand(longer)
            lhs, rhs = self.broadcasting(op)
        return infix(lhs, sign, rhs)

    def operands(self, op: ir.Operation) -> list[Code]:
        """The operands of `op`, with their shapes and types."""
        return [self.at(operand) for operand in op.operands]

    def broadcasting(self, op: ir.Operation, typed: Sequence[int] = ()) -> list[Code]:
        """The operands of an elementwise `op` for implicit broadcasting: together they have the result's shape, and one of those
        at `typed`, by default all, has its type."""
        operand_codes = [self.script.values[operand] for operand in op.operands]
        shapes = [tuple(shape_of(operand)) for operand in op.operands]
        wanted, typing = tuple(shape_of(op.results[0])), typed or range(len(operand_codes))
        for full in (None, *range(len(operand_codes))):
            loose = [value.loose is not None and index != full for index, value in enumerate(operand_codes)]
            operand_shapes = [
                value.loose_shape if is_loose else shape
                for value, is_loose, shape in zip(operand_codes, loose, shapes, strict=True)
            ]
            has_type = any(not (loose[index] and operand_codes[index].is_number) for index in typing)
            if has_type and _broadcast(operand_shapes) == wanted:
                pairs = zip(operand_codes, loose, strict=True)
                return [value.loose if is_loose and value.loose is not None else value.code for value, is_loose in pairs]
        return self.operands(op)

    def dtype(self, kind: ir.Type | ir.Value, op: ir.Operation) -> Code:
        """`jnp.float32`, for an element type or the element type of a value."""
        return Code(f"jnp.{dtype_name(element_of(kind) if isinstance(kind, ir.Value) else kind, op)}")

    def _check_type(self, kind: ir.Type, op: ir.Operation) -> None:
        if isinstance(kind, ir.RankedTensorType):
            dtype_name(kind.element_type, op)
            self.script.is_wide |= str(kind.element_type) in WIDE

    def function(self, block: ir.Block, base: str) -> str:
        """Defines a function with the arguments and body of `block`, and returns its name."""
        names = [self.argument(argument, _parameter(argument)) for argument in block.arguments]
        return self.defined(block, base, names, [])

    def argument(self, argument: ir.Value, base: str) -> str:
        """A new variable for an argument of a region."""
        name = self.script.names.numbered(base)
        self.script.values[argument] = ValueCode(Code(name))
        return name

    def defined(
        self, block: ir.Block, base: str, parameters: Sequence[str], begin: Sequence[str], results: Sequence[int] = ()
    ) -> str:
        """Defines a function with these parameters, whose body is the lines `begin` and then `block`. It returns the block's
        results at `results`, by default all."""
        name = self.script.names.numbered(base)
        inner = Scope(self.script, self.indent + INDENT)
        inner._line = self._line
        inner.lines += [f"{inner.indent}{line}" for line in begin]
        inner.write_block(block, results)
        if self.lines and self.lines[-1] and not self.lines[-1].endswith(":"):
            self.lines.append("")
        self.lines += [*function_head(name, parameters, self.indent), *inner.lines, ""]
        return name

    def axes(self, axes: Axes) -> Code:
        """Mesh axes as collectives name them."""
        names = [literal(self.script.axis_names[axis]) for axis in axes]
        return names[0] if len(names) == 1 else tuple_of(names)

    def all_axes(self) -> Code:
        """All axes of the mesh."""
        return self.axes(tuple(range(len(self.script.axis_names))))

    def index(self, axes: Axes) -> Code:
        """This device's number along `axes`."""
        return call("lax.axis_index", self.axes(axes))

    def comment(self, op: ir.Operation) -> None:
        """Comments on `op`: the user's source line if it is a new one, and for a collective what it sends and why."""
        line, comments = location_of(op), []
        if line.file and (line.file, line.line) != (self._line.file, self._line.line):
            self._line = line
            comments.append(f"{line.short} ({line.function})" if line.function else line.short)
        if (collective := self.script.collectives.get(op)) is not None:
            comments.append(_traffic_text(collective))
        for text in comments:
            self.lines += comment(text, self.indent)

    def error(self, op: ir.Operation, message: str, hint: str = "") -> OpError:
        """A diagnostic about `op`."""
        return OpError(op, message, hint)


def _traffic_text(collective: Collective) -> str:
    """The traffic of a collective, for a comment."""
    times = f", {collective.executions} times" if collective.executions != 1 else ""
    why = f": {collective.why}" if collective.why else ""
    return f"{size_text(collective.wire_bytes)} over {', '.join(collective.axes)}{times}{why}"


def _base(value: ir.Value) -> str:
    return "value" if is_argument(value) else base_name(op_of(value))


def _parameter(argument: ir.BlockArgument) -> str:
    return "x" if shape_of(argument) else "s"


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


_LAZY = "stablehlo.broadcast_in_dim"


def _is_read_once(value: ir.Value, block: ir.Block) -> bool:
    """True if one op of `block` reads `value` once and, if that op is a broadcast, is read once itself."""
    readers = [use.owner.operation for use in value.uses]
    if len(readers) != 1 or readers[0].block != block or len(readers[0].regions):
        return False
    return readers[0].name != _LAZY or _is_read_once(readers[0].results[0], block)
