"""A limit of memory: the least price of memory under which a plan keeps it."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshbridge.cost.memory import largest, memory
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, ir, main_function, title
from meshbridge.text import size_text

FACTORS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""How many times what the machine says memory may cost more, for the sake of a limit. Each is one partitioning."""

NAMED = 4
"""How many tensors a diagnostic names that take the most memory."""

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


def least_factor(limit: float, planned: Callable[[float], ir.Module]) -> float:
    """The least of FACTORS under which what is `planned`, one device's program, needs no more memory than `limit` bytes.

    Raises MeshError where there is none: by how much the one that needs least misses it, and for which tensors.
    """
    best: tuple[float, ir.Module] | None = None
    for factor in FACTORS:
        module = planned(factor)
        needed = memory(main_function(module)).peak
        if needed <= limit:
            return factor
        if best is None or needed < best[0]:
            best = needed, module
    assert best is not None
    raise MeshError(_message(limit, best[0], main_function(best[1])))


def _message(limit: float, needed: float, function: ir.Operation) -> str:
    parts = memory(function)
    tensors = ", ".join(f"{_described(value)}: {size_text(size)}" for value, size in largest(function, NAMED))
    return (
        f"error: the program needs {size_text(needed)} of memory on a device, {size_text(needed - limit)} more than the limit of "
        f"{size_text(limit)} (arguments {size_text(parts.arguments)}, results {size_text(parts.results)}, temporaries "
        f"{size_text(parts.temporaries)}), most of it for {tensors}; "
        "split arguments along more axes, take constraints from activations, donate arguments, or take more devices"
    )


def _described(value: ir.Value) -> str:
    """What a value is, and where it comes from."""
    if not isinstance(value.owner, ir.Block):
        return f"{title(value.owner.operation)} at {location_of(value.owner.operation)}"
    number, around = ir.BlockArgument(value).arg_number, value.owner.owner.operation
    return f"argument {number}" if around.name == "func.func" else f"value {number} of {title(around)} at {location_of(around)}"
