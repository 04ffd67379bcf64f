"""Artifacts of `jax.export` for several platforms: all functions take the platform's index, and `case` ops choose by it."""

from __future__ import annotations

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import entries, function_type, ir, main_function, set_entries
from meshbridge.legalize.legalize import Legalize

GLOBAL_CONSTANT = "jax.global_constant"
"""Attribute of arguments that JAX passes through all functions unchanged; its value names the constant."""

PLATFORM_INDEX = "_platform_index"


def choose(module: ir.Module, index: int) -> None:
    """Makes the module of an artifact for several platforms one for the platform of that index, in place.

    The index is a constant in every function, `main` no longer takes it, and only the branches of this platform are left.
    """
    main = main_function(module)
    with module.context, ir.Location.unknown():
        for view in module.body.operations:
            if view.operation.name == "func.func":
                _fix_index(view.operation, index, view.operation == main)
        Legalize(only="fold-cases").run(module)
        module.operation.attributes["jax.uses_shape_polymorphism"] = ir.BoolAttr.get(False)


def _fix_index(function: ir.Operation, index: int, is_main: bool) -> None:
    """Replaces the argument that is the platform's index by a constant; `main` loses it."""
    if not len(function.regions[0].blocks):
        return
    said = entries(function, "arg_attrs")
    block = function.regions[0].blocks[0]
    positions = [position for position, entry in enumerate(said) if _is_index(entry)]
    for position in reversed(positions):
        argument = block.arguments[position]
        at = Builder(function.location, ir.InsertionPoint.at_block_begin(block))
        argument.replace_all_uses_with(at.splat(argument.type, index))
        if is_main:
            block.erase_argument(position)
            del said[position]
    if is_main and positions:
        kind = function_type(function)
        inputs = [given for position, given in enumerate(kind.inputs) if position not in positions]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kind.results))
        set_entries(function, "arg_attrs", said)


def _is_index(entry: dict[str, ir.Attribute]) -> bool:
    return GLOBAL_CONSTANT in entry and ir.StringAttr(entry[GLOBAL_CONSTANT]).value == PLATFORM_INDEX
