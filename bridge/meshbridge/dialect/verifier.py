"""Checks the mesh operations of a module: upstream's rules in upstream's words, and the holes that upstream leaves open, closed.

MLIR's own verifier knows nothing of these operations (`Operation.verify` runs no Python), so this one runs after reading and
after every pass. It walks once; operations alike in attributes and types share one check, and a `mesh.shard` costs two look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshbridge.dialect import constraints, shard_constraints
from meshbridge.dialect.assembly.formats import FORMATS
from meshbridge.dialect.ops import MeshOp, MeshOpView, ShardingOp
from meshbridge.dialect.signature import Broken, Signature, check_attributes
from meshbridge.ir.mlir import VerifyError, has_no_regions, ir
from meshbridge.ir.sharding import Mesh, Sharding

RULES = constraints.RULES | shard_constraints.RULES


def verify(module: ir.Module) -> None:
    """Raises VerifyError if a mesh operation breaks a rule; its text holds the diagnostics of all that do."""
    errors = diagnostics(module)
    if errors:
        errors[0].text = "\n".join(error.text for error in errors)
        raise errors[0]


def diagnostics(module: ir.Module) -> list[VerifyError]:
    """The first broken rule of every mesh operation that breaks one, in the order of the text."""
    return _check_module(module.operation)


def _check_module(module: ir.Operation) -> list[VerifyError]:
    """Symbols are those of the module itself; a module inside it has its own."""
    body = module.regions[0].blocks[0]
    check = _ModuleCheck(body)
    check.block(body)
    return check.errors


def _meshes(body: ir.Block) -> dict[str, Mesh]:
    """The meshes that a module declares. Those too broken to be read are left out: their own check reports them."""
    found: dict[str, Mesh] = {}
    for view in body.operations:
        if view.operation.name == MeshOp.OPERATION_NAME and not _broken_rule(
            check_attributes, _signature(_key(view.operation), {})
        ):
            mesh = MeshOp(view.operation).value
            found[mesh.name] = mesh
    return found


_Key = tuple[str, tuple[tuple[str, ir.Attribute], ...], tuple[ir.Type, ...], tuple[ir.Type, ...]]


def _key(op: ir.Operation) -> _Key:
    """What makes two operations alike."""
    operands = tuple([operand.type for operand in op.operands])
    return op.name, tuple(op.attributes.items()), operands, tuple([result.type for result in op.results])


def _signature(key: _Key, meshes: dict[str, Mesh]) -> Signature:
    name, attributes, operands, results = key
    return Signature(name, dict(attributes), operands, results, meshes)


def _check(signature: Signature) -> None:
    if signature.mnemonic not in FORMATS:
        raise Broken("is not an operation of the mesh dialect.")
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


def _unlike_any(op: ir.Operation) -> str:
    """What no operation of the dialect has, which MLIR does not mind in operations that it does not know."""
    if len(op.regions):
        return "requires zero regions"
    return f"requires 0 successors but found {len(op.successors)}" if len(op.successors) else ""


def _needs_terminator(block: ir.Block) -> bool:
    """Whether MLIR knows that the block ends with a terminator. An operation that it does not know, as ours, may be one to it."""
    owner = block.owner.operation
    return owner.context.is_registered_operation(owner.name)


class _ModuleCheck:
    """One walk over one module. Messages are memoised; "" says that all is well."""

    def __init__(self, body: ir.Block) -> None:
        self._body = body
        self._meshes = _meshes(body)
        self.errors: list[VerifyError] = []
        self._plain: set[type] = set()
        """Classes of ops of other dialects that have no regions."""
        self._checked: dict[object, str] = {}
        self._values: dict[object, Sharding] = {}
        self._shardings: dict[ir.Value[Any], Sharding] = {}

    def block(self, block: ir.Block) -> None:
        """Checks the operations of a block and everything below them."""
        name = ""
        for view in block.operations:
            kind = type(view)
            if kind in self._plain:
                name = ""
                continue
            if has_no_regions(view) and not issubclass(kind, MeshOpView):
                self._plain.add(kind)
                name = ""
                continue
            op = view.operation
            name = op.name
            if name.startswith("mesh.") and (message := _unlike_any(op)):
                self.errors.append(VerifyError(op, message))
            elif name == "mesh.shard":
                self._shard(op)
            elif name == MeshOp.OPERATION_NAME and block != self._body:
                self.errors.append(VerifyError(op, "symbol's parent must have the SymbolTable trait"))
            elif name.startswith("mesh."):
                self._mesh_op(op)
            elif name == "builtin.module":
                self.errors += _check_module(op)
            else:
                for region in op.regions:
                    for inner in region.blocks:
                        self.block(inner)
        if name.startswith("mesh.") and block != self._body and _needs_terminator(block):
            self.errors.append(VerifyError(op, "ends a block with no terminator"))

    def _shard(self, op: ir.Operation) -> None:
        try:
            value, annotation = op.operands
            source, result = value.type, op.result.type
        except ValueError:
            self.errors.append(VerifyError(op, "expects a tensor, a sharding and one result"))
            return
        sharding = self._shardings.get(annotation)
        # Alike shardings are one object: its identity hashes in no time, its fields do not.
        key = (source, result, id(sharding) if sharding else annotation.type)
        message = self._checked.get(key)
        if message is None:
            message = _broken_rule(shard_constraints.check_shard, source, result, sharding or annotation.type, self._meshes)
            self._checked[key] = message
        if message:
            self.errors.append(VerifyError(op, message))

    def _mesh_op(self, op: ir.Operation) -> None:
        key = _key(op)
        message = self._checked.get(key)
        if message is None:
            message = self._checked[key] = _broken_rule(_check, _signature(key, self._meshes))
        if message:
            self.errors.append(VerifyError(op, message))
        elif op.name == ShardingOp.OPERATION_NAME:
            if key not in self._values:
                self._values[key] = ShardingOp(op).value
            self._shardings[op.results[0]] = self._values[key]
