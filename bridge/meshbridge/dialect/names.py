"""Names of the arguments and results of a program."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshbridge.ir.locations import unescaped
from meshbridge.ir.mlir import entries, function_type, ir, main_function

RESULT_INFO = "jax.result_info"
"""JAX's attribute of a result: its path in the tree that the function returns."""

_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(unknown\))?\)')


class Names(NamedTuple):
    """The names of the arguments and results of `main`, in order; "" for one without a name."""

    arguments: tuple[str, ...]
    results: tuple[str, ...]


def names_of(module: ir.Module) -> Names:
    """JAX's names: paths in the trees of arguments, `params['head']`, which are their locations, and of results, `result[0]`."""
    return names_in(main_function(module))


def names_in(main: ir.Operation) -> Names:
    """The names in the function `main`."""
    arguments = [name_of(value) for value in main.regions[0].blocks[0].arguments]
    attributes = entries(main, "res_attrs") or [{} for _ in function_type(main).results]
    results = [ir.StringAttr(entry[RESULT_INFO]).value if RESULT_INFO in entry else "" for entry in attributes]
    return Names(tuple(arguments), tuple(results))


def name_of(argument: ir.BlockArgument) -> str:
    """The path of an argument; empty if it has none."""
    location = _NAMED.fullmatch(str(argument.location))
    return unescaped(location[1]) if location else ""
