"""Prints a module with its mesh operations in the dialect's custom form.

MLIR prints the module with mesh operations in generic form, which are then rewritten in the text; all but the first of a kind
cost one look-up. Result names follow upstream's hints: mesh operations of the printed copy have the hint as a named location, so
that MLIR itself makes the names unique.

In:   %1 = "mesh.all_reduce"(%0) {mesh = @m, mesh_axes = array<i16: 1>, reduction = #mesh.partial<max>} : (tensor<4xf32>) -> …
Out:  %all_reduce = mesh.all_reduce %0 on @m mesh_axes = [1] reduction = <max> : tensor<4xf32> -> tensor<4xf32>
"""

from __future__ import annotations

import re

from meshbridge.dialect.assembly.print_op import Part, custom_form
from meshbridge.dialect.assembly.spelling import CANONICAL, Spelling
from meshbridge.dialect.assembly.values import Mismatch
from meshbridge.ir.mlir import inside, ir, passmanager


def write(
    module: ir.Module | ir.Operation,
    *,
    generic: bool = False,
    debuginfo: bool = False,
    elide_larger_than: int | None = None,
    local_scope: bool = False,
    spelling: Spelling = CANONICAL,
) -> str:
    """The text of `module`, ending in a newline.

    Args:
      generic: print every operation in generic form.
      debuginfo: print locations.
      elide_larger_than: elements attributes with more elements than this are elided.
      local_scope: write maps and locations in place, without aliases at the top.
      spelling: the spelling of the mesh dialect to print.
    """
    operation = module.operation
    limit, scope = elide_larger_than, local_scope
    if generic:
        return _asm(operation, print_generic_op_form=True, debuginfo=debuginfo, limit=limit, use_local_scope=scope)
    text = _asm(_with_name_hints(operation, spelling), use_name_loc_as_prefix=True, limit=limit, use_local_scope=scope)
    if debuginfo:
        text = _with_names_of(text, _asm(operation, debuginfo=True, limit=limit, use_local_scope=scope))
    return spelling.finish(_Customizer(spelling).run(_separate_neighbours(text)))


def _asm(operation: ir.Operation, *, debuginfo: bool = False, limit: int | None = None, **flags: bool) -> str:
    text = str(operation.get_asm(enable_debug_info=debuginfo, large_elements_limit=limit, **flags))
    return text if text.endswith("\n") else text + "\n"


def _with_name_hints(operation: ir.Operation, spelling: Spelling) -> ir.Operation:
    """A copy without locations, except that the location of each mesh operation names its results."""
    with operation.context as ctx:
        copy = operation.clone().operation
        manager = passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
        manager.enable_verifier(False)
        manager.run(copy)
        hints = {name: ir.Location.name(hint, ir.Location.unknown(ctx)) for name, hint in spelling.hints.items()}
        for op in (copy, *inside(copy)):
            if (hint := hints.get(op.name)) is not None:
                op.location = hint
    return copy


_NAMES = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|(%[\w$.-]+)')


def _with_names_of(named: str, text: str) -> str:
    """`text` with the value names of `named`, a print of the same module with names in the same order."""
    names = (match.group(1) for match in _NAMES.finditer(named) if match.group(1))
    return _NAMES.sub(lambda match: next(names) if match.group(1) else match.group(), text)


_NEIGHBOURS = re.compile(r"%down_linear_idx(_\d+)?(:2|#0|#1)")


def _separate_neighbours(text: str) -> str:
    """Names the two results of `mesh.neighbors_linear_indices` one by one, which a location cannot express."""

    def separate(match: re.Match[str]) -> str:
        suffix = match.group(1) or ""
        result_names = {":2": f"%down_linear_idx{suffix}, %up_linear_idx{suffix}", "#0": f"%down_linear_idx{suffix}"}
        return result_names.get(match.group(2), f"%up_linear_idx{suffix}")

    return _NEIGHBOURS.sub(separate, text) if "%down_linear_idx" in text else text


_MESH_OP = re.compile(r'"(mesh\.\w+)"\(([^)\n]*)\)((?: \{[^\n]*\})? : \([^\n]*)')


class _Customizer:
    """Rewrites the generic mesh operations of a printed text."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._forms: dict[tuple[str, int, str], list[Part] | None] = {}

    def run(self, text: str) -> str:
        return _MESH_OP.sub(self._rewrite, text)

    def _rewrite(self, match: re.Match[str]) -> str:
        name, listed, signature = match.groups()
        signature, location = _without_location(signature)
        operands = listed.split(", ") if listed else []
        key = (name, len(operands), signature)
        if key not in self._forms:
            self._forms[key] = self._form(*key)
        parts = self._forms[key]
        if parts is None:
            return match.group()
        return "".join([operands[part] if isinstance(part, int) else part for part in parts]) + location

    def _form(self, name: str, operand_count: int, signature: str) -> list[Part] | None:
        """The custom form, or None if the operation does not fit it and stays generic."""
        spelled = self._spelling.spelled.get(name)
        if spelled is None:
            return None
        try:
            return custom_form(spelled, operand_count, signature, self._spelling.formats[spelled])
        except Mismatch:
            return None


def _without_location(signature: str) -> tuple[str, str]:
    """Splits ` loc(…)`, which debug info adds after an operation, from its types."""
    end = signature.rfind(" loc(")
    return (signature[:end], signature[end:]) if end >= 0 and '"' not in signature[end:] else (signature, "")
