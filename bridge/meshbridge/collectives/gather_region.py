"""The operations after all-gathers of one block, over the same axes, that can be computed on shards."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meshbridge.collectives import shard_ops
from meshbridge.collectives.fold_collectives import is_less
from meshbridge.collectives.hoist_collectives import is_invariant
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.dialect.signature import group_size, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.uses import LOOK_THROUGH, defining_op
from meshbridge.ops.dimensions import BLOCKWISE, result_dim_of_blocks


@dataclass(frozen=True)
class ShardableOp:
    """An operation that can work on shards."""

    op: ir.Operation
    operand_dim: int
    "The dimension along which its operands have shards."
    result_dim: int | None
    "The dimension along which its result has shards; None if it reduces them, so that an all-reduce must follow."
    location: ir.Location
    "The location of a gather whose shards it reads."

    @property
    def result(self) -> ir.Value:
        value: ir.Value = self.op.results[0]
        return value


@dataclass
class Readers:
    """The readers of a value that has shards."""

    steps: list[ShardableOp] = field(default_factory=list)
    "Operations that can read a shard."
    slices: list[AllSliceOp] = field(default_factory=list)
    "Slices that return the shard, or take less communication than a gather."
    others: list[ir.Operation] = field(default_factory=list)
    "Operations that need the whole value."


@dataclass
class GatherRegion:
    """All-gathers, and the operations that can work on their shards."""

    rewriter: MeshRewriter
    block: ir.Block
    mesh: Mesh
    axes: Axes
    most: int
    "The maximum number of operations."
    gathers: dict[ir.Value, AllGatherOp] = field(default_factory=dict)
    "By result, as the steps."
    steps: dict[ir.Value, ShardableOp] = field(default_factory=dict)
    dims: dict[ir.Value, int] = field(default_factory=dict)
    "The dimension along which a value has shards."
    fixed: set[ir.Value] = field(default_factory=set)
    "Loop-invariant values."

    @staticmethod
    def after(gather: AllGatherOp, first: ir.Operation | None, rewriter: MeshRewriter, most: int = LOOK_THROUGH) -> GatherRegion:
        """The region after `gather`: `first`, then operations in breadth-first order."""
        region = GatherRegion(rewriter, gather.operation.block, rewriter.meshes[gather.mesh], gather.mesh_axes, most)
        if DYNAMIC in (region.count, *shape_of(gather.operation.results[0].type)):
            return region
        worklist = deque([region._with_gather(gather)])
        worklist.extend(region._with_step(first) if first is not None else ())
        while worklist:
            for user in rewriter.users(worklist.popleft()):
                worklist.extend(region._with_step(user))
        return region

    @property
    def count(self) -> int:
        """The number of shards of a value."""
        return group_size(self.mesh, self.axes)

    def readers(self, value: ir.Value) -> Readers:
        """The readers of `value`, each once."""
        readers, dim = Readers(), self.dims.get(value)
        for user in dict.fromkeys(self.rewriter.users(value)):
            step = self.steps.get(user.results[0]) if len(user.results) else None
            if step is not None and step.operand_dim == dim:
                readers.steps.append(step)
            elif user.name == AllSliceOp.OPERATION_NAME and self._is_less(piece := AllSliceOp(user), dim):
                readers.slices.append(piece)
            else:
                readers.others.append(user)
        return readers

    def look_above(self) -> None:
        """Makes patterns visit the gathers again from which the shards are computed: their users have changed."""
        worklist = list(dict.fromkeys(gather.input for gather in self.gathers.values()))
        visited = set(worklist)
        while worklist:
            op = defining_op(value := worklist.pop())
            if op is not None and op.name == AllGatherOp.OPERATION_NAME:
                self.rewriter.adopt(value)
            elif op is not None and op.name in BLOCKWISE and len(visited) < LOOK_THROUGH:
                worklist.extend(operands := [operand for operand in dict.fromkeys(op.operands) if operand not in visited])
                visited.update(operands)

    def _is_less(self, piece: AllSliceOp, dim: int | None) -> bool:
        return dim is not None and piece.mesh == self.mesh.name and is_less(piece, self.axes, dim)

    def _with_gather(self, gather: AllGatherOp) -> ir.Value:
        value: ir.Value = gather.operation.results[0]
        self.gathers[value], self.dims[value] = gather, gather.gather_axis
        self.fixed.update([value] if is_invariant(value, self.block) else ())
        return value

    def _with_step(self, op: ir.Operation) -> list[ir.Value]:
        """Adds `op` if it can work on shards; returns the values that have shards from then on."""
        if op.name not in BLOCKWISE or op.block != self.block or len(self.steps) == self.most or op.results[0] in self.steps:
            return []
        operands = list(dict.fromkeys(op.operands))
        if DYNAMIC in [size for value in (*operands, *op.results) for size in shape_of(value.type)]:
            return []
        gathers = [gather for value in operands if value not in self.dims and (gather := self._gather_of(value, op))]
        dims = {value: self.dims[value] for value in operands if value in self.dims}
        dims |= {gather.operation.results[0]: gather.gather_axis for gather in gathers}
        if len(set(dims.values())) != 1 or not all(value in dims or self._is_replicated(value) for value in operands):
            return []  # devices combine different values with the gathered one, so none can work on its shard alone
        operand_dim = next(iter(dims.values()))
        result_dim = result_dim_of_blocks(op, operand_dim, self.count)
        if result_dim is None and not shard_ops.reduces_along(op, operand_dim):
            return []
        fixed = self._is_fixed(operands, gathers)
        if fixed is None:
            return []
        added = [self._with_gather(gather) for gather in gathers]
        self.steps[op.results[0]] = ShardableOp(op, operand_dim, result_dim, self._location(next(iter(dims))))
        if result_dim is not None:
            self.dims[op.results[0]] = result_dim
            self.fixed.update(op.results if fixed else ())
            added.append(op.results[0])
        return added

    def _is_fixed(self, operands: list[ir.Value], gathers: list[AllGatherOp]) -> bool | None:
        """True if the result of `operands`, `gathers` among them, is loop-invariant, so that it can be gathered before the loop.
        None if only some are: their gather would have to stay in the loop."""
        results = [gather.operation.results[0] for gather in gathers]
        fixed = self.fixed.union(value for value in results if is_invariant(value, self.block))
        if fixed.isdisjoint(operands):
            return False
        return True if all(value in fixed or is_invariant(value, self.block) for value in operands) else None

    def _gather_of(self, value: ir.Value, user: ir.Operation) -> AllGatherOp | None:
        """The all-gather of `value` over the region's axes."""
        gather = self.rewriter.collective(value, AllGatherOp, user)
        alike = gather is not None and (gather.mesh, gather.mesh_axes) == (self.mesh.name, self.axes)
        return gather if alike else None

    def _is_replicated(self, value: ir.Value) -> bool:
        return self.rewriter.is_replicated(value, self.mesh.name, self.axes)

    def _location(self, value: ir.Value) -> ir.Location:
        """The location of the gather that `value` comes from."""
        return self.gathers[value].operation.location if value in self.gathers else self.steps[value].location
