"""sdy inside of strings: what XLA makes of a module that must pass through HLO, and what older versions of JAX exported.

    module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=2]>}"}}
      %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<…>"}}
==>
    sdy.mesh @mesh = <["x"=2]>
      %0 = sdy.sharding_constraint %x <@mesh, [{"x"}]>

The meshes may also stand there as `sdy.mesh`, and the bodies of manual computations say their shardings either at the call or at
the custom calls around it. `mhlo.sharding` beside such strings is what XLA derived from them, and goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, TypeAlias

from meshbridge.ir.mlir import (
    MANUAL,
    SHARDING_GROUP,
    SIDES,
    OpError,
    call_target,
    dictionary,
    distinct_entries,
    entries,
    ir,
    is_custom_call,
    mentions,
    sdy,
    set_entries,
    walk_all,
)
from meshbridge_converters import carriers
from meshbridge_converters.carriers import MHLO_SHARDING, SHARDING

Value: TypeAlias = "ir.Value[Any]"

FRONTEND = "mhlo.frontend_attributes"
PREFIX = "xla.sdy."
MESHES = "xla.sdy.meshes"
MANUAL_BODIES = ("xla.sdy.manual_computation_body", "xla.sdy.inlinable_manual_computation_body")
"""How the functions are called that hold the bodies of manual computations."""

_ON_OPERATIONS = {"xla.sdy.sharding": SHARDING, "xla.sdy.sharding_rule": "sdy.sharding_rule"}
"""Strings that hold an attribute of the operation that carries them."""

MAX_DEPTH = 512
"""How many brackets may be open in a string: MLIR's parser calls itself as deep."""

_DERIVED = frozenset({"xla.sdy.has_unreduced_axes"})
"""Strings that only repeat what the shardings say."""


def is_used(module: ir.Module) -> bool:
    """Whether `module` carries sdy in strings: its meshes, or what is said over them."""
    return mentions(module, PREFIX) and is_said_by(module, walk_all(module))


def is_said_by(module: ir.Module, ops: Iterable[ir.Operation]) -> bool:
    """Whether `module` declares meshes in a string, or one of its operations `ops` carries sdy in strings."""
    return MESHES in _entries(module.operation.attributes) or any(map(_has_strings, ops))


def _has_strings(op: ir.Operation) -> bool:
    attrs = op.attributes
    if op.name == "func.func":
        return any(_said(_entries(entry)) for entry in distinct_entries(op))
    return FRONTEND in attrs and bool(_said(_entries(attrs)))


def _entries(attrs: Any) -> dict[str, ir.Attribute]:
    """The frontend attributes in a dictionary of attributes."""
    if FRONTEND not in attrs:
        return {}
    found = attrs[FRONTEND]
    return dictionary(found) if isinstance(found, ir.DictAttr) else {}


def _said(entries: dict[str, ir.Attribute]) -> list[str]:
    return [name for name in entries if name.startswith(PREFIX)]


def to_operations(module: ir.Module) -> None:
    """Turns strings into attributes of sdy, and custom calls into its operations, in place.

    Raises OpError for a string that is not the attribute that it should be, one that nothing here reads, and for a manual
    computation whose custom calls do not belong together.
    """
    with module.context, ir.Location.unknown():
        _meshes(module)
        ops = walk_all(module)
        for op in ops:
            if op.name == "func.func":
                _arguments(op)
            else:
                _attributes(op)
        for op in ops:
            if op.name == "func.call" and _callee(op).startswith(MANUAL_BODIES):
                _manual_computation(op)
        for op in walk_all(module):
            if is_custom_call(op):
                target = call_target(op)
                convert = _CALLS.get(target)
                if convert is not None and (FRONTEND in op.attributes or SHARDING in op.attributes):
                    convert(op)
                elif target.startswith(PREFIX):
                    raise OpError(
                        op, f"calls @{target}, which stands alone: expected a manual computation around it, or a sharding"
                    )
        for op in walk_all(module):
            if left := _said(_entries(op.attributes)):
                raise OpError(op, f"carries {left[0]}, which is not read")


def _meshes(module: ir.Module) -> None:
    """Declares the meshes that the module carries as strings."""
    op = module.operation
    entries = _entries(op.attributes)
    text = entries.pop(MESHES, None)
    if left := _said(entries):
        raise OpError(op, f"carries {left[0]}, which is not read")
    if text is None:
        return
    found = _parsed(op, MESHES, text)
    if not isinstance(found, ir.DictAttr):
        raise OpError(op, f"carries {MESHES} = {found}, expected a dictionary of meshes")
    top = ir.InsertionPoint.at_block_begin(module.body)
    for name, entry in dictionary(found).items():
        mesh = _parsed(op, MESHES, entry) if isinstance(entry, ir.StringAttr) else entry
        if not sdy.MeshAttr.isinstance(mesh):
            raise OpError(op, f"carries {name} = {mesh} in {MESHES}, expected a mesh")
        ir.Operation.create("sdy.mesh", [], [], {"sym_name": ir.StringAttr.get(name), "mesh": mesh}, ip=top)
    _put(op.attributes, entries)


def _put(attrs: Any, entries: dict[str, ir.Attribute]) -> None:
    """Leaves `entries` of the frontend attributes."""
    if entries:
        attrs[FRONTEND] = ir.DictAttr.get(entries)
    elif FRONTEND in attrs:
        del attrs[FRONTEND]


def _parsed(op: ir.Operation, name: str, text: ir.Attribute) -> ir.Attribute:
    """The attribute that a string holds. Raises OpError where it holds none."""
    if not isinstance(text, ir.StringAttr):
        raise OpError(op, f"carries {name} = {text}, expected a string")
    if not text.value or _depth(text.value) > MAX_DEPTH:  # MLIR's parser crashes over either
        raise OpError(op, f"carries {name} of {len(text.value)} characters, which is not an attribute")
    try:
        return ir.Attribute.parse(text.value)
    except ir.MLIRError as error:
        reason = error.error_diagnostics[0].message if error.error_diagnostics else "no attribute"
        raise OpError(op, f"carries {name} = {text}, which is not an attribute: {reason}") from None


def _depth(text: str) -> int:
    """How many brackets are open where most are."""
    steps = (1 if char in "[{(<" else -1 for char in text if char in "[{(<]})>")
    return max(accumulate(steps), default=0)


def _sharding(op: ir.Operation, text: ir.Attribute) -> ir.Attribute:
    """The one sharding that a string holds, alone or in a list of one."""
    found = _parsed(op, "xla.sdy.sharding", text)
    if sdy.TensorShardingPerValueAttr.isinstance(found) and len(carriers.per_value(found)) == 1:
        (found,) = carriers.per_value(found)
    if not sdy.TensorShardingAttr.isinstance(found):
        raise OpError(op, f"carries xla.sdy.sharding = {found}, expected one sharding")
    return found


def _arguments(function: ir.Operation) -> None:
    """The shardings of arguments, and of results where older versions have them there."""
    for side in SIDES:
        changed = entries(function, side)
        for attrs in changed:
            strings = _entries(attrs)
            if "xla.sdy.sharding" in strings:
                attrs[SHARDING] = _sharding(function, strings.pop("xla.sdy.sharding"))
            if left := _said(strings):
                raise OpError(function, f"carries {left[0]} on an argument or result, which is not read")
            attrs.pop(MHLO_SHARDING, None)
            _put(attrs, strings)
        set_entries(function, side, changed)


def _attributes(op: ir.Operation) -> None:
    """What an operation says of itself."""
    if FRONTEND in op.attributes:
        entries = {name: text for name, text in _entries(op.attributes).items() if name not in _DERIVED}
        for name, listed in _ON_OPERATIONS.items():
            if name in entries:
                op.attributes[listed] = _checked(op, name, entries.pop(name))
        _put(op.attributes, entries)
    if MHLO_SHARDING in op.attributes:
        del op.attributes[MHLO_SHARDING]


def _checked(op: ir.Operation, name: str, text: ir.Attribute) -> ir.Attribute:
    found = _parsed(op, name, text)
    expected = sdy.OpShardingRuleAttr if name == "xla.sdy.sharding_rule" else sdy.TensorShardingPerValueAttr
    if not expected.isinstance(found):
        raise OpError(op, f"carries {name} = {found}, expected {'a rule' if name.endswith('rule') else 'a sharding per result'}")
    return found


def _callee(op: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _strings(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The frontend attributes of an operation that are sdy's, parsed."""
    entries = _entries(op.attributes)
    return {name: _parsed(op, name, entries[name]) for name in _said(entries)}


def _only_string(op: ir.Operation, name: str) -> ir.Attribute:
    """What the one string says that an operation carries."""
    found = _strings(op)
    if list(found) != [name]:
        raise OpError(op, f"carries {', '.join(found) or 'nothing'}, expected {name}")
    return found[name]


def _constraint(op: ir.Operation) -> None:
    if SHARDING not in op.attributes:  # GSPMD's own, which is not in strings
        return
    _replace(op, "sdy.sharding_constraint", {"sharding": _only_sharding(op)})


def _only_sharding(op: ir.Operation) -> ir.Attribute:
    found = carriers.per_value(op.attributes[SHARDING]) if SHARDING in op.attributes else []
    if len(found) != 1 or len(op.operands) != 1 or len(op.results) != 1:
        raise OpError(
            op, f"has {len(found)} shardings for {len(op.operands)} operands and {len(op.results)} results, expected one"
        )
    return found[0]


def _result(op: ir.Operation) -> None:
    """`FuncResultSharding`: its value is what the function returns."""
    sharding = _only_sharding(op)
    uses = [(use.owner.operation, use.operand_number) for use in op.results[0].uses]
    if not uses:
        raise OpError(op, "says the sharding of a function's result, but nothing returns its value")
    for terminator, index in uses:
        if terminator.name != "func.return" or terminator.parent is None:
            raise OpError(op, f"says the sharding of a function's result, but its value goes into {terminator.name}")
        carriers.give(terminator.parent.operation, "res_attrs", {index: sharding})
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def _group(op: ir.Operation) -> None:
    _replace(op, SHARDING_GROUP, {"group_id": _only_string(op, "xla.sdy.sharding_group_id")})


def _barrier(op: ir.Operation) -> None:
    _replace(op, "sdy.propagation_barrier", {"allowed_direction": _only_string(op, "xla.sdy.allowed_direction")})


def _replace(op: ir.Operation, name: str, attrs: dict[str, ir.Attribute]) -> None:
    types = [result.type for result in op.results]
    made = ir.Operation.create(name, types, list(op.operands), attrs, loc=op.location, ip=ir.InsertionPoint(op))
    for result, value in zip(op.results, made.results, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


_CALLS: dict[str, Callable[[ir.Operation], None]] = {
    "Sharding": _constraint,
    "xla.sdy.FuncResultSharding": _result,
    "xla.sdy.ShardingGroup": _group,
    "xla.sdy.PropagationBarrier": _barrier,
}


def _manual_computation(call: ir.Operation) -> None:
    """`LocalToGlobalShape(call body(GlobalToLocalShape(…)))` -> a manual computation whose body is the call."""
    opened = [_opened(call, value) for value in call.operands]
    closing = _closing(call)
    attrs = _manual_attributes(call, [entry for entry, _ in opened], closing)
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
    if FRONTEND in call.attributes:
        del call.attributes[FRONTEND]
    ir.Operation.create("sdy.return", [], list(call.results), loc=call.location, ip=ir.InsertionPoint(block))
    for entry in dict.fromkeys(entry for entry, _ in opened):
        if all(next(iter(result.uses), None) is None for result in entry.results):
            entry.erase()


def _manual_attributes(call: ir.Operation, opening: list[ir.Operation], closing: list[ir.Operation]) -> dict[str, ir.Attribute]:
    """What the call or the custom calls around it say of a manual computation."""
    said = _strings(call)
    for op in (*dict.fromkeys(opening), *closing):
        said = {**_strings(op), **said}
    nothing = sdy.TensorShardingPerValueAttr.get([])
    if not opening:
        said.setdefault("xla.sdy.in_shardings", nothing)
    if not closing:
        said.setdefault("xla.sdy.out_shardings", nothing)
    if not opening and not closing:
        said.setdefault("xla.sdy.manual_axes", sdy.ManualAxesAttr.get([]))
    names = ("in_shardings", "out_shardings", "manual_axes")
    if missing := [name for name in names if PREFIX + name not in said]:
        raise OpError(call, f"calls the body of a manual computation without {', '.join(missing)}")
    attrs = {name: said[PREFIX + name] for name in names}
    for name, attr in attrs.items():
        expected = sdy.ManualAxesAttr if name == "manual_axes" else sdy.TensorShardingPerValueAttr
        if not expected.isinstance(attr):
            raise OpError(call, f"calls the body of a manual computation with {name} = {attr}")
    return attrs


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
    return is_custom_call(op) and call_target(op) == target
