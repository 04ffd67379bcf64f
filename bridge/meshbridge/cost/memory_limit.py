"""The limit of memory that a plan must keep: read from text, and the diagnostic for a plan that does not."""

from __future__ import annotations

import re

from meshbridge.cost.memory import largest, memory
from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, ir, main_function, title
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.text import size_text

UNLIMITED = "none"
"""What is written for no limit of memory."""

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
