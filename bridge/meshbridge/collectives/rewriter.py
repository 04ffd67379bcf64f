"""What the collective passes share: a module while collectives move in it, and the loop that applies their rules.

Users and producers come from the IR itself. Operations are changed where they stand, and a collective moves below its user. What
is no longer used is erased at the end, so that no operation goes away while a pass still looks at it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from meshbridge.dialect.attributes import axis_array, integers
from meshbridge.dialect.ops import (
    BOUNDARY_MESH,
    BOUNDARY_PARTIAL,
    BOUNDARY_SPLIT,
    AllGatherOp,
    AllReduceOp,
    CollectiveOpView,
    MeshOp,
)
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops import elementwise

ViewT = TypeVar("ViewT", bound=CollectiveOpView)

CONSTANTS = frozenset(("stablehlo.constant", "arith.constant"))

ELEMENTWISE = frozenset(
    [f"stablehlo.{name}" for name in (*elementwise.UNARY, *elementwise.BINARY, "clamp", "select")]
    + [f"arith.{name}" for name in elementwise.ARITH]
    + [f"math.{name}" for name in elementwise.MATH]
    + [f"chlo.{name}" for name in elementwise.CHLO]
)
"""Operations that compute every place of their result from the same place of their operands, or from scalars."""

_PURE = ELEMENTWISE | {f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "transpose", "slice")}
"""Operations whose result is the same on two devices if their operands are."""

_SPREADING = frozenset((AllReduceOp.OPERATION_NAME, AllGatherOp.OPERATION_NAME))
"""Collectives that leave all devices of a group with the same."""

REDUCERS = frozenset(f"stablehlo.{name}" for name in ("reduce", "reduce_window", "scatter", "select_and_scatter", "sort"))
"""Operations whose regions hold scalars, and use nothing from outside."""

_DEPTH = 4
"""How many operations `is_uniform` looks through: more would cost time in proportion to the size of what computes a value."""


class Rewriter:
    """A module while collectives move in it. Inside, `retired` operations still stand, but count as gone."""

    def __init__(self, module: ir.Module) -> None:
        self.meshes: dict[str, Mesh] = {}
        # By their first result: the bindings hash an operation by what it holds, and hand out several objects for it.
        self._mesh_ops: dict[ir.Value, ir.Operation] = {}
        self._retired: dict[ir.Value, ir.Operation] = {}
        self.loops: list[ir.Operation] = []
        """Its `stablehlo.while`, outer ones first."""
        self._adopted: list[ir.Operation] = []
        self._read(module.body)

    def _read(self, block: ir.Block) -> None:
        for view in block.operations:
            name = view.operation.name
            if name == MeshOp.OPERATION_NAME:
                self.meshes[MeshOp(view.operation).sym_name] = MeshOp(view.operation).value
            elif name.startswith("mesh."):
                self._mesh_ops[view.operation.results[0]] = view.operation
            elif name not in REDUCERS and len(view.operation.regions):
                if name == "stablehlo.while":
                    self.loops.append(view.operation)
                for region in view.operation.regions:
                    for inner in region.blocks:
                        self._read(inner)

    @property
    def mesh_ops(self) -> list[ir.Operation]:
        """The mesh operations of the module, declarations aside: first those that it began with, in program order."""
        return [op for key, op in self._mesh_ops.items() if key not in self._retired]

    def producer(self, value: ir.Value) -> ir.Operation | None:
        """The operation that defines `value`; None for an argument of a block."""
        owner = value.owner
        return None if isinstance(owner, ir.Block) else owner.operation

    def collective(self, value: ir.Value, kind: type[ViewT], user: ir.Operation) -> ViewT | None:
        """The collective of class `kind` that defines `value` in the block of `user`.

        A collective must not move into a loop or a branch, so both have to stand in the same block.
        """
        op = self.producer(value)
        return kind(op) if op is not None and op.name == kind.OPERATION_NAME and op.block == user.block else None

    def users(self, value: ir.Value) -> list[ir.Operation]:
        """The operation behind each use of `value`."""
        owners = [use.owner.operation for use in value.uses]
        return [op for op in owners if not self.is_retired(op)] if self._retired else owners

    def uses(self, value: ir.Value) -> int:
        """How many operands `value` is."""
        return len(self.users(value))

    def is_retired(self, op: ir.Operation) -> bool:
        return bool(self._retired) and len(op.results) > 0 and op.results[0] in self._retired

    def is_uniform(self, value: ir.Value, mesh: str, axes: Axes, depth: int = _DEPTH) -> bool:
        """Whether all devices of a group along `axes` surely hold the same: constants, what is reduced or gathered over them,
        arguments that are not split along them, and what is computed from these alone."""
        op = self.producer(value)
        if op is None:
            return _is_replicated_argument(value, mesh, axes)
        if op.name in CONSTANTS:
            return True
        if op.name in _PURE:
            return depth > 0 and all(self.is_uniform(operand, mesh, axes, depth - 1) for operand in op.operands)
        if op.name not in _SPREADING:
            return False
        collective = CollectiveOpView(op)
        return collective.mesh == mesh and set(axes) <= set(collective.mesh_axes)

    @staticmethod
    def can_be_uniform(name: str) -> bool:
        """Whether `is_uniform` may hold for what an operation of that name gives."""
        return name in CONSTANTS or name in _PURE or name in _SPREADING

    def feed(self, op: ir.Operation, number: int, value: ir.Value) -> None:
        """Makes `value` operand `number` of `op`; retires a collective that nothing uses any more."""
        before = op.operands[number]
        op.operands[number] = value
        self.adopt(value)  # what gives it has a new user
        self._release(before)

    def _release(self, value: ir.Value) -> None:
        op = self.producer(value)
        if op is not None and _is_dispensable(op.name) and not any(self.uses(result) for result in op.results):
            self.retire(op)

    def retire(self, op: ir.Operation) -> None:
        """Gives up an operation without uses; `finish` erases it."""
        if not self.is_retired(op):
            self._retired[op.results[0]] = op
            for operand in op.operands:
                self._release(operand)

    def replace(self, op: ir.Operation, value: ir.Value) -> None:
        """Lets the users of the one result of `op` use `value`, and retires `op`."""
        self.adopt(value)
        op.results[0].replace_all_uses_with(value)
        self.retire(op)

    def put_after(self, op: ir.Operation, location: ir.Location, make: Callable[[ir.Value], ir.Value]) -> None:
        """Lets the users of the one result of `op` use what `make` builds of it at `location`, right after `op`."""
        result = op.results[0]
        with ir.InsertionPoint.after(op), location:
            value = make(result)
        made = self.producer(value)
        assert made is not None
        result.replace_all_uses_except(value, made)
        self.adopt(value)

    def adopt(self, value: ir.Value) -> None:
        """Lets the rules look at the operation behind `value`, which a rule has made or given another user."""
        op = self.producer(value)
        if op is not None and op.name.startswith("mesh."):
            if op.results[0] not in self._mesh_ops:
                self._mesh_ops[op.results[0]] = op
                for operand in op.operands:
                    self.adopt(operand)
            self._adopted.append(op)

    def adopted(self) -> list[ir.Operation]:
        """The operations that were adopted since the last call."""
        found, self._adopted = self._adopted, []
        return found

    def dominates(self, first: ir.Operation, second: ir.Operation) -> bool:
        """Whether the results of `first` can be used by `second`: it stands before it, or before what encloses it."""
        above: ir.Operation | None = second
        while above is not None and above.name != "func.func":
            if above.block == first.block:
                return above != first and first.is_before_in_block(above)
            above = above.parent.operation if above.parent is not None else None
        return False

    def finish(self) -> None:
        """Erases what was retired, users before what they used."""
        for key, op in self._retired.items():
            self._mesh_ops.pop(key, None)
            op.erase()
        self._retired.clear()
        self._adopted.clear()


def _is_dispensable(name: str) -> bool:
    """Whether an operation of that name may go once nothing uses it."""
    return name in _PURE or (name.startswith("mesh.") and name not in ("mesh.send", "mesh.recv"))


def _is_replicated_argument(value: ir.Value, mesh: str, axes: Axes) -> bool:
    """Whether `value` is a function's argument that its `meshbridge` attributes say is the same along `axes`."""
    block = value.owner
    assert isinstance(block, ir.Block)
    function = block.owner.operation
    if function.name != "func.func" or "arg_attrs" not in function.attributes:
        return False
    attrs = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
    if BOUNDARY_MESH not in attrs or ir.FlatSymbolRefAttr(attrs[BOUNDARY_MESH]).value != mesh:
        return False
    terms = integers(attrs[BOUNDARY_PARTIAL]) if BOUNDARY_PARTIAL in attrs else ()
    return not any(set(axes) & set(along) for along in (terms, *axis_array(attrs[BOUNDARY_SPLIT])))


@dataclass(frozen=True)
class Rule:
    """One rewrite. It is tried on every operation named `at`, or on the ones named in `users` that read what it gives."""

    at: str
    rewrite: Callable[[ir.Operation, Rewriter], bool]
    """Changes the operation if it can, and returns whether it did."""
    users: frozenset[str] | None = None


class RulePass(Pass):
    """A pass that is a set of rules."""

    rules: ClassVar[tuple[Rule, ...]]

    def run(self, module: ir.Module) -> bool:
        with rewriting(module) as rewriter:
            return apply(self.rules, rewriter)


def apply(rules: Iterable[Rule], rewriter: Rewriter) -> bool:
    """Applies `rules` until none finds more to do: to every mesh operation in program order, then to what the rules made.

    Ends, because each rule lowers the bytes on the wire, or keeps them and lowers the number of collectives, or keeps both and
    moves a collective down. Returns whether anything changed.
    """
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        table.setdefault(rule.at, []).append(rule)
    changed = False
    queue = deque(rewriter.mesh_ops)
    while queue:
        op = queue.popleft()
        if not rewriter.is_retired(op) and _apply_at(op, table, rewriter):
            changed = True
            queue.extend([op, *rewriter.adopted()])
    return changed


def _apply_at(op: ir.Operation, table: Mapping[str, list[Rule]], rewriter: Rewriter) -> bool:
    rules = table.get(op.name, ())
    users = {user: user.name for user in rewriter.users(op.results[0])} if rules else {}
    for rule in rules:
        if rule.users is None:
            if rule.rewrite(op, rewriter):
                return True
            continue
        for user, name in users.items():
            if name in rule.users and rule.rewrite(user, rewriter):
                return True
    return False


@contextmanager
def rewriting(module: ir.Module) -> Iterator[Rewriter]:
    """A Rewriter of `module` whose retired operations are erased in the end."""
    with module.context, ir.Location.unknown():
        rewriter = Rewriter(module)
        yield rewriter
        rewriter.finish()
