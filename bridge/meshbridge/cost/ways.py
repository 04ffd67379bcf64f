"""Ways to plan a program, of which the best is taken: prices are not all that a step takes, and memory has a limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from meshbridge.cost.communication import communication
from meshbridge.cost.memory import largest, memory
from meshbridge.cost.step import predict
from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, ir, main_function, title
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.machines.target import Target
from meshbridge.text import size_text

FACTORS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""How many times what the machine says memory may cost more, for the sake of a limit. Each is one partitioning."""

UNLIMITED = "none"
"""What is written for no limit of memory."""

NAMED = 4
"""How many tensors a diagnostic names that take the most memory."""

EQUAL = 1.01
"""Predicted seconds that differ by less say nothing: of such plans the one is taken that sends least, where the seconds in which
the device waits for bytes count as if it sent so many more.

Measured on the programs of `testdata/realistic`, 93 plans for three targets: with 1 nine send up to 7 % more for a step that is
up to 0.6 % shorter."""

WORTH_OPENING = 1.02
"""A plan in which constraints inside are open is taken where the best one in which they hold as they are written takes so many
times its seconds: what is written counts for more than a doubtful gain."""

_UNITS = {"": 1, "B": 1} | {f"{letter}B": 1000**n for n, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}


def bytes_in(size: float | str) -> float:
    """A number of bytes, as one or as in `80GB` and `16 GiB`. Raises MeshError for what is none, and where it is not positive."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", str(size))
    try:
        if found is None or found[2] not in _UNITS or not (number := float(found[1])) > 0:
            raise ValueError
    except ValueError:
        raise MeshError(
            f"error: memory-limit is {size!r}, expected a positive number of bytes, or one as in 80GB or 16GiB"
        ) from None
    return number * float(_UNITS[found[2]])


class Way(NamedTuple):
    """How a program is planned."""

    machine: str
    "Whose prices are paid: those of a device alone, or of its links too."
    memory_factor: float = 1.0
    "How many times what the machine says it costs to hold a byte."
    hides: bool = False
    "Whether what can run beside products costs less."
    keeps_queries: bool = False
    "Whether attention whose queries the annotations split stays so, for its keys and values to travel around the devices."
    inside_open: bool = False
    "Whether values inside may be split along more axes than constraints say, which close their dimensions."


class Plan(NamedTuple):
    """A program that is planned in some way."""

    way: Way
    module: ir.Module
    "One device's program."


def best_plan(ways: Sequence[Way], target: Target | None, limit: float, planned: Callable[[Way], ir.Module | None]) -> Plan:
    """What is `planned` in that of the `ways` in which it takes least time on the `target`, if that is known, or in the first of
    them where nothing says how long it takes; under the least of FACTORS under which one needs no more memory than `limit` bytes.
    Ways in which nothing is planned do not count.

    Raises MeshError where none does: by how much the one that needs least misses it, and for which tensors.
    """
    least: tuple[float, ir.Module] | None = None
    for factor in FACTORS:
        fitting: list[Plan] = []
        for way in (way._replace(memory_factor=factor) for way in ways):
            if (module := planned(way)) is None:
                continue
            needed = memory(main_function(module)).peak if limit < inf else 0.0
            if needed <= limit:
                fitting.append(Plan(way, module))
            elif least is None or needed < least[0]:
                least = needed, module
        if fitting:
            return _fastest(fitting, target)
    assert least is not None
    raise does_not_fit(least[1], limit)


def _fastest(plans: Sequence[Plan], target: Target | None) -> Plan:
    if target is None:
        return plans[0]
    try:
        steps = [predict(plan.module, target) for plan in plans]
    except MeshError:  # the report says what its prediction stumbles over
        return plans[0]
    worth = admitted([plan.way for plan in plans], [step.seconds for step in steps])
    longest = EQUAL * min(steps[number].seconds for number in worth)
    equal = [number for number in worth if steps[number].seconds <= longest]
    if len(equal) == 1:
        return plans[equal[0]]
    sent = {number: communication(plans[number].module).wire_bytes for number in equal}
    least = min(equal, key=lambda number: sent[number])
    seconds_per_byte = steps[least].communication_seconds / sent[least] if sent[least] else 0.0
    return plans[min(equal, key=lambda number: seconds_per_byte * sent[number] + steps[number].exposed_seconds)]


def admitted(ways: Sequence[Way], seconds: Sequence[float]) -> list[int]:
    """The numbers of the plans that may be taken: those in which constraints inside are open only where that pays."""
    written = min((each for way, each in zip(ways, seconds, strict=True) if not way.inside_open), default=inf)
    return [number for number, way in enumerate(ways) if not way.inside_open or WORTH_OPENING * seconds[number] <= written]


def does_not_fit(module: ir.Module, limit: float) -> MeshError:
    """What is said of one device's program that needs more bytes of memory than the limit that somebody has written."""
    return MeshError(f"error: {misfit(module, limit)}")


def misfit(module: ir.Module, limit: float) -> str:
    """By how much one device's program needs more bytes of memory than the limit, and for what."""
    function = main_function(module)
    parts = memory(function)
    needed = parts.peak
    tensors = ", ".join(f"{_described(value)}: {size_text(size)}" for value, size in largest(function, NAMED))
    return (
        f"the program needs {size_text(needed)} of memory on a device, {size_text(needed - limit)} more than the limit of "
        f"{size_text(limit)} (arguments {size_text(parts.arguments)}, results {size_text(parts.results)}, temporaries "
        f"{size_text(parts.temporaries)}), most of it for {tensors}; "
        "split arguments along more axes, take constraints from activations, donate arguments, or take more devices"
    )


def _described(value: ir.Value) -> str:
    """What a value is, and where it comes from."""
    if not is_argument(value):
        return f"{title(op_of(value))} at {location_of(op_of(value))}"
    number, around = ir.BlockArgument(value).arg_number, block_of(value).owner.operation
    return f"argument {number}" if around.name == "func.func" else f"value {number} of {title(around)} at {location_of(around)}"
