"""Finds annotations of one value that contradict each other, which the dialect's spec lists as undefined usages of `mesh.shard`.

%1 = mesh.shard %0 to %a : tensor<4x8xf32>
%2 = mesh.shard %1 to %b : tensor<4x8xf32>         warning: the definition of %0 has two shardings

They are warnings, not errors: LLVM reads such programs, and its own tests have some. Here the value is resharded from one
annotation to the next. A `mesh.shard` that a converter wrote for an operation (`meshbridge.source`, for example a sharding
constraint of JAX) is meant as such a step.
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
    unique: dict[Sharding, Sharding] = {}
    shardings: dict[ir.Value[Any], Sharding] = {}
    shards: dict[ir.Value[Any], tuple[ShardOp, Sharding]] = {}
    definitions: dict[ir.Value[Any], tuple[ShardOp, Sharding]] = {}
    for op in walk(module.operation):
        name = op.name
        if name == ShardingOp.OPERATION_NAME:
            with suppress(MeshError, KeyError, TypeError):  # the verifier says which attribute is wrong, or missing
                sharding = ShardingOp(op).value.trimmed()
                shardings[op.result] = unique.setdefault(sharding, sharding)
        elif name == ShardOp.OPERATION_NAME:
            source, annotation = op.operands
            if (declared := shardings.get(annotation)) is None:
                continue
            shard = ShardOp(op)
            shards[op.result] = shard, declared
            before = shards.get(source)
            if before is None and not shard.annotate_for_users:
                before = definitions.setdefault(source, (shard, declared))
            if before is not None and before[1] is not declared and (contradiction := _contradiction(before[0], shard)):
                warnings.append(
                    f"{source_location(op)}: warning: '{name}' op {contradiction}, {_MEANING}\n"
                    f"{source_location(before[0].operation)}: note: the other annotation is here"
                )
    return warnings


_MEANING = "which is undefined; the value is resharded from one to the other."


def _contradiction(before: ShardOp, shard: ShardOp) -> str:
    """The contradiction between `shard` and `before`, an earlier annotation of its operand; "" if there is none."""
    is_step = SOURCE in before.attributes or SOURCE in shard.attributes
    if is_step or (shard.annotate_for_users and not before.annotate_for_users):
        return ""
    after_use = "an operand that" if shard.annotate_for_users else "a result after an operand that"
    return f"annotates {after_use if before.annotate_for_users else 'a result that'} is annotated with another sharding"
