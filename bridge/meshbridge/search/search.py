"""Search: from a program of which little or nothing is sharded to the shardings of its arguments and results under which its
predicted step takes least time, and fits in memory.

    legal program -> graph in which all is open (`free_graph`)
                  -> starting points: each mesh axis splits one of the largest dimension classes, or none
                  -> refined, under rising prices of memory until the limit is kept: the same moves that decide any program
                  -> the boundary of each distinct plan, partitioned, its step predicted (`trial`)
                  -> the fastest that fits; what any other could save at most (`sharding_problem`, `solve`)

All axes are chosen at once: one after the other ends in data parallelism along all of them, since each alone gains most so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count

from meshbridge.cost.memory_limit import UNLIMITED
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
from meshbridge.read.formats import copy_module
from meshbridge.search.asked import Asked, fix, refuse_unused
from meshbridge.search.constraints import Constraints, constraints_of
from meshbridge.search.parts import AxisPart
from meshbridge.search.seeking import EQUAL, OnTrial, Searched, Seeking, speed
from meshbridge.search.shapes import in_parts, with_topology


def best_of(module: ir.Module, meshes: Sequence[Mesh | None], asked: Asked, on_trial: OnTrial | None = None) -> Searched:
    """The best plan of a program on the meshes, which share the time; None is the mesh that it is sharded on.

    Of the same program and options it is the same, unless the time is over before all plans are tried; who interrupts it gets the
    best so far. Raises MeshError where a program is sharded on another mesh, or on none and none is given; where what is fixed
    cannot be; and where nothing that was tried fits in memory: by how much, and what takes it.
    """
    until = asked.clock() + asked.seconds
    sought: list[Seeking] = []
    refused: list[MeshError] = []
    for number, mesh in enumerate(meshes):
        left = max(0.0, until - asked.clock())
        try:
            sought.append(_sought(module, mesh, replace(asked, seconds=left / (len(meshes) - number)), on_trial))
        except MeshError as error:
            refused.append(error)
        except KeyboardInterrupt:  # before there is a plan on this mesh
            if not sought:
                raise
            break
        if sought and sought[-1].is_interrupted:
            break
    if not sought:
        raise refused[0]
    hint, divided = "", ""
    if len(meshes) == 1 and meshes[0] is not None and not asked.parts and (part := sought[0].unused_part) is not None:
        along_parts = _along_parts(module, sought[0], part, replace(asked, seconds=until - asked.clock()), on_trial)
        if along_parts is None:
            hint = part.text
        elif along_parts.fastest.seconds < (1 - EQUAL) * sought[0].fastest.seconds:
            divided = part.divided(sought[0].fastest.seconds)
            sought = [along_parts]
    best = replace(_best_as_a_whole(sought, asked, until), hint=hint, divided=divided)
    if not asked.constraints:
        return best
    try:
        return replace(best, constraints=_constraints(best))
    except KeyboardInterrupt:  # the plan is found
        return best
    except MeshError as error:  # it says what propagation alone cannot do, which the plan does not need
        return replace(best, unconstrained=str(error))


def _best_as_a_whole(sought: Sequence[Seeking], asked: Asked, until: float) -> Searched:
    found: list[Searched] = []
    for seeking in sorted(sought, key=lambda each: speed(each.fastest)):
        if not found or (asked.clock() + seeking.as_a_whole <= until and not seeking.is_interrupted):
            found.append(seeking.found(until))
    return min(found, key=lambda each: speed(each.best))


def _along_parts(module: ir.Module, sought: Seeking, part: AxisPart, asked: Asked, on_trial: OnTrial | None) -> Seeking | None:
    """The search where the part of an axis is one of its own; None where there is no time for it, or no plan."""
    if sought.is_interrupted or not asked.divides or asked.seconds < 2 * sought.as_a_whole:
        return None
    try:
        (mesh,), parts = in_parts([sought.mesh], {part.axis: (part.devices // part.part, part.part)})
        return _sought(module, mesh, replace(asked, parts=parts), on_trial)
    except (MeshError, KeyboardInterrupt):  # there is the plan along whole axes
        return None


def _sought(module: ir.Module, mesh: Mesh | None, asked: Asked, on_trial: OnTrial | None) -> Seeking:
    """The search on a mesh, once it has ended with a plan. Raises MeshError as `best_of` does."""
    until = asked.clock() + asked.seconds
    annotated, mesh = _annotated(module, mesh, asked)
    asked = replace(asked.for_mesh(mesh), machine=with_topology(asked.machine, mesh))
    with annotated.context, ir.Location.unknown():
        legal = copy_module(annotated)
        run(build(asked.options).until("legal").starting_at("annotated").passes, legal, verified="none")
        seeking = Seeking(annotated, legal, mesh, asked, until, on_trial or (lambda trial, number: None))
        try:
            seeking.run()
        except KeyboardInterrupt:
            seeking.is_interrupted = True
            if not seeking.fitting:
                raise
        if not seeking.fitting:
            raise seeking.too_large()
    return seeking


def _constraints(found: Searched) -> Constraints:
    asked = found.asked
    options, until = replace(asked.options, memory_limit=UNLIMITED), asked.clock() + asked.seconds
    return constraints_of(found.legal, found.boundary, options, found.best.seconds, asked.constraints, until, asked.clock)


def _annotated(module: ir.Module, mesh: Mesh | None, asked: Asked) -> tuple[ir.Module, Mesh]:
    """A copy of the program on the mesh dialect, with what is fixed, and without what is not kept."""
    if is_partitioned(module):
        raise MeshError("<module>: error: the program is partitioned already, there is nothing to search")
    module = copy_module(module)
    with module.context, ir.Location.unknown():
        run(build(Options(emit="mesh")).until("annotated").passes, module, verified="none")
        own = find_mesh(module)
        is_sharded = own is not None and own.size > 1
        if not (asked.keeps and is_sharded):  # on one device, nobody has said anything
            reannotate.drop(_written(module))
        if mesh is None and not is_sharded:
            raise MeshError("error: the program names no mesh to search on: name one, as in 16x16 or data=4,model=2")
        if mesh is not None and is_sharded and own is not None and mesh.named_axes != own.named_axes:
            said = ", ".join(f"{name}={size}" for name, size in own.named_axes)
            raise MeshError(f"error: the program is sharded on the mesh {said} already, expected no other")
        if mesh is not None and not is_sharded:
            named = named_meshes(walk_all(module))
            for each in mesh_ops(module.body):
                if each.value.name not in named:
                    each.operation.erase()
            taken = {each.value.name for each in mesh_ops(module.body)}
            name = next(name for name in chain(("mesh",), map("mesh_{}".format, count())) if name not in taken)
            make.mesh(replace(mesh, name=name), at=Builder(ir.Location.unknown(), ir.InsertionPoint.at_block_begin(module.body)))
        used = find_mesh(module)
        assert used is not None
        asked = asked.for_mesh(used)
        fix(module, used, asked.fixed)
        refuse_unused(module, used, asked.data_axes)
    return module, used


def _written(module: ir.Module) -> list[ir.Operation]:
    """The annotations of a program but those of manual computations, of what these call too, which say what a device holds
    there."""
    kept: set[ir.Operation] = set()
    for manual in [op for op in walk_all(module) if op.name == MANUAL]:
        kept |= {*_below(manual, module)}
        kept |= {op_of(operand) for operand in manual.operands if not is_argument(operand)}
        kept |= {use.owner.operation for result in manual.results for use in result.uses}
    return [op for op in walk_all(module) if op.name == ShardOp.OPERATION_NAME and op not in kept]


def _below(op: ir.Operation, module: ir.Module) -> Iterator[ir.Operation]:
    """What an op holds, and the functions that are called there, each once."""
    functions = ir.SymbolTable(module.operation)
    waiting, met = [op], {op}
    while waiting:
        for each in walk(waiting.pop()):
            yield each
            called = [callee(each)] if each.name in CALLEE else named_functions(each)
            found = [function for name in called if (function := functions[name].operation) not in met]
            waiting += found
            met |= {*found}
