"""The diagnostic for a plan that needs more memory than its limit."""

from __future__ import annotations

from meshbridge.cost.memory import largest, memory
from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, ir, main_function, title
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.text import size_text

NAMED = 4
"""How many tensors a diagnostic names that take the most memory."""


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
