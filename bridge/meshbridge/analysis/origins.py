"""The origin of an operation in a model: its module, from the names that JAX and libraries stack around it, its phase of a
training step, and its source line.

    jit(step)/transpose(jvp(LM))/CheckpointBlock_0/rematted_computation/Dense_1/dot_general
    modules ("LM", "CheckpointBlock_0", "Dense_1"), phase "rematerialised"

The name stack of a function that JAX compiles separately follows that of its call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Literal

from meshbridge.ir.locations import SourceLocation, Trail, members, trail_at
from meshbridge.ir.mlir import inside, ir, main_function, walk

Phase = Literal["forward", "backward", "rematerialised", "update", "unknown"]
"""The phase of a step. A derivative is `backward` if JAX has transposed it, `rematerialised` if it recomputes values that
`jax.checkpoint` does not save, else `forward`. Outside of derivatives, operations on which they depend are `forward`, like all
operations of a program without derivatives, and the rest is `update`: it reads gradients, or belongs to operations that do.
`unknown` are operations without a name, or at a location of several phases."""


@dataclass(frozen=True)
class Origin:
    """The origin of a collective, or of a part of a combined one."""

    modules: tuple[str, ...]
    """Modules of the model, outermost first, by the library's names. If there are none, the user's functions within the compiled
    one, as `loss()`, and classes whose `__call__` is compiled, as `Block`. Empty outside of any."""
    phase: Phase
    location: SourceLocation
    "The innermost line of the user's code (`Trail.of_user`); the innermost one if there is none."
    scope: str
    "JAX's name stack, from which `modules` and `phase` are derived; empty if the program has none."
    share: float = 1.0
    "The share of the collective's bytes."


def origins_of(op: ir.Operation, phases: Phases) -> tuple[Origin, ...]:
    """The origins of `op`: for a reduction of partial values, that of their producer; for a combined op, one per part."""
    return tuple(_origin(location, share, phases) for location, share in members(op.location) if share)


def _origin(location: ir.Location, share: float, phases: Phases) -> Origin:
    trail = trail_at(location)
    return Origin(modules_of(trail), phases.of(location), trail.user_line, "/".join(trail.stacks), share)


@lru_cache(maxsize=4096)
def modules_of(trail: Trail) -> tuple[str, ...]:
    """The path of modules in a trail: see `Origin`."""
    named = [name for stack in trail.stacks for name in _names(stack)]
    path = named if any("." not in name for name in named) else [*_functions(trail), *named]
    return tuple(name for name, _ in groupby(path))


def _names(stack: str) -> list[str]:
    """The names of modules in a name stack, whose last element is the operation."""
    *around, _ = _elements(stack) or [""]
    names: list[str] = []
    for before, element in zip(["", *around], around, strict=False):
        is_control = element in _CONTROL.get(before, ()) or element in _MARKS or _BRANCH.fullmatch(element)
        if not is_control:
            names += [_without_method(name) for name in _inside(element) if name and "->" not in name]
    return names


def _elements(stack: str) -> list[str]:
    """The elements of a name stack. A slash within parentheses is no separator."""
    elements, depth, start = [], 0, 0
    for position, letter in enumerate(stack):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            elements.append(stack[start:position])
            start = position + 1
    return [*elements, stack[start:]]


def _inside(element: str) -> list[str]:
    """The names in an element within its transformations: LM in `transpose(jvp(LM))`; none for a compiled function."""
    while (match := _TRANSFORMED.fullmatch(element)) is not None:
        if match[1] in _COMPILED:
            return []
        if match[1] not in _TRANSFORMS:
            break
        element = match[2]
    return element.split("/")


def _without_method(name: str) -> str:
    """`Decoder` of `Decoder.encode`, Flax's name of a method; a longer name, such as `eqx.nn.Linear`, is that of a class."""
    owner, dot, method = name.partition(".")
    return owner if dot and "." not in method and owner.isidentifier() and method.isidentifier() else name


_TRANSFORMED = re.compile(r"([\w-]+)\((.*)\)")
_COMPILED = frozenset(("jit", "pjit", "xla_call", "core_call"))
_TRANSFORMS = frozenset(
    ("jvp", "transpose", "vmap", "linearize", "checkpoint", "remat", "pmap", "shard_map", "custom_jvp", "custom_vjp")
)
_MARKS = frozenset(
    (
        *("while", "scan", "closed_call", "core_call", "pjit", "shard_map", "checkpoint", "remat", "rematted_computation"),
        "eval_jaxpr",  # what jax 0.12 calls a function that it inlines
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "custom_transpose_call"),
    )
)
"""Elements of name stacks that JAX inserts itself."""
_CONTROL = {"while": ("body", "cond")}
_BRANCH = re.compile(r"cond|branch_\d+_fun")


def _functions(trail: Trail) -> list[str]:
    """The user's functions and callable classes around an operation, within the compiled one."""
    lines = dict.fromkeys(reversed(trail.of_user))  # for a loop's body, JAX repeats the calls that lead to the loop
    called = [line.function for line in lines if line.function]
    entry = _TRANSFORMED.fullmatch((_elements(trail.stacks[0]) or [""])[0]) if trail.stacks else None
    names = [function.rpartition("<locals>.")[2] for function in called]
    if entry is not None and entry[2] in names:
        names = names[names.index(entry[2]) + 1 :]
    return [_shown(name) for name in names if not name.startswith("<")]


def _shown(function: str) -> str:
    return function.removesuffix(".__call__") if function.endswith(".__call__") else f"{function}()"


def is_derivative(trail: Trail) -> bool:
    """Whether an operation computes a derivative, or an input of one."""
    return any("jvp(" in stack or _TRANSPOSED.search(stack) for stack in trail.stacks)


_TRANSPOSED = re.compile(r"\btranspose\(")


@dataclass
class Phases:
    """The phases of a program's operations by their locations, which partitioning preserves."""

    has_derivative: bool = False
    _before: dict[ir.Attribute, bool | None] = field(default_factory=dict)
    "For locations outside of derivatives, whether a derivative depends on the operation; None if operations differ."
    _marked: dict[ir.Attribute, bool] = field(default_factory=dict)

    def of(self, location: ir.Location) -> Phase:
        """The phase of the operations at `location`, one of `members`."""
        trail = trail_at(location)
        if any("rematted_computation" in stack for stack in trail.stacks):
            return "rematerialised"
        if any(_TRANSPOSED.search(stack) for stack in trail.stacks):
            return "backward"
        if any("jvp(" in stack for stack in trail.stacks):
            return "forward"
        if not self.has_derivative:
            return "forward" if trail.stacks else "unknown"
        before = self._before.get(location.attr)
        return "unknown" if before is None else "forward" if before else "update"

    def _is_marked(self, op: ir.Operation) -> bool:
        key = op.location.attr
        if (is_marked := self._marked.get(key)) is None:
            is_marked = self._marked[key] = any(is_derivative(trail_at(part.location)) for part in members(op.location))
        return is_marked

    def _visit(self, block: ir.Block, *, follows: bool = False) -> None:
        """Records the operations of a block, last first. In a block with derivatives, an op is before one if one depends on
        it, also through values that a loop carries; in others, all are if a derivative `follows` that depends on the block."""
        operations = [view.operation for view in block.operations]
        holding = [any(map(self._is_marked, _all(op))) for op in operations]
        needed: set[ir.Value] = set()
        follows &= not any(holding)
        for op, holds in zip(reversed(operations), reversed(holding), strict=True):
            is_before = follows or any(result in needed for result in op.results)
            if holds or is_before:
                needed.update(value for inner in _all(op) for value in inner.operands)
            if not holds or not self._is_marked(op):
                self._note(op, is_before=is_before)
            for region in op.regions:
                for inner_block in region.blocks:
                    self._visit(inner_block, follows=is_before or holds)

    def _note(self, op: ir.Operation, *, is_before: bool) -> None:
        key = op.location.attr
        if self._before.setdefault(key, is_before) is not is_before:
            self._before[key] = None

    @classmethod
    def read(cls, module: ir.Module) -> Phases:
        """The phases of a program before or after partitioning."""
        phases = cls()
        main = main_function(module)
        phases.has_derivative = any(map(phases._is_marked, walk(main)))
        if phases.has_derivative:
            for block in main.regions[0].blocks:
                phases._visit(block)
        return phases


def _all(op: ir.Operation) -> list[ir.Operation]:
    return [op, *inside(op)] if len(op.regions) else [op]
