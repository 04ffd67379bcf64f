"""Why each communication is there: which operation needed which operand how, in words that the report prints.

Reasons are only written down where somebody asks for them (`mesh-spmdization{explain=true}`), into locations: see `locations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import because, names_file, user_line, without_reason
from meshbridge.ir.mlir import ir, title
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
"""What leaves the result of an operation partial."""

OWN = "your program"
"""Who asked for a collective that the program has of its own."""


class _Made(NamedTuple):
    """What made a value partial."""

    how: str
    at: ir.Location | None


_ARGUMENT = _Made("an argument", None)


class Reasons:
    """The reasons of one function's communication, found while it is partitioned."""

    def __init__(self, mesh: Mesh, results: Sequence[str]) -> None:
        self.mesh = mesh
        self.results = results
        "The names of the function's results; empty for one without."
        self.chosen = ""
        "Who has chosen how the op at hand is sharded, and why."
        self._origins: dict[ir.Value, _Made] = {}
        "For partial values, what made them so."
        self._op: tuple[str, ir.Location] | None = None
        "Title and location of the op at hand, which its SPMD lowering may replace."
        self._carried: _Made | None = None
        "What made its first partial operand so."

    def to_reshard(
        self, value: ir.Value, source: Sharding, target: Sharding, before: ir.Operation, defined_at: ir.Location | None = None
    ) -> ir.Location:
        """The location of collectives that turn `value` from `source` into `target` before an op that needs it so, or behind its
        definition."""
        wanted, asked = self._wanted(value, before) if defined_at is None else (self._kept(value), self.chosen)
        reason, location = f"{wanted} {self._text(target)}", defined_at or _located(value, before)
        if set(source.partial_axes) - set(target.partial_axes):
            partial = f"partial {source.partial_kind} over {self._names(source.partial_axes)}"
            made = self._origins.get(value, _ARGUMENT)
            return because(f"{made.how}: {partial}; {reason}", location, asked, made.at)
        return because(f"{reason} but is sharded as {self._text(source)}", location, asked)

    def computes(self, op: ir.Operation, *, exchanges: bool) -> None:
        """Takes note of `op` before it is lowered; if the lowering may communicate, gives it the reason for that."""
        self._op = (title(op), op.location)
        self._carried = next((self._origins[value] for value in op.operands if value in self._origins), None)
        if op.name.startswith("mesh.") or not {"replica_groups", "source_target_pairs"}.isdisjoint(op.attributes):
            op.location = because("the program's own", op.location, OWN)
        elif exchanges:
            op.location = because(f"{_call(op)} reads elements of other shards", op.location, self.chosen)

    def made(self, value: ir.Value, sharding: Sharding, source: ir.Value | None = None) -> None:
        """Takes note of a value: a result of the op at hand, or `source` resharded."""
        if sharding.partial_axes:
            known = self._carried if source is None else self._origins.get(source)
            self._origins[value] = known or self._origin()

    def _origin(self) -> _Made:
        """How the op at hand makes a result partial."""
        if self._op is None:
            return _ARGUMENT
        name, location = self._op
        kind = name.split()[0].removeprefix("stablehlo.")
        return _Made(f"{_named(name, location)} {_PARTIAL.get(kind, 'computes a term on each device')}", location)

    def _wanted(self, value: ir.Value, before: ir.Operation) -> tuple[str, str]:
        """Which op needs `value` in another sharding, and what the value is there; and who asked for that."""
        if before.name != "mesh.shard":
            index = next((index for index, used in enumerate(before.operands) if used == value), None)
            return f"{_operand(before, index)} needs", self.chosen
        asked = f"your constraint at {user_line(before.location).short}"
        if "annotate_for_users" in before.attributes:
            use = next(iter(before.results[0].uses), None)
            while use is not None and use.owner.operation.name == "mesh.shard" and not names_file(before.location):
                use = next(iter(use.owner.operation.results[0].uses), None)  # a result's sharding that the signature gives
            if use is not None and (use.owner.operation.location == before.location or not names_file(before.location)):
                reader = use.owner.operation
                if reader.name == "func.return":
                    asked = f"your sharding of {self.results[use.operand_number] or f'result {use.operand_number}'}"
                return f"{_operand(reader, use.operand_number)} needs", asked
        elif not is_argument(value) and without_reason(op_of(value).location) == before.location:
            return f"the result of {_call(op_of(value))} is kept as", asked
        return f"the annotation at {user_line(before.location).short} needs", asked

    def _kept(self, value: ir.Value) -> str:
        if is_argument(value) or self._op is None:
            return "an argument is kept as"
        return f"the result of {_named(*self._op)} is kept as"

    def _text(self, sharding: Sharding) -> str:
        """`P("data", None)`, as JAX writes it, and what is partial: the axes of each dimension by the user's names."""
        text = spec_text([str(ref) for ref in self.mesh.refs_of(axes)] for axes in sharding.split_axes)
        if sharding.partial_axes:
            text += f", partial {sharding.partial_kind} over {self._names(sharding.partial_axes)}"
        return text

    def _names(self, axes: Axes) -> str:
        return ", ".join(self.mesh.labels(axes))


def _located(value: ir.Value, before: ir.Operation) -> ir.Location:
    """Where an op stands that needs a value; of one that names no file, as a return, where the value is computed."""
    if names_file(before.location) or is_argument(value):
        return before.location
    return without_reason(op_of(value).location)


def _operand(op: ir.Operation, index: int | None) -> str:
    """The operand `index` of `op` (None: a value that its region uses from outside), named by its role there."""
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
    return _named(title(op), op.location)


def _named(name: str, location: ir.Location) -> str:
    return f"{name.partition('.')[2]} at {user_line(location).short}"
