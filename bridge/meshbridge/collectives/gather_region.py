"""What can be computed on shards behind all-gathers of one block, over the same axes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meshbridge.collectives import shard_steps
from meshbridge.collectives.fold_collectives import is_less
from meshbridge.collectives.hoist_collectives import is_invariant
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.dialect.signature import group_size, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.uses import defining_op
from meshbridge.ops.dimensions import BLOCKWISE, result_dim_of_blocks

MOST = 64
"""How many operations are looked at behind one all-gather. Not measured: a bound on time."""


@dataclass(frozen=True)
class ShardableOp:
    """An operation that can work on shards."""

    op: ir.Operation
    before: int
    "Along which dimension its operands have shards."
    behind: int | None
    "Along which dimension its result has them; None where it reduces them, so that all devices' results are reduced once more."
    location: ir.Location
    "That of a gather whose shards it takes."

    @property
    def result(self) -> ir.Value:
        value: ir.Value = self.op.results[0]
        return value


@dataclass
class Readers:
    """What reads a value of which there are shards."""

    steps: list[ShardableOp] = field(default_factory=list)
    "Those that can take a shard."
    slices: list[AllSliceOp] = field(default_factory=list)
    "Those that give the shard, or can be had for less than all."
    others: list[ir.Operation] = field(default_factory=list)
    "What needs all of it."


@dataclass
class Region:
    """All-gathers, and operations that can work on the shards that these put together."""

    rewriter: MeshRewriter
    block: ir.Block
    mesh: Mesh
    axes: Axes
    most: int
    "How many operations."
    gathers: dict[ir.Value, AllGatherOp] = field(default_factory=dict)
    "By their results, as the steps."
    steps: dict[ir.Value, ShardableOp] = field(default_factory=dict)
    dims: dict[ir.Value, int] = field(default_factory=dict)
    "Along which dimension a value has shards."
    fixed: set[ir.Value] = field(default_factory=set)
    "Those that are the same in every trip of a loop."

    @staticmethod
    def behind(gather: AllGatherOp, first: ir.Operation | None, rewriter: MeshRewriter, most: int = MOST) -> Region:
        """What is reached from `gather`: `first`, and then what is nearest."""
        region = Region(rewriter, gather.operation.block, rewriter.meshes[gather.mesh], gather.mesh_axes, most)
        if DYNAMIC in (region.count, *shape_of(gather.operation.results[0].type)):
            return region
        waiting = deque([region._with_gather(gather)])
        waiting.extend(region._with_step(first) if first is not None else ())
        while waiting:
            for user in rewriter.users(waiting.popleft()):
                waiting.extend(region._with_step(user))
        return region

    @property
    def count(self) -> int:
        """How many shards a value has."""
        return group_size(self.mesh, self.axes)

    def readers(self, value: ir.Value) -> Readers:
        """What reads `value`, each once."""
        found, dim = Readers(), self.dims.get(value)
        for user in dict.fromkeys(self.rewriter.users(value)):
            step = self.steps.get(user.results[0]) if len(user.results) else None
            if step is not None and step.before == dim:
                found.steps.append(step)
            elif user.name == AllSliceOp.OPERATION_NAME and self._is_less(piece := AllSliceOp(user), dim):
                found.slices.append(piece)
            else:
                found.others.append(user)
        return found

    def look_above(self) -> None:
        """Lets patterns look again at the gathers that the shards are computed of: what follows behind these has changed."""
        waiting = list(dict.fromkeys(gather.input for gather in self.gathers.values()))
        seen = set(waiting)
        while waiting:
            op = defining_op(value := waiting.pop())
            if op is not None and op.name == AllGatherOp.OPERATION_NAME:
                self.rewriter.adopt(value)
            elif op is not None and op.name in BLOCKWISE and len(seen) < MOST:
                waiting.extend(found := [each for each in dict.fromkeys(op.operands) if each not in seen])
                seen.update(found)

    def _is_less(self, piece: AllSliceOp, dim: int | None) -> bool:
        return dim is not None and piece.mesh == self.mesh.name and is_less(piece, self.axes, dim)

    def _with_gather(self, gather: AllGatherOp) -> ir.Value:
        value: ir.Value = gather.operation.results[0]
        self.gathers[value], self.dims[value] = gather, gather.gather_axis
        self.fixed.update([value] if is_invariant(value, self.block) else ())
        return value

    def _with_step(self, op: ir.Operation) -> list[ir.Value]:
        """Adds `op` if it can work on shards; returns the values that have shards since."""
        if op.name not in BLOCKWISE or op.block != self.block or len(self.steps) == self.most or op.results[0] in self.steps:
            return []
        operands = list(dict.fromkeys(op.operands))
        if DYNAMIC in [size for value in (*operands, *op.results) for size in shape_of(value.type)]:
            return []
        gathers = [gather for value in operands if value not in self.dims and (gather := self._gather_of(value, op))]
        dims = {value: self.dims[value] for value in operands if value in self.dims}
        dims |= {gather.operation.results[0]: gather.gather_axis for gather in gathers}
        if len(set(dims.values())) != 1 or not all(value in dims or self._is_replicated(value) for value in operands):
            return []  # each device used its own with the gathered value, and would use it with its shard alone
        before = next(iter(dims.values()))
        behind = result_dim_of_blocks(op, before, self.count)
        if behind is None and not shard_steps.adds_up(op, before):
            return []
        fixed = self._is_fixed(operands, gathers)
        if fixed is None:
            return []
        added = [self._with_gather(gather) for gather in gathers]
        self.steps[op.results[0]] = ShardableOp(op, before, behind, self._location(next(iter(dims))))
        if behind is not None:
            self.dims[op.results[0]] = behind
            self.fixed.update(op.results if fixed else ())
            added.append(op.results[0])
        return added

    def _is_fixed(self, operands: list[ir.Value], gathers: list[AllGatherOp]) -> bool | None:
        """Whether what is computed of `operands`, `gathers` among them, is the same in every trip of a loop, as what can be
        gathered before it. None where some of it is: its gather would have to stay in the loop."""
        results = [gather.operation.results[0] for gather in gathers]
        fixed = self.fixed.union(value for value in results if is_invariant(value, self.block))
        if fixed.isdisjoint(operands):
            return False
        return True if all(value in fixed or is_invariant(value, self.block) for value in operands) else None

    def _gather_of(self, value: ir.Value, user: ir.Operation) -> AllGatherOp | None:
        """What gathers `value` over the axes."""
        gather = self.rewriter.collective(value, AllGatherOp, user)
        alike = gather is not None and (gather.mesh, gather.mesh_axes) == (self.mesh.name, self.axes)
        return gather if alike else None

    def _is_replicated(self, value: ir.Value) -> bool:
        return self.rewriter.is_replicated(value, self.mesh.name, self.axes)

    def _location(self, value: ir.Value) -> ir.Location:
        """Where what is gathered stands of which `value` is, or is computed."""
        return self.gathers[value].operation.location if value in self.gathers else self.steps[value].location
