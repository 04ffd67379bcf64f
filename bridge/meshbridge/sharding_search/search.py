"""Search: from a program with few or no shardings to the shardings of its arguments and results under which its predicted step is
shortest, and fits in memory.

    legal program -> graph in which all is open (`free_graph`)
                  -> starting points: each mesh axis splits one of the largest dimension classes, or none
                  -> refined, under rising prices of memory until the limit is kept: the moves that decide any program
                  -> the boundary of each distinct plan, partitioned, its step predicted (`trial`)
                  -> the fastest that fits; what any other could save at most (`sharding_problem`, `solver`)

All axes are chosen at once: one after the other ends in data parallelism along all of them, since each alone gains most from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from math import inf
from typing import NamedTuple

from meshbridge.dialect import build as make
from meshbridge.dialect import reannotate
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned, mesh_ops, named_meshes
from meshbridge.dialect.ops import ShardOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import MANUAL, MeshError, ir, named_functions, walk, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.ir.uses import is_argument
from meshbridge.legalize.inline_calls import CALLEE, callee
from meshbridge.pipeline import Options, build, run
from meshbridge.progress import OnProgress
from meshbridge.read.formats import copy_module
from meshbridge.sharding_search.clock import WALL
from meshbridge.sharding_search.constraints import Constraints, constraints_of
from meshbridge.sharding_search.mesh_notation import in_parts, with_topology
from meshbridge.sharding_search.mesh_search import EQUAL, MeshSearch, OnTrial, SearchResult, speed
from meshbridge.sharding_search.request import SearchRequest, fix, refuse_unused
from meshbridge.sharding_search.sub_axis_hint import SubAxis


class _Watch(NamedTuple):
    """Who watches a search."""

    on_trial: OnTrial
    say: Callable[[str], None] | None


def best_of(
    module: ir.Module,
    meshes: Sequence[Mesh | None],
    request: SearchRequest,
    on_trial: OnTrial | None = None,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """The best plan of a program on the meshes, which share the time; None is the mesh that the program is sharded on.

    The same program and options give the same plan, unless the time is over before all plans are tried; an interrupt returns the
    best plan so far, at once. Progress is by the time that is spent. Raises MeshError where a program is sharded on another mesh,
    or on none and none is given; where fixed shardings do not fit; and where no tried plan fits in memory: by how much, and which
    values take it.
    """
    began = WALL()
    watch = _Watch(
        on_trial or (lambda trial, number: None),
        (lambda text: on_progress((WALL() - began) / request.seconds, text)) if on_progress is not None else None,
    )
    until = request.clock() + request.seconds
    searches: list[MeshSearch] = []
    refused: list[MeshError] = []
    for number, mesh in enumerate(meshes):
        seconds_left = max(0.0, until - request.clock())
        try:
            searches.append(_sought(module, mesh, replace(request, seconds=seconds_left / (len(meshes) - number)), watch))
        except MeshError as error:
            refused.append(error)
        except KeyboardInterrupt:  # before there is a plan on this mesh
            if not searches:
                raise
            break
        if searches and searches[-1].is_interrupted:
            break
    if not searches:
        raise refused[0]
    hint, divided = "", ""
    if len(meshes) == 1 and meshes[0] is not None and not request.parts and (part := searches[0].sub_axis_hint) is not None:
        along_parts = _along_parts(module, searches[0], part, replace(request, seconds=until - request.clock()), watch)
        if along_parts is None:
            hint = part.text
        elif along_parts.fastest.seconds < (1 - EQUAL) * searches[0].fastest.seconds:
            divided = part.divided(searches[0].fastest.seconds)
            searches = [along_parts]
    best = replace(_best_as_a_whole(searches, request, until), hint=hint, divided=divided)
    if not request.constraints:
        return best
    try:
        return replace(best, constraints=_constraints(best))
    except KeyboardInterrupt:  # there is a plan
        return best
    except MeshError as error:  # propagation alone cannot partition the program; the plan does not need it
        return replace(best, unconstrained=str(error))


def _best_as_a_whole(searches: Sequence[MeshSearch], request: SearchRequest, until: float) -> SearchResult:
    results: list[SearchResult] = []
    for search in sorted(searches, key=lambda search: speed(search.fastest)):
        if not results or (request.clock() + search.final_seconds <= until and not search.is_interrupted):
            results.append(search.result(until))
    return min(results, key=lambda result: speed(result.best))


def _along_parts(
    module: ir.Module, search: MeshSearch, part: SubAxis, request: SearchRequest, watch: _Watch
) -> MeshSearch | None:
    """The search with the sub-axis as an axis; None if there is no time for it, or no plan."""
    if search.is_interrupted or not request.divides or request.seconds < 2 * search.final_seconds:
        return None
    try:
        (mesh,), parts = in_parts([search.mesh], {part.axis: (part.devices // part.part, part.part)})
        return _sought(module, mesh, replace(request, parts=parts), watch)
    except (MeshError, KeyboardInterrupt):  # there is the plan along whole axes
        return None


def _sought(module: ir.Module, mesh: Mesh | None, request: SearchRequest, watch: _Watch) -> MeshSearch:
    """The search on a mesh after it has run and found a plan. Raises MeshError as `best_of` does."""
    until = request.clock() + request.seconds
    annotated, mesh = _annotated(module, mesh, request)
    request = replace(request.for_mesh(mesh), target=with_topology(request.target, mesh))
    with annotated.context, ir.Location.unknown():
        legal = copy_module(annotated)
        run(build(request.options).until("legal").starting_at("annotated").passes, legal, verified="none")
        search = MeshSearch(annotated, legal, mesh, request, until, watch.on_trial, say=watch.say)
        try:
            search.run()
        except KeyboardInterrupt:
            search.is_interrupted = True
            if not search.fitting:
                raise
        if not search.fitting:
            raise search.too_large()
    return search


def _constraints(result: SearchResult) -> Constraints:
    request = result.request
    options, until = request.options.limited(inf), request.clock() + request.seconds
    return constraints_of(result.legal, result.boundary, options, result.best.seconds, request.constraints, until, request.clock)


def _annotated(module: ir.Module, mesh: Mesh | None, request: SearchRequest) -> tuple[ir.Module, Mesh]:
    """A copy of the program on the mesh dialect, with the fixed shardings, and without annotations that are not kept."""
    if is_partitioned(module):
        raise MeshError("<module>: error: the program is partitioned already, there is nothing to search")
    module = copy_module(module)
    with module.context, ir.Location.unknown():
        run(build(Options(emit="mesh")).until("annotated").passes, module, verified="none")
        own = find_mesh(module)
        is_sharded = own is not None and own.size > 1
        if not (request.keeps and is_sharded):  # on one device, nothing is sharded
            reannotate.drop(_written(module))
            _erase_unnamed_meshes(module, own if is_sharded else None)
        if mesh is None and not is_sharded:
            raise MeshError("error: the program names no mesh to search on: name one, as in 16x16 or data=4,model=2")
        if mesh is not None and is_sharded and own is not None and mesh.named_axes != own.named_axes:
            axes_text = ", ".join(f"{name}={size}" for name, size in own.named_axes)
            raise MeshError(f"error: the program is sharded on the mesh {axes_text} already, expected no other")
        if mesh is not None and not is_sharded:
            mesh_names = {mesh_op.value.name for mesh_op in mesh_ops(module.body)}
            name = next(name for name in chain(("mesh",), map("mesh_{}".format, count())) if name not in mesh_names)
            make.mesh(replace(mesh, name=name), at=Builder(ir.Location.unknown(), ir.InsertionPoint.at_block_begin(module.body)))
        used = find_mesh(module)
        assert used is not None
        request = request.for_mesh(used)
        fix(module, used, request.fixed)
        refuse_unused(module, used, request.data_axes)
    return module, used


def _erase_unnamed_meshes(module: ir.Module, kept: Mesh | None) -> None:
    """Erases the meshes that nothing names, such as JAX's for arguments without a sharding, except for the one to search on."""
    named = named_meshes(walk_all(module))
    for mesh_op in mesh_ops(module.body):
        if mesh_op.value.name not in named and mesh_op.value != kept:
            mesh_op.operation.erase()


def _written(module: ir.Module) -> list[ir.Operation]:
    """The annotations of a program, except those of manual computations and their callees, which describe a device's values."""
    manual_annotations: set[ir.Operation] = set()
    for manual in [op for op in walk_all(module) if op.name == MANUAL]:
        manual_annotations |= {*_below(manual, module)}
        manual_annotations |= {op_of(operand) for operand in manual.operands if not is_argument(operand)}
        manual_annotations |= {use.owner.operation for result in manual.results for use in result.uses}
    return [op for op in walk_all(module) if op.name == ShardOp.OPERATION_NAME and op not in manual_annotations]


def _below(op: ir.Operation, module: ir.Module) -> Iterator[ir.Operation]:
    """The ops inside an op, and in the functions that they call, each once."""
    functions = ir.SymbolTable(module.operation)
    waiting, visited = [op], {op}
    while waiting:
        for nested in walk(waiting.pop()):
            yield nested
            called = [callee(nested)] if nested.name in CALLEE else named_functions(nested)
            callees = [function for name in called if (function := functions[name].operation) not in visited]
            waiting += callees
            visited |= {*callees}
