"""Executes plans step by step on numpy arrays, one per device."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from meshbridge.ir.digits import group_index
from meshbridge.resharding import ReshardingPlan
from meshbridge.resharding import steps as s
from meshbridge.resharding.tiles import TileExchange

Buffers = list[np.ndarray[Any, Any]]

COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "average": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def groups(digits: s.Digits, devices: int) -> list[list[int]]:
    """Device groups along `digits`, each in group order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for device in range(devices):
        rest = device - sum(digit.of(device) * digit.stride for digit in digits)
        found.setdefault((rest,), []).append(device)
    return [sorted(group, key=lambda device: group_index(digits, device)) for group in found.values()]


def run(plan: ReshardingPlan, buffers: Buffers) -> Buffers:
    """The buffers after all steps of `plan`."""
    for step in plan.steps:
        buffers = RUN[type(step)](step, buffers)
        for buffer in buffers:
            assert buffer.shape == step.shape, (step, buffer.shape)
    return buffers


def _local(function: Callable[[Any, Any], Any]) -> Callable[[Any, Buffers], Buffers]:
    return lambda step, buffers: [function(step, buffer) for buffer in buffers]


def _pad(step: s.Pad, buffer: Any) -> Any:
    result = np.full(step.shape, 99, buffer.dtype)
    result[tuple(slice(low, low + size) for low, size in zip(step.low, buffer.shape, strict=True))] = buffer
    return result


def _crop(step: s.Crop, buffer: Any) -> Any:
    return buffer[tuple(slice(low, low + size) for low, size in zip(step.start, step.shape, strict=True))]


def _grouped(function: Callable[[Any, Buffers], Buffers]) -> Callable[[Any, Buffers], Buffers]:
    def run_groups(step: Any, buffers: Buffers) -> Buffers:
        result: list[Any] = [None] * len(buffers)
        for group in groups(step.digits, len(buffers)):
            for device, buffer in zip(group, function(step, [buffers[device] for device in group]), strict=True):
                result[device] = buffer
        return result

    return run_groups


def _combined(step: Any, group: Buffers) -> Any:
    total = reduce(COMBINE[step.kind], group)
    return total / len(group) if step.kind == "average" else total


def _all_to_all(step: s.AllToAll, group: Buffers) -> Buffers:
    pieces = [np.split(buffer, len(group), step.split) for buffer in group]
    return [np.concatenate([pieces[sender][i] for sender in range(len(group))], step.concat) for i in range(len(group))]


def _mask(step: s.Mask, buffers: Buffers) -> Buffers:
    neutral = {"sum": 0, "product": 1, "bitwise_xor": 0}.get(step.kind)
    if neutral is None:
        return buffers
    return [b if group_index(step.digits, d) == 0 else np.full_like(b, neutral) for d, b in enumerate(buffers)]


NEUTRAL = {"sum": 0, "product": 1, "bitwise_xor": 0, "bitwise_or": 0, "bitwise_and": -1}


def _place(step: s.Place, buffers: Buffers) -> Buffers:
    placed = []
    for device, buffer in enumerate(buffers):
        size = buffer.shape[step.dim]
        bounds = {"max": np.iinfo(np.int64).min, "min": np.iinfo(np.int64).max}
        filled = np.full(step.shape, (NEUTRAL | bounds)[step.kind], buffer.dtype)
        start = group_index(step.digits, device) * size
        filled[(slice(None),) * step.dim + (slice(start, start + size),)] = buffer
        placed.append(filled)
    return placed


def _permute(step: s.Permute, buffers: Buffers) -> Buffers:
    senders = {}
    for sender in range(len(buffers)):
        rest = sender - sum(digit.of(sender) * digit.stride for digit in step.sources)
        senders[rest, group_index(step.sources, sender)] = sender
    result = []
    for receiver in range(len(buffers)):
        rest = receiver - sum(digit.of(receiver) * digit.stride for digit in step.targets)
        result.append(buffers[senders[rest, group_index(step.targets, receiver)]])
    return result


def _relay(step: s.Relay, buffers: Buffers) -> Buffers:
    """Swaps; or each member gives the one with the number t along the targets what it has of that with t along the sources."""
    for swap in step.swaps:
        shapes = [buffer.shape for buffer in buffers]
        for over in swap.over:
            rows: list[Any] = [None] * len(buffers)
            for group in groups(over, len(buffers)):
                for device, each in zip(group, _all_to_all_of_rows([buffers[device] for device in group]), strict=True):
                    rows[device] = each
            buffers = rows
        buffers = [each.ravel()[: np.prod(shape, dtype=int)].reshape(shape) for each, shape in zip(buffers, shapes, strict=True)]
    if step.swaps:
        return buffers
    result: list[Any] = [None] * len(buffers)
    for group in groups(step.targets, len(buffers)):
        rows = _all_to_all_of_rows([buffers[device] for device in group])
        order = [group_index(step.sources, device) for device in group]
        rows = _all_to_all_of_rows([np.stack([each[order.index(t)] for t in range(len(group))]) for each in rows])
        for device, each in zip(group, rows, strict=True):
            result[device] = each.ravel()[: buffers[device].size].reshape(step.shape)
    return result


def _all_to_all_of_rows(group: Buffers) -> Buffers:
    """Buffers are flat and padded to as many rows as there are members."""
    rows = [np.pad(each.ravel(), (0, -each.size % len(group))).reshape(len(group), -1) for each in group]
    return [np.stack([each[i] for each in rows]) for i in range(len(group))]


def _rounds(step: s.Rounds, buffers: Buffers) -> Buffers:
    result = [np.zeros(step.shape, buffer.dtype) for buffer in buffers]
    for turn in step.rounds:
        senders = [step.sender(receiver, turn) for receiver in range(len(buffers))]
        assert sorted(senders) == list(range(len(buffers)))
        for receiver, sender in enumerate(senders):
            here, there = [slice(None)] * buffers[sender].ndim, [slice(None)] * len(step.shape)
            for i, split, concat in zip(step.rotating, step.split, step.concat, strict=True):
                here[split] = piece(step.targets[i].of(receiver), buffers[sender].shape[split] // step.sources[i].radix)
                there[concat] = piece(step.sources[i].of(sender), step.shape[concat] // step.sources[i].radix)
            place = result[receiver][tuple(there)]
            place[...] = buffers[sender][tuple(here)].reshape(place.shape)
    return result


def _reblock(step: s.Reblock, group: Buffers) -> Buffers:
    """Rows of the group one after the other; a device sees those that its permutes bring, and undefined ones elsewhere."""
    rows, reach, length = np.concatenate(group, step.dim), sum(step.pieces), step.shape[step.dim]
    found = []
    for number in range(len(group)):
        wanted = np.arange(number * length, (number + 1) * length)
        first, last = number * step.before, (number + 1) * step.before
        seen = (wanted >= first - (reach if step.shift < 0 else 0)) & (wanted < last + (reach if step.shift > 0 else 0))
        block = rows.take(np.minimum(wanted, rows.shape[step.dim] - 1), step.dim)
        there = (seen & (wanted < rows.shape[step.dim])).reshape([-1 if d == step.dim else 1 for d in range(rows.ndim)])
        found.append(np.where(there, block, 66))
    return found


def piece(number: int, size: int) -> slice:
    return slice(number * size, (number + 1) * size)


def _tiles(step: TileExchange, buffers: Buffers) -> Buffers:
    result = [np.full(step.shape, 88, buffer.dtype) for buffer in buffers]
    for base in groups(step.digits, len(buffers)):
        for tiles in (tiles for each in step.rounds for tiles in each.tiles):
            for sender, receiver, read_at, write_at in zip(
                tiles.senders, tiles.receivers, tiles.read_at, tiles.write_at, strict=True
            ):
                there = tuple(slice(start, start + size) for start, size in zip(write_at, tiles.shape, strict=True))
                here = tuple(slice(start, start + size) for start, size in zip(read_at, tiles.shape, strict=True))
                result[base[receiver]][there] = buffers[base[sender]][here]
    return result


RUN: dict[type[s.Step], Callable[[Any, Buffers], Buffers]] = {
    s.Reshape: _local(lambda step, buffer: buffer.reshape(step.shape)),
    s.Transpose: _local(lambda step, buffer: buffer.transpose(step.permutation)),
    s.Pad: _local(_pad),
    s.Crop: _local(_crop),
    s.Mask: _mask,
    s.Place: _place,
    s.Slice: _grouped(lambda step, group: [np.split(b, len(group), step.dim)[i] for i, b in enumerate(group)]),
    s.AllGather: _grouped(lambda step, group: [np.concatenate(group, step.dim)] * len(group)),
    s.AllReduce: _grouped(lambda step, group: [_combined(step, group)] * len(group)),
    s.ReduceScatter: _grouped(lambda step, group: np.split(_combined(step, group), len(group), step.dim)),
    s.AllToAll: _grouped(_all_to_all),
    s.Permute: _permute,
    s.Relay: _relay,
    s.Rounds: _rounds,
    s.Reblock: _grouped(_reblock),
    TileExchange: _tiles,
}
