"""`inline-calls`: inlines `func.call` and `stablehlo.composite`; the stock `inline` pass inlines nothing in these bindings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.ops import UNSAID
from meshbridge.ir.mlir import (
    COMPOSITE,
    CUSTOM_CALL,
    OpError,
    dictionary,
    find,
    inline_region,
    inside,
    ir,
    main_function,
    named_functions,
    tensor_type,
)
from meshbridge.ir.passes import Pass, register
from meshbridge.ops.composites import composite_rule
from meshbridge.ops.ragged_dot import DIMENSION_NUMBERS, RAGGED_DOT, ragged_dot_attributes


@register
@dataclass(frozen=True)
class InlineCalls(Pass):
    """Replaces every call and composite below the entry point by its body, and removes called and private functions.

    Input:   %0 = call @silu(%x) : (tensor<8xf32>) -> tensor<8xf32>
    Output:  %1 = stablehlo.logistic %x : tensor<8xf32>
             %0 = stablehlo.multiply %x, %1 : tensor<8xf32>

    A composite that is named after an op (`chlo.top_k`, `chlo.scan`, `chlo.ragged_dot`) becomes that op. One with a sharding rule
    stays, and `mesh-spmdization` inlines its body. Named computations of sdy are inlined, too. Ops that only mark the edges of
    computations and loops are removed.
    """

    name: ClassVar[str] = "inline-calls"
    aliases: ClassVar[tuple[str, ...]] = ("inline",)

    def run(self, module: ir.Module) -> None:
        functions = dict(_named(view.operation) for view in module.body.operations if view.operation.name == "func.func")
        name, entry = next(iter(functions.items())) if len(functions) == 1 else _named(main_function(module))
        with module.context:
            inliner = Inliner(functions, {name: _unfold(function) for name, function in functions.items()})
            inliner.refuse_many(name)
            inliner.flatten(entry, (name,))
            for name, function in functions.items():
                is_called = name in inliner.flat or "sym_visibility" in function.attributes
                if function != entry and name not in inliner.kept and is_called:
                    function.erase()


def _named(function: ir.Operation) -> tuple[str, ir.Operation]:
    return ir.StringAttr(function.attributes["sym_name"]).value, function


NAMED_COMPUTATION = "sdy.named_computation"

_DEBUG_ATTRIBUTES = ("sdy.sharding_origins", "meshbridge.propagation_edges")
"""Attributes by which Shardy traces, for debugging, the origin of its shardings."""


def _unfold(function: ir.Operation) -> list[ir.Operation]:
    """Inlines named computations, removes ops that only mark edges and Shardy's debugging attributes, and returns the ops that
    call or name functions."""
    calls = []
    for op in find(function, _FOLDED):
        name = op.name
        if name == "mesh.shard":
            _strip_origins(op.operands[0])
        if name == NAMED_COMPUTATION:
            _replace(op, inline_region(op))
        elif name not in _NO_OPS:
            calls.append(op)
        elif _NO_OPS[name](op):
            _replace(op, [op.operands[0]])
    return calls


def _strip_origins(annotated: ir.Value) -> None:
    definition = annotated.owner
    if isinstance(definition, ir.Block):
        return
    for note in _DEBUG_ATTRIBUTES:
        if note in definition.attributes:
            del definition.attributes[note]


_NO_OPS: dict[str, Callable[[ir.Operation], bool]] = {
    "mesh.shard": lambda op: UNSAID in op.attributes,
    "sdy.data_flow_edge": lambda op: True,
    "sdy.func_data_flow_edge": lambda op: True,
    "sdy.sharding_constraint": lambda op: tensor_type(op.operands[0]) is None,
}
"""Ops that return their operand, and a test for those without meaning: marks for Shardy's propagation, and tokens."""


def _replace(op: ir.Operation, values: list[ir.Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


CALLEE = {"func.call": "callee", COMPOSITE: "decomposition"}
"""Ops that call a function, and the attribute that names it."""


def callee(op: ir.Operation) -> str:
    """The name of the function that a call or composite calls."""
    return ir.FlatSymbolRefAttr(op.attributes[CALLEE[op.name]]).value


_FOLDED = frozenset((NAMED_COMPUTATION, CUSTOM_CALL, *_NO_OPS, *CALLEE))

_SCAN = "dimension scan_dim_size is_reverse is_associative operandSegmentSizes resultSegmentSizes"
_COMPOSED_OPS = {
    "chlo.top_k": frozenset(("k",)),
    "chlo.scan": frozenset(_SCAN.split()),
    RAGGED_DOT: frozenset(("precision_config", DIMENSION_NUMBERS)),
}
"""Composites that stand for an op, and the op's attributes. The op is partitioned better than its decomposition: that of a ragged
product has a product for each group, and XLA cannot even compile that of a scan."""

_ATTRIBUTES: dict[str, Callable[[dict[str, ir.Attribute]], dict[str, ir.Attribute]]] = {RAGGED_DOT: ragged_dot_attributes}
"""The attributes of an op, from those of a composite that stands for it, if they differ."""


def _is_op(call: ir.Operation) -> bool:
    if call.name != COMPOSITE:
        return False
    name, attributes = ir.StringAttr(call.attributes["name"]).value, set(_settings(call))
    allowed = _COMPOSED_OPS.get(name)
    return allowed is not None and bool(attributes) and attributes <= allowed and call.context.is_registered_operation(name)


def _settings(call: ir.Operation) -> dict[str, ir.Attribute]:
    """The composite attributes of a call."""
    return dictionary(call.attributes["composite_attributes"]) if "composite_attributes" in call.attributes else {}


def _as_op(call: ir.Operation) -> None:
    """Replaces a composite by the op that it is named after."""
    with ir.InsertionPoint(call), call.location:
        name = ir.StringAttr(call.attributes["name"]).value
        kinds, regions = [result.type for result in call.results], list(call.regions)
        attributes = _ATTRIBUTES.get(name, dict)(_settings(call))
        op = ir.Operation.create(name, kinds, list(call.operands), attributes, regions=len(regions))
        for region, new_region in zip(regions, op.regions, strict=True):
            region.blocks[0].append_to(new_region)
    for composite_result, op_result in zip(call.results, op.results, strict=True):
        composite_result.replace_all_uses_with(op_result)
    call.erase()


MOST_OPS = 1_000_000
"""The most ops of a program after inlining: ten times those of the largest measured one (docs/performance.md)."""


class Inliner:
    """Inlines callees before callers, so that each body is copied once per call and not walked again."""

    def __init__(self, functions: dict[str, ir.Operation], calls: dict[str, list[ir.Operation]]) -> None:
        self.functions = functions
        self.calls = calls
        "By function: its ops that call or name functions."
        self.kept: set[str] = set()
        "Functions that custom calls, or composites with a rule, refer to."
        self.flat: set[str] = set()
        "Called functions that have no calls any more."

    def refuse_many(self, entry: str) -> None:
        """Raises OpError, before anything is inlined, if the entry point would have more than MOST_OPS ops: functions that call
        each other several times grow exponentially."""
        counts: dict[str, int] = {}
        for name in self._callees_first(entry):
            body = self.functions[name]
            called = [(call, counts.get(callee(call), 0)) for call in self.calls[name] if call.name in CALLEE]
            counts[name] = len(inside(body)) + sum(count for _, count in called)
            if counts[name] > MOST_OPS:
                call, _ = max(called, key=lambda pair: pair[1], default=(body, 0))
                raise OpError(
                    call,
                    f"is in @{name}, which has {counts[name]:,} ops with all calls inlined, expected at most {MOST_OPS:,}",
                    "call the function in a loop, as jax.lax.scan and jax.lax.fori_loop do",
                )

    def _callees_first(self, entry: str) -> list[str]:
        """The functions that `entry` reaches, callees before callers. `flatten` refuses recursion."""
        order: list[str] = []
        met = {entry}
        waiting = [(entry, iter(self._called(entry)))]
        while waiting:
            name, called = waiting[-1]
            inner = next((called_name for called_name in called if called_name not in met), None)
            if inner is None:
                order.append(name)
                waiting.pop()
                continue
            met.add(inner)
            waiting.append((inner, iter(self._called(inner))))
        return order

    def _called(self, name: str) -> list[str]:
        named = [callee(call) for call in self.calls[name] if call.name in CALLEE]
        return [symbol for symbol in dict.fromkeys(named) if symbol in self.functions]

    def flatten(self, function: ir.Operation, stack: tuple[str, ...]) -> None:
        """Inlines all calls in `function`. `stack` names its callers and the function. Raises OpError for recursion."""
        for call in self.calls[stack[-1]]:
            if call.name == CUSTOM_CALL:
                self.kept.update(named_functions(call))
                continue
            is_ruled = call.name == COMPOSITE and composite_rule(call) is not None
            if not is_ruled and _is_op(call):
                _as_op(call)
                continue
            name = callee(call)
            if name in stack:
                raise OpError(call, f"calls @{name} recursively, which a partitioned program cannot")
            body = self.functions.get(name)
            if body is None or not len(body.regions[0].blocks):
                raise OpError(call, f"calls @{name}, which has no body")
            if name not in self.flat:
                self.flatten(body, (*stack, name))
                self.flat.add(name)
            if is_ruled:
                self.kept.add(name)
            else:
                self.inline(call, body)

    def inline(self, call: ir.Operation, function: ir.Operation) -> None:
        """Copies the function's ops before `call`, and replaces the call's results by the returned values."""
        *_, returned = self.copy(call, function)
        for result, value in zip(list(call.results), returned.operands, strict=True):
            result.replace_all_uses_with(value)
        returned.erase()
        call.erase()

    def copy(self, call: ir.Operation, function: ir.Operation) -> list[ir.Operation]:
        """Copies the function's ops before `call`, with its operands for the arguments; returns the copies, the last of which is
        the return op.

        Their locations become call sites of the call's location: functions that JAX compiles separately, such as the body of a
        scan, have their own name stacks, and a library function names no file.
        """
        whole, caller = function.clone().operation, call.location
        within: dict[ir.Attribute, ir.Location] = {}
        for op in inside(whole):
            if (location := within.get(key := op.location.attr)) is None:
                location = within[key] = ir.Location.callsite(op.location, [caller])
            op.location = location
        block = whole.regions[0].blocks[0]
        for argument, operand in zip(block.arguments, call.operands, strict=True):
            argument.replace_all_uses_with(operand)
        copies = [view.operation for view in block.operations]
        for op in copies:
            op.move_before(call)
        whole.erase()
        return copies
