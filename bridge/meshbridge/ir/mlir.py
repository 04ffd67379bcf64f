"""Access to `jaxlib.mlir`: context, parsing, printing, walking, and errors with a source location.

All other modules import the bindings from here, so that one file changes when they move.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cmp_to_key
from hashlib import sha256
from io import BytesIO
from threading import Lock
from typing import Any

try:
    from jaxlib import _hlo as hlo  # type: ignore[attr-defined]  # XLA's own text; without stubs
except ImportError:  # where jaxlib 0.9 has it
    from jaxlib import _jax as hlo
from jaxlib import utils  # type: ignore[attr-defined]  # XLA's own; without stubs
from jaxlib._jax import CompileOnlyPyClient as CompileOnlyClient
from jaxlib._jax import mlir as artifacts
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir._mlir_libs._mlir import rewrite
from jaxlib.mlir.dialects import chlo, func, mhlo, mpmd, sdy, stablehlo
from jaxlib.mlir.dialects._ods_common import _cext  # type: ignore[attr-defined]  # private: re-exported here alone

from meshbridge.ir.errors import MeshError, ParseError, ShardingWarning
from meshbridge.text import public, visible

__all__ = [
    "BARRIER",
    "COMPARISONS",
    "COMPOSITE",
    "CUSTOM_CALL",
    "MANUAL",
    "REGION_OPS",
    "SIDES",
    "CompileOnlyClient",
    "MeshError",
    "OpError",
    "ParseError",
    "ShardingWarning",
    "VerifyError",
    "_cext",
    "all_entries",
    "ancestor_in",
    "ancestors",
    "artifacts",
    "attribute",
    "call_target",
    "context",
    "copy_named_functions",
    "dictionary",
    "digest",
    "display_name",
    "distinct_entries",
    "entries",
    "find",
    "func",
    "function_type",
    "functions_to_partition",
    "hlo",
    "in_program_order",
    "inline_region",
    "inside",
    "ir",
    "is_custom_call",
    "main_function",
    "mentions",
    "mpmd",
    "named_functions",
    "op_key",
    "op_names",
    "parse",
    "passmanager",
    "run_stock_passes",
    "sdy",
    "set_entries",
    "source_location",
    "stablehlo",
    "tensor_type",
    "terminator",
    "terminator_operands",
    "to_bytecode",
    "verify",
    "walk",
    "walk_all",
]

if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:  # JAX sets it, too late for a jaxlib that is already loaded
    utils.absl_set_min_log_level(1)  # without messages of level INFO, which are for XLA's developers


@public
@dataclass(eq=False)  # an exception must stay hashable
class OpError(MeshError):
    """A diagnostic about one operation: its location, its name, the violated rule, and possibly a hint."""

    op: ir.Operation
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        # The text is computed now: the operation may be erased before the error is printed.
        called = f"@{call_target(self.op)} " if is_custom_call(self.op) else ""
        self.text = visible(f"{source_location(self.op)}: error: '{self.op.name}' op {called}{self.message}")
        if self.hint:
            self.text += visible(f"\n  hint: {self.hint}")

    def __str__(self) -> str:
        return self.text


@public
class VerifyError(OpError):
    """An operation breaks a constraint of the dialect."""


def context() -> ir.Context:
    """A new context with StableHLO, CHLO, MHLO, sdy and the upstream dialects; it accepts mesh ops as unregistered.

    The parsers load an upstream dialect at its first use."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    ctx = ir.Context()
    ctx.enable_multithreading(False)  # one function, one thread: there is nothing to parallelize
    ctx.append_dialect_registry(registry)
    for dialect in (stablehlo, sdy, mpmd, chlo):
        dialect.register_dialect(ctx)
    mhlo.register_mhlo_dialect(ctx)
    for name in _WRITTEN:
        ctx.get_dialect_descriptor(name)
    ctx.allow_unregistered_dialects = True
    _register_stock_passes()
    return ctx


_WRITTEN = ("arith", "cf", "func", "tensor")
"""Upstream dialects whose operations passes create. They would be unregistered in a program without any."""


_registering = Lock()


def _register_stock_passes() -> None:
    """Registers StableHLO's and MHLO's passes once per process, from any thread; the bindings abort on a second registration."""
    with _registering:
        _register_once()


@cache
def _register_once() -> None:
    stablehlo.register_stablehlo_passes()
    mhlo.register_mhlo_passes()


def parse(source: str | bytes, filename: str, ctx: ir.Context) -> ir.Module:
    """Parses MLIR text or bytecode in generic or registered syntax (`dialect.assembly` reads the mesh dialect's own).

    Raises ParseError with `filename` in place of the parser's `-`.
    """
    try:
        with ctx:
            return ir.Module.parse(source)
    except ir.MLIRError as error:
        raise ParseError(diagnostics_text(error, filename)) from None
    except MemoryError:
        raise ParseError(f"{filename}: error: a number in it asks for more memory than there is") from None


def diagnostics_text(error: ir.MLIRError, filename: str, placed: Callable[[str], str] | None = None) -> str:
    """The first diagnostic of an MLIRError with its notes, as `file:line:col: error: message`.

    `placed` maps a printed location to `file:line:col`, if the location itself does not have them.
    """
    where = placed or (lambda location: _location_text(location, filename))
    lines: list[str] = []
    for diagnostic in error.error_diagnostics[:1]:
        lines.append(f"{where(str(diagnostic.location))}: error: {diagnostic.message}")
        for note in diagnostic.notes:
            if not note.message.startswith("see current operation"):  # a page of IR; the location says where
                lines.append(f"{where(str(note.location))}: note: {note.message}")
    return "\n".join(lines) or f"{filename}: error: {error.message}"


FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def _location_text(location: str, filename: str = "-") -> str:
    """`file:line:col` of a printed location, of the innermost file of a call stack; `filename` if it has none."""
    match = FILE_LOCATION.search(location)
    if match is None:
        return filename if "unknown" in location else location
    name, line, column = match.groups()
    return f"{filename if name == '-' else name}:{line}:{column}"


def source_location(op: ir.Operation) -> str:
    """The location of `op` in the user's source, as `file:line:col`, or the printed location if it has no file."""
    return location_text(op.location)


def location_text(location: ir.Location) -> str:
    """`source_location` of an op with that location."""
    return _location_text(str(location), "<unknown>")


def has_no_regions(view: ir.OpView) -> bool:
    """Whether ops of this class never have a region. False means nothing: all unregistered ops share one class."""
    kind = type(view)
    return kind is not ir.OpView and kind._ODS_REGIONS == (0, True)


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields `op`, then all ops below it, in order. Collect them into a list before erasing any."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                child = view.operation
                if has_no_regions(view) or not len(child.regions):  # most ops: no generator of their own
                    yield child
                else:
                    yield from walk(child)


def ancestors(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields `op` and its ancestors, from the inside out, up to its function."""
    yield op
    while op.name != "func.func" and op.parent is not None:
        op = op.parent.operation
        yield op


def inline_region(op: ir.Operation) -> list[ir.Value]:
    """Moves the ops of the only region of `op` before it and connects them to its operands; returns the region's results."""
    block = op.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, op.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = [view.operation for view in block.operations]
    for inner in body:
        inner.move_before(op)
    return list(terminator.operands)


def terminator(block: ir.Block) -> ir.Operation | None:
    """The terminator of a block; None if MLIR does not know it. Indexing the block's operations would count all of them."""
    try:
        return ir.InsertionPoint.at_block_terminator(block).ref_operation
    except ValueError:
        return None


def terminator_operands(block: ir.Block) -> list[ir.Value]:
    """What a block of a verified program returns or yields: the operands of its terminator."""
    end = terminator(block)
    assert end is not None, "a verified program"
    return list(end.operands)


def walk_all(module: ir.Module) -> list[ir.Operation]:
    """All operations of `module` below the module itself, in order."""
    return inside(module.operation)


def inside(op: ir.Operation) -> list[ir.Operation]:
    """All operations below `op`, in order."""
    ops: list[ir.Operation] = []
    plain: set[type[ir.OpView]] = set()
    for region in op.regions:
        for block in region.blocks:
            _collect(block, ops, plain)
    return ops


def _collect(block: ir.Block, ops: list[ir.Operation], plain: set[type[ir.OpView]]) -> None:
    """`plain` are classes of operations without regions: looking up the class is faster than asking the operation."""
    for view in block.operations:
        ops.append(view.operation)
        kind = type(view)
        if kind in plain:
            continue
        if has_no_regions(view):
            plain.add(kind)
            continue
        for region in view.operation.regions:
            for inner in region.blocks:
                _collect(inner, ops, plain)


def find(op: ir.Operation, names: Iterable[str]) -> list[ir.Operation]:
    """The operations below `op` that have one of `names`, in the order of `walk`, without those in unreachable blocks.

    MLIR walks: operations of other names cost next to nothing, whereas a walk in Python costs the same for each.
    """
    met: list[ir.OpView] = []

    def meet(view: ir.OpView, _: object) -> bool:
        met.append(view)
        return True  # nothing was rewritten

    with op.context:
        patterns = rewrite.RewritePatternSet()
        for name in names:
            patterns.add(name, meet)
        frozen = patterns.freeze()
        rewrite.walk_and_apply_patterns(op, frozen)
        views, ops = met, list[ir.Operation]()
        plain: set[type[ir.OpView]] = set()
        for index, view in enumerate(views):  # MLIR visits the inside of an operation first
            child, met = view.operation, []
            if type(view) in plain:
                ops.append(child)
                continue
            if has_no_regions(view):
                plain.add(type(view))
            elif index and _is_inside(views[index - 1].operation, child):
                rewrite.walk_and_apply_patterns(child, frozen)
            ops.insert(len(ops) - len(met), child)
    return ops


def _is_inside(op: ir.Operation, outer: ir.Operation) -> bool:
    while (parent := op.parent) is not None:
        op = parent.operation
        if op == outer:
            return True
    return False


OpKey = tuple[str, tuple[tuple[str, ir.Attribute], ...], tuple[ir.Type, ...], tuple[ir.Type, ...]]


def op_key(op: ir.Operation) -> OpKey:
    """A key that is equal for operations that differ only in their operands: name, attributes, types of operands and results."""
    return op.name, tuple(op.attributes.items()), types_of(op.operands), types_of(op.results)


def types_of(values: ir.OpOperandList | ir.OpResultList) -> tuple[ir.Type, ...]:
    """The types of the operands or results of an operation. Most have one; iterating takes the bindings twice as long."""
    return (values[0].type,) if len(values) == 1 else tuple([value.type for value in values])


def to_bytecode(module: ir.Module) -> bytes:
    """MLIR bytecode of `module`."""
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


_DIGITS = 16
"""Of a digest."""


def digest(module: ir.Module) -> str:
    """A hash of `module` without its locations, in hexadecimal: equal modules have equal hashes."""
    return sha256(str(module.operation.get_asm(enable_debug_info=False)).encode()).hexdigest()[:_DIGITS]


def mentions(module: ir.Module, *texts: str) -> bool:
    """Whether `module` contains one of `texts` in an attribute name or a string. No walk in Python is as fast."""
    data = to_bytecode(module)
    return any(text.encode() in data for text in texts)


def op_names(module: ir.Module) -> set[str]:
    """The names of the operations below `module`; the walk asks each class of operations once."""
    kinds: set[type[ir.OpView]] = set()
    names: set[str] = set()
    waiting = [module.body]
    while waiting:
        for view in waiting.pop().operations:
            kind = type(view)
            if kind in kinds:
                continue
            if has_no_regions(view):
                kinds.add(kind)
            names.add(view.operation.name)
            waiting += [block for region in view.operation.regions for block in region.blocks]
    return names


def ancestor_in(block: ir.Block, op: ir.Operation) -> ir.Operation | None:
    """`op`, or its ancestor in `block`, a block inside a function; None if `op` is outside of it."""
    return next((ancestor for ancestor in ancestors(op) if ancestor.block == block), None)


def in_program_order(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Operations of one block, sorted by their position; mostly they already are."""

    def order(first: ir.Operation, second: ir.Operation) -> int:
        return -1 if first.is_before_in_block(second) else 1

    return sorted(ops, key=cmp_to_key(order))


def verify(module: ir.Module) -> None:
    """Runs the verifiers of MLIR and of the registered dialects. Raises MeshError with their first diagnostic."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise MeshError(diagnostics_text(error, "<module>")) from None


def main_function(module: ir.Module) -> ir.Operation:
    """The entry point: the function `main`, or the only public one.

    Raises MeshError if there is none, or several.
    """
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    for function in functions:
        if _symbol(function) == "main":
            return function
    public = [f for f in functions if "sym_visibility" not in f.attributes or '"public"' in str(f.attributes["sym_visibility"])]
    if len(public) != 1:
        raise MeshError(f"<module>: error: expected a function 'main' or exactly one public function, found {len(public)}")
    return public[0]


CUSTOM_CALL = "stablehlo.custom_call"
COMPOSITE = "stablehlo.composite"

MANUAL = "sdy.manual_computation"
"""A region that the user has partitioned along the mesh axes in `meshbridge.manual_axes`."""

REGION_OPS = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if", MANUAL))
"""Ops whose regions contain tensors to shard (the bodies of reducers and comparators contain scalars)."""

BARRIER = "stablehlo.optimization_barrier"
"""Returns each operand unchanged; the shardings of operands are independent."""

SHARDING_GROUP = "sdy.sharding_group"
"""Makes its operand a member of a sharding group, given by number; it computes nothing and has no results."""


def call_target(op: ir.Operation) -> str:
    """The target of a custom call."""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def is_custom_call(op: ir.Operation) -> bool:
    """Whether an op is a custom call with a target, like every one that the verifier has accepted."""
    return op.name == CUSTOM_CALL and "call_target_name" in op.attributes


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
"""By direction, the comparison of `stablehlo.compare`, for numbers or elementwise for numpy arrays."""


def comparison_direction(op: ir.Operation) -> str:
    """The direction of a `stablehlo.compare`: `LT`, `EQ`, …"""
    return str(stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value)


def display_name(op: ir.Operation) -> str:
    """The name of an op in reports: with the target of a custom call, `stablehlo.custom_call @Qr`."""
    return f"{op.name} @{call_target(op)}" if is_custom_call(op) else op.name


def functions_to_partition(module: ir.Module) -> list[ir.Operation]:
    """The functions of a module with a body, without those that custom calls and composites name: a comparator is the same on
    every device, and a composite is sharded as one op.

    Raises OpError for a function of several blocks: control flow between blocks has no shardings.
    """
    functions = []
    for view in module.body.operations:
        function = view.operation
        if function.name == "func.func" and len(function.regions[0].blocks):
            if len(function.regions[0].blocks) > 1:
                raise OpError(function, "only one block is supported!")
            functions.append(function)
    if len(functions) == 1:
        return functions
    named = {name for function in functions for op in walk(function) for name in named_functions(op)}
    return [function for function in functions if _symbol(function) not in named]


def named_functions(op: ir.Operation) -> list[str]:
    """The functions that an op names without calling them directly."""
    if op.name == CUSTOM_CALL and "called_computations" in op.attributes:
        return [ir.FlatSymbolRefAttr(symbol).value for symbol in ir.ArrayAttr(op.attributes["called_computations"])]
    return [ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value] if op.name == COMPOSITE else []


def copy_named_functions(source: ir.Module, module: ir.Module) -> None:
    """Copies to the end of `module` the functions of `source` that its ops name, and those that these functions name."""
    sources = {_symbol(op): op for view in source.body.operations if (op := view.operation).name == "func.func"}
    copied = {_symbol(view.operation) for view in module.body.operations}
    unread_ops = walk_all(module)
    while unread_ops:
        for name in named_functions(unread_ops.pop()):
            if name not in copied and name in sources:
                copied.add(name)
                unread_ops += walk(sources[name].clone(ip=ir.InsertionPoint(module.body)))


def _symbol(op: ir.Operation) -> str:
    name: str = ir.StringAttr(op.attributes["sym_name"]).value
    return name


def function_type(function: ir.Operation) -> ir.FunctionType:
    """The type of a `func.func`."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


SIDES = ("arg_attrs", "res_attrs")
"""The attributes of a `func.func` with the attributes of its arguments and results."""


def dictionary(attr: ir.Attribute) -> dict[str, ir.Attribute]:
    """The entries of a dictionary attribute."""
    entries_of = ir.DictAttr(attr)
    named = [entries_of[index] for index in range(len(entries_of))]
    return {entry.name: entry.attr for entry in named}


def entries(function: ir.Operation, side: str) -> list[dict[str, ir.Attribute]]:
    """A copy of the attributes of each argument or result, according to `side`, of a `func.func`."""
    if side in function.attributes:
        listed = list(ir.ArrayAttr(function.attributes[side]))
        distinct = {entry: dictionary(entry) for entry in set(listed)}  # a model has thousands of arguments, most of them equal
        return [dict(distinct[entry]) for entry in listed]
    kind = function_type(function)
    return [{} for _ in (kind.inputs if side == "arg_attrs" else kind.results)]


def all_entries(op: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of the arguments and results of a function; none for any other operation."""
    return [entry for side in SIDES if side in op.attributes for entry in entries(op, side)]


def distinct_entries(op: ir.Operation) -> set[ir.DictAttr]:
    """The distinct attributes of the arguments and results of a function; faster than `all_entries`."""
    return {ir.DictAttr(entry) for side in SIDES if side in op.attributes for entry in ir.ArrayAttr(op.attributes[side])}


def set_entries(function: ir.Operation, side: str, changed: Iterable[Mapping[str, ir.Attribute]]) -> None:
    """Replaces the attributes of the arguments or results of a `func.func`."""
    dictionaries = [ir.DictAttr.get(dict(entry)) for entry in changed]
    if any(map(len, dictionaries)):
        function.attributes[side] = ir.ArrayAttr.get(dictionaries)
    elif side in function.attributes:
        del function.attributes[side]


def tensor_type(value: ir.Value) -> ir.RankedTensorType | None:
    """The ranked tensor type of `value`, or None for tokens, tuples and scalars."""
    return ir.RankedTensorType(value.type) if isinstance(value.type, ir.RankedTensorType) else None


def attribute(text: str) -> ir.Attribute:
    """Parses an attribute in the current context."""
    return ir.Attribute.parse(text)


def run_stock_passes(module: ir.Module, pipeline: str) -> None:
    """Runs MLIR's or StableHLO's own passes, e.g. `builtin.module(canonicalize,cse)`, without verifying their output.

    Raises MeshError with the pass's diagnostics.
    """
    try:
        with module.context:
            passes = passmanager.PassManager.parse(pipeline)
            passes.enable_verifier(False)
            passes.run(module.operation)
    except ir.MLIRError as error:
        raise MeshError(diagnostics_text(error, "<module>")) from None
