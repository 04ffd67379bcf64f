"""The loop of microbatches of a training step, and the boundaries of stages in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from meshbridge.analysis.executions import executed
from meshbridge.analysis.trip_count import trip_count
from meshbridge.cost.flops import amount
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import (
    BARRIER,
    MeshError,
    OpError,
    ancestor_in,
    ancestors,
    ir,
    main_function,
    source_location,
    terminator_operands,
    walk,
    walk_all,
)
from meshbridge.ir.sharding import Mesh
from meshbridge.pipelines.marker import Marker, marker_of

WHILE = "stablehlo.while"
SHARD = "mesh.shard"

MARK = "x = meshbridge.stage('name')(x) marks where a stage begins, inside the function whose gradient the loop takes"
SCAN = "scan over microbatches with jax.lax.scan, whose body takes jax.value_and_grad of the loss and adds up the gradients"


@dataclass(frozen=True, eq=False)
class MicrobatchLoop:
    """A program with a loop of microbatches, in the form 'annotated', without the annotations of definitions in its two blocks.

    The program's function consists of what is before the loop, the loop, and what is after it. `shardings` has the annotation of
    each value's definition: a value of type `!mesh.sharding`.
    """

    module: ir.Module
    main: ir.Operation
    op: ir.Operation
    names: tuple[str, ...]
    "The names of the stages that are marked, in the order in which the body reaches them."
    microbatches: int
    "The trip count."
    shardings: dict[ir.Value, ir.Value] = field(default_factory=dict)

    @cached_property
    def meshes(self) -> dict[str, Mesh]:
        return declared_meshes(self.module.body)

    @property
    def block(self) -> ir.Block:
        """What the program's function consists of."""
        block: ir.Block = self.main.regions[0].blocks[0]
        return block

    @property
    def body(self) -> ir.Block:
        """What each microbatch computes. Its arguments are the carried values."""
        block: ir.Block = self.op.regions[1].blocks[0]
        return block

    def marked(self, chunks: int) -> int:
        """The number of stages that are marked, a multiple of `chunks`: the first one may begin without a boundary. If none is
        marked, `chunks` are found.

        Raises MeshError if there are others.
        """
        if not self.names:
            return chunks
        for count in (len(self.names) + 1, len(self.names)):
            if count and count % chunks == 0:
                return count
        names = ", ".join(self.names)
        raise MeshError(
            f"{source_location(self.op)}: error: expected boundaries of {chunks} stages, or of a multiple, found "
            f"{len(self.names)}: {names}\n  hint: {MARK}; the first stage may begin without one"
        )

    def yielded(self) -> list[ir.Value]:
        """The carried values after a microbatch."""
        return terminator_operands(self.body)

    def returned(self) -> list[ir.Value]:
        """The results of the program."""
        return terminator_operands(self.block)


def find_loop(module: ir.Module) -> MicrobatchLoop:
    """The loop of microbatches of a program whose calls are inlined; strips annotations of definitions from the module.

    Without boundaries of stages it is the loop with the most work. Raises MeshError for a program without a loop, OpError for
    boundaries that are not in one loop with a known trip count, and for values in the loop that have effects.
    """
    main = main_function(module)
    marked = [(op, marker) for op in walk_all(module) if (marker := marker_of(op)) is not None]
    loop = _loop_around(marked[0][0]) if marked else _largest_loop(module, main)
    for op, _ in marked:
        _check_place(op, loop, main)
    trips = trip_count(loop)
    if trips is None:
        raise OpError(loop, "has boundaries of stages in it, but no known number of microbatches", SCAN)
    refuse_effects(loop.regions[1].blocks[0])
    names = tuple(dict.fromkeys(marker.name for _, marker in marked if marker.direction == "forward"))
    found = MicrobatchLoop(module, main, loop, names, trips)
    for block in (found.block, found.body):
        _strip_definitions(block, found.shardings)
    return found


def _largest_loop(module: ir.Module, main: ir.Operation) -> ir.Operation:
    """The loop of a program's function with a known trip count that has the most work. Raises MeshError if there is none."""
    ops: list[ir.Operation] = [view.operation for view in main.regions[0].blocks[0].operations]
    work: dict[ir.Value, float] = {op.results[0]: 0.0 for op in ops if op.results}
    for op, times in executed(module, weigh=amount):
        outer = ancestor_in(main.regions[0].blocks[0], op)
        if outer is not None and outer.results:
            work[outer.results[0]] += amount([(op, times)])
    loops = [op for op in ops if op.name == WHILE]
    counted = [loop for loop in loops if trip_count(loop) is not None]
    if counted:
        return max(counted, key=lambda loop: work[loop.results[0]])
    if loops:
        raise OpError(loops[0], "has no known number of iterations, as a loop of microbatches has", f"{SCAN}\n  hint: {MARK}")
    lacks = "the program has no loop of microbatches, nor marks stages"
    largest = op_of(max(work, key=work.__getitem__)) if work else main
    raise MeshError(f"{source_location(largest)}: error: {lacks}\n  hint: {SCAN}\n  hint: {MARK}")


def refuse_repeated(module: ir.Module) -> None:
    """Raises OpError for a value that passes a boundary that is marked in a program twice on its way forward."""
    for block in {op.block: None for op in walk_all(module) if marker_of(op) is not None}:
        _refuse_repeated(block)


def _refuse_repeated(block: ir.Block) -> None:
    passed: dict[ir.Value, frozenset[str]] = {}
    for view in block.operations:
        op = view.operation
        marker = marker_of(op)
        if marker is not None and marker.direction == "backward":
            continue  # no cotangent passes a boundary forward
        if op.name != BARRIER:
            read = (value for each in walk(op) for value in each.operands)
            stages = frozenset[str]().union(*(passed[value] for value in read if value in passed))
            passed |= dict.fromkeys(op.results, stages)
            continue
        for operand, result in zip(op.operands, op.results, strict=True):
            before = passed.get(operand, frozenset())
            if marker is not None and marker.name in before:
                hint = "give each stage a name of its own, such as meshbridge.stage(f'layer {number}')"
                raise OpError(op, f"passes the boundary of stage {marker.name!r} again, which its operand has passed", hint)
            passed[result] = before if marker is None else before | {marker.name}


def _loop_around(marker: ir.Operation) -> ir.Operation:
    """The loop around a boundary of a stage."""
    if marker.parent is not None and marker.parent.name == WHILE:
        loop: ir.Operation = marker.parent.operation
        return loop
    if any(each.name == WHILE for each in ancestors(marker)):
        raise OpError(marker, f"{_named(marker)} is in a branch", "mark stages outside of jax.lax.cond and jax.lax.switch")
    raise OpError(marker, f"{_named(marker)} is in no loop of microbatches", SCAN)


def _check_place(marker: ir.Operation, loop: ir.Operation, main: ir.Operation) -> None:
    """Raises OpError unless a boundary is in the body of the loop itself, and the loop in the program's function."""
    around = _loop_around(marker)
    if around.parent is None or around.parent.operation != main:
        hint = "mark stages in the body of a scan over layers, or between scans over the layers of each stage"
        raise OpError(marker, f"{_named(marker)} is in a loop within the loop of microbatches, or in a branch", hint)
    if around != loop:
        raise OpError(marker, f"{_named(marker)} is in another loop than the boundaries before it", SCAN)


def _named(marker: ir.Operation) -> str:
    found = marker_of(marker)
    return f"of stage {found.name!r}" if isinstance(found, Marker) else ""


def refuse_effects(body: ir.Block) -> None:
    """Raises OpError for an op whose results nobody reads, since it has none: it is there for its effects."""
    for view in body.operations:
        op = view.operation
        if not op.results and op.name not in ("stablehlo.return", "sdy.sharding_group"):
            raise OpError(op, "has effects, which a pipeline would not keep in order")


def _strip_definitions(block: ir.Block, shardings: dict[ir.Value, ir.Value]) -> None:
    """Replaces the annotated definition of each value by the value."""
    for view in list(block.operations):
        op = view.operation
        if op.name == SHARD and "annotate_for_users" not in op.attributes and op.operands[0] not in shardings:
            value, sharding = op.operands
            shardings[value] = sharding
            op.results[0].replace_all_uses_with(value)
            op.erase()
