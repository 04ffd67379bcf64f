"""Collectives over all devices of a slice, of which a machine's compiler makes all-reduces of twice the bytes: two, each of
fewer devices, send what one was to send."""

from __future__ import annotations

from collections.abc import Iterator

from meshbridge.ir.groups import Forms
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import Machine


def forms(target: CompileTarget, devices: int) -> Forms:
    """The collectives on so many devices that the compiler of the machine keeps. Two for one take a launch more, which those of
    fewer bytes than a device receives meanwhile are not worth."""
    machine, placed = target.machine, target.devices
    if machine is None:
        return Forms()
    topology = placed.topology if placed is not None and placed.devices == devices else ()
    return Forms(inner_sizes(machine, devices, topology), machine.link.launch_bytes, machine.platform == "tpu")


def inner_sizes(machine: Machine, devices: int, topology: tuple[int, ...] = ()) -> dict[str, int]:
    """Of each kind of collective that is written in two, by StableHLO's name, over how many devices the inner one goes: those of
    the shortest axis of the slice. A slice of unknown `topology` is as near a cube, or a square, as its `devices` allow."""
    sides = sorted(topology or _sides(devices // machine.devices_per_chip, len(machine.topology)))
    holds = {"all": True, "rings": all(machine.link.rings(sides)), "square": len({*sides}) == 1}
    inner = min((side for side in sides if side > 1), default=1) * machine.devices_per_chip
    return {kind: inner for kind, slices in machine.two_stage.items() if holds[slices] and 1 < inner < devices}


def _sides(count: int, rank: int) -> Iterator[int]:
    if rank == 1:
        yield count
        return
    side = max((side for side in range(1, count + 1) if count % side == 0 and side**rank <= count), default=1)
    yield side
    yield from _sides(count // side, rank - 1)
