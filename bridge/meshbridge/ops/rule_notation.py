"""The two notations of a sharding rule, which names the factors along each dimension of each tensor.

    "... i (j k), k l -> ... i j l"                                  einsum-like, as JAX's `custom_partitioning` takes it
    LoopsAndMaps(["parallel", "reduction_sum"], "(d0, d1) -> (d0)")  as `mesh-opt --print-sharding-interface` prints it

In the first, a dimension is a factor's name, a product `(i j)` of factors, major first, or `1` for a single element. `...` stands
for leading dimensions that tensors share, `...1`, `...2` for further groups; commas separate tensors, and an empty tensor is a
scalar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshbridge.ir.mlir import MeshError
from meshbridge.text import public

Factors = list[list[tuple[str, ...]]]
"""Per tensor and dimension, the names of the factors along it, major to minor."""

BATCH = "..."
"""The prefix of the factor for a group of leading dimensions, before the group's number."""


@public
@dataclass(frozen=True)
class LoopsAndMaps:
    """A rule as loops and maps. `types` has `parallel`, `reduction_<kind>` or `invalid` (must be replicated) per loop; `maps` has
    the loop of each dimension: `(d0, d2), (d2, d1) -> (d0, d1)`; a product of loops is `d0 * 8 + d1`, major first."""

    types: Sequence[str]
    maps: str


def read_notation(text: str) -> tuple[Factors, Factors]:
    """The factors of operands and results of an einsum-like rule.

    Raises MeshError for invalid text.
    """
    operands, arrow, results = text.partition("->")
    if not arrow or "->" in results:
        raise MeshError(f"error: expected 'operands -> results' in the sharding rule '{text}'")
    return _side(operands, text), _side(results, text)


def _side(side: str, text: str) -> Factors:
    return [_tensor(term, text) for term in side.split(",")]


_TOKEN = re.compile(r"\.\.\.\d*|[().]|[^\s().]+")
_NAME = re.compile(r"[^\W\d_]\w*")


def _tensor(term: str, text: str) -> list[tuple[str, ...]]:
    """The dimensions of one tensor."""
    dims: list[tuple[str, ...]] = []
    product: list[str] | None = None
    for token in _TOKEN.findall(term):
        if token == "(" and product is None:
            product = []
        elif token == ")" and product is not None:
            dims.append(tuple(product))
            product = None
        elif token.startswith(BATCH) and not dims and product is None:
            dims.append((f"{BATCH}{int(token.removeprefix(BATCH) or 0)}",))
        elif token == "1" or _NAME.fullmatch(token):
            factor = () if token == "1" else (token,)
            if product is None:
                dims.append(factor)
            else:
                product += factor
        else:
            raise MeshError(f"error: expected names, (products), 1 and a leading '...', found '{token}' in '{text}'")
    if product is not None:
        raise MeshError(f"error: expected ')' at the end of '{term.strip()}' in '{text}'")
    return dims


_REDUCTION = "reduction_"
_TERM = re.compile(r"\s*(d\d+)\s*(?:\*\s*(\d+))?\s*")


@dataclass(frozen=True)
class ReadMaps:
    """Parsed loops and maps: factors d0, d1, …, the kinds of reductions, the factors that must be replicated, and the sizes that
    strides imply."""

    operands: Factors
    results: Factors
    reductions: dict[str, str]
    replicated: frozenset[str]
    sizes: dict[str, int]


def read_maps(rule: LoopsAndMaps) -> ReadMaps:
    """The factors of a rule of loops and maps.

    Raises MeshError for invalid maps or types.
    """
    operands, arrow, results = rule.maps.partition("->")
    if not arrow:
        raise MeshError(f"error: expected 'maps -> maps' in '{rule.maps}'")
    sizes: dict[str, int] = {}
    sides = [
        [[_product(term, sizes) for term in dims.split(",") if term.strip()] for dims in re.findall(r"\(([^()]*)\)", side)]
        for side in (operands, results)
    ]
    kinds = {f"d{index}": kind for index, kind in enumerate(rule.types)}
    named = {factor for side in sides for tensor in side for dim in tensor for factor in dim}
    if unknown := named - set(kinds):
        raise MeshError(f"error: '{rule.maps}' has {', '.join(sorted(unknown))}, but there are {len(kinds)} loops")
    for kind in rule.types:
        if kind not in ("parallel", "invalid") and not kind.startswith(_REDUCTION):
            raise MeshError(f"error: loop type '{kind}', expected parallel, invalid or reduction_<kind>")
    reductions = {name: kind.removeprefix(_REDUCTION) for name, kind in kinds.items() if kind.startswith(_REDUCTION)}
    replicated = frozenset(name for name, kind in kinds.items() if kind == "invalid" and name in named)
    return ReadMaps(sides[0], sides[1], reductions, replicated, sizes)


def _product(text: str, sizes: dict[str, int]) -> tuple[str, ...]:
    """The loops along one dimension. Sizes that its strides imply are added to `sizes`: in `d0 * 8 + d1`, d1 has 8 iterations."""
    if text.strip() == "0":
        return ()
    terms = [_TERM.fullmatch(term) for term in text.split("+")]
    if not all(terms):
        raise MeshError(f"error: expected loops as d0 or sums as d0 * 8 + d1, found '{text.strip()}'")
    strides = [(term[1], int(term[2] or 1)) for term in terms if term]
    for (_, stride), (minor, inner) in pairwise(strides):
        if stride % inner:
            raise MeshError(f"error: expected strides that divide one another, major first, found '{text.strip()}'")
        sizes[minor] = stride // inner
    return tuple(name for name, _ in strides)
