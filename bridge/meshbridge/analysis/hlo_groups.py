"""The device groups of an optimised module's collectives."""

from __future__ import annotations

import re
from math import prod

from meshbridge.analysis.hlo import HloError, HloModule, Instruction

_PAIRS = re.compile(r"source_target_pairs=\{([\d,{} ]*)\}")
_PAIR = re.compile(r"\{(\d+),\s*(\d+)\}")


def crossing_sources(permute: Instruction) -> list[int]:
    """Devices that send to another device."""
    pairs = _PAIRS.search(permute.attributes)
    if pairs is None:
        raise HloError(f"%{permute.name} has no source_target_pairs: {permute.attributes[:200]!r}")
    return [int(source) for source, target in _PAIR.findall(pairs.group(1)) if source != target]


_GROUP_LISTS = re.compile(r"replica_groups=\{((?:\{[\d, ]*\}[, ]*)*)\}")
_GROUP_LIST = re.compile(r"\{([\d, ]*)\}")
_GROUP_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_GROUP_MESH = re.compile(r"replica_groups=@?\w*\[([^\]]*'[^\]]*)\][^{]*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_AXIS_USE = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")

_OF_REPLICAS = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
"""Kinds whose groups, with a channel but without `use_global_device_ids`, list replicas, each with all its partitions."""


def group_size(module: HloModule, op: Instruction, kind: str) -> int:
    """Devices in one group, from any of HLO's three notations: lists, `[2,4]<=[8]`, and mesh axes.

    Raises HloError for another notation, and for groups of several sizes.
    """
    spans_partitions = (
        kind in _OF_REPLICAS and "channel_id=" in op.attributes and "use_global_device_ids=true" not in op.attributes
    )
    named = _named(op, module.replicas if spans_partitions else module.devices)
    return named * module.partitions if spans_partitions else named


def _named(op: Instruction, everybody: int) -> int:
    """The number of ids in one group; `everybody` if the groups are omitted."""
    text = op.attributes
    if lists := _GROUP_LISTS.search(text):
        sizes = {len(group.split(",")) for group in _GROUP_LIST.findall(lists.group(1))} or {everybody}
        if len(sizes) > 1:
            raise HloError(f"%{op.name} has groups of {sorted(sizes)} devices; equal ones were expected: {lists.group()[:200]!r}")
        return sizes.pop()
    if iota := _GROUP_IOTA.search(text):
        return int(iota.group(1))
    if axes := _GROUP_MESH.search(text):
        lengths = dict(_AXIS.findall(axes.group(1)))
        return prod(int(sub_size or lengths[axis]) for axis, sub_size in _AXIS_USE.findall(axes.group(2)))
    raise HloError(f"%{op.name} has replica groups in an unknown notation: {text[:200]!r}")
