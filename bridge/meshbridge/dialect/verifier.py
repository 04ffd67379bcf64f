"""Verifies the mesh operations of a module by upstream's rules, in upstream's words, and by rules that upstream lacks.

MLIR's own verifier does not know these operations (`Operation.verify` runs no Python), so this one runs after reading and after
every pass. It walks once; operations of one signature share one check, and a `mesh.shard` costs two look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshbridge.dialect import constraints, shard_constraints
from meshbridge.dialect.ops import OPERATION_NAMES, MeshOp, ShardingOp, ShardOp
from meshbridge.dialect.signature import Broken, Signature, check_attributes
from meshbridge.ir.mlir import OpKey, VerifyError, find, ir, op_key, terminator
from meshbridge.ir.sharding import Mesh, Sharding

RULES = constraints.RULES | shard_constraints.RULES


def verify(module: ir.Module) -> None:
    """Raises VerifyError if mesh operations break rules; its text has the diagnostics of all of them."""
    errors = diagnostics(module)
    if errors:
        errors[0].text = "\n".join(error.text for error in errors)
        raise errors[0]


def diagnostics(module: ir.Module) -> list[VerifyError]:
    """The first broken rule of every mesh operation that breaks one, in the order of the text."""
    return _check_module(module.operation)


def _check_module(module: ir.Operation) -> list[VerifyError]:
    """The errors of a module and of nested modules, each with its own symbols."""
    body = module.regions[0].blocks[0]
    check = _ModuleCheck(body)
    ops = iter(find(module, _CHECKED))
    for op in ops:
        if op.name == _MODULE:
            check.errors += _check_module(op)
            for _ in find(op, _CHECKED):
                next(ops)
        else:
            check.operation(op)
    check.check_terminators()
    return check.errors


_MODULE = "builtin.module"
_CHECKED = OPERATION_NAMES | {_MODULE}


def _meshes(body: ir.Block) -> dict[str, Mesh]:
    """The meshes that a module declares, without those that cannot be read; their own check reports these."""
    meshes: dict[str, Mesh] = {}
    for view in body.operations:
        if view.operation.name == MeshOp.OPERATION_NAME and not _broken_rule(
            check_attributes, _signature(op_key(view.operation), {})
        ):
            mesh = MeshOp(view.operation).value
            meshes[mesh.name] = mesh
    return meshes


def _signature(key: OpKey, meshes: dict[str, Mesh]) -> Signature:
    name, attributes, operands, results = key
    return Signature(name, dict(attributes), operands, results, meshes)


def _check(signature: Signature) -> None:
    check_attributes(signature)
    for rule in RULES[signature.mnemonic]:
        rule(signature)


def _broken_rule(check: Callable[..., None], *arguments: object) -> str:
    """The message of the rule that `check` finds broken, or ""."""
    try:
        check(*arguments)
    except Broken as broken:
        return str(broken)
    return ""


def _structural_error(op: ir.Operation) -> str:
    """The error for regions or successors, which no operation of the dialect has; MLIR does not check unknown operations."""
    if len(op.regions):
        return "requires zero regions"
    return f"requires 0 successors but found {len(op.successors)}" if len(op.successors) else ""


def _needs_terminator(block: ir.Block) -> bool:
    """True if the block's owner is registered, so that the block needs a terminator."""
    owner = block.owner.operation
    return owner.context.is_registered_operation(owner.name)


class _ModuleCheck:
    """One walk over one module. Messages are memoised; "" means no error."""

    def __init__(self, body: ir.Block) -> None:
        self._body = body
        self._meshes = _meshes(body)
        self.errors: list[VerifyError] = []
        self._block = body
        self._last: list[ir.Operation] = []
        """The last operation of each run of mesh operations in one block."""
        self._checked: dict[object, str] = {}
        self._values: dict[object, Sharding] = {}
        self._shardings: dict[ir.Value[Any], Sharding] = {}

    def operation(self, op: ir.Operation) -> None:
        """Checks an operation of the dialect."""
        name, block = op.name, op.block
        if block != self._block:
            self._block = block
            self._last.append(op)
        elif self._last:
            self._last[-1] = op
        if message := _structural_error(op):
            self.errors.append(VerifyError(op, message))
        elif name == ShardOp.OPERATION_NAME:
            self._shard(op)
        elif name == MeshOp.OPERATION_NAME and block != self._body:
            self.errors.append(VerifyError(op, "symbol's parent must have the SymbolTable trait"))
        else:
            self._mesh_op(op)

    def check_terminators(self) -> None:
        """Checks that no mesh operation ends a block that needs a terminator."""
        for op in self._last:
            block = op.block
            if block == self._body or terminator(block) is not None or not _needs_terminator(block):
                continue
            if block.operations[-1].operation == op:
                self.errors.append(VerifyError(op, "ends a block with no terminator"))

    def _shard(self, op: ir.Operation) -> None:
        try:
            value, annotation = op.operands
            source, result = value.type, op.result.type
        except ValueError:
            self.errors.append(VerifyError(op, "expects a tensor, a sharding and one result"))
            return
        sharding = self._shardings.get(annotation)
        # Equal shardings are one object, whose identity is faster to hash than its fields.
        key = (source, result, id(sharding) if sharding else annotation.type)
        message = self._checked.get(key)
        if message is None:
            message = _broken_rule(shard_constraints.check_shard, source, result, sharding or annotation.type, self._meshes)
            self._checked[key] = message
        if message:
            self.errors.append(VerifyError(op, message))

    def _mesh_op(self, op: ir.Operation) -> None:
        key = op_key(op)
        message = self._checked.get(key)
        if message is None:
            message = self._checked[key] = _broken_rule(_check, _signature(key, self._meshes))
        if message:
            self.errors.append(VerifyError(op, message))
        elif op.name == ShardingOp.OPERATION_NAME:
            if key not in self._values:
                self._values[key] = ShardingOp(op).value
            self._shardings[op.results[0]] = self._values[key]
