"""Reads scripts of mutations: modules of MLIR's transform dialect with the RFC's op `transform.mesh.mutate`.

    transform.mesh.mutate [["data"], [], []] {op = "stablehlo.dot_general", index = 1}

or on a handle, as in the RFC, for the option of ops, or the sharding of one of their results or operands:

    %dots = transform.structured.match ops{["stablehlo.dot_general"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.mesh.mutate %dots, [[0], [], []] : !transform.any_op
    transform.mesh.mutate %dots result 0, [[0], []] : !transform.any_op

Both syntaxes of MLIR are read (`transform_text`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshbridge.decide.mutations import AxisList, Mutation
from meshbridge.decide.transform_text import MATCH, MUTATE, SEQUENCE, read_script
from meshbridge.dialect.attributes import axis_array, string
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, context, ir, walk_all

_AROUND = frozenset({"builtin.module", SEQUENCE, "transform.sequence", "transform.yield"})
"""Structural ops of a script."""

_NUMBERS = ("index", "result", "operand")
_SELECTORS = ("op", "location", *_NUMBERS)


def read_mutations(text: str | bytes, filename: str) -> tuple[Mutation, ...]:
    """The mutations of a script, in order, one for each op name that a handle matches.

    Raises ParseError for invalid MLIR, MeshError for an op that scripts do not have, for unknown attributes or attributes of the
    wrong kind, and for a script without a mutation.
    """
    module = read_script(text, filename, context())
    script = _MutationScript(filename)
    mutations = [mutation for op in walk_all(module) for mutation in script.mutations(op)]
    if not mutations:
        raise MeshError(f"{filename}: error: expected an op '{MUTATE}', found none")
    return tuple(mutations)


_PROPERTIES = re.compile(r"\) <(\{.*\})>(?= [({:])", re.S)


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The op's attributes, with the properties `<{…}>`, which the bindings do not expose for an op that MLIR does not know."""
    attributes = dict(op.attributes.items())
    text = op.get_asm(print_generic_op_form=True, use_local_scope=True, skip_regions=True)
    printed = _PROPERTIES.search(str(text))
    if printed is not None:
        with op.context:
            properties = ir.DictAttr(ir.Attribute.parse(printed[1]))
        entries = [properties[number] for number in range(len(properties))]
        attributes |= {entry.name: entry.attr for entry in entries}
    return attributes


class _MutationScript:
    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.sequence = ""
        "The name of the sequence read so far."

    def mutations(self, op: ir.Operation) -> list[Mutation]:
        """The mutations of an op of the script; none for a structural op."""
        if op.name == MATCH:
            self._matched(op)
            return []
        if op.name != MUTATE:
            if op.name not in _AROUND:
                raise self._error(op, f"found the op '{op.name}', expected '{MUTATE}' or '{MATCH}'")
            if op.name == SEQUENCE:
                self._enter(op)
            return []
        attributes = _attributes(op)
        if unknown := sorted(set(attributes) - {*_SELECTORS, "option"}):
            raise self._error(op, f"found the attribute '{unknown[0]}', expected option, {', '.join(_SELECTORS)}")
        if "option" not in attributes:
            raise self._error(op, "expected the attribute 'option', an array of mesh axes for each loop")
        op_names = self._handled(op, attributes)
        location = self._text(op, attributes, "location")
        index, result, operand = (self._number(op, attributes, name) for name in _NUMBERS)
        if result is not None and operand is not None:
            raise self._error(op, "names a result and an operand, expected one of them")
        option = self._option(op, attributes["option"])
        written = self._location(op)
        return [Mutation(option, op_name, location, index, result, operand, written=written) for op_name in op_names]

    def _enter(self, op: ir.Operation) -> None:
        """Raises MeshError for a second sequence: nothing says which one to run."""
        name = string(_attributes(op).get("sym_name") or ir.StringAttr.get("", op.context))
        if self.sequence:
            raise self._error(op, f"@{name} is a second sequence beside @{self.sequence}, expected one")
        self.sequence = name or "?"

    def _handled(self, op: ir.Operation, attributes: dict[str, ir.Attribute]) -> list[str]:
        """The op names that the mutation selects: those of the handle, or of the attribute; one empty name for any op."""
        if len(op.operands) == 0:
            return [self._text(op, attributes, "op")]
        producer = op.operands[0].owner
        if len(op.operands) > 1 or isinstance(producer, ir.Block) or producer.name != MATCH:
            raise self._error(op, f"expected one handle that '{MATCH}' makes, or none")
        if "op" in attributes:
            raise self._error(op, "has a handle and the attribute 'op', expected one of them")
        names = self._matched(producer.operation)
        if "index" in attributes and len(names) > 1:
            raise self._error(op, "has an index into a handle of several op names, expected one name")
        return names

    def _matched(self, op: ir.Operation) -> list[str]:
        attributes = _attributes(op)
        if set(attributes) != {"ops"} or not isinstance(attributes["ops"], ir.ArrayAttr):
            raise self._error(op, "expected the attribute 'ops' alone, an array of op names")
        names = [string(name) for name in attributes["ops"] if isinstance(name, ir.StringAttr)]
        if not names or len(names) != len(attributes["ops"]):
            raise self._error(op, f"expected op names, found {attributes['ops']}")
        return names

    def _text(self, op: ir.Operation, attributes: dict[str, ir.Attribute], name: str) -> str:
        attribute = attributes.get(name)
        if attribute is None:
            return ""
        if not isinstance(attribute, ir.StringAttr) or not attribute.value:
            raise self._error(op, f"expected a text as '{name}', found {attribute}")
        return string(attribute)

    def _number(self, op: ir.Operation, attributes: dict[str, ir.Attribute], name: str) -> int | None:
        attribute = attributes.get(name)
        if attribute is None:
            return None
        if not isinstance(attribute, ir.IntegerAttr):
            raise self._error(op, f"expected a number as '{name}', found {attribute}")
        return int(attribute.value)

    def _option(self, op: ir.Operation, attribute: ir.Attribute) -> Sequence[AxisList]:
        if not isinstance(attribute, ir.ArrayAttr):
            try:
                return axis_array(attribute)
            except MeshError:
                raise self._no_option(op, attribute) from None
        return tuple(self._loop(op, attribute, axes) for axes in attribute)

    def _loop(self, op: ir.Operation, whole: ir.Attribute, axes: ir.Attribute) -> AxisList:
        if not isinstance(axes, ir.ArrayAttr):
            raise self._no_option(op, whole)
        axis_list: list[int | str] = []
        for axis in axes:
            if isinstance(axis, ir.StringAttr):
                axis_list.append(string(axis))
            elif isinstance(axis, ir.IntegerAttr):
                axis_list.append(int(axis.value))
            else:
                raise self._no_option(op, whole)
        return tuple(axis_list)

    def _no_option(self, op: ir.Operation, attribute: ir.Attribute) -> MeshError:
        return self._error(op, f'expected an option as in [[0], []] or [["data"], []], found {attribute}')

    def _location(self, op: ir.Operation) -> str:
        at = location_of(op)
        return f"{self.filename}:{at.line}:{at.column}"

    def _error(self, op: ir.Operation, message: str) -> MeshError:
        return MeshError(f"{self._location(op)}: error: '{op.name}' op {message}")
