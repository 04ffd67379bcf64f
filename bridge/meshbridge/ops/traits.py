"""What an op is: traits by op name, declared beside the op's sharding rule, for whoever rewrites, prices or moves ops.

    has("stablehlo.tanh", Trait.ELEMENTWISE)      True
    ops_with(Trait.SHAPING)                       {"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"}
    linear_operands("stablehlo.select")           (1, 2): select(p, a + b, c + d) = select(p, a, c) + select(p, b, d)
    multilinear_operands("stablehlo.divide")      (0,): (a + b) / c = a / c + b / c

A trait says something of the op by its name alone; what depends on attributes or types is asked of the op. An op that nobody has
declared has no traits: it may have effects, and nothing is known of what it computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

from meshbridge.ir.mlir import MeshError


class Trait(Enum):
    """One thing that an op is, whatever its operands are."""

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

    __hash__ = object.__hash__  # a look-up costs no call of Python


_TRAITS: dict[str, frozenset[Trait]] = {}
_LINEAR: dict[str, tuple[int, ...] | None] = {}
_MULTILINEAR: dict[str, tuple[int, ...]] = {}

ALL_OPERANDS = None
"""In `linear`: however many operands there are, the op is linear in all of them together."""


def declare(*names: str, traits: Iterable[Trait], linear: tuple[int, ...] | None = (), multilinear: tuple[int, ...] = ()) -> None:
    """Adds to the traits of the ops of these names. `linear` and `multilinear` are operand numbers, and imply the traits.

    Raises MeshError once `ops_with` has been asked: who asked would not see it. Families are imported by `meshbridge.ops`.
    """
    if ops_with.cache_info().currsize:
        raise MeshError(f"error: traits of {', '.join(names)} are declared after somebody has asked for traits")
    implied = {trait for trait, said in ((Trait.LINEAR, linear != ()), (Trait.MULTILINEAR, multilinear)) if said}
    for name in names:
        _TRAITS[name] = _TRAITS.get(name, frozenset()) | {*traits, *implied}
        if linear != ():
            _LINEAR[name] = linear
        if multilinear:
            _MULTILINEAR[name] = multilinear


def traits_of(name: str) -> frozenset[Trait]:
    """All traits of the op of that name; none where nobody has declared any."""
    return _TRAITS.get(name, frozenset())


def has(name: str, trait: Trait) -> bool:
    """Whether the op of that name has the trait."""
    return trait in _TRAITS.get(name, ())


@lru_cache
def ops_with(*traits: Trait, dialect: str = "") -> frozenset[str]:
    """The names of the ops, of one dialect if it is said, that have one of `traits` at least."""
    prefix = f"{dialect}." if dialect else ""
    return frozenset(name for name, own in _TRAITS.items() if name.startswith(prefix) and not own.isdisjoint(traits))


def linear_operands(name: str, count: int = 0) -> tuple[int, ...]:
    """The operands in which an op is linear together; of an op that is in all of its operands, those of `count`."""
    found = _LINEAR.get(name, ())
    return tuple(range(count)) if found is ALL_OPERANDS else found


def multilinear_operands(name: str) -> tuple[int, ...]:
    """The operands in each of which an op is linear, if the others are as they are."""
    return _MULTILINEAR.get(name, ())
