"""Where operations keep their sdy shardings: on function arguments and results, on operations, in operations of sdy itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from meshbridge.ir.mlir import SIDES, entries, function_type, ir, sdy, set_entries

SHARDING = "sdy.sharding"
"""One sharding, on a function's argument or result; one per result, on an operation."""

MHLO_SHARDING = "mhlo.sharding"
"""The attribute that carries an HloSharding string."""

NAMED_IN_HLO = "meshbridge.named_in_hlo"
"""Discardable attribute of `sdy.mesh` and `mesh.mesh`: GSPMD's annotations name its axes, and name them again on the way back."""

NAMED = "sdy.named_computation"

PER_VALUE = ("in_shardings", "out_shardings", SHARDING)
"""Attributes that hold one sharding per value."""

CONSTRAINING = {
    "sdy.sharding_constraint": "sharding",
    "sdy.reshard": "sharding",
    "sdy.data_flow_edge": "sharding",
    "sdy.all_gather": "out_sharding",
    "sdy.all_reduce": "out_sharding",
    "sdy.all_slice": "out_sharding",
    "sdy.all_to_all": "out_sharding",
    "sdy.collective_permute": "out_sharding",
    "sdy.reduce_scatter": "out_sharding",
    "sdy.replicated_to_unreduced": "out_sharding",
    "sdy.sharded_to_unreduced": "out_sharding",
}
"""Operations of sdy that give their one operand back with another sharding, and the attribute that holds it."""


EDGES = frozenset({"sdy.data_flow_edge", "sdy.func_data_flow_edge"})
"""Operations of sdy that give their one operand back for propagation to speak of it, with a sharding or without."""


PROPAGATION_EDGES = "sdy.propagation_edges"
"""What Shardy notes, for debugging, of where a sharding came from. sdy refuses it without the sharding."""

OUR_PROPAGATION_EDGES = "meshbridge.propagation_edges"
"""The same while the sharding stands in a `mesh.shard`."""


def per_value(attr: ir.Attribute) -> list[ir.Attribute]:
    """The shardings in an `#sdy.sharding_per_value<[…]>`."""
    return list(sdy.TensorShardingPerValueAttr(attr).shardings)


def per_value_attr(shardings: list[ir.Attribute]) -> ir.Attribute:
    """`#sdy.sharding_per_value<[…]>`."""
    return sdy.TensorShardingPerValueAttr.get(shardings)


def shardings(op: ir.Operation, name: str) -> Iterator[ir.Attribute]:
    """Every `#sdy.sharding<…>` that `op`, of name `name`, carries."""
    attrs = op.attributes
    if name == "func.func":
        yield from (entry[SHARDING] for side in SIDES for entry in _dictionaries(op, side) if SHARDING in entry)
        return
    if name in CONSTRAINING and CONSTRAINING[name] in attrs:
        yield attrs[CONSTRAINING[name]]
    for listed in PER_VALUE:
        if listed in attrs:
            yield from per_value(attrs[listed])


def rewrite(op: ir.Operation, name: str, change: Callable[[ir.Attribute], ir.Attribute]) -> None:
    """Replaces every sharding that `op` carries by what `change` makes of it."""
    attrs = op.attributes
    if name == "func.func":
        for side in SIDES:
            give(op, side, {index: change(attr) for index, attr in enumerate(take(op, side)) if attr is not None})
        return
    if name in CONSTRAINING and CONSTRAINING[name] in attrs:
        attrs[CONSTRAINING[name]] = change(attrs[CONSTRAINING[name]])
    for listed in PER_VALUE:
        if listed in attrs:
            attrs[listed] = per_value_attr([change(attr) for attr in per_value(attrs[listed])])


def take(function: ir.Operation, side: str, key: str = SHARDING) -> list[ir.Attribute | None]:
    """Removes the shardings from a function's arguments or results and returns them, None where there was none."""
    if not any(key in entry for entry in set(_dictionaries(function, side))):
        kind = function_type(function)
        return [None] * len(kind.inputs if side == "arg_attrs" else kind.results)
    said = entries(function, side)
    taken = [entry.pop(key, None) for entry in said]
    set_entries(function, side, said)
    return taken


def _dictionaries(function: ir.Operation, side: str) -> list[ir.DictAttr]:
    """The attributes of a function's arguments or results as they stand there; none where no argument or result has any."""
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(function.attributes[side])] if side in function.attributes else []


def give(function: ir.Operation, side: str, found: Mapping[int, ir.Attribute], key: str = SHARDING) -> None:
    """Puts shardings on a function's arguments or results, by index."""
    if not found:
        return
    said = entries(function, side)
    for index, attr in found.items():
        said[index][key] = attr
    set_entries(function, side, said)


def rename(op: ir.Operation, old: str, new: str) -> None:
    """Gives an attribute of `op`, or of the arguments and results of a function, another name."""
    if old in op.attributes:
        op.attributes[new] = op.attributes[old]
        del op.attributes[old]
    for side in SIDES if op.name == "func.func" else ():
        give(op, side, {index: attr for index, attr in enumerate(take(op, side, old)) if attr is not None}, new)
