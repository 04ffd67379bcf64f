"""One Python function while it is written: its lines, and how the values that it can see are written.

A value that one op reads, in the same block, stands in that op's expression while it is short; constants and broadcasts stand
wherever they are read. Everything else is a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from meshbridge.cost.communication import Collective
from meshbridge.emit.python.code import (
    INDENT,
    Code,
    call,
    comment,
    function_head,
    infix,
    literal,
    returned,
    statement,
    tuple_of,
)
from meshbridge.emit.python.literals import WIDE, dtype_name
from meshbridge.emit.python.names import UniqueNames, base_name
from meshbridge.emit.python.table import WRITINGS
from meshbridge.ir.builder import element_of, op_of, shape_of
from meshbridge.ir.locations import SourceLocation, location_of
from meshbridge.ir.mlir import OpError, ir, terminator
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.text import size_text

INLINE = 40
"""Characters of an expression that stands in the one that reads it."""

LONGEST = 64
"""Characters of both operands of an operator: with the operator, a variable and an indentation they fit a line."""

_STATEMENTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.while", "stablehlo.case", "stablehlo.if"})
"""What is a statement of its own, however short."""


_HINT = "the forms mesh, local and exported have every op"

_HINTS = {"stablehlo.custom_call": f"keep calls of compiled libraries out of the function that is partitioned; {_HINT}"}
"""The way out where an op cannot be written, for those that have one of their own."""


@dataclass(frozen=True)
class Value:
    """How a value is written. `code` has its shape and type. `loose` may stand beside an operand that has them: numpy's rules
    make of `loose`, of shape `loose_shape`, the value; where it is a Python number, `is_number`, also its type."""

    code: Code
    loose: Code | None = None
    loose_shape: tuple[int, ...] = ()
    is_number: bool = False


@dataclass
class Script:
    """What the functions of one file share."""

    mesh: Mesh
    axis_names: tuple[str, ...]
    "What Python calls each axis of `mesh`."
    names: UniqueNames
    collectives: dict[ir.Operation, Collective]
    functions: Mapping[str, ir.Operation]
    "The functions of the module by their symbols."
    values: dict[ir.Value, Value] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    "The functions in front of the program that it calls."
    is_wide: bool = False
    "Whether it has elements of 64 bits."


class Scope:
    """A function's body, or that of a region inside of it."""

    def __init__(self, script: Script, indent: str) -> None:
        self.script = script
        self.indent = indent
        self.lines: list[str] = []
        self._line = SourceLocation()
        self._block: ir.Block | None = None

    def write_block(self, block: ir.Block, results: Sequence[int] = ()) -> None:
        """The statements of all ops of `block` but the last, and the `return` of what that gives: of those at `results`, all by
        default."""
        self._block = block
        for view in block.operations:
            if view.operation != terminator(block):
                self._write(view.operation)
        given = list(terminator(block).operands)  # type: ignore[union-attr]  # blocks end
        codes = [self.at(given[index]) for index in results or range(len(given))]
        self.lines += returned(codes[0] if len(codes) == 1 else tuple_of(codes), self.indent)

    def _write(self, op: ir.Operation) -> None:
        if not any(True for result in op.results for _ in result.uses):
            return
        if (writing := WRITINGS.get(op.name)) is None:
            raise self.error(op, "has no equivalent among the functions of JAX", _HINTS.get(op.name, _HINT))
        for kind in {result.type for result in chain(op.operands, op.results)}:
            self._note(kind, op)
        found = writing(op, self)
        if found is None:
            return
        if isinstance(found, Code) and len(op.results) == 1:
            self._one(op, found)
        elif isinstance(found, Code):
            self.comment(op)
            self.lines += statement([self._new(result, op) for result in op.results], found, self.indent)
        else:
            for result, code in zip(op.results, found, strict=True):
                self.define(result, code)

    def _one(self, op: ir.Operation, code: Code) -> None:
        (result,) = op.results
        if code.text.isidentifier() or self._is_inlined(op, code):
            self.script.values[result] = Value(code)
            return
        self.comment(op)
        self.lines += statement([self._new(result, op)], code, self.indent)

    def _is_inlined(self, op: ir.Operation, code: Code) -> bool:
        if op.name in _STATEMENTS or op in self.script.collectives or len(code.text) > INLINE:
            return False
        return _is_read_once(op.results[0], op.block)

    def _new(self, result: ir.Value, op: ir.Operation) -> str:
        """A new variable for `result`."""
        name = self.script.names.numbered(base_name(op))
        self.script.values[result] = Value(Code(name))
        return name

    def define(
        self, value: ir.Value, code: Code, loose: Code | None = None, shape: Sequence[int] = (), *, number: bool = False
    ) -> None:
        """Says how `value` is written wherever it is read."""
        self.script.values[value] = Value(code, loose, tuple(shape), number)

    def alias(self, value: ir.Value, other: ir.Value) -> None:
        """Says that `value` is written as `other` is."""
        self.script.values[value] = self.script.values[other]

    def at(self, value: ir.Value) -> Code:
        """`value` as an expression of its shape and type."""
        return self.script.values[value].code

    def written(self, value: ir.Value) -> Value:
        """All that is known of how `value` is written."""
        return self.script.values[value]

    def named(self, value: ir.Value) -> Code:
        """`value` as what may be written several times: a variable, which it becomes now if need be."""
        code = self.at(value)
        if not code.text.isidentifier():
            name = self.script.names.numbered(_base(value))
            self.lines += statement([name], code, self.indent)
            code = Code(name)
            if block_of(value) == self._block:  # else what comes after this function would read a variable of it
                self.script.values[value] = Value(code)
        return code

    def short(self, value: ir.Value) -> Code:
        """`value` as what something may stand behind: a variable where it is long."""
        code = self.at(value)
        return code if len(code.text) <= INLINE else self.named(value)

    def _shortened(self, value: ir.Value) -> None:
        """Makes a variable of what broadcasting completes to `value`, or of `value` itself."""
        known = self.script.values[value]
        if known.loose is None or known.is_number or known.loose.text.isidentifier():
            self.named(value)
            return
        name = self.script.names.numbered(_base(value))
        self.lines += statement([name], known.loose, self.indent)
        shape = tuple(shape_of(value))
        full = Code(name) if known.loose_shape == shape else call("jnp.broadcast_to", name, literal(shape))
        if block_of(value) == self._block:
            self.script.values[value] = Value(full, Code(name), known.loose_shape)

    def infix(self, op: ir.Operation, sign: str) -> Code:
        """`x + y` of the operands of `op`, of which one is a variable where both are long."""
        left, right = self.broadcasting(op)
        if len(left.text) + len(right.text) > LONGEST:
            longer = op.operands[0 if len(left.text) > len(right.text) else 1]
            self._shortened(longer)
            left, right = self.broadcasting(op)
        return infix(left, sign, right)

    def operands(self, op: ir.Operation) -> list[Code]:
        """The operands of `op`, of their shapes and types."""
        return [self.at(operand) for operand in op.operands]

    def broadcasting(self, op: ir.Operation, typed: Sequence[int] = ()) -> list[Code]:
        """The operands of an elementwise `op` as numpy's rules need them: of those at `typed`, all by default, one says the type
        of the result, and all together its shape."""
        known = [self.script.values[operand] for operand in op.operands]
        shapes = [tuple(shape_of(operand)) for operand in op.operands]
        wanted, typing = tuple(shape_of(op.results[0])), typed or range(len(known))
        for full in (None, *range(len(known))):
            loose = [value.loose is not None and index != full for index, value in enumerate(known)]
            taken = [
                value.loose_shape if is_loose else shape for value, is_loose, shape in zip(known, loose, shapes, strict=True)
            ]
            has_type = any(not (loose[index] and known[index].is_number) for index in typing)
            if has_type and _broadcast(taken) == wanted:
                pairs = zip(known, loose, strict=True)
                return [value.loose if is_loose and value.loose is not None else value.code for value, is_loose in pairs]
        return self.operands(op)

    def dtype(self, kind: ir.Type | ir.Value, op: ir.Operation) -> Code:
        """`jnp.float32`, for an element type or that of a value."""
        return Code(f"jnp.{dtype_name(element_of(kind) if isinstance(kind, ir.Value) else kind, op)}")

    def _note(self, kind: ir.Type, op: ir.Operation) -> None:
        if isinstance(kind, ir.RankedTensorType):
            dtype_name(kind.element_type, op)
            self.script.is_wide |= str(kind.element_type) in WIDE

    def function(self, block: ir.Block, base: str) -> str:
        """Defines a function of the arguments of `block`, which is its body, and gives its name."""
        names = [self.argument(argument, _parameter(argument)) for argument in block.arguments]
        return self.defined(block, base, names, [])

    def argument(self, argument: ir.Value, base: str) -> str:
        """A new variable for an argument of a region."""
        name = self.script.names.numbered(base)
        self.script.values[argument] = Value(Code(name))
        return name

    def defined(
        self, block: ir.Block, base: str, parameters: Sequence[str], begin: Sequence[str], results: Sequence[int] = ()
    ) -> str:
        """Defines a function with these parameters, whose body are the lines `begin`, and `block`, of whose results it gives
        those at `results`, all by default."""
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
        """The line of the user's program where it is another one, and for a collective what it sends and why."""
        line, found = location_of(op), []
        if line.file and (line.file, line.line) != (self._line.file, self._line.line):
            self._line = line
            found.append(f"{line.short} ({line.function})" if line.function else line.short)
        if (collective := self.script.collectives.get(op)) is not None:
            found.append(_sent(collective))
        for text in found:
            self.lines += comment(text, self.indent)

    def error(self, op: ir.Operation, message: str, hint: str = "") -> OpError:
        """A diagnostic about `op`."""
        return OpError(op, message, hint)


def _sent(collective: Collective) -> str:
    """What a collective sends, as a comment."""
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
    """Whether one op of `block` reads `value` once, and what is written where it is read is read once itself."""
    readers = [use.owner.operation for use in value.uses]
    if len(readers) != 1 or readers[0].block != block or len(readers[0].regions):
        return False
    return readers[0].name != _LAZY or _is_read_once(readers[0].results[0], block)
