"""Why each communication happens: which operation needs which operand in which sharding, in words that the report prints.

Reasons are recorded in locations (`ir/locations.py`), only if the user asks for them (`mesh-spmdization{explain=true}`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import names_file, user_line, with_reason, without_reason
from meshbridge.ir.mlir import display_name, ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.ir.uses import is_argument
from meshbridge.ops.traits import Trait, has
from meshbridge.text import spec_text

_PARTIAL = {
    "dot_general": "contracts a split dimension",
    "dot": "contracts a split dimension",
    "convolution": "contracts a split dimension",
    "reduce": "reduces a split dimension",
    "gather": "looks up rows of a split dimension",
    "scatter": "takes updates that are split over devices",
    "custom_call": "reduces a split dimension, as its rule says,",
    "composite": "reduces a split dimension, as its rule says,",
}
"""Why the result of an operation is partial."""

OWN = "your program"
"""The requester of a collective that the program itself contains."""

CHOSEN_HERE = "chosen here"
"""The requester of a collective for which nobody asked."""


class _PartialOrigin(NamedTuple):
    """What makes a value partial."""

    how: str
    at: ir.Location | None


_ARGUMENT = _PartialOrigin("an argument", None)


class Reasons:
    """The reasons of one function's communication, recorded while it is partitioned."""

    def __init__(self, mesh: Mesh, results: Sequence[str]) -> None:
        self.mesh = mesh
        self.results = results
        "The names of the function's results; empty for one without."
        self.chosen = ""
        "Who has chosen the sharding of the current op, and why."
        self._origins: dict[ir.Value, _PartialOrigin] = {}
        "For partial values, what makes them partial."
        self._op: tuple[str, ir.Location] | None = None
        "Title and location of the current op, which its SPMD lowering may replace."
        self._carried: _PartialOrigin | None = None
        "What makes the current op's first partial operand partial."

    def reshard_location(
        self, value: ir.Value, source: Sharding, target: Sharding, before: ir.Operation, defined_at: ir.Location | None = None
    ) -> ir.Location:
        """The location of collectives that reshard `value` from `source` to `target` before the op that needs it, or at its
        definition."""
        need, requester = self._wanted(value, before) if defined_at is None else (self._kept(value), self.chosen)
        reason, location = f"{need} {self._text(target)}", defined_at or _located(value, before)
        if set(source.partial_axes) - set(target.partial_axes):
            partial = f"partial {source.partial_kind} over {self._names(source.partial_axes)}"
            origin = self._origins.get(value, _ARGUMENT)
            return with_reason(f"{origin.how}: {partial}; {reason}", location, requester, origin.at)
        return with_reason(f"{reason} but is sharded as {self._text(source)}", location, requester)

    def record_op(self, op: ir.Operation, *, exchanges: bool) -> None:
        """Records `op` before it is lowered; if the lowering may communicate, sets the reason in the op's location."""
        self._op = (display_name(op), op.location)
        self._carried = next((self._origins[value] for value in op.operands if value in self._origins), None)
        if op.name.startswith("mesh.") or not {"replica_groups", "source_target_pairs"}.isdisjoint(op.attributes):
            op.location = with_reason("the program's own", op.location, OWN)
        elif exchanges:
            op.location = with_reason(f"{_call(op)} reads elements of other shards", op.location, self.chosen)

    def record_value(self, value: ir.Value, sharding: Sharding, source: ir.Value | None = None) -> None:
        """Records a value: a result of the current op, or `source` resharded."""
        if sharding.partial_axes:
            origin = self._carried if source is None else self._origins.get(source)
            self._origins[value] = origin or self._origin()

    def _origin(self) -> _PartialOrigin:
        """How the current op makes a result partial."""
        if self._op is None:
            return _ARGUMENT
        name, location = self._op
        kind = name.split()[0].removeprefix("stablehlo.")
        return _PartialOrigin(f"{_named(name, location)} {_PARTIAL.get(kind, 'computes a term on each device')}", location)

    def _wanted(self, value: ir.Value, before: ir.Operation) -> tuple[str, str]:
        """The op that needs `value` in another sharding, with the value's role there; and who requested it."""
        if before.name != "mesh.shard":
            index = next((index for index, used in enumerate(before.operands) if used == value), None)
            return f"{_operand(before, index)} needs", self.chosen
        requester = f"your constraint at {user_line(before.location).short}"
        if "annotate_for_users" in before.attributes:
            use = next(iter(before.results[0].uses), None)
            while use is not None and use.owner.operation.name == "mesh.shard" and not names_file(before.location):
                use = next(iter(use.owner.operation.results[0].uses), None)  # a result's sharding from the signature
            if use is not None and (use.owner.operation.location == before.location or not names_file(before.location)):
                reader = use.owner.operation
                if reader.name == "func.return":
                    requester = f"your sharding of {self.results[use.operand_number] or f'result {use.operand_number}'}"
                return f"{_operand(reader, use.operand_number)} needs", requester
        elif not is_argument(value) and without_reason(op_of(value).location) == before.location:
            return f"the result of {_call(op_of(value))} is kept as", requester
        return f"the annotation at {user_line(before.location).short} needs", requester

    def _kept(self, value: ir.Value) -> str:
        if is_argument(value) or self._op is None:
            return "an argument is kept as"
        return f"the result of {_named(*self._op)} is kept as"

    def _text(self, sharding: Sharding) -> str:
        """`P("data", None)`, as JAX writes it, then partial axes, all by the user's axis names."""
        text = spec_text([str(ref) for ref in self.mesh.refs_of(axes)] for axes in sharding.split_axes)
        if sharding.partial_axes:
            text += f", partial {sharding.partial_kind} over {self._names(sharding.partial_axes)}"
        return text

    def _names(self, axes: Axes) -> str:
        return ", ".join(self.mesh.labels(axes))


def _located(value: ir.Value, before: ir.Operation) -> ir.Location:
    """The location of an op that needs a value; if that names no file, as a return, the value's location."""
    if names_file(before.location) or is_argument(value):
        return before.location
    return without_reason(op_of(value).location)


def _operand(op: ir.Operation, index: int | None) -> str:
    """The operand `index` of `op` by its role there; None stands for a value that its region uses from outside."""
    if index is None:
        return f"a value used in {_call(op)}"
    if op.name == "func.return":
        return f"result {index} of the function"
    if has(op.name, Trait.TERMINATOR) and op.parent is not None:
        return f"value {index} that {_call(op.parent.operation)} yields"
    if op.name == "stablehlo.while":
        return f"initial value {index} of {_call(op)}"
    return f"operand {index} of {_call(op)}"


def _call(op: ir.Operation) -> str:
    return _named(display_name(op), op.location)


def _named(name: str, location: ir.Location) -> str:
    return f"{name.partition('.')[2]} at {user_line(location).short}"
