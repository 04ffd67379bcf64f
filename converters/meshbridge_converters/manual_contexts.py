"""Along which mesh axes the values of an operation are local: those of the manual computations around it, through calls too."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshbridge.ir.mlir import MANUAL, ir, walk_all
from meshbridge.legalize.inline_calls import CALLEE, callee
from meshbridge_converters.invariants import manual_axes

Contexts = frozenset[frozenset[str]]
"""The sets of manual axes under which something is executed: several where a function is called from several places."""


@dataclass
class ManualContexts:
    """The manual computations and the calls of a module, which must not change meanwhile."""

    calls: dict[str, list[ir.Operation]]
    of_function: dict[str, Contexts] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module) -> ManualContexts:
        calls: dict[str, list[ir.Operation]] = {}
        for op in walk_all(module):
            if op.name in CALLEE:
                calls.setdefault(callee(op), []).append(op)
        return cls(calls)

    def around(self, op: ir.Operation) -> Contexts:
        """The sets of axes along which the values of `op` are local; one empty set outside of every manual computation."""
        local: frozenset[str] = frozenset()
        here: ir.Operation | None = op
        while here is not None and here.name != "func.func":
            outer = here.parent
            here = None if outer is None else outer.operation
            if here is not None and here.name == MANUAL:
                local |= frozenset(manual_axes(here))
        outside = frozenset((frozenset[str](),)) if here is None else self._of_function(here)
        return frozenset(local | axes for axes in outside)

    def _of_function(self, function: ir.Operation) -> Contexts:
        name = ir.StringAttr(function.attributes["sym_name"]).value
        if name not in self.of_function:
            self.of_function[name] = frozenset()  # of a call to itself, which adds nothing
            found = [self.around(call) for call in self.calls.get(name, ())]
            self.of_function[name] = frozenset().union(*found) or frozenset((frozenset(),))
        return self.of_function[name]
