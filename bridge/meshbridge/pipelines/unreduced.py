"""Programs with unreduced arguments and results as programs without any, which the exact evaluator compares.

An unreduced argument becomes one with the term of each device along a new dimension, which the source adds up; an unreduced
result is reduced. The programs themselves stay as they are: functions that a new `main` calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array, axis_array_attr, integers
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_PARTIAL, BOUNDARY_SPLIT
from meshbridge.ir.builder import Builder, shape_of, tensor
from meshbridge.ir.mlir import SIDES, entries, function_type, ir, main_function, set_entries
from meshbridge.ir.sharding import Axes

Entry = Mapping[str, ir.Attribute]


def reduced(source: ir.Module, partitioned: ir.Module) -> None:
    """Rewrites a source and its partitioned form (`mesh`) in place, if any argument or result of that is unreduced."""
    ins, outs = (entries(main_function(partitioned), side) for side in SIDES)
    if not any(BOUNDARY_PARTIAL in entry for entry in (*ins, *outs)):
        return
    mesh = mesh_or_single(partitioned)
    terms = [_axes(entry) for entry in ins]
    with source.context, ir.Location.unknown():
        kinds = function_type(main_function(source)).inputs
        _wrap_source(source, [mesh.group_size(axes) if axes else 0 for axes in terms], list(kinds))
        main = main_function(partitioned)
        local = function_type(main)
        shards = [_grown(kind, 1) if axes else kind for kind, axes in zip(local.inputs, terms, strict=True)]
        body, called = _wrapped(partitioned, shards)
        arguments = [
            body.reshape(argument, shape_of(argument)[1:]) if axes else argument
            for argument, axes in zip(called, terms, strict=True)
        ]
        call = _call(body, local.results, arguments)
        results = [
            build.all_reduce(value, mesh, mesh_axes=_axes(entry), at=body) if _axes(entry) else value
            for value, entry in zip(call, outs, strict=True)
        ]
        ir.Operation.create("func.return", [], results, ip=body.ip)
        wrapper = main_function(partitioned)
        set_entries(wrapper, "arg_attrs", [_of_terms(entry, mesh.group_size(_axes(entry))) for entry in ins])
        set_entries(wrapper, "res_attrs", [_without_partial(entry) for entry in outs])


def _axes(entry: Entry) -> Axes:
    return tuple(integers(entry[BOUNDARY_PARTIAL])) if BOUNDARY_PARTIAL in entry else ()


def _wrap_source(source: ir.Module, counts: Sequence[int], kinds: Sequence[ir.Type]) -> None:
    """Adds up the terms of arguments that have as many as `counts`; 0 is for any other argument."""
    results = function_type(main_function(source)).results
    body, called = _wrapped(source, [_grown(kind, count) if count else kind for kind, count in zip(kinds, counts, strict=True)])

    def total(argument: ir.Value, count: int) -> ir.Value:
        shape = shape_of(argument)[1:]
        zeros = [0] * len(shape)
        terms = [body.reshape(body.cut(argument, [each, *zeros], [each + 1, *shape]), shape) for each in range(count)]
        return reduce(lambda one, other: body.elementwise("add", one, other), terms)

    arguments = [total(argument, count) if count else argument for argument, count in zip(called, counts, strict=True)]
    ir.Operation.create("func.return", [], _call(body, results, arguments), ip=body.ip)


def _wrapped(module: ir.Module, kinds: Sequence[ir.Type]) -> tuple[Builder, Sequence[ir.Value]]:
    """Makes the entry point a private function, and another one with arguments of these types, whose body is to be built."""
    main = main_function(module)
    results = function_type(main).results
    main.attributes["sym_name"] = ir.StringAttr.get(_CALLED)
    main.attributes["sym_visibility"] = ir.StringAttr.get("private")
    for side in SIDES:
        if side in main.attributes:
            del main.attributes[side]
    kind = ir.TypeAttr.get(ir.FunctionType.get(list(kinds), list(results)))
    named = {"sym_name": ir.StringAttr.get("main"), "function_type": kind}
    wrapper = ir.Operation.create("func.func", [], [], named, regions=1, ip=ir.InsertionPoint(module.body))
    block = wrapper.regions[0].blocks.append(*kinds)
    return Builder(ir.Location.current, ir.InsertionPoint(block)), list(block.arguments)


_CALLED = "fragment"


def _call(body: Builder, results: Sequence[ir.Type], arguments: Sequence[ir.Value]) -> list[ir.Value]:
    return list(body.op("func.call", results, arguments, {"callee": ir.FlatSymbolRefAttr.get(_CALLED)}).results)


def _grown(kind: ir.Type, size: int) -> ir.Type:
    """A tensor type with a dimension more in front."""
    own = ir.RankedTensorType(kind)
    return tensor([size, *own.shape], own.element_type)


def _without_partial(entry: Entry) -> dict[str, ir.Attribute]:
    return {name: attribute for name, attribute in entry.items() if name != BOUNDARY_PARTIAL}


def _of_terms(entry: Entry, count: int) -> dict[str, ir.Attribute]:
    """The boundary of an argument with a term for each device, if it is unreduced."""
    if not (axes := _axes(entry)):
        return dict(entry)
    whole = ir.TypeAttr(entry[BOUNDARY_GLOBAL]).value
    split = axis_array(entry[BOUNDARY_SPLIT])
    rank = ir.RankedTensorType(whole).rank
    padded = (*split, *((),) * (rank - len(split)))
    changed = {BOUNDARY_GLOBAL: ir.TypeAttr.get(_grown(whole, count)), BOUNDARY_SPLIT: axis_array_attr((axes, *padded))}
    return {**_without_partial(entry), **changed}
