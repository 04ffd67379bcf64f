"""sdy inside of strings: modules that older versions of JAX exported, in which Shardy's dialect could not be serialized.

    module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=2]>}"}}
      %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<…>"}}
==>
    sdy.mesh @mesh = <["x"=2]>
      %0 = sdy.sharding_constraint %x <@mesh, [{"x"}]>

jaxlib's own pass reads meshes and shardings; here the custom calls become the operations that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from meshbridge.mlir import OpError, ir, run_stock_passes, walk_all
from meshbridge_converters import carriers
from meshbridge_converters.carriers import MANUAL, SHARDING
from meshbridge_converters.invariants import GROUP

Value: TypeAlias = "ir.Value[Any]"

FRONTEND = "mhlo.frontend_attributes"
MESHES = "xla.sdy.meshes"
MANUAL_BODIES = ("xla.sdy.manual_computation_body", "xla.sdy.inlinable_manual_computation_body")
"""How the functions are called that hold the bodies of manual computations."""


def is_used(module: ir.Module) -> bool:
    """Whether `module` carries its meshes as strings."""
    attrs = module.operation.attributes
    return FRONTEND in attrs and MESHES in ir.DictAttr(attrs[FRONTEND])


def to_operations(module: ir.Module) -> None:
    """Turns strings into attributes of sdy, and custom calls into its operations, in place.

    Raises OpError for a manual computation whose custom calls do not belong together.
    """
    if not is_used(module):
        return
    run_stock_passes(module, "builtin.module(xla-sdy-round-trip-import-shardy-attrs)")
    with module.context:
        for op in walk_all(module):
            if op.name == "func.call" and _callee(op).startswith(MANUAL_BODIES):
                _manual_computation(op)
        for op in walk_all(module):
            if op.name == "stablehlo.custom_call":
                convert = _CALLS.get(ir.StringAttr(op.attributes["call_target_name"]).value)
                if convert is not None and (FRONTEND in op.attributes or SHARDING in op.attributes):
                    convert(op)


def _callee(op: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _strings(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The frontend attributes of an operation, parsed."""
    entries = carriers.named(op.attributes[FRONTEND]) if FRONTEND in op.attributes else {}
    return {name: ir.Attribute.parse(ir.StringAttr(text).value) for name, text in entries.items() if name.startswith("xla.sdy.")}


def _constraint(op: ir.Operation) -> None:
    (sharding,) = carriers.per_value(op.attributes[SHARDING])
    _replace(op, "sdy.sharding_constraint", {"sharding": sharding})


def _group(op: ir.Operation) -> None:
    _replace(op, GROUP, {"group_id": _strings(op)["xla.sdy.sharding_group_id"]})


def _barrier(op: ir.Operation) -> None:
    _replace(op, "sdy.propagation_barrier", {"allowed_direction": _strings(op)["xla.sdy.allowed_direction"]})


def _replace(op: ir.Operation, name: str, attrs: dict[str, ir.Attribute]) -> None:
    types = [result.type for result in op.results]
    made = ir.Operation.create(name, types, list(op.operands), attrs, loc=op.location, ip=ir.InsertionPoint(op))
    for result, value in zip(op.results, made.results, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


_CALLS: dict[str, Callable[[ir.Operation], None]] = {
    "Sharding": _constraint,
    "xla.sdy.ShardingGroup": _group,
    "xla.sdy.PropagationBarrier": _barrier,
}


def _manual_computation(call: ir.Operation) -> None:
    """`LocalToGlobalShape(call body(GlobalToLocalShape(…)))` -> a manual computation whose body is the call."""
    strings = _strings(call)
    names = {"in_shardings", "out_shardings", "manual_axes"}
    attrs = {name: strings[f"xla.sdy.{name}"] for name in names if f"xla.sdy.{name}" in strings}
    if len(attrs) != len(names):
        raise OpError(call, f"calls the body of a manual computation without {', '.join(sorted(names - set(attrs)))}")
    opened = [_opened(call, value) for value in call.operands]
    closing = _closing(call)
    types = [result.type for op in closing for result in op.results]
    operands = [entry.operands[index] for entry, index in opened]
    ip = ir.InsertionPoint(closing[0] if closing else call)
    manual = ir.Operation.create(MANUAL, types, operands, attrs, regions=1, loc=call.location, ip=ip)
    inside = [value.type for value in call.operands]
    block = manual.regions[0].blocks.append(*inside, arg_locs=[call.location] * len(inside))
    results = iter(manual.results)
    for op in closing:
        for result in op.results:
            result.replace_all_uses_with(next(results))
        op.erase()
    for index, argument in enumerate(block.arguments):
        call.operands[index] = argument
    block.append(call)
    del call.attributes[FRONTEND]
    ir.Operation.create("sdy.return", [], list(call.results), loc=call.location, ip=ir.InsertionPoint(block))
    for entry, _ in opened:
        if all(next(iter(result.uses), None) is None for result in entry.results):
            entry.erase()


def _opened(call: ir.Operation, value: Value) -> tuple[ir.Operation, int]:
    """The `GlobalToLocalShape` that makes `value` local, and for which of its operands."""
    owner = value.owner
    if isinstance(owner, ir.Block) or not _is_call_to(owner.operation, "xla.sdy.GlobalToLocalShape"):
        raise OpError(call, "calls the body of a manual computation with a value that no GlobalToLocalShape makes local")
    return owner.operation, ir.OpResult(value).result_number


def _closing(call: ir.Operation) -> list[ir.Operation]:
    """The `LocalToGlobalShape` calls that take the results, all of them, in order."""
    closing: list[ir.Operation] = []
    for result in call.results:
        users = [use.owner.operation for use in result.uses]
        if len(users) != 1 or not _is_call_to(users[0], "xla.sdy.LocalToGlobalShape"):
            raise OpError(call, "calls the body of a manual computation, but LocalToGlobalShape does not take every result once")
        if users[0] not in closing:
            closing.append(users[0])
    if [value for op in closing for value in op.operands] != list(call.results):
        raise OpError(call, "calls the body of a manual computation, but LocalToGlobalShape takes its results in another order")
    return closing


def _is_call_to(op: ir.Operation, target: str) -> bool:
    return op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == target
