"""Writes a pipeline as a program of Shardy's MPMD dialect that is mapped to meshes: its fragments and transfers, in order.

    func.func @main(%w: !mpmd.mesh_tensor<"mesh0", …>, …) -> (…) attributes {topology = #mpmd.topology<<"mesh0" : …>, …>} {
      %0 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%w, %x) {call_counter = 0 : ui32} (%a: …, %b: …) {…}
      %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", …>) -> !mpmd.mesh_tensor<"mesh1", …>
      %2 = mpmd.fragment<mesh="mesh1", origin=["stage1", "stage1"(1)], stage=1> (%1) {call_counter = 0 : ui32} (%a: …) {…}

The bodies of fragments have every sharding that is decided, as attributes of Shardy's `sdy`. An argument is on the mesh that
reads it first, and is transferred to others. A stack of layers is an argument for each of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshbridge.dialect.donation import DONOR
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.mlir import (
    SIDES,
    copy_named_functions,
    entries,
    function_type,
    ir,
    main_function,
    sdy,
    set_entries,
    terminator,
    verify,
)
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.mpmd_types import (
    COUNTER,
    DROPS,
    FRAGMENT,
    KEEPS,
    PART,
    RETURN,
    SHARDING,
    TOPOLOGY,
    TRANSFER,
    MeshTensor,
    origin_attr,
    part_attr,
    topology_attr,
)
from meshbridge.pipelines.plan import Call, Send, Slot
from meshbridge.pipelines.stacks import Part
from meshbridge.read import formats


def write(pipeline: StagedPipeline) -> ir.Module:
    """The program of a pipeline that is mapped to a mesh for each of its groups of devices, `mesh0`, `mesh1`, …

    Raises MeshError for a sharding that Shardy cannot express, such as one with a halo.
    """
    with pipeline.source.module.context, pipeline.source.module.operation.location:
        return _Writer(pipeline).write()


def mesh_name(group: int) -> str:
    """The name of the mesh of a group of devices."""
    return f"mesh{group}"


@dataclass(eq=False)
class _Body:
    """A fragment on global shapes, with the shardings of Shardy's `sdy`."""

    fragment: Fragment
    module: ir.Module

    @cached_property
    def inputs(self) -> list[MeshTensor]:
        """The types of what the fragment reads."""
        return self._types("arg_attrs", function_type(main_function(self.module)).inputs)

    @cached_property
    def outputs(self) -> list[MeshTensor]:
        """The types of what the fragment returns."""
        return self._types("res_attrs", function_type(main_function(self.module)).results)

    def _types(self, side: str, types: Sequence[ir.Type]) -> list[MeshTensor]:
        said = entries(main_function(self.module), side)
        mesh = mesh_name(self.fragment.group)
        return [MeshTensor(mesh, kind, entry.get(SHARDING)) for kind, entry in zip(types, said, strict=True)]


@dataclass(eq=False)
class _Writer:
    pipeline: StagedPipeline
    _values: dict[Slot, ir.Value] = field(default_factory=dict)
    _written: dict[Fragment, ir.Operation] = field(default_factory=dict)
    "The first op of each fragment, which later ones copy."

    @cached_property
    def _bodies(self) -> dict[Fragment, _Body]:
        notation = formats.notations()["sdy"]
        assert notation.from_mesh is not None, "Shardy's notation is written"
        bodies = {}
        for fragment in self.pipeline.plan.fragments:
            module = self.pipeline.partitioned(fragment, "annotated").module
            notation.from_mesh(module, True)
            bodies[fragment] = _Body(fragment, module)
        return bodies

    @cached_property
    def _homes(self) -> dict[int, tuple[Slot, MeshTensor]]:
        """By number, the arguments that fragments read: each on the mesh of its first reader."""
        homes: dict[int, tuple[Slot, MeshTensor]] = {}
        for slot, (fragment, number) in self.pipeline.plan.arguments.items():
            homes.setdefault(slot.source.number, (slot, self._bodies[fragment].inputs[number]))
        return homes

    def write(self) -> ir.Module:
        module = ir.Module.create()
        given = self.pipeline.source.module.operation.attributes
        if "sym_name" in given:
            module.operation.attributes["sym_name"] = given["sym_name"]
        end = ir.InsertionPoint(module.body)
        first = self._bodies[self.pipeline.plan.fragments[0]].module
        for view in first.body.operations:
            if view.operation.name == "sdy.mesh":
                view.operation.clone(ip=end)
        self._main(end)
        for body in self._bodies.values():
            copy_named_functions(body.module, module)
        verify(module)
        return module

    def _main(self, end: ir.InsertionPoint) -> None:
        plan, stacks = self.pipeline.plan, self.pipeline.stacks
        inputs = [self._argument(number, part) for number, part in enumerate(stacks.arguments)]
        outputs = [self._type_of_result(slot) for slot in plan.results]
        kind = ir.FunctionType.get([each.type for each in inputs], [each.type for each in outputs])
        named = {
            "sym_name": ir.StringAttr.get("main"),
            "function_type": ir.TypeAttr.get(kind),
            TOPOLOGY: self._topology(),
        }
        main = ir.Operation.create("func.func", [], [], named, regions=1, ip=end)
        block = main.regions[0].blocks.append(*kind.inputs)
        for slot, _ in self._homes.values():
            self._values[slot] = block.arguments[slot.source.number]
        builder = Builder(ir.Location.current, ir.InsertionPoint(block))
        for step in plan.steps:
            if isinstance(step, Call):
                self._call(step, builder)
            else:
                self._send(step, builder)
        results = [self._as(self._values[slot], each, builder) for slot, each in zip(plan.results, outputs, strict=True)]
        ir.Operation.create("func.return", [], results, ip=builder.ip)
        self._annotate(main)

    def _topology(self) -> ir.Attribute:
        mesh = mesh_or_single(self.pipeline.plan.fragments[0].module)
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.named_axes]
        own = sdy.MeshAttr.get(axes, list(mesh.device_ids))
        return topology_attr({mesh_name(group): own for group in range(self.pipeline.plan.schedule.groups)})

    def _argument(self, number: int, part: Part) -> MeshTensor:
        """The type of an argument; one that nothing reads is on the first mesh."""
        if number in self._homes:
            return self._homes[number][1]
        whole = ir.RankedTensorType(function_type(main_function(self.pipeline.source.module)).inputs[part.number])
        if part.parts == 1:
            return MeshTensor(mesh_name(0), whole)
        start, stop = part.bounds(whole.shape[0])
        return MeshTensor(mesh_name(0), tensor([stop - start, *whole.shape[1:]], whole.element_type))

    def _type_of_result(self, slot: Slot) -> MeshTensor:
        calls = (call for call in self.pipeline.plan.calls if slot in call.outputs)
        call = next(calls)
        return self._bodies[call.fragment].outputs[call.outputs.index(slot)]

    def _call(self, call: Call, builder: Builder) -> None:
        body = self._bodies[call.fragment]
        operands = [self._read(slot, each, builder) for slot, each in zip(call.inputs, body.inputs, strict=True)]
        op = self._fragment(body, operands, builder)
        if call.task is not None:
            op.attributes[COUNTER] = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(32), call.task.microbatch)
        self._values.update(zip(call.outputs, op.results, strict=True))

    def _read(self, slot: Slot, kind: MeshTensor, builder: Builder) -> ir.Value:
        """The value of a slot as a fragment reads it. An argument comes from its first mesh."""
        if slot not in self._values:
            home, _ = self._homes[slot.source.number]
            self._values[slot] = self._as(self._values[home], kind, builder)
        return self._as(self._values[slot], kind, builder)

    def _as(self, value: ir.Value, kind: MeshTensor, builder: Builder) -> ir.Value:
        """A value on that mesh, in that sharding."""
        return value if value.type == kind.type else builder.value(TRANSFER, kind.type, [value])

    def _send(self, send: Send, builder: Builder) -> None:
        kind = self._bodies[send.reader].inputs[send.argument]
        self._values[send.target] = self._as(self._values[send.slot], kind, builder)

    def _fragment(self, body: _Body, operands: Sequence[ir.Value], builder: Builder) -> ir.Operation:
        if (written := self._written.get(body.fragment)) is not None:
            copied = written.clone(ip=builder.ip)
            for number, operand in enumerate(operands):
                copied.operands[number] = operand
            return copied
        attributes = {"mesh_name": ir.StringAttr.get(mesh_name(body.fragment.group)), **self._labels(body.fragment)}
        results = [each.type for each in body.outputs]
        op = ir.Operation.create(FRAGMENT, results, operands, attributes, regions=1, ip=builder.ip)
        block = op.regions[0].blocks.append(*(each.tensor for each in body.inputs))
        given = main_function(body.module).regions[0].blocks[0]
        for argument, own in zip(given.arguments, block.arguments, strict=True):
            argument.replace_all_uses_with(own)
        end = terminator(given)
        assert end is not None, "a verified program"
        returned = list(end.operands)
        for view in list(given.operations):
            if view.operation != end:
                block.append(view.operation)
        ir.Operation.create(RETURN, [], returned, ip=ir.InsertionPoint(block))
        self._written[body.fragment] = op
        return op

    def _labels(self, fragment: Fragment) -> dict[str, ir.Attribute]:
        """The origins of a fragment, its stage, and which half of a backward pass it is. The last stage goes forward and
        backward in one fragment."""
        site, splits = fragment.site, self.pipeline.plan.schedule.splits_weights
        if not site.per_microbatch:
            name = {"pre": "before", "post": "after"}[site.kind] + (f".{site.level}" if site.level else "")
            return {"origin": origin_attr((name, 0))}
        name, is_last = f"stage{site.number}", site.number == self.pipeline.plan.schedule.chunks - 1
        passes = {"forward": (0, 1) if is_last else (0,), "backward": (1,), "weight": (1,)}[site.kind]
        stage = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), site.number)
        labels: dict[str, ir.Attribute] = {"origin": origin_attr(*((name, each) for each in passes)), "stage_id": stage}
        if splits and site.kind != "forward":
            labels[DROPS if site.kind == "weight" else KEEPS] = ir.UnitAttr.get()
        return labels

    def _annotate(self, main: ir.Operation) -> None:
        """Marks the arguments that the program may overwrite, and what is a part of a stack of layers."""
        stacks = self.pipeline.stacks
        has_parts = any(part.parts > 1 for part in (*stacks.arguments, *stacks.results))
        for side, parts in zip(SIDES, (stacks.arguments, stacks.results), strict=True):
            said: list[dict[str, ir.Attribute]] = [{} for _ in parts]
            for number, part in enumerate(parts):
                if has_parts:
                    said[number][PART] = part_attr(part)
                if side == "arg_attrs" and number in self.pipeline.donated:
                    said[number][DONOR] = ir.BoolAttr.get(True)
            set_entries(main, side, said)
