"""What the collective passes share: who defines each value and how often it is used, gathered in one walk and kept up to date.

Operations are changed where they stand, and a collective moves below its user. What is no longer used is erased at the end, so
that no value of the walk goes away while a pass still looks things up by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, CollectiveOpView, MeshOp
from meshbridge.mlir import ir
from meshbridge.sharding import Axes, Mesh

ViewT = TypeVar("ViewT", bound=CollectiveOpView)

CONSTANTS = frozenset(("stablehlo.constant", "arith.constant"))

_UNIFORM = CONSTANTS | {"stablehlo.broadcast_in_dim", AllReduceOp.OPERATION_NAME, AllGatherOp.OPERATION_NAME}
"""What `Rewriter.is_uniform` looks through."""


class Rewriter:
    """A module while collectives move in it."""

    def __init__(self, module: ir.Module, names: Collection[str]) -> None:
        """`names`: the operations whose results a pass asks for."""
        self.meshes: dict[str, Mesh] = {}
        self.ops: list[tuple[ir.Operation, int]] = []
        """Every operation with the number of its block."""
        self._names = frozenset(names) | _UNIFORM
        self._producers: dict[ir.Value, tuple[ir.Operation, int]] = {}
        self._uses: Counter[ir.Value] = Counter()
        self._retired: list[ir.Operation] = []
        self._blocks = 0
        self._read(module.body)

    def _read(self, block: ir.Block) -> None:
        number, self._blocks = self._blocks, self._blocks + 1
        for view in block.operations:
            op = view.operation
            self.ops.append((op, number))
            self._uses.update(op.operands)
            if op.name in self._names:
                self._producers.update((result, (op, number)) for result in op.results)
            elif op.name == MeshOp.OPERATION_NAME:
                self.meshes[MeshOp(op).sym_name] = MeshOp(op).value
            for region in op.regions:
                for inner in region.blocks:
                    self._read(inner)

    def producer(self, value: ir.Value, block: int | None = None) -> ir.Operation | None:
        """The operation of one of the names that defines `value`, in block number `block` if one is given.

        A collective must not move into a loop or a branch, so its user has to stand in the same block.
        """
        op, home = self._producers.get(value, (None, -1))
        return op if block in (None, home) else None

    def collective(self, value: ir.Value, kind: type[ViewT], block: int) -> ViewT | None:
        """The collective of class `kind` that defines `value` in block number `block`."""
        op = self.producer(value, block)
        return kind(op) if op is not None and op.name == kind.OPERATION_NAME else None

    def uses(self, value: ir.Value) -> int:
        """How many operands `value` is."""
        return self._uses[value]

    def is_uniform(self, value: ir.Value, mesh: str, axes: Axes) -> bool:
        """Whether all devices of a group along `axes` surely hold the same: constants, what is reduced or gathered over them."""
        op = self.producer(value)
        if op is None or op.name in CONSTANTS:
            return op is not None
        if op.name == "stablehlo.broadcast_in_dim":
            return self.is_uniform(op.operands[0], mesh, axes)
        if op.name not in _UNIFORM:
            return False
        collective = CollectiveOpView(op)
        return collective.mesh == mesh and set(axes) <= set(collective.mesh_axes)

    def feed(self, op: ir.Operation, number: int, value: ir.Value) -> None:
        """Makes `value` operand `number` of `op`; retires a collective that nothing uses any more."""
        before = op.operands[number]
        op.operands[number] = value
        self._uses[value] += 1
        self._release(before)

    def _release(self, value: ir.Value) -> None:
        self._uses[value] -= 1
        op = self.producer(value)
        if op is not None and op.name.startswith("mesh.") and not any(self._uses[result] for result in op.results):
            self.retire(op)

    def retire(self, op: ir.Operation) -> None:
        """Gives up an operation without uses; `finish` erases it."""
        self._retired.append(op)
        for operand in op.operands:
            self._release(operand)

    def replace(self, op: ir.Operation, value: ir.Value) -> None:
        """Lets the users of the one result of `op` use `value`, made just before, and retires `op`."""
        result = op.results[0]
        self.adopt(value, self._producers[result][1])
        result.replace_all_uses_with(value)
        self._uses[value] += self._uses.pop(result)
        self.retire(op)

    def put_after(self, op: ir.Operation, block: int, make: Callable[[ir.Value], ir.Value]) -> None:
        """Lets the users of the one result of `op` use what `make` builds of it, right after `op` in block number `block`."""
        result = op.results[0]
        with ir.InsertionPoint.after(op), op.location:
            value = make(result)
        made = _definition(value)
        result.replace_all_uses_except(value, made)
        self._uses[value], self._uses[result] = self._uses[result], 1
        self._producers[value] = (made, block)

    def adopt(self, value: ir.Value, block: int) -> None:
        """Enters an operation that a pass has made, with its operands."""
        op = _definition(value)
        self._producers[value] = (op, block)
        self._uses.update(op.operands)

    def finish(self) -> None:
        """Erases what was retired: users were retired before what they used."""
        for op in self._retired:
            op.erase()
        self._retired.clear()


def _definition(value: ir.Value) -> ir.Operation:
    owner = value.owner
    assert not isinstance(owner, ir.Block)
    return owner.operation


@contextmanager
def rewriting(module: ir.Module, names: Collection[str]) -> Iterator[Rewriter]:
    """A Rewriter of `module` whose retired operations are erased in the end."""
    with module.context, ir.Location.unknown():
        rewriter = Rewriter(module, names)
        yield rewriter
        rewriter.finish()
