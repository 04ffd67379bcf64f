"""Annotations of one value that contradict each other: what the dialect's spec lists as undefined usages of `mesh.shard`.

%1 = mesh.shard %0 to %a : tensor<4x8xf32>
%2 = mesh.shard %1 to %b : tensor<4x8xf32>         warning: the definition of %0 has two shardings

They are worth a warning and no error: LLVM reads such programs, and its own tests hold some. Here each annotation is
a step of its own, so that the value is resharded from one to the next. A `mesh.shard` that a converter has written for
an operation (`meshbridge.source`: a sharding constraint of JAX, say) is such a step in the program already.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.dialect.ops import SOURCE, ShardingOp, ShardOp
from meshbridge.ir.mlir import MeshError, ir, source_location, walk
from meshbridge.ir.sharding import Sharding


def undefined_chains(module: ir.Module) -> list[str]:
    """A warning, `file:line:col: warning: …` and a note, for every annotation that contradicts one before it."""
    warnings: list[str] = []
    if not mesh_ops(module.body):
        return warnings
    same: dict[Sharding, Sharding] = {}
    shardings: dict[ir.Value[Any], Sharding] = {}
    shards: dict[ir.Value[Any], tuple[ShardOp, Sharding]] = {}
    definitions: dict[ir.Value[Any], tuple[ShardOp, Sharding]] = {}
    for op in walk(module.operation):
        name = op.name
        if name == ShardingOp.OPERATION_NAME:
            with suppress(MeshError, KeyError, TypeError):  # the verifier says which attribute is wrong, or missing
                sharding = ShardingOp(op).value.trimmed()
                shardings[op.result] = same.setdefault(sharding, sharding)
        elif name == ShardOp.OPERATION_NAME:
            source, annotation = op.operands
            if (found := shardings.get(annotation)) is None:
                continue
            shard = ShardOp(op)
            shards[op.result] = shard, found
            before = shards.get(source)
            if before is None and not shard.annotate_for_users:
                before = definitions.setdefault(source, (shard, found))
            if before is not None and before[1] is not found and (contradiction := _contradiction(before[0], shard)):
                warnings.append(
                    f"{source_location(op)}: warning: '{name}' op {contradiction}, {_MEANING}\n"
                    f"{source_location(before[0].operation)}: note: the other annotation is here"
                )
    return warnings


_MEANING = "which is undefined; the value is resharded from one to the other."


def _contradiction(before: ShardOp, shard: ShardOp) -> str:
    """What is wrong with `shard` of the value that `before` annotates otherwise, or of its result; "" if nothing is."""
    is_step = SOURCE in before.attributes or SOURCE in shard.attributes
    if is_step or (shard.annotate_for_users and not before.annotate_for_users):
        return ""
    after_use = "an operand that" if shard.annotate_for_users else "a result after an operand that"
    return f"annotates {after_use if before.annotate_for_users else 'a result that'} is annotated with another sharding"
