"""What the arguments and results of a program are called."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshbridge.ir.locations import unescaped
from meshbridge.ir.mlir import entries, function_type, ir, main_function

RESULT_INFO = "jax.result_info"
"""JAX's attribute of a result: its path in the tree that the function returns."""

_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(unknown\))?\)')


class Names(NamedTuple):
    """Of the arguments and results of `main`, in order; empty for one without a name."""

    arguments: tuple[str, ...]
    results: tuple[str, ...]


def names_of(module: ir.Module) -> Names:
    """The names that JAX gives: paths in the trees of arguments, `params['head']`, which it keeps as locations, and of results,
    `result[0]`."""
    return names_in(main_function(module))


def names_in(main: ir.Operation) -> Names:
    """The same, of the function itself."""
    arguments = [name_of(value) for value in main.regions[0].blocks[0].arguments]
    attributes = entries(main, "res_attrs") or [{} for _ in function_type(main).results]
    results = [ir.StringAttr(entry[RESULT_INFO]).value if RESULT_INFO in entry else "" for entry in attributes]
    return Names(tuple(arguments), tuple(results))


def name_of(argument: ir.BlockArgument) -> str:
    """The path of an argument; empty where it has none."""
    found = _NAMED.fullmatch(str(argument.location))
    return unescaped(found[1]) if found else ""
