"""Follows a program of Shardy's MPMD dialect that is mapped to meshes: what each fragment reads and returns, in order.

A mesh is a group of devices. A transfer changes no value, so that values are numbered across meshes: a value on two meshes is one
source in two slots. Calls and loops of the dialect are expanded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from meshbridge.dialect.donation import is_donated
from meshbridge.ir.builder import tensor
from meshbridge.ir.mlir import SIDES, MeshError, OpError, entries, function_type, ir, op_names, sdy, walk
from meshbridge.pipelines.fragments import Source
from meshbridge.pipelines.mpmd_modules import FragmentModules
from meshbridge.pipelines.mpmd_schedule import Label
from meshbridge.pipelines.mpmd_types import (
    ASSIGN,
    CALL,
    FOR,
    FRAGMENT,
    FRAGMENT_CALL,
    PART,
    RETURN,
    SHARDING,
    TOPOLOGY,
    TRANSFER,
    UNASSIGN,
    MeshTensor,
    meshes_of,
    part_of,
)
from meshbridge.pipelines.plan import Slot
from meshbridge.pipelines.stacks import Part, Stacks

ANYWHERE = -1
"""The group of an argument that is on no mesh yet."""


def is_mapped(module: ir.Module) -> bool:
    """Whether a program's computations are on meshes of a topology."""
    return not op_names(module).isdisjoint((FRAGMENT, FRAGMENT_CALL, TRANSFER, ASSIGN, UNASSIGN))


@dataclass(frozen=True, eq=False)
class Execution:
    """A fragment that is executed: its program with shardings of Shardy's, its label, and what it reads and returns."""

    label: Label | None
    group: int
    module: ir.Module
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


class Move(NamedTuple):
    """A transfer."""

    slot: Slot
    target: Slot


class _Held(NamedTuple):
    """A value of the program. `kind` has the sharding that its type, or an attribute, says."""

    slot: Slot
    kind: MeshTensor


@dataclass(eq=False)
class MappedProgram:
    """A mapped program. Raises OpError, with the line of the op, for an op that is not understood, and for meshes of different
    numbers of devices."""

    module: ir.Module
    steps: list[Execution | Move] = field(default_factory=list)
    "In order."
    results: list[Slot] = field(default_factory=list)
    _held: dict[ir.Value, _Held] = field(default_factory=dict)
    _count: int = 0
    "Of values that are no arguments."

    def __post_init__(self) -> None:
        block = self.main.regions[0].blocks[0]
        said = entries(self.main, "arg_attrs")
        for number, (argument, entry) in enumerate(zip(block.arguments, said, strict=True)):
            kind = self._kind(self.main, argument.type, entry.get(SHARDING))
            group = self.groups.get(kind.mesh, ANYWHERE)
            self._held[argument] = _Held(Slot(Source("argument", number), None, group), kind)
        returned = self._visit(block)
        self.results = [self._returned(held) for held in returned]
        if not any(isinstance(step, Execution) for step in self.steps):
            raise OpError(self.main, "executes no fragment, and returns nothing")

    @cached_property
    def main(self) -> ir.Operation:
        """The function that is mapped. Raises MeshError if there is none, or several."""
        mapped = {
            name: function
            for name, function in self._functions.items()
            if TOPOLOGY in function.attributes and '"private"' not in str(function.attributes.get("sym_visibility"))
        }
        if "main" not in mapped and len(mapped) != 1:
            names = ", ".join(mapped) or "none"
            raise MeshError(f"<module>: error: expected a function 'main', or only one, with a topology of meshes, found {names}")
        return mapped["main"] if "main" in mapped else next(iter(mapped.values()))

    @cached_property
    def meshes(self) -> dict[str, ir.Attribute]:
        """The meshes of the topology by name."""
        return meshes_of(self.main.attributes[TOPOLOGY])

    @cached_property
    def groups(self) -> dict[str, int]:
        """The meshes in use, numbered. Raises OpError if they have different numbers of devices."""
        used = {kind.mesh for kind in map(MeshTensor.of, _types(self.module)) if kind is not None}
        names = [name for name in self.meshes if name in used] or list(self.meshes)[:1]
        for name in names[1:]:
            if _size(self.meshes[name]) != _size(self.meshes[names[0]]):
                pair = " and ".join(f"'{each}' is {self.meshes[each]}" for each in (names[0], name))
                hint = "give each stage as many devices"
                raise OpError(self.main, f"is mapped to meshes of different numbers of devices: {pair}", hint)
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def stacks(self) -> Stacks:
        """The arguments and results as parts of those of a step."""
        return Stacks(*map(self._parts, SIDES))

    def _parts(self, side: str) -> tuple[Part, ...]:
        said = entries(self.main, side)
        if not any(PART in entry for entry in said):
            return tuple(map(Part, range(len(said))))
        parts = [part for part in (part_of(entry.get(PART)) for entry in said) if part is not None]
        if len(parts) < len(said):
            expected = "expected the number, the position and the bounds of each argument and result"
            raise OpError(self.main, f"has attributes '{PART}' of another form, {expected}")
        return tuple(parts)

    @cached_property
    def donated(self) -> frozenset[int]:
        """The arguments that the program may overwrite."""
        return frozenset(number for number, entry in enumerate(entries(self.main, "arg_attrs")) if is_donated(entry))

    def step_type(self) -> ir.FunctionType:
        """The global types that the step takes and returns."""
        kind = function_type(self.main)
        takes, gives = ([self._kind(self.main, each).tensor for each in types] for types in (kind.inputs, kind.results))
        return ir.FunctionType.get(_wholes(takes, self.stacks.arguments), _wholes(gives, self.stacks.results))

    @cached_property
    def _functions(self) -> dict[str, ir.Operation]:
        functions = [view.operation for view in self.module.body.operations if view.operation.name == "func.func"]
        return {ir.StringAttr(function.attributes["sym_name"]).value: function for function in functions}

    @cached_property
    def _modules(self) -> FragmentModules:
        return FragmentModules(self.module, [each for each in self._functions.values() if each != self.main])

    def _kind(self, op: ir.Operation, kind: ir.Type, sharding: ir.Attribute | None = None) -> MeshTensor:
        """The fields of a type, with a sharding for one that has none; a tensor that is on no mesh has none's name."""
        found = MeshTensor.of(kind)
        if found is None:
            if not isinstance(kind, ir.RankedTensorType):
                raise OpError(op, f"has a value of type {kind}, expected tensors")
            found = MeshTensor("", kind)
        elif found.mesh not in self.meshes:
            raise OpError(op, f"names the mesh '{found.mesh}', expected one of the topology: {', '.join(self.meshes)}")
        if found.memory_kind not in (None, "device"):
            raise OpError(op, f"has a value in memory of kind '{found.memory_kind}', expected memory of devices")
        return replace(found, sharding=found.sharding or sharding)

    def _visit(self, block: ir.Block) -> list[_Held]:
        """Follows the ops of a block; returns what its terminator names."""
        for view in block.operations:
            op = view.operation
            if op.name in (RETURN, "func.return"):
                return [self._held[operand] for operand in op.operands]
            if op.name not in _FOLLOWED:
                hint = f"ops that are read outside of fragments: {', '.join(UNDERSTOOD)}"
                raise OpError(op, "is not read in a program that is mapped to meshes", hint)
            _FOLLOWED[op.name](self, op)
        raise AssertionError("a verified block has a terminator")

    def _fragment(self, op: ir.Operation) -> None:
        self._execute(op, op.regions[0].blocks[0])

    def _fragment_call(self, op: ir.Operation) -> None:
        self._execute(op, self._functions[_callee(op)].regions[0].blocks[0])

    def _execute(self, op: ir.Operation, body: ir.Block) -> None:
        held = [self._held[operand] for operand in op.operands]
        wanted, given = (_listed(op, name) for name in ("in_shardings", "out_shardings"))
        inputs = [replace(kind, sharding=wanted.get(number, kind.sharding)) for number, (_, kind) in enumerate(held)]
        outputs = [self._kind(op, result.type, given.get(number)) for number, result in enumerate(op.results)]
        mesh = ir.StringAttr(op.attributes["mesh_name"]).value
        group = self.groups.get(mesh, 0)
        slots = [self._new(group) for _ in outputs]
        with op.location:
            module = self._modules.write(body, self.meshes[mesh], inputs, outputs)
        self.steps.append(Execution(Label.of(op), group, module, tuple(slot for slot, _ in held), tuple(slots)))
        self._held.update(zip(op.results, map(_Held, slots, outputs), strict=True))

    def _new(self, group: int) -> Slot:
        self._count += 1
        return Slot(Source("value", self._count - 1), None, group)

    def _transfer(self, op: ir.Operation) -> None:
        """Of `mpmd.transfer` and `mpmd.assign`. A type without a sharding keeps that of the operand."""
        slot, before = self._held[op.operands[0]]
        kind = self._kind(op, op.results[0].type, before.sharding)
        target = slot._replace(group=self.groups[kind.mesh])
        if slot.group not in (ANYWHERE, target.group):
            self.steps.append(Move(slot, target))
        self._held[op.results[0]] = _Held(target, kind)

    def _unassign(self, op: ir.Operation) -> None:
        self._held[op.results[0]] = self._held[op.operands[0]]

    def _call(self, op: ir.Operation) -> None:
        self._expand(op, self._functions[_callee(op)].regions[0].blocks[0], 1)

    def _for(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        if next(iter(block.arguments[len(op.operands)].uses), None) is not None:
            hint = "unroll the loop with Shardy's mpmd-unroll-for-loops"
            raise OpError(op, "computes with the number of its iteration, which is not read", hint)
        self._expand(op, block, ir.IntegerAttr(op.attributes["iterations"]).value)

    def _expand(self, op: ir.Operation, block: ir.Block, times: int) -> None:
        held = [self._held[operand] for operand in op.operands]
        for _ in range(times):
            self._held.update(zip(block.arguments, held, strict=False))  # the last argument of a loop is the iteration
            held = self._visit(block)
        self._held.update(zip(op.results, held, strict=True))

    def _returned(self, held: _Held) -> Slot:
        """The slot of a result. What no fragment of its group returns passes one that changes nothing."""
        slot = held.slot if held.slot.group != ANYWHERE else held.slot._replace(group=0)
        if any(isinstance(step, Execution) and slot in step.outputs for step in self.steps):
            return slot
        returned = self._new(slot.group)
        mesh = next(name for name, group in self.groups.items() if group == slot.group)
        module = self._modules.write(None, self.meshes[mesh], [held.kind], [held.kind])
        self.steps.append(Execution(None, slot.group, module, (slot,), (returned,)))
        return returned


_FOLLOWED: dict[str, Callable[[MappedProgram, ir.Operation], None]] = {
    FRAGMENT: MappedProgram._fragment,
    FRAGMENT_CALL: MappedProgram._fragment_call,
    TRANSFER: MappedProgram._transfer,
    ASSIGN: MappedProgram._transfer,
    UNASSIGN: MappedProgram._unassign,
    CALL: MappedProgram._call,
    FOR: MappedProgram._for,
}

UNDERSTOOD = tuple(_FOLLOWED)
"""The ops that are read outside of fragments."""


def _types(module: ir.Module) -> Iterator[ir.Type]:
    """The types of values outside of fragments, each of them once or more."""
    for op in walk(module.operation):
        yield from (result.type for result in op.results)
        if op.name == "func.func":
            yield from function_type(op).inputs


def _size(mesh: ir.Attribute) -> int:
    """The number of devices of a `#sdy.mesh`."""
    return prod(sdy.MeshAxisAttr(axis).size for axis in sdy.MeshAttr(mesh).axes)


def _callee(op: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _listed(op: ir.Operation, name: str) -> dict[int, ir.Attribute]:
    """The shardings of a fragment's arguments or results by number; empty if it says none."""
    return dict(enumerate(sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings)) if name in op.attributes else {}


def _wholes(types: Sequence[ir.Type], parts: Sequence[Part]) -> list[ir.Type]:
    """The types of values of which these are the parts, along the first dimension."""
    own: dict[int, list[ir.RankedTensorType]] = {}
    for kind, part in zip(types, parts, strict=True):
        own.setdefault(part.number, []).append(ir.RankedTensorType(kind))
    wholes: list[ir.Type] = []
    for number in sorted(own):
        first, *others = own[number]
        sizes = [first.shape[0] + sum(other.shape[0] for other in others), *first.shape[1:]] if others else first.shape
        wholes.append(tensor(list(sizes), first.element_type))
    return wholes
