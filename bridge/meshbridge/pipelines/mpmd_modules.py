"""The fragments of a program that is mapped to meshes, each as a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count

from meshbridge import pipeline
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.ir.mlir import SIDES, copy_named_functions, ir, main_function, sdy, set_entries, walk
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.pipelines.mpmd_types import RETURN, SHARDING, MeshTensor
from meshbridge.read.import_shardings import ImportShardings

MESH = "sdy.mesh"


@dataclass(frozen=True, eq=False)
class FragmentModules:
    """Writes fragments of the program `whole` as modules of their own, with shardings of Shardy's; `functions` are those which
    fragments may call."""

    whole: ir.Module
    functions: Sequence[ir.Operation]

    def write(
        self, body: ir.Block | None, mesh: ir.Attribute, inputs: Sequence[MeshTensor], outputs: Sequence[MeshTensor]
    ) -> ir.Module:
        """The module of a fragment on a `#sdy.mesh`; without a body, of one that returns what it reads. Values without a
        sharding are replicated. Needs a current location."""
        module = ir.Module.create()
        end = ir.InsertionPoint(module.body)
        symbol = self._declare_meshes(mesh, [*inputs, *outputs], end)
        kind = ir.FunctionType.get([each.tensor for each in inputs], [each.tensor for each in outputs])
        named = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(kind)}
        main = ir.Operation.create("func.func", [], [], named, regions=1, ip=end)
        block = main.regions[0].blocks.append(*kind.inputs)
        if body is None:
            ir.Operation.create("func.return", [], list(block.arguments), ip=ir.InsertionPoint(block))
        else:
            _copy(body, block)
        for side, values in zip(SIDES, (inputs, outputs), strict=True):
            set_entries(main, side, [self._said(each, symbol) for each in values])
        if any(op.name == "func.call" for op in walk(main)):
            for function in self.functions:
                function.clone(ip=end)
            pipeline.run((InlineCalls(),), module)
        copy_named_functions(self.whole, module)
        return module

    def _declare_meshes(self, mesh: ir.Attribute, kinds: Sequence[MeshTensor], end: ir.InsertionPoint) -> str | None:
        """Declares the meshes that shardings name; returns a name of `mesh`, None if that has no axes."""
        declared: dict[str, ir.Attribute] = {}
        for view in self.whole.body.operations:
            if view.operation.name == MESH:
                view.operation.clone(ip=end)
                declared[ir.StringAttr(view.operation.attributes["sym_name"]).value] = view.operation.attributes["mesh"]
        meshes = [sdy.TensorShardingAttr(each.sharding).mesh_or_ref for each in kinds if each.sharding is not None]
        symbols = [each.value for each in meshes if isinstance(each, ir.FlatSymbolRefAttr)]
        own = next((name for name in (*symbols, *declared) if declared.get(name, mesh) == mesh), None)
        if own is None and len(sdy.MeshAttr(mesh).axes):
            own = next(name for name in chain(("mesh",), map("mesh_{}".format, count())) if name not in declared)
        for name in dict.fromkeys((*symbols, *([] if own is None else [own]))):
            if name not in declared:
                ir.Operation.create(MESH, attributes={"sym_name": ir.StringAttr.get(name), "mesh": mesh}, ip=end)
        return own

    def _said(self, kind: MeshTensor, symbol: str | None) -> dict[str, ir.Attribute]:
        if kind.sharding is not None:
            return {SHARDING: kind.sharding}
        if symbol is None:
            return {}
        dims = [sdy.DimensionShardingAttr.get([], True) for _ in ir.RankedTensorType(kind.tensor).shape]
        return {SHARDING: sdy.TensorShardingAttr.get(symbol, dims)}


def _copy(body: ir.Block, block: ir.Block) -> None:
    """Copies the ops of a fragment to a function."""
    copied: dict[ir.Value, ir.Value] = dict(zip(body.arguments, block.arguments, strict=True))
    end = ir.InsertionPoint(block)
    for view in body.operations:
        op = view.operation
        if op.name in (RETURN, "func.return"):
            ir.Operation.create("func.return", [], [copied[operand] for operand in op.operands], ip=end)
            return
        clone = op.clone(ip=end)
        for inner in walk(clone):
            for index, operand in enumerate(inner.operands):
                if operand in copied:
                    inner.operands[index] = copied[operand]
        copied.update(zip(op.results, clone.results, strict=True))


def imported(modules: Sequence[ir.Module]) -> list[ir.Module]:
    """Programs of fragments with the shardings of the mesh dialect; an axis of a mesh is cut where any of them cuts it.

    Raises MeshError for a malformed sharding."""
    together = ir.Module.create()
    end = ir.InsertionPoint(together.body)
    declared, functions = set[str](), list[ir.Operation]()
    for number, module in enumerate(modules):
        for view in module.body.operations:
            op = view.operation
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if op.name == MESH and name not in declared:
                declared.add(name)
                op.clone(ip=end)
        function = main_function(module).clone(ip=end)
        function.attributes["sym_name"] = ir.StringAttr.get(f"fragment{number}")
        functions.append(function)
        copy_named_functions(module, together)
    pipeline.run((ImportShardings(),), together)
    return [_alone(function, together) for function in functions]


def _alone(function: ir.Operation, together: ir.Module) -> ir.Module:
    module = ir.Module.create()
    end = ir.InsertionPoint(module.body)
    for mesh in mesh_ops(together.body):
        mesh.operation.clone(ip=end)
    own = function.clone(ip=end)
    own.attributes["sym_name"] = ir.StringAttr.get("main")
    copy_named_functions(together, module)
    return module
