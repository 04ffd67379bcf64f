"""Names Python variables after the user's values, or after the ops that compute them."""

from __future__ import annotations

import keyword
import re

from meshbridge.dialect.names import name_of
from meshbridge.ir.mlir import ir

RESERVED = frozenset(
    {"jax", "jnp", "lax", "np", "partial", "Mesh", "P", "make_mesh", "on_mesh", "ordered", "pmax", "pmin", "state"}
    | {"ValueError", "complex"}
)
"""Names that the file itself uses."""

LONGEST = 40
"""The most characters of a name from a path in the user's arguments; longer paths keep their end."""

_SHORT = {
    "add": "total",
    "bitcast_convert": "bits",
    "compare": "mask",
    "concatenate": "joined",
    "constant": "constant",
    "convert": "converted",
    "convolution": "conv",
    "divide": "quotient",
    "dot_general": "dot",
    "dynamic_slice": "piece",
    "dynamic_update_slice": "updated",
    "exponential": "exp",
    "gather": "rows",
    "iota": "iota",
    "maximum": "largest",
    "minimum": "smallest",
    "multiply": "product",
    "negate": "negative",
    "pad": "padded",
    "reduce": "reduced",
    "reshape": "reshaped",
    "reverse": "flipped",
    "rng_bit_generator": "bits",
    "scatter": "scattered",
    "select": "chosen",
    "slice": "part",
    "sort": "in_order",
    "subtract": "difference",
    "transpose": "transposed",
    "all_gather": "gathered",
    "all_reduce": "summed",
    "all_slice": "mine",
    "all_to_all": "exchanged",
    "collective_permute": "received",
    "permute": "received",
    "reduce_scatter": "scattered",
    "shift": "received",
    "while": "carried",
    "case": "branch",
    "if": "branch",
}
"""The name of a value by the op that computes it, if the op's own name would not do."""


def base_name(op: ir.Operation) -> str:
    """The name of the results of `op`, without a number."""
    name = op.name.partition(".")[2]
    return identifier(_SHORT.get(name, name))


def argument_name(argument: ir.BlockArgument, label: str) -> str:
    """The name of an argument: its path in the user's pytrees, else `label`."""
    words = identifier(name_of(argument) or label, "arg").split("_")
    while len(words) > 1 and len("_".join(words)) > LONGEST:
        words.pop(0)
    return identifier("_".join(words), "arg")


def identifier(text: str, otherwise: str = "value") -> str:
    """A Python name like `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or otherwise
    return f"{otherwise}_{name}" if name[0].isdigit() or keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


class UniqueNames:
    """The names of a file, each unique."""

    def __init__(self) -> None:
        self._used = set(RESERVED)
        self._counts: dict[str, int] = {}

    def exactly(self, name: str) -> str:
        """`name` if it is free, else a numbered one."""
        if name in self._used:
            return self.numbered(name)
        self._used.add(name)
        return name

    def numbered(self, base: str) -> str:
        """`base_1`, `base_2`, …"""
        while True:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}_{self._counts[base]}"
            if name not in self._used:
                self._used.add(name)
                return name
