"""`mesh-opt --print-sharding-interface`: loops and indexing maps of each operation, as in the RFC's walk-through; and
`--print-operations`: the operations that mutations can name."""

from __future__ import annotations

from collections.abc import Iterator

from meshbridge.decide.mutations import operations
from meshbridge.ir.mlir import ir, walk_all
from meshbridge.ops.rule import Interface, Loop, ShardingRule, affine_maps, loop_types, may_have_loops
from meshbridge.reports.measured import to_legal
from meshbridge.text import table


def interface_text(module: ir.Module) -> str:
    """One paragraph for each operation on tensors with at least one dimension, in order."""
    interface = Interface()
    with module.context:
        paragraphs = [_paragraph(op, interface.rule(op)) for op in _payload(module)]
    return "\n".join(paragraphs)


def _payload(module: ir.Module) -> Iterator[ir.Operation]:
    for op in walk_all(module):
        if may_have_loops(op.name) and any(_has_dimensions(value) for value in (*op.operands, *op.results)):
            yield op


def _has_dimensions(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).rank > 0


def _paragraph(op: ir.Operation, rule: ShardingRule) -> str:
    head = op.get_asm(use_local_scope=True, large_elements_limit=16, skip_regions=True)
    if not rule.has_rule:
        return f"{head}\nno sharding interface: operands are gathered\n"
    maps = "\n".join(str(entry) for entry in affine_maps(rule))
    return f"{head}\nloop types: [{' '.join(loop_types(rule))}]\nindexing maps:\n{maps}\n"


def operations_text(module: ir.Module) -> str:
    """Legalizes the program; a row for each operation: its index, loops, sharding option, line and name."""
    to_legal(module)
    header = ("index", "op", "loops", "option", "location", "name")
    rows = [
        (
            *(str(op.index), op.name, " ".join(map(_loop_text, op.loops))),
            *("-" if op.option is None else str([list(axes) for axes in op.option]), op.location.short, op.scope or "-"),
        )
        for op in operations(module)
    ]
    return table([header, *rows], left={1, 2, 3, 4, 5}) + "\n"


def _loop_text(loop: Loop) -> str:
    return f"{loop.reduction}:{loop.size}" if loop.reduction else str(loop.size)
