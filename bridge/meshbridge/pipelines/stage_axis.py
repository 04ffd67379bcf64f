"""The mesh of all stages: the mesh of one stage with an axis of stages in front, and computations that are manual along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshbridge.dialect import attributes, build
from meshbridge.dialect.module_mesh import find_mesh, mesh_ops
from meshbridge.dialect.ops import (
    AXIS_NAMES,
    BOUNDARY_MESH,
    DEVICE_IDS,
    MANUAL_AXES,
    OPEN_DIMS,
    REPLICATED_AXES,
    SOURCE,
    SOURCE_ATTRIBUTES,
    ShardingOp,
)
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.mlir import MANUAL, ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.pipelines.stacks import stack_axis

STAGES = 0
"""The axis of stages: the first one."""


def add_stage_axis(module: ir.Module, stages: int) -> Mesh:
    """Adds an axis of so many `stages` in front of the axes of a program's mesh, in place; returns the mesh of all stages.

    Stage `k` has the devices `k * n` to `k * n + n - 1`, in the order of its own mesh of `n` devices."""
    before = find_mesh(module)
    with module.context, ir.Location.unknown():
        if before is None:
            mesh = Mesh("mesh", (stages,), (stack_axis(()),))
            build.mesh(mesh, at=Builder(ir.Location.unknown(), ir.InsertionPoint.at_block_begin(module.body)))
            return mesh
        names = before.axis_names or tuple(name for name, _ in before.named_axes)
        devices = tuple(stage * before.size + device for stage in range(stages) for device in before.device_ids)
        digits = (1, *before.digits) if before.digits else ()
        after = Mesh(before.name, (stages, *before.shape), (stack_axis(names), *names), devices, digits)
        renumber(module, before, after, parts=[(number + 1,) for number in range(before.rank)])
        declaration = next(view.operation for view in mesh_ops(module.body) if view.sym_name == before.name)
        declaration.attributes[AXIS_NAMES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in after.axis_names])
        if devices:
            declaration.attributes[DEVICE_IDS] = attributes.integers_attr(devices)
        if "stablehlo.mesh" in declaration.attributes:
            del declaration.attributes["stablehlo.mesh"]
    return after


def along_stages(sharding: ir.Value, at: Builder) -> ir.Value:
    """The sharding, with the axis of stages in front of the axes of the first dimension."""
    own = ShardingOp(op_of(sharding)).value
    first, *rest = own.split_axes
    return build.sharding(replace(own, split_axes=((STAGES, *first), *rest)), at=at)


def open_along_stages(value: ir.Value, mesh: Mesh, at: Builder) -> ir.Value:
    """The annotated definition of a value whose first dimension is sharded along stages, and others in any way."""
    rank = len(shape_of(value))
    sharding = build.sharding(Sharding(mesh.name, ((STAGES,), *[()] * (rank - 1))), at=at)
    return build.shard_definition(value, sharding, extras={OPEN_DIMS: attributes.integers_attr(range(1, rank))}, at=at)


class ManualPort(NamedTuple):
    """An operand or result of a computation that is manual along stages, and the dimension in which each stage has its part; None
    for a value of which all stages have a copy."""

    type: ir.Type
    "Outside."
    dim: int | None


def local_type(port: ManualPort, stages: int) -> ir.Type:
    """The type of a port on one stage."""
    if port.dim is None:
        return port.type
    whole = ir.RankedTensorType(port.type)
    shape = list(whole.shape)
    shape[port.dim] //= stages
    return tensor(shape, whole.element_type)


@dataclass(eq=False)
class ManualComputation:
    """A computation of each stage, in writing: `block` grows with the operands that it reads."""

    mesh: Mesh
    at: Builder
    "Where the computation is to be."
    block: ir.Block
    operands: list[tuple[ir.Value, int | None]]

    @classmethod
    def begin(cls, mesh: Mesh, at: Builder) -> ManualComputation:
        """An empty one."""
        holder = at.create("mesh.unwritten", [], [], {}, 1)
        return cls(mesh, at, holder.regions[0].blocks.append(), [])

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.mesh.shape[STAGES]

    @property
    def builder(self) -> Builder:
        """Appends to the block."""
        return Builder(self.at.loc, ir.InsertionPoint(self.block))

    def operand(self, value: ir.Value, dim: int | None) -> ir.Value:
        """A value from outside as each stage has it: all of it, or its part along dimension `dim`."""
        for number, (own, along) in enumerate(self.operands):
            if own == value and along == dim:
                argument: ir.Value = self.block.arguments[number]
                return argument
        self.operands.append((value, dim))
        return self.block.add_argument(local_type(ManualPort(value.type, dim), self.stages), self.at.loc)

    def stage(self) -> ir.Value:
        """The number of the stage, a scalar of 32 bits."""
        own = self.operand(self.at.iota([self.stages], 0), 0)
        return self.builder.reshape(own, [])

    def end(self, results: Sequence[tuple[ir.Value, int | None]]) -> list[ir.Value]:
        """The values outside of `results`, each with the dimension in which a stage has a part of it."""
        ports = [self._outside(value, dim) for value, dim in results]
        ir.Operation.create("sdy.return", [], [value for value, _ in results], loc=self.at.loc, ip=ir.InsertionPoint(self.block))
        operands = [self._annotated(value, dim, annotate_for_users=True) for value, dim in self.operands]
        attrs = {
            "in_shardings": self._per_value([ManualPort(value.type, dim) for value, dim in self.operands]),
            "out_shardings": self._per_value(ports),
            "manual_axes": ir.Attribute.parse(f'#sdy<manual_axes{{"{self.mesh.axis_name(STAGES)}"}}>'),
            MANUAL_AXES: attributes.axes_attr((STAGES,)),
            BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(self.mesh.name),
        }
        holder = self.block.owner
        op = self.at.create(MANUAL, [port.type for port in ports], operands, attrs, 1)
        self.block.append_to(op.regions[0])
        holder.erase()
        return [self._annotated(result, port.dim) for result, port in zip(op.results, ports, strict=True)]

    def _outside(self, value: ir.Value, dim: int | None) -> ManualPort:
        shape = shape_of(value)
        if dim is not None:
            shape[dim] *= self.stages
        return ManualPort(tensor(shape, element_of(value)), dim)

    def _annotated(self, value: ir.Value, dim: int | None, *, annotate_for_users: bool = False) -> ir.Value:
        rank = len(shape_of(value))
        split = tuple((STAGES,) if number == dim else () for number in range(rank))
        sharding = build.sharding(Sharding(self.mesh.name, split), at=self.at)
        extras: dict[str, ir.Attribute] = {SOURCE: ir.StringAttr.get(MANUAL)}
        if rank:
            extras[OPEN_DIMS] = attributes.integers_attr(range(rank))
        if dim is None:
            replicated = {REPLICATED_AXES: attributes.axes_attr((STAGES,))}
            extras |= {**replicated, SOURCE_ATTRIBUTES: ir.DictAttr.get(replicated)}
        return build.shard(value, sharding, annotate_for_users=annotate_for_users, extras=extras, at=self.at)

    def _per_value(self, ports: Sequence[ManualPort]) -> ir.Attribute:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.mesh.named_axes)
        order = f", device_ids=[{', '.join(map(str, self.mesh.device_ids))}]" if self.mesh.device_ids else ""
        stage = f'{{"{self.mesh.axis_name(STAGES)}", ?}}'
        texts = []
        for port in ports:
            rank = len(ir.RankedTensorType(port.type).shape)
            dims = ", ".join(stage if number == port.dim else "{?}" for number in range(rank))
            texts.append(f"<mesh<[{axes}]{order}>, [{dims}]>")
        return ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(texts)}]>")
