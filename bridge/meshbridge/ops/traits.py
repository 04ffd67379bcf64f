"""What an op is: traits by op name, declared beside the op's sharding rule, for whoever rewrites, prices or moves ops.

    has("stablehlo.tanh", Trait.ELEMENTWISE)      True
    ops_with(Trait.SHAPING)                       {"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"}
    linear_operands("stablehlo.select")           (1, 2): select(p, a + b, c + d) = select(p, a, c) + select(p, b, d)
    multilinear_operands("stablehlo.divide")      (0,): (a + b) / c = a / c + b / c

A trait depends on the name of the op alone, not on attributes or types. An op without a declaration has no traits: it may have
effects, and its results are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

from meshbridge.ir.mlir import MeshError


class Trait(Enum):
    """One property of an op, whatever its operands are."""

    PURE = "has no effects, and computes its results from operands and attributes alone: the same on all devices, at any time"
    ELEMENTWISE = "computes each element of its results from the same element of its operands, or from scalars"
    CONTRACTION = "multiplies and adds up, on the units that accelerators have for that"
    CONSTANT = "gives numbers that the program holds"

    MOVEMENT = "computes no elements: those of its result are its operands', or padding"
    SHAPING = "has the operand's elements in another shape: dimensions are permuted, merged, split or repeated"
    STRIDED = "reads each dimension of its first operand from a constant start on in constant steps, and padding outside"
    SLICING = "reads a part of its first operand, no more of it than its result holds"

    LINEAR = "is linear in the operands of `linear_operands`, taken together"
    MULTILINEAR = "is linear in each operand of `multilinear_operands`, while the others stay as they are"
    ZERO_PRESERVING = "gives 0 where its first operand is 0, if the others are numbers other than 0"
    NAN_PROPAGATING = "gives NaN, of floating-point operands, where an element that it reads is NaN"

    FUSIBLE = "is computed on the way by a reader that is one of these"
    ALIASING = "gives the bytes of its operand under another name"
    FREE = "takes neither time nor memory: whoever reads the result makes it"
    EXPENSIVE = "takes too long, per element, for several readers to compute the same"
    IN_PLACE = "can write each result over the operand of the same number"

    CONTROL_FLOW = "has regions of tensors: a loop, a branch, a manual computation"
    SCALAR_REGION = "has a region that combines or compares scalars, and uses nothing from outside"
    TERMINATOR = "ends a block"

    COLLECTIVE = "exchanges elements with the other devices of a group, and has no other effect"
    GROUPED = "is a collective of which groups, dimensions and a reduction say all"
    REDUCING = "is a collective that combines elements of several devices"
    ROOTED = "is a collective to or from one device of each group"

    ANNOTATION = "says something of the program, most often how to shard it, and computes nothing"
    FORWARDING = "gives its operands as they are"
    SIZED = "takes sizes as operands, and is another op where these are constants"

    __hash__ = object.__hash__  # a look-up makes no Python call


_TRAITS: dict[str, frozenset[Trait]] = {}
_LINEAR: dict[str, tuple[int, ...] | None] = {}
_MULTILINEAR: dict[str, tuple[int, ...]] = {}

ALL_OPERANDS = None
"""The value of `linear` for an op that is linear in all of its operands together."""


def declare(*names: str, traits: Iterable[Trait], linear: tuple[int, ...] | None = (), multilinear: tuple[int, ...] = ()) -> None:
    """Adds traits to the ops of these names. `linear` and `multilinear` are operand numbers, and imply the traits.

    Raises MeshError after the first call of `ops_with`, whose result would be stale. Importing `meshbridge.ops` declares all.
    """
    if ops_with.cache_info().currsize:
        raise MeshError(f"error: traits of {', '.join(names)} are declared after somebody has asked for traits")
    implied = {trait for trait, is_given in ((Trait.LINEAR, linear != ()), (Trait.MULTILINEAR, multilinear)) if is_given}
    for name in names:
        _TRAITS[name] = _TRAITS.get(name, frozenset()) | {*traits, *implied}
        if linear != ():
            _LINEAR[name] = linear
        if multilinear:
            _MULTILINEAR[name] = multilinear


def traits_of(name: str) -> frozenset[Trait]:
    """All traits of the op of that name; none if it has no declaration."""
    return _TRAITS.get(name, frozenset())


def has(name: str, trait: Trait) -> bool:
    """True if the op of that name has the trait."""
    return trait in _TRAITS.get(name, ())


@lru_cache
def ops_with(*traits: Trait, dialect: str = "") -> frozenset[str]:
    """The names of the ops, of one dialect if given, that have at least one of `traits`."""
    prefix = f"{dialect}." if dialect else ""
    return frozenset(name for name, own in _TRAITS.items() if name.startswith(prefix) and not own.isdisjoint(traits))


def linear_operands(name: str, count: int = 0) -> tuple[int, ...]:
    """The operands in which an op is linear together; `count` is its number of operands."""
    operands = _LINEAR.get(name, ())
    return tuple(range(count)) if operands is ALL_OPERANDS else operands


def multilinear_operands(name: str) -> tuple[int, ...]:
    """The operands in each of which an op is linear if the others are fixed."""
    return _MULTILINEAR.get(name, ())
