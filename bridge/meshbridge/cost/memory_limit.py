"""The diagnostic for a plan that needs more memory than the limit."""

from __future__ import annotations

from meshbridge.cost.memory import largest_values, memory
from meshbridge.ir.builder import op_of
from meshbridge.ir.locations import location_of
from meshbridge.ir.mlir import MeshError, display_name, ir, main_function
from meshbridge.ir.passes import Analyses
from meshbridge.ir.uses import block_of, is_argument
from meshbridge.text import size_text

NAMED = 4
"""The number of tensors that a diagnostic names."""


def memory_error(module: ir.Module, limit: float, analyses: Analyses | None = None) -> MeshError:
    """The error for a program, of which these are analyses, that needs more bytes of memory on a device than the user's limit."""
    return MeshError(f"error: {memory_excess(module, limit, analyses)}")


def memory_excess(module: ir.Module, limit: float, analyses: Analyses | None = None) -> str:
    """How many bytes a program, of which these are analyses, exceeds the limit by, and which tensors take most of the memory."""
    function, analyses = main_function(module), {} if analyses is None else analyses
    parts = memory(function, analyses)
    needed = parts.peak
    tensors = ", ".join(f"{_described(value)}: {size_text(size)}" for value, size in largest_values(function, NAMED, analyses))
    return (
        f"the program needs {size_text(needed)} of memory on a device, {size_text(needed - limit)} more than the limit of "
        f"{size_text(limit)} (arguments {size_text(parts.arguments)}, results {size_text(parts.results)}, temporaries "
        f"{size_text(parts.temporaries)}), most of it for {tensors}; "
        "split arguments along more axes, take constraints from activations, donate arguments, or take more devices"
    )


def _described(value: ir.Value) -> str:
    """The text for a value and its origin."""
    if not is_argument(value):
        return f"{display_name(op_of(value))} at {location_of(op_of(value))}"
    number, op = ir.BlockArgument(value).arg_number, block_of(value).owner.operation
    return f"argument {number}" if op.name == "func.func" else f"value {number} of {display_name(op)} at {location_of(op)}"
