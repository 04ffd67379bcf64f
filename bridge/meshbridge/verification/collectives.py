"""Collectives of StableHLO, executed as defined over their groups of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshbridge.ir.mlir import OpError, ir, stablehlo
from meshbridge.verification.field import Array
from meshbridge.verification.layout import groups_by_axes
from meshbridge.verification.machine import Evaluator, boolean, evaluates, integer, shape_of
from meshbridge.verification.reductions import combiner_of, reduced


@evaluates("stablehlo.partition_id")
def partition_id(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The device's number among partitions."""
    return [machine.grid.partition_ids().astype(np.uint32)]


@evaluates("stablehlo.replica_id")
def replica_id(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The device's number among replicas."""
    return [machine.grid.replica_ids().astype(np.uint32)]


def _channel(op: ir.Operation) -> int:
    return int(stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle) if "channel_handle" in op.attributes else 0


def _ids(machine: Evaluator, op: ir.Operation) -> list[list[int]]:
    """The groups as listed in the op."""
    attribute = op.attributes["replica_groups"]
    if isinstance(attribute, ir.DenseElementsAttr):
        return [[int(member) for member in row if member >= 0] for row in np.array(attribute)]
    return groups_by_axes(attribute, machine.meshes)


def groups_of(machine: Evaluator, op: ir.Operation, *, joins_partitions: bool) -> list[list[int]]:
    """The groups of an op as lists of devices of the grid.

    Without a channel, ids are replicas, and each partition communicates separately. With a channel, ids are devices if the op
    says so; otherwise all partitions of the listed replicas form a group if `joins_partitions`, and if not, ids are partitions.
    """
    replicas, partitions = machine.grid.replicas, machine.grid.partitions
    listed, channel = _ids(machine, op), _channel(op)
    if channel <= 0:
        listed = listed or [list(range(replicas))]
        groups = [[replica * partitions + partition for replica in group] for partition in range(partitions) for group in listed]
    elif boolean(op, "use_global_device_ids"):
        groups = listed or [list(range(machine.grid.count))]
    elif joins_partitions:
        listed = listed or [list(range(replicas))]
        groups = [[replica * partitions + partition for replica in group for partition in range(partitions)] for group in listed]
    else:
        listed = listed or [list(range(partitions))]
        groups = [[replica * partitions + partition for partition in group] for replica in range(replicas) for group in listed]
    members = [member for group in groups for member in group]
    if len(set(members)) != len(members) or any(not 0 <= member < machine.grid.count for member in members):
        raise OpError(op, f"names devices {sorted(members)}, expected each of {machine.grid.count} at most once")
    return groups


def exchange(
    machine: Evaluator, x: Array, groups: list[list[int]], shape: tuple[int, ...], of_group: Callable[[Array], Array]
) -> Array:
    """The value of each device after `of_group` was applied to the stacked values of its group; `of_group` returns one value for
    each member, or one for all. Devices in no group hold zeros."""
    everywhere = machine.everywhere(x)
    result = np.zeros((machine.grid.count, *shape), x.dtype)
    for group in groups:
        result[group] = of_group(everywhere[group])
    return result


def parts(x: Array, count: int, dim: int) -> Array:
    """The parts of a value along `dim`, stacked."""
    return np.stack(np.split(x, count, axis=dim))


def swapped(rows: Array, split: int, join: int) -> Array:
    """For each of the stacked members, its parts along `split` from all members, concatenated along `join`."""
    return np.stack([np.concatenate(list(part), axis=join) for part in parts(rows, len(rows), split + 1)])


def moved(machine: Evaluator, x: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """The source's value on the target of each pair (source, target); zeros on other devices."""
    everywhere = machine.everywhere(x)
    result = np.zeros_like(everywhere)
    for source, target in pairs:
        result[target] = everywhere[source]
    return result


def _covers(machine: Evaluator, op: ir.Operation, groups: list[list[int]]) -> None:
    if sum(map(len, groups)) != machine.grid.count:
        raise OpError(op, f"has groups {groups}, expected each of {machine.grid.count} devices in one")


@evaluates("stablehlo.all_reduce")
def all_reduce(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member holds the members' values combined."""
    groups = groups_of(machine, op, joins_partitions=True)
    _covers(machine, op, groups)
    combiner = combiner_of(machine, op, 0)
    return [exchange(machine, x, groups, x.shape[1:], lambda rows: reduced(combiner, [rows], (0,))[0]) for x in operands]


@evaluates("stablehlo.reduce_scatter")
def reduce_scatter(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member holds its part of the members' values combined."""
    groups = groups_of(machine, op, joins_partitions=True)
    _covers(machine, op, groups)
    combiner, dim, shape = combiner_of(machine, op, 0), integer(op, "scatter_dimension"), shape_of(op.results[0])

    def scattered(rows: Array) -> Array:
        return parts(reduced(combiner, [rows], (0,))[0], len(rows), dim)

    return [exchange(machine, operands[0], groups, shape, scattered)]


@evaluates("stablehlo.all_gather")
def all_gather(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member holds the members' values one after the other."""
    groups = groups_of(machine, op, joins_partitions=True)
    _covers(machine, op, groups)
    dim = integer(op, "all_gather_dim")
    return [
        exchange(machine, x, groups, shape_of(result), lambda rows: np.concatenate(list(rows), axis=dim))
        for x, result in zip(operands, op.results, strict=True)
    ]


@evaluates("stablehlo.all_to_all")
def all_to_all(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member holds the parts that the members have for it, one after the other."""
    groups = groups_of(machine, op, joins_partitions=False)
    _covers(machine, op, groups)
    split, join = integer(op, "split_dimension"), integer(op, "concat_dimension")
    return [
        exchange(machine, x, groups, shape_of(result), lambda rows: swapped(rows, split, join))
        for x, result in zip(operands, op.results, strict=True)
    ]


@evaluates("stablehlo.collective_broadcast")
def collective_broadcast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member holds the first member's value, other devices zeros."""
    groups = groups_of(machine, op, joins_partitions=False)
    return [exchange(machine, operands[0], groups, operands[0].shape[1:], lambda rows: rows[0])]


@evaluates("stablehlo.collective_permute")
def collective_permute(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every target holds its source's value, other devices zeros."""
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2).tolist()
    replicas, partitions = machine.grid.replicas, machine.grid.partitions
    if _channel(op) <= 0:
        moves = [(s * partitions + p, t * partitions + p) for p in range(partitions) for s, t in pairs]
    else:
        moves = [(r * partitions + s, r * partitions + t) for r in range(replicas) for s, t in pairs]
    return [moved(machine, operands[0], moves)]
