"""GSPMD's annotations of a module: where they are (`Survey`), and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshbridge.ir.mlir import OpError, all_entries, call_target, ir, is_custom_call, walk_all
from meshbridge_converters import hlo_shardings
from meshbridge_converters.carriers import MHLO_SHARDING
from meshbridge_converters.hlo_shardings import Tiling

NUM_PARTITIONS = "mhlo.num_partitions"
"""The attribute of a module that says how many devices it is for."""

CONSTRAINT = "Sharding"
FULL_TO_SHARD, SHARD_TO_FULL = "SPMDFullToShardShape", "SPMDShardToFullShape"
"""Targets of the custom calls in which GSPMD says what sdy has operations for."""


@dataclass
class Survey:
    """The operations of a module that carry annotations: functions, GSPMD's custom calls by target, and all others."""

    functions: list[ir.Operation] = field(default_factory=list)
    calls: dict[str, list[ir.Operation]] = field(default_factory=lambda: {CONSTRAINT: [], FULL_TO_SHARD: [], SHARD_TO_FULL: []})
    others: list[ir.Operation] = field(default_factory=list)

    @classmethod
    def of(cls, module: ir.Module) -> Survey:
        survey = cls()
        for op in walk_all(module):
            name = op.name
            if name == "func.func":
                if any(_strings(op)):
                    survey.functions.append(op)
            elif MHLO_SHARDING in op.attributes:
                target = call_target(op) if is_custom_call(op) else ""
                if target in survey.calls:
                    _check_call(op, target)
                survey.calls.get(str(target), survey.others).append(op)
        return survey

    def strings(self) -> Iterator[tuple[ir.Operation, str]]:
        """Every annotation, and the operation that carries it."""
        for op in (*self.functions, *(op for calls in self.calls.values() for op in calls), *self.others):
            for text in _strings(op):
                yield op, text


def _check_call(op: ir.Operation, target: str) -> None:
    """What GSPMD's calls say, they say of one value, which `@Sharding` gives back as it is."""
    if len(op.operands) != 1 or len(op.results) != 1:
        raise OpError(op, f"calls @{target} with {len(op.operands)} operands and {len(op.results)} results, expected one and one")
    given, result = op.operands[0].type, op.results[0].type
    if target == CONSTRAINT and given != result:
        raise OpError(op, f"calls @{target} with a {given} for a {result}, expected the same type")


def _strings(op: ir.Operation) -> Iterator[str]:
    """Every HloSharding string that `op` carries."""
    if MHLO_SHARDING in op.attributes:
        yield string(op, op.attributes[MHLO_SHARDING])
    yield from (string(op, entry[MHLO_SHARDING]) for entry in all_entries(op) if MHLO_SHARDING in entry)


def string(op: ir.Operation, attr: ir.Attribute) -> str:
    """The text of an annotation.

    Raises OpError where it is none.
    """
    if not isinstance(attr, ir.StringAttr):
        raise OpError(op, f"carries {MHLO_SHARDING} = {attr}, expected a string")
    return str(attr.value)


def tilings(op: ir.Operation, text: str) -> tuple[Tiling, ...]:
    """What an HloSharding string on `op` says, per element of a tuple.

    Raises OpError.
    """
    try:
        return hlo_shardings.parse(text)
    except ValueError as error:
        raise OpError(op, f"carries {MHLO_SHARDING} {text!r}: {error}") from None


def tiling(op: ir.Operation) -> Tiling:
    """The one tiling that `op` carries.

    Raises OpError where it carries a tuple.
    """
    text = string(op, op.attributes[MHLO_SHARDING])
    found = tilings(op, text)
    if len(found) != 1:
        raise OpError(op, f"carries a tuple of {len(found)} shardings, expected one")
    return found[0]


_UNSPECIFIED = re.compile(r"unspecified_dims=\[([0-9]{1,4}(?:, ?[0-9]{1,4})*)?\]")


def open_dims(op: ir.Operation) -> tuple[int, ...]:
    """The dimensions that `backend_config = "unspecified_dims=[…]"` leaves to propagation.

    Raises OpError for another configuration, and for dimensions that the value does not have.
    """
    config = op.attributes.get("backend_config")
    text = "" if config is None else str(config)
    if isinstance(config, ir.StringAttr):
        text = config.value_bytes.decode(errors="replace")
    found = _UNSPECIFIED.fullmatch(text)
    if found is None:
        if text not in ("", "{}"):
            raise OpError(op, f"has backend_config {text!r}, expected nothing or 'unspecified_dims=[…]'")
        return ()
    dims = tuple(int(number) for number in (found[1] or "").split(",") if number)
    if any(dim >= rank(op.results[0].type) for dim in dims):
        raise OpError(op, f"leaves dimensions {list(dims)} open of a value of rank {rank(op.results[0].type)}")
    return dims


def rank(kind: ir.Type) -> int:
    """The rank of a tensor; 0 for other values, whose shardings say nothing of dimensions."""
    return ir.RankedTensorType(kind).rank if isinstance(kind, ir.RankedTensorType) else 0
