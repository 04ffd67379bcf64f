"""The rewrite driver: applies patterns for ops of some names, in one walk, to a fixed point.

Legalization, the rewrites of collectives and the folds of mesh ops are tables of patterns. A pattern inspects one op, changes the
program if it can, and returns whether it did. Users and producers come from the IR itself; ops are changed in place. Unused ops
are erased at the end, so that no op is erased while a pattern still reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshbridge.ir.mlir import ancestor_in, find, ir, walk
from meshbridge.ir.uses import defining_op

RewriterT = TypeVar("RewriterT", bound="Rewriter")


@dataclass(frozen=True)
class Pattern(Generic[RewriterT]):
    """One rewrite. It is tried on every op named in `names`, or on their users named in `readers`."""

    names: tuple[str, ...]
    rewrite: Callable[[ir.Operation, RewriterT], bool]
    """Changes the op if it can, and returns whether it did."""
    readers: frozenset[str] | None = None


class Rewriter:
    """A module during rewriting. `retired` ops still exist, but count as erased."""

    names: Set[str]
    """The names of ops, with results, that patterns may be tried on."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        # By their first result: the bindings hash an operation by its contents, and return several objects for it.
        self._roots = {results[0]: op for op in find(module.operation, self.names) if len(results := op.results)}
        self._retired: dict[ir.Value, ir.Operation] = {}
        self._inside: set[ir.Value] = set()
        "First results of the ops in the regions of retired ops."
        self._adopted: list[ir.Operation] = []

    def is_erasable(self, name: str) -> bool:
        """Whether an op of that name may be erased if it is unused."""
        raise NotImplementedError(type(self))

    @property
    def roots(self) -> list[ir.Operation]:
        """The ops that patterns may be tried on: first the original ones, in program order."""
        if not self._retired:
            return list(self._roots.values())
        return [op for key, op in self._roots.items() if not self._is_gone(key)]

    def users(self, value: ir.Value) -> list[ir.Operation]:
        """The op of each use of `value`."""
        owners = [use.owner.operation for use in value.uses]
        return [op for op in owners if not self.is_retired(op)] if self._retired else owners

    def uses(self, value: ir.Value) -> int:
        """The number of uses of `value`."""
        return len(self.users(value))

    def is_used(self, value: ir.Value) -> bool:
        """Whether `value` has any use; cheaper than to count those of a constant that a thousand ops share."""
        return any(not self.is_retired(use.owner.operation) for use in value.uses)

    def is_retired(self, op: ir.Operation) -> bool:
        return bool(self._retired) and len(op.results) > 0 and self._is_gone(op.results[0])

    def _is_gone(self, first_result: ir.Value) -> bool:
        return first_result in self._retired or first_result in self._inside

    def set_operand(self, op: ir.Operation, number: int, value: ir.Value) -> None:
        """Sets operand `number` of `op` to `value`; retires unused ops."""
        before = op.operands[number]
        op.operands[number] = value
        self.adopt(value)  # its op has a new user
        self._release(before)

    def _release(self, value: ir.Value) -> None:
        op = defining_op(value)
        if op is not None and self.is_erasable(op.name) and not any(map(self.is_used, op.results)):
            self.retire(op)

    def retire(self, op: ir.Operation) -> None:
        """Retires an op without uses; `finish` erases it."""
        if self.is_retired(op):
            return
        self._retired[op.results[0]] = op
        if len(op.regions):
            self._inside.update(inner.results[0] for inner in walk(op) if inner != op and len(inner.results))
        for operand in op.operands:
            self._release(operand)

    def replace(self, op: ir.Operation, *values: ir.Value) -> None:
        """Replaces the results of `op` by `values`, and retires `op`."""
        for result, value in zip(op.results, values, strict=True):
            self.adopt(value)
            result.replace_all_uses_with(value)
        self.retire(op)

    def replace_after(
        self, op: ir.Operation, location: ir.Location, make: Callable[[ir.Value], ir.Value], kept: Sequence[ir.Operation] = ()
    ) -> None:
        """Replaces the one result of `op`, except in the ops `kept`, by what `make` builds from it after `op`, at `location`."""
        result = op.results[0]
        with ir.InsertionPoint.after(op), location:
            value = make(result)
        maker = defining_op(value)
        assert maker is not None
        result.replace_all_uses_except(value, [maker, *kept])
        self.adopt(value)

    def adopt(self, value: ir.Value) -> None:
        """Queues the op of `value`, which a pattern has created or given another user."""
        op = defining_op(value)
        if op is not None and op.name in self.names:
            if op.results[0] not in self._roots:
                self._roots[op.results[0]] = op
                for operand in op.operands:
                    self.adopt(operand)
            self._adopted.append(op)

    def dominates(self, first: ir.Operation, second: ir.Operation) -> bool:
        """Whether `second` can use the results of `first`: it is before it, or before an op that encloses it."""
        above = ancestor_in(first.block, second)
        return above is not None and above != first and first.is_before_in_block(above) and above.name != "func.func"

    def finish(self) -> None:
        """Erases retired ops, users before producers."""
        for key, op in self._retired.items():
            self._roots.pop(key, None)
            op.erase()
        for key in self._inside:
            self._roots.pop(key, None)
        self._retired.clear()
        self._inside.clear()
        self._adopted.clear()

    def apply(self: RewriterT, patterns: Iterable[Pattern[RewriterT]]) -> bool:
        """Applies `patterns`, those of an op in their order, to a fixed point: to every root in program order, then to the ops
        that patterns created. Returns whether anything changed.

        The patterns must ensure termination.
        """
        table: dict[str, list[Pattern[RewriterT]]] = {}
        for pattern in patterns:
            for name in pattern.names:
                table.setdefault(name, []).append(pattern)
        changed = False
        queue = deque([(op, matching) for op in self.roots if (matching := table.get(op.name))])
        while queue:
            op, tried = queue.popleft()
            if not self.is_retired(op) and self._apply_at(op, tried):
                changed = True
                changed_ops = (op, *self._take_adopted())
                queue.extend([(root, matching) for root in changed_ops if (matching := table.get(root.name))])
        return changed

    def _take_adopted(self) -> list[ir.Operation]:
        """The ops adopted since the last call."""
        adopted, self._adopted = self._adopted, []
        return adopted

    def _apply_at(self: RewriterT, op: ir.Operation, patterns: Sequence[Pattern[RewriterT]]) -> bool:
        users: list[tuple[ir.Operation, str]] | None = None
        for pattern in patterns:
            if pattern.readers is None:
                if pattern.rewrite(op, self):
                    return True
                continue
            if users is None:
                users = [(user, user.name) for user in self.users(op.results[0])]
            for user, name in users:
                if name in pattern.readers and pattern.rewrite(user, self):
                    return True
        return False


@contextmanager
def rewriting(rewriter: Callable[[ir.Module], RewriterT], module: ir.Module) -> Iterator[RewriterT]:
    """A rewriter of `module` that erases retired ops at the end."""
    with module.context, ir.Location.unknown():
        instance = rewriter(module)
        yield instance
        instance.finish()
